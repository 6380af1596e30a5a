//! Large pools: the size limit of the API server, and what the server tracks of each key.

use ipam_testkit::node::addresses;
use ipam_testkit::whereabouts::{Crds, POOLS};
use serde_json::{Map, Value, json};

use crate::common::node::{Node, POOL, SUBNET};
use crate::common::{Desk, v094};

const WIDE: &str = "10.1.0.0/16";

/// Entries from a key on, whose ids have so many letters.
fn entries(from: usize, count: usize, length: usize) -> Value {
    let entry = |key: usize| {
        let id = key.to_string() + &"0".repeat(length);
        (key.to_string(), json!({"id": id, "podref": "ns/web", "ifname": "eth0"}))
    };
    (from..from + count).map(entry).collect::<Map<_, _>>().into()
}

/// Fills a pool with entries from a key on up to the limit of its size, in smaller and smaller steps.
/// Returns the next key, and how many letters the ids have.
fn fill(desk: &Desk, from: usize, lengths: &[usize]) -> (usize, usize) {
    let path = desk.objects().path(POOLS, "10.1.0.0-16");
    let (mut next, mut size) = (from, 0);
    for length in lengths.iter().copied() {
        loop {
            let change = json!({"spec": {"allocations": entries(next, 1, length)}}).to_string();
            let answer = desk.client.ask("PATCH", &path, change.as_bytes());
            if answer.status != 200 {
                assert_eq!(answer.status, 500, "{}", answer.text());
                break;
            }
            (next, size) = (next + 1, size + length);
        }
    }
    (next, size)
}

#[test]
fn a_pool_at_its_size_limit_is_told_and_nothing_is_left() {
    let desk = Desk::new(&Crds::shipped());
    let node = Node::of(&desk).with_subnets(&[WIDE]).with("timeout", "20s");
    let held = node.add("c1");
    let (next, size) = fill(&desk, 1000, &[700_000, 100_000, 10_000, 1_000, 100, 10]);
    assert!(size > 1_500_000, "{size}");
    let count = desk.objects().allocations("10.1.0.0-16").len();
    for _ in 0..2 {
        let (code, text) = node.call("ADD", "c2").failure();
        assert_eq!(code, 100, "{text}");
        for part in ["10.1.0.0-16", "size limit", "divide the range among several pools"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("unknown"), "{text}");
    }
    assert_eq!(desk.objects().allocations("10.1.0.0-16").len(), count);
    assert_eq!(desk.objects().reservations().len(), 1);
    // The other pools of the call have no entry either.
    let both = Node::of(&desk).with_subnets(&["10.0.0.0/24", WIDE, "fd00:1::/64"]);
    let both = both.with("timeout", "20s");
    let (code, text) = both.call("ADD", "c2").failure();
    assert_eq!(code, 100, "{text}");
    assert_eq!(desk.objects().held().len(), count);
    assert_eq!(desk.objects().reservations().len(), 1);
    assert_eq!(addresses(&node.add("c1")), addresses(&held));
    node.call("STATUS", "").success();
    node.del("c1");
    assert_eq!(desk.objects().allocations("10.1.0.0-16").len(), count - 1);
    assert!(desk.objects().reservations().is_empty());

    // Notes of addresses that rest go before an ADD fails.
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let note = |key| (format!("ipam-delegated/freed-{key}"), format!("{key} {now}").into());
    let notes: Map<String, Value> = (2..500).map(note).collect();
    let pool = desk.objects().pool("10.1.0.0-16").unwrap();
    let is_large = |entry: &Value| entry["id"].as_str().unwrap().len() / 100_000 == 1;
    let allocations = pool["spec"]["allocations"].as_object().unwrap();
    let (large, _) = allocations.iter().find(|(_, entry)| is_large(entry)).unwrap();
    let metadata = json!({"annotations": notes});
    let change = json!({"metadata": metadata, "spec": {"allocations": {large: null}}});
    desk.patch(POOLS, "10.1.0.0-16", &change);
    fill(&desk, next, &[10_000, 1_000, 100, 10]);
    let mut resting = Node::of(&desk).with_subnets(&[WIDE]).with("timeout", "20s");
    resting.ipam = json!({"cooldown": "1h"});
    // Its entry is larger than what is free.
    assert_eq!(resting.address(&"c".repeat(64)), "10.1.1.244");
    let annotations = &desk.objects().pool("10.1.0.0-16").unwrap()["metadata"]["annotations"];
    assert!(!annotations.to_string().contains("freed-"));
}

#[test]
fn the_server_is_told_once_to_track_no_keys() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk).with_subnets(&[WIDE]).with("timeout", "20s");
    desk.objects().create_pool("", WIDE, &entries(1000, 1000, 64));
    let tracked = || {
        let pool = desk.objects().pool("10.1.0.0-16").unwrap();
        pool["metadata"]["managedFields"].to_string().contains("f:1500")
    };
    assert!(tracked());
    node.add("c1");
    assert!(!tracked());
    let managed = || {
        let pool = desk.objects().pool("10.1.0.0-16").unwrap();
        pool["metadata"]["managedFields"].clone()
    };
    let after_first = managed();
    // A patch that reset it again would be seen by what another manager writes.
    let mark = json!({"metadata": {"labels": {"test": "1"}}});
    desk.patch(POOLS, "10.1.0.0-16", &mark);
    let labelled = managed();
    node.add("c2");
    assert_eq!(managed(), labelled, "after the first: {after_first}");
    node.del("c1");
    assert!(!tracked());
}

#[test]
fn a_pool_with_an_atomic_map_is_left_as_it_is() {
    let desk = Desk::new(&Crds::shipped());
    let node = Node::of(&desk);
    desk.objects().create_pool("", SUBNET, &entries(100, 20, 64));
    let managed = || {
        let pool = desk.objects().pool(POOL).unwrap();
        let managed = pool["metadata"]["managedFields"].as_array().cloned();
        managed.unwrap_or_default().iter().map(|of| of["manager"].clone()).collect::<Vec<_>>()
    };
    let before = managed();
    assert!(!before.is_empty());
    node.add("c1");
    let after = managed();
    assert!(before.iter().all(|manager| after.contains(manager)), "{before:?}: {after:?}");
}
