//! Many nodes at once on one pool.

use std::net::IpAddr;
use std::sync::Mutex;

use ipam_testkit::contention::are_distinct;
use ipam_testkit::node::at_once;

use crate::common::node::Node;
use crate::common::{Desk, v094};

const NODES: usize = 20;

/// As in a cluster, each node has containers of its own: an entry without a reservation is its
/// container's.
fn container(number: usize) -> String {
    format!("c{number}")
}

#[test]
fn twenty_nodes_at_once_get_distinct_addresses_and_release_them() {
    let desk = Desk::new(&v094());
    let nodes: Vec<Node> =
        (0..NODES).map(|number| Node::of(&desk).named(&format!("node-{number}"))).collect();
    for _ in 0..2 {
        let given = Mutex::new(Vec::<IpAddr>::new());
        // The first ADDs find no pool.
        at_once(NODES, |number| {
            let address = nodes[number].address(&container(number));
            given.lock().unwrap().push(address.parse().unwrap());
        });
        let given = given.into_inner().unwrap();
        assert!(given.len() == NODES && are_distinct(&given), "{given:?}");
        desk.objects().assert_consistent();
        at_once(NODES, |number| nodes[number].del(&container(number)));
        assert_eq!(desk.held(), [""; 0]);
    }
}
