//! The program in a chain, and killed at any moment.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::addresses;
use ipam_testkit::world::{World, binary, kill_now, start, until, wait};
use serde_json::{Value, json};

use common::relay::Relay;
use common::store::{books, holdings, ours};
use common::{Node, PROGRAM};

/// A world in which `ipam-ds-static → ipam-da-etcd` gives addresses of two families.
fn chain(etcd: &Etcd) -> (World, Value) {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-etcd"]));
    network["ipam"]["etcd"] = json!({"endpoints": [etcd.endpoint()]});
    network["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    (world, network)
}

#[test]
fn a_chain_gives_checks_and_releases() {
    let etcd = Etcd::start();
    let (world, network) = chain(&etcd);
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::2"]);
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    assert_eq!(books(&etcd).len(), 2);
    assert_eq!(world.call("ADD", "c1", &network).success(), result);
    let mut with_result = network.clone();
    with_result["prevResult"] = result.clone();
    let check = etcd.rpcs_during(|| drop(world.call("CHECK", "c1", &with_result).success()));
    assert_eq!(check.into_iter().collect::<Vec<_>>(), [("Txn".to_owned(), 1)]);
    // By the record: a DEL that was told nothing asks once.
    let mut stripped = network.clone();
    stripped["ipam"] = json!({"type": "ipam-delegated", "stateDir": world.path("state")});
    let del = etcd.rpcs_during(|| drop(world.call("DEL", "c1", &stripped).success()));
    assert_eq!(del.into_iter().collect::<Vec<_>>(), [("Txn".to_owned(), 1)]);
    assert_eq!(holdings(&etcd), [""; 0]);
    world.call("DEL", "c1", &network).success();
}

#[test]
fn alone_it_gives_checks_and_releases_out_of_ranges() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd);
    let mut network = node.network();
    network["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    network.as_object_mut().unwrap().remove("prevResult");
    network["ipam"].as_object_mut().unwrap().remove("node");
    let call = |verb: &str, network: &Value| wait(start(node.command(verb, "c1"), network));
    let result = call("ADD", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::2"]);
    assert_eq!(addresses(&call("ADD", &network).success()), addresses(&result));
    let mut with_result = network.clone();
    with_result["prevResult"] = result;
    call("CHECK", &with_result).success();
    call("STATUS", &network).success();
    assert_eq!(books(&etcd).len(), 2);
    call("DEL", &with_result).success();
    call("DEL", &network).success();
    assert_eq!(holdings(&etcd), [""; 0]);
    assert_eq!(call("CHECK", &with_result).failure().0, 104);
}

#[test]
fn a_chain_that_fails_later_leaves_what_the_owner_held() {
    let etcd = Etcd::start();
    let (world, mut network) = chain(&etcd);
    world.delegate(
        "ipam-da-zz",
        "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }",
    );
    let failing = || {
        let mut network = network.clone();
        network["ipam"]["delegates"] = json!(["ipam-ds-static", "ipam-da-etcd", "ipam-da-zz"]);
        network
    };
    assert_eq!(world.call("ADD", "c1", &failing()).failure().0, 100);
    assert_eq!(holdings(&etcd), [""; 0]);
    world.call("ADD", "c1", &network).success();
    let before = books(&etcd);
    assert_eq!(world.call("ADD", "c1", &failing()).failure().0, 100);
    assert_eq!(books(&etcd), before);
    network["cniVersion"] = "1.1.0".into();
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn two_delegates_on_one_store_undo_and_release_their_own() {
    let etcd = Etcd::start();
    let (world, mut network) = chain(&etcd);
    world.delegate(
        "ipam-da-zz",
        "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }",
    );
    let ipam = network["ipam"].as_object_mut().unwrap();
    ipam.remove("ranges");
    ipam.insert(
        "pools".to_owned(),
        json!([
            {"name": "blue", "ranges": [{"subnet": "10.1.0.0/24"}]},
            {"name": "red", "ranges": [{"subnet": "fd00:1::/64"}]},
        ]),
    );
    let serving = |pool: &str| json!({"type": "ipam-da-etcd", "serves": [pool]});
    let mut delegates = vec![json!("ipam-ds-static"), serving("blue"), serving("red")];
    network["ipam"]["delegates"] = delegates.clone().into();
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::2"]);
    let before = books(&etcd);
    delegates.push(json!("ipam-da-zz"));
    let mut failing = network.clone();
    failing["ipam"]["delegates"] = delegates.into();
    for container in ["c1", "c2"] {
        assert_eq!(world.call("ADD", container, &failing).failure().0, 100);
        assert_eq!(books(&etcd), before);
    }
    assert_eq!(addresses(&world.call("ADD", "c1", &network).success()), addresses(&result));
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn an_add_whose_first_try_got_no_answer_has_its_del_repeated() {
    let etcd = Etcd::start();
    let relay = Relay::to(&etcd.endpoint());
    let (world, mut network) = chain(&etcd);
    network["ipam"]["etcd"]["endpoints"] = json!([relay.endpoint(), etcd.endpoint()]);
    for (lost, state) in [(0, "none"), (1, "unsure")] {
        relay.lose(lost);
        let container = format!("c{lost}");
        world.call("ADD", &container, &network).success();
        world.call("DEL", &container, &network).success();
        assert_eq!(holdings(&etcd), [""; 0]);
        assert_eq!(world.state_of(&container), state);
    }
}

/// The process of the program that a chain has started.
fn delegate(world: &World) -> Option<u32> {
    let is_it = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "ipam-da-etcd\n")
    };
    world.processes().into_iter().find(is_it)
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Moments of a call that takes so long, in no order.
fn moments(length: Duration) -> impl Iterator<Item = Duration> {
    const STEPS: u32 = 30;
    // 7 and 30 have no common divisor.
    (0..STEPS).map(move |n| length * (n * 7 % STEPS) / STEPS)
}

#[test]
fn a_delegate_killed_at_any_moment_of_a_chain_leaves_nothing_after_del() {
    let etcd = Etcd::start();
    let (world, network) = chain(&etcd);
    world.call("ADD", "other", &network).success();
    let before = ours(&etcd);
    let begun = Instant::now();
    world.call("ADD", "c", &network).success();
    let length = begun.elapsed();
    world.call("DEL", "c", &network).success();
    let mut hit = 0;
    for (number, moment) in moments(length).enumerate() {
        let container = format!("c{number}");
        let begun = Instant::now();
        let mut call: Child = start(world.command("ADD", &container), &network);
        while begun.elapsed() < moment.max(length / 4) && call.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        if let Some(pid) = delegate(&world) {
            kill(pid);
        }
        let outcome = wait(call);
        hit += usize::from(outcome.exit == Some(1));
        world.call("DEL", &container, &network).success();
        assert_eq!(ours(&etcd), before, "{outcome:?}");
    }
    assert!(hit > 0, "no call was hit");
}

#[test]
fn a_program_killed_at_any_moment_leaves_nothing_after_del() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd).with_subnets(&["10.1.0.0/16", "fd00:1::/64"]);
    node.add("other");
    let before = ours(&etcd);
    let begun = Instant::now();
    let known = node.add("c");
    let length = begun.elapsed();
    let (mut held, mut free) = (0, 0);
    for (number, moment) in moments(length).enumerate() {
        let container = format!("c{number}");
        let mut call = start(node.command("ADD", &container), &node.network());
        std::thread::sleep(moment);
        kill_now(&mut call);
        // Half of the DELs are killed too.
        if number % 2 == 0 {
            let mut call = start(node.command("DEL", &container), &node.network());
            std::thread::sleep(moment);
            kill_now(&mut call);
        }
        match books(&etcd).values().any(|owner| owner.contains(&format!("/{container}/"))) {
            true => held += 1,
            false => free += 1,
        }
        node.del(&container);
        assert_eq!(books(&etcd).len(), 4, "{container}");
    }
    node.del_known("c", &known).success();
    assert_eq!(ours(&etcd), before);
    assert!(held > 0 && free > 0, "{held} held, {free} not");
    until("no process is left", || node.world.processes().is_empty());
}

#[test]
fn an_add_that_reached_no_server_is_owed_nothing() {
    let etcd = Etcd::start();
    let (world, network) = chain(&etcd);
    let mut mistyped = network.clone();
    mistyped["ipam"]["etcd"]["endpoints"] = json!(["127.0.0.1:1"]);
    mistyped["ipam"]["etcd"]["timeout"] = "1s".into();
    let (code, text) = world.call("ADD", "c1", &mistyped).failure();
    assert_eq!(code, 105, "{text}");
    // With the settings mended, and with those that the record has.
    world.call("DEL", "c1", &network).success();
    world.call("ADD", "c2", &mistyped).failure();
    world.call("ADD", "c2", &network).success();
    world.call("DEL", "c2", &network).success();
    assert_eq!(holdings(&etcd), [""; 0]);
    for container in ["c1", "c2"] {
        assert_eq!(world.state_of(container), "none");
    }
}

fn reassert(world: &World, network: &Value, words: &[&str]) -> String {
    typed(world, network, &[&["reassert"], words].concat())
}

/// What a person types, with the network's configuration where `ipam-delegated` finds it.
fn typed(world: &World, network: &Value, words: &[&str]) -> String {
    let folder = world.path("net.d");
    fs::create_dir_all(&folder).unwrap();
    let plugin = json!({"type": "bridge", "ipam": network["ipam"]});
    let list = json!({"cniVersion": "1.0.0", "name": network["name"], "plugins": [plugin]});
    fs::write(folder.join("10-net.conflist"), list.to_string()).unwrap();
    let output = std::process::Command::new(binary("ipam-delegated"))
        .args(words)
        .args(["--json", "--conf-dir", folder.to_str().unwrap()])
        .args(["--state-dir", world.path("state").to_str().unwrap()])
        .args(["--cni-path", world.path("bin").to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_held_is_claimed_in_the_store_that_the_network_names_now() {
    let (old, new) = (Etcd::start(), Etcd::start());
    for delegates in [json!(["ipam-ds-static", "ipam-da-etcd"]), json!(["ipam-da-etcd"])] {
        let (world, mut network) = chain(&old);
        network["ipam"]["delegates"] = delegates;
        network["ipam"]["strategy"] = "lowest".into();
        let held = world.call("ADD", "c1", &network).success();
        network["ipam"]["etcd"]["endpoints"] = json!([new.endpoint()]);
        let (code, text) = world.call("ADD", "c2", &network).failure();
        assert!(code == 11 && text.contains("reassert"), "{text}");
        assert_eq!(holdings(&new), [""; 0]);
        let told = reassert(&world, &network, &["--yes"]);
        assert!(told.contains("claimed") && told.contains("accepted"), "{told}");
        let other = world.call("ADD", "c2", &network).success();
        assert!(addresses(&other).iter().all(|a| !addresses(&held).contains(a)), "{other}");
        for container in ["c1", "c2"] {
            world.call("DEL", container, &network).success();
        }
        for store in [&old, &new] {
            assert_eq!(holdings(store), [""; 0]);
        }
    }
}

#[test]
fn what_was_released_by_hand_is_not_claimed_again_and_the_other_family_is() {
    let etcd = Etcd::start();
    let (world, network) = chain(&etcd);
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::2"]);
    typed(&world, &network, &["release", "net", "10.1.0.2", "--yes"]);
    let left = holdings(&etcd);
    assert_eq!(left.len(), 2, "a lease and its owner: {left:?}");
    let told = reassert(&world, &network, &["--yes"]);
    assert!(told.contains("claimed") && !told.contains("failed"), "{told}");
    assert_eq!(holdings(&etcd), left);
    typed(&world, &network, &["release", "net", "--owner", "c1", "--yes"]);
    let told = reassert(&world, &network, &["--yes"]);
    assert!(!told.contains("claimed"), "{told}");
    assert_eq!(holdings(&etcd), [""; 0]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "none");
}
