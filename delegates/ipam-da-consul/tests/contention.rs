//! Many processes at once on one pool: every address has one holder, and the last one is found.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::IpAddr;
use std::sync::Mutex;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::{addresses, at_once};
use serde_json::json;

use common::filling::{are_distinct, occupy, some, usable};
use common::store::{books, holdings};
use common::{Node, define, stocked};

const WORKERS: usize = 20;
const ADDS: usize = 100;

/// A worker for each thread: a node of its own, or all on one.
fn workers(consul: &Consul, pools: &[&str], nodes: usize) -> Vec<Node> {
    let node = |n| Node::of(consul).named(&format!("node-{n}")).with_pools(pools);
    (0..nodes).map(node).collect()
}

/// ADDs by all workers at once; the addresses, of which each must get all that it asked for.
#[track_caller]
fn adds(nodes: &[Node]) -> Vec<IpAddr> {
    let given = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let node = &nodes[worker % nodes.len()];
        for round in 0..ADDS / WORKERS {
            let result = node.add(&format!("c{worker}-{round}"));
            given
                .lock()
                .unwrap()
                .extend(addresses(&result).iter().map(|a| a.parse::<IpAddr>().unwrap()));
        }
    });
    let given: Vec<IpAddr> = given.into_inner().unwrap();
    assert_eq!(given.len(), ADDS * nodes[0].pools.as_array().unwrap().len());
    assert!(are_distinct(&given), "{given:?}");
    given
}

/// All of the pool is held by now: one more ADD fails and leaves nothing.
#[track_caller]
fn assert_exhausted(consul: &Consul, node: &Node) {
    let before = holdings(consul);
    let (code, text) = node.call("ADD", "one-more").failure();
    assert_eq!(code, 100, "{text}");
    assert!(text.contains("no IP addresses available in range set"), "{text}");
    assert!(holdings(consul) == before);
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
        at_once(WORKERS, |worker| {
            let node = &nodes[worker % nodes.len()];
            (0..ADDS / WORKERS).for_each(|round| node.del(&format!("c{worker}-{round}")));
        });
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
        at_once(WORKERS, |worker| {
            let node = &nodes[worker % nodes.len()];
            (0..ADDS / WORKERS).for_each(|round| node.del(&format!("c{worker}-{round}")));
        });
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
    assert_exhausted(&consul, &nodes[0]);
    // What is given back is found again.
    nodes[1].del("c1-0");
    nodes[2].add("one-more");
    assert_exhausted(&consul, &nodes[3]);
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
        assert_exhausted(&consul, &nodes[0]);
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
    assert_exhausted(&consul, &nodes[0]);
}

#[test]
fn calls_of_one_owner_at_once_agree_on_its_addresses() {
    let consul = stocked();
    define(&consul, "six", "fd00:1::/64");
    let node = Node::of(&consul).with_pools(&["blue", "six"]);
    let given = Mutex::new(Vec::new());
    at_once(10, |_| given.lock().unwrap().push(addresses(&node.add("c1"))));
    let given = given.into_inner().unwrap();
    assert!(given.iter().all(|addresses| *addresses == given[0]), "{given:?}");
    assert_eq!(books(&consul).len(), 2);
    at_once(10, |_| node.del("c1"));
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
