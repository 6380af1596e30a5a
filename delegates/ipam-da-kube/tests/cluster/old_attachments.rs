//! Attachments that an old release made, and that this delegate releases or checks.

use std::net::IpAddr;
use std::time::Duration;

use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{POOLS, Release};
use ipam_testkit::world::Outcome;
use serde_json::{Value, json};

use crate::common::Desk;
use crate::common::node::{Node, POOL, SUBNET, Sandbox};

/// A release on its CRDs, and a node of ours beside it.
struct Site {
    release: Release,
    desk: Desk,
    old: Whereabouts,
    node: Node,
}

impl Site {
    fn new(release: Release) -> Self {
        let desk = Desk::new(&release.crds());
        let range = json!({"range": SUBNET, "range_start": "10.1.2.1", "range_end": "10.1.2.99"});
        let old = Whereabouts::new(release, &desk.client, &desk.namespace, &range);
        // The fork has no reservations.
        let node = Node::of(&desk).with("overlapCheck", release != Release::Fork);
        Self { release, desk, old, node }
    }

    /// An ADD for a pod of this name.
    fn add(&self, container: &str, ifname: &str, pod: &str) -> IpAddr {
        self.old.add(container, ifname, &format!("ns/{pod}")).run().unwrap()[0]
    }

    fn call(&self, verb: &str, container: &str, ifname: &str, ips: &[IpAddr]) -> Outcome {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"address": format!("{ip}/24")})).collect();
        let sandbox = Sandbox { node: &self.node, container, ifname, pod: ("web-0", "u1") };
        sandbox.call_with(verb, &json!({"ips": ips}))
    }

    #[track_caller]
    fn del(&self, container: &str, ifname: &str, ips: &[IpAddr]) {
        assert_eq!(self.call("DEL", container, ifname, ips).success(), Value::Null);
    }

    fn left(&self) -> Vec<IpAddr> {
        self.desk.objects().held().into_iter().map(|held| held.address).collect()
    }
}

const RELEASES: [Release; 4] = [Release::V054, Release::V07, Release::V094, Release::Fork];

#[test]
fn a_del_releases_the_attachment_of_any_release_and_nothing_else() {
    for release in RELEASES {
        let site = Site::new(release);
        let other = site.add("c0", "eth0", "other");
        for ips in [true, false] {
            let held = site.add("c1", "eth0", "web-0");
            let ips = if ips { vec![held] } else { Vec::new() };
            site.del("c1", "eth0", &ips);
            assert_eq!(site.left(), [other], "{release:?}");
            // As a runtime repeats it.
            site.del("c1", "eth0", &ips);
            assert_eq!(site.left(), [other], "{release:?}");
        }
        site.del("c0", "eth0", &[]);
        assert_eq!(site.desk.held(), [""; 0], "{release:?}");
    }
}

#[test]
fn a_del_of_one_interface_of_two_leaves_the_other() {
    for release in RELEASES {
        let site = Site::new(release);
        let (first, second) = (site.add("c1", "eth0", "web-0"), site.add("c1", "net1", "web-0"));
        assert_ne!(first, second);
        site.del("c1", "net1", &[second]);
        assert_eq!(site.left(), [first], "{release:?}");
        // The result names another address for this interface, which is released already.
        site.del("c1", "net1", &[second]);
        assert_eq!(site.left(), [first], "{release:?}");
        let second = site.add("c1", "net1", "web-0");
        // Old releases remove the first entry with the id.
        let expected = if release == Release::V094 { first } else { second };
        site.del("c1", "net1", &[]);
        assert_eq!(site.left(), [expected], "{release:?}");
        site.del("c1", "eth0", &[expected]);
        assert_eq!(site.desk.held(), [""; 0], "{release:?}");
    }
}

#[test]
fn an_add_that_meets_an_entry_of_its_container_without_interface_takes_another_address() {
    let site = Site::new(Release::V094);
    let entry = json!({"1": {"id": "c1", "podref": "ns/c1"}});
    site.desk.objects().create_pool("", SUBNET, &entry);
    assert_eq!(pod(&site.node, "c1").address(), "10.1.2.2");
    // Nothing says whose the entry is: a DEL releases it when the interface has no other.
    site.del("c1", "eth0", &[]);
    assert_eq!(site.desk.held(), [format!("{POOL} 1 c1")]);
    site.del("c1", "eth0", &[]);
    assert_eq!(site.desk.held(), [""; 0]);
}

#[test]
fn a_del_goes_on_after_a_range_in_which_nothing_is_held() {
    let desk = Desk::new(&Release::V094.crds());
    desk.objects().create_pool("", SUBNET, &json!({}));
    let entry = json!({"1": {"id": "c1", "podref": "ns/c1", "ifname": "eth0"}});
    desk.objects().create_pool("", "fd00:1::/64", &entry);
    pod(&Node::of(&desk).with_subnets(&[SUBNET, "fd00:1::/64"]), "c1").del();
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_check_finds_an_attachment_by_its_pod_and_interface() {
    for release in RELEASES {
        let site = Site::new(release);
        let held = site.add("c1", "eth0", "web-0");
        site.call("CHECK", "c1", "eth0", &[held]).success();
        if release == Release::V094 {
            // The next sandbox of the pod: the old release has replaced the id.
            assert_eq!(site.add("c2", "eth0", "web-0"), held);
            site.call("CHECK", "c1", "eth0", &[held]).success();
            assert_eq!(site.call("CHECK", "c1", "net1", &[held]).failure().0, 104);
        }
        let other: IpAddr = "10.1.2.77".parse().unwrap();
        assert_eq!(site.call("CHECK", "c1", "eth0", &[other]).failure().0, 104, "{release:?}");
    }
}

#[test]
fn gc_never_touches_what_others_made() {
    for release in RELEASES {
        let site = Site::new(release);
        let theirs = [site.add("c1", "eth0", "web-0"), site.add("c2", "eth0", "other")];
        site.node.add("c3");
        let before = site.desk.held().len();
        site.desk.age(Duration::from_secs(7200));
        site.node.gc(&["c3"]).ended_well();
        assert_eq!(site.desk.held().len(), before, "{:?}", site.release);
        let other =
            Node::of(&site.desk).named("node-2").with("overlapCheck", release != Release::Fork);
        other.gc(&[]).ended_well();
        assert_eq!(site.desk.held().len(), before, "{:?}", site.release);
        site.node.del("c3");
        assert_eq!(site.left(), theirs, "{:?}", site.release);
    }
}

#[test]
fn a_del_without_record_and_pools_looks_through_the_pools_of_the_network() {
    for release in [Release::V07, Release::V094] {
        let mut site = Site::new(release);
        site.add("c1", "eth0", "web-0");
        site.node.pools = ipam_testkit::node::subnets(&["10.1.7.0/24"]);
        site.node.add("c1");
        let strange = json!({"9": {"id": "c1", "podref": "ns/web-0", "ifname": "eth0"}});
        site.desk.objects().create_pool("red", SUBNET, &strange);
        site.node.pools = json!([]);
        // The first releases what this node has noted, the second what others have made.
        site.del("c1", "eth0", &[]);
        site.del("c1", "eth0", &[]);
        assert_eq!(site.desk.held(), ["red-10.1.2.0-24 9 c1"], "{release:?}");
        // What is left is the container's, so the network has the name of its pool.
        let held = |key: &str| json!({key: {"id": "c1", "podref": "ns/web-0", "ifname": "eth0"}});
        site.desk.objects().create_pool("blue", SUBNET, &held("8"));
        let (code, text) = site.call("DEL", "c1", "eth0", &[]).failure();
        let pools = "several networks name the container c1: blue-10.1.2.0-24, red-10.1.2.0-24";
        assert!(code == 7 && text.contains(pools), "{release:?}: {code}: {text}");
        site.desk.patch(POOLS, "blue-10.1.2.0-24", &json!({"spec": {"allocations": {"8": null}}}));
        site.del("c1", "eth0", &[]);
        assert_eq!(site.desk.held(), [""; 0], "{release:?}");
    }
}

/// A sandbox, and a pod of its name.
fn pod<'a>(node: &'a Node, container: &'a str) -> Sandbox<'a> {
    Sandbox { node, container, ifname: "eth0", pod: (container, "u") }
}

#[test]
fn pods_with_both_families_move_between_old_nodes_and_ours() {
    let desk = Desk::new(&Release::V094.crds());
    let ranges = json!([{"range": SUBNET}, {"range": "fd00:1::/64"}]);
    let old = Whereabouts::new(Release::V094, &desk.client, &desk.namespace, &ranges);
    let node = Node::of(&desk).with_subnets(&[SUBNET, "fd00:1::/64"]);
    for round in 0..3 {
        let (ours, theirs) = (format!("c{round}"), format!("o{round}"));
        pod(&node, &ours).add();
        old.add(&theirs, "eth0", &format!("ns/{theirs}")).run().unwrap();
    }
    assert_eq!(desk.objects().held().len(), 12);
    desk.objects().assert_consistent();
    for round in 0..3 {
        let (ours, theirs) = (format!("c{round}"), format!("o{round}"));
        old.del(&ours, "eth0", &format!("ns/{ours}")).run().unwrap();
        pod(&node, &theirs).del();
    }
    assert_eq!(desk.held(), [""; 0]);
}
