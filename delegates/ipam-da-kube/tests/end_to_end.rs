//! The whole chain on nodes of a cluster: through Debian's bridge plugin, for pods with several
//! interfaces, for pods and nodes that go, and by the verbs for people.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use common::Desk;
use ipam_testkit::bridge::{BridgeHost, Pod, addresses};
use ipam_testkit::doorway::Doorway;
use ipam_testkit::node::at_once;
use ipam_testkit::whereabouts::{Crds, Release};
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// A node: its programs, and its state folder.
struct Node<'a> {
    desk: &'a Desk,
    world: World,
}

/// An interface of a pod, as a runtime names it.
#[derive(Clone, Copy)]
struct Interface<'a> {
    container: &'a str,
    name: &'a str,
    /// `K8S_POD_NAME` and `K8S_POD_UID`.
    pod: [&'a str; 2],
}

impl<'a> Node<'a> {
    fn new(desk: &'a Desk) -> Self {
        let world = World::new();
        for program in ["ipam-delegated", "ipam-ds-static", "ipam-da-kube"] {
            world.install(&binary(program));
        }
        Self { desk, world }
    }

    /// The network `net` with a pool of each of these subnets.
    fn network(&self, subnets: &[&str]) -> Value {
        let ranges: Value = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
        let mut network = self.world.network(json!(["ipam-ds-static", "ipam-da-kube"]));
        network["ipam"]["ranges"] = ranges;
        self.placed(network)
    }

    /// An example with the paths of this node.
    fn example(&self, name: &str) -> Value {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
        let conflist: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let mut network = conflist["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            network[key] = conflist[key].clone();
        }
        self.placed(network)
    }

    fn placed(&self, mut network: Value) -> Value {
        let ipam = &mut network["ipam"];
        ipam["stateDir"] = json!(self.world.path("state"));
        ipam["kube"]["kubeconfig"] = json!(self.desk.folder.path().join("kubeconfig"));
        network
    }

    /// Its identity, once it was called.
    fn id(&self) -> String {
        let node = fs::read_to_string(self.world.path("state/node")).unwrap();
        let node: Value = serde_json::from_str(&node).unwrap();
        node["uuid"].as_str().unwrap().to_owned()
    }

    fn call(&self, verb: &str, interface: Interface<'_>, network: &Value) -> Outcome {
        let mut command = self.world.command(verb, interface.container);
        interface.describe_in(&mut command);
        wait(start(command, network))
    }

    #[track_caller]
    fn add(&self, interface: Interface<'_>, network: &Value) -> Vec<IpAddr> {
        addresses(&self.call("ADD", interface, network).success(), "address")
    }

    /// GC of the chain that keeps no attachment, at any age.
    #[track_caller]
    fn collect(&self, network: &Value) {
        let host = Host::new();
        host.settings(&json!({"gcGrace": "0s"}));
        let mut network = network.clone();
        network["cniVersion"] = "1.1.0".into();
        network["cni.dev/valid-attachments"] = json!([]);
        let mut command = host.command(&self.world, "GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        wait(start(command, &network)).success();
    }
}

impl<'a> Interface<'a> {
    fn of(container: &'a str, name: &'a str) -> Self {
        Self { container, name, pod: ["web-0", "uid-0"] }
    }

    fn describe_in(self, command: &mut Command) {
        let [pod, uid] = self.pod;
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID={uid};K8S_POD_INFRA_CONTAINER_ID={}",
            self.container
        );
        command.env("CNI_IFNAME", self.name).env("CNI_ARGS", args);
    }
}

fn desk(release: Release) -> Desk {
    Desk::new(|_| release.crds())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The holder of each address: container and, where the definitions keep it, interface.
fn holders(desk: &Desk) -> BTreeMap<String, String> {
    let holder = |entry: &ipam_testkit::whereabouts::Entry| {
        let ifname = entry.ifname.as_ref().map(|name| format!("/{name}"));
        format!("{}{}", entry.id, ifname.unwrap_or_default())
    };
    let held = desk.objects().held();
    held.iter().map(|held| (held.address.to_string(), holder(&held.entry))).collect()
}

/// Nothing is held: neither an entry nor a reservation is left.
#[track_caller]
fn assert_empty(desk: &Desk) {
    assert!(desk.objects().held().is_empty(), "{:?}", holders(desk));
    assert!(desk.objects().reservations().is_empty(), "{:?}", desk.objects().reservations());
}

#[test]
fn the_example_connects_pods_over_both_families() {
    let desk = Desk::new(Crds::shipped);
    let node = Node::new(&desk);
    let network = node.example("75-ipam-delegated-kube.conflist");
    let host = BridgeHost::new(&node.world);
    let _way = Doorway::inside(&host.outside.path(), desk.served.address());
    let pods = ["web", "db"].map(|name| Pod::new(name).in_namespace("shop"));
    let add = |pod: &Pod| host.call("ADD", pod, &network).success();
    let given = [add(&pods[0]), add(&pods[1])];
    let held = [["10.225.0.2", "fd00:225::2"], ["10.225.0.3", "fd00:225::3"]];
    for (result, held) in given.iter().zip(held) {
        assert_eq!(addresses(result, "address"), held.map(ip));
        assert_eq!(addresses(result, "gateway"), ["10.225.0.1", "fd00:225::1"].map(ip));
    }
    for (pod, result) in pods.iter().zip(&given) {
        for (family, gateway) in [("-4", "10.225.0.1"), ("-6", "fd00:225::1")] {
            let routes = pod.namespace.run("ip", &[family, "route", "show", "default"]);
            assert!(routes.contains(&format!("via {gateway} ")), "{routes}");
            pod.namespace.ping(ip(gateway));
        }
        held.iter().flatten().for_each(|address| pod.namespace.ping(ip(address)));
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        host.call("CHECK", pod, &checked).success();
    }
    assert_eq!(holders(&desk).len(), 4);
    desk.objects().assert_consistent();
    for held in desk.objects().held() {
        assert_eq!(held.entry.podref, Some(format!("shop/{}", held.entry.id)));
    }

    for pod in &pods {
        // A runtime may call twice.
        for _ in 0..2 {
            host.call("DEL", pod, &network).success();
        }
    }
    assert_empty(&desk);
    assert_eq!(host.ports("pod0"), 0);
    assert_eq!(addresses(&add(&pods[1]), "address"), held[0].map(ip));
    host.call("DEL", &pods[1], &network).success();
    assert_empty(&desk);
}

#[test]
fn networks_on_one_pool_give_distinct_addresses_and_release_their_own() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let [node, other] = &nodes;
    let named = |node: &Node<'_>, name: &str| {
        let mut network = node.network(&["10.1.0.0/24"]);
        network["name"] = name.into();
        network
    };
    let (blue, red) = (named(node, "blue"), named(node, "red"));
    let [eth0, net1] = ["eth0", "net1"].map(|name| Interface::of("c1", name));
    for _ in 0..2 {
        assert_eq!(node.add(eth0, &blue), [ip("10.1.0.2")]);
        assert_eq!(node.add(net1, &red), [ip("10.1.0.3")]);
    }
    let elsewhere = Interface { pod: ["db-0", "uid-1"], ..Interface::of("c2", "eth0") };
    assert_eq!(other.add(elsewhere, &named(other, "blue")), [ip("10.1.0.4")]);
    desk.objects().assert_consistent();

    for _ in 0..2 {
        node.call("DEL", eth0, &blue).success();
    }
    assert_eq!(holders(&desk).keys().collect::<Vec<_>>(), ["10.1.0.3", "10.1.0.4"]);
    assert_eq!(node.add(eth0, &blue), [ip("10.1.0.2")]);
    node.collect(&blue);
    assert_eq!(holders(&desk).keys().collect::<Vec<_>>(), ["10.1.0.3", "10.1.0.4"]);
    desk.objects().assert_consistent();
    assert_eq!(node.add(net1, &red), [ip("10.1.0.3")]);
    node.collect(&red);
    assert_eq!(holders(&desk).keys().collect::<Vec<_>>(), ["10.1.0.4"]);
}

#[test]
fn interfaces_of_a_pod_in_one_network_hold_their_own_addresses_under_any_definitions() {
    for release in [Release::V094, Release::V07] {
        let desk = desk(release);
        for (i, overlap_check) in [true, false].into_iter().enumerate() {
            let node = Node::new(&desk);
            let mut network = node.network(&[&format!("10.{i}.0.0/24"), &format!("fd00:{i}::/64")]);
            network["ipam"]["kube"]["overlapCheck"] = overlap_check.into();
            let [net1, net2] = ["net1", "net2"].map(|name| Interface::of("c1", name));
            let held = |n: u8| [ip(&format!("10.{i}.0.{n}")), ip(&format!("fd00:{i}::{n}"))];
            let all = |verb: &str| {
                for (interface, n) in [(net1, 2), (net2, 3)] {
                    let mut network = network.clone();
                    if verb == "CHECK" {
                        let [v4, v6] = held(n);
                        let ips = [format!("{v4}/24"), format!("{v6}/64")];
                        let ips = ips.map(|address| json!({"address": address}));
                        network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": ips});
                    }
                    let result = node.call(verb, interface, &network).success();
                    assert!(verb == "CHECK" || addresses(&result, "address") == held(n));
                }
            };
            all("ADD");
            all("ADD");
            all("CHECK");
            // A DEL of one, also repeated, leaves the other.
            for (gone, kept, n) in [(net1, net2, 3), (net2, net1, 2)] {
                for _ in 0..2 {
                    node.call("DEL", gone, &network).success();
                }
                let of_round: Vec<IpAddr> =
                    desk.objects().held().iter().map(|held| held.address).collect();
                assert_eq!(of_round, held(n), "{release:?} {overlap_check}");
                assert_eq!(node.add(kept, &network), held(n));
                assert_eq!(node.add(gone, &network), held(5 - n));
                all("CHECK");
            }
            for interface in [net1, net2] {
                node.call("DEL", interface, &network).success();
            }
            assert_empty(&desk);
        }
    }
}

#[test]
fn a_pod_that_moves_keeps_its_addresses_and_the_late_del_of_its_node_frees_nothing() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let networks = nodes.each_ref().map(|node| node.network(&["10.1.0.0/24", "fd00:1::/64"]));
    let [before, after] = ["c1", "c2"].map(|container| Interface::of(container, "eth0"));
    let given = nodes[0].add(before, &networks[0]);
    assert_eq!(nodes[1].add(after, &networks[1]), given);
    desk.objects().assert_consistent();
    let state = || (desk.objects().pools(), desk.objects().reservations());
    let moved = state();
    let annotations = &moved.1["10.1.0.2"]["metadata"]["annotations"];
    assert_eq!(annotations["ipam-delegated/node"], nodes[1].id());
    assert_eq!(annotations["ipam-delegated/container"], "c2");

    for _ in 0..2 {
        nodes[0].call("DEL", before, &networks[0]).success();
    }
    nodes[0].collect(&networks[0]);
    assert_eq!(state(), moved);
    assert_eq!(nodes[0].world.state_of("c1"), "none");
    // A pod of the same name that was made anew is another one.
    let anew = Interface { pod: ["web-0", "uid-1"], ..Interface::of("c3", "eth0") };
    assert_ne!(nodes[0].add(anew, &networks[0]), given);
    assert_eq!(nodes[1].add(after, &networks[1]), given);
    nodes[0].call("DEL", anew, &networks[0]).success();
    nodes[1].call("DEL", after, &networks[1]).success();
    assert_empty(&desk);
}

#[test]
fn many_attachments_of_a_node_end_at_once() {
    const ATTACHMENTS: usize = 250;
    const WORKERS: usize = 16;
    let desk = desk(Release::V094);
    let node = Node::new(&desk);
    let network = node.network(&["10.1.0.0/23"]);
    let numbers = Mutex::new(0..ATTACHMENTS);
    let call = |verb: &str, number: usize| {
        let (container, pod) = (format!("c{number}"), format!("web-{number}"));
        let interface = Interface { pod: [&pod, &container], ..Interface::of(&container, "eth0") };
        node.call(verb, interface, &network).success()
    };
    let began = Instant::now();
    at_once(WORKERS, |_| {
        loop {
            let Some(number) = numbers.lock().unwrap().next() else { return };
            call("ADD", number);
        }
    });
    println!("{ATTACHMENTS} ADDs, {WORKERS} at a time: {:?}", began.elapsed());
    assert_eq!(holders(&desk).len(), ATTACHMENTS);
    desk.objects().assert_consistent();
    let began = Instant::now();
    at_once(ATTACHMENTS, |number| drop(call("DEL", number)));
    println!("{ATTACHMENTS} DELs at once: {:?}", began.elapsed());
    assert_empty(&desk);
}
