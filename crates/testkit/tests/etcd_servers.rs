//! The support for tests with real etcd servers does what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;

use ipam_testkit::certificates::{Certificates, Pair};
use ipam_testkit::etcd::{ClusterId, Etcd, Silent, Tls};
use ipam_testkit::waiting::{SECOND, panicked, until};

fn counts(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(method, count)| ((*method).to_owned(), *count)).collect()
}

/// What a run said that failed.
#[track_caller]
fn refused(output: Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn keys_are_written_read_listed_and_removed() {
    let etcd = Etcd::start();
    for (key, value) in [("/a/1", "one"), ("/a/2", "two\nlines\n"), ("/b", ""), ("-c", "--d")] {
        etcd.put(key, value);
        assert_eq!(etcd.get(key).as_deref(), Some(value));
    }
    assert_eq!(etcd.get("/a"), None);
    assert_eq!(etcd.keys("/a/"), ["/a/1", "/a/2"]);
    assert_eq!(etcd.keys(""), ["-c", "/a/1", "/a/2", "/b"]);
    assert!(etcd.del("/a/1") && !etcd.del("/a/1"));
    assert_eq!(etcd.keys("/a/"), ["/a/2"]);
}

#[test]
fn single_requests_do_what_etcdctl_does() {
    let etcd = Etcd::start();
    let requests = etcd.requests();
    for value in ["", "1", "12", "123", "ä\n\"?>~"] {
        requests.put("/a/ü", value).unwrap();
        assert_eq!(etcd.get("/a/ü").as_deref(), Some(value));
        assert_eq!(requests.get("/a/ü").unwrap().unwrap().value, value);
    }
    etcd.put("/a0", "");
    let list = requests.list("/a/").unwrap();
    assert_eq!(list.iter().map(|entry| &entry.key).collect::<Vec<_>>(), ["/a/ü"]);
    assert_eq!(requests.get("/a/").unwrap(), None);
    assert!(requests.delete("/a/ü").unwrap() && !requests.delete("/a/ü").unwrap());

    let lease = requests.grant(60).unwrap();
    assert_eq!(requests.leases().unwrap(), [lease]);
    assert!(requests.create("/b", "1", lease).unwrap());
    assert!(!requests.create("/b", "2", lease).unwrap());
    assert_eq!(etcd.get("/b").as_deref(), Some("1"));
    requests.revoke(lease).unwrap();
    assert_eq!(etcd.get("/b"), None);
    let reason = requests.revoke(lease).unwrap_err();
    assert!(reason.contains("requested lease not found"), "{reason}");

    etcd.kill();
    let reason = requests.get("/b").unwrap_err();
    assert!(reason.contains("refused"), "{reason}");
}

#[test]
fn two_servers_at_once_share_nothing() {
    let servers = [Etcd::start(), Etcd::start()];
    servers[0].put("a", "first");
    servers[1].put("b", "second");
    assert_eq!(servers.each_ref().map(|etcd| etcd.keys("")), [["a"], ["b"]]);
    assert_ne!(servers[0].cluster_id(), servers[1].cluster_id());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let etcd = thread::spawn(Etcd::start).join().unwrap();
    let pid = etcd.pid();
    etcd.put("a", "b");
    assert_eq!((etcd.get("a").as_deref(), etcd.pid()), (Some("b"), pid));
}

#[test]
fn a_killed_server_comes_back_with_its_data_on_its_port() {
    let etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    etcd.put("a", "b");
    etcd.kill();
    let error = TcpStream::connect(&endpoint).unwrap_err();
    assert_eq!((error.kind(), etcd.pid()), (ErrorKind::ConnectionRefused, None));
    etcd.restart();
    assert_eq!(etcd.endpoint(), endpoint);
    assert_eq!(etcd.get("a").as_deref(), Some("b"));
}

#[test]
fn a_restart_waits_for_a_port_that_another_program_has() {
    let etcd = Etcd::start();
    etcd.kill();
    let other = TcpListener::bind(etcd.endpoint()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| etcd.restart());
        until("a start that finds the port taken", || etcd.log().contains("already in use"));
        drop(other);
    });
    etcd.put("a", "b");
}

#[test]
fn another_server_on_its_port_is_not_taken_for_it() {
    let etcd = Etcd::start();
    etcd.kill();
    let other = Etcd::builder().in_place_of(&etcd).start();
    assert_eq!(other.endpoint(), etcd.endpoint());
    assert_eq!(other.answers(), Ok(()));
    let reason = etcd.answers().unwrap_err();
    assert!(reason.contains("another server has its port"), "{reason}");
}

#[test]
fn a_server_that_does_not_start_shows_what_it_logged() {
    let told = panicked(|| drop(Etcd::builder().flag("--no-such-flag=1").start()));
    assert!(told.contains("ended at once") && told.contains("no-such-flag"), "{told}");
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    let nowhere = OsStr::new("/nowhere:/neither");
    for (program, package) in
        [("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("ip", "iproute2")]
    {
        let told = ipam_testkit::etcd::find(program, nowhere).unwrap_err();
        assert!(
            told.contains(&format!("{program} is missing: apt-get install {package} ")),
            "{told}"
        );
    }
}

#[test]
fn a_stopped_server_answers_nothing_until_it_goes_on() {
    let etcd = Etcd::start();
    etcd.put("a", "b");
    etcd.stop();
    assert!(TcpStream::connect(etcd.endpoint()).is_ok());
    let hasty = ["--dial-timeout=500ms", "--command-timeout=500ms", "get", "a"];
    refused(etcd.try_etcdctl(&hasty));
    etcd.cont();
    assert_eq!(etcd.get("a").as_deref(), Some("b"));
    etcd.stop();
}

#[test]
fn calls_are_counted_one_by_one() {
    let etcd = Etcd::start();
    assert_eq!(etcd.rpcs_during(|| {}), counts(&[]));
    assert_eq!(etcd.rpcs_during(|| etcd.put("a", "b")), counts(&[("Put", 1)]));
    let both = || assert_eq!((etcd.get("a").as_deref(), etcd.get("c")), (Some("b"), None));
    assert_eq!(etcd.rpcs_during(both), counts(&[("Range", 2)]));
    // One that fails counts too.
    let failing = || drop(refused(etcd.try_etcdctl(&["lease", "revoke", "1"])));
    assert_eq!(etcd.rpcs_during(failing), counts(&[("LeaseRevoke", 1)]));
}

fn tls(certificates: &Certificates, needs_certificate: bool) -> Tls {
    let Pair { certificate, key } = certificates.server();
    let Pair { certificate: shown, key: shown_key } = certificates.client();
    Tls {
        authority: certificates.authority(),
        certificate,
        key,
        client_authority: needs_certificate.then(|| certificates.authority()),
        client: needs_certificate.then_some((shown, shown_key)),
    }
}

fn shown(pair: &Pair) -> [&str; 4] {
    ["--cert", pair.certificate.to_str().unwrap(), "--key", pair.key.to_str().unwrap()]
}

/// A call that is given up soon: a server that refuses a client lets etcdctl try again.
const HASTY_GET: [&str; 4] = ["--dial-timeout=2s", "--command-timeout=2s", "get", "a"];

#[test]
fn a_server_with_tls_may_need_a_certificate_of_its_clients() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).start();
    etcd.put("a", "b");
    assert_eq!(etcd.rpcs_during(|| drop(etcd.get("a"))), counts(&[("Range", 1)]));
    let get = |identity: &[&str]| etcd.etcdctl_as(identity, &HASTY_GET);
    for welcome in [certificates.client(), certificates.rsa_client()] {
        let output = get(&shown(&welcome));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a\nb\n", "{output:?}");
    }
    refused(get(&[]));
    for stranger in [certificates.other_client(), certificates.expired_client()] {
        refused(get(&shown(&stranger)));
    }
    etcd.restart();
    assert_eq!(etcd.get("a").as_deref(), Some("b"));
}

#[test]
fn a_server_with_tls_serves_who_trusts_its_authority() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, false)).start();
    assert!(etcd.url().starts_with("https://127.0.0.1:"), "{}", etcd.url());
    etcd.put("a", "b");
    assert!(etcd.etcdctl_as(&[], &HASTY_GET).status.success());
    let other = certificates.other_authority();
    refused(etcd.etcdctl_as(&["--cacert", other.to_str().unwrap()], &HASTY_GET));
}

#[test]
fn certificates_are_of_the_kinds_they_are_named_by() {
    let certificates = Certificates::make_for(&["10.1.2.3".parse().unwrap()]);
    let key = |pair: Pair| fs::read_to_string(pair.key).unwrap();
    for pair in [certificates.server(), certificates.client(), certificates.other_client()] {
        assert!(key(pair).starts_with("-----BEGIN PRIVATE KEY-----\n"));
    }
    assert!(key(certificates.rsa_client()).starts_with("-----BEGIN RSA PRIVATE KEY-----\n"));
    let text = |pair: Pair| {
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-noout", "-text", "-in"]).arg(pair.certificate);
        String::from_utf8(openssl.output().unwrap().stdout).unwrap()
    };
    let server = text(certificates.server());
    assert!(
        server.contains("IP Address:127.0.0.1, DNS:localhost, IP Address:10.1.2.3"),
        "{server}"
    );
    let client = text(certificates.client());
    assert!(
        client.contains(&format!("Subject: CN = {}\n", ipam_testkit::certificates::CLIENT)),
        "{client}"
    );
    assert!(client.contains("prime256v1"), "{client}");
}

#[test]
fn with_authentication_on_only_users_are_served_below_their_prefix() {
    let etcd = Etcd::builder().auth("ipam", "secret", "/ipam/").start();
    etcd.put("/other", "x");
    let put = |identity: &[&str], key| etcd.etcdctl_as(identity, &["put", key, "y"]);
    let user = ["--user", "ipam:secret"];
    let calls = etcd.rpcs_during(|| assert!(put(&user, "/ipam/a").status.success()));
    assert_eq!(calls, counts(&[("Authenticate", 1), ("Put", 1)]));
    for (identity, key, reason) in [
        (&user[..], "/other", "permission denied"),
        (&["--user", "ipam:wrong"], "/ipam/b", "authentication failed"),
        (&[], "/ipam/b", "user name is empty"),
    ] {
        let told = refused(put(identity, key));
        assert!(told.contains(reason), "{told}");
    }
    etcd.restart();
    assert_eq!(etcd.keys("/"), ["/ipam/a", "/other"]);
}

/// Asks the gateway of a server over HTTP; the status and the body.
fn gateway(etcd: &Etcd, token: Option<&str>, path: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(etcd.endpoint()).unwrap();
    let length = body.len();
    let token = token.map_or_else(String::new, |token| format!("Authorization: {token}\r\n"));
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n{token}");
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

#[test]
fn a_token_that_is_not_used_expires() {
    let etcd = Etcd::builder().auth("ipam", "secret", "/ipam/").token_ttl(1).start();
    let user = r#"{"name": "ipam", "password": "secret"}"#;
    let (status, body) = gateway(&etcd, None, "/v3/auth/authenticate", user);
    assert_eq!(status, "200", "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let token = body["token"].as_str();
    assert!(token.is_some(), "{body}");
    // The key is /ipam/a.
    let read = || gateway(&etcd, token, "/v3/kv/range", r#"{"key": "L2lwYW0vYQ=="}"#);
    let mut waited = SECOND;
    loop {
        let (status, body) = read();
        if status != "200" {
            assert!(body.contains("invalid auth token"), "{body}");
            return;
        }
        // Each use begins the time anew.
        thread::sleep(waited);
        waited *= 2;
        assert!(waited < 30 * SECOND, "the token does not expire");
    }
}

#[test]
fn a_store_beyond_its_quota_refuses_writes_until_there_is_room() {
    let etcd = Etcd::builder().quota(8 << 20).start();
    etcd.put("a", "b");
    etcd.fill();
    assert!(etcd.alarms().contains("NOSPACE"));
    let told = refused(etcd.try_etcdctl(&["put", "a", "c"]));
    assert!(told.contains("database space exceeded"), "{told}");
    etcd.restart();
    assert_eq!(etcd.get("a").as_deref(), Some("b"));
    etcd.make_room();
    etcd.put("a", "c");
    assert_eq!((etcd.keys(""), etcd.alarms()), (vec!["a".to_owned()], String::new()));
}

#[test]
fn a_restored_store_is_as_it_was_under_the_cluster_id_that_was_chosen() {
    let etcd = Etcd::start();
    etcd.put("a", "before");
    let (id, revision, endpoint) = (etcd.cluster_id(), etcd.revision(), etcd.endpoint());
    let snapshot = etcd.snapshot();
    for kind in [ClusterId::Kept, ClusterId::Other] {
        etcd.put("a", "after");
        etcd.put("b", "after");
        etcd.restore(&snapshot, kind);
        assert_eq!((etcd.endpoint(), etcd.revision()), (endpoint.clone(), revision));
        assert_eq!(
            (etcd.get("a").as_deref(), etcd.keys("")),
            (Some("before"), vec!["a".to_owned()])
        );
        assert_eq!(etcd.cluster_id() == id, kind == ClusterId::Kept);
    }
    etcd.restart();
    assert_eq!(etcd.revision(), revision);
}

#[test]
fn a_silent_endpoint_accepts_and_never_answers() {
    let silent = Silent::listen();
    assert_eq!(silent.connections(), 0);
    let mut stream = TcpStream::connect(silent.endpoint()).unwrap();
    stream.write_all(b"anybody there?").unwrap();
    assert_eq!(silent.connections(), 1);
    stream.set_read_timeout(Some(SECOND / 5)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
