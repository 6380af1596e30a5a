//! How often a verb asks the server, counted by the server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipam_testkit::contention::{are_distinct, some};
use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, at_once, given};
use serde_json::{Value, json};

use common::Node;
use common::store::{fill, holdings, occupy, roomy, usable};

/// How many requests the server answers while something is done.
#[track_caller]
fn requests(etcd: &Etcd, done: impl FnOnce()) -> u64 {
    let calls = etcd.rpcs_during(done);
    let known = ["Txn", "Range"];
    assert!(calls.keys().all(|method| known.contains(&method.as_str())), "{calls:?}");
    calls.values().sum()
}

/// What the verbs of an attachment cost.
#[derive(Debug, PartialEq)]
struct Costs {
    add: u64,
    again: u64,
    check_known: u64,
    check: u64,
    status: u64,
    del_known: u64,
    /// Of an attachment that the caller knows nothing of.
    del: u64,
    /// Of one that holds nothing.
    del_nothing: u64,
}

fn costs(etcd: &Etcd, node: &Node) -> Costs {
    let mut result = Value::Null;
    let add = requests(etcd, || result = node.add("cost"));
    let again = requests(etcd, || {
        let second = node.add("cost");
        assert_eq!(addresses(&second), addresses(&result));
        result = second;
    });
    let ips = json!({"ips": result["ips"]});
    let check_known = requests(etcd, || drop(node.check("cost", &result).success()));
    let check = requests(etcd, || drop(node.call_with("CHECK", "cost", &ips).success()));
    let status = requests(etcd, || drop(node.call("STATUS", "").success()));
    let del_known = requests(etcd, || drop(node.del_known("cost", &result).success()));
    assert!(etcd.keys("/ipam-delegated/networks/net/owners/node-1/").is_empty());
    node.add("cost");
    let del = requests(etcd, || node.del("cost"));
    assert!(etcd.keys("/ipam-delegated/networks/net/owners/node-1/").is_empty());
    let del_nothing = requests(etcd, || node.del("cost"));
    Costs { add, again, check_known, check, status, del_known, del, del_nothing }
}

const BEST: Costs = Costs {
    add: 1,
    again: 2,
    check_known: 1,
    check: 1,
    status: 1,
    del_known: 1,
    del: 2,
    del_nothing: 1,
};

#[test]
fn each_verb_takes_one_request_on_an_empty_store() {
    let etcd = Etcd::start();
    for list in [&["10.1.0.0/16"][..], &["fd00:1::/64"], &["10.1.0.0/16", "fd00:1::/64"]] {
        let mut node = Node::of(&etcd);
        for strategy in ["round-robin", "lowest", "random"] {
            node = node.with_subnets(list).with_in_pools("strategy", strategy);
            assert_eq!(costs(&etcd, &node), BEST, "{list:?} {strategy}");
        }
    }
}

#[test]
fn each_verb_takes_one_request_with_ten_thousand_leases() {
    let etcd = roomy();
    fill(&etcd, "net", &some(usable("10.1.0.0", 65_533), 10_000));
    fill(&etcd, "net", &usable("fd00:1::", 1_000));
    for list in [&["10.1.0.0/16"][..], &["10.1.0.0/16", "10.2.0.0/16"]] {
        let node = Node::of(&etcd).with_subnets(list);
        assert_eq!(costs(&etcd, &node), BEST, "{list:?}");
    }
    // In the middle of a dense part, where the next address is hardly free.
    let node = Node::of(&etcd).with_subnets(&["fd00:1::/64"]);
    assert_eq!(costs(&etcd, &node), BEST);
    let random = Node::of(&etcd).with_in_pools("strategy", "random");
    assert_eq!(costs(&etcd, &random), BEST);
}

#[test]
fn several_pools_take_a_request_or_a_few() {
    let etcd = Etcd::start();
    let all: Vec<String> = (1..=6).map(|n| format!("10.{n}.0.0/16")).collect();
    for (pools, most) in [(2, 1), (3, 1), (4, 1), (5, 2), (6, 3)] {
        let list: Vec<&str> = all[..pools].iter().map(String::as_str).collect();
        let node = Node::of(&etcd).with_subnets(&list);
        let Costs { add, again, check_known, check, del_known, del, .. } = costs(&etcd, &node);
        assert!(add <= most, "{pools} pools: ADD took {add}");
        // What one commit tries again, it holds already.
        assert!(again <= most + 1, "{pools} pools: ADD again took {again}");
        assert_eq!([check_known, check, del_known, del], [1, 1, 1, 2], "{pools} pools");
    }
}

#[test]
fn an_undo_that_undoes_nothing_asks_nobody_and_a_stale_record_costs_one_request_more() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd);
    let result = node.add("c1");
    // An undo of an ADD that took nothing.
    let mut kept = given(&result);
    kept["leases"][0]["kept"] = true.into();
    kept["undo"] = true.into();
    let undo = || drop(node.call_with("DEL", "c1", &kept).success());
    assert_eq!(requests(&etcd, undo), 0);
    // A DEL of leases that somebody else has changed since looks once more.
    node.add("c1");
    let stale = requests(&etcd, || drop(node.del_known("c1", &result).success()));
    assert_eq!((stale, holdings(&etcd)), (2, vec![]));
}

/// Twenty nodes that call at once.
struct Writers {
    nodes: Vec<Node>,
    /// How many attachments they have made.
    made: AtomicUsize,
}

impl Writers {
    fn new(etcd: &Etcd, subnet: &str) -> Self {
        let node = |n| Node::of(etcd).patient().named(&format!("node-{n}")).with_subnets(&[subnet]);
        Self { nodes: (0..20).map(node).collect(), made: AtomicUsize::new(0) }
    }

    /// The mean number of requests of an ADD, of so many.
    fn mean(&self, etcd: &Etcd, adds: usize) -> f64 {
        let last = self.made.load(Ordering::Relaxed) + adds;
        let given = Mutex::new(Vec::new());
        let total = requests(etcd, || {
            at_once(self.nodes.len(), |writer| {
                let next = || self.made.fetch_add(1, Ordering::Relaxed);
                while let Some(number) = Some(next()).filter(|number| *number < last) {
                    let address = self.nodes[writer].address(&format!("c{number}"));
                    given.lock().unwrap().push(address);
                }
            });
        });
        self.made.store(last, Ordering::Relaxed);
        let given = given.into_inner().unwrap();
        assert_eq!(given.len(), adds);
        assert!(are_distinct(&given), "{given:?}");
        total as f64 / adds as f64
    }
}

#[test]
fn twenty_writers_take_few_requests_however_full_a_pool_is() {
    const SIZE: u32 = 65_533;
    let etcd = roomy();
    let writers = Writers::new(&etcd, "10.1.0.0/16");
    let all = usable("10.1.0.0", SIZE);
    // In no order; what the writers took meanwhile is written over.
    let all = some(all.clone(), all.len());
    let mut held = 0;
    for (share, adds, most) in [(0.5, 200, 1.1), (0.95, 200, 2.0), (0.999, 40, 5.0)] {
        let count = (f64::from(SIZE) * share) as usize;
        occupy(&etcd, "net", &all[held..count]);
        held = count;
        let mean = writers.mean(&etcd, adds);
        assert!((1.0..=most).contains(&mean), "{share}: {mean}");
    }
}

#[test]
fn twenty_writers_take_a_request_each_in_a_v6_pool() {
    let etcd = Etcd::start();
    let mean = Writers::new(&etcd, "fd00:1::/64").mean(&etcd, 100);
    assert!((1.0..=1.1).contains(&mean), "{mean}");
}
