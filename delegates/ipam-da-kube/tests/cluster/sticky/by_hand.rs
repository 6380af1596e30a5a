//! Objects of sticky names whose holder a person has edited.

use ipam_testkit::node::given;
use ipam_testkit::world::{start, wait};
use serde_json::json;

use crate::common::node::Node;
use crate::common::sticky::{StickySandbox, sticky_desk};

#[test]
fn a_holder_that_a_person_has_replaced_by_another_container_is_the_holder() {
    for keep in ["0s", "1h"] {
        let desk = sticky_desk();
        let [one, two] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web", keep));
        let (a, b) = (desk.create_pod("a", ""), desk.create_pod("b", ""));
        let old = StickySandbox::of_pod(&desk, &one, "c1", "a", &a);
        let new = StickySandbox::of_pod(&desk, &two, "c2", "b", &b);
        let added = old.add();
        let path = desk.sticky_path("10.1.2.0-24.web");
        let pod = format!("{}/b", desk.namespace);
        let holder = json!({"node": "node-2", "container": "c2", "pod": pod, "podUid": b});
        desk.client.patch(&path, &json!({"spec": {"holder": holder}}));
        let edited = (desk.held(), desk.sticky("web"));
        // The earlier one neither has it nor frees it.
        assert!(old.refused(11).contains("c2/eth0 of node node-2"), "{keep}");
        assert_eq!(old.call_with("CHECK", &given(&added)).failure().0, 104, "{keep}");
        old.del_known(&added);
        old.del();
        one.gc(&[]).ended_well();
        assert_eq!((desk.held(), desk.sticky("web")), edited, "{keep}");
        assert_eq!(new.address(), "10.1.2.2", "{keep}");
        new.del();
        assert_eq!(desk.held().is_empty(), keep == "0s");
        desk.objects().assert_consistent();
    }
}

#[test]
fn a_time_beside_a_holder_ends_nothing_while_the_holder_is_alive() {
    const FULL: &[&str] = &["10.1.2.0/30"];
    for keep in ["0s", "1h"] {
        let desk = sticky_desk();
        let node = desk.sticky_node("node-1", "web", keep).with_subnets(FULL);
        let node = node.with_in_pools("sticky", "web").with_in_pools("keep", keep);
        let plain = Node::of(&desk).named("node-2").with_subnets(FULL);
        let (a, b) = (desk.create_pod("a", ""), desk.create_pod("b", ""));
        let pod = StickySandbox::of_pod(&desk, &node, "c1", "a", &a);
        let other = StickySandbox::of_pod(&desk, &node, "c2", "b", &b);
        pod.add();
        let path = desk.sticky_path("10.1.2.0-30.web");
        let past = json!({"spec": {"keptUntil": "2026-01-01T00:00:00Z"}});
        desk.client.patch(&path, &past);
        assert_eq!(plain.call("ADD", "c3").failure().0, 100, "{keep}");
        assert!(other.refused(11).contains("is held by"), "{keep}");
        // The holder keeps it, and its DEL writes the time anew.
        assert_eq!(pod.address(), "10.1.2.2", "{keep}");
        desk.client.patch(&path, &past);
        pod.del();
        assert_eq!(desk.held().is_empty(), keep == "0s");
        let refused = wait(start(plain.command("ADD", "c4"), &plain.network()));
        assert_eq!(refused.exit == Some(0), keep == "0s", "{refused:?}");
    }
}
