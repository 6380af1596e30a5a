//! Networks without overlap check: what is known of a lease is in its entry or in a note.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ipam_testkit::node::{addresses, given};
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{Crds, Release};
use serde_json::{Value, json};

use crate::common::node::{Node, POOL, SUBNET, Sandbox, change_note};
use crate::common::{Desk, changing, v07, v094};

/// CRDs, and whether they keep this delegate's member of an entry.
type World = (fn() -> Crds, bool);

const WORLDS: [World; 2] = [(Crds::shipped, true), (v094, false)];

fn node(desk: &Desk, name: &str) -> Node {
    Node::of(desk).named(name).with("overlapCheck", false)
}

fn in_each_world(run: impl Fn(&Desk, [Node; 2], bool)) {
    for (crds, is_kept) in WORLDS {
        let desk = Desk::new(&crds());
        run(&desk, ["node-1", "node-2"].map(|name| node(&desk, name)), is_kept);
        assert!(desk.objects().reservations().is_empty());
    }
}

fn ids(desk: &Desk) -> Vec<String> {
    desk.objects().held().into_iter().map(|held| held.entry.id).collect()
}

fn note(node: &Node, container: &str) -> PathBuf {
    node.world.path(&format!("state/kube/net/owners/{container}:eth0"))
}

#[test]
fn leases_live_without_reservations() {
    in_each_world(|desk, [one, two], is_kept| {
        let held = one.add("c1");
        let entry = desk.objects().allocations(POOL).remove(&2).unwrap();
        assert_eq!(entry.more.contains_key("ipamDelegated"), is_kept);
        assert_eq!(two.address("c2"), "10.1.2.3");
        let again = one.add("c1");
        assert_eq!(addresses(&again), addresses(&held));
        one.check("c1", &again).success();
        if is_kept {
            assert_eq!(two.check("c1", &again).failure().0, 104);
        }
        one.del_known("c1", &again).success();
        one.del_known("c1", &again).success();
        one.del("c1");
        assert_eq!(ids(desk), ["c2"]);
        two.del("c2");
        assert_eq!(ids(desk), [""; 0]);
        assert!(!note(&one, "c1").exists() && !note(&two, "c2").exists());
    });
}

#[test]
fn a_late_del_frees_nothing_of_the_next_owner() {
    in_each_world(|desk, [one, two], _| {
        let held = one.add("c1");
        one.del_known("c1", &held).success();
        assert_eq!(addresses(&two.add("c2")), addresses(&held));
        one.del_known("c1", &held).success();
        one.del("c1");
        assert_eq!(ids(desk), ["c2"]);
    });
}

#[test]
fn gc_releases_what_this_node_took_and_no_attachment_needs() {
    in_each_world(|desk, [one, two], _| {
        let theirs = json!({"range": SUBNET});
        let old =
            Whereabouts::new(Release::V094, &desk.client, &desk.namespace, &theirs).overlap(false);
        old.add("old", "eth0", "ns/old").run().unwrap();
        for (node, container) in [(&one, "c1"), (&two, "c2"), (&one, "c3")] {
            node.add(container);
        }
        desk.age(Duration::from_secs(7200));
        for container in ["c1", "c3"] {
            let path = note(&one, container);
            change_note(&path, |noted| {
                noted["confirmed"] = (noted["confirmed"].as_u64().unwrap() - 7_200_000).into();
            });
        }
        one.gc(&["c3"]).ended_well();
        assert_eq!(ids(desk), ["old", "c2", "c3"]);
        one.gc(&["c3"]).ended_well();
        one.del("c3");
        two.del("c2");
        assert_eq!(ids(desk), ["old"]);
    });
}

#[test]
fn a_note_that_is_lost_or_wrong_is_never_believed_alone() {
    in_each_world(|desk, [one, _], _| {
        let held = one.add("c1");
        let other = one.add("c2");
        let path = note(&one, "c1");
        let right = fs::read_to_string(&path).unwrap();
        let stranger = addresses(&other)[0].clone();
        let wrong = [
            String::new(),
            "{".to_owned(),
            right.replace(&addresses(&held)[0], &stranger),
            right.replace("\"text\":\"", "\"text\":\"x"),
            right.replace(POOL, "no"),
        ];
        for text in wrong {
            match text.as_str() {
                "" => fs::remove_file(&path).unwrap(),
                text => fs::write(&path, text).unwrap(),
            }
            assert_eq!(addresses(&one.add("c1")), addresses(&held), "{text}");
            fs::write(&path, &text).unwrap();
            one.check("c1", &held).success();
            one.del("c1");
            assert_eq!(ids(desk), ["c2"], "{text}");
            assert_eq!(addresses(&one.add("c1")), addresses(&held), "{text}");
            fs::write(&path, &text).unwrap();
            one.del_known("c1", &held).success();
            assert_eq!(ids(desk), ["c2"], "{text}");
            assert_eq!(addresses(&one.add("c1")), addresses(&held), "{text}");
        }
        ["c1", "c2"].into_iter().for_each(|container| one.del(container));
        assert_eq!(ids(desk), [""; 0]);
    });
}

#[test]
fn leases_stay_while_definitions_come_and_go_that_keep_less() {
    let kube = changing();
    let sets: [fn() -> Crds; 3] = [Crds::shipped, v07, Crds::shipped];
    sets[0]().install_alone(&kube);
    let desk = Desk::on(&kube);
    let node = node(&desk, "node-1");
    let mut held: Vec<(String, Value)> = Vec::new();
    for (number, crds) in sets.into_iter().enumerate() {
        crds().install(&kube);
        for container in ["a", "b"].map(|name| format!("{name}{number}")) {
            let result = node.add(&container);
            held.push((container, result));
        }
        for (container, result) in &mut held {
            node.check(container, result).success();
            let again = node.add(container);
            assert_eq!(addresses(&again), addresses(result), "{number}: {container}");
            *result = again;
        }
        let (container, result) = held.remove(0);
        node.del_known(&container, &result).success();
        assert!(!ids(&desk).contains(&container), "{number}");
    }
    for (container, result) in held {
        node.del_known(&container, &result).success();
    }
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn an_add_to_an_empty_pool_is_undone_after_other_definitions_came() {
    let kube = changing();
    for sets in [[Crds::shipped, v07], [v07, Crds::shipped]] {
        sets[0]().install_alone(&kube);
        let desk = Desk::on(&kube);
        let node = node(&desk, "node-1");
        node.add("c1");
        node.del("c1");
        sets[1]().install(&kube);
        let mut undo = given(&node.add("c2"));
        undo["undo"] = true.into();
        node.call_with("DEL", "c2", &undo).success();
        assert_eq!(desk.held(), [""; 0]);
    }
}

#[test]
fn an_entry_whose_id_an_old_node_replaced_is_that_nodes() {
    in_each_world(|desk, [one, _], _| {
        let range = json!({"range": SUBNET});
        let old =
            Whereabouts::new(Release::V094, &desk.client, &desk.namespace, &range).overlap(false);
        let sandbox = Sandbox { node: &one, container: "c1", ifname: "eth0", pod: ("p", "u1") };
        let held = sandbox.add();
        let address = old.add("c2", "eth0", "ns/p").run().unwrap()[0].to_string();
        assert_eq!(address, addresses(&held)[0]);
        sandbox.del_known(&held);
        sandbox.del();
        assert_eq!(ids(desk), ["c2"]);
        desk.age(Duration::from_secs(7200));
        one.gc(&[]).ended_well();
        assert_eq!(ids(desk), ["c2"]);
        old.del("c2", "eth0", "ns/p").run().unwrap();
        assert_eq!(ids(desk), [""; 0]);
    });
}
