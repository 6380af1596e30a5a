//! GC, the verbs for people, kubectl and old nodes beside sticky leases.

use ipam_testkit::old::whereabouts::{Whereabouts, reconcile};
use ipam_testkit::whereabouts::Release;
use serde_json::{Value, json};

use crate::common::node::{Node, SUBNET};
use crate::common::sticky::{StickySandbox, kubectl, sticky_desk};

#[test]
fn gc_frees_the_names_of_containers_that_are_gone() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "web", "1h");
    let other = desk.sticky_node("node-2", "db", "0s");
    node.add("c1");
    other.add("c2");
    let plain = Node::of(&desk).named("node-1");
    plain.add("c3");
    plain.gc(&[]).ended_well();
    assert!(desk.sticky("web").unwrap()["spec"]["holder"].is_object(), "it is young");
    desk.age_holder("web");
    desk.age_holder("db");
    plain.gc(&["c1"]).ended_well();
    assert!(desk.sticky("web").unwrap()["spec"]["holder"].is_object(), "it is listed");
    plain.gc(&[]).ended_well();
    assert!(desk.sticky("web").unwrap()["spec"]["keptUntil"].is_string());
    assert!(desk.sticky("db").unwrap()["spec"]["holder"].is_object(), "it is another node's");
    // A node without its notes finds its names by the reservations.
    let blank = Node::of(&desk).named("node-2");
    blank.gc(&[]).ended_well();
    assert_eq!(desk.sticky("db"), None);
    desk.age(std::time::Duration::from_secs(7200));
    plain.gc(&[]).ended_well();
    assert_eq!(
        desk.held(),
        [
            "10.1.2.0-24 2 sticky:10.1.2.0-24.web:".to_owned()
                + desk.sticky("web").unwrap()["metadata"]["uid"].as_str().unwrap(),
            "10.1.2.2 sticky:10.1.2.0-24.web:".to_owned()
                + desk.sticky("web").unwrap()["metadata"]["uid"].as_str().unwrap(),
        ]
    );
}

#[test]
fn people_see_who_has_a_name_and_until_when_it_is_kept() {
    let desk = sticky_desk();
    let node = desk.sticky_node("node-1", "web", "1h");
    let plain = Node::of(&desk).named("node-1");
    node.add("c1");
    let told = plain.told(&["list"]);
    assert!(told.contains("10.1.2.2  -     c1         eth0    node-1"), "{told}");
    node.del("c1");
    let told = plain.told(&["list"]);
    let until = desk.sticky("web").unwrap()["spec"]["keptUntil"].as_str().unwrap().to_owned();
    assert!(told.contains("kept"), "{told}");
    assert!(told.contains(&format!("the sticky name web until {until}")), "{told}");
    assert!(plain.told(&["who", "10.1.2.2"]).contains("the sticky name web until"));
    plain.told(&["lint"]);
    plain.told(&["release", "10.1.2.2", "--yes"]);
    assert_eq!((desk.held(), desk.sticky("web")), (Vec::new(), None));
    // A person frees a name that is held, whatever it is kept for.
    node.add("c2");
    plain.told(&["release", "--node", "node-1", "--yes"]);
    assert_eq!((desk.held(), desk.sticky("web")), (Vec::new(), None));
    assert_eq!(node.call("DEL", "c2").exit, Some(0));
}

#[test]
fn kubectl_shows_name_address_and_holder() {
    let desk = sticky_desk();
    let uid = desk.create_pod("web-0", "n1");
    let node = desk.sticky_node("node-1", "web-0", "1h");
    StickySandbox::of_pod(&desk, &node, "c1", "web-0", &uid).add();
    let kept = desk.sticky_node("node-1", "web-1", "1h");
    kept.add("c2");
    kept.del("c2");
    let until = desk.sticky("web-1").unwrap()["spec"]["keptUntil"].as_str().unwrap().to_owned();
    let told = kubectl(desk.kube, &["get", "stickyleases", "-n", &desk.namespace]);
    let rows: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STICKY", "ADDRESS", "POD", "NODE", "KEPT", "UNTIL", "AGE"]);
    let pod = format!("{}/web-0", desk.namespace);
    assert_eq!(rows[1][..5], ["10.1.2.0-24.web-0", "web-0", "10.1.2.2", &pod, "node-1"]);
    assert_eq!(rows[2][..4], ["10.1.2.0-24.web-1", "web-1", "10.1.2.3", &until]);
}

#[test]
fn old_nodes_and_their_cleaners_leave_a_name_its_address() {
    let desk = sticky_desk();
    let uid = desk.create_pod("web-0", "n1");
    let node = desk.sticky_node("node-1", "web-0", "1h");
    let pod = StickySandbox::of_pod(&desk, &node, "c1", "web-0", &uid);
    let pod_name = format!("{}/web-0", desk.namespace);
    let old = |release| {
        let pause = std::time::Duration::from_millis(50);
        let range = json!({"range": SUBNET});
        Whereabouts::new(release, &desk.client, &desk.namespace, &range).pause(pause)
    };
    assert_eq!(pod.address(), "10.1.2.2");
    for is_kept in [false, true] {
        if is_kept {
            pod.del();
        }
        let before = desk.sticky("web-0").unwrap()["spec"].clone();
        for release in [Release::V07, Release::V094] {
            let container = format!("{release:?}-{is_kept}").to_lowercase();
            // Also for a pod of the holder's name.
            for podref in ["ns/other", &pod_name] {
                let given = old(release).add(&container, "eth0", podref).run().unwrap();
                assert_ne!(given[0].to_string(), "10.1.2.2", "{release:?} {podref}");
                old(release).del(&container, "eth0", podref).run().unwrap();
            }
            old(release).del("c1", "eth0", &pod_name).run().unwrap();
        }
        // Its nightly clean-up deletes the reservation, and the next ADD makes it again.
        reconcile(&desk.client, &desk.namespace, &[]);
        assert_eq!(desk.objects().held().len(), 1);
        assert_eq!(desk.sticky("web-0").unwrap()["spec"], before);
        assert_ne!(Node::of(&desk).named("node-2").address("plain"), "10.1.2.2");
        Node::of(&desk).named("node-2").del("plain");
        assert_eq!(pod.address(), "10.1.2.2");
        assert_eq!(desk.held().len(), 2, "{:?}", desk.held());
    }
    assert_ne!(desk.sticky("web-0").unwrap()["spec"]["holder"], Value::Null);
}
