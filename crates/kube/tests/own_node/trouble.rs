//! A kubeconfig that cannot be read, and an API server that is away, in trouble or cut off: what is
//! said, in the time that a call has.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ipam_testkit::kube::{Credential, End, Key, Silent, Speaker};
use ipam_testkit::world::{Host, names, with};
use serde_json::json;

use crate::site::{Kube, Kubeconfig, PROGRAM, Site, by, subnets, without_override};

#[test]
fn a_kubeconfig_that_is_none_is_named() {
    let site = Site::new("bad-kubeconfig", &["11.0.1.0/24"]);
    let file = site.kubeconfig_path();
    let name = file.display().to_string();
    let token = site.login.token().unwrap().to_owned();
    for (text, part) in [
        ("", "is empty"),
        ("\0\u{1}garbage", ""),
        ("<html>Log in</html>", ""),
        ("- a\n- b\n", ""),
        ("clusters: {a: [\n", ""),
        ("apiVersion: v1\nkind: Config\n", "current-context"),
        ("current-context: other\ncontexts: []\n", "other"),
        (&format!("{token}: [{token}"), ""),
    ] {
        fs::write(&file, text).unwrap();
        site.fails(&site.network(), 7, &["ipam.kubeconfig", &name, part]);
    }
    fs::remove_file(&file).unwrap();
    site.fails(&site.network(), 7, &["ipam.kubeconfig", &name, "No such file"]);
    fs::create_dir(&file).unwrap();
    site.fails(&site.network(), 7, &["ipam.kubeconfig", &name]);
    assert!(site.requests().is_empty());
}

#[test]
fn a_kubeconfig_that_may_not_be_read_is_named() {
    let site = Site::new("unreadable", &["11.0.1.0/24"]);
    let file = site.kubeconfig_path();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o000)).unwrap();
    let command = by(without_override(), &site.selecting());
    let (code, text) = site.run(command, &site.network()).failure();
    assert_eq!(code, 7, "{text}");
    for part in ["ipam.kubeconfig", &file.display().to_string(), "Permission denied"] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

/// Has the machine call an endpoint that says this, and then does something else with the connection.
fn saying(site: &Site, text: impl Into<Vec<u8>>, end: End) -> Speaker {
    let speaker = speaker(text, end);
    site.calls(&speaker.url());
    speaker
}

fn speaker(text: impl Into<Vec<u8>>, end: End) -> Speaker {
    Speaker::saying(Kube::shared().certificates(), text, end)
}

/// Calls of these URLs fail, all at once, for they wait in vain.
#[track_caller]
fn fail_at_once(site: &Site, code: u64, cases: &[(String, &[&str])]) {
    std::thread::scope(|scope| {
        for (number, (url, parts)) in cases.iter().enumerate() {
            let file = site.world.path(&format!("kubeconfig-{number}"));
            site.kubeconfig().server(url).write(&file);
            let network = with(&site.network(), "kubeconfig", json!(file));
            scope.spawn(move || site.fails(&network, code, parts));
        }
    });
}

#[test]
fn a_server_that_is_away_is_told_with_its_address() {
    let site = Site::new("gone", &["11.0.1.0/24"]);
    let silent = Silent::listen();
    let refusing = &["https://127.0.0.1:1", "Connection refused"];
    fail_at_once(
        &site,
        105,
        &[
            ("https://127.0.0.1:1".to_owned(), refusing),
            (format!("https://{}", silent.endpoint()), &[&silent.endpoint()]),
            ("https://no-such-host.invalid:6443".to_owned(), &["no-such-host.invalid"]),
        ],
    );
    let mute = speaker("", End::Silent);
    fail_at_once(&site, 11, &[(mute.url(), &[&mute.endpoint(), "no answer within"])]);
    assert!(silent.connections() > 0 && !mute.requests().is_empty());
}

#[test]
fn a_server_in_trouble_is_told_with_what_it_says() {
    let site = Site::new("trouble", &["11.0.1.0/24"]);
    let html = "Content-Type: text/html\r\n";
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "slow down"});
    let retry = "Retry-After: 3600\r\n";
    let [bad, oops, busy] = [
        ("502 Bad Gateway", html, "<h1>Bad Gateway</h1>"),
        ("500 Oops", html, "{\"a\""),
        ("429 Too Many Requests", retry, &*status.to_string()),
    ]
    .map(|(status, headers, said)| speaker(Speaker::answer(status, headers, said), End::Next));
    fail_at_once(
        &site,
        11,
        &[
            (bad.url(), &["502", "<h1>Bad Gateway</h1>"]),
            (oops.url(), &["500", "{\"a\""]),
            (busy.url(), &["429", "3600s", "slow down"]),
        ],
    );
    // It is not asked again when it does not want to be.
    assert_eq!(busy.requests().len(), 1);
}

#[test]
fn a_server_that_wants_to_be_left_alone_for_a_second_is_asked_after_it() {
    let site = Site::new("left-alone", &["11.0.1.0/24"]);
    let node = site.kube.node("left-alone").unwrap().to_string();
    let answers = std::sync::Mutex::new(vec![
        Speaker::answer("200 OK", "Content-Type: application/json\r\n", &node),
        Speaker::answer("429 Too Many Requests", "Retry-After: 1\r\n", "{}"),
    ]);
    let say = move |_: &str| (answers.lock().unwrap().pop().unwrap(), End::Next);
    let speaker = Speaker::deciding(&site.kube.certificates().server(), say);
    site.calls(&speaker.url());
    let begin = Instant::now();
    assert_eq!(subnets(&site.select(&site.network()).success()), ["11.0.1.0/24"]);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_eq!(speaker.requests().len(), 2);
}

#[test]
fn an_answer_that_is_cut_or_endless_ends_in_time() {
    let site = Site::new("cut", &["11.0.1.0/24"]);
    let node = site.kube.node("cut").unwrap().to_string();
    let whole = Speaker::answer("200 OK", "Content-Type: application/json\r\n", &node);
    let half = whole[..whole.len() - 40].to_vec();
    let cut = [End::Closed, End::Cut, End::Silent].map(|end| speaker(half.clone(), end));
    fail_at_once(&site, 11, &cut.each_ref().map(|cut| (cut.url(), &["127.0.0.1"][..])));
    // What does not speak HTTP is not an API server.
    let _speaker = saying(&site, "garbage\r\n\r\n", End::Closed);
    site.fails(&site.network(), 103, &["127.0.0.1"]);
    let mut large = node.trim_end_matches('}').to_owned();
    large.push_str(&format!(",\"x\":\"{}\"}}}}", "x".repeat(9 << 20)));
    let _speaker = saying(&site, Speaker::answer("200 OK", "", &large), End::Next);
    let text = site.fails(&site.network(), 103, &[]);
    assert!(text.len() < 2000, "{}", text.len());
}

#[test]
fn logs_show_no_secret() {
    let site = Site::new("logs", &["11.0.1.0/24"]);
    let host = Host::new();
    host.settings(&json!({"verbose": true}));
    let login = site.kube.certified("of-logs", &[], Key::P256);
    let Credential::Certificate(pair) = &login.credential else { unreachable!() };
    let key = fs::read_to_string(&pair.key).unwrap();
    let key = key.lines().nth(1).unwrap();
    let encoded = |file: &Path| {
        let text = fs::read_to_string(file).unwrap();
        let line = text.lines().find(|line| line.contains("client-key-data")).unwrap().to_owned();
        line.split_once(": ").unwrap().1[..60].to_owned()
    };
    let mut outputs = Vec::new();
    let mut call = |site: &Site| {
        let command = by(host.enter("env"), &site.selecting());
        let outcome = site.run(command, &site.network());
        outputs.extend([outcome.stdout, outcome.stderr]);
    };
    call(&site);
    let cold = || fs::remove_dir_all(site.world.path("state/kubernetes")).unwrap();
    cold();
    // What a server says may hold it, too.
    let token = site.login.token().unwrap();
    let said = format!("{{\"kind\": \"Status\", \"message\": \"no token {token}\"}}");
    let speaker = saying(&site, Speaker::answer("401 Unauthorized", "", &said), End::Next);
    call(&site);
    drop(speaker);
    Kubeconfig::of(site.kube, &login).write(&site.kubeconfig_path());
    let key_data = encoded(&site.kubeconfig_path());
    call(&site);
    let broken =
        fs::read_to_string(site.kubeconfig_path()).unwrap().replace(&key_data, &key_data[4..]);
    fs::write(site.kubeconfig_path(), broken).unwrap();
    call(&site);
    let folder = host.path("/var/log/cni");
    let logs = names(&folder);
    assert!(logs.contains(&format!("{PROGRAM}.log")), "{logs:?}");
    outputs.extend(logs.iter().map(|name| fs::read_to_string(folder.join(name)).unwrap()));
    let all = outputs.concat();
    assert!(all.contains("api/v1/nodes/logs") && all.contains("(401)"), "{all}");
    site.tells_no_secret(&all);
    for secret in [key, &key_data[..], &key_data[4..]] {
        assert!(!all.contains(secret), "{all}");
    }
}
