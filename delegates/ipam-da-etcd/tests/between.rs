//! What comes between a look and a change: an owner is given another address meanwhile, by a delegate
//! that leaves the first one as it is.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use ipam_testkit::etcd::Etcd;
use serde_json::json;

use common::Node;
use common::layouts::{on, whereabouts_at, whereabouts_node};
use common::relay::Relay;
use common::store::{books, lease_key, owner_key};

const LANS: [&str; 2] = ["10.5.0.0/24", "10.6.0.0/24"];

/// A node with these pools behind a relay. Right before the piece of this number, from 0, of those that
/// it sends and that name the key, c1 is given fd05::2.
fn interrupted(etcd: &Etcd, key: String, number: usize, pools: &[&str]) -> Node {
    let mut second = Node::of(etcd).with_subnets(&["fd05::/64"]);
    second.ipam = json!({"serves": ["six"]});
    let relay = before_piece(etcd, key, number, move || drop(second.add("c1")));
    Node::at(&[relay.endpoint()]).with_subnets(pools)
}

/// A relay that calls `between` right before the piece of this number, from 0, of those that name
/// the key.
fn before_piece(
    etcd: &Etcd,
    key: String,
    number: usize,
    between: impl Fn() + Send + Sync + 'static,
) -> Relay {
    let times = AtomicUsize::new(0);
    Relay::gated(&etcd.endpoint(), move |piece| {
        let names_it = piece.windows(key.len()).any(|part| part == key.as_bytes());
        if names_it && times.fetch_add(1, Ordering::SeqCst) == number {
            between();
        }
    })
}

/// Who holds what: fails where the keys of addresses and those of owners do not say the same.
#[track_caller]
fn held(etcd: &Etcd) -> Vec<String> {
    let short = |owner: String| owner.split('/').nth(1).unwrap().to_owned();
    books(etcd).into_iter().map(|(address, owner)| format!("{address} {}", short(owner))).collect()
}

#[test]
fn a_release_by_hand_leaves_an_owner_that_has_changed_for_another_call() {
    for (pools, kept) in [(&LANS[..1], None), (&LANS[..], Some("10.6.0.2 c1"))] {
        let etcd = Etcd::start();
        Node::of(&etcd).with_subnets(pools).add("c1");
        let key = lease_key("net", "10.5.0.2".parse().unwrap());
        // It looks, then it changes.
        let by_hand = interrupted(&etcd, key, 1, pools);
        let told = by_hand.told(&["release", "10.5.0.2", "--yes"]);
        assert!(told.ends_with("nothing to release\n"), "{told}");
        let both = [Some("10.5.0.2 c1"), kept, Some("fd05::2 c1")];
        assert_eq!(held(&etcd), both.into_iter().flatten().collect::<Vec<_>>());
        by_hand.told(&["release", "10.5.0.2", "--yes"]);
        assert_eq!(held(&etcd), both.into_iter().flatten().skip(1).collect::<Vec<_>>());
    }
}

#[test]
fn a_takeover_leaves_its_victim_what_it_was_given_meanwhile() {
    for (pools, kept) in [(&LANS[..1], None), (&LANS[..], Some("10.6.0.2 c1"))] {
        let etcd = Etcd::start();
        Node::of(&etcd).with_subnets(pools).add("c1");
        let key = owner_key("net", "node-1", "c1");
        // It looks at the victim, then it changes.
        let taking = interrupted(&etcd, key, 1, &LANS[..1]).taking_over(true);
        let taking = taking.with_in_pools("requested-ip", "10.5.0.2");
        assert_eq!(taking.address("c2"), "10.5.0.2");
        let expected = [Some("10.5.0.2 c2"), kept, Some("fd05::2 c1")];
        assert_eq!(held(&etcd), expected.into_iter().flatten().collect::<Vec<_>>());
    }
}

#[test]
fn an_address_that_was_lost_is_taken_off_its_owner_and_nothing_else_is() {
    let etcd = Etcd::start();
    Node::of(&etcd).with_subnets(&LANS).add("c1");
    assert!(etcd.del(&lease_key("net", "10.5.0.2".parse().unwrap())));
    // It guesses, then it finds that one of the addresses is not there, then it takes that off.
    let mut node = interrupted(&etcd, owner_key("net", "node-1", "c1"), 2, &LANS[1..]);
    node.ipam = json!({"serves": ["red"]});
    assert_eq!(node.address("c1"), "10.6.0.2");
    assert_eq!(held(&etcd), ["10.6.0.2 c1", "fd05::2 c1"]);
}

/// The pool of `whereabouts_node`, and the keys of owners of c1 beside it.
const POOL: &str = "/whereabouts/10.1.0.0/24";
const C1: &str = "/whereabouts/ipam-delegated/owners/c1/";

/// A node of whereabouts that remembers that c1 was given 10.1.0.9 for net1.
fn with_result_of_net1(etcd: &Etcd) -> Node {
    let node = whereabouts_node(etcd);
    on(&node).ifname("net1").remember("c1", &["10.1.0.9"]);
    node
}

#[test]
fn a_line_of_whereabouts_that_another_interface_adopts_meanwhile_is_not_released() {
    // It looks at the owners of c1, looks again, and makes the change.
    for number in [1, 2] {
        let etcd = Etcd::start();
        etcd.put(POOL, "10.1.0.9 c1");
        let other = with_result_of_net1(&etcd);
        let adopt = move || drop(on(&other).ifname("net1").add("c1"));
        let relay = before_piece(&etcd, C1.to_owned(), number, adopt);
        on(&whereabouts_at(&relay.endpoint())).del("c1");
        assert_eq!(etcd.get(POOL).as_deref(), Some("10.1.0.9 c1"), "{number}");
    }
}

#[test]
fn a_takeover_in_a_pool_of_whereabouts_takes_the_address_off_its_present_owner() {
    // It looks for the holder, looks again, and makes the change.
    for (adopted, number) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let etcd = Etcd::start();
        etcd.put(POOL, "10.1.0.9 c1");
        let other = with_result_of_net1(&etcd);
        if !adopted {
            on(&other).ifname("net1").add("c1");
        }
        let add = move || drop(on(&other).ifname("net1").add("c1"));
        let relay = before_piece(&etcd, C1.to_owned(), number, add);
        let taking = whereabouts_at(&relay.endpoint()).taking_over(true);
        let taking = taking.with_in_pools("requested-ip", "10.1.0.9");
        assert_eq!(taking.address("c2"), "10.1.0.9");
        assert_eq!(etcd.get(POOL).as_deref(), Some("10.1.0.9 c2"), "{adopted} {number}");
        assert_eq!(etcd.keys(C1), [""; 0], "{adopted} {number}");
    }
}

#[test]
fn a_takeover_in_a_pool_that_two_networks_share_is_done() {
    let etcd = Etcd::start();
    let node = whereabouts_node(&etcd);
    on(&node).network("other").add("c1");
    let taking = node.taking_over(true).with_in_pools("requested-ip", "10.1.0.2");
    assert_eq!(taking.address("c2"), "10.1.0.2");
    assert_eq!(etcd.get(POOL).as_deref(), Some("10.1.0.2 c2"));
    assert_eq!(etcd.keys(C1), [""; 0]);
}
