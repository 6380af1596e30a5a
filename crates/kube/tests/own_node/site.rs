//! A node of a real Kubernetes API server, with a machine on which the example
//! `ipam-ds-node-ranges` asks for it: a process of its own for each call, with an environment and a
//! deadline.

use std::ops::Deref;
use std::process::Command;

pub use ipam_testkit::kube::{Kube, Kubeconfig, Node};
pub use ipam_testkit::machine::Machine;
pub use ipam_testkit::node_site::{NodeSite, by, subnets, without_override};
use ipam_testkit::world::{Outcome, binary};
use serde_json::{Value, json};

pub const PROGRAM: &str = "ipam-ds-node-ranges";

pub struct Site(NodeSite);

impl Deref for Site {
    type Target = NodeSite;

    fn deref(&self) -> &NodeSite {
        &self.0
    }
}

impl Site {
    /// A node of the server that all tests share, with these `podCIDRs`.
    #[track_caller]
    pub fn new(node: &str, cidrs: &[&str]) -> Self {
        Self::of(Kube::shared(), &Node::named(node).cidrs(cidrs))
    }

    #[track_caller]
    pub fn of(kube: &'static Kube, node: &Node) -> Self {
        Self(NodeSite::of(kube, node))
    }

    /// A machine whose node object is not there.
    #[track_caller]
    pub fn without_object(kube: &'static Kube, node: &str) -> Self {
        Self(NodeSite::without_object(kube, node))
    }

    /// What the chain gives to a selector; `stateDir` keeps this machine's own records out of it.
    pub fn network(&self) -> Value {
        json!({
            "cniVersion": "1.1.0",
            "name": "k8snet",
            "type": "bridge",
            "ipam": {
                "type": PROGRAM,
                "kubeconfig": self.kubeconfig_path(),
                "stateDir": self.world.path("state"),
                "nodeName": self.node,
            },
            "prevResult": {"cniVersion": "1.1.0", "ips": []},
        })
    }

    /// A call, ready to be changed and started.
    pub fn selecting(&self) -> Command {
        self.world.command_of(&binary(&format!("examples/{PROGRAM}")), "ADD", "c1")
    }

    #[track_caller]
    pub fn select(&self, network: &Value) -> Outcome {
        self.run(self.selecting(), network)
    }

    /// [`Site::select`] with a second and a half.
    #[track_caller]
    pub fn select_briefly(&self, network: &Value) -> Outcome {
        let mut command = self.selecting();
        command.env("IPAM_DELEGATED_DEADLINE_MS", "1500");
        self.run(command, network)
    }

    /// An ADD with little time fails with this code, tells all of this, and remembers nothing.
    #[track_caller]
    pub fn fails(&self, network: &Value, code: u64, parts: &[&str]) -> String {
        let (found, text) = self.select_briefly(network).failure();
        assert_eq!(found, code, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?}: {text}");
        }
        assert!(!self.memory("k8snet").exists());
        text
    }
}
