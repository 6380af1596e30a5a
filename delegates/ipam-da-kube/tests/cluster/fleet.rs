//! One network of an unchanged NetworkAttachmentDefinition, on nodes that run releases of
//! whereabouts and nodes that run the preset `whereabouts`: while pods start and end, nodes move
//! over one by one, and back.
//!
//! Every day a small part of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, also under the
//! definitions of whereabouts 0.9.4.

use std::fs;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ipam_testkit::fleet::{Fleet, Node, OldProgram, PODS, SETTINGS, Store, network};
use ipam_testkit::kube::{Kube, Kubeconfig};
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{Crds, Entry, Objects, Release};
use ipam_testkit::world::full_size;
use serde_json::json;

/// A release of whereabouts. Its pods from the third on are attached twice, except up to 0.7: those
/// releases release any interface of a container.
struct Old(Whereabouts, Release);

impl OldProgram for Old {
    fn ifnames(&self, place: usize) -> &'static [&'static str] {
        let is_twice = self.1 == Release::V094 && place >= PODS / 2;
        if is_twice { &["net1", "net2"] } else { &["net1"] }
    }

    fn add(&self, container: &str, ifname: &str) -> Result<Vec<IpAddr>, String> {
        self.0.add(container, ifname, &pod(container)).run()
    }

    fn del(&self, container: &str, ifname: &str) {
        self.0.del(container, ifname, &pod(container)).run().unwrap();
    }
}

impl Store for Pools {
    fn holds(&self, container: &str, ifname: &str) -> bool {
        let is_its = |entry: &Entry| {
            entry.id == container && entry.ifname.as_ref().is_none_or(|name| name == ifname)
        };
        self.0.held().iter().any(|held| is_its(&held.entry))
    }

    fn assert_distinct(&self) {
        self.0.assert_distinct();
    }

    fn assert_empty(&self) {
        assert_eq!(self.0.held(), []);
        let mut left = self.0.reservations();
        // The other ones are of DELs of whereabouts that failed.
        left.retain(|_, object| object["metadata"]["annotations"].is_object());
        assert!(left.is_empty(), "{left:#?}");
    }
}

/// The objects of a namespace.
struct Pools(Objects);

fn pod(container: &str) -> String {
    format!("ns/pod-{container}")
}

/// A node for each release.
fn fleet(kube: &Kube, releases: &[Release]) -> Fleet<Pools> {
    let namespace = kube.create_namespace();
    let nodes = releases.iter().map(|release| node(kube, &namespace, *release));
    Fleet::new(nodes.collect(), Pools(Objects::of(kube, &namespace)))
}

/// A node with what the DaemonSet of whereabouts has put there.
fn node(kube: &Kube, namespace: &str, release: Release) -> Node {
    let old = Whereabouts::new(release, kube, namespace, &network()["ipam"]);
    let old = Old(old.pause(Duration::from_millis(200)), release);
    let flat_file = json!({
        "datastore": "kubernetes",
        "kubernetes": {"kubeconfig": format!("{SETTINGS}/whereabouts.kubeconfig")},
    });
    let node = Node::new(old, "ipam-da-kube", &network(), &flat_file);
    let more = json!({"contexts": [{"context": {"namespace": namespace}}]});
    let login = Kubeconfig::of(kube, &kube.admin()).more(&more);
    login.write(&node.host.path(SETTINGS).join("whereabouts.kubeconfig"));
    node
}

fn run(crds: &Crds, releases: &[Release], pods: usize) {
    let fleet = fleet(crds.served(), releases);
    fleet.run(pods);
    fleet.assert_sound();
}

#[test]
fn nodes_move_over_and_back_while_pods_start_and_end() {
    // A pod that is being replaced at a move may count for either program.
    let pods = if full_size() { 100 } else { PODS + 1 };
    run(&Crds::shipped(), &[Release::V094, Release::V07, Release::Fork], pods);
    if full_size() {
        run(&Release::V094.crds(), &[Release::V094; 4], pods);
    }
}

#[test]
fn a_fleet_ends_if_a_node_fails_or_an_address_has_two_holders() {
    let fails = |text: &str, plant: fn(&Fleet<Pools>)| {
        let fleet = fleet(Crds::shipped().served(), &[Release::V094; 2]);
        plant(&fleet);
        let panic = catch_unwind(AssertUnwindSafe(|| fleet.run(2))).unwrap_err();
        let panic = panic.downcast_ref::<String>().unwrap();
        assert!(panic.contains(text), "{panic}");
    };
    fails("a node has failed", |fleet| {
        fs::remove_file(fleet.nodes[0].world.path("bin/ipam-da-kube")).unwrap();
    });
    fails("is held twice", |fleet| {
        let entry = json!({"id": "planted", "podref": "ns/planted", "ifname": "net1"});
        // 192.168.2.200 in two pools.
        fleet.store.0.create_pool("", "192.168.2.128/25", &json!({"72": entry}));
        fleet.store.0.create_pool("", "192.168.2.192/26", &json!({"8": entry}));
    });
}
