//! Many processes at once on one pool: every address has one holder, and the last one is found.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::IpAddr;
use std::sync::Mutex;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, at_once};
use serde_json::Value;

use common::Node;
use common::store::{are_distinct, books, holdings, occupy, roomy, some, usable};

const WORKERS: usize = 20;
const ADDS: usize = 100;

/// A worker for each thread: a node of its own, or all on one.
fn workers(etcd: &Etcd, subnet: &str, nodes: usize) -> Vec<Node> {
    let node = |n| Node::of(etcd).named(&format!("node-{n}")).with_subnets(&[subnet]);
    (0..nodes).map(node).collect()
}

/// ADDs by all workers at once; the addresses, which must be as many.
#[track_caller]
fn adds(nodes: &[Node]) -> Vec<IpAddr> {
    let given = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let node = &nodes[worker % nodes.len()];
        for round in 0..ADDS / WORKERS {
            let result = node.add(&format!("c{worker}-{round}"));
            given.lock().unwrap().push(addresses(&result)[0].parse().unwrap());
        }
    });
    let given = given.into_inner().unwrap();
    assert_eq!(given.len(), ADDS);
    assert!(are_distinct(&given), "{given:?}");
    given
}

/// All of the pool is held by now: one more ADD fails and leaves nothing.
#[track_caller]
fn assert_exhausted(etcd: &Etcd, node: &Node) {
    let before = holdings(etcd);
    let (code, text) = node.call("ADD", "one-more").failure();
    assert_eq!(code, 100, "{text}");
    assert!(text.contains("no IP addresses available in range set"), "{text}");
    assert!(holdings(etcd) == before);
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
        at_once(WORKERS, |worker| {
            let node = &nodes[worker % nodes.len()];
            (0..ADDS / WORKERS).for_each(|round| node.del(&format!("c{worker}-{round}")));
        });
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
    assert_exhausted(&etcd, &nodes[0]);
    // What is given back is found again.
    nodes[1].del("c1-0");
    nodes[2].add("one-more");
    assert_exhausted(&etcd, &nodes[3]);
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
    assert_exhausted(&etcd, &nodes[0]);
}

#[test]
fn calls_of_one_owner_at_once_agree_on_its_addresses() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
    let given = Mutex::new(Vec::new());
    at_once(10, |_| given.lock().unwrap().push(addresses(&node.add("c1"))));
    let given = given.into_inner().unwrap();
    assert!(given.iter().all(|addresses| *addresses == given[0]), "{given:?}");
    assert_eq!(books(&etcd).len(), 2);
    at_once(10, |_| node.del("c1"));
    assert_eq!(holdings(&etcd), [""; 0]);
}
