//! Twenty callers at once on one subnet: no address has two holders, and none is lost.
//!
//! Every day there are five rounds; `IPAM_DELEGATED_TESTS=full` runs a hundred.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ipam_testkit::node::{addresses, at_once};
use ipam_testkit::phpipam::{LockKind, PhpIpam};
use ipam_testkit::world::full_size;

use crate::site::{KEY, Node, Site};

const CALLERS: usize = 20;

/// The nodes that the callers are on.
const NODES: usize = 4;

/// The addresses that callers get at once.
fn given_at_once(nodes: &[Node], round: usize) -> BTreeMap<String, String> {
    let given = Mutex::new(BTreeMap::new());
    at_once(CALLERS, |caller| {
        let container = format!("c{round}-{caller}");
        let address = nodes[caller % nodes.len()].address(&container);
        given.lock().unwrap().insert(container, address);
    });
    given.into_inner().unwrap()
}

/// Rounds of ADDs and of the DELs of all callers.
#[track_caller]
fn assert_sound_with(lock: LockKind, has_key: bool) {
    let server = PhpIpam::builder().lock(lock).key_field(KEY).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let mut nodes = site.nodes(NODES);
    if has_key {
        nodes = nodes.into_iter().map(|node| node.with("keyField", KEY)).collect();
    }
    let rounds = if full_size() { 100 } else { 5 };
    for round in 0..rounds {
        let given = given_at_once(&nodes, round);
        let distinct: BTreeSet<_> = given.values().cloned().collect();
        assert_eq!(distinct.len(), CALLERS, "round {round}: {given:?}");
        let expected: BTreeMap<_, _> = distinct.into_iter().map(|address| (address, 1)).collect();
        assert_eq!(site.addresses(), expected, "round {round}");
        at_once(CALLERS, |caller| nodes[caller % NODES].del(&format!("c{round}-{caller}")));
        site.assert_empty();
    }
}

#[test]
fn twenty_callers_at_once_get_distinct_addresses_of_an_app_with_a_lock() {
    assert_sound_with(LockKind::File, false);
}

#[test]
fn twenty_callers_at_once_get_distinct_addresses_of_an_app_without_a_lock() {
    assert_sound_with(LockKind::Disabled, false);
}

#[test]
fn twenty_callers_at_once_get_distinct_addresses_where_a_key_keeps_owners_apart() {
    assert_sound_with(LockKind::Disabled, true);
}

#[test]
fn a_small_subnet_is_given_out_to_the_last_address() {
    let server = PhpIpam::builder().lock(LockKind::Disabled).start();
    let site = Site::on(&server, "10.1.0.0/28");
    let nodes = site.nodes(NODES);
    let served = Mutex::new(BTreeSet::new());
    at_once(CALLERS, |caller| {
        let outcome = nodes[caller % NODES].call("ADD", &format!("c{caller}"));
        if outcome.exit == Some(0) {
            served.lock().unwrap().insert(addresses(&outcome.success()).swap_remove(0));
        } else {
            let (code, text) = outcome.failure();
            assert_eq!(code, 100, "{text}");
        }
    });
    assert_eq!(served.into_inner().unwrap().len(), 14);
    assert_eq!(site.addresses().len(), 14);
    at_once(CALLERS, |caller| nodes[caller % NODES].del(&format!("c{caller}")));
    site.assert_empty();
}

#[test]
fn calls_of_one_owner_at_once_agree_on_its_address() {
    let site = Site::new();
    let node = site.node();
    let given = Mutex::new(BTreeSet::new());
    at_once(10, |_| {
        let address = node.address("c1");
        given.lock().unwrap().insert(address);
    });
    assert_eq!(given.into_inner().unwrap().len(), 1);
    assert_eq!(site.records().len(), 1);
    at_once(10, |_| node.del("c1"));
    site.assert_empty();
}

#[test]
fn one_requested_address_goes_to_one_of_many() {
    let site = Site::new();
    let wish = site.host(77);
    let nodes = site.nodes(NODES).into_iter();
    let nodes: Vec<Node> = nodes.map(|node| node.with_in_pools("requested-ip", &*wish)).collect();
    let winners = Mutex::new(0);
    at_once(CALLERS, |caller| {
        let outcome = nodes[caller % NODES].call("ADD", &format!("c{caller}"));
        if outcome.exit == Some(0) {
            assert_eq!(addresses(&outcome.success()), [&*wish]);
            *winners.lock().unwrap() += 1;
        } else {
            let (code, text) = outcome.failure();
            assert_eq!(code, 102, "{text}");
        }
    });
    assert_eq!((*winners.lock().unwrap(), site.records().len()), (1, 1));
}
