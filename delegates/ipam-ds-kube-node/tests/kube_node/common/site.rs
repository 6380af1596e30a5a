//! A node object with a machine.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ipam_testkit::kube::{Kube, Node};
use ipam_testkit::node_site::NodeSite;
use ipam_testkit::world::{Outcome, binary, host_local, with};
use serde_json::{Value, json};

use super::PROGRAM;

/// A node object, and a machine with the program, alone, in a chain, or as the preset `kube-node`.
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

    /// A node with a pod CIDR of each family.
    #[track_caller]
    pub fn dual(node: &str) -> Self {
        Self::new(node, &["11.0.1.0/24", "1100:0:0:1::/64"])
    }

    #[track_caller]
    pub fn of(kube: &'static Kube, node: &Node) -> Self {
        Self::on(NodeSite::of(kube, node))
    }

    /// A machine whose node object is not there.
    #[track_caller]
    pub fn without_object(kube: &'static Kube, node: &str) -> Self {
        Self::on(NodeSite::without_object(kube, node))
    }

    fn on(site: NodeSite) -> Self {
        let world = &site.world;
        world.install(Path::new(PROGRAM)).install(&binary("ipam-delegated"));
        world.install(&binary("ipam-da-local"));
        symlink("ipam-delegated", world.path("bin/kube-node")).unwrap();
        Self(site)
    }

    /// Puts Debian's host-local beside.
    pub fn with_host_local(self) -> Self {
        self.world.install(&host_local());
        self
    }

    /// What a network has that knows kube-node; `stateDir` keeps this machine's own records out of it.
    pub fn network(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "k8snet",
            "type": "bridge",
            "isDefaultGateway": true,
            "ipam": {
                "type": "kube-node",
                "kubeconfig": self.kubeconfig_path(),
                "dataDir": self.world.path("data"),
                "stateDir": self.world.path("state"),
                "nodeName": self.node,
            },
        })
    }

    /// The same network as a chain.
    pub fn chain(&self, delegates: Value) -> Value {
        let mut network = self.network();
        network["ipam"]["type"] = "ipam-delegated".into();
        network["ipam"]["delegates"] = delegates;
        network
    }

    /// The same network as the chain gives it to the selector.
    pub fn for_selector(&self) -> Value {
        of_selector(&self.network())
    }

    /// A call of the preset, ready to be changed and started.
    pub fn command(&self, verb: &str, container: &str) -> Command {
        self.command_of(&self.world.path("bin/kube-node"), verb, container)
    }

    /// A call of the selector alone.
    pub fn selecting(&self, verb: &str, container: &str) -> Command {
        self.command_of(Path::new(PROGRAM), verb, container)
    }

    fn command_of(&self, program: &Path, verb: &str, container: &str) -> Command {
        let mut command = self.world.command_of(program, verb, container);
        if matches!(verb, "GC" | "STATUS") {
            command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        command
    }

    /// Calls the preset.
    #[track_caller]
    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        self.run(self.command(verb, container), network)
    }

    /// Calls the preset for a pod with this `CNI_ARGS`.
    #[track_caller]
    pub fn call_with(&self, verb: &str, container: &str, args: &str, network: &Value) -> Outcome {
        let mut command = self.command(verb, container);
        command.env("CNI_ARGS", args);
        self.run(command, network)
    }

    /// Calls the selector alone, which gets the network as the chain would give it.
    #[track_caller]
    pub fn select(&self, network: &Value) -> Outcome {
        self.run(self.selecting("ADD", "c1"), &of_selector(network))
    }

    /// [`Site::call`] of a chain that has two seconds, for what is waited for in vain.
    #[track_caller]
    pub fn call_briefly(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        self.call(verb, container, &with(network, "timeout", "2s"))
    }

    /// [`Site::select`] with a second and a half.
    #[track_caller]
    pub fn select_briefly(&self, network: &Value) -> Outcome {
        let mut command = self.selecting("ADD", "c1");
        command.env("IPAM_DELEGATED_DEADLINE_MS", "1500");
        self.run(command, &of_selector(network))
    }

    /// All files below the folder of leases, with what they hold, by their path.
    pub fn data(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(&self.world.path("data"), "", &mut found);
        found
    }

    /// The addresses that are held in a network, with their owners.
    pub fn held(&self, network: &str) -> BTreeMap<String, String> {
        let prefix = format!("{network}/");
        let leases = self.data().into_iter().filter_map(|(path, owner)| {
            let name = path.strip_prefix(&prefix)?.to_owned();
            name.parse::<std::net::IpAddr>().is_ok().then_some((name, owner))
        });
        leases.collect()
    }

    /// Nothing was taken, noted or left: no lease, no cursor, nothing of kube-node's, and no delegate
    /// that would owe a DEL.
    #[track_caller]
    pub fn is_untouched(&self) {
        assert_eq!(self.data(), BTreeMap::new());
        for record in self.records().values() {
            assert!(!record.contains("\"running\"") && !record.contains("\"held\""), "{record}");
        }
        assert!(!self.memory("k8snet").exists());
    }

    /// What the records of attachments hold, by network, container and interface.
    pub fn records(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(&self.world.path("state/attachments"), "", &mut found);
        found
    }
}

/// A network as the chain gives it to the selector.
pub fn of_selector(network: &Value) -> Value {
    let mut network = network.clone();
    network["ipam"]["type"] = "ipam-ds-kube-node".into();
    network["prevResult"] = json!({"cniVersion": network["cniVersion"], "ips": []});
    network
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = [prefix, &name].concat();
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{path}/"), found);
        } else {
            found.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}
