//! How often a verb asks the server, counted before it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use ipam_testkit::consul::{Consul, Relay};
use ipam_testkit::contention::some;
use ipam_testkit::node::{addresses, given};
use serde_json::{Value, json};

use common::counting::{behind, define_with_folders, requests};
use common::filling::{age, occupy, usable};
use common::store::{books, holdings};
use common::{Node, define};

/// What the verbs of an attachment cost.
#[derive(Debug, PartialEq)]
struct Costs {
    /// The first ADD of a node.
    cold: usize,
    add: usize,
    again: usize,
    check_known: usize,
    check: usize,
    status: usize,
    del_known: usize,
    /// Of an attachment that the caller knows nothing of.
    del: usize,
    /// Of one that holds nothing, which passcod may have given something.
    del_nothing: usize,
    /// GC of a node that holds one address, which stays.
    gc: usize,
}

fn costs(relay: &Relay, node: &Node) -> Costs {
    let mut result = Value::Null;
    let cold = requests(relay, || drop(node.add("first")));
    let add = requests(relay, || result = node.add("cost"));
    let again = requests(relay, || {
        let second = node.add("cost");
        assert_eq!(addresses(&second), addresses(&result));
        result = second;
    });
    let ips = json!({"ips": result["ips"]});
    let check_known = requests(relay, || drop(node.check("cost", &result).success()));
    let check = requests(relay, || drop(node.call_with("CHECK", "cost", &ips).success()));
    let status = requests(relay, || drop(node.call("STATUS", "").success()));
    let del_known = requests(relay, || drop(node.del_known("cost", &result).success()));
    node.add("cost");
    let del = requests(relay, || node.del("cost"));
    let del_nothing = requests(relay, || node.del("cost"));
    let gc = requests(relay, || drop(node.gc(&["first"]).success()));
    Costs { cold, add, again, check_known, check, status, del_known, del, del_nothing, gc }
}

const BEST: Costs = Costs {
    cold: 3,
    add: 1,
    again: 2,
    check_known: 1,
    check: 1,
    status: 1,
    del_known: 1,
    del: 2,
    del_nothing: 2,
    gc: 1,
};

#[test]
fn verbs_take_as_few_requests_however_large_a_pool_is() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    for (number, subnet) in
        ["10.1.0.0/24", "10.2.0.0/16", "10.0.0.0/8", "fd00:1::/120", "fd00:2::/64"]
            .into_iter()
            .enumerate()
    {
        for strategy in ["lowest", "round-robin", "random"] {
            let pool = format!("{strategy}-{number}");
            define_with_folders(&consul, &pool, subnet);
            let node = behind(&relay).named(&pool).with_pools(&[&pool]);
            let node = node.with_in_pools("strategy", strategy);
            assert_eq!(costs(&relay, &node), BEST, "{subnet} {strategy}");
        }
    }
}

#[test]
fn several_pools_take_no_more_but_to_look_at_each_once() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let names = ["a", "b", "c", "d", "e", "f"];
    for (number, name) in names.iter().enumerate() {
        define_with_folders(&consul, name, &format!("10.{number}.0.0/16"));
    }
    for count in 1..=names.len() {
        let node = behind(&relay).with_pools(&names[..count]).named(&format!("node-{count}"));
        // Of an address that nobody remembers, the first four pools are guessed.
        let check = if count <= 4 { 1 } else { 2 };
        let best = Costs { cold: 2 + count, check, del_nothing: 1 + count, ..BEST };
        assert_eq!(costs(&relay, &node), best, "{count} pools");
    }
}

#[test]
fn making_the_folders_takes_one_request_more_once() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define(&consul, "blue", "10.1.0.0/16");
    let first = requests(&relay, || drop(behind(&relay).add("c1")));
    let second = requests(&relay, || drop(behind(&relay).named("node-2").add("c2")));
    assert_eq!((first, second), (4, 3));
    let folders: Vec<_> =
        consul.keys("ipam/").into_iter().filter(|key| key.ends_with('/')).collect();
    assert_eq!(folders, ["ipam/", "ipam/blue/"]);
}

#[test]
fn garbage_takes_two_requests_for_each_owner_and_two_for_all() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    let node = behind(&relay);
    (0..5).for_each(|number| drop(node.add(&format!("c{number}"))));
    age(&consul, Duration::from_secs(3600));
    let taken = requests(&relay, || drop(node.gc(&["c0"]).success()));
    assert_eq!(books(&consul).len(), 1);
    // The scan, the owners' keys, and one change each.
    assert_eq!(taken, 2 + 4);
}

#[test]
fn an_undo_that_undoes_nothing_asks_nobody_and_a_stale_record_costs_one_request_more() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    let node = behind(&relay);
    let result = node.add("c1");
    let mut kept = given(&result);
    kept["leases"][0]["kept"] = true.into();
    kept["undo"] = true.into();
    let undo = || drop(node.call_with("DEL", "c1", &kept).success());
    assert_eq!(requests(&relay, undo), 0);
    node.add("c1");
    // The record's change, a look, the change.
    let stale = requests(&relay, || drop(node.del_known("c1", &result).success()));
    assert_eq!((stale, holdings(&consul)), (3, vec![]));
}

#[test]
fn verbs_take_as_few_requests_with_ten_thousand_leases() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    occupy(&consul, "blue", &some(usable("10.1.0.0", 65_534), 10_000));
    assert_eq!(costs(&relay, &behind(&relay)), BEST);
}

#[test]
fn after_lost_races_the_pool_alone_is_looked_at() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define_with_folders(&consul, "blue", "10.1.0.0/16");
    let all = usable("10.1.0.0", 5_000);
    occupy(&consul, "blue", &all[..250]);
    let node = behind(&relay);
    // It looks at the whole pool, as its first block is nearly full.
    assert_eq!(addresses(&node.add("first")), [all[250].to_string()]);
    // All that the node remembers to be free.
    occupy(&consul, "blue", &all[251..]);
    let before = relay.requests().len();
    node.add("c1");
    let requests = &relay.requests()[before..];
    let lines: Vec<String> = requests.iter().map(|request| request.line()).collect();
    let (changes, listings): (Vec<_>, Vec<_>) =
        requests.iter().partition(|request| request.method == "PUT");
    // Two claims by what was remembered, and one by what was listed.
    assert!(changes.len() == 3 && !listings.is_empty(), "{lines:?}");
    assert!(changes.iter().all(|change| change.body.contains("\"cas\"")), "{lines:?}");
}

#[test]
fn what_passcod_gave_takes_one_listing_more() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    for pool in ["blue", "red"] {
        define_with_folders(&consul, pool, "10.1.0.0/16");
        occupy(&consul, pool, &usable("10.1.0.0", 1_000));
    }
    let node = behind(&relay);
    let given = |address: &str| consul.put(&format!("ipam/{address}"), r#"{"target": "old"}"#);
    let none = Node { pools: json!([]), ..behind(&relay) };
    for (node, address, listings) in
        [(&node, "blue/10.1.9.9", 1), (&none, "blue/10.1.9.9", 1), (&none, "red/10.1.9.9", 1)]
    {
        given(address);
        let lines = relay.during(|| node.del("old"));
        assert_eq!(lines.iter().filter(|line| line.starts_with("GET ")).count(), listings);
        assert_eq!(lines.len(), 2 + listings, "{lines:?}");
        assert_eq!(consul.get(&format!("ipam/{address}")), None);
    }
    assert_eq!(consul.keys("ipam/blue/10.").len() + consul.keys("ipam/red/10.").len(), 2_000);
}
