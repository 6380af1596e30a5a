//! How often a verb asks the server in the layouts of the replaced plugins, counted by the server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::contention::some;
use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::addresses;
use serde_json::{Value, json};

use common::Node;
use common::layouts::{BOTH, Old};
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
fn a_del_that_nobody_remembers_lists_at_most_once() {
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
