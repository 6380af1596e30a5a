//! An API server that is gone, slow, or not one: a clear error in time.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ipam_testkit::kube::{End, Silent, Speaker};
use ipam_testkit::node::{given, within};
use ipam_testkit::node_site::by;
use ipam_testkit::world::{Host, Outcome, names, start, wait};
use serde_json::{Value, json};

use super::Site;

const HTML: &str = "Content-Type: text/html\r\n";

impl Site {
    /// A call with four seconds: under load, one with less may end by its own deadline.
    fn brief(&self, kubeconfig: &Path, verb: &str, prev_result: &Value) -> Outcome {
        let mut network = self.network();
        network["ipam"]["kube"]["kubeconfig"] = json!(kubeconfig);
        for (key, value) in prev_result.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        let mut command = self.command(verb, "c1");
        command.env("IPAM_DELEGATED_DEADLINE_MS", "4000");
        within(Duration::from_secs(20), || wait(start(command, &network)))
    }
}

#[test]
fn a_server_that_is_away_or_another_is_told_in_time_and_nothing_changes() {
    let site = Site::new();
    let held = given(&site.add("c1"));
    let before = (site.desk.held(), site.owners());
    let certificates = site.desk.kube.certificates();
    let silent = Silent::listen();
    let speak = |text: Vec<u8>, end| Speaker::saying(certificates, text, end);
    let page = speak(Speaker::answer("200 OK", HTML, "<h1>Log in</h1>"), End::Next);
    let proxy = speak(Speaker::answer("502 Bad Gateway", HTML, "<h1>Bad Gateway</h1>"), End::Next);
    let mute = speak(Vec::new(), End::Silent);
    let cut = speak(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{".to_vec(), End::Cut);
    let servers = [
        ("https://127.0.0.1:1".to_owned(), [105, 11, 11, 50], "Connection refused"),
        (format!("https://{}", silent.endpoint()), [105, 11, 11, 50], ""),
        (page.url(), [103, 103, 103, 50], "<h1>Log in</h1>"),
        (proxy.url(), [11, 11, 11, 50], "502"),
        (mute.url(), [11, 11, 11, 50], ""),
        (cut.url(), [11, 11, 11, 50], ""),
    ];
    thread::scope(|scope| {
        for (number, (url, codes, part)) in servers.iter().enumerate() {
            let file = site.desk.folder.path().join(format!("kubeconfig-{number}"));
            site.desk.kubeconfig_of(&site.desk.login).server(url).write(&file);
            let address = url.trim_start_matches("https://");
            for (verb, code) in ["ADD", "CHECK", "DEL", "STATUS"].into_iter().zip(codes) {
                let (site, held, file) = (&site, &held, file.clone());
                scope.spawn(move || {
                    let known = if verb == "ADD" { json!({}) } else { held.clone() };
                    let (found, text) = site.brief(&file, verb, &known).failure();
                    assert_eq!(found, *code, "{url} {verb}: {text}");
                    assert!(text.contains(address) && text.contains(part), "{verb}: {text}");
                });
            }
        }
    });
    assert_eq!((site.desk.held(), site.owners()), before);
    site.call_with("CHECK", "c1", &held).success();
    site.call_with("DEL", "c1", &held).success();
    assert_eq!(site.desk.held(), [""; 0]);
}

#[test]
fn outputs_and_logs_show_no_secret() {
    let site = Site::new();
    let host = Host::new();
    host.settings(&json!({"verbose": true}));
    let token = site.desk.login.token().unwrap();
    let mut outputs = Vec::new();
    let mut call = |verb: &&str| {
        let command = by(host.enter("env"), &site.command(verb, "c1"));
        let outcome = wait(start(command, &site.network()));
        outputs.extend([outcome.stdout, outcome.stderr]);
    };
    ["ADD", "CHECK", "DEL", "STATUS"].iter().for_each(&mut call);
    // A server's answer may contain it, too.
    let said = format!("{{\"kind\": \"Status\", \"message\": \"no token {token}\"}}");
    let speaker = Speaker::saying(
        site.desk.kube.certificates(),
        Speaker::answer("401 Unauthorized", "", &said),
        End::Next,
    );
    let config = site.desk.kubeconfig_of(&site.desk.login).server(&speaker.url());
    config.write(&site.desk.kubeconfig_path());
    ["ADD", "CHECK", "DEL", "STATUS"].iter().for_each(&mut call);
    let folder = host.path("/var/log/cni");
    let logs = names(&folder);
    outputs.extend(logs.iter().map(|name| fs::read_to_string(folder.join(name)).unwrap()));
    let all = outputs.concat();
    assert!(all.contains("ippools") && all.contains("(401)"), "{all}");
    assert!(!all.contains(token), "{all}");
}
