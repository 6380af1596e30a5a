//! The whole chain on nodes of a cluster: through Debian's bridge plugin, for pods with several
//! interfaces, for pods and nodes that go, and by the verbs for people.

mod bridge;
mod deployed;
mod nodes;
mod pods;
mod verbs;
mod with_old_definitions;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use ipam_testkit::bridge::addresses;
use ipam_testkit::whereabouts::{Entry, Release};
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait, without};
use serde_json::{Value, json};

use crate::common::Desk;

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
        self.placed(without(&network, &["dataDir"]))
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
    Desk::new(&release.crds())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The holder of each address: container and, where the definitions keep it, interface.
fn holders(desk: &Desk) -> BTreeMap<String, String> {
    let holder = |entry: &Entry| {
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
