//! Stores of the old layouts that were restored, swapped or taken for another, and answers that are lost.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use ipam_testkit::etcd::{ClusterId, Etcd, Silent};
use ipam_testkit::node::{addresses, given, subnets};
use serde_json::{Value, json};

use common::Node;
use common::layouts::{BOTH, Old, all, assert_books, on, shown, told};
use common::relay::Relay;
use common::rights::Rights::Theirs;
use common::rights::{calling_as, grant_all, guarded, node_of};

#[track_caller]
fn accept(node: &Node) {
    let outcome = node.typed(&["accept"]);
    assert!(outcome.stdout.starts_with("accepted: "), "{outcome:?}");
}

/// Every verb is refused, and what containers hold stays as it is.
#[track_caller]
fn assert_refused(old: Old, etcd: &Etcd, node: &Node, held: &Value, reason: &str) {
    let before = old.books(etcd);
    for (verb, container, known, expected) in [
        ("ADD", "new", json!({}), 11),
        ("ADD", "held", json!({}), 11),
        ("CHECK", "held", given(held), 11),
        ("STATUS", "", json!({}), 50),
        ("DEL", "held", json!({}), 11),
        ("DEL", "unknown", json!({}), 11),
        ("ADD", "new", json!({}), 11),
    ] {
        let (code, text) = on(node).call(verb, container, &known).failure();
        assert_eq!(code, expected, "{old:?} {verb} {container}: {text}");
        assert!(text.contains(reason) && text.contains("reassert"), "{old:?} {verb}: {text}");
        assert_eq!(old.books(etcd), before, "{old:?} {verb} {container}");
    }
}

/// What is said of a store that was restored so.
fn reason(id: ClusterId) -> &'static str {
    match id {
        ClusterId::Kept => "it was restored from a backup",
        ClusterId::Other => "the store is the etcd cluster ",
    }
}

#[test]
fn a_store_restored_from_a_backup_is_refused_and_not_changed() {
    for old in BOTH {
        for id in [ClusterId::Kept, ClusterId::Other] {
            let etcd = Etcd::start();
            let node = old.node(&etcd);
            old.give(&etcd, "10.1.0.100", "bare");
            let held = on(&node).add("held");
            let snapshot = etcd.snapshot();
            on(&node).add("lost");
            on(&node).add("lost-too");
            etcd.restore(&snapshot, id);
            let before = all(&etcd);
            assert_refused(old, &etcd, &node, &held, reason(id));
            assert_eq!(all(&etcd), before, "{old:?} {id:?}");
            // Others go on meanwhile, the replaced plugin among them.
            let other = old.node(&etcd).named("node-2");
            for number in 0..5 {
                on(&other).add(&format!("other{number}"));
                old.give(&etcd, &format!("10.1.0.20{number}"), "bare");
            }
            assert_refused(old, &etcd, &node, &held, reason(id));
            accept(&node);
            node.call("STATUS", "").success();
            assert_eq!(addresses(&on(&node).add("held")), addresses(&held));
            on(&node).add("new");
            on(&node).del("held");
            on(&node).del("bare");
            assert_eq!(old.books(&etcd).len(), 6, "{old:?}");
        }
    }
}

#[test]
fn a_restored_store_is_known_without_the_index_too() {
    for old in BOTH {
        for id in [ClusterId::Kept, ClusterId::Other] {
            let etcd = guarded(&[(old, Theirs)]);
            let node = node_of(old, &etcd, Theirs);
            let held = on(&node).add("held");
            let snapshot = etcd.snapshot();
            for number in 0..5 {
                on(&node).add(&format!("lost{number}"));
            }
            etcd.restore(&snapshot, id);
            // Such a server lets who shows a token of a time to come wait for it.
            let mut node = node.with("timeout", "1s");
            let (code, text) = on(&node).call("ADD", "new", &json!({})).failure();
            assert_eq!(code, 11, "{text}");
            node.store["etcd"].as_object_mut().unwrap().remove("timeout");
            assert_refused(old, &etcd, &node, &held, reason(id));
            // Though the store has gone on since.
            for number in 0..20 {
                old.give(&etcd, &format!("10.1.0.2{number}"), "bare");
            }
            assert_refused(old, &etcd, &node, &held, reason(id));
            accept(&node);
            node.call("STATUS", "").success();
            assert_eq!(addresses(&on(&node).add("held")), addresses(&held));
            on(&node).add("new");
            on(&node).del("held");
            on(&node).del("new");
            on(&node).del("bare");
            assert_books(old, &etcd, &[]);
            // Allowed the index, it is the same store.
            grant_all(&etcd, old, Theirs);
            let text = fs::read_to_string(node.memory()).unwrap();
            let text = text.lines().last().unwrap().to_owned();
            let mut parts: Value = serde_json::from_str(&text).unwrap();
            parts[""].as_object_mut().unwrap().remove("unindexed");
            fs::write(node.memory(), format!("{parts}\n")).unwrap();
            node.call("STATUS", "").success();
            on(&node).add("c1");
            assert!(told(&old.books(&etcd))[0].contains("node-1/net/c1"), "{old:?}");
        }
    }
}

#[test]
fn leases_are_claimed_again_in_a_restored_store_before_it_is_accepted() {
    for old in BOTH {
        let etcd = Etcd::start();
        let mut node = old.node(&etcd);
        let snapshot = etcd.snapshot();
        on(&node).add("c0");
        let held = on(&node).add("c1");
        etcd.restore(&snapshot, ClusterId::Kept);
        node = node.with_in_pools("requested-ip", addresses(&held)[0].as_str());
        let again = on(&node).call("ADD", "c1", &json!({"reassert": true})).success();
        assert_eq!(addresses(&again), addresses(&held));
        assert_books(old, &etcd, &["10.1.0.3 node-1/net/c1/eth0"]);
        node.pools = subnets(&["10.1.0.0/24"]);
        assert_eq!(on(&node).call("ADD", "new", &json!({})).failure().0, 11);
        accept(&node);
        on(&node).add("new");
        on(&node).del_known("c1", &again);
        on(&node).del("new");
        assert_books(old, &etcd, &[]);
    }
}

#[test]
fn what_the_replaced_plugin_writes_and_deletes_is_no_other_store() {
    let etcd = Etcd::start();
    for old in BOTH {
        let node = old.node(&etcd);
        on(&node).add("c1");
        etcd.put(&old.cursor(0), "10.1.0.77");
        old.give(&etcd, "10.1.0.78", "theirs");
        etcd.etcdctl(&["del", "--prefix", old.leases()]);
        etcd.etcdctl(&["compact", &etcd.revision().to_string()]);
        node.call("STATUS", "").success();
        on(&node).add("c2");
        on(&node).add("c1");
        on(&node).del("c1");
        on(&node).del("c2");
        assert_books(old, &etcd, &[]);
    }
}

#[test]
fn another_layout_is_another_store() {
    let etcd = Etcd::start();
    let layouts = ["native", "cni-ipam-etcd", "host-etcd"];
    for prefix in [None, Some("/one/for/all")] {
        for (from, to) in (0..9).map(|n| (layouts[n / 3], layouts[n % 3])).filter(|(a, b)| a != b) {
            let as_of = |node: Node, layout: &str| {
                let node = node.with("layout", layout);
                match prefix {
                    None => node,
                    Some(prefix) => node.with("prefix", prefix),
                }
            };
            let node = as_of(Node::of(&etcd), from);
            let held = on(&node).add("c1");
            let before = shown(&etcd);
            let node = as_of(node, to);
            for (verb, known) in [
                ("ADD", json!({})),
                ("DEL", json!({})),
                ("CHECK", given(&held)),
                ("DEL", given(&held)),
            ] {
                let (code, text) = on(&node).call(verb, "c1", &known).failure();
                assert_eq!(code, 11, "{from} to {to} {prefix:?} {verb}: {text}");
            }
            assert_eq!(node.call("STATUS", "").failure().0, 50, "{from} to {to} {prefix:?}");
            assert_eq!(shown(&etcd), before, "{from} to {to} {prefix:?}");
            // Back again nothing has happened.
            let node = as_of(node, from);
            node.check("c1", &held).success();
            on(&node).del_known("c1", &held);
            etcd.etcdctl(&["del", "--prefix", "/"]);
        }
    }
}

/// A node whose server's answers may be lost, with the index or without.
struct Lossy<'a> {
    etcd: &'a Etcd,
    relay: Relay,
    old: Old,
    indexed: bool,
}

impl Lossy<'_> {
    fn each(act: impl Fn(&Lossy<'_>)) {
        for indexed in [true, false] {
            let users = BOTH.map(|old| (old, Theirs));
            let etcd = &if indexed { Etcd::start() } else { guarded(&users) };
            for old in BOTH {
                act(&Lossy { etcd, relay: Relay::to(&etcd.endpoint()), old, indexed });
            }
        }
    }

    fn node(&self) -> Node {
        let node = self.old.node_at(&self.relay.endpoint());
        if self.indexed { node } else { calling_as(node, self.old, Theirs) }
    }

    /// The addresses that are held, whoever has them.
    fn held(&self) -> Vec<String> {
        self.old.books(self.etcd).keys().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn assert_empty(&self, what: &str) {
        let told = told(&self.old.books(self.etcd));
        assert!(told.is_empty(), "{:?} {} {what}: {told:?}", self.old, self.indexed);
        let owners = self.etcd.keys(&format!("{}owners/", self.old.ours()));
        assert_eq!(owners, [""; 0], "{:?} {} {what}", self.old, self.indexed);
    }
}

#[test]
fn an_add_whose_answer_is_lost_gives_one_address() {
    Lossy::each(|lossy| {
        let node = lossy.node().with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        // The refusal and the cursor are known by then.
        on(&node).add("warm");
        on(&node).del("warm");
        for (lost, after) in
            [(1, "undo"), (2, "known"), (3, "unknown"), (1, "unknown"), (2, "undo")]
        {
            lossy.relay.lose(lost);
            let result = on(&node).add("c1");
            lossy.relay.lose(0);
            let what = format!("{lost} {after} {:?} {}", lossy.old, lossy.indexed);
            assert_eq!(lossy.held(), addresses(&result), "{what}");
            assert_eq!(result["leases"][0]["kept"], Value::Null, "{what}");
            node.check("c1", &result).success();
            match after {
                "undo" => {
                    let mut undo = given(&result);
                    undo["undo"] = true.into();
                    on(&node).call("DEL", "c1", &undo).success();
                }
                "known" => on(&node).del_known("c1", &result),
                _ => on(&node).del("c1"),
            }
            lossy.assert_empty(&what);
        }
    });
}

#[test]
fn the_first_add_of_a_node_whose_answers_are_lost_gives_one_address() {
    Lossy::each(|lossy| {
        for lost in 1..=4 {
            let node = lossy.node();
            lossy.relay.lose(lost);
            let result = on(&node).add("c1");
            lossy.relay.lose(0);
            assert_eq!(
                lossy.held(),
                addresses(&result),
                "{lost} {:?} {}",
                lossy.old,
                lossy.indexed
            );
            on(&node).del("c1");
            lossy.assert_empty(&lost.to_string());
        }
    });
}

#[test]
fn an_add_again_whose_answer_is_lost_keeps_the_address() {
    Lossy::each(|lossy| {
        // So large that what is tried at random is hardly ever the address that is held.
        let node = lossy.node().with_subnets(&["10.1.0.0/16"]);
        // What we gave, and what the replaced plugin did.
        on(&node).add("c1");
        lossy.old.give(lossy.etcd, "10.1.0.50", "c2");
        on(&node).remember("c2", &["10.1.0.50"]);
        for (container, address) in [("c1", "10.1.0.2"), ("c2", "10.1.0.50")] {
            for lost in [1, 2] {
                lossy.relay.lose(lost);
                let again = on(&node).add(container);
                lossy.relay.lose(0);
                assert_eq!(addresses(&again), [address], "{:?} {}", lossy.old, lossy.indexed);
                assert_eq!(again["leases"][0]["kept"], true);
            }
        }
        assert_eq!(lossy.held(), ["10.1.0.2", "10.1.0.50"]);
        on(&node).del("c1");
        on(&node).del("c2");
        lossy.assert_empty("");
    });
}

#[test]
fn a_second_interface_whose_answer_is_lost_leaves_the_first_alone() {
    Lossy::each(|lossy| {
        let node = lossy.node();
        let first = on(&node).add("c1");
        for lost in [1, 2] {
            lossy.relay.lose(lost);
            let second = on(&node).ifname("net1").add("c1");
            lossy.relay.lose(0);
            let both = [addresses(&first), addresses(&second)].concat();
            assert_eq!(lossy.held(), both, "{lost} {:?} {}", lossy.old, lossy.indexed);
            lossy.relay.lose(lost);
            on(&node).ifname("net1").del("c1");
            lossy.relay.lose(0);
            assert_eq!(lossy.held(), addresses(&first), "{lost} {:?} {}", lossy.old, lossy.indexed);
            node.check("c1", &first).success();
        }
    });
}

#[test]
fn a_del_whose_answer_is_lost_frees_nothing_of_others() {
    Lossy::each(|lossy| {
        let node = lossy.node();
        on(&node).add("other");
        lossy.old.give(lossy.etcd, "10.1.0.50", "theirs");
        let before = lossy.old.books(lossy.etcd);
        for (lost, known) in [(1, true), (2, false), (3, true), (1, false)] {
            let result = on(&node).add("c1");
            lossy.relay.lose(lost);
            match known {
                true => on(&node).del_known("c1", &result),
                false => on(&node).del("c1"),
            }
            lossy.relay.lose(0);
            assert_eq!(lossy.old.books(lossy.etcd), before, "{lost} {known} {:?}", lossy.old);
        }
    });
}

#[test]
fn what_was_done_though_no_answer_came_is_found_by_del() {
    Lossy::each(|lossy| {
        let node = lossy.node().with("timeout", "1s");
        on(&node).add("warm");
        on(&node).del("warm");
        lossy.relay.lose(usize::MAX);
        let (code, text) = on(&node).call("ADD", "c1", &json!({})).failure();
        assert_eq!(code, 11, "{text}");
        lossy.relay.lose(0);
        assert_eq!(lossy.held().len(), 1, "{:?} {}", lossy.old, lossy.indexed);
        on(&node).del("c1");
        lossy.assert_empty("DEL");
        // An ADD in between finds it, too.
        lossy.relay.lose(usize::MAX);
        on(&node).call("ADD", "c1", &json!({})).failure();
        lossy.relay.lose(0);
        let held = lossy.held();
        assert_eq!(addresses(&on(&node).add("c1")), held, "{:?} {}", lossy.old, lossy.indexed);
        on(&node).del("c1");
        lossy.assert_empty("ADD, DEL");
    });
}

#[test]
fn endpoints_that_do_not_answer_fail_no_verb() {
    let etcd = Etcd::start();
    let silent = Silent::listen();
    for old in BOTH {
        let mut node = old.node(&etcd);
        node.store["etcd"]["endpoints"] =
            json!(["127.0.0.1:1", silent.endpoint(), etcd.endpoint()]);
        node.call("STATUS", "").success();
        old.give(&etcd, "10.1.0.50", "bare");
        let result = on(&node).add("c1");
        node.check("c1", &result).success();
        on(&node).del_known("c1", &result);
        on(&node).del("bare");
        assert_books(old, &etcd, &[]);
    }
}
