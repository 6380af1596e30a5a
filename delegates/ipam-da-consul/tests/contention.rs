//! Many processes at once on one pool: every address has one holder, and the last one is found.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Mutex;

use ipam_testkit::consul::Consul;
use ipam_testkit::contention::{ADDS, WORKERS, adds, assert_agreed, assert_exhausted, dels, some};
use ipam_testkit::node::at_once;
use serde_json::json;

use common::filling::{occupy, usable};
use common::store::{books, holdings};
use common::{Node, define, stocked};

/// A worker for each thread: a node of its own, or all on one.
fn workers(consul: &Consul, pools: &[&str], nodes: usize) -> Vec<Node> {
    let node = |n| Node::of(consul).patient().named(&format!("node-{n}")).with_pools(pools);
    (0..nodes).map(node).collect()
}

#[test]
fn a_hundred_adds_of_twenty_workers_get_a_hundred_addresses() {
    for nodes in [1, WORKERS] {
        let consul = stocked();
        let nodes = workers(&consul, &["blue"], nodes);
        let given = adds(&nodes);
        let books = books(&consul);
        assert_eq!(books.len(), ADDS);
        assert!(given.iter().all(|address| books.contains_key(address)));
        dels(&nodes);
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

#[test]
fn a_hundred_adds_of_twenty_workers_get_addresses_of_both_families() {
    let consul = stocked();
    define(&consul, "six", "fd00:1::/64");
    for nodes in [1, WORKERS] {
        let nodes = workers(&consul, &["blue", "six"], nodes);
        adds(&nodes);
        assert_eq!(books(&consul).len(), 2 * ADDS);
        dels(&nodes);
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

#[test]
fn the_last_hundred_addresses_of_a_large_pool_are_all_found() {
    let consul = stocked();
    let all = usable("10.1.0.0", 65_534);
    let mut free = some(all.clone(), ADDS);
    let taken: Vec<_> = all.into_iter().filter(|address| !free.contains(address)).collect();
    occupy(&consul, "blue", &taken);
    let nodes = workers(&consul, &["blue"], WORKERS);
    let mut given = adds(&nodes);
    given.sort_unstable();
    free.sort_unstable();
    assert_eq!(given, free);
    assert_exhausted(&nodes[0], || holdings(&consul));
    // What is given back is found again.
    nodes[1].del("c1-0");
    nodes[2].add("one-more");
    assert_exhausted(&nodes[3], || holdings(&consul));
}

#[test]
fn a_small_pool_is_given_out_to_the_last_address() {
    let consul = Consul::start();
    // 10.1.0.2 to 10.1.0.101: the first is the gateway.
    let range = json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1", "rangeEnd": "10.1.0.101"});
    consul.put("ipam/blue", &json!([range]).to_string());
    for nodes in [1, WORKERS] {
        let nodes = workers(&consul, &["blue"], nodes);
        adds(&nodes);
        assert_exhausted(&nodes[0], || holdings(&consul));
        consul.delete_all("ipam/blue/");
        consul.delete_all("ipam/.owners/");
    }
}

#[test]
fn a_pool_of_two_ranges_is_given_out_to_the_last_address() {
    let consul = Consul::start();
    let range = |end: u32| json!({"subnet": "10.1.0.0/24", "rangeStart": format!("10.1.0.{end}1"), "rangeEnd": format!("10.1.0.{end}5")});
    consul.put("ipam/blue", &json!([range(2), range(7)]).to_string());
    let nodes = workers(&consul, &["blue"], 10);
    at_once(10, |number| drop(nodes[number].add(&format!("c{number}"))));
    assert_eq!(books(&consul).len(), 10);
    assert_exhausted(&nodes[0], || holdings(&consul));
}

#[test]
fn calls_of_one_owner_at_once_agree_on_its_addresses() {
    let consul = stocked();
    define(&consul, "six", "fd00:1::/64");
    let node = Node::of(&consul).with_pools(&["blue", "six"]);
    assert_agreed(&node, || books(&consul).len());
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn one_requested_address_goes_to_one_of_many() {
    let consul = stocked();
    let nodes = workers(&consul, &["blue"], WORKERS);
    let nodes: Vec<Node> =
        nodes.into_iter().map(|node| node.with_in_pools("requested-ip", "10.1.7.7")).collect();
    let given = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let outcome = nodes[worker].call("ADD", &format!("c{worker}"));
        match outcome.exit {
            Some(0) => given.lock().unwrap().push(worker),
            _ => assert_eq!(outcome.failure().0, 102),
        }
    });
    let given = given.into_inner().unwrap();
    let [winner] = given[..] else { panic!("{given:?}") };
    let holder = format!("node-{winner}/c{winner}/eth0");
    assert_eq!(books(&consul), [("10.1.7.7".parse().unwrap(), holder)].into());
}
