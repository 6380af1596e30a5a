//! What stands in the way of a store is told clearly and in time, and nothing is changed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use ipam_testkit::certificates::{Certificates, Pair};
use ipam_testkit::etcd::{Cluster, Etcd, Silent};
use ipam_testkit::node::{VERBS, at_once, within};
use ipam_testkit::pages::Page;
use serde_json::{Value, json};

use common::layouts::{BOTH, whereabouts_node};
use common::relay::Relay;
use common::store::{books, everything};
use common::{Node, secured, tls};

/// `ipam.etcd.timeout` of these tests is 1 s; a machine under load may need some more.
const BOUND: Duration = Duration::from_secs(4);

const SECOND: Duration = Duration::from_secs(1);

fn hasty(node: Node) -> Node {
    node.with("timeout", "1s")
}

/// A server whose clients have to be told why they are not served.
fn strict(etcd: &Etcd) -> Node {
    hasty(Node::of(etcd))
}

/// Every verb fails with a code, STATUS perhaps with another, and with these words, in time.
#[track_caller]
fn assert_refused(node: &Node, [code, status]: [u64; 2], words: &[&str]) {
    let prev_result = json!({"ips": [{"address": "10.1.0.2/16"}]});
    at_once(VERBS.len(), |number| {
        let verb = VERBS[number];
        let outcome = within(BOUND, || node.call_with(verb, "c1", &prev_result));
        let (told, text) = outcome.failure();
        // An ADD says whether it reached anybody.
        let told = if verb == "ADD" && told == 105 { code } else { told };
        assert_eq!(told, if verb == "STATUS" { status } else { code }, "{verb}: {text}");
        for word in words {
            assert!(text.contains(word), "{verb}: {word:?} is not in {text}");
        }
    });
}

/// An address of this machine on which nobody listens.
fn refused() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_store_that_is_not_named_is_an_error_of_the_configuration() {
    let node = Node::at(&[]);
    assert_refused(&node, [7, 7], &["ipam.etcd.endpoints: empty: expected at least one endpoint"]);
    let mut node = Node::at(&["127.0.0.1:port".to_owned()]);
    assert_refused(&node, [7, 7], &["ipam.etcd.endpoints[0]: \"127.0.0.1:port\""]);
    node.store["etcd"] = Value::Null;
    assert_refused(&node, [7, 7], &["ipam.etcd: missing: expected the endpoints of an etcd"]);
    node.store["etcd"] = json!({"endpoints": "127.0.0.1:2379"});
    assert_refused(&node, [7, 7], &["ipam.etcd.endpoints", "expected an array, found"]);
    node.store["etcd"] = json!({"endpoint": ["127.0.0.1:2379"]});
    assert_refused(&node, [7, 7], &["ipam.etcd", "endpoint"]);
}

#[test]
fn a_file_without_an_end_or_without_a_writer_is_refused_at_once() {
    let etcd = Etcd::start();
    let pipe = tempfile::tempdir().unwrap();
    let pipe = pipe.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in [Path::new("/dev/zero"), &pipe] {
        let mut node = hasty(Node::at(&["https://127.0.0.1:1".to_owned()]));
        node.store["etcd"]["trustedCaFile"] = json!(file);
        let told = format!("{} cannot be read", file.display());
        assert_refused(&node, [7, 7], &["ipam.etcd.trustedCaFile", &told, "not a regular file"]);
        let node = hasty(Node::of(&etcd)).with("username", "root");
        let node = node.with("passwordFile", file.to_str().unwrap());
        assert_refused(&node, [7, 50], &["ipam.etcd.passwordFile", &told, "not a regular file"]);
    }
}

#[test]
fn endpoints_that_do_not_answer_are_named_each_with_its_reason() {
    let endpoint = refused();
    let url = format!("http://{endpoint}");
    assert_refused(&hasty(Node::at(&[endpoint])), [11, 50], &[&url, "Connection refused"]);
    let silent = Silent::listen();
    let url = format!("http://{}", silent.endpoint());
    assert_refused(&hasty(Node::at(&[silent.endpoint()])), [11, 50], &[&url, "no answer within"]);
    let nobody = "no-such-host.invalid:2379".to_owned();
    assert_refused(&hasty(Node::at(&[nobody])), [11, 50], &["http://no-such-host.invalid:2379"]);
    let both = [refused(), silent.endpoint()];
    let urls = both.clone().map(|endpoint| format!("http://{endpoint}"));
    assert_refused(&hasty(Node::at(&both)), [11, 50], &[&urls[0], &urls[1]]);
}

#[test]
fn certificate_files_that_cannot_be_used_are_named() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).start();
    let before = everything(&etcd);
    let good = secured(Node::of(&etcd), &certificates, Some(&certificates.client()));
    good.call("STATUS", "").success();
    let file = |name: &str, content: &str| {
        let path = certificates.folder().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = certificates.folder().join("missing.pem").to_str().unwrap().to_owned();
    let folder = certificates.folder().to_str().unwrap().to_owned();
    let empty = file("empty.pem", "");
    let garbage = file("garbage.pem", "garbage\n");
    for key in ["certFile", "keyFile", "trustedCaFile"] {
        for (path, reason) in [
            (&missing, "cannot be read"),
            (&folder, "cannot be read"),
            (&empty, "contains no PEM block of type"),
            (&garbage, "contains no PEM block of type"),
        ] {
            let mut node = hasty(Node::of(&etcd));
            node.store["etcd"] = good.store["etcd"].clone();
            node.store["etcd"][key] = path.clone().into();
            assert_refused(&node, [7, 7], &[&format!("ipam.etcd.{key}: {path} {reason}")]);
        }
    }
    let spoilt = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
    let other_key = certificates.server().key.to_str().unwrap().to_owned();
    for (key, path) in [
        ("certFile", file("spoilt.pem", &spoilt("CERTIFICATE"))),
        ("keyFile", file("spoilt.key", &spoilt("PRIVATE KEY"))),
        ("keyFile", other_key),
    ] {
        let mut node = hasty(Node::of(&etcd));
        node.store["etcd"] = good.store["etcd"].clone();
        node.store["etcd"][key] = path.into();
        assert_refused(&node, [7, 50], &[&etcd.url(), "the certificate files cannot be used"]);
    }
    // Nobody is trusted who is in no certificate.
    let mut node = hasty(Node::of(&etcd));
    node.store["etcd"] = good.store["etcd"].clone();
    node.store["etcd"]["trustedCaFile"] = file("spoilt.pem", &spoilt("CERTIFICATE")).into();
    assert_refused(&node, [103, 50], &[&etcd.url(), "UnknownIssuer", "trustedCaFile"]);
    assert_eq!(everything(&etcd), before);
}

#[test]
fn a_server_that_cannot_be_trusted_is_told_nothing() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, false)).start();
    let advice = "trustedCaFile";
    let trusting = |file: &Path| strict(&etcd).with("trustedCaFile", file.to_str().unwrap());
    let calls = etcd.rpcs_during(|| {
        let node = trusting(&certificates.other_authority());
        assert_refused(&node, [103, 50], &[&etcd.url(), "UnknownIssuer", advice]);
        let page = Page::read("delegates/ipam-da-etcd/README.md");
        let known = json!({"ips": [{"address": "10.1.0.2/16"}]});
        page.assert_codes_of_an_untrusted_server(|verb| {
            node.call_with(verb, "c1", &known).failure().0
        });
        // A certificate that the client shows changes nothing.
        let Pair { certificate, key } = certificates.client();
        let shown = trusting(&certificates.other_authority())
            .with("certFile", certificate.to_str().unwrap())
            .with("keyFile", key.to_str().unwrap());
        assert_refused(&shown, [103, 50], &[&etcd.url(), "UnknownIssuer", advice]);
        // The authorities of the host do not know it either.
        let node = hasty(Node::at(&[etcd.url()]));
        assert_refused(&node, [103, 50], &[&etcd.url(), "UnknownIssuer", advice]);
        // Its certificate is for 127.0.0.1.
        let relay = Relay::on(Ipv4Addr::new(127, 0, 0, 2), &etcd.endpoint());
        let mut node = trusting(&certificates.authority());
        node.store["etcd"]["endpoints"] = json!([relay.endpoint()]);
        let url = format!("https://{}", relay.endpoint());
        assert_refused(&node, [103, 50], &[&url, "not valid for name", advice]);
    });
    assert!(calls.is_empty(), "{calls:?}");
    trusting(&certificates.authority()).call("STATUS", "").success();
}

#[test]
fn a_client_whose_certificate_is_not_taken_is_told_so() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).start();
    let before = everything(&etcd);
    let none: Option<Pair> = None;
    for pair in [none, Some(certificates.other_client()), Some(certificates.expired_client())] {
        let node = secured(Node::of(&etcd), &certificates, pair.as_ref());
        at_once(VERBS.len(), |number| {
            let outcome = within(13 * SECOND, || node.call(VERBS[number], "c1"));
            let (code, text) = outcome.failure();
            // The server says so after the handshake. Where the connection ends before that was read,
            // the outcome of a write is open, and it is tried again.
            assert!([103, 105, 50, 11].contains(&code), "{code} {text}");
            for word in [&etcd.url(), "check certFile and keyFile"] {
                assert!(text.contains(word), "{word:?} is not in {text}");
            }
        });
    }
    assert_eq!(everything(&etcd), before);
}

#[test]
fn the_wrong_scheme_is_told() {
    let plain = Etcd::start();
    let node = hasty(Node::at(&[format!("https://{}", plain.endpoint())]));
    let url = format!("https://{}", plain.endpoint());
    assert_refused(&node, [11, 50], &[&url, "does not speak TLS, use http://"]);
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, false)).start();
    let url = format!("http://{}", etcd.endpoint());
    let node = hasty(Node::at(std::slice::from_ref(&url)));
    assert_refused(&node, [11, 50], &[&url]);
    assert_eq!((plain.keys(""), etcd.keys("")), (vec![], vec![]));
}

#[test]
fn what_is_no_etcd_is_told() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n";
            let _ = std::io::Write::write_all(&mut stream, answer);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let url = format!("http://{endpoint}");
    assert_refused(&hasty(Node::at(&[endpoint])), [103, 50], &[&url, "it is not etcd"]);
}

#[test]
fn users_without_rights_are_told_what_is_missing() {
    let etcd = Etcd::builder().auth("ipam", "secret-word", "/ipam-delegated/").start();
    let before = everything(&etcd);
    let node = strict(&etcd);
    let file = |name: &str, content: &str| {
        let path = node.world.path(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (good, wrong) = (file("good", "secret-word\n"), file("wrong", "other-word\n"));
    let (empty, missing) = (file("empty", "\n"), "/nowhere/password".to_owned());
    let user = |name: &str, password: &str| {
        strict(&etcd).with("username", name).with("passwordFile", password)
    };
    let url = etcd.url();
    assert_refused(
        &node,
        [103, 50],
        &[&url, "user name is empty", "username and passwordFile", "etcd_password"],
    );
    let failed = [url.as_str(), "authentication failed", "check username", "etcd_username"];
    assert_refused(&user("ipam", &wrong), [103, 50], &failed);
    assert_refused(&user("nobody", &good), [103, 50], &failed);
    let words = format!("ipam.etcd.passwordFile: {empty} is empty: expected the password");
    assert_refused(&user("ipam", &empty), [7, 50], &[&words]);
    let words = format!("ipam.etcd.passwordFile: {missing} cannot be read");
    assert_refused(&user("ipam", &missing), [7, 50], &[&words]);
    let elsewhere = user("ipam", &good).with("prefix", "/elsewhere");
    let denied = [url.as_str(), "permission denied", "ROLE --prefix=true readwrite /elsewhere/"];
    assert_refused(&elsewhere, [103, 50], &denied);
    assert_refused(&strict(&etcd).with("username", "ipam"), [7, 7], &["ipam.etcd.passwordFile"]);
    assert_eq!(everything(&etcd), before);
    user("ipam", &good).add("c1");
    assert_eq!(books(&etcd).len(), 1);
}

#[track_caller]
fn assert_full(node: &Node) {
    let (code, text) = within(BOUND, || node.call("STATUS", "")).failure();
    assert_eq!(code, 50, "{text}");
    assert!(text.contains("NOSPACE"), "{text}");
}

#[test]
fn a_full_store_refuses_add_and_takes_del() {
    let etcd = Etcd::builder().quota(8 << 20).start();
    let node = strict(&etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
    let held = ["c1", "c2"].map(|container| node.add(container));
    etcd.fill();
    let before = books(&etcd);
    for container in ["c3", "c1"] {
        let (code, text) = within(BOUND, || node.call("ADD", container)).failure();
        assert_eq!(code, 103, "{text}");
        for word in [etcd.url().as_str(), "database space exceeded", "NOSPACE", "alarm disarm"] {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
        assert_eq!(books(&etcd), before);
    }
    assert_full(&node);
    BOTH.iter().for_each(|old| assert_full(&old.node(&etcd)));
    node.check("c1", &held[0]).success();
    // What stays to the owner stands in its way no more than what goes.
    let text = node.told(&["release", "10.1.0.2", "--yes"]);
    assert!(text.ends_with("released\n"), "{text}");
    assert_eq!(books(&etcd).len(), before.len() - 1);
    for _ in 0..2 {
        node.del_known("c1", &held[0]).success();
        node.del("c2");
        node.del("c3");
    }
    assert!(books(&etcd).is_empty());
    etcd.make_room();
    node.add("c3");
    assert_eq!(books(&etcd).len(), 2);
}

#[test]
fn a_full_store_takes_del_in_the_layout_of_whereabouts() {
    let etcd = Etcd::builder().quota(8 << 20).start();
    let node = whereabouts_node(&etcd);
    let result = node.add("c1");
    drop(["c2", "c3", "c4"].map(|container| node.add(container)));
    etcd.fill();
    let value = etcd.get("/whereabouts/10.1.0.0/24").unwrap();
    for container in ["c5", "c1"] {
        let (code, text) = within(BOUND, || node.call("ADD", container)).failure();
        assert_eq!(code, 103, "{text}");
        assert!(text.contains("NOSPACE"), "{text}");
    }
    assert_full(&node);
    assert_eq!(etcd.get("/whereabouts/10.1.0.0/24").unwrap(), value);
    node.del_known("c1", &result).success();
    node.del("c2");
    node.told(&["release", "10.1.0.4", "--yes"]);
    assert_eq!(etcd.get("/whereabouts/10.1.0.0/24").as_deref(), Some("10.1.0.5 c4"));
    etcd.make_room();
    assert_eq!(node.address("c5"), "10.1.0.2");
}

#[test]
fn a_cluster_without_a_leader_is_given_up_in_time() {
    let cluster = Cluster::start(3);
    let node = Node::at(&cluster.endpoints()).with("timeout", "4s");
    node.add("c1");
    let stays = cluster.leader();
    let others: Vec<usize> = (0..3).filter(|member| *member != stays).collect();
    others.iter().for_each(|member| cluster.member(*member).kill());
    let urls: Vec<_> = cluster.endpoints().iter().map(|e| format!("http://{e}")).collect();
    // With no endpoint but the one that is left, too.
    let alone = Node::at(&[cluster.member(stays).endpoint()]).with("timeout", "4s");
    let prev_result = json!({"ips": [{"address": "10.1.0.2/16"}]});
    at_once(2 * VERBS.len(), |number| {
        let verb = VERBS[number / 2];
        let node = [&node, &alone][number % 2];
        let outcome = within(7 * SECOND, || node.call_with(verb, "c1", &prev_result));
        let (code, text) = outcome.failure();
        assert_eq!(code, if verb == "STATUS" { 50 } else { 11 }, "{verb}: {text}");
        let named = urls.iter().filter(|url| text.contains(*url)).count();
        assert_eq!(named, if number % 2 == 0 { 3 } else { 1 }, "{verb}: {text}");
    });
    others.iter().for_each(|member| cluster.member(*member).launch_again());
    cluster.members().iter().for_each(Etcd::until_ready);
    // What was asked for meanwhile was never answered, and may have been done by now.
    node.del("c1");
    assert!(books(cluster.member(stays)).is_empty());
}

#[test]
fn a_proxy_of_the_environment_does_not_matter() {
    let etcd = Etcd::start();
    let node = strict(&etcd);
    let silent = Silent::listen();
    let proxy = format!("http://{}", silent.endpoint());
    let names = ["http_proxy", "https_proxy", "all_proxy", "grpc_proxy"];
    for verb in VERBS {
        let mut command = node.command(verb, "c1");
        for name in names {
            command.env(name, &proxy).env(name.to_uppercase(), &proxy);
        }
        let mut network = node.network();
        network["prevResult"]["ips"] = json!([{"address": "10.1.0.2/16"}]);
        ipam_testkit::world::wait(ipam_testkit::world::start(command, &network)).success();
    }
    assert_eq!(silent.connections(), 0);
}
