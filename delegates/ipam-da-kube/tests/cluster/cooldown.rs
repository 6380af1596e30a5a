//! Freed addresses rest in the whole cluster, and never at the cost of an ADD or a DEL.

use std::collections::BTreeMap;

use ipam_testkit::node::{addresses, at_once};
use ipam_testkit::whereabouts::{POOLS, Release};
use serde_json::{Value, json};

use crate::common::beside::{Ours, Site, old_add, old_del, served};
use crate::common::node::{Node, POOL};
use crate::common::relay::Fate;
use crate::common::sticky::sticky_desk;
use crate::common::{Desk, v094};

/// A node with a cooldown.
fn node(desk: &Desk, name: &str, cooldown: &str) -> Node {
    let mut node = Node::of(desk).named(name);
    node.ipam = json!({"cooldown": cooldown});
    node
}

/// The annotations of a pool.
fn annotations(desk: &Desk, pool: &str) -> BTreeMap<String, String> {
    let pool = desk.client.get(&desk.objects().path(POOLS, pool)).unwrap();
    serde_json::from_value(pool["metadata"]["annotations"].clone()).unwrap_or_default()
}

/// The notes of a pool.
fn notes(desk: &Desk, pool: &str) -> usize {
    let names = annotations(desk, pool).into_keys();
    names.filter(|name| name.starts_with("ipam-delegated/freed-")).count()
}

#[test]
fn an_address_that_one_node_freed_rests_on_the_other() {
    for overlap_check in [true, false] {
        let desk = Desk::new(&v094());
        let [first, second] = ["node-1", "node-2"]
            .map(|name| node(&desk, name, "1h").with("overlapCheck", overlap_check));
        let before = first.address("c1");
        first.del("c1");
        assert_eq!(notes(&desk, POOL), 1);
        let other = second.address("c2");
        assert_ne!(other, before);
        // A repeated ADD, and one that asks for it, do not wait.
        assert_eq!(second.address("c2"), other);
        let asking = node(&desk, "node-2", "1h")
            .with("overlapCheck", overlap_check)
            .with_in_pools("requested-ip", before.split('/').next().unwrap());
        assert_eq!(asking.address("c3"), before);
        assert_eq!(notes(&desk, POOL), 0);
        // Without a cooldown the lowest is given.
        asking.del("c3");
        let plain = Node::of(&desk).with("overlapCheck", overlap_check);
        assert_eq!(plain.address("c4"), before);
    }
}

#[test]
fn a_full_pool_gives_what_was_freed_first() {
    let desk = Desk::new(&v094());
    let node = node(&desk, "node-1", "1h").with_subnets(&["10.1.3.0/29"]);
    let given: Vec<String> =
        ["a", "b", "c", "d", "e"].map(|container| node.address(container)).into();
    for container in ["d", "b", "e"] {
        node.del(container);
    }
    for (container, place) in [("f", 3), ("g", 1), ("h", 4)] {
        assert_eq!(node.address(container), given[place]);
    }
    assert_eq!(node.call("ADD", "i").json()["code"], 100);
    assert_eq!(notes(&desk, "10.1.3.0-29"), 0);
}

#[test]
fn an_add_removes_notes_of_addresses_that_have_rested() {
    let desk = Desk::new(&v094());
    let short = node(&desk, "node-1", "1ms");
    let before = short.address("c1");
    short.del("c1");
    assert_eq!(notes(&desk, POOL), 1);
    assert_eq!(short.address("c2"), before);
    assert_eq!(notes(&desk, POOL), 0);
}

#[test]
fn a_cooldown_sends_no_further_requests() {
    const GET: &str = "GET ippools/10.1.2.0-24 200";
    const PATCH: &str = "PATCH ippools/10.1.2.0-24 200";
    const RESERVE: &str = "POST overlappingrangeipreservations 201";
    let desk = Desk::new(&v094());
    let relay = desk.relayed();
    let node = node(&desk, "node-1", "1h");
    node.add("first");
    let mut result = Value::Null;
    assert_eq!(relay.during(|| result = node.add("c1")), [GET, PATCH, RESERVE]);
    let address = addresses(&result).swap_remove(0);
    let bare = address.split('/').next().unwrap();
    let delete = format!("DELETE overlappingrangeipreservations/{bare} 200");
    let del = || drop(node.del_known("c1", &result).success());
    assert_eq!(relay.during(del), [delete.as_str(), PATCH]);
    assert_eq!(notes(&desk, POOL), 1);
}

#[test]
fn a_pool_without_annotations_gets_them() {
    for by_add in [true, false] {
        let desk = Desk::new(&v094());
        let mut node = Node::of(&desk);
        node.add("c0");
        if by_add {
            node.ipam = json!({"cooldown": "1h"});
        }
        let before = node.address("c1");
        assert_eq!(annotations(&desk, POOL).is_empty(), !by_add);
        node.ipam = json!({"cooldown": "1h"});
        node.del("c1");
        assert_eq!(notes(&desk, POOL), 1);
        assert_ne!(node.address("c2"), before);
    }
}

#[test]
fn another_call_that_removes_the_same_note_takes_no_address_from_an_add() {
    let desk = Desk::new(&v094());
    let relay = desk.relayed();
    let node = node(&desk, "node-1", "1ms");
    let before = node.address("c1");
    node.del("c1");
    let name = annotations(&desk, POOL).into_keys().find(|name| name.contains("freed")).unwrap();
    let (client, path) = (desk.client.clone(), desk.objects().path(POOLS, POOL));
    relay.decide(move |ask| {
        if ask.method == "PATCH" && ask.body.contains("freed-") {
            client.patch(&path, &json!({"metadata": {"annotations": {&name: null}}}));
        }
        Fate::Pass
    });
    let mut given = String::new();
    let sent = relay.during(|| given = node.address("c2"));
    let expected = ["GET", "PATCH", "PATCH"].iter().zip([200, 422, 200]);
    let expected = expected.map(|(verb, status)| format!("{verb} ippools/10.1.2.0-24 {status}"));
    assert_eq!(sent[..3], expected.collect::<Vec<_>>());
    assert_eq!((sent.len(), given), (4, before));
}

#[test]
fn a_del_leaves_no_note_where_the_annotations_of_others_leave_no_room() {
    let desk = Desk::new(&v094());
    let node = node(&desk, "node-1", "1h");
    let result = node.add("c1");
    // Kubernetes keeps 256 KiB of annotations.
    let others = json!({"metadata": {"annotations": {"example.org/a": "x".repeat(262_090)}}});
    desk.patch(POOLS, POOL, &others);
    node.del_known("c1", &result).ended_well();
    assert_eq!((desk.held(), notes(&desk, POOL)), (Vec::new(), 0));
    assert_eq!(annotations(&desk, POOL)["example.org/a"].len(), 262_090);
}

#[test]
fn the_address_of_a_name_rests_once_it_is_free() {
    let desk = sticky_desk();
    let sticky = |keep: &str| {
        let node = desk.sticky_node("node-1", "web", keep).with_subnets(&["10.1.2.0/29"]);
        Node { ipam: json!({"cooldown": "1h"}), ..node }
            .with_in_pools("sticky", "web")
            .with_in_pools("keep", keep)
    };
    let plain = node(&desk, "node-2", "1h").with_subnets(&["10.1.2.0/29"]);
    let before = sticky("0s").address("c1");
    sticky("0s").del("c1");
    assert_eq!(notes(&desk, "10.1.2.0-29"), 1);
    assert_ne!(plain.address("c2"), before);
    // One that is kept does not rest for its name.
    let kept = sticky("1h").address("c3");
    sticky("1h").del("c3");
    assert_eq!(sticky("1h").address("c4"), kept);
    sticky("1h").del("c4");
    // A full pool gives what rests before it takes an address from a name.
    for container in ["c5", "c6"] {
        plain.add(container);
    }
    desk.client.patch(
        &desk.sticky_path("10.1.2.0-29.web"),
        &json!({"spec": {"keptUntil": "2026-01-01T00:00:00Z"}}),
    );
    assert_eq!(plain.address("c7"), before);
    assert_eq!(plain.address("c8"), kept);
    assert_eq!(plain.call("ADD", "c9").json()["code"], 100);
}

#[test]
fn notes_that_cannot_be_read_let_nothing_rest() {
    let desk = Desk::new(&v094());
    let node = node(&desk, "node-1", "1h");
    let before = node.address("c1");
    node.del("c1");
    let name = annotations(&desk, POOL).into_keys().find(|name| name.contains("freed")).unwrap();
    for text in ["", "2", "2 x", "x 7", "2 99999999999999999999"] {
        desk.patch(POOLS, POOL, &json!({"metadata": {"annotations": {&name: text}}}));
        assert_eq!(node.address("c1"), before, "{text}");
        node.del("c1");
    }
}

#[test]
fn twenty_nodes_at_once_lose_nothing_by_a_cooldown() {
    // With 1ms, each ADD removes notes.
    for cooldown in ["1h", "1ms"] {
        let desk = Desk::new(&v094());
        let nodes: Vec<Node> = (0..20)
            .map(|n| {
                node(&desk, &format!("node-{n}"), cooldown).patient().with_subnets(&["10.1.4.0/27"])
            })
            .collect();
        for _ in 0..3 {
            at_once(20, |n| drop(nodes[n].add(&format!("c{n}"))));
            desk.objects().assert_consistent();
            at_once(20, |n| nodes[n].del(&format!("c{n}")));
            assert_eq!(desk.held(), [""; 0]);
        }
    }
}

#[test]
fn what_an_old_node_writes_between_keeps_the_notes() {
    for release in [Release::V054, Release::V07, Release::V094, Release::Fork] {
        let site = Site::new(served(Some(release)));
        let range = "10.1.5.0/24";
        let mut ours = Ours::alone(&site, range);
        ours.network["ipam"]["cooldown"] = "1h".into();
        let before = ours.add("c1");
        ours.del("c1");
        let old = site.old(release, range);
        old_add(&old, "o1").run().unwrap();
        old_del(&old, "o1");
        old_add(&old, "o2").run().unwrap();
        let (next, further) = (ours.add("c2"), ours.add("c3"));
        // The old node may have taken the address itself.
        assert!(next != before && further != before, "{release:?}: {before} {next} {further}");
        old_del(&old, "o2");
        assert_ne!(ours.add("c4"), before, "{release:?}");
    }
}
