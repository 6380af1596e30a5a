//! Servers that are not what the configuration takes them for: they are asked for nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::consul::{Silent, saying};
use ipam_testkit::world::World;
use serde_json::{Value, json};

use common::chains::chain;
use common::stocked;
use common::store::holdings;

fn at(network: &Value, endpoint: &str) -> Value {
    let mut network = network.clone();
    network["ipam"]["consul_servers"] = json!([format!("http://{endpoint}")]);
    network["ipam"]["consul"] = json!({"timeout": "2s"});
    network
}

/// Whether the last ADD of a record left something to release.
fn owes(world: &World) -> bool {
    world.lines("c1").last().unwrap().get("notRun").is_none()
}

#[test]
fn a_server_of_another_protocol_is_asked_for_nothing() {
    let consul = stocked();
    let (world, network) = chain(&consul, &["blue"]);
    for (bytes, words) in [
        (&b"\x15\x03\x01\x00\x02\x02\x46"[..], "speaks TLS: use https://"),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00", "is not HTTP/1"),
        (
            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
            "needs https://",
        ),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n",
            "check port, path and scheme",
        ),
        // So a server of files answers a method that it does not know.
        (b"HTTP/1.0 501 Unsupported method ('PUT')\r\n\r\n", "check port, path and scheme"),
    ] {
        let (code, text) = world.call("ADD", "c1", &at(&network, &saying(bytes))).failure();
        assert_eq!(code, 105, "{text}");
        assert!(text.contains(words), "{text}");
        assert!(!owes(&world), "{:?}", world.lines("c1"));
    }
    world.call("ADD", "c1", &network).success();
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_server_that_may_have_carried_out_a_claim_is_owed_a_release() {
    let consul = stocked();
    let (world, network) = chain(&consul, &["blue"]);
    let silent = Silent::listen();
    for endpoint in [silent.endpoint(), saying(b"")] {
        let (code, text) = world.call("ADD", "c1", &at(&network, &endpoint)).failure();
        assert_eq!(code, 11, "{text}");
        assert!(owes(&world), "{:?}", world.lines("c1"));
    }
}
