//! Debian's bridge plugin on a host of a test's own, and pods that ping each other over it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::world::{Outcome, World, start, wait};

/// Where Debian's plugins lie.
pub const PLUGINS: &str = "/usr/lib/cni";

/// A network namespace, removed with all that is in it even when the test panics.
pub struct Namespace(String);

impl Namespace {
    #[track_caller]
    pub fn new(role: &str) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "network namespaces need root: run tests/run.sh as root"
        );
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let name = format!("ipamd-{role}-{}-{:x}", std::process::id(), since.subsec_nanos());
        run("ip", &["netns", "add", &name]);
        let this = Self(name);
        this.run("ip", &["link", "set", "lo", "up"]);
        this
    }

    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// Runs a program inside; it must succeed.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let net = format!("--net={}", self.path().display());
        run("nsenter", &[&[net.as_str(), program], arguments].concat())
    }

    #[track_caller]
    pub fn ping(&self, address: IpAddr) {
        // The first packet may be lost while an IPv6 address is tentative.
        self.run("ping", &["-c", "1", "-i", "0.2", "-w", "10", &address.to_string()]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program}: {error}: tests/run.sh installs what the tests need")
    });
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A pod: a container id and a network namespace.
pub struct Pod {
    pub id: &'static str,
    pub namespace: Namespace,
    /// `CNI_ARGS`.
    pub args: String,
}

impl Pod {
    pub fn new(id: &'static str) -> Self {
        Self { id, namespace: Namespace::new(id), args: String::new() }
    }

    /// In a Kubernetes namespace, as kubelet says it.
    pub fn in_namespace(self, name: &str) -> Self {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={name};K8S_POD_NAME={}", self.id);
        Self { args, ..self }
    }
}

/// A host of its own: its bridges and forwarding settings are not this machine's.
pub struct BridgeHost<'a> {
    pub outside: Namespace,
    world: &'a World,
}

impl<'a> BridgeHost<'a> {
    /// IPAM plugins come from the plugin folder of this world.
    #[track_caller]
    pub fn new(world: &'a World) -> Self {
        let bridge = Path::new(PLUGINS).join("bridge");
        assert!(
            bridge.exists(),
            "{} is missing: apt-get install containernetworking-plugins",
            bridge.display()
        );
        Self { outside: Namespace::new("host"), world }
    }

    /// Calls the bridge plugin as a runtime does.
    pub fn call(&self, verb: &str, pod: &Pod, network: &Value) -> Outcome {
        wait(start(self.command(verb, pod), network))
    }

    /// Such a call, ready to be changed and started.
    pub fn command(&self, verb: &str, pod: &Pod) -> Command {
        let mut command = self.world.command_of(Path::new("nsenter"), verb, pod.id);
        command
            .arg(format!("--net={}", self.outside.path().display()))
            .arg(Path::new(PLUGINS).join("bridge"))
            .env("CNI_PATH", format!("{}:{PLUGINS}", self.world.path("bin").display()))
            .env("CNI_NETNS", pod.namespace.path())
            .env("CNI_ARGS", &pod.args);
        command
    }

    /// The links of a bridge's ports.
    pub fn ports(&self, bridge: &str) -> usize {
        self.outside.run("ip", &["-o", "link", "show", "master", bridge]).lines().count()
    }
}

/// The addresses and gateways of a result, without prefix length.
#[track_caller]
pub fn addresses(result: &Value, key: &str) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().expect("ips");
    let parse = |text: &str| text.split('/').next().unwrap().parse().unwrap();
    ips.iter().filter_map(|ip| ip[key].as_str()).map(parse).collect()
}
