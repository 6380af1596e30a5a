//! How often a verb asks the server in the layouts of the replaced plugins, counted by the server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::contention::some;
use ipam_testkit::etcd::{ClusterId, Etcd};
use ipam_testkit::node::addresses;
use serde_json::{Value, json};

use common::Node;
use common::layouts::{BOTH, Old, whereabouts_node};
use common::rights::{Rights, guarded, node_of};
use common::store::{roomy, usable};

/// How many leases of others lie about, and how many pages a look at all of them takes.
const OTHERS: (usize, u64) = (2_500, 3);

#[track_caller]
fn requests(etcd: &Etcd, done: impl FnOnce()) -> u64 {
    let calls = etcd.rpcs_during(done);
    calls.iter().filter(|(method, _)| *method != "Authenticate").map(|(_, count)| count).sum()
}

fn crowded(old: Old) -> (Etcd, Node) {
    let etcd = roomy();
    old.give_all(&etcd, &some(usable("10.1.0.0", 65_533), OTHERS.0));
    let node = old.node(&etcd).with_subnets(&["10.1.0.0/16"]);
    (etcd, node)
}

#[test]
fn each_verb_takes_one_request_whatever_the_replaced_plugin_holds() {
    for old in BOTH {
        let (etcd, node) = crowded(old);
        let mut result = Value::Null;
        // This node has no cursor of its own yet.
        assert_eq!(requests(&etcd, || drop(node.add("first"))), 2, "{old:?}");
        assert_eq!(requests(&etcd, || result = node.add("c1")), 1, "{old:?}");
        let again = requests(&etcd, || assert_eq!(addresses(&node.add("c1")), addresses(&result)));
        assert_eq!(again, 2, "{old:?}");
        result = node.add("c1");
        assert_eq!(requests(&etcd, || drop(node.check("c1", &result).success())), 1, "{old:?}");
        let strange = json!({"ips": [{"address": "10.1.255.9/16"}]});
        let failing = requests(&etcd, || {
            assert_eq!(node.call_with("CHECK", "c9", &strange).json()["code"], 104);
        });
        assert_eq!(failing, 1, "{old:?}");
        let del = requests(&etcd, || drop(node.del_known("c1", &result).success()));
        assert_eq!(del, 1, "{old:?}");
        assert_eq!(requests(&etcd, || node.del("first")), 2, "{old:?}: indexed, not recorded");
    }
}

#[test]
fn a_del_does_not_wait_for_the_old_lock() {
    for (old, lock) in BOTH.into_iter().zip(["/etcd-cni/networks/net/lock", "/ipam/lock/1f"]) {
        let etcd = Etcd::start();
        let node = old.node(&etcd);
        let result = node.add("c1");
        etcd.put(lock, "");
        let del = requests(&etcd, || drop(node.del_known("c1", &result).success()));
        assert_eq!(del, 1, "{old:?}");
        assert!(old.books(&etcd).is_empty(), "{old:?}");
    }
}

#[test]
fn what_the_document_of_host_etcd_says_and_it_never_wrote_is_not_read() {
    let etcd = Etcd::start();
    etcd.put("/ipam/ips/net/10.1.0.2", "theirs");
    let node = Old::HostEtcd.node(&etcd);
    assert_eq!(node.address("c1"), "10.1.0.2");
    node.del("theirs");
    assert_eq!(etcd.get("/ipam/ips/net/10.1.0.2").unwrap(), "theirs");
}

#[test]
fn a_del_without_a_record_and_an_entry_in_the_index_lists_at_most_once() {
    for old in BOTH {
        let (etcd, node) = crowded(old);
        old.give(&etcd, "10.1.200.9", "theirs");
        let look = 1 + OTHERS.1;
        // The last is the release itself.
        assert_eq!(requests(&etcd, || node.del("theirs")), look + 1, "{old:?}");
        assert!(!old.books(&etcd).contains_key(&"10.1.200.9".parse().unwrap()), "{old:?}");
        assert_eq!(requests(&etcd, || node.del("theirs")), look, "{old:?}: again");
    }
}

#[test]
fn an_add_again_lists_nothing_where_the_token_forbids_an_index() {
    for old in BOTH {
        let etcd = guarded(&[(old, Rights::Theirs)]);
        let node = node_of(old, &etcd, Rights::Theirs);
        // The refusal is remembered from here on.
        node.add("first");
        let mut result = Value::Null;
        assert_eq!(requests(&etcd, || result = node.add("c1")), 1, "{old:?}");
        let again = requests(&etcd, || assert_eq!(addresses(&node.add("c1")), addresses(&result)));
        assert_eq!(again, 2, "{old:?}");
        result = node.add("c1");
        let del = requests(&etcd, || drop(node.del_known("c1", &result).success()));
        assert_eq!(del, 1, "{old:?}");
    }
}

/// The pool of `whereabouts_node`.
const POOL: &str = "/whereabouts/10.1.0.0/24";

/// A store of whereabouts with the leases of others, and a node.
fn whereabouts() -> (Etcd, Node) {
    let etcd = Etcd::start();
    let others: Vec<String> = (100..200).map(|n| format!("10.1.0.{n} other")).collect();
    etcd.put(POOL, &others.join("\n"));
    let node = whereabouts_node(&etcd);
    (etcd, node)
}

#[test]
fn a_value_of_whereabouts_that_this_node_wrote_last_is_not_read() {
    let (etcd, node) = whereabouts();
    let mut result = Value::Null;
    assert_eq!(requests(&etcd, || drop(node.add("first"))), 2, "nothing is known");
    assert_eq!(requests(&etcd, || drop(node.add("second"))), 2, "others may change it, too");
    assert_eq!(requests(&etcd, || result = node.add("c1")), 1);
    assert_eq!(addresses(&result), ["10.1.0.4"]);
    assert_eq!(requests(&etcd, || result["leases"] = node.add("c1")["leases"].clone()), 2, "again");
    assert_eq!(requests(&etcd, || drop(node.check("c1", &result).success())), 1);
    assert_eq!(requests(&etcd, || drop(node.del_known("c1", &result).success())), 1);
    assert_eq!(requests(&etcd, || node.del("c1")), 1, "nothing is held");
    assert_eq!(requests(&etcd, || node.del("first")), 2, "without a record");
    for subnets in
        [&["10.1.0.0/24", "fd00:1::/64"][..], &["10.1.0.0/24", "10.2.0.0/24", "fd00:1::/64"]]
    {
        let several = whereabouts_node(&etcd).with_subnets(subnets);
        let number = subnets.len();
        drop(["a", "b"].map(|of| several.add(&format!("{of}{number}"))));
        let third = requests(&etcd, || drop(several.add(&format!("c{number}"))));
        assert_eq!(third, 1, "{number} values");
        let status = requests(&etcd, || drop(several.call("STATUS", "").success()));
        assert_eq!(status, 1 + number as u64, "{number} values");
    }
}

#[test]
fn a_value_of_whereabouts_that_another_has_changed_costs_no_third_request() {
    let (etcd, node) = whereabouts();
    let other = whereabouts_node(&etcd).named("node-2");
    let result = node.add("c1");
    other.add("c2");
    let mut late = Value::Null;
    assert_eq!(requests(&etcd, || late = node.add("c3")), 2);
    assert_eq!(addresses(&late), ["10.1.0.4"], "the lowest, as without a wrong guess");
    assert_eq!(requests(&etcd, || drop(node.del_known("c1", &result).success())), 2);
    assert_eq!(requests(&etcd, || drop(node.del_known("c3", &late).success())), 1, "two in a row");
    // By hand, and all that this node knows is taken.
    let mut full: Vec<String> = (2..=254).map(|n| format!("10.1.0.{n} other")).collect();
    etcd.put(POOL, &full[1..].join("\n"));
    assert_eq!(requests(&etcd, || drop(node.add("last"))), 2);
    node.del("last");
    node.add("last");
    assert_eq!(node.call("ADD", "none").failure().0, 100);
    full[0] = "10.1.0.2 last".to_owned();
    etcd.put(POOL, &full[..252].join("\n"));
    assert_eq!(addresses(&node.add("c4")), ["10.1.0.254"]);
}

#[test]
fn a_value_of_whereabouts_is_known_by_its_mark_and_not_by_its_revision() {
    let (etcd, node) = whereabouts();
    let other = whereabouts_node(&etcd).named("node-2");
    node.add("c1");
    let snapshot = etcd.snapshot();
    node.add("lost");
    let reached = etcd.revision();
    etcd.restore(&snapshot, ClusterId::Kept);
    other.add("theirs");
    assert_eq!(etcd.revision(), reached, "the same revision has another value");
    assert_eq!(requests(&etcd, || drop(node.add("c2"))), 2);
    let value = etcd.get(POOL).unwrap();
    assert!(value.ends_with("\n10.1.0.2 c1\n10.1.0.3 theirs\n10.1.0.4 c2"), "{value}");
}

#[test]
fn a_damaged_memory_of_a_value_of_whereabouts_is_ignored() {
    let (etcd, node) = whereabouts();
    drop(["c1", "c0"].map(|container| node.add(container)));
    let file = node.world.path("state/etcd/values/net.json");
    let text = std::fs::read_to_string(&file).unwrap();
    for (container, damaged) in [
        ("c2", text.replace("10.1.0.199 other", "10.1.0.199 mine!")),
        ("c3", text[..text.len() / 2].to_owned()),
        ("c4", "[]".to_owned()),
    ] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(requests(&etcd, || drop(node.add(container))), 2, "{container}");
        let value = etcd.get(POOL).unwrap();
        assert!(value.contains("10.1.0.199 other\n") && value.contains("10.1.0.2 c1"), "{value}");
    }
}

#[test]
fn a_large_value_of_whereabouts_is_read_and_not_guessed() {
    let etcd = Etcd::start();
    let node = whereabouts_node(&etcd).with_subnets(&["10.1.0.0/16"]);
    let line = |n: usize| format!("10.1.{}.{} {n:064x}", 1 + n / 250, n % 250);
    etcd.put("/whereabouts/10.1.0.0/16", &(0..500).map(line).collect::<Vec<_>>().join("\n"));
    for container in ["c1", "c2", "c3"] {
        assert_eq!(requests(&etcd, || drop(node.add(container))), 2, "{container}");
    }
}

#[test]
fn a_dense_pool_of_whereabouts_is_searched_in_one_view() {
    let etcd = Etcd::start();
    let line = |n: usize| format!("10.1.{}.{} other", n / 256, n % 256);
    let lines = (2..3000).rev().filter(|n| *n != 700).map(line);
    etcd.put("/whereabouts/10.1.0.0/16", &lines.collect::<Vec<_>>().join("\n"));
    let lowest = whereabouts_node(&etcd).with_subnets(&["10.1.0.0/16"]);
    let add = |node: &Node, container: &str| {
        let mut result = Value::Null;
        assert_eq!(requests(&etcd, || result = node.add(container)), 2, "{container}");
        addresses(&result)[0].clone()
    };
    assert_eq!(add(&lowest, "c1"), "10.1.2.188");
    assert_eq!(add(&lowest, "c2"), "10.1.11.184");
    let next = lowest.with_in_pools("strategy", "round-robin");
    assert_eq!(add(&next, "c3"), "10.1.11.185");
    next.del("c1");
    assert_eq!(add(&next, "c4"), "10.1.11.186");
    let any = next.with_in_pools("strategy", "random");
    assert_ne!(add(&any, "c5"), "10.1.11.187");
}
