//! A store that was restored from a snapshot or swapped for another is noticed, and nothing is
//! taken from it before somebody says so.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use ipam_testkit::etcd::{ClusterId, Etcd};
use ipam_testkit::node::{addresses, given, subnets};
use ipam_testkit::outlasting::assert_works_without_memory;
use serde_json::{Value, json};

use common::Node;
use common::store::{books, holdings, lease_key, ours};

/// A store, a node that has used it, and what it answered to the ADD of `old`.
struct Site {
    etcd: Etcd,
    node: Node,
    old: Value,
}

impl Site {
    fn new() -> Self {
        let etcd = Etcd::start();
        let node = Node::of(&etcd);
        let old = node.add("old");
        Self { etcd, node, old }
    }

    /// Restores the store as it was, after more was done.
    fn restored(id: ClusterId) -> Self {
        let this = Self::new();
        let snapshot = this.etcd.snapshot();
        this.node.add("lost");
        this.node.add("lost-too");
        this.etcd.restore(&snapshot, id);
        this
    }

    /// Puts another, empty server on the same port.
    fn swapped() -> Self {
        let mut this = Self::new();
        this.etcd.kill();
        this.etcd = Etcd::builder().in_place_of(&this.etcd).start();
        this
    }
}

/// Every verb is refused with advice, however often it is called, and ADD leaves nothing.
#[track_caller]
fn assert_refused(Site { etcd, node, old }: &Site, reason: &str) {
    let held = ours(etcd);
    for (verb, container, leases, expected) in [
        ("ADD", "new", json!({}), 11),
        ("ADD", "new", json!({}), 11),
        ("ADD", "new", json!({}), 11),
        ("ADD", "old", json!({}), 11),
        ("CHECK", "old", given(old), 11),
        ("CHECK", "old", json!({"ips": old["ips"]}), 11),
        ("STATUS", "", json!({}), 50),
        ("DEL", "old", json!({}), 11),
        ("DEL", "old", given(old), 11),
    ] {
        let (code, text) = node.call_with(verb, container, &leases).failure();
        assert_eq!(code, expected, "{verb} {container}: {text}");
        assert!(text.contains(reason), "{verb}: {text}");
        assert!(text.contains("ipam-delegated reassert"), "{verb}: {text}");
        // A DEL by the record is answered with the refusal; its own leases may be gone by then.
        assert!(
            ours(etcd) == held || (verb, leases == json!({})) == ("DEL", false),
            "{verb} {container}"
        );
    }
}

#[track_caller]
fn accept(node: &Node) {
    let outcome = node.typed(&["accept"]);
    assert_eq!(outcome.stdout, "accepted: the store is trusted as it is\n");
}

#[test]
fn a_store_restored_under_its_id_is_known_by_its_revision() {
    let site = Site::restored(ClusterId::Kept);
    let before = site.etcd.revision();
    assert_eq!(site.node.call("ADD", "new").failure().0, 11);
    assert_eq!(site.etcd.revision(), before, "what is refused writes nothing");
    assert_refused(&site, "it was restored from a backup");
    let Site { etcd, node, old } = site;
    accept(&node);
    node.call("STATUS", "").success();
    let again = node.add("old");
    assert_eq!(addresses(&again), addresses(&old));
    node.check("old", &again).success();
    node.del_known("old", &again).success();
    node.add("new");
    assert_eq!(books(&etcd).len(), 1);
}

#[test]
fn a_store_that_lacks_the_latest_claim_alone_is_refused() {
    let Site { etcd, node, .. } = Site::new();
    let snapshot = etcd.snapshot();
    let claimed = etcd.revision();
    node.add("lost");
    assert_eq!(etcd.revision(), claimed + 1, "a claim is one revision");
    etcd.restore(&snapshot, ClusterId::Kept);
    let (before, held) = (etcd.revision(), ours(&etcd));
    let (code, text) = node.call("ADD", "new").failure();
    assert!(code == 11 && text.contains("it was restored from a backup"), "{code}: {text}");
    assert_eq!((etcd.revision(), ours(&etcd)), (before, held), "what is refused writes nothing");
}

#[test]
fn a_store_that_was_set_back_is_refused_though_others_go_on_in_it() {
    let Site { etcd, node, .. } = Site::restored(ClusterId::Kept);
    let fresh = Node::of(&etcd).named("fresh");
    fresh.add("c0");
    // Once seen.
    assert_eq!(node.call("STATUS", "").failure().0, 50);
    let wrote = etcd.revision();
    for round in 1..5 {
        assert_eq!(node.call("ADD", "new").failure().0, 11);
        assert_eq!(node.call("DEL", "old").failure().0, 11);
        assert_eq!(etcd.revision(), wrote + round - 1, "what is refused writes nothing");
        fresh.add(&format!("c{round}"));
    }
    accept(&node);
    node.add("new");
}

#[test]
fn a_store_restored_under_another_id_is_known_by_its_id() {
    let site = Site::restored(ClusterId::Other);
    assert_refused(&site, "the store is the etcd cluster ");
    let Site { etcd, node, old } = site;
    accept(&node);
    node.call("STATUS", "").success();
    node.del_known("old", &old).success();
    node.add("new");
    assert_eq!(books(&etcd).len(), 1);
}

#[test]
fn a_server_swapped_for_another_is_known_by_its_id() {
    let site = Site::swapped();
    assert_refused(&site, "the store is the etcd cluster ");
    let Site { etcd, node, old } = site;
    accept(&node);
    assert_eq!(node.check("old", &old).failure().0, 104);
    node.del_known("old", &old).success();
    node.add("new");
    node.call("STATUS", "").success();
    assert_eq!(books(&etcd).len(), 1);
}

#[test]
fn a_person_sees_what_is_in_a_swapped_store() {
    let Site { etcd, node, .. } = Site::swapped();
    let other = Node::of(&etcd).named("other");
    let address = other.address("theirs");
    assert_eq!(node.listed(), [(address.clone(), "theirs".to_owned())]);
    let who = node.typed(&["who", &address, "--json"]).success();
    assert_eq!(who[0]["node"], "other");
    assert_eq!(node.call("ADD", "new").failure().0, 11);
}

#[test]
fn leases_are_claimed_anew_in_a_swapped_store_before_it_is_accepted() {
    let Site { etcd, mut node, old } = Site::swapped();
    let address = addresses(&old).swap_remove(0);
    node.pools[0]["requested-ip"] = address.clone().into();
    let again = node.call_with("ADD", "old", &json!({"reassert": true})).success();
    assert_eq!(addresses(&again), std::slice::from_ref(&address));
    assert_eq!(books(&etcd)[&address.parse().unwrap()], "node-1/old/eth0");
    // Claiming is not accepting.
    node.pools[0].as_object_mut().unwrap().remove("requested-ip");
    let (code, text) = node.call("ADD", "new").failure();
    assert_eq!(code, 11, "{text}");
    accept(&node);
    assert_ne!(node.address("new"), address);
    node.check("old", &again).success();
    node.del_known("old", &again).success();
    assert_eq!(books(&etcd).len(), 1);
}

#[test]
fn leases_are_claimed_anew_in_a_store_that_was_set_back() {
    let Site { etcd, mut node, .. } = Site::restored(ClusterId::Kept);
    // What was lost is free in the store, and in use. Each claim raises the revision.
    node.pools[0]["requested-ip"] = "10.1.0.3".into();
    for _ in 0..4 {
        node.call_with("ADD", "lost", &json!({"reassert": true})).success();
    }
    node.pools[0].as_object_mut().unwrap().remove("requested-ip");
    assert_eq!(books(&etcd)[&"10.1.0.3".parse().unwrap()], "node-1/lost/eth0");
    assert_eq!(node.call("ADD", "new").failure().0, 11);
    accept(&node);
    node.add("new");
    assert_eq!(books(&etcd).len(), 3);
}

#[test]
fn a_node_that_knows_the_store_is_not_disturbed_by_one_that_does_not() {
    let Site { etcd, node, .. } = Site::swapped();
    let fresh = Node::of(&etcd).named("fresh");
    fresh.add("c1");
    assert_eq!(node.call("ADD", "new").failure().0, 11);
    accept(&node);
    node.add("new");
    fresh.add("c2");
    assert_eq!(books(&etcd).len(), 3);
}

#[test]
fn addresses_of_the_store_used_before_can_be_given_back_to_it() {
    let site = Site::new();
    let id = site.etcd.cluster_id();
    let new = Etcd::start();
    let moved = Node { store: json!({"etcd": {"endpoints": [new.endpoint()]}}), ..Node::of(&new) };
    fs::create_dir_all(moved.memory().parent().unwrap()).unwrap();
    fs::copy(site.node.memory(), moved.memory()).unwrap();
    assert_eq!(moved.call("ADD", "new").failure().0, 11);
    accept(&moved);
    moved.add("new");
    // A DEL by the record goes to the store of the record.
    fs::copy(moved.memory(), site.node.memory()).unwrap();
    assert_eq!(site.etcd.cluster_id(), id);
    site.node.del_known("old", &site.old).success();
    assert_eq!(holdings(&site.etcd), [""; 0]);
    assert_eq!(site.node.call("ADD", "old").failure().0, 11);
    assert_eq!(holdings(&site.etcd), [""; 0]);
}

#[test]
fn a_refused_add_takes_back_what_it_wrote_for_two_families_too() {
    let Site { etcd, mut node, .. } = Site::swapped();
    node.pools = subnets(&["10.1.0.0/16", "fd00:1::/64"]);
    assert_eq!(node.call("ADD", "new").failure().0, 11);
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn a_node_that_forgot_the_store_or_cannot_remember_it_works() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd);
    assert_works_without_memory(&node, &["", "{", "[]", "{\"\":7}", "\u{0}\u{1}"]);
    assert_eq!(books(&etcd).len(), 3);
    assert!(etcd.get(&lease_key("net", "10.1.0.2".parse().unwrap())).is_some());
}

#[test]
fn another_prefix_is_another_store_and_says_nothing_of_the_first() {
    let Site { etcd, node, old } = Site::new();
    let held = ours(&etcd);
    let elsewhere = Node::of(&etcd).with("prefix", "/elsewhere");
    let elsewhere = Node { world: node.world, ..elsewhere };
    let (code, text) = elsewhere.call("ADD", "new").failure();
    assert_eq!(code, 11, "{text}");
    assert!(text.contains("/elsewhere") && !text.contains("backup"), "{text}");
    assert_eq!(ours(&etcd), held);
    // The first is what it was.
    let node = Node { world: elsewhere.world, ..Node::of(&etcd) };
    node.check("old", &old).success();
    node.add("new");
    node.del_known("old", &old).success();
}

#[test]
fn what_one_node_claims_again_opens_the_store_to_no_other() {
    let etcd = Etcd::start();
    let nodes = ["node-1", "node-2"].map(|name| Node::of(&etcd).named(name));
    let snapshot = etcd.snapshot();
    let held = ["c1", "c2", "c3"].map(|container| nodes[0].add(container));
    let others = nodes[1].add("p");
    etcd.restore(&snapshot, ClusterId::Kept);
    let mut claiming = Node::of(&etcd).named("node-1");
    for (number, result) in held.iter().enumerate() {
        claiming.pools[0]["requested-ip"] =
            addresses(result)[0].split('/').next().unwrap_or_default().into();
        let marked = json!({"pools": claiming.pools, "reassert": true});
        claiming.call_with("ADD", &format!("c{}", number + 1), &marked).success();
    }
    let (code, text) = nodes[1].call("ADD", "new").failure();
    assert_eq!(code, 11, "{text}");
    assert_eq!(holdings(&etcd).len(), 6, "{others}");
}
