//! Many processes at once on one pool: every address has one holder, and the last one is found.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::contention::{ADDS, WORKERS, adds, assert_agreed, assert_exhausted, dels, some};
use ipam_testkit::etcd::Etcd;
use serde_json::Value;

use common::Node;
use common::store::{books, holdings, occupy, roomy, usable};

/// A worker for each thread: a node of its own, or all on one.
fn workers(etcd: &Etcd, subnet: &str, nodes: usize) -> Vec<Node> {
    let node = |n| Node::of(etcd).patient().named(&format!("node-{n}")).with_subnets(&[subnet]);
    (0..nodes).map(node).collect()
}

#[test]
fn a_hundred_adds_of_twenty_workers_get_a_hundred_addresses() {
    for nodes in [1, WORKERS] {
        let etcd = Etcd::start();
        let nodes = workers(&etcd, "10.1.0.0/16", nodes);
        let given = adds(&nodes);
        let books = books(&etcd);
        assert_eq!(books.len(), ADDS);
        assert!(given.iter().all(|address| books.contains_key(address)));
        dels(&nodes);
        assert_eq!(holdings(&etcd), [""; 0]);
    }
}

#[test]
fn the_last_hundred_addresses_of_a_large_pool_are_all_found() {
    let etcd = roomy();
    let all = usable("10.1.0.0", 65_533);
    let free = some(all.clone(), ADDS);
    let taken: Vec<_> = all.into_iter().filter(|address| !free.contains(address)).collect();
    occupy(&etcd, "net", &taken);
    let nodes = workers(&etcd, "10.1.0.0/16", WORKERS);
    let mut given = adds(&nodes);
    given.sort_unstable();
    let mut free = free;
    free.sort_unstable();
    assert_eq!(given, free);
    assert_exhausted(&nodes[0], || holdings(&etcd));
    // What is given back is found again.
    nodes[1].del("c1-0");
    nodes[2].add("one-more");
    assert_exhausted(&nodes[3], || holdings(&etcd));
}

#[test]
fn a_small_pool_is_given_out_to_the_last_address() {
    let etcd = Etcd::start();
    let mut nodes = workers(&etcd, "10.1.0.0/24", WORKERS);
    // 10.1.0.2 to 10.1.0.101: the first is the gateway.
    for node in &mut nodes {
        node.pools[0]["ranges"][0]["rangeEnd"] = Value::from("10.1.0.101");
    }
    adds(&nodes);
    assert_exhausted(&nodes[0], || holdings(&etcd));
}

#[test]
fn calls_of_one_owner_at_once_agree_on_its_addresses() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd).patient().with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
    assert_agreed(&node, || books(&etcd).len());
    assert_eq!(holdings(&etcd), [""; 0]);
}
