//! The support for tests with real Kubernetes API servers does what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use ipam_testkit::kube::{Credential, End, Key, Kube, Login, Node, Pair, Request, Speaker};
use ipam_testkit::servers::process;
use ipam_testkit::waiting::{SECOND, panicked, until};
use serde_json::{Value, json};

#[test]
fn a_node_object_has_what_it_was_given() {
    let kube = Kube::shared();
    let node = Node::named("whole").cidrs(&["10.1.0.0/24", "fd00:1::/64"]).machine_id("m-1");
    let node = node.provider_id("kind://a").annotation("x.io/pools", "a,b").label("zone", "1");
    kube.create_node(&node);
    let node = kube.node("whole").unwrap();
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.1.0.0/24", "fd00:1::/64"]));
    assert_eq!(node["spec"]["podCIDR"], "10.1.0.0/24");
    assert_eq!(node["spec"]["providerID"], "kind://a");
    assert_eq!(node["metadata"]["annotations"], json!({"x.io/pools": "a,b"}));
    assert_eq!(node["metadata"]["labels"], json!({"zone": "1"}));
    assert_eq!(node["status"]["nodeInfo"]["machineID"], "m-1");
    // Nothing taints or annotates it on its own.
    assert_eq!(
        (&node["spec"]["taints"], &node["spec"]["unschedulable"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn a_node_object_is_changed_replaced_and_deleted() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("changing").machine_id("m-1").cidrs(&["10.2.0.0/24"]));
    kube.set_machine_id("changing", "m-2");
    kube.annotate_node("changing", "a/b", Some("1"));
    kube.annotate_node("changing", "a/c", Some("2"));
    kube.annotate_node("changing", "a/b", None);
    let node = kube.patch_node("changing", &json!({"metadata": {"labels": {"l": "v"}}}));
    assert_eq!(node["metadata"]["annotations"], json!({"a/c": "2"}));
    assert_eq!(
        (&node["metadata"]["labels"]["l"], &node["status"]["nodeInfo"]["machineID"]),
        (&json!("v"), &json!("m-2"))
    );
    let refused = json!({"spec": {"podCIDRs": ["10.3.0.0/24"], "podCIDR": "10.3.0.0/24"}});
    let answer = kube.ask("PATCH", "/api/v1/nodes/changing", refused.to_string().as_bytes());
    assert_eq!(answer.status, 422, "{}", answer.text());
    let other = kube.replace_node(&Node::named("changing").cidrs(&["10.3.0.0/24"]));
    assert_eq!(other["spec"]["podCIDR"], "10.3.0.0/24");
    assert_ne!(other["metadata"]["uid"], node["metadata"]["uid"]);
    kube.delete_node("changing");
    kube.delete_node("changing");
    assert_eq!(kube.node("changing"), None);
}

#[test]
fn objects_of_any_kind_are_made() {
    let kube = Kube::shared();
    let metadata = json!({"name": "any", "namespace": "anywhere"});
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}});
    let path = "/api/v1/namespaces/anywhere/configmaps/any";
    assert_eq!(kube.create(&object)["data"], kube.get(path).unwrap()["data"]);
    kube.delete(path);
    assert_eq!(kube.get(path), None);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "any"},
        "provisioner": "none",
    });
    kube.create(&class);
    assert!(kube.get("/apis/storage.k8s.io/v1/storageclasses/any").is_some());
}

#[test]
fn requests_are_counted_but_for_the_tests_own() {
    let kube = Kube::start();
    let user = kube.user();
    let grant = kube.allow_reading_nodes(&user, &["counted"]);
    kube.create_node(&Node::named("counted"));
    let client = kube.client(&user);
    let requests = kube.requests_during(|| {
        client.ask_node("counted");
        client.ask_node("refused");
        client.ask("GET", "/api/v1/nodes?limit=1", b"");
        client.ask("PATCH", "/api/v1/nodes/counted", b"{}");
        kube.client(&kube.nobody()).ask_node("counted");
        let unknown = Credential::Token("unknown".to_owned());
        kube.client(&Login { credential: unknown, ..user.clone() }).ask_node("counted");
    });
    grant.revoke();
    let lines: Vec<_> = requests.iter().map(Request::line).collect();
    let expected = [
        "get /api/v1/nodes/counted 200",
        "get /api/v1/nodes/refused 403",
        "list /api/v1/nodes?limit=1 403",
        "patch /api/v1/nodes/counted 403",
        "get /api/v1/nodes/counted 403",
        "get /api/v1/nodes/counted 401",
    ];
    assert_eq!(lines, expected);
    let users: Vec<_> = requests.iter().map(|request| request.user.as_str()).collect();
    let name = user.user.as_str();
    assert_eq!(users, [name, name, name, name, "system:anonymous", ""]);
    assert!(requests.iter().all(|request| request.user_agent == "test"));
    assert_eq!(
        (kube.requests(), kube.requests_of(name)),
        (requests.clone(), requests[..4].to_vec())
    );
    // Many at once are all there.
    let many = kube.requests_during(|| {
        thread::scope(|scope| {
            for number in 0..10 {
                let client = client.clone();
                scope.spawn(move || {
                    (0..20).for_each(|turn| drop(client.ask_node(&format!("n-{number}-{turn}"))));
                });
            }
        });
    });
    assert_eq!(many.len(), 200);
    kube.restart();
    client.ask_node("counted");
    assert_eq!(kube.requests().len(), 207);
}

#[test]
fn a_killed_server_comes_back_with_its_data_on_its_port() {
    let kube = Kube::builder().user("system:node:known", &["system:nodes"]).start();
    kube.create_node(&Node::named("known"));
    let (user, node) = (kube.user(), kube.user_named("system:node:known"));
    let _grant = kube.allow_reading_nodes(&user, &["known"]);
    let clients = [user, node, kube.admin()].map(|login| kube.client(&login));
    let endpoint = kube.endpoint();
    kube.kill();
    let error = TcpStream::connect(&endpoint).unwrap_err();
    assert_eq!((error.kind(), kube.pids()[0]), (ErrorKind::ConnectionRefused, None));
    assert!(kube.answers().is_err());
    let other = TcpListener::bind(&endpoint).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| kube.restart());
        until("a start that finds the port taken", || kube.log().contains("already in use"));
        drop(other);
    });
    assert_eq!(kube.endpoint(), endpoint);
    clients.iter().for_each(|client| assert_eq!(client.ask_node("known").status, 200));
}

#[test]
fn a_stopped_server_answers_nothing_until_it_goes_on() {
    let kube = Kube::start();
    let client = kube.client(&kube.admin()).patient_for(SECOND / 2);
    kube.stop();
    assert!(TcpStream::connect(kube.endpoint()).is_ok());
    let hasty = client.try_ask("GET", "/readyz", b"");
    assert_eq!(hasty.unwrap_err().kind(), ErrorKind::WouldBlock);
    kube.cont();
    assert_eq!(kube.ask("GET", "/readyz", b"").text(), "ok");
    // Without its store it says so, in time.
    kube.etcd().kill();
    until("it misses its store", || kube.ask("GET", "/readyz", b"").status == 500);
    kube.etcd().restart();
    until("it has found its store again", || kube.answers().is_ok());
    kube.stop();
}

#[test]
fn two_servers_at_once_share_nothing() {
    let servers = [Kube::builder().on_ipv6().start(), Kube::start()];
    assert!(servers[0].url().starts_with("https://[::1]:"), "{}", servers[0].url());
    servers[0].create_node(&Node::named("first"));
    assert_eq!(servers[1].node("first"), None);
    let logins = [servers[0].admin(), servers[0].certified("a", &["system:masters"], Key::P256)];
    for login in logins {
        assert_eq!(servers[0].client(&login).ask_node("first").status, 200);
        // Whose authority is another's is no such server.
        assert!(
            servers[1].client(&login).try_ask("GET", "/readyz", b"").is_ok_and(|a| a.status == 401)
        );
    }
}

#[test]
fn a_server_that_does_not_start_shows_what_it_logged() {
    let told = panicked(|| drop(Kube::builder().flag("--no-such-flag=1").start()));
    assert!(told.contains("ended at once") && told.contains("no-such-flag"), "{told}");
}

#[test]
fn the_program_is_the_one_named_or_of_the_assets_or_installed_or_built() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let locate = |named: Option<&Path>| {
        let assets = path("assets");
        let named = named.map(Path::as_os_str);
        ipam_testkit::kube::locate(
            named,
            Some(assets.as_os_str()),
            path("bin").as_os_str(),
            folder.path(),
        )
    };
    let told = locate(None).unwrap_err();
    assert_eq!(told, "kube-apiserver is missing: tests/run.sh --only-install builds it");
    for place in ["ipam-delegated/kube-apiserver-1.20.2", "bin", "assets"] {
        fs::create_dir_all(path(place)).unwrap();
        let program = path(place).join("kube-apiserver");
        fs::write(&program, "").unwrap();
        assert_eq!(locate(None), Ok(program));
    }
    let told = locate(Some(&path("named"))).unwrap_err();
    assert!(told.starts_with("IPAM_DELEGATED_KUBE_APISERVER names ") && told.contains("/named: "));
    fs::write(path("named"), "").unwrap();
    assert_eq!(locate(Some(&path("named"))), Ok(path("named")));
}

/// What a client of TLS reads to the end, and whether the end was TLS's own.
fn heard(speaker: &Speaker, authority: &Path, shown: Option<&Pair>) -> (String, bool) {
    let mut openssl = process::plain("openssl");
    openssl.args(["s_client", "-quiet", "-verify_return_error", "-ign_eof"]);
    openssl.args(["-connect", &speaker.endpoint()]).arg("-CAfile").arg(authority);
    if let Some(pair) = shown {
        openssl.arg("-cert").arg(&pair.certificate).arg("-key").arg(&pair.key);
    }
    openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = openssl.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let _ = stdin.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    let output = child.wait_with_output().unwrap();
    let cut = String::from_utf8_lossy(&output.stderr).contains("unexpected eof");
    (String::from_utf8(output.stdout).unwrap(), !cut)
}

#[test]
fn a_speaker_says_what_it_is_given() {
    let certificates = ipam_testkit::kube::Certificates::make();
    let authority = &certificates.authority();
    let html = Speaker::answer("200 OK", "Content-Type: text/html\r\n", "<html>");
    let text = String::from_utf8(html.clone()).unwrap();
    assert!(text.ends_with("Content-Length: 6\r\n\r\n<html>"), "{text}");
    let speaker = Speaker::saying(&certificates, html.clone(), End::Closed);
    assert!(speaker.url().starts_with("https://127.0.0.1:"));
    assert_eq!(heard(&speaker, authority, None), (text.clone(), true));
    assert_eq!(heard(&speaker, &certificates.other_authority(), None).0, "");
    assert_eq!(speaker.requests(), ["GET /a HTTP/1.1\r\nHost: x\r\n\r\n"]);
    let cut = Speaker::saying(&certificates, &html[..10], End::Cut);
    assert_eq!(heard(&cut, authority, None), (text[..10].to_owned(), false));
    let asking = Speaker::asking(&certificates.server(), authority, move |head| {
        assert!(head.starts_with("GET /a "));
        (html.clone(), End::Closed)
    });
    assert_eq!(heard(&asking, authority, None).0, "");
    assert_eq!(heard(&asking, authority, Some(&certificates.client())).0, text);
}

/// All that a server is on this machine: processes and folders.
fn traces(kube: &Kube) -> Vec<PathBuf> {
    let processes = kube.pids().map(|pid| PathBuf::from(format!("/proc/{}", pid.unwrap())));
    let traces = [&processes[..], &kube.folders()].concat();
    assert!(traces.iter().all(|trace| trace.exists()), "{traces:?}");
    traces
}

#[test]
fn nothing_is_left_of_a_server_even_after_a_panic() {
    for panics in [false, true] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let test = thread::spawn(move || {
            let kube = Kube::start();
            kube.stop();
            sender.send(traces(&kube)).unwrap();
            assert!(!panics, "as was asked for");
        });
        assert_eq!(test.join().is_err(), panics);
        let left: Vec<_> = receiver.recv().unwrap().into_iter().filter(|t| t.exists()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// It is its own child: the child shares a server, and ends or is killed.
#[test]
fn nothing_is_left_of_a_shared_server_when_its_tests_have_ended() {
    const CHILD: &str = "IPAM_DELEGATED_TEST_IS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let kube = thread::spawn(Kube::shared).join().unwrap();
        assert_eq!(kube.pids(), Kube::shared().pids());
        let mut stdout = std::io::stdout();
        for trace in traces(kube) {
            writeln!(stdout, "trace {}", trace.display()).unwrap();
        }
        writeln!(stdout, "that is all").unwrap();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    for is_killed in [false, true] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = "nothing_is_left_of_a_shared_server_when_its_tests_have_ended";
        child.args(["--exact", name]).env(CHILD, "1");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let told = lines.by_ref().take_while(|line| line != "that is all");
        let trace = |line: String| line.strip_prefix("trace ").map(PathBuf::from);
        let traces: Vec<PathBuf> = told.filter_map(trace).collect();
        assert_eq!(traces.len(), 5, "{traces:?}");
        if is_killed {
            child.kill().unwrap();
        }
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().success(), !is_killed);
        until("all of it has gone", || !traces.iter().any(|trace| trace.exists()));
    }
}
