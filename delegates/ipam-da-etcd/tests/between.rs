//! What comes between a look and a change: an owner is given another address meanwhile, by a delegate
//! that leaves the first one as it is.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use ipam_testkit::etcd::Etcd;
use serde_json::json;

use common::Node;
use common::relay::Relay;
use common::store::{books, lease_key, owner_key};

const LANS: [&str; 2] = ["10.5.0.0/24", "10.6.0.0/24"];

/// A node with these pools behind a relay. Right before the piece of this number, from 0, of those that
/// it sends and that name the key, c1 is given fd05::2.
fn interrupted(etcd: &Etcd, key: String, number: usize, pools: &[&str]) -> Node {
    let mut second = Node::of(etcd).with_subnets(&["fd05::/64"]);
    second.ipam = json!({"serves": ["six"]});
    let times = AtomicUsize::new(0);
    let relay = Relay::gated(&etcd.endpoint(), move |piece| {
        let names_it = piece.windows(key.len()).any(|part| part == key.as_bytes());
        if names_it && times.fetch_add(1, Ordering::SeqCst) == number {
            second.add("c1");
        }
    });
    Node::at(&[relay.endpoint()]).with_subnets(pools)
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
