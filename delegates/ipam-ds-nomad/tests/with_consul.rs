//! The chain of Nomad and Consul, whole: what passcod was recorded to do with it, and ours.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::path::Path;

use ipam_testkit::consul::Consul;
use ipam_testkit::world::{Host, World, binary};
use serde_json::{Value, json};

use common::{ID, Nomad, PROGRAM, Reply, usual};

/// A server with the pool that the job names.
fn site() -> Consul {
    let consul = Consul::start();
    let pool = r#"[{"subnet": "10.0.20.0/23", "gateway": "10.0.20.1"}]"#;
    for (key, value) in [("ipam/", ""), ("ipam/pool-name", pool), ("ipam/pool-name/", "")] {
        consul.put(key, value);
    }
    consul
}

/// A node with the configuration of passcod.
fn chain(nomad: &Nomad, consul: &Consul) -> (World, Value) {
    let world = World::new();
    world.install(Path::new(PROGRAM)).install(&binary("ipam-da-consul"));
    let network = json!({
        "cniVersion": "1.0.0", "name": "example", "type": "bridge",
        "ipam": {
            "type": "ipam-delegated",
            "delegates": ["ipam-ds-nomad", "ipam-da-consul"],
            "nomad_servers": [nomad.url],
            "consul_servers": [consul.url()],
            "stateDir": world.path("state"),
            "consul": {"resultCache": world.path("results")},
            "nomad": {"timeout": "500ms"},
        },
    });
    (world, network)
}

/// Recorded as ipam-delegated-043; passcod asked Nomad on DEL, too, and said `"dns": {}`.
#[test]
fn the_address_that_a_job_asks_for_is_given_and_released() {
    let (consul, nomad) = (site(), Nomad::with(ID, &usual()));
    let (world, network) = chain(&nomad, &consul);
    let expected = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.21.100/23", "gateway": "10.0.20.1"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.20.1"}],
    });
    assert_eq!(world.call("ADD", ID, &network).success(), expected);
    let value: Value =
        serde_json::from_str(&consul.get("ipam/pool-name/10.0.21.100").unwrap()).unwrap();
    assert_eq!(value["target"], ID);
    world.call("CHECK", ID, &with_prev_result(&network, &expected)).success();
    assert_eq!(world.call("DEL", ID, &network).success(), Value::Null);
    assert_eq!(consul.keys("ipam/pool-name/"), ["ipam/pool-name/"]);
    assert_eq!(nomad.requests().len(), 1);
}

fn with_prev_result(network: &Value, result: &Value) -> Value {
    let mut network = network.clone();
    network["prevResult"] = result.clone();
    network
}

/// Recorded as ipam-delegated-044: there the DEL failed, and the address stayed held.
#[test]
fn what_passcod_gave_is_released_though_nomad_has_forgotten_the_allocation() {
    let (consul, nomad) = (site(), Nomad::saying(404, "alloc not found"));
    let (world, network) = chain(&nomad, &consul);
    let (own, other) = ("ipam/pool-name/10.0.20.5", "ipam/pool-name/10.0.20.6");
    consul.put(own, &json!({"target": ID}).to_string());
    consul.put(other, r#"{"target":"other"}"#);
    let outcome = world.call("DEL", ID, &network);
    assert!(
        outcome.stderr.contains("unknown allocation: it belongs to another region"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.success(), Value::Null);
    assert_eq!(consul.keys("ipam/pool-name/"), ["ipam/pool-name/", other]);
}

/// A runtime's DEL has the token of now, or no more than the type; Nomad is asked by neither.
#[test]
fn a_token_of_nomads_that_has_ended_holds_up_no_del() {
    let consul = site();
    let allocation = usual().to_string();
    let nomad = Nomad::start(move |_, number| match number {
        0 | 1 => Reply::Say(200, allocation.clone()),
        _ => Reply::Say(403, "ACL token not found".to_owned()),
    });
    let (world, mut network) = chain(&nomad, &consul);
    let host = Host::new();
    host.settings(&json!({"stateDir": world.path("state")}));
    network["ipam"]["nomad"]["token"] = "the-first".into();
    network["ipam"].as_object_mut().unwrap().remove("stateDir");
    let stripped = json!({
        "cniVersion": "1.0.0", "name": "example", "type": "bridge", "ipam": {"type": "ipam-delegated"},
    });
    let mut rotated = network.clone();
    rotated["ipam"]["nomad"]["token"] = "the-second".into();
    for del in [rotated, stripped] {
        host.call(&world, "ADD", ID, &network).success();
        host.call(&world, "DEL", ID, &del).success();
        assert_eq!(consul.keys("ipam/pool-name/"), ["ipam/pool-name/"]);
    }
    assert_eq!(nomad.requests().len(), 2);
    let (code, text) = host.call(&world, "ADD", ID, &network).failure();
    assert!(code == 103 && !text.contains("the-first"), "{text}");
}
