//! The support for tests with real Consul servers does what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use ipam_testkit::certificates::{Certificates, Pair};
use ipam_testkit::consul::{Client, Consul, Fate, Relay, Tls};
use ipam_testkit::waiting::{SECOND, panicked, until};
use serde_json::json;

#[test]
fn keys_are_written_read_listed_and_removed() {
    let consul = Consul::start();
    for (key, value) in [("a/1", "one"), ("a/2", "two\nlines\n"), ("b", ""), ("c/ü?=%&", "\"ä\"")]
    {
        consul.put(key, value);
        assert_eq!(consul.get(key).as_deref(), Some(value));
    }
    assert_eq!(consul.get("a"), None);
    assert_eq!(consul.keys("a/"), ["a/1", "a/2"]);
    assert_eq!(consul.keys(""), ["a/1", "a/2", "b", "c/ü?=%&"]);
    let values: Vec<_> = consul.list("a/").into_iter().map(|entry| entry.value).collect();
    assert_eq!(values, ["one", "two\nlines\n"]);
    consul.delete("a/1");
    consul.delete("a/1");
    assert_eq!(consul.keys("a/"), ["a/2"]);
    consul.delete_all("a");
    assert_eq!(consul.keys("a"), [""; 0]);
}

#[test]
fn writes_may_be_bound_to_an_index() {
    let consul = Consul::start();
    assert!(consul.cas("a", "1", 0) && !consul.cas("a", "2", 0));
    let entry = consul.entry("a").unwrap();
    assert_eq!((entry.value.as_str(), entry.created), ("1", entry.modified));
    assert!(consul.cas("a", "2", entry.modified) && !consul.cas("a", "3", entry.modified));
    let create = |key: &str| json!({"Verb": "cas", "Key": key, "Value": "ü", "Index": 0});
    assert_eq!(consul.txn(&[create("b"), create("c")]).status, 200);
    assert_eq!((consul.get("b").as_deref(), consul.get("c").as_deref()), (Some("ü"), Some("ü")));
    let refused = consul.txn(&[create("d"), create("c")]);
    assert_eq!((refused.status, &refused.json()["Errors"][0]["OpIndex"]), (409, &json!(1)));
    assert_eq!(consul.get("d"), None);
    consul.put_all((0..130).map(|n| (format!("n/{n}"), n.to_string())));
    assert_eq!(consul.keys("n/").len(), 130);
}

#[test]
fn two_servers_at_once_share_nothing() {
    let servers = [Consul::start(), Consul::start()];
    servers[0].put("a", "first");
    servers[1].put("b", "second");
    assert_eq!(servers.each_ref().map(|consul| consul.keys("")), [["a"], ["b"]]);
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let consul = thread::spawn(Consul::start).join().unwrap();
    let pid = consul.pid();
    consul.put("a", "b");
    assert_eq!((consul.get("a").as_deref(), consul.pid()), (Some("b"), pid));
}

#[test]
fn a_killed_server_comes_back_with_its_data_on_its_port() {
    let consul = Consul::start();
    let endpoint = consul.endpoint();
    consul.put("a", "b");
    consul.kill();
    let error = TcpStream::connect(&endpoint).unwrap_err();
    assert_eq!((error.kind(), consul.pid()), (ErrorKind::ConnectionRefused, None));
    consul.restart();
    assert_eq!((consul.endpoint(), consul.get("a").as_deref()), (endpoint, Some("b")));
}

#[test]
fn a_restart_waits_for_a_port_that_another_program_has() {
    let consul = Consul::start();
    consul.kill();
    let other = TcpListener::bind(consul.endpoint()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| consul.restart());
        until("a start that finds the port taken", || consul.log().contains("already in use"));
        drop(other);
    });
    consul.put("a", "b");
}

#[test]
fn another_server_on_its_port_is_not_taken_for_it() {
    let consul = Consul::start();
    consul.kill();
    let other = Consul::builder().in_place_of(&consul).start();
    assert_eq!((other.endpoint(), other.answers()), (consul.endpoint(), Ok(())));
    let reason = consul.answers().unwrap_err();
    assert!(reason.contains("another server has its port"), "{reason}");
}

#[test]
fn a_server_that_does_not_start_shows_what_it_logged() {
    let told = panicked(|| drop(Consul::builder().config(&json!({"no_such_key": 1})).start()));
    assert!(told.contains("ended at once") && told.contains("no_such_key"), "{told}");
}

#[test]
fn more_configuration_is_merged() {
    let more = [
        json!({"limits": {"http_max_conns_per_client": 1}}),
        json!({"performance": {"leave_drain_time": "3s"}}),
    ];
    let builder = more.iter().fold(Consul::builder(), |builder, more| builder.config(more));
    let consul = builder.start();
    let itself = consul.ask("GET", "agent/self", b"").json();
    let told = |key: &str| itself["DebugConfig"][key].clone();
    assert_eq!(told("HTTPMaxConnsPerClient"), 1);
    assert_eq!(
        (told("LeaveDrainTime"), told("ConsulRaftHeartbeatTimeout")),
        (json!("3s"), json!("1s"))
    );
}

#[test]
fn the_program_is_the_one_named_or_installed_or_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let cache = path("ipam-delegated/consul-1.8.7");
    fs::create_dir_all(&cache).unwrap();
    let locate = |named: Option<&Path>| {
        ipam_testkit::consul::locate(
            named.map(Path::as_os_str),
            path("bin").as_os_str(),
            folder.path(),
        )
    };
    let told = locate(None).unwrap_err();
    assert_eq!(told, "consul is missing: tests/run.sh --only-install unpacks it");
    fs::write(cache.join("unpacked"), "").unwrap();
    assert_eq!(locate(None), Ok(cache.join("usr/bin/consul")));
    fs::create_dir(path("bin")).unwrap();
    fs::write(path("bin/consul"), "").unwrap();
    assert_eq!(locate(None), Ok(path("bin/consul")));
    let told = locate(Some(&path("named"))).unwrap_err();
    assert!(
        told.starts_with("IPAM_DELEGATED_CONSUL names ") && told.contains("/named: "),
        "{told}"
    );
    fs::write(path("named"), "").unwrap();
    assert_eq!(locate(Some(&path("named"))), Ok(path("named")));
}

#[test]
fn a_stopped_server_answers_nothing_until_it_goes_on() {
    let consul = Consul::start();
    consul.put("a", "b");
    consul.stop();
    assert!(TcpStream::connect(consul.endpoint()).is_ok());
    let hasty = consul.patient_for(SECOND / 2).try_ask("GET", "kv/a", b"");
    assert_eq!(hasty.unwrap_err().kind(), ErrorKind::WouldBlock);
    consul.cont();
    assert_eq!(consul.get("a").as_deref(), Some("b"));
    consul.stop();
}

#[test]
fn with_acls_nobody_may_do_what_no_token_allows() {
    let consul = Consul::builder().acl().start();
    consul.put("other/a", "x");
    let rules = r#"key_prefix "ipam/" { policy = "write" } key_prefix "seen/" { policy = "read" }"#;
    let token = consul.create_token(rules);
    let client = consul.with_token(Some(&token.secret));
    client.put("ipam/a", "y");
    assert_eq!(consul.get("ipam/a").as_deref(), Some("y"));
    let status = |client: &Client, method, key: &str| client.ask(method, key, b"z").status;
    assert_eq!(status(&client, "PUT", "kv/other/b"), 403);
    assert_eq!(status(&client, "PUT", "kv/seen/b"), 403);
    assert_eq!(status(&client, "GET", "kv/seen/b"), 404);
    assert_eq!(status(&client, "GET", "kv/other/a"), 403);
    for nobody in [consul.stranger(), consul.with_token(Some("no-such-token"))] {
        assert_eq!(status(&nobody, "PUT", "kv/ipam/a"), 403);
    }
    // A second one is another one.
    assert_ne!(consul.create_token(rules).accessor, token.accessor);
    consul.restart();
    assert_eq!(client.get("ipam/a").as_deref(), Some("y"));
    consul.revoke(&token);
    until("the token has ended", || status(&client, "PUT", "kv/ipam/a") == 403);
    assert_eq!(consul.management().secret.len(), 36);
}

fn tls(certificates: &Certificates, verify_incoming: bool) -> Tls {
    let Pair { certificate, key } = certificates.server();
    Tls { authority: certificates.authority(), certificate, key, verify_incoming }
}

/// What an own handshake and a request come to.
fn asked_by_openssl(consul: &Consul, authority: &Path, shown: Option<&Pair>) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-verify_return_error", "-connect", &consul.endpoint()]);
    openssl.arg("-CAfile").arg(authority).env("OPENSSL_CONF", "/dev/null");
    if let Some(pair) = shown {
        openssl.arg("-cert").arg(&pair.certificate).arg("-key").arg(&pair.key);
    }
    openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = openssl.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let _ = std::io::Write::write_all(&mut stdin, b"GET /v1/kv/a?raw HTTP/1.0\r\n\r\n");
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_server_with_tls_serves_who_trusts_its_authority_and_shows_what_it_asks_for() {
    let certificates = Certificates::make();
    for verify_incoming in [false, true] {
        let consul = Consul::builder().tls(tls(&certificates, verify_incoming)).start();
        assert!(consul.url().starts_with("https://127.0.0.1:"), "{}", consul.url());
        consul.put("a", "secured");
        let reads = |authority, shown: Option<Pair>| {
            asked_by_openssl(&consul, authority, shown.as_ref()).ends_with("\r\n\r\nsecured")
        };
        let authority = &certificates.authority();
        for welcome in [certificates.client(), certificates.rsa_client()] {
            assert!(reads(authority, Some(welcome)));
        }
        for stranger in [certificates.other_client(), certificates.expired_client()] {
            assert_eq!(reads(authority, Some(stranger)), !verify_incoming);
        }
        assert_eq!(reads(authority, None), !verify_incoming);
        assert!(!reads(&certificates.other_authority(), Some(certificates.client())));
        // It speaks nothing else there.
        let answer = Client::to(&consul.endpoint()).ask("GET", "kv/a", b"");
        assert_eq!(answer.status, 400);
        consul.restart();
        assert_eq!(consul.get("a").as_deref(), Some("secured"));
    }
}

#[test]
fn a_snapshot_brings_a_store_back_even_to_another_server() {
    let consul = Consul::builder().acl().start();
    consul.put("a", "before");
    let entry = consul.entry("a");
    let snapshot = consul.snapshot();
    consul.put("a", "after");
    consul.put("b", "after");
    consul.restore(&snapshot);
    assert_eq!((consul.entry("a"), consul.keys("")), (entry.clone(), vec!["a".to_owned()]));
    consul.kill();
    let other = Consul::builder().in_place_of(&consul).start();
    other.restore(&snapshot);
    assert_eq!((other.entry("a"), other.keys("")), (entry, vec!["a".to_owned()]));
}

#[test]
fn a_relay_tells_what_it_passed_on() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let client = Client::to(&relay.endpoint());
    let lines = relay.during(|| {
        client.put("a", "b");
        assert_eq!(client.get("a").as_deref(), Some("b"));
        assert_eq!(client.get("no/key"), None);
        client.put_all((0..60).map(|n| (format!("n/{n:02}"), "x".repeat(1000))));
        assert_eq!(client.list("n/").len(), 60);
    });
    let expected = [
        "PUT /v1/kv/a",
        "GET /v1/kv/a",
        "GET /v1/kv/no/key",
        "PUT /v1/txn",
        "GET /v1/kv/n/?recurse",
    ];
    assert_eq!(lines, expected);
    assert_eq!((relay.connections(), relay.requests().len()), (5, 5));
    assert_eq!((relay.requests()[0].body.as_str(), consul.keys("n/").len()), ("b", 60));
    let secret = client.with_token(Some("secret"));
    assert_eq!(secret.ask("GET", "kv/a", b"").status, 200);
    assert_eq!(relay.requests()[5].header("x-consul-token"), Some("secret"));
    consul.kill();
    assert!(client.try_ask("GET", "kv/a", b"").is_err());
}

#[test]
fn a_relay_spoils_an_answer_after_the_server_has_done_its_work() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let client = Client::to(&relay.endpoint());
    let put = |value: &str| client.try_ask("PUT", "kv/a", value.as_bytes());
    relay.next([
        Fate::Refuse,
        Fate::Lose,
        Fate::Cut,
        Fate::Answer(500, "leadership lost while committing log".to_owned()),
        Fate::Delay(SECOND / 2),
    ]);
    assert_eq!(put("refused").unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(consul.get("a"), None);
    assert_eq!(put("lost").unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(consul.get("a").as_deref(), Some("lost"));
    assert!(put("cut").is_err());
    assert_eq!(consul.get("a").as_deref(), Some("cut"));
    let answer = put("told").unwrap();
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (500, "leadership lost while committing log")
    );
    assert_eq!(consul.get("a").as_deref(), Some("told"));
    let start = Instant::now();
    assert_eq!(put("late").unwrap().text(), "true");
    assert!(start.elapsed() >= SECOND / 2);
    assert_eq!(put("as ever").unwrap().text(), "true");
    assert_eq!(relay.requests().len(), 6);
}

/// A client that keeps its connection, with requests one after the other.
#[test]
fn a_relay_keeps_a_connection_for_further_requests() {
    use std::io::{Read, Write};
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let mut stream = TcpStream::connect(relay.endpoint()).unwrap();
    let head = "HTTP/1.1\r\nHost: consul\r\n";
    let chunks = "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n4;x=y\r\ntwo3\r\n0\r\n\r\n";
    let asks = "Expect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    write!(stream, "PUT /v1/kv/b {head}{asks}").unwrap();
    let mut told = [0; 25];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    write!(stream, "2PUT /v1/kv/a {head}{chunks}GET /v1/kv/a?raw {head}\r\n").unwrap();
    write!(stream, "GET /v1/kv/?keys {head}Connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 4, "{text}");
    assert!(text.contains("\r\n\r\nonetwo3HTTP/1.1") && text.contains(r#"["a","b"]"#), "{text}");
    assert_eq!((relay.connections(), relay.requests().len()), (1, 4));
}

#[test]
fn a_relay_may_ask_what_becomes_of_each_request() {
    let consul = Consul::start();
    let gate = Arc::new(Mutex::new(()));
    let writes = Arc::new(AtomicUsize::new(0));
    let (inside, counted) = (gate.clone(), writes.clone());
    let relay = Relay::deciding(&consul.endpoint(), move |request| {
        if request.method != "PUT" {
            return Fate::Pass;
        }
        let _open = inside.lock().unwrap();
        counted.fetch_add(1, Ordering::SeqCst);
        if request.body == "unwanted" { Fate::Refuse } else { Fate::Pass }
    });
    let client = Client::to(&relay.endpoint());
    assert!(client.try_ask("PUT", "kv/a", b"unwanted").is_err());
    thread::scope(|scope| {
        let closed = gate.lock().unwrap();
        let put = scope.spawn(|| client.put("a", "b"));
        until("the request has come", || relay.requests().len() == 2);
        assert_eq!(client.get("a"), None);
        drop(closed);
        put.join().unwrap();
    });
    assert_eq!((client.get("a").as_deref(), writes.load(Ordering::SeqCst)), (Some("b"), 2));
}

#[test]
fn nothing_is_left_of_a_server_even_after_a_panic() {
    for panics in [false, true] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let test = thread::spawn(move || {
            let consul = Consul::start();
            consul.stop();
            sender.send((consul.pid().unwrap(), consul.folder())).unwrap();
            assert!(!panics, "as was asked for");
        });
        assert_eq!(test.join().is_err(), panics);
        let (pid, folder) = receiver.recv().unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists() && !folder.exists());
    }
}
