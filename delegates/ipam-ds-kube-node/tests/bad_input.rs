//! What is wrong is told in time, with its code and its place, and nothing is changed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Site, by};
use ipam_testkit::kube::{
    Credential, End, Key, Kube, Kubeconfig, Login, Node, Silent, Speaker, Standing,
};
use ipam_testkit::world::{Host, names, with, without};
use serde_json::{Value, json};

/// An ADD that has three seconds, and needs little more, fails with this code, tells all of this, and
/// leaves nothing.
#[track_caller]
fn fails(site: &Site, network: &Value, code: u64, parts: &[&str]) -> String {
    let begin = Instant::now();
    let outcome = site.call("ADD", "c1", &with(network, "timeout", "3s"));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(12), "it took {took:?}");
    let (found, text) = outcome.failure();
    assert_eq!(found, code, "{text}");
    for part in [&["ipam-ds-kube-node"], parts].concat() {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    site.is_untouched();
    text
}

#[test]
fn a_login_that_is_nowhere_is_told_with_all_places() {
    let site = Site::new("no-login", &["11.0.1.0/24"]);
    for network in
        [without(&site.network(), &["kubeconfig"]), with(&site.network(), "kubeconfig", "")]
    {
        let parts = ["ipam.kubeconfig", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HOME"];
        fails(&site, &network, 7, &parts);
    }
    let (code, text) =
        site.call("ADD", "c1", &with(&site.network(), "kubeconfig", json!(["a"]))).failure();
    assert!(code == 7 && text.contains("ipam.kubeconfig"), "{code}: {text}");
    assert!(site.requests().is_empty());
}

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
        fails(&site, &site.network(), 7, &["ipam.kubeconfig", &name, part]);
    }
    fs::remove_file(&file).unwrap();
    fails(&site, &site.network(), 7, &["ipam.kubeconfig", &name, "No such file"]);
    fs::create_dir(&file).unwrap();
    fails(&site, &site.network(), 7, &["ipam.kubeconfig", &name]);
    assert!(site.requests().is_empty());
}

#[test]
fn a_kubeconfig_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new("unreadable", &["11.0.1.0/24"]);
    let file = site.kubeconfig_path();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o000)).unwrap();
    let call = site.selecting("ADD", "c1");
    // Root without the right to pass over permissions.
    let mut setpriv = Command::new("setpriv");
    setpriv.arg("--bounding-set=-dac_override,-dac_read_search");
    let command = by(setpriv, &call);
    let (code, text) = site.run(command, &site.for_selector()).failure();
    assert_eq!(code, 7, "{text}");
    for part in ["ipam.kubeconfig", &file.display().to_string(), "Permission denied"] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

#[test]
fn what_no_kubeconfig_may_say_yet_is_named_by_its_path() {
    let site = Site::new("exec", &["11.0.1.0/24"]);
    let touched = site.world.path("touched");
    let exec = json!({"users": [{"user": {"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [touched],
    }}}]});
    site.kubeconfig().more(&exec).write(&site.kubeconfig_path());
    fails(&site, &site.network(), 7, &["exec", "test-user"]);
    assert!(!touched.exists());
}

#[test]
fn a_certificate_that_is_no_good_is_told_with_the_reason() {
    let site = Site::new("certificates", &["11.0.1.0/24"]);
    let name = "certified";
    for (standing, part) in
        [(Standing::Expired, "expired at 2020-01-02"), (Standing::Strange, "certificate")]
    {
        let login = site.kube.certified_as(name, &[], Key::P256, standing);
        Kubeconfig::of(site.kube, &login).write(&site.kubeconfig_path());
        let text = fails(&site, &site.network(), 103, &[part]);
        let Credential::Certificate(pair) = login.credential else { unreachable!() };
        let key = fs::read_to_string(pair.key).unwrap();
        assert!(!text.contains(key.lines().nth(1).unwrap()), "{text}");
    }
    // The right one of another cluster's authority.
    let other = site.kube.certificates().other_authority();
    site.kubeconfig().authority(Some(&other)).write(&site.kubeconfig_path());
    fails(&site, &site.network(), 103, &["certificate-authority-data"]);
    site.kubeconfig().authority(None).write(&site.kubeconfig_path());
    fails(&site, &site.network(), 103, &["certificate-authority-data"]);
    assert!(site.requests().is_empty());
}

#[test]
fn a_login_that_is_refused_is_told_what_it_lacks() {
    let site = Site::new("refused", &["11.0.1.0/24"]);
    let unknown =
        Login { credential: Credential::Token("unknown-t0ken".to_owned()), ..site.kube.nobody() };
    let stranger = site.kube.user();
    let rule = r#"{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["refused"]}"#;
    for (login, parts) in [
        (unknown, &["401", "token"][..]),
        (stranger.clone(), &["403", &stranger.user, rule]),
        (site.kube.nobody(), &["403", "system:anonymous"]),
    ] {
        Kubeconfig::of(site.kube, &login).write(&site.kubeconfig_path());
        let text = fails(&site, &site.network(), 103, parts);
        assert!(!text.contains("unknown-t0ken"), "{text}");
    }
}

#[test]
fn a_node_without_subnets_is_told_what_assigns_them() {
    let site = Site::of(Kube::shared(), &Node::named("no-cidrs"));
    let parts = ["spec.podCIDRs of node no-cidrs", "no subnet", "--allocate-node-cidrs=true"];
    fails(&site, &site.network(), 7, &parts);
}

#[test]
fn a_node_that_is_not_there_is_told_by_name() {
    let site = Site::without_object(Kube::shared(), "absent");
    let file = site.kubeconfig_path().display().to_string();
    fails(&site, &site.network(), 103, &["no node absent", &file, "nodeName"]);
    let seen = site.requests().len();
    for odd in ["absent/status", "../../pods/x?y=z", "Absent", "a b", "-", ".."] {
        fails(
            &site,
            &with(&site.network(), "nodeName", odd),
            7,
            &["nodeName", odd, "no name of a node"],
        );
    }
    assert_eq!(site.requests().len(), seen);
}

#[test]
fn an_annotation_that_is_of_no_use_is_told_with_what_was_expected() {
    const NAME: &str = "kube-node.nordix.org/net1";
    let site = Site::new("annotations", &["11.0.1.0/24"]);
    let network = with(&site.network(), "annotation", NAME);
    let text = fails(&site, &network, 7, &["missing", "kubectl annotate node annotations"]);
    assert!(text.contains(NAME), "{text}");
    for (text, part) in [
        ("", "no subnet"),
        (" ", "no subnet"),
        ("blah", "\"blah\" is no CIDR"),
        ("10.0.0.0", "\"10.0.0.0\" is no CIDR"),
        ("10.0.0.0/33", "\"10.0.0.0/33\" is no CIDR"),
        ("10.0.0.0/24,", "\"\" is no CIDR"),
        ("10.0.0.0/24 fd00::/96", "is no CIDR"),
        (r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#, "is no CIDR"),
        ("$(touch /tmp/x)", "is no CIDR"),
        ("10.0.0.0/24,fd00::/96,10.1.0.0/24", "3 subnets"),
        ("10.0.0.0/24,10.1.0.0/24", "are of one family"),
        ("fd00::/96,fd01::/96", "are of one family"),
        ("10.0.0.5/24", "host bits"),
        ("10.9.0.0/31", "too small"),
        ("10.9.0.1/32", "too small"),
        ("fd00::/127", "too small"),
        ("::ffff:10.0.0.0/120", "::ffff:10.0.0.0/120"),
        ("0.0.0.0/0,::/0/0", "is no CIDR"),
    ] {
        site.kube.annotate_node("annotations", NAME, Some(text));
        // What was read last has been right as far as the node goes.
        let _ = fs::remove_dir_all(site.world.path("state/kubernetes"));
        let _ = fs::remove_file(site.world.path("data/kube-node.json"));
        let (code, found) = site.call("ADD", "c1", &network).failure();
        assert_eq!(code, 7, "{text:?}: {found}");
        for part in [part, NAME, "node annotations"] {
            assert!(found.contains(part), "{text:?}: {part:?}: {found}");
        }
        assert!(site.held("k8snet").is_empty(), "{text:?}");
    }
}

/// Has the machine call an endpoint that says this, and then does something else with the connection.
fn saying(site: &Site, text: impl Into<Vec<u8>>, end: End) -> Speaker {
    let speaker = Speaker::saying(site.kube.certificates(), text, end);
    site.calls(&speaker.url());
    speaker
}

#[test]
fn a_server_that_is_away_is_told_with_its_address() {
    let site = Site::new("gone", &["11.0.1.0/24"]);
    site.calls_nobody();
    fails(&site, &site.network(), 105, &["https://127.0.0.1:1", "Connection refused"]);
    let silent = Silent::listen();
    site.calls(&format!("https://{}", silent.endpoint()));
    fails(&site, &site.network(), 105, &[&silent.endpoint()]);
    site.calls("https://no-such-host.invalid:6443");
    fails(&site, &site.network(), 105, &["no-such-host.invalid"]);
    let speaker = saying(&site, "", End::Silent);
    fails(&site, &site.network(), 11, &[&speaker.endpoint(), "no answer within"]);
    assert!(silent.connections() > 0 && !speaker.requests().is_empty());
    // The DEL that follows does without.
    site.call("DEL", "c1", &with(&site.network(), "timeout", "3s")).success();
    assert!(site.records().is_empty());
}

#[test]
fn a_server_in_trouble_is_told_with_what_it_says() {
    let site = Site::new("trouble", &["11.0.1.0/24"]);
    let html = "Content-Type: text/html\r\n";
    for (status, said) in [("502 Bad Gateway", "<h1>Bad Gateway</h1>"), ("500 Oops", "{\"a\"")] {
        let _speaker = saying(&site, Speaker::answer(status, html, said), End::Next);
        fails(&site, &site.network(), 11, &[&status[..3], said]);
    }
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "slow down"});
    let busy =
        Speaker::answer("429 Too Many Requests", "Retry-After: 3600\r\n", &status.to_string());
    let speaker = saying(&site, busy, End::Next);
    fails(&site, &site.network(), 11, &["429", "3600 s", "slow down"]);
    // It is not asked again when it does not want to be.
    assert_eq!(speaker.requests().len(), 1);
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
    assert_eq!(site.call("ADD", "c1", &site.network()).ips(), ["11.0.1.2/24"]);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_eq!(speaker.requests().len(), 2);
}

#[test]
fn what_is_no_api_server_is_told_with_what_it_says() {
    let site = Site::new("stranger", &["11.0.1.0/24"]);
    let answer = |status: &str, headers: &str, body: &str| Speaker::answer(status, headers, body);
    let node = |name: &str| json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
    for (text, part) in [
        (answer("200 OK", "Content-Type: text/html\r\n", "<html>Log in</html>"), "<html>Log in"),
        (answer("200 OK", "", ""), "no Kubernetes API server"),
        (answer("200 OK", "", "null"), "no Kubernetes API server"),
        (answer("200 OK", "", "[]"), "no Kubernetes API server"),
        (answer("200 OK", "", "{}"), "no Kubernetes API server"),
        (answer("200 OK", "", &node("another").to_string()), "no Kubernetes API server"),
        (answer("302 Found", "Location: https://login.example/\r\n", ""), "302"),
        (answer("404 Not Found", "", "404 page not found"), "404 page not found"),
        (answer("403 Forbidden", "", "<html>Forbidden</html>"), "<html>Forbidden"),
        (answer("401 Unauthorized", "", "who?"), "who?"),
    ] {
        let _speaker = saying(&site, text, End::Next);
        fails(&site, &site.network(), 103, &[part]);
    }
}

#[test]
fn an_answer_that_is_cut_or_endless_ends_in_time() {
    let site = Site::new("cut", &["11.0.1.0/24"]);
    let node = site.kube.node("cut").unwrap().to_string();
    let whole = Speaker::answer("200 OK", "Content-Type: application/json\r\n", &node);
    let half = whole[..whole.len() - 40].to_vec();
    for end in [End::Closed, End::Cut, End::Silent] {
        let _speaker = saying(&site, half.clone(), end);
        fails(&site, &site.network(), 11, &["127.0.0.1"]);
    }
    // What does not speak HTTP is not an API server.
    let _speaker = saying(&site, "garbage\r\n\r\n", End::Closed);
    fails(&site, &site.network(), 103, &["127.0.0.1"]);
    let mut large = node.trim_end_matches('}').to_owned();
    large.push_str(&format!(",\"x\":\"{}\"}}}}", "x".repeat(9 << 20)));
    let _speaker = saying(&site, Speaker::answer("200 OK", "", &large), End::Next);
    let text = fails(&site, &site.network(), 103, &[]);
    assert!(text.len() < 2000, "{}", text.len());
}

#[test]
fn a_node_that_is_strangely_written_is_told_by_its_place() {
    let site = Site::new("strange", &["11.0.1.0/24"]);
    for (spec, part) in [
        (json!({"podCIDRs": "10.0.0.0/24"}), "no subnet"),
        (json!({"podCIDRs": [7, null]}), "no subnet"),
        (json!({"podCIDRs": ["10.0.0.0/24", "10.1.0.0/24"]}), "one family"),
        (json!({"podCIDRs": ["10.0.0.0/24\u{0}"]}), "is no CIDR"),
        (json!({"podCIDRs": [""]}), "is no CIDR"),
        (Value::Null, "no subnet"),
    ] {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "strange"}, "spec": spec});
        let answer = Speaker::answer("200 OK", "", &node.to_string());
        let _speaker = saying(&site, answer, End::Next);
        fails(&site, &site.network(), 7, &["spec.podCIDRs of node strange", part]);
    }
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
        let command = by(host.enter("env"), &site.command("ADD", "c1"));
        let outcome = site.run(command, &with(&site.network(), "timeout", "3s"));
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
    assert!(logs.contains(&"ipam-ds-kube-node.log".to_owned()), "{logs:?}");
    outputs.extend(logs.iter().map(|name| fs::read_to_string(folder.join(name)).unwrap()));
    let all = outputs.concat();
    assert!(all.contains("api/v1/nodes/logs") && all.contains("(401)"), "{all}");
    site.tells_no_secret(&all);
    for secret in [key, &key_data[..], &key_data[4..]] {
        assert!(!all.contains(secret), "{all}");
    }
}
