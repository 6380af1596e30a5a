//! podman with CNI: a network that names host-local is moved under running containers, and after a
//! reboot they start with the addresses that they had.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ipam_testkit::world::{World, binary, host_local, names};
use serde_json::json;

const PLUGINS: &str = "/usr/lib/cni";

/// A node of its own: network, `/run`, `/dev/shm` and `/var/lib/cni` are not this machine's.
struct Node {
    keeper: Child,
    world: World,
    containers: Vec<String>,
}

impl Node {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "podman's networks need root: run as root");
        for program in ["/usr/bin/podman", "/usr/sbin/runc", "/usr/bin/busybox"] {
            assert!(Path::new(program).exists(), "{program} is missing: tests/run.sh installs it");
        }
        assert!(host_local().exists());
        let world = World::new();
        for program in ["ipam-delegated", "ipam-ds-static", "ipam-da-local"] {
            world.install(&binary(program));
        }
        let mounts = ["/var/lib/cni", "/run", "/dev/shm"]
            .map(|place| format!("mkdir -p {place} && mount -t tmpfs tmpfs {place} || exit 1; "));
        let script =
            format!("{} ip link set lo up; echo ready; exec cat >/dev/null", mounts.concat());
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--net", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare of util-linux is needed");
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the namespaces could not be made");
        let node = Self { keeper, world, containers: Vec::new() };
        node.configure();
        node
    }

    /// A network for podman that knows host-local alone, and an image with busybox.
    fn configure(&self) {
        let network = json!({
            "cniVersion": "0.4.0",
            "name": "podnet",
            "plugins": [{
                "type": "bridge",
                "bridge": "br-podnet",
                "isGateway": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.97.0.0/24"}], [{"subnet": "fd97::/64"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        let folder = self.world.path("net.d");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("10-podnet.conflist"), network.to_string()).unwrap();
        let settings = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [{:?}, {PLUGINS:?}]\n\
             network_config_dir = {folder:?}\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n",
            self.world.path("bin"),
        );
        fs::write(self.world.path("containers.conf"), settings).unwrap();
        let bin = self.world.path("image/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy("/usr/bin/busybox", bin.join("busybox")).unwrap();
        for name in ["sleep", "ping"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        let (image, archive) = (self.world.path("image"), self.world.path("image.tar"));
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(image).arg("-cf").arg(&archive).arg(".");
        assert!(tar.status().unwrap().success());
        self.podman(&["import", archive.to_str().unwrap(), "box"]);
    }

    fn enter(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        for (option, kind) in [("mount", "mnt"), ("net", "net")] {
            command.arg(format!("--{option}=/proc/{}/ns/{kind}", self.keeper.id()));
        }
        command.arg(program).env("CONTAINERS_CONF", self.world.path("containers.conf"));
        command
    }

    fn try_podman(&self, arguments: &[&str]) -> Output {
        let mut command = self.enter("podman");
        command.arg("--root").arg(self.world.path("root")).args(["--storage-driver", "vfs"]);
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// What podman prints; it must succeed.
    #[track_caller]
    fn podman(&self, arguments: &[&str]) -> String {
        let output = self.try_podman(arguments);
        assert!(output.status.success(), "podman {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[track_caller]
    fn run(&mut self, name: &str) {
        self.run_on(name, "podnet");
    }

    #[track_caller]
    fn run_on(&mut self, name: &str, network: &str) {
        let image = ["box", "sleep", "1000"];
        let id = self
            .podman(&[&["run", "-d", "--name", name, "--network", network], &image[..]].concat());
        self.containers.push(id);
    }

    #[track_caller]
    fn addresses(&self, name: &str) -> [String; 2] {
        self.addresses_on(name, "podnet")
    }

    #[track_caller]
    fn addresses_on(&self, name: &str, network: &str) -> [String; 2] {
        ["IPAddress", "GlobalIPv6Address"].map(|key| {
            let field = format!("{{{{.NetworkSettings.Networks.{network}.{key}}}}}");
            self.podman(&["inspect", "-f", &field, name])
        })
    }

    #[track_caller]
    fn ping(&self, from: &str, to: &[String; 2]) {
        for address in to {
            self.podman(&["exec", from, "ping", "-c", "1", "-W", "10", address]);
        }
    }

    /// Kills what runs in a container, its monitor first, so that podman does not notice.
    fn kill(&self, container: &str) {
        for key in ["ConmonPid", "Pid"] {
            let output =
                self.try_podman(&["inspect", "-f", &format!("{{{{.State.{key}}}}}"), container]);
            let id: i32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0);
            if id > 1
                && let Some(id) = rustix::process::Pid::from_raw(id)
            {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
        }
    }

    /// What a reboot takes: processes, namespaces, links, and all that lies in memory.
    fn reboot(&self) {
        self.containers.iter().for_each(|container| self.kill(container));
        let script = "ip link del br-podnet\n\
                      for d in /run /dev/shm; do umount -l $d && mount -t tmpfs tmpfs $d; done";
        let output = self.enter("sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn move_to_preset(&self) {
        symlink("ipam-delegated", self.world.path("bin/host-local")).unwrap();
    }

    fn inside(&self, path: &str) -> std::path::PathBuf {
        format!("/proc/{}/root{path}", self.keeper.id()).into()
    }

    fn leases(&self) -> Vec<String> {
        let mut names = names(&self.inside("/var/lib/cni/networks/podnet"));
        names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
        names
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for container in &self.containers {
            self.kill(container);
            let _ = Command::new("find")
                .args(["/sys/fs/cgroup", "-depth", "-type", "d", "-name"])
                .arg(format!("libpod*{container}*"))
                .args(["-exec", "rmdir", "{}", ";"])
                .status();
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[test]
fn containers_start_after_a_reboot_with_the_addresses_that_they_had() {
    let mut node = Node::new();
    node.run("before");
    node.move_to_preset();
    node.run("after");
    let held = ["before", "after"].map(|name| node.addresses(name));
    assert_eq!(held[0], ["10.97.0.2", "fd97::2"]);
    assert_eq!(held[1], ["10.97.0.3", "fd97::3"]);
    node.ping("before", &held[1]);
    node.ping("after", &held[0]);

    node.reboot();
    // In another order than they came.
    for name in ["after", "before"] {
        node.podman(&["start", name]);
    }
    assert_eq!(["before", "after"].map(|name| node.addresses(name)), held);
    node.ping("before", &held[1]);
    node.podman(&["rm", "-f", "-t", "0", "before", "after"]);
    assert!(node.leases().is_empty());
    let records = node.inside("/var/lib/cni/ipam-delegated/attachments");
    let found = Command::new("find").arg(records).args(["-type", "f"]).output().unwrap();
    assert_eq!(String::from_utf8(found.stdout).unwrap(), "");
}

#[test]
fn with_host_local_itself_they_do_not() {
    let mut node = Node::new();
    node.run("before");
    node.reboot();
    let output = node.try_podman(&["start", "before"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("duplicate allocation is not allowed"), "{output:?}");
}

/// No container runs in it, so that its bridge is missing.
#[test]
fn a_new_network_avoids_the_subnet_of_the_preset_and_not_that_of_the_chain() {
    for (name, expected) in [("host-local", "10.89.1.0/24"), ("ipam-delegated", "10.89.0.0/24")] {
        let node = Node::new();
        let network = json!({"cniVersion": "0.4.0", "name": "first", "plugins": [{
            "type": "bridge", "bridge": "br-first", "isGateway": true,
            "ipam": {"type": name, "delegates": ["ipam-ds-static", "ipam-da-local"],
                "ranges": [[{"subnet": "10.89.0.0/24"}]]},
        }]});
        fs::write(node.world.path("net.d/20-first.conflist"), network.to_string()).unwrap();
        node.podman(&["network", "create", "second"]);
        let second = node.podman(&["network", "inspect", "second"]);
        assert!(second.contains(&format!("\"subnet\": \"{expected}\"")), "{name}: {second}");
    }
}

/// Files of `examples/`, as they are.
#[test]
fn the_networks_of_the_guide_run() {
    let mut node = Node::new();
    for (file, network, container, addresses) in [
        ("10-ipam-delegated-local", "racknet", "web", ["10.210.1.0", ""]),
        ("20-ipam-delegated-dual-stack", "dualnet", "dual", ["10.211.0.2", "fd00:211::2"]),
        ("30-ipam-delegated-two-allocators", "twostores", "two", ["10.212.0.2", "fd00:212::2"]),
    ] {
        let name = format!("{file}.conflist");
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        fs::copy(examples.join(&name), node.world.path("net.d").join(&name)).unwrap();
        node.run_on(container, network);
        assert_eq!(node.addresses_on(container, network), addresses);
    }
    node.podman(&["rm", "-f", "-t", "0", "web", "dual", "two"]);
    for folder in
        ["networks/racknet", "networks/dualnet", "networks/twostores", "outside/twostores"]
    {
        let mut left = names(&node.inside(&format!("/var/lib/cni/{folder}")));
        left.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
        assert_eq!(left, [""; 0], "{folder}");
    }
}
