//! A store that was restored from a backup or swapped for another is noticed, and nothing is taken from it
//! before somebody says so.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use ipam_testkit::consul::{Consul, Entry};
use ipam_testkit::node::{addresses, at_once, given, named};
use ipam_testkit::outlasting::assert_works_without_memory;
use ipam_testkit::world::{Outcome, World, binary};
use serde_json::{Value, json};

use common::store::{books, everything, holdings, ours};
use common::{Node, POOL, PROGRAM, SUBNET, define, stocked};

const REASON: &str = "the store does not have this node's latest claim";

/// A store, a node that has used it, and what it answered to the ADD of `old`, before the backup, and of
/// `lost`, after it.
struct Site {
    consul: Consul,
    node: Node,
    old: Value,
    lost: Value,
}

/// How the store came to be as it was.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// `consul snapshot restore` in the same cluster.
    Snapshot,
    /// The same in a new one.
    SnapshotElsewhere,
    /// `consul kv import` in a new one.
    Import,
    /// The same where much was written before, so that all indexes are higher than ever.
    LateImport,
    /// A new one with nothing but the pools.
    Empty,
}

const WAYS: [Way; 5] =
    [Way::Snapshot, Way::SnapshotElsewhere, Way::Import, Way::LateImport, Way::Empty];

impl Site {
    fn restored(way: Way) -> Self {
        let mut consul = stocked();
        define(&consul, "red", "fd00:1::/64");
        let node = Node::of(&consul).with_pools(&[POOL, "red"]);
        let old = node.add("old");
        let (snapshot, content) = (consul.snapshot(), consul.list("ipam/"));
        let lost = node.add("lost");
        node.add("lost-too");
        if !matches!(way, Way::Snapshot) {
            consul.kill();
            consul = Consul::builder().in_place_of(&consul).start();
        }
        match way {
            Way::Snapshot | Way::SnapshotElsewhere => consul.restore(&snapshot),
            Way::Import => import(&consul, &content),
            Way::LateImport => {
                (0..200).for_each(|number| consul.put("other", &number.to_string()));
                import(&consul, &content);
            }
            Way::Empty => {
                define(&consul, POOL, SUBNET);
                define(&consul, "red", "fd00:1::/64");
            }
        }
        consul.until_ready();
        Self { consul, node, old, lost }
    }

    #[track_caller]
    fn assert_refused(&self, way: Way) {
        let Self { consul, node, .. } = self;
        let held = ours(consul);
        for (verb, container, expected) in [
            ("ADD", "new", 11),
            ("ADD", "new", 11),
            ("ADD", "old", 11),
            ("STATUS", "", 50),
            ("ADD", "lost", 11),
        ] {
            let (code, text) = node.call(verb, container).failure();
            assert_eq!(code, expected, "{way:?} {verb} {container}: {text}");
            for word in [REASON, "ipam-delegated reassert --claim-only --yes"] {
                assert!(text.contains(word), "{way:?} {verb}: {text}");
            }
            assert_eq!(ours(consul), held, "{way:?} {verb} {container}");
        }
    }

    fn accept(&self) {
        let told = self.node.told(&["accept"]);
        assert_eq!(told, "accepted: the store is trusted as it is\n");
    }
}

/// Writes keys one by one, as `consul kv import` does.
fn import(consul: &Consul, content: &[Entry]) {
    content.iter().for_each(|entry| consul.put(&entry.key, &entry.value));
}

#[test]
fn a_store_that_was_set_back_or_swapped_is_refused_until_it_is_accepted() {
    at_once(WAYS.len(), |number| {
        let way = WAYS[number];
        let site = Site::restored(way);
        site.assert_refused(way);
        site.accept();
        let Site { consul, node, old, .. } = site;
        node.call("STATUS", "").success();
        if !matches!(way, Way::Empty) {
            assert_eq!(addresses(&node.add("old")), addresses(&old));
        }
        node.add("new");
        node.call("STATUS", "").success();
        for container in ["old", "new"] {
            node.del(container);
        }
        assert_eq!(holdings(&consul), [""; 0]);
    });
}

#[test]
fn a_store_that_was_set_back_takes_del_and_check() {
    at_once(2 * WAYS.len(), |number| {
        let (way, by_record) = (WAYS[number / 2], number % 2 == 0);
        let site = Site::restored(way);
        // Before and after it is known to be set back.
        if by_record {
            site.assert_refused(way);
        }
        let Site { consul, node, old, lost } = site;
        if !matches!(way, Way::Empty) {
            node.check("old", &old).success();
        }
        // Its address may be another's by now: what helps is to claim it again.
        for prev_result in [given(&lost), json!({"ips": lost["ips"]})] {
            let (code, text) = node.call_with("CHECK", "lost", &prev_result).failure();
            assert_eq!(code, 11, "{way:?}: {text}");
            assert!(text.contains(REASON) && text.contains("reassert --claim-only"), "{text}");
        }
        for (container, result) in [("lost", &lost), ("old", &old)] {
            for _ in 0..2 {
                match by_record {
                    true => drop(node.del_known(container, result).success()),
                    false => node.del(container),
                }
            }
        }
        assert_eq!(holdings(&consul), [""; 0], "{way:?}");
        assert_eq!(node.call("ADD", "new").failure().0, 11, "{way:?}");
        assert_eq!(holdings(&consul), [""; 0], "{way:?}");
    });
}

#[test]
fn an_empty_store_gives_nothing() {
    let consul = stocked();
    let node = Node::of(&consul);
    let old = node.add("old");
    consul.kill();
    let consul = Consul::builder().in_place_of(&consul).start();
    for verb in ["ADD", "STATUS"] {
        let (code, text) = node.call(verb, "old").failure();
        assert!([103, 50, 11].contains(&code), "{verb}: {code}: {text}");
        assert!(text.contains("ipam/blue") || text.contains(REASON), "{verb}: {text}");
    }
    node.del_known("old", &old).success();
    node.del("old");
    assert_eq!(everything(&consul), []);
}

#[test]
fn a_store_that_others_go_on_in_is_refused_all_the_same() {
    let site = Site::restored(Way::Snapshot);
    let fresh = Node::of(&site.consul).named("fresh").with_pools(&[POOL, "red"]);
    fresh.add("c0");
    site.assert_refused(Way::Snapshot);
    for round in 1..20 {
        fresh.add(&format!("c{round}"));
    }
    site.assert_refused(Way::Snapshot);
    site.accept();
    site.node.add("new");
}

#[test]
fn a_person_sees_what_is_in_a_swapped_store() {
    let Site { consul, node, .. } = Site::restored(Way::Empty);
    let other = Node::of(&consul).named("other");
    let address = other.address("theirs");
    assert_eq!(node.listed(), [(address.clone(), "theirs".to_owned())]);
    let who = node.typed(&["who", &address, "--json"]).success();
    assert_eq!(who[0]["node"], "other");
    assert_eq!(node.call("ADD", "new").failure().0, 11);
}

#[test]
fn leases_are_claimed_anew_before_the_store_is_accepted() {
    at_once(WAYS.len(), |number| {
        let way = WAYS[number];
        let Site { consul, mut node, old, lost } = Site::restored(way);
        for (container, result) in [("old", &old), ("lost", &lost)] {
            for (place, address) in addresses(result).into_iter().enumerate() {
                node.pools[place]["requested-ip"] = address.into();
            }
            for _ in 0..3 {
                let marked = json!({"reassert": true, "leases": result["leases"]});
                let again = node.call_with("ADD", container, &marked).success();
                assert_eq!(addresses(&again), addresses(result), "{way:?}");
            }
        }
        node.pools = named(&[POOL, "red"]);
        assert_eq!(books(&consul).len(), 4, "{way:?}");
        // Claiming is not accepting.
        let (code, text) = node.call("ADD", "new").failure();
        assert_eq!(code, 11, "{way:?}: {text}");
        assert_eq!(books(&consul).len(), 4, "{way:?}");
        node.told(&["accept"]);
        let new = addresses(&node.add("new"));
        assert!(!addresses(&lost).contains(&new[0]), "{way:?}");
        for container in ["old", "lost", "new"] {
            node.del(container);
        }
        assert_eq!(holdings(&consul), [""; 0], "{way:?}");
    });
}

#[test]
fn what_one_node_claims_again_opens_the_store_to_no_other() {
    let consul = stocked();
    let nodes = ["node-1", "node-2"].map(|name| Node::of(&consul).named(name));
    nodes.iter().for_each(|node| drop(node.add("first")));
    let snapshot = consul.snapshot();
    let held = nodes[0].add("c1");
    nodes[1].add("p");
    consul.restore(&snapshot);
    consul.until_ready();
    let mut claiming = Node::of(&consul).named("node-1");
    claiming.pools[0]["requested-ip"] = addresses(&held)[0].clone().into();
    claiming.call_with("ADD", "c1", &json!({"reassert": true})).success();
    nodes[0].told(&["accept"]);
    nodes[0].add("c2");
    let before = ours(&consul);
    let (code, text) = nodes[1].call("ADD", "new").failure();
    assert_eq!(code, 11, "{text}");
    assert_eq!(ours(&consul), before);
}

#[test]
fn an_address_that_another_took_meanwhile_is_not_claimed_from_it() {
    let Site { consul, mut node, lost, .. } = Site::restored(Way::Snapshot);
    let fresh = Node::of(&consul).named("fresh").with_pools(&[POOL, "red"]);
    assert_eq!(addresses(&fresh.add("theirs")), addresses(&lost));
    let before = ours(&consul);
    for (place, address) in addresses(&lost).into_iter().enumerate() {
        node.pools[place]["requested-ip"] = address.into();
    }
    // Whatever the configuration says of other ADDs.
    for takeover in [false, true] {
        node.ipam = json!({"takeover": takeover});
        let marked = json!({"reassert": true, "leases": lost["leases"]});
        let (code, text) = node.call_with("ADD", "lost", &marked).failure();
        assert_eq!(code, 102, "{text}");
        assert!(text.contains("theirs"), "{text}");
        assert_eq!(ours(&consul), before);
    }
}

#[test]
fn a_node_that_forgot_the_store_or_cannot_remember_it_works() {
    let consul = stocked();
    let node = Node::of(&consul);
    assert_works_without_memory(&node, &["", "{", "[]", "{\"\":7}", "\u{0}\u{1}", "{\"marks\":7}"]);
    node.del("c5");
    assert_eq!(books(&consul).len(), 2);
}

/// A chain on a node, its network where `ipam-delegated` finds it.
struct Chain {
    world: World,
    network: Value,
}

impl Chain {
    fn of(consul: &Consul) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        let mut network = world.network(json!(["ipam-ds-static", "ipam-da-consul"]));
        network["ipam"]["consul_servers"] = json!([consul.url()]);
        network["ipam"]["pools"] = json!([{"name": POOL}, {"name": "red"}]);
        world.conflist("10-net.conflist", &network);
        Self { world, network }
    }

    fn call(&self, verb: &str, container: &str) -> Outcome {
        self.world.call(verb, container, &self.network)
    }

    #[track_caller]
    fn reassert(&self, words: &[&str]) -> Value {
        self.world.typed(&[&["reassert", "--json"], words].concat()).success()
    }
}

#[test]
fn reassert_on_every_node_makes_a_restored_store_right_again() {
    at_once(WAYS.len(), |number| {
        let way = WAYS[number];
        let mut consul = stocked();
        define(&consul, "red", "fd00:1::/64");
        let chains = [Chain::of(&consul), Chain::of(&consul)];
        for (number, chain) in chains.iter().enumerate() {
            chain.call("ADD", &format!("old{number}")).success();
        }
        let (snapshot, content) = (consul.snapshot(), consul.list("ipam/"));
        for (number, chain) in chains.iter().enumerate() {
            chain.call("ADD", &format!("lost{number}")).success();
        }
        let right = books(&consul);
        if !matches!(way, Way::Snapshot) {
            consul.kill();
            consul = Consul::builder().in_place_of(&consul).start();
        }
        match way {
            Way::Snapshot | Way::SnapshotElsewhere => consul.restore(&snapshot),
            Way::Import | Way::LateImport => import(&consul, &content),
            Way::Empty => {
                define(&consul, POOL, SUBNET);
                define(&consul, "red", "fd00:1::/64");
            }
        }
        if matches!(way, Way::LateImport) {
            import(&consul, &content);
            import(&consul, &content);
        }
        consul.until_ready();
        for chain in &chains {
            let (code, text) = chain.call("ADD", "new").failure();
            assert!(code == 11 && text.contains(REASON), "{way:?}: {code}: {text}");
        }
        for chain in &chains {
            let told = chain.reassert(&["--claim-only", "--yes"]);
            assert!(told.to_string().contains("claimed"), "{way:?}: {told}");
        }
        assert_eq!(books(&consul), right, "{way:?}");
        for chain in &chains {
            assert_eq!(chain.call("ADD", "new").failure().0, 11, "{way:?}");
        }
        for chain in &chains {
            let told = chain.reassert(&["--yes"]);
            assert!(told.to_string().contains("accepted"), "{way:?}: {told}");
        }
        assert_eq!(books(&consul), right, "{way:?}");
        for (number, chain) in chains.iter().enumerate() {
            chain.call("ADD", "later").success();
            // The ADD that was refused may have left something.
            chain.call("DEL", "new").success();
            for container in ["later".to_owned(), format!("old{number}"), format!("lost{number}")] {
                chain.call("DEL", &container).success();
                assert_eq!(chain.world.state_of(&container), "none", "{way:?} {container}");
            }
        }
        assert_eq!(holdings(&consul), [""; 0], "{way:?}");
    });
}
