//! A change that was carried out though the server did not say so, or later than it was asked for, gives
//! nothing twice and loses nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ipam_testkit::consul::{Consul, Fate};
use ipam_testkit::node::{addresses, at_once, given};
use ipam_testkit::world::{Outcome, World, binary, start, until, wait};
use serde_json::{Value, json};

use common::store::{books, holdings};
use common::unsaid::{Gate, Spoiler, url};
use common::{Node, PROGRAM, define, stocked};

/// What a leader says that steps down while it commits; the change is carried out all the same.
const LOST: &str = "rpc error making call: leadership lost while committing log";

/// The code of an error that leaves open what was done: try again, or not done in time.
#[track_caller]
fn assert_open(outcome: Outcome) {
    let (code, text) = outcome.failure();
    assert!([11, 111].contains(&code), "{code}: {text}");
}

/// What becomes of a change that is carried out, as the client sees it.
fn fates() -> Vec<Fate> {
    vec![
        Fate::Lose,
        Fate::Cut,
        Fate::Delay(Duration::from_millis(2500)),
        Fate::Answer(500, LOST.to_owned()),
        Fate::Answer(502, String::new()),
        Fate::Answer(504, "<html>Gateway Timeout</html>".to_owned()),
        // Nothing was done, which the client cannot know.
        Fate::Refuse,
    ]
}

/// Runs `with` for every fate, beside each other, with a server of its own each, and a node that has one way
/// or two.
fn in_every_way(with: impl Fn(&Consul, &Spoiler, &dyn Fn() -> Node) + Sync) {
    let fates = fates();
    at_once(2 * fates.len(), |number| {
        let consul = stocked();
        define(&consul, "red", "fd00:1::/64");
        let spoiler = Spoiler::of(&consul, &fates[number / 2]);
        let servers = &spoiler.urls()[number % 2..];
        let node = || {
            // A delay is longer than this.
            Node::at(servers).with("timeout", "2s").with_pools(&["blue", "red"])
        };
        with(&consul, &spoiler, &node);
        assert_eq!(holdings(&consul), [""; 0], "{:?} {servers:?}", fates[number / 2]);
    });
}

/// An ADD either succeeds, and exactly its addresses are held, or ends with code 11; DEL leaves nothing.
#[track_caller]
fn assert_settled(consul: &Consul, spoiler: &Spoiler, spoils: usize, node: &Node) {
    spoiler.spoil(spoils);
    let outcome = node.call("ADD", "c1");
    assert!(spoiler.spoilt() > 0, "no claim was spoilt");
    spoiler.spoil(0);
    let told = format!("{outcome:?}");
    if outcome.exit == Some(0) {
        let result = outcome.success();
        let held: Vec<String> = books(consul).keys().map(ToString::to_string).collect();
        assert_eq!(held, addresses(&result), "{told}");
        // It is this ADD's own, so that its undo takes it back.
        assert!(result["leases"].as_array().unwrap().iter().all(|l| l["kept"].is_null()), "{told}");
        let mut undo = given(&result);
        undo["undo"] = true.into();
        node.call_with("DEL", "c1", &undo).success();
    } else {
        assert_open(outcome);
        assert!(books(consul).len() <= 2, "{told}");
    }
    node.del("c1");
    assert_eq!(holdings(consul), [""; 0], "{told}");
}

#[test]
fn an_add_whose_claim_is_not_answered_gives_each_pool_one_address_or_owes_a_del() {
    in_every_way(|consul, spoiler, node| {
        // A node that knows nothing, and one that claims with its first request.
        let busy = node();
        for (node, spoils) in [(&node(), 1), (&node(), 2), (&busy, 1), (&busy, 1), (&busy, 2)] {
            assert_settled(consul, spoiler, spoils, node);
        }
    });
}

#[test]
fn an_add_for_an_address_of_its_own_is_settled_too() {
    in_every_way(|consul, spoiler, node| {
        let mut node = node();
        node.pools[0]["requested-ip"] = "10.1.0.77".into();
        node.pools[1]["requested-ip"] = "fd00:1::77".into();
        for spoils in [1, 2] {
            assert_settled(consul, spoiler, spoils, &node);
        }
    });
}

#[test]
fn a_takeover_that_is_not_answered_leaves_each_address_one_owner() {
    in_every_way(|consul, spoiler, node| {
        let other = Node::of(consul).named("node-2").with_pools(&["blue", "red"]);
        let mut node = node().taking_over(true);
        for spoils in [1, 2] {
            let theirs = addresses(&other.add("other"));
            for (place, address) in theirs.iter().enumerate() {
                node.pools[place]["requested-ip"] = address.as_str().into();
            }
            spoiler.spoil(spoils);
            let outcome = node.call("ADD", "c1");
            assert!(spoiler.spoilt() > 0);
            spoiler.spoil(0);
            if outcome.exit == Some(0) {
                assert_eq!(addresses(&outcome.success()), theirs);
            } else {
                assert_open(outcome);
            }
            assert_eq!(addresses(&node.add("c1")), theirs);
            assert_eq!(books(consul).len(), 2);
            // Who has lost them frees nothing.
            other.del("other");
            assert_eq!(books(consul).len(), 2);
            node.del("c1");
            assert_eq!(holdings(consul), [""; 0]);
        }
    });
}

#[test]
fn an_add_again_that_is_not_answered_keeps_its_addresses() {
    in_every_way(|consul, spoiler, node| {
        let node = node();
        let first = node.add("c1");
        for spoils in [1, 2] {
            spoiler.spoil(spoils);
            let outcome = node.call("ADD", "c1");
            assert!(spoiler.spoilt() > 0);
            spoiler.spoil(0);
            if outcome.exit == Some(0) {
                let again = outcome.success();
                assert_eq!(addresses(&again), addresses(&first));
                let leases = again["leases"].as_array().unwrap();
                assert!(leases.iter().all(|lease| lease["kept"] == true), "{again}");
            } else {
                assert_open(outcome);
            }
            assert_eq!(books(consul).len(), 2);
            // An ADD that is made again gives them.
            assert_eq!(addresses(&node.add("c1")), addresses(&first));
        }
        node.del("c1");
    });
}

#[test]
fn a_del_that_is_not_answered_frees_its_own_and_nothing_of_others() {
    in_every_way(|consul, spoiler, node| {
        let node = node();
        let other = Node::of(consul).named("node-2").with_pools(&["blue", "red"]);
        let others = other.add("other");
        let before = books(consul);
        for spoils in [1, 2, 3] {
            for known in [true, false] {
                let result = node.add("c1");
                let hint = if known { given(&result) } else { json!({}) };
                spoiler.spoil(spoils);
                let outcome = node.call_with("DEL", "c1", &hint);
                spoiler.spoil(0);
                if outcome.exit == Some(0) {
                    assert_eq!(books(consul), before);
                } else {
                    assert_open(outcome);
                }
                // Somebody else may have what was freed.
                let next = other.add("next");
                node.call_with("DEL", "c1", &hint).success();
                assert_eq!(books(consul).len(), 4);
                other.check("next", &next).success();
                other.del("next");
                assert_eq!(books(consul), before);
            }
        }
        other.del_known("other", &others).success();
    });
}

#[test]
fn a_gc_and_a_release_by_hand_that_are_not_answered_release_the_stale_alone() {
    in_every_way(|consul, spoiler, node| {
        let node = node();
        node.add("kept");
        let before = books(consul);
        for by_hand in [false, true] {
            node.add("stale");
            age(consul);
            spoiler.spoil(1);
            let release = || match by_hand {
                false => node.gc(&["kept"]),
                true => node.typed(&["release", "--owner", "stale/eth0", "--yes"]),
            };
            let first = release();
            assert_eq!(spoiler.spoilt(), 1, "{first:?}");
            spoiler.spoil(0);
            if first.exit != Some(0) {
                let told = format!("{first:?}");
                if !by_hand {
                    assert_open(first);
                }
                let second = release();
                assert!(by_hand || second.exit == Some(0), "{told} {second:?}");
            }
            assert_eq!(books(consul), before);
        }
        node.del("kept");
    });
}

/// Makes all leases older than any grace, each owner's in one transaction as the program writes them.
fn age(consul: &Consul) {
    let older = |value: &str, member: &str| {
        let mut document: Value = serde_json::from_str(value).unwrap();
        document[member] = (document[member].as_u64().unwrap() - 3_600_000).into();
        document
    };
    for owner in consul.list("ipam/.owners/").iter().filter(|e| !e.key.contains("/.nodes/")) {
        let document = older(&owner.value, "confirmed");
        let mut pairs = vec![(owner.key.clone(), document.to_string())];
        for item in document["leases"].as_array().unwrap() {
            let address = item["address"].as_str().unwrap().split('/').next().unwrap();
            let key = format!("ipam/{}/{address}", item["pool"].as_str().unwrap());
            let value = consul.get(&key).unwrap();
            pairs.push((key, older(&value, "time").to_string()));
        }
        consul.put_all(pairs);
    }
}

#[test]
fn a_claim_that_comes_late_finds_its_owner_served_and_does_nothing() {
    let consul = stocked();
    let (gate, relay) = Gate::before(&consul);
    let node = Node::at(&[url(&relay.endpoint()), consul.url()]);
    let result = node.add("c1");
    assert_eq!(result["unsure"], true);
    let before = consul.list("ipam/");
    gate.open(&consul);
    assert_eq!(consul.list("ipam/"), before);
    node.check("c1", &result).success();
    node.del_known("c1", &result).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_change_that_is_never_answered_is_told_by_its_server() {
    let consul = stocked();
    let (gate, relay) = Gate::before(&consul);
    let node = Node::at(&[url(&relay.endpoint())]).with("timeout", "1s");
    let (code, text) = node.call("ADD", "c1").failure();
    assert_eq!(code, 11, "{text}");
    assert!(
        text.contains(node.store["consul_servers"][0].as_str().unwrap())
            && text.contains("no answer within"),
        "{text}"
    );
    gate.open(&consul);
    node.del("c1");
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_claim_that_comes_after_del_is_found_by_the_next_del() {
    let consul = stocked();
    let (gate, relay) = Gate::before(&consul);
    let node = Node::at(&[url(&relay.endpoint())]).with("timeout", "1s");
    assert_open(node.call("ADD", "c1"));
    node.del("c1");
    assert_eq!(holdings(&consul), [""; 0]);
    gate.open(&consul);
    assert_eq!(books(&consul).len(), 1, "it was carried out late");
    node.del("c1");
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_del_that_comes_late_frees_nothing_that_was_confirmed_since() {
    let consul = stocked();
    let node = Node::of(&consul);
    for known in [true, false] {
        let first = node.add("c1");
        let (gate, relay) = Gate::before(&consul);
        let late = Node::at(&[url(&relay.endpoint())]).with("timeout", "1s");
        let hint = if known { given(&first) } else { json!({}) };
        assert_open(late.call_with("DEL", "c1", &hint));
        let again = node.add("c1");
        assert_eq!(addresses(&again), addresses(&first));
        let before = consul.list("ipam/");
        gate.open(&consul);
        assert_eq!(consul.list("ipam/"), before);
        node.check("c1", &again).success();
        node.del_known("c1", &again).success();
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

/// A world in which `ipam-ds-static → ipam-da-consul` gives addresses of two families.
fn chain(servers: &[String]) -> (World, Value) {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-consul"]));
    network["ipam"]["consul_servers"] = json!(servers);
    network["ipam"]["consul"] = json!({"timeout": "2s"});
    network["ipam"]["pools"] = json!([{"name": "blue"}, {"name": "red"}]);
    (world, network)
}

#[test]
fn a_chain_whose_claim_is_not_answered_holds_what_it_gave_and_repeats_its_del() {
    in_every_way(|consul, spoiler, _| {
        for servers in [&spoiler.urls()[..], &spoiler.urls()[1..]] {
            let (world, network) = chain(servers);
            spoiler.spoil(1);
            let outcome = world.call("ADD", "c1", &network);
            assert_eq!(spoiler.spoilt(), 1, "{outcome:?}");
            spoiler.spoil(0);
            let told = format!("{outcome:?}");
            if outcome.exit == Some(0) {
                let held: Vec<String> = books(consul).keys().map(ToString::to_string).collect();
                assert_eq!(held, addresses(&outcome.success()), "{told}");
            } else {
                assert_open(outcome);
            }
            world.call("DEL", "c1", &network).success();
            assert_eq!(holdings(consul), [""; 0], "{told}");
            assert_eq!(world.state_of("c1"), "unsure", "{told}");
        }
    });
}

#[test]
fn what_a_chain_asked_for_and_got_late_is_released_by_the_repeated_del() {
    let consul = stocked();
    define(&consul, "red", "fd00:1::/64");
    let (gate, relay) = Gate::before(&consul);
    let (world, mut network) = chain(&[url(&relay.endpoint())]);
    network["ipam"]["consul"]["timeout"] = "1s".into();
    assert_open(world.call("ADD", "c1", &network));
    assert_ne!(world.state_of("c1"), "none");
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "unsure");
    gate.open(&consul);
    assert_eq!(books(&consul).len(), 2, "it was carried out late");
    world.make_due();
    // The next ADD of this node looks after it.
    world.call("ADD", "c2", &network).success();
    until("the late claim is released", || {
        books(&consul).values().all(|owner| !owner.contains("/c1/"))
    });
    world.call("DEL", "c2", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_runtime_that_gives_up_waiting_leaves_nothing_after_del() {
    let consul = stocked();
    define(&consul, "red", "fd00:1::/64");
    let (gate, relay) = Gate::before(&consul);
    let (world, mut network) = chain(&[url(&relay.endpoint())]);
    network["ipam"]["consul"]["timeout"] = "20s".into();
    let mut call = start(world.command("ADD", "c1"), &network);
    until("the claim is on its way", || gate.came.load(Ordering::SeqCst));
    ipam_testkit::world::kill_now(&mut call);
    drop(wait(call));
    until("no process is left", || {
        // The delegate goes with its own deadline at the latest; a runtime would kill it by its cgroup.
        for pid in world.processes() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        world.processes().is_empty()
    });
    let mut mended = network.clone();
    mended["ipam"]["consul_servers"] = json!([consul.url()]);
    world.call("DEL", "c1", &mended).success();
    gate.open(&consul);
    assert_eq!(books(&consul).len(), 2, "it was carried out late");
    assert_eq!(world.state_of("c1"), "unsure");
    world.make_due();
    world.call("ADD", "c2", &mended).success();
    world.call("DEL", "c2", &mended).success();
    assert_eq!(holdings(&consul), [""; 0]);
}
