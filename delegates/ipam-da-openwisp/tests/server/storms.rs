//! Twenty callers at once on one subnet: no address has two holders, and none is lost.
//!
//! Every day there are five rounds; `IPAM_DELEGATED_TESTS=full` runs a hundred.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ipam_testkit::node::{addresses, at_once};
use ipam_testkit::openwisp::OpenWisp;
use ipam_testkit::world::full_size;

use crate::site::{Node, Site};

const CALLERS: usize = 20;

/// The nodes that the callers are on.
const NODES: usize = 4;

/// The addresses that callers get at once; who gets none is told to try again.
fn given_at_once(nodes: &[Node], round: usize) -> BTreeMap<String, String> {
    let given = Mutex::new(BTreeMap::new());
    at_once(CALLERS, |caller| {
        let container = format!("c{round}-{caller}");
        let outcome = nodes[caller % nodes.len()].call("ADD", &container);
        if outcome.exit == Some(0) {
            let address = addresses(&outcome.success()).swap_remove(0);
            given.lock().unwrap().insert(container, address);
        } else {
            let (code, text) = outcome.failure();
            assert_eq!(code, 11, "{text}");
        }
    });
    given.into_inner().unwrap()
}

fn release_at_once(nodes: &[Node], round: usize) {
    at_once(CALLERS, |caller| nodes[caller % nodes.len()].del(&format!("c{round}-{caller}")));
}

/// Rounds of ADDs and of the DELs of all callers.
#[track_caller]
fn assert_sound_with(workers: usize) {
    let server = OpenWisp::builder().workers(workers).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let nodes = site.nodes(NODES);
    let rounds = if full_size() { 100 } else { 5 };
    let mut served = 0;
    for round in 0..rounds {
        let given = given_at_once(&nodes, round);
        served += given.len();
        let distinct: BTreeSet<_> = given.values().cloned().collect();
        assert_eq!(distinct.len(), given.len(), "round {round}: {given:?}");
        // One record each, and none of a caller that was told to try again.
        let expected: BTreeMap<_, _> = distinct.into_iter().map(|address| (address, 1)).collect();
        assert_eq!(site.addresses(), expected, "round {round}");
        release_at_once(&nodes, round);
        site.assert_empty();
    }
    let asked = rounds * CALLERS;
    assert!(served * 10 >= asked * 9, "{served} of {asked} were served");
}

#[test]
fn twenty_callers_at_once_get_distinct_addresses_of_a_server_with_four_workers() {
    assert_sound_with(4);
}

#[test]
fn twenty_callers_at_once_get_distinct_addresses_of_a_server_with_one_worker() {
    assert_sound_with(1);
}

#[test]
fn without_the_second_read_an_address_is_given_twice() {
    let server = OpenWisp::start();
    let mut has_doubles = false;
    for round in 0..20 {
        // A small subnet, so that callers meet.
        let site = Site::on(&server, &format!("10.2.{round}.0/27"));
        let nodes: Vec<Node> =
            site.nodes(NODES).into_iter().map(|node| node.with("confirm", false)).collect();
        let given = given_at_once(&nodes, round);
        let distinct: BTreeSet<_> = given.values().collect();
        has_doubles = distinct.len() < given.len();
        if has_doubles {
            break;
        }
    }
    assert!(has_doubles, "the storm finds no address that was given twice");
}

#[test]
fn a_small_subnet_is_given_out_to_the_last_address() {
    let site = Site::of_bits(28);
    let nodes = site.nodes(NODES);
    // Fourteen addresses for twenty callers; those who met others try again.
    let mut served = BTreeSet::new();
    for _ in 0..10 {
        let waiting: Vec<usize> = (0..CALLERS).filter(|n| !served.contains(n)).collect();
        let more = Mutex::new(Vec::new());
        at_once(waiting.len(), |place| {
            let caller = waiting[place];
            let outcome = nodes[caller % NODES].call("ADD", &format!("c{caller}"));
            if outcome.exit == Some(0) {
                more.lock().unwrap().push(caller);
            } else {
                let (code, text) = outcome.failure();
                assert!([11, 100].contains(&code), "{code} {text}");
            }
        });
        served.extend(more.into_inner().unwrap());
        if served.len() == 14 {
            break;
        }
    }
    assert_eq!(served.len(), 14);
    let counts = site.addresses();
    assert!(counts.len() == 14 && counts.values().all(|count| *count == 1), "{counts:?}");
    let (code, text) = nodes[0].call("ADD", "one-more").failure();
    assert_eq!(code, 100, "{text}");
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
    let winners = Mutex::new(Vec::new());
    at_once(CALLERS, |caller| {
        let outcome = nodes[caller % NODES].call("ADD", &format!("c{caller}"));
        if outcome.exit == Some(0) {
            assert_eq!(addresses(&outcome.success()), [&*wish]);
            winners.lock().unwrap().push(caller);
        } else {
            let (code, text) = outcome.failure();
            assert!([11, 102].contains(&code), "{code} {text}");
        }
    });
    let winners = winners.into_inner().unwrap();
    // All may meet and withdraw, but no two win.
    assert!(winners.len() <= 1, "{winners:?}");
    assert_eq!(site.records().len(), winners.len());
}
