//! `delegates/ipam-da-local/MOVING.md`, command by command, with host-local itself.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

#[path = "../src/presets.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program's own table, read for its sentences")]
mod presets;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::{Host, Outcome, binary, host_local, start, wait};

fn page() -> String {
    fs::read_to_string(root().join("delegates/ipam-da-local/MOVING.md")).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text below a heading.
fn section(heading: &str) -> String {
    let page = page();
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).expect(heading);
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The commands of the blocks of a kind below a heading, each with what it prints.
fn commands(heading: &str, kind: &str) -> Vec<(String, String)> {
    let section = section(heading);
    let opening = format!("\n```{kind}\n");
    let blocks = section.split(&opening).skip(1);
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in blocks.flat_map(|rest| rest.split("\n```").next().unwrap().lines()) {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push((command.to_owned(), String::new())),
            None => commands.last_mut().unwrap().1.extend([line, "\n"]),
        }
    }
    assert!(!commands.is_empty(), "{heading}");
    commands
}

/// A node with the plugins and the network of the page, and a folder as a release archive has it.
struct Node {
    host: Host,
    archive: tempfile::TempDir,
    network: Value,
}

impl Node {
    fn new() -> Self {
        let archive = tempfile::TempDir::new().unwrap();
        let bin = archive.path().join("bin");
        fs::create_dir(&bin).unwrap();
        copy(&root().join("install.sh"), &archive.path().join("install.sh"));
        for name in ["ipam-delegated", "ipam-ds-static", "ipam-da-local"] {
            copy(&binary(name), &bin.join(name));
        }
        let host = Host::new();
        host.shell(
            "mkdir -p /opt/cni; mount -t tmpfs tmpfs /opt/cni; mkdir /opt/cni/bin /etc/cni/net.d",
        );
        let before = section("Before");
        let conflist = before.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
        fs::write(host.path("/etc/cni/net.d/10-racknet.conflist"), conflist).unwrap();
        let conflist: Value = serde_json::from_str(conflist).unwrap();
        let mut network = conflist["plugins"][0].clone();
        network["cniVersion"] = conflist["cniVersion"].clone();
        network["name"] = conflist["name"].clone();
        let node = Self { host, archive, network };
        copy(&host_local(), &node.host.path("/opt/cni/bin/host-local"));
        node
    }

    /// A call as the main plugin makes it.
    fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        self.call_of("/opt/cni/bin/host-local", verb, container, network)
    }

    fn call_of(&self, program: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let mut command = self.host.enter(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/run/netns/none");
        for stream in [Command::stdout, Command::stderr] {
            stream(&mut command, std::process::Stdio::piped());
        }
        command.stdin(std::process::Stdio::piped());
        wait(start(command, network))
    }

    #[track_caller]
    fn add(&self, container: &str) -> Value {
        self.call("ADD", container, &self.network).success()
    }

    #[track_caller]
    fn del(&self, container: &str) {
        self.call("DEL", container, &self.network).success();
    }

    #[track_caller]
    fn check(&self, container: &str, result: &Value) {
        let mut network = self.network.clone();
        network["prevResult"] = result.clone();
        self.call("CHECK", container, &network).success();
    }

    /// Whether the real host-local stands under its name.
    fn is_original(&self) -> bool {
        let installed = fs::read(self.host.path("/opt/cni/bin/host-local"));
        installed.is_ok_and(|bytes| bytes == fs::read(host_local()).unwrap())
    }

    fn leases(&self) -> Vec<String> {
        let mut names = support::names(&self.host.path("/var/lib/cni/networks/racknet"));
        names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
        names
    }

    /// Runs the commands of a section in the folder of the archive; each prints what stands there.
    #[track_caller]
    fn follow(&self, heading: &str, kind: &str) {
        for (command, expected) in commands(heading, kind) {
            self.run(&command, &expected);
        }
    }

    #[track_caller]
    fn run(&self, command: &str, expected: &str) {
        let mut shell = self.host.enter("/bin/sh");
        shell.args(["-ec", &format!("cd '{}'; {command}", self.archive.path().display())]);
        let output = shell.env("LC_ALL", "C").output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let folder = format!("{}/", self.archive.path().display());
        let printed = String::from_utf8(output.stdout).unwrap().replace(&folder, "");
        // install.sh also waits for the calls of other tests: their nodes have the same processes.
        let is_own = |line: &&str| !line.contains("under way");
        let printed: String = printed.split_inclusive('\n').filter(is_own).collect();
        assert_eq!(plain(&printed), plain(expected), "{command}");
    }
}

/// A text without what differs from run to run: the width of columns, ages in seconds, the node.
fn plain(text: &str) -> Vec<Vec<String>> {
    let is_age = |word: &str| {
        let number = word.strip_suffix('s').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_node = |word: &str| {
        let lengths: Vec<usize> = word.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12]
    };
    let word = |word: &str| match word {
        age if is_age(age) => "AGE".to_owned(),
        node if is_node(node) => "NODE".to_owned(),
        other => other.to_owned(),
    };
    text.lines().map(|line| line.split_whitespace().map(word).collect()).collect()
}

fn copy(from: &Path, to: &Path) {
    // Not by this process: what it has open for writing, no other thread's child may run.
    let status = Command::new("cp").args([from, to]).status().unwrap();
    assert!(status.success());
}

/// From host-local to the preset and back, by one of the two ways the page shows.
fn there_and_back(kind: &str) {
    let node = Node::new();
    let before = node.add("before");
    node.follow("Before", "console");

    node.follow("Moving", kind);
    assert!(!node.is_original());
    node.check("before", &before);
    let after = node.add("after");
    node.check("after", &after);
    node.follow("Whether it worked", "console");
    node.del("before");
    assert_eq!(node.leases(), ["10.88.0.3", "fd00:88::3"]);
    let third = node.add("third");

    let back = &commands("Going back", kind)[..1];
    back.iter().for_each(|(command, expected)| node.run(command, expected));
    assert!(node.is_original());
    for (container, result) in [("after", after), ("third", third)] {
        node.check(container, &result);
        node.del(container);
    }
    assert!(node.leases().is_empty());
    assert_eq!(node.add("fourth")["ips"][0]["address"], "10.88.0.5/16");
    node.del("fourth");
}

#[test]
fn there_and_back_by_the_script() {
    there_and_back("console");
}

#[test]
fn there_and_back_by_hand() {
    there_and_back("console by hand");
}

#[test]
fn lint_shows_before_the_move_what_would_run() {
    let node = Node::new();
    node.host.shell(&format!("'{}/install.sh'", node.archive.path().display()));
    assert!(node.is_original());
    let lint = ["lint", "racknet"];
    let output = node.host.enter("/opt/cni/bin/ipam-delegated").args(lint).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for part in ["ipam-ds-static", "ipam-da-local", "the real host-local runs, not its preset"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_record_of_a_container_that_host_local_released_can_be_dropped() {
    let node = Node::new();
    node.add("before");
    node.follow("Moving", "console");
    node.add("after");
    let going_back = commands("Going back", "console");
    node.run(&going_back[0].0, &going_back[0].1);
    node.del("after");
    // Moved again.
    let (again, _) = &commands("Moving", "console")[0];
    node.host.shell(&format!("cd '{}'; {again}", node.archive.path().display()));
    for (command, expected) in &going_back[1..] {
        node.run(command, expected);
    }
    assert_eq!(node.leases(), ["10.88.0.2", "fd00:88::2"]);
}

#[test]
fn a_container_has_its_addresses_again_after_a_reboot() {
    let node = Node::new();
    let theirs = node.add("from-before");
    node.follow("Moving", "console");
    let ours = node.add("since");
    // A reboot takes the namespaces; podman calls ADD without a DEL, with a new one.
    assert_eq!(node.add("since"), ours);
    let again = node.add("from-before");
    assert_eq!(again["ips"], theirs["ips"]);
    // With the section `ipam` stripped of all but its type, as Multus does it.
    let mut stripped = node.network.clone();
    stripped["ipam"] = json!({"type": "host-local"});
    for container in ["since", "from-before"] {
        node.call("DEL", container, &stripped).success();
    }
    assert!(node.leases().is_empty());
}

#[test]
fn a_container_from_before_is_released_by_a_stripped_del() {
    let node = Node::new();
    node.add("before");
    node.follow("Moving", "console");
    let mut stripped = node.network.clone();
    stripped["ipam"] = json!({"type": "host-local"});
    node.call("DEL", "before", &stripped).success();
    assert!(node.leases().is_empty());
}

#[test]
fn both_at_once_give_different_addresses_and_release_each_others() {
    let node = Node::new();
    node.follow("Moving", "console");
    let original = "/opt/cni/bin/host-local.orig";
    let preset = "/opt/cni/bin/host-local";
    for number in 0..6 {
        let program = if number % 2 == 0 { original } else { preset };
        node.call_of(program, "ADD", &format!("c{number}"), &node.network).success();
    }
    assert_eq!(node.leases().len(), 12);
    for number in 0..6 {
        let program = if number % 2 == 0 { preset } else { original };
        node.call_of(program, "DEL", &format!("c{number}"), &node.network).success();
    }
    assert!(node.leases().is_empty());
    let mut chain = node.network.clone();
    let delegates = section("Both at once");
    let delegates = delegates.split("```json\n").nth(1).unwrap().split("\n```").next().unwrap();
    let delegates: Value = serde_json::from_str(&format!("{{{delegates}}}")).unwrap();
    chain["ipam"]["delegates"] = delegates["delegates"].clone();
    chain["ipam"]["type"] = json!("ipam-delegated");
    node.call_of("/opt/cni/bin/ipam-delegated", "ADD", "c7", &chain).success();
    let records = node.host.path("/var/lib/cni/ipam-delegated/attachments/racknet/c7/eth0");
    assert!(fs::read_to_string(records).unwrap().contains("host-local.orig"));
    node.call_of("/opt/cni/bin/ipam-delegated", "DEL", "c7", &chain).success();
    assert!(node.leases().is_empty());
}

#[test]
fn the_page_lists_what_the_preset_says_that_changes() {
    let section = section("What changes for you");
    let list = section.split("\n\n").find(|text| text.trim_start().starts_with("- ")).unwrap();
    // An item may go on in the next line.
    let list = list.trim().replace("\n  ", " ");
    let items: Vec<&str> = list.lines().map(|line| line.strip_prefix("- ").unwrap()).collect();
    assert_eq!(items, presets::HOST_LOCAL_DIFFERENCES);
}

/// What stands in the table under "When something is wrong" is what is said.
#[test]
fn a_link_without_its_delegates_says_what_is_missing() {
    let node = Node::new();
    let bin: PathBuf = node.host.path("/opt/cni/bin");
    copy(&binary("ipam-delegated"), &bin.join("ipam-delegated"));
    node.host.shell("ln -sfT ipam-delegated /opt/cni/bin/host-local");
    let (code, text) = node.call("ADD", "c1", &node.network).failure();
    assert!(code < 200 && text.contains("ipam-ds-static"), "{code}: {text}");
}
