//! Who gets the address of a sticky name, and when.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use ipam_testkit::kube::Node as NodeObject;
use ipam_testkit::node::addresses;
use ipam_testkit::whereabouts::POOLS;
use ipam_testkit::world::{start, wait};
use serde_json::{Value, json};

use crate::common::node::Node;
use crate::common::relay::Fate;
use crate::common::sticky::{StickySandbox, sticky_desk};
use crate::common::{Desk, end_turns};

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A desk with node objects of these names, which are its own.
fn desk_with(nodes: &[&str]) -> Desk {
    let desk = sticky_desk();
    for node in nodes {
        desk.client.create_node(&NodeObject::named(&desk.node_object(node)));
    }
    desk
}

impl Desk {
    fn node_object(&self, name: &str) -> String {
        format!("{name}.{}", self.namespace)
    }
}

/// The name of the container that the object of a name says.
fn holder(desk: &Desk, name: &str) -> Value {
    desk.sticky(name).unwrap()["spec"]["holder"]["container"].clone()
}

#[test]
fn a_name_keeps_its_address_until_its_time_is_over() {
    let desk = sticky_desk();
    let plain = Node::of(&desk).named("node-1");
    plain.add("first");
    let node = desk.sticky_node("node-1", "web-0", "1h");
    let uid = desk.create_pod("web-0", "n1");
    let pod = StickySandbox::of_pod(&desk, &node, "c1", "web-0", &uid);
    let added = pod.add();
    assert_eq!(addresses(&added), ["10.1.2.3"]);
    assert_eq!(desk.sticky("web-0").unwrap()["spec"]["address"], "10.1.2.3");
    assert_eq!(holder(&desk, "web-0"), "c1");
    // Scaled to 0, while others come and go.
    pod.del_known(&added);
    desk.force_delete_pod("web-0");
    assert_eq!(holder(&desk, "web-0"), Value::Null);
    assert_eq!(plain.address("second"), "10.1.2.4");
    plain.del("first");
    // Scaled up, on another node, whose network keeps nothing.
    let uid = desk.create_pod("web-0", "n2");
    let other = desk.sticky_node("node-2", "web-0", "0s");
    let pod = StickySandbox::of_pod(&desk, &other, "c2", "web-0", &uid);
    let added = pod.add();
    assert_eq!(addresses(&added), ["10.1.2.3"]);
    assert_eq!(addresses(&pod.add()), ["10.1.2.3"]);
    let check = pod.call_with("CHECK", &ipam_testkit::node::given(&added));
    assert_eq!(check.success(), Value::Null);
    pod.del();
    assert_eq!(desk.sticky("web-0"), None);
    assert_eq!(desk.held(), ["10.1.2.0-24 4 second", "10.1.2.4 second"]);
}

#[test]
fn a_second_replica_is_told_which_pod_has_the_name() {
    let desk = desk_with(&["n1"]);
    let [first, second] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "db", "1h"));
    let (a, b) = (desk.create_pod("a", &desk.node_object("n1")), desk.create_pod("b", "n2"));
    let a = StickySandbox::of_pod(&desk, &first, "c1", "a", &a);
    let b = StickySandbox::of_pod(&desk, &second, "c2", "b", &b);
    let added = a.add();
    let text = b.refused(11);
    let says = format!(
        "the sticky name \"db\" of 10.1.2.0-24, 10.1.2.2, is held by the pod {}/a, c1/eth0 of node node-1",
        desk.namespace
    );
    assert!(text.contains(&says), "{text}");
    // It would wait for itself.
    let more = StickySandbox { ifname: "net1", ..a };
    let own = "prevResult.pools[0].sticky: \"db\" is the name of another interface of this pod";
    assert!(more.refused(7).contains(own));
    assert_eq!(holder(&desk, "db"), "c1");
    assert_eq!(addresses(&a.add()), addresses(&added));
    // What fails for the second one leaves nothing to its DEL.
    b.del();
    more.del();
    assert_eq!(holder(&desk, "db"), "c1");
    a.del();
    assert_eq!(b.address(), "10.1.2.2");
}

#[test]
fn the_advice_names_the_taint_only_where_the_holder_has_a_node() {
    let desk = desk_with(&["n1"]);
    let cases = [("a", desk.node_object("n1"), true), ("b", String::new(), false)];
    for (name, node, names_taint) in cases {
        let [first, second] = ["node-1", "node-2"].map(|of| desk.sticky_node(of, name, "1h"));
        let later = format!("{name}-later");
        let (uid, later_uid) = (desk.create_pod(name, &node), desk.create_pod(&later, "n2"));
        StickySandbox::of_pod(&desk, &first, name, name, &uid).add();
        let later = StickySandbox::of_pod(&desk, &second, &later, &later, &later_uid);
        let text = later.refused(11);
        assert!(text.contains("has ended or is deleted"), "{text}");
        assert_eq!(text.contains("give the node the taint"), names_taint, "{text}");
    }
}

#[test]
fn a_pod_that_moves_while_its_node_is_not_ready_gets_the_address_once_its_object_is_deleted() {
    let desk = desk_with(&["n1"]);
    let [first, second] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web-0", "0s"));
    let uid = desk.create_pod("web-0", &desk.node_object("n1"));
    let old = StickySandbox::of_pod(&desk, &first, "c1", "web-0", &uid);
    let added = old.add();
    let lost = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    desk.client.patch_node(&desk.node_object("n1"), &json!({"spec": {"taints": lost}}));
    // The pod object terminates, and stays: a pod of another name gets nothing.
    desk.client.delete(&desk.pod_path("web-0"));
    let other = desk.create_pod("web-9", "n2");
    let other = StickySandbox::of_pod(&desk, &second, "c9", "web-9", &other);
    assert!(other.refused(11).contains("node.kubernetes.io/out-of-service"));
    // An operator deletes it by force, and the StatefulSet makes the next one.
    desk.force_delete_pod("web-0");
    let uid = desk.create_pod("web-0", "n2");
    let new = StickySandbox::of_pod(&desk, &second, "c2", "web-0", &uid);
    assert_eq!(addresses(&new.add()), addresses(&added));
    assert_eq!(holder(&desk, "web-0"), "c2");
    // The node comes back, and its runtime calls CHECK and DEL, with and without a record.
    let (code, _) = old.call_with("CHECK", &ipam_testkit::node::given(&added)).failure();
    assert_eq!(code, 104);
    let before = (desk.held(), desk.sticky("web-0"));
    old.del_known(&added);
    old.del();
    assert_eq!((desk.held(), desk.sticky("web-0")), before);
    first.gc(&[]).ended_well();
    assert_eq!((desk.held(), desk.sticky("web-0")), before);
    new.del();
    assert_eq!((desk.held(), desk.sticky("web-0")), (Vec::new(), None));
}

#[test]
fn a_node_that_is_out_of_service_or_deleted_ends_the_hold() {
    for is_deleted in [false, true] {
        let desk = desk_with(&["n1"]);
        let [first, second] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "db", "0s"));
        let (a, b) = (desk.create_pod("a", &desk.node_object("n1")), desk.create_pod("b", "n2"));
        let a = StickySandbox::of_pod(&desk, &first, "c1", "a", &a);
        let b = StickySandbox::of_pod(&desk, &second, "c2", "b", &b);
        a.add();
        b.refused(11);
        match is_deleted {
            true => desk.client.delete_node(&desk.node_object("n1")),
            false => {
                let label = json!({"metadata": {"labels": {OUT_OF_SERVICE: ""}}});
                desk.client.patch_node(&desk.node_object("n1"), &label);
            }
        }
        assert_eq!(b.address(), "10.1.2.2");
        assert_eq!(holder(&desk, "db"), "c2");
    }
}

#[test]
fn a_pod_that_has_ended_ends_the_hold() {
    let desk = desk_with(&["n1"]);
    let [first, second] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "db", "0s"));
    let (a, b) = (desk.create_pod("a", &desk.node_object("n1")), desk.create_pod("b", "n2"));
    StickySandbox::of_pod(&desk, &first, "c1", "a", &a).add();
    let b = StickySandbox::of_pod(&desk, &second, "c2", "b", &b);
    b.refused(11);
    let failed = json!({"status": {"phase": "Failed"}});
    desk.client.patch(&format!("{}/status", desk.pod_path("a")), &failed);
    assert_eq!(b.address(), "10.1.2.2");
}

#[test]
fn a_holder_is_not_gone_where_the_pods_are_of_another_cluster() {
    let desk = sticky_desk();
    let [first, second] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "db", "0s"));
    StickySandbox::of_pod(&desk, &first, "c1", "a", "uid-a").add();
    // By its own name, and by that of the holder, as a StatefulSet of another cluster has it.
    for (name, uid) in [("b", "uid-b"), ("a", "uid-c"), ("", "")] {
        let other = StickySandbox::of_pod(&desk, &second, "c2", name, uid);
        let text = other.refused(11);
        assert!(text.contains("needs its pods in the cluster of the leases"), "{text}");
        other.del();
        assert_eq!(holder(&desk, "db"), "c1");
    }
    let uid = desk.create_pod("b", "n2");
    let other = StickySandbox::of_pod(&desk, &second, "c2", "b", &uid);
    assert_eq!(other.address(), "10.1.2.2");
}

#[test]
fn the_next_sandbox_of_a_pod_takes_the_name_from_the_one_before() {
    let desk = desk_with(&["n1"]);
    let node = desk.sticky_node("node-1", "web-0", "1h");
    let uid = desk.create_pod("web-0", &desk.node_object("n1"));
    let old = StickySandbox::of_pod(&desk, &node, "c1", "web-0", &uid);
    let added = old.add();
    let new = StickySandbox { container: "c2", ..old };
    assert_eq!(addresses(&new.add()), addresses(&added));
    old.del_known(&added);
    assert_eq!(holder(&desk, "web-0"), "c2");
    // A call that began before the present sandbox is of an earlier one.
    let ahead = json!({"spec": {"holder": {"since": "2099-01-01T00:00:00Z"}}});
    desk.client.patch(&desk.sticky_path("10.1.2.0-24.web-0"), &ahead);
    let text = old.refused(11);
    for part in [
        "this call began before the present holder took the address: call again",
        "correct the clock of the node",
    ] {
        assert!(text.contains(part), "{text}");
    }
    desk.age_holder("web-0");
    // Of a runtime that names no uid.
    let bare = StickySandbox { container: "c3", pod: ("web-0", ""), ..new };
    assert_eq!(addresses(&bare.add()), addresses(&added));
    assert_eq!(StickySandbox { container: "c4", ..bare }.address(), addresses(&added)[0]);
    // On another node only a look at the pod tells whether the holder is an earlier pod of its name.
    let other = desk.sticky_node(&desk.node_object("n1"), "web-0", "1h");
    let moved = StickySandbox { node: &other, container: "c5", ..bare };
    assert_eq!(moved.address(), addresses(&added)[0]);
    let stale = StickySandbox { container: "c6", ..bare };
    assert!(stale.refused(11).contains("is held by"));
}

#[test]
fn an_add_of_an_earlier_sandbox_takes_nothing_back_within_the_same_second() {
    let desk = desk_with(&["n1"]);
    let uid = desk.create_pod("web-0", &desk.node_object("n1"));
    let node = desk.sticky_node("node-1", "web-0", "0s");
    end_turns(&node.world.path("state"));
    let relay = desk.relayed();
    let old = StickySandbox::of_pod(&desk, &node, "c1", "web-0", &uid);
    let new = StickySandbox { container: "c2", ..old };
    let later = Mutex::new(Some((new.command("ADD"), node.network())));
    relay.decide(move |ask| {
        let is_claim = ask.method == "POST" && ask.target.contains("stickyleases");
        let later = later.lock().unwrap().take_if(|_| is_claim);
        if let Some((command, network)) = later {
            wait(start(command, &network)).ended_well();
        }
        Fate::Pass
    });
    // All of it is within one second.
    while UNIX_EPOCH.elapsed().unwrap().subsec_millis() > 100 {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(old.refused(11).contains("this call began before the present holder"));
    assert_eq!(holder(&desk, "web-0"), "c2");
    old.del();
    assert_eq!(holder(&desk, "web-0"), "c2");
}

#[test]
fn a_reservation_that_an_earlier_holder_left_names_the_new_one() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "web", "1h");
    let (a, b) = (desk.create_pod("a", ""), desk.create_pod("b", ""));
    let a = StickySandbox::of_pod(&desk, &node, "c1", "a", &a);
    let result = a.add();
    a.del_known(&result);
    let none = json!({"spec": {"allocations": {"2": null}}});
    desk.patch(POOLS, "10.1.2.0-24", &none);
    assert_eq!(StickySandbox::of_pod(&desk, &node, "c2", "b", &b).address(), "10.1.2.2");
    let reservations = desk.objects().reservations();
    assert_eq!(reservations["10.1.2.2"]["spec"]["podref"], format!("{}/b", desk.namespace));
    desk.objects().assert_consistent();
}

#[test]
fn a_container_without_a_pod_has_the_name_until_its_del() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "vm", "1h");
    let [one, two] =
        ["c1", "c2"].map(|container| StickySandbox::of_pod(&desk, &node, container, "", ""));
    assert_eq!(one.address(), "10.1.2.2");
    let text = two.refused(11);
    assert!(text.contains("is held by c1/eth0 of node node-1"), "{text}");
    one.del();
    assert_eq!(two.address(), "10.1.2.2");
}

#[test]
fn replicas_that_are_scaled_down_and_up_at_once_get_one_address_each() {
    let desk = sticky_desk();
    const REPLICAS: usize = 6;
    let names: Vec<String> = (0..REPLICAS).map(|number| format!("web-{number}")).collect();
    let nodes: Vec<Node> =
        names.iter().map(|name| desk.sticky_node(&format!("node-{name}"), name, "1h")).collect();
    let round = |container: &str| -> Vec<String> {
        let given = std::sync::Mutex::new(vec![String::new(); REPLICAS]);
        ipam_testkit::node::at_once(REPLICAS, |number| {
            let name = &names[number];
            let uid = desk.create_pod(name, "n1");
            let container = format!("{container}-{number}");
            // A node that has not seen the earlier pod.
            let node = &nodes[(number + container.len()) % REPLICAS];
            let mut ipam = Node::of(&desk).named(&node.name).with_in_pools("sticky", name.as_str());
            ipam = ipam.with_in_pools("keep", "1h");
            let pod = StickySandbox::of_pod(&desk, &ipam, &container, name, &uid);
            given.lock().unwrap()[number] = pod.address();
            pod.del();
            desk.force_delete_pod(name);
        });
        given.into_inner().unwrap()
    };
    let first = round("a");
    let mut distinct = first.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), REPLICAS, "{first:?}");
    assert_eq!(round("bb"), first);
    assert_eq!(desk.objects().held().len(), REPLICAS);
    desk.objects().assert_consistent();
}

#[test]
fn of_replicas_that_come_at_once_one_gets_the_name() {
    const REPLICAS: usize = 6;
    for (before, keep) in [("new", "0s"), ("kept", "1h"), ("dead", "0s")] {
        let desk = desk_with(&["n1"]);
        let object = desk.node_object("n1");
        if before != "new" {
            let uid = desk.create_pod("before", &object);
            let node = desk.sticky_node("node-0", "db", keep);
            let earlier = StickySandbox::of_pod(&desk, &node, "c0", "before", &uid);
            earlier.add();
            match before {
                "kept" => earlier.del(),
                _ => desk.force_delete_pod("before"),
            }
        }
        let winners = std::sync::Mutex::new(Vec::new());
        ipam_testkit::node::at_once(REPLICAS, |number| {
            let (pod, container) = (format!("db-{number}"), format!("c{}", number + 1));
            let uid = desk.create_pod(&pod, &object);
            let node = desk.sticky_node(&format!("node-{number}"), "db", keep);
            let sandbox = StickySandbox::of_pod(&desk, &node, &container, &pod, &uid);
            let outcome = sandbox.call_with("ADD", &json!({}));
            if outcome.exit == Some(0) {
                winners.lock().unwrap().push((container, outcome.ips()));
            } else {
                let (code, text) = outcome.failure();
                assert!(code == 11 && text.contains("is held by"), "{before}: {code} {text}");
            }
        });
        let winners = winners.into_inner().unwrap();
        assert_eq!(winners.len(), 1, "{before}: {winners:?}");
        assert_eq!(holder(&desk, "db"), winners[0].0.as_str());
        let held = desk.objects().held();
        assert_eq!(held.len(), 1, "{before}: {held:?}");
        assert_eq!(winners[0].1, [format!("{}/24", held[0].address)]);
        desk.objects().assert_consistent();
    }
}
