//! What comes between a look and a change: an owner is given another address meanwhile, by a delegate
//! that leaves the first ones as they are.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use ipam_testkit::consul::{Consul, Fate, Relay};
use serde_json::json;

use common::store::books;
use common::{Node, define, stocked};

/// What c1 holds at first, and what of it stays once 10.1.0.1 is gone.
const CASES: [(&[&str], &[&str]); 2] = [(&["blue"], &[]), (&["blue", "red"], &["10.3.0.1 c1"])];

/// A server on which c1 has an address of each of these pools.
fn held_by_c1(pools: &[&str]) -> Consul {
    let consul = stocked();
    define(&consul, "red", "10.3.0.0/16");
    define(&consul, "six", "fd00:1::/120");
    Node::of(&consul).with_pools(pools).add("c1");
    consul
}

/// A node behind a relay: right before its first change of the owner's key of c1, c1 is given fd00:1::1.
fn interrupted(consul: &Consul, pools: &[&str]) -> Node {
    let mut second = Node::of(consul).with_pools(&["six"]);
    second.ipam = json!({"serves": ["six"]});
    let times = AtomicUsize::new(0);
    let relay = Relay::deciding(&consul.endpoint(), move |request| {
        let is_change =
            ["\"cas\"", "\"delete-cas\"", "\"set\""].iter().any(|v| request.body.contains(v));
        if is_change
            && request.body.contains("ipam/.owners/net/node-1/c1/eth0")
            && times.fetch_add(1, Ordering::SeqCst) == 0
        {
            second.add("c1");
        }
        Fate::Pass
    });
    Node::at(&[format!("http://{}", relay.endpoint())]).with_pools(pools)
}

/// Who holds what: fails where the keys of addresses and those of owners do not say the same.
#[track_caller]
fn held(consul: &Consul) -> Vec<String> {
    let short = |owner: String| owner.split('/').nth(1).unwrap().to_owned();
    let books = books(consul).into_iter();
    books.map(|(address, owner)| format!("{address} {}", short(owner))).collect()
}

#[test]
fn a_release_by_hand_loses_no_lease_that_the_owner_is_given_meanwhile() {
    for (pools, kept) in CASES {
        let consul = held_by_c1(pools);
        interrupted(&consul, pools).told(&["release", "10.1.0.1", "--yes"]);
        assert_eq!(held(&consul), [kept, &["fd00:1::1 c1"]].concat());
    }
}

#[test]
fn a_takeover_leaves_its_victim_what_it_was_given_meanwhile() {
    for (pools, kept) in CASES {
        let consul = held_by_c1(pools);
        let taking = interrupted(&consul, &["blue"]).taking_over(true);
        assert_eq!(taking.with_in_pools("requested-ip", "10.1.0.1").address("c2"), "10.1.0.1");
        assert_eq!(held(&consul), [&["10.1.0.1 c2"], kept, &["fd00:1::1 c1"]].concat());
    }
}
