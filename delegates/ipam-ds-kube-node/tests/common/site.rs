//! A node object with a machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::PROGRAM;
use ipam_testkit::kube::{Grant, Kube, Kubeconfig, Login, Node};
use ipam_testkit::world::{Outcome, World, binary, host_local, start, wait, with};

/// A node object, and a machine with a login that may read this node and nothing else. Every test has
/// a name of its own for it.
pub struct Site {
    pub kube: &'static Kube,
    pub world: World,
    pub login: Login,
    pub node: String,
    _grant: Grant<'static>,
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
        kube.create_node(node);
        Self::without_object(kube, node.name())
    }

    /// A machine whose node object is not there.
    #[track_caller]
    pub fn without_object(kube: &'static Kube, node: &str) -> Self {
        let (world, login) = (World::new(), kube.user());
        let grant = kube.allow_reading_nodes(&login, &[node]);
        world.install(Path::new(PROGRAM)).install(&binary("ipam-delegated"));
        world.install(&binary("ipam-da-local"));
        symlink("ipam-delegated", world.path("bin/kube-node")).unwrap();
        let this = Self { kube, world, login, node: node.to_owned(), _grant: grant };
        this.kubeconfig().write(&this.kubeconfig_path());
        this
    }

    /// Puts Debian's host-local beside.
    pub fn with_host_local(self) -> Self {
        self.world.install(&host_local());
        self
    }

    pub fn kubeconfig_path(&self) -> PathBuf {
        self.world.path("kubeconfig")
    }

    /// The kubeconfig of this machine, to be changed and written.
    pub fn kubeconfig(&self) -> Kubeconfig {
        Kubeconfig::of(self.kube, &self.login)
    }

    /// Has the machine call this URL as its API server.
    pub fn calls(&self, url: &str) {
        self.kubeconfig().server(url).write(&self.kubeconfig_path());
    }

    /// Has the machine call nobody.
    pub fn calls_nobody(&self) {
        self.calls("https://127.0.0.1:1");
    }

    /// Has the machine call the real server again.
    pub fn calls_home(&self) {
        self.kubeconfig().write(&self.kubeconfig_path());
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

    /// Runs a call, which shows no secret.
    #[track_caller]
    pub fn run(&self, command: Command, network: &Value) -> Outcome {
        let outcome = wait(start(command, network));
        self.tells_no_secret(&outcome.stdout);
        self.tells_no_secret(&outcome.stderr);
        outcome
    }

    #[track_caller]
    pub fn tells_no_secret(&self, text: &str) {
        assert!(!text.contains(self.login.token().unwrap()), "{text}");
    }

    /// What the server was asked by this machine's login, as `VERB PATH CODE`.
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        let requests = self.kube.requests_of(&self.login.user);
        requests.iter().map(ipam_testkit::kube::Request::line).collect()
    }

    /// How many requests come while something is done.
    #[track_caller]
    pub fn requests_during<T>(&self, done: impl FnOnce() -> T) -> (usize, T) {
        let before = self.requests().len();
        let result = done();
        (self.requests().len() - before, result)
    }

    /// What the selector remembers of a network.
    pub fn memory(&self, network: &str) -> PathBuf {
        self.world.path("state/kubernetes/networks").join(network)
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
