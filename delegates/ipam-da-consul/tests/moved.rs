//! A record whose way to its store is not today's: another URL, another token, another store.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use ipam_testkit::consul::{Consul, Passage, Relay};
use ipam_testkit::world::World;
use serde_json::{Value, json};

use common::chains::chain;
use common::stocked;
use common::store::holdings;

fn moved(network: &Value, endpoint: &str) -> Value {
    let mut network = network.clone();
    network["ipam"]["consul_servers"] = json!([format!("http://{endpoint}")]);
    network["ipam"]["consul"]["timeout"] = json!("2s");
    network
}

/// A world whose chain ends in a store with the pool `blue` behind this endpoint.
fn world(consul: &Consul, endpoint: &str) -> (World, Value) {
    let (world, network) = chain(consul, &["blue"]);
    (world, moved(&network, endpoint))
}

#[test]
fn the_same_store_under_a_new_url_is_released_by_the_corrected_configuration() {
    let consul = stocked();
    let mut passage = Passage::to(&consul.endpoint());
    let (world, network) = world(&consul, &passage.endpoint());
    world.call("ADD", "c1", &network).success();
    world.killed_add("c2", &network, || holdings(&consul).len());
    passage.shut();
    let moved = moved(&network, &consul.endpoint());
    world.call("CHECK", "c1", &moved).success();
    let began = Instant::now();
    for container in ["c1", "c2"] {
        world.call("DEL", container, &moved).success();
    }
    // It does not wait for the recorded server.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn another_store_under_the_new_url_releases_nothing() {
    let (consul, other) = (stocked(), stocked());
    let mut passage = Passage::to(&consul.endpoint());
    let (world, network) = world(&consul, &passage.endpoint());
    world.call("ADD", "c1", &network).success();
    world.killed_add("c2", &network, || holdings(&consul).len());
    passage.shut();
    let strange = moved(&network, &other.endpoint());
    let fails = |containers: &[&str]| {
        for container in containers {
            let (code, text) = world.call("DEL", container, &strange).failure();
            assert_eq!(code, 11, "{text}");
            let (recorded, today) = (passage.endpoint(), other.endpoint());
            let lists = format!("recorded: {recorded}; configured now: {today}");
            assert!(text.contains(&lists) && text.contains("ipam-delegated forget net"), "{text}");
            assert!(world.record(container).exists());
        }
    };
    fails(&["c1", "c2"]);
    // Also once it is accepted, and the network takes its addresses there.
    world.conflist("10-net.conflist", &strange);
    world.typed(&["reassert", "--yes"]);
    world.call("ADD", "c3", &strange).success();
    fails(&["c2"]);
    assert!(!holdings(&consul).is_empty());
}

#[test]
fn a_token_of_the_configuration_never_reaches_a_server_that_is_not_the_configurations() {
    let consul = stocked();
    let (site, theirs) = (Relay::to(&consul.endpoint()), Relay::to(&consul.endpoint()));
    let (world, network) = world(&consul, &theirs.endpoint());
    for container in ["c1", "c2"] {
        world.call("ADD", container, &network).success();
        // As an older program wrote it down after a selector had named the server.
        let record = fs::read_to_string(world.record(container)).unwrap();
        assert!(record.contains(",\"configured\":true"), "{record}");
        let old = record.replace(",\"configured\":true", "");
        fs::write(world.record(container), old).unwrap();
    }
    let mut configured = moved(&network, &site.endpoint());
    configured["ipam"]["consul"]["token"] = json!("REAL-TOKEN");
    world.call("CHECK", "c1", &configured).success();
    world.call("DEL", "c1", &configured).success();
    configured["ipam"]["consul_servers"] = json!(["http://127.0.0.1:1"]);
    world.call("DEL", "c2", &configured).success();
    assert_eq!(holdings(&consul), [""; 0]);
    let shown = |relay: &Relay| {
        let requests = relay.requests().into_iter();
        requests.filter(|request| request.header("x-consul-token").is_some()).count()
    };
    assert_eq!(shown(&theirs), 0);
    assert!(shown(&site) > 0);
}
