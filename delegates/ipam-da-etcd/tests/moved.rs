//! A record whose way to its store is not today's: other ports, other files, another store.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use ipam_testkit::certificates::Certificates;
use ipam_testkit::etcd::{Etcd, Passage};
use ipam_testkit::node::addresses;
use ipam_testkit::world::{start, wait};
use serde_json::{Value, json};

use common::store::holdings;
use common::{chain, tls};

fn moved(network: &Value, endpoint: &str) -> Value {
    let mut network = network.clone();
    network["ipam"]["etcd"]["endpoints"] = json!([endpoint]);
    network
}

#[test]
fn the_same_store_at_a_new_port_is_released_by_the_corrected_configuration() {
    let etcd = Etcd::start();
    let mut passage = Passage::to(&etcd.endpoint());
    let (world, network) = chain(&passage.endpoint());
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2"]);
    world.killed_add("c2", &network, || holdings(&etcd).len());
    passage.shut();
    let moved = moved(&network, &etcd.endpoint());
    world.call("CHECK", "c1", &moved).success();
    let began = Instant::now();
    for container in ["c1", "c2"] {
        world.call("DEL", container, &moved).success();
    }
    // It does not wait for the recorded endpoint.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(holdings(&etcd), [""; 0]);
    assert!(!world.record("c1").exists());
}

#[test]
fn gc_and_reap_go_to_the_new_port_of_the_corrected_configuration() {
    let etcd = Etcd::start();
    let mut passage = Passage::to(&etcd.endpoint());
    let (world, network) = chain(&passage.endpoint());
    let gone = world.path("gone");
    fs::write(&gone, "").unwrap();
    for container in ["c1", "c2"] {
        let mut command = world.command("ADD", container);
        command.env("CNI_NETNS", &gone);
        wait(start(command, &network)).success();
        world.edit_record(container, |line| {
            if line["event"] == "attempt" {
                line["time"] = (line["time"].as_u64().unwrap() - 600_000).into();
            }
        });
    }
    passage.shut();
    let mut moved = moved(&network, &etcd.endpoint());
    world.conflist("10-net.conflist", &moved);
    moved["cniVersion"] = json!("1.1.0");
    moved["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    let began = Instant::now();
    world.call("GC", "", &moved).success();
    assert!(world.record("c1").exists() && !world.record("c2").exists());
    world.typed(&["reap", "--no-cache", "--yes", "--json"]).success();
    assert!(!world.record("c1").exists());
    // Neither waits for the recorded endpoint.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn another_store_at_the_new_port_releases_nothing() {
    let (etcd, other) = (Etcd::start(), Etcd::start());
    let mut passage = Passage::to(&etcd.endpoint());
    let (world, network) = chain(&passage.endpoint());
    world.call("ADD", "c1", &network).success();
    world.killed_add("c2", &network, || holdings(&etcd).len());
    passage.shut();
    let strange = moved(&network, &other.endpoint());
    for container in ["c1", "c2"] {
        let (code, text) = world.call("DEL", container, &strange).failure();
        assert_eq!(code, 11, "{text}");
        let lists =
            format!("recorded: {}; configured now: {}", passage.endpoint(), other.endpoint());
        assert!(text.contains(&lists) && text.contains("ipam-delegated forget net"), "{text}");
        assert!(world.record(container).exists());
    }
    // Also once it is accepted, and the network takes its addresses there.
    world.conflist("10-net.conflist", &strange);
    world.typed(&["reassert", "--yes"]);
    world.call("ADD", "c3", &strange).success();
    let (code, text) = world.call("DEL", "c2", &strange).failure();
    assert_eq!(code, 11, "{text}");
    assert!(!holdings(&etcd).is_empty());
    // The configuration goes back.
    let back = moved(&network, &etcd.endpoint());
    for container in ["c1", "c2"] {
        world.call("DEL", container, &back);
    }
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn a_store_that_stands_where_it_was_is_released_there_whatever_the_configuration_names() {
    let (etcd, other) = (Etcd::start(), Etcd::start());
    let (world, network) = chain(&etcd.endpoint());
    world.call("ADD", "c1", &network).success();
    world.call("ADD", "c2", &network).success();
    world.call("DEL", "c1", &moved(&network, &other.endpoint())).success();
    world.call("DEL", "c2", &moved(&network, "127.0.0.1:1")).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn certificates_that_were_moved_are_read_where_the_corrected_configuration_names_them() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).start();
    let (world, mut network) = chain(&etcd.endpoint());
    let client = certificates.client();
    let copy = |folder: &str| {
        fs::create_dir_all(world.path(folder)).unwrap();
        for (file, name) in [
            (&client.certificate, "cert.pem"),
            (&client.key, "key.pem"),
            (&certificates.authority(), "ca.pem"),
        ] {
            fs::copy(file, world.path(folder).join(name)).unwrap();
        }
    };
    let named = |network: &mut Value, folder: &str| {
        for (key, name) in
            [("certFile", "cert.pem"), ("keyFile", "key.pem"), ("trustedCaFile", "ca.pem")]
        {
            network["ipam"]["etcd"][key] = json!(world.path(folder).join(name));
        }
    };
    copy("one");
    named(&mut network, "one");
    for container in ["c1", "c2"] {
        world.call("ADD", container, &network).success();
    }
    copy("two");
    fs::remove_dir_all(world.path("one")).unwrap();
    named(&mut network, "two");
    world.call("CHECK", "c1", &network).success();
    world.call("DEL", "c1", &network).success();
    // Through an endpoint that is not today's, too.
    let mut elsewhere = network.clone();
    elsewhere["ipam"]["etcd"]["endpoints"] = json!(["127.0.0.1:1"]);
    world.call("DEL", "c2", &elsewhere).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}
