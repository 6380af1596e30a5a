//! A pod whose sandbox is replaced without a DEL, as after a crash of its node.

use ipam_testkit::node::addresses;
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{Crds, RESERVATIONS, Release};
use serde_json::json;

use crate::common::node::{Node, SUBNET, Sandbox};
use crate::common::{Desk, v07, v094};

/// Whether the uid of the pod is kept where the next sandbox finds it.
type World = (fn() -> Crds, bool, bool);

const WORLDS: [World; 6] = [
    (v094, true, true),
    (v07, true, true),
    (Crds::shipped, true, true),
    (v094, false, false),
    (v07, false, false),
    (Crds::shipped, false, true),
];

fn sandbox<'a>(node: &'a Node, container: &'a str, ifname: &'a str, uid: &'a str) -> Sandbox<'a> {
    Sandbox { node, container, ifname, pod: ("web-0", uid) }
}

/// Runs a test in each world.
fn in_each_world(run: impl Fn(&Desk, &Node, bool)) {
    for (crds, overlap, is_kept) in WORLDS {
        let desk = Desk::new(&crds());
        let node = Node::of(&desk).with("overlapCheck", overlap);
        run(&desk, &node, is_kept);
        assert_eq!(desk.held(), [""; 0]);
    }
}

#[test]
fn the_next_sandbox_of_a_pod_has_its_addresses_and_the_late_del_frees_nothing() {
    in_each_world(|desk, node, is_kept| {
        let old = ["eth0", "net1"].map(|ifname| sandbox(node, "c1", ifname, "u1"));
        let new = ["eth0", "net1"].map(|ifname| sandbox(node, "c2", ifname, "u1"));
        let held = old.map(|sandbox| sandbox.add());
        assert_ne!(addresses(&held[0]), addresses(&held[1]));
        for number in 0..2 {
            let first = new[number].add();
            assert_eq!(addresses(&first) == addresses(&held[number]), is_kept);
            assert_eq!(addresses(&new[number].add()), addresses(&first));
        }
        let ids = || desk.objects().held().into_iter().map(|held| held.entry.id);
        assert_eq!(ids().filter(|id| id == "c2").count(), 2);
        assert_eq!(ids().filter(|id| id == "c1").count(), if is_kept { 0 } else { 2 });
        old[0].del_known(&held[0]);
        old[1].del();
        old[0].del();
        assert_eq!(ids().collect::<Vec<_>>(), ["c2", "c2"]);
        new.into_iter().for_each(|sandbox| sandbox.del());
    });
}

#[test]
fn a_late_del_of_one_interface_leaves_the_other() {
    in_each_world(|desk, node, _| {
        let [one, two] = ["eth0", "net1"].map(|ifname| sandbox(node, "c1", ifname, "u1"));
        let held = one.add();
        let other = two.address();
        one.del_known(&held);
        // As a runtime repeats it.
        one.del_known(&held);
        one.del();
        let left: Vec<_> = desk.objects().held().iter().map(|held| held.address).collect();
        assert_eq!(left, [other.parse::<std::net::IpAddr>().unwrap()]);
        two.del();
    });
}

#[test]
fn a_pod_of_another_uid_or_without_one_takes_another_address() {
    in_each_world(|_, node, _| {
        let pods = [("c1", "u1"), ("c2", "u2"), ("c3", ""), ("c4", "")];
        let sandboxes = pods.map(|(container, uid)| sandbox(node, container, "eth0", uid));
        let mut held: Vec<String> = sandboxes.iter().map(Sandbox::address).collect();
        held.sort();
        held.dedup();
        assert_eq!(held.len(), 4);
        sandboxes.iter().for_each(Sandbox::del);
    });
}

#[test]
fn a_pod_that_moved_to_another_node_takes_its_address_along() {
    let desk = Desk::new(&v094());
    let nodes = ["node-1", "node-2"].map(|name| Node::of(&desk).named(name));
    let old = sandbox(&nodes[0], "c1", "eth0", "u1");
    let new = sandbox(&nodes[1], "c2", "eth0", "u1");
    let held = old.add();
    assert_eq!(new.address(), addresses(&held)[0]);
    old.del_known(&held);
    desk.age(std::time::Duration::from_secs(7200));
    nodes[0].gc(&[]).ended_well();
    assert_eq!(desk.held(), ["10.1.2.0-24 2 c2", "10.1.2.2 c2"]);
    nodes[1].gc(&[]).ended_well();
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_node_that_lost_its_state_folder_releases_what_its_pods_held() {
    for (crds, overlap) in [(v094 as fn() -> Crds, true), (Crds::shipped, false)] {
        let desk = Desk::new(&crds());
        let [before, after] = ["uuid-1", "uuid-2"]
            .map(|name| Node::of(&desk).named(name).with("overlapCheck", overlap));
        let lost = sandbox(&before, "c1", "eth0", "u1");
        let address = lost.address();
        let held = desk.held();
        let other = Sandbox { pod: ("web-1", "u2"), ..sandbox(&after, "c1", "eth0", "u1") };
        for stays in
            [other, sandbox(&after, "c1", "net1", "u1"), sandbox(&after, "c2", "eth0", "u1")]
        {
            stays.del();
            assert_eq!(desk.held(), held);
        }
        let outcome = after.call("DEL", "c1");
        let told = format!("{address} stays held by c1 of node uuid-1: if this node had that name");
        assert!(outcome.stderr.contains(&told), "{outcome:?}");
        assert_eq!(desk.held(), held);
        sandbox(&after, "c1", "eth0", "u1").del();
        assert_eq!(desk.held(), [""; 0]);
    }
}

#[test]
fn a_lease_of_an_old_release_is_not_taken_over() {
    for release in [Release::V054, Release::V07, Release::V094] {
        let desk = Desk::new(&release.crds());
        let node = Node::of(&desk);
        let range = json!({"range": SUBNET});
        let old = Whereabouts::new(release, &desk.client, &desk.namespace, &range);
        let theirs = old.add("c1", "eth0", "ns/web-0").run().unwrap();
        let own = sandbox(&node, "c2", "eth0", "u1");
        assert_ne!(own.address(), theirs[0].to_string(), "{release:?}");
        own.del();
        old.del("c1", "eth0", "ns/web-0").run().unwrap();
        assert_eq!(desk.held(), [""; 0], "{release:?}");
    }
}

#[test]
fn a_call_that_began_before_a_later_sandbox_takes_another_address() {
    let desk = Desk::new(&v094());
    let node = Node::of(&desk);
    let [old, new] = ["c1", "c2"].map(|container| sandbox(&node, container, "eth0", "u1"));
    let result = new.add();
    let address = addresses(&result).swap_remove(0);
    let ahead = json!({"metadata": {"annotations": {"ipam-delegated/confirmed": "4070908800000"}}});
    desk.patch(RESERVATIONS, &address, &ahead);
    assert_ne!(old.address(), address);
    old.del();
    assert_eq!(desk.objects().held()[0].entry.id, "c2");
    new.del();
    assert_eq!(desk.held(), [""; 0]);
}
