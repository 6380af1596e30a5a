//! Servers that are not what the configuration takes them for: they are asked for nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::certificates::Certificates;
use ipam_testkit::etcd::{Etcd, Silent, saying};
use ipam_testkit::world::World;
use serde_json::{Value, json};

use common::store::holdings;
use common::{chain, tls};

/// An ADD at an endpoint fails with 105 and these words, and leaves nothing to release.
fn asks_nothing(endpoint: &str, words: &[&str]) -> (World, Value) {
    let (world, network) = chain(endpoint);
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 105, "{text}");
    for words in words {
        assert!(text.contains(words), "{text}");
    }
    let lines = world.lines("c1");
    assert_eq!(lines.last().unwrap()["notRun"], true, "{lines:?}");
    assert_eq!(lines.last().unwrap().get("unsure"), None, "{lines:?}");
    (world, network)
}

#[test]
fn plain_http_to_a_server_of_tls_asks_nothing_and_says_https() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).start();
    let (world, mut network) =
        asks_nothing(&format!("http://{}", etcd.endpoint()), &["write https://"]);
    let client = certificates.client();
    let section = &mut network["ipam"]["etcd"];
    section["endpoints"] = json!([etcd.endpoint()]);
    section["certFile"] = json!(client.certificate);
    section["keyFile"] = json!(client.key);
    section["trustedCaFile"] = json!(certificates.authority());
    world.call("ADD", "c1", &network).success();
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn a_server_of_another_protocol_is_asked_for_nothing() {
    let other = "it is not etcd (check the host and the port)";
    asks_nothing(&saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), &["in HTTP/1", other]);
    asks_nothing(&saying(b"220 mail.example ready\r\n"), &[other]);
    asks_nothing(&saying(b"\x15\x03\x01\x00\x02\x02\x46"), &["speaks TLS: use https://"]);
}

#[test]
fn a_server_that_is_silent_from_the_first_is_asked_for_nothing() {
    let silent = Silent::listen();
    asks_nothing(&silent.endpoint(), &["no answer within"]);
    assert!(silent.connections() > 0);
}
