//! A node of a real cluster, on a host of a test's own, where the delegate and the preset are called.

#![allow(dead_code, clippy::unwrap_used, reason = "test support; each test file uses a part of it")]

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ipam_testkit::kube::{Kube, Kubeconfig, Login, Node};
use ipam_testkit::world::{Host, Outcome, World, binary, names, start, start_raw, wait};
use serde_json::{Value, json};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-ds-node-annotation");

/// Its name.
pub const SELECTOR: &str = "ipam-ds-node-annotation";

/// The preset.
pub const PRESET: &str = "node-annotation";

/// The annotation that networks name.
pub const ANNOTATION: &str = "example.com/ipvlan-ranges";

/// The host's own file.
pub const CONF: &str = "/etc/cni/node-annotation.conf";

/// A host with the preset, the delegate and our allocator, and its node object.
pub struct Site {
    pub world: World,
    pub host: Host,
    pub kube: &'static Kube,
    /// Who reads the node object, and nothing else.
    pub login: Login,
    pub node: String,
}

impl Site {
    /// A node whose annotation has this text. The API server is asked each time.
    #[track_caller]
    pub fn new(text: &str) -> Self {
        let site = Self::bare();
        site.kube.create_node(&Node::named(&site.node).annotation(ANNOTATION, text));
        site.conf(&json!({}));
        site
    }

    /// Without a node object and without a file.
    #[track_caller]
    pub fn bare() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let node = format!("node-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let kube = Kube::shared();
        let login = kube.user();
        kube.allow_reading_nodes(&login, &[&node]);
        let (world, host) = (World::new(), Host::new());
        symlink(binary("ipam-delegated"), world.path("bin/node-annotation")).unwrap();
        world.install(Path::new(PROGRAM)).install(&binary("ipam-da-local"));
        Kubeconfig::of(kube, &login).write(&world.path("kubeconfig"));
        host.settings(&json!({"stateDir": world.path("state")}));
        Self { world, host, kube, login, node }
    }

    /// Sets the annotation of the networks.
    #[track_caller]
    pub fn annotate(&self, text: &str) -> &Self {
        self.kube.annotate_node(&self.node, ANNOTATION, Some(text));
        self
    }

    /// Writes the host's own file, with these members beside those that lead to the node.
    pub fn conf(&self, more: &Value) -> &Self {
        let mut conf = json!({
            "kubeconfig": self.world.path("kubeconfig"), "nodeName": self.node, "cacheTtl": "0s",
        });
        for (key, value) in more.as_object().unwrap() {
            conf[key] = value.clone();
        }
        self.write_conf(&conf.to_string())
    }

    pub fn write_conf(&self, text: &str) -> &Self {
        fs::write(self.host.path(CONF), text).unwrap();
        self
    }

    /// A network that knows nothing of us.
    pub fn network(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge",
            "ipam": {"type": PRESET, "annotation": ANNOTATION},
        })
    }

    /// A network whose chain ends in this delegate.
    pub fn chain(&self, last: &str) -> Value {
        let mut network = self.network();
        network["ipam"]["type"] = "ipam-delegated".into();
        network["ipam"]["delegates"] = json!([SELECTOR, last]);
        network
    }

    /// A call of a program of the plugin folder on this host.
    pub fn command_of(&self, program: &Path, verb: &str, container: &str) -> Command {
        let mut outside = self.world.command_of(program, verb, container);
        if matches!(verb, "GC" | "STATUS") {
            outside.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        let mut command = self.host.enter(program);
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A call of the preset.
    pub fn command(&self, verb: &str, container: &str) -> Command {
        self.command_of(&self.preset(), verb, container)
    }

    pub fn preset(&self) -> PathBuf {
        self.world.path("bin/node-annotation")
    }

    /// The preset with the usual network.
    pub fn call(&self, verb: &str, container: &str) -> Outcome {
        self.call_with(verb, container, &self.network())
    }

    /// The preset, or `ipam-delegated` where the network has a chain of its own.
    pub fn call_with(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        let program = match network["ipam"]["type"].as_str() {
            Some("ipam-delegated") => binary("ipam-delegated"),
            _ => self.preset(),
        };
        wait(start(self.command_of(&program, verb, container), network))
    }

    /// The delegate alone, as the chain calls it.
    pub fn select(&self, network: &Value) -> Outcome {
        let mut network = network.clone();
        network["ipam"]["type"] = SELECTOR.into();
        network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": []});
        wait(start(self.command_of(Path::new(PROGRAM), "ADD", "c"), &network))
    }

    /// What a person types, with this on stdin.
    pub fn typed(&self, program: &Path, words: &[&str], stdin: &str) -> Outcome {
        wait(start_raw(self.typing(program, words), stdin.as_bytes()))
    }

    pub fn typing(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = self.host.enter(program);
        command.args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The addresses of a network that are held on this host.
    pub fn leases(&self, network: &str) -> Vec<String> {
        let mut names = names(&self.host.path("/var/lib/cni/networks").join(network));
        names.retain(|name| name.parse::<IpAddr>().is_ok());
        names
    }

    /// How often this host has asked the API server.
    pub fn asked(&self) -> usize {
        self.requests().len()
    }

    /// What this host has asked the API server.
    pub fn requests(&self) -> Vec<String> {
        self.kube
            .requests_of(&self.login.user)
            .iter()
            .map(ipam_testkit::kube::Request::line)
            .collect()
    }

    /// A program out of `CNI_PATH` that notes what it gets, see [`World::delegate`].
    pub fn elsewhere(&self, name: &str, body: &str) -> PathBuf {
        let script = format!("elsewhere-{name}");
        self.world.delegate(&script, body);
        fs::create_dir_all(self.world.path("elsewhere")).unwrap();
        let at = self.world.path("elsewhere").join(name);
        fs::rename(self.world.path("bin").join(script), &at).unwrap();
        at
    }
}
