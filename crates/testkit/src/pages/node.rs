//! A node on which the commands of a page on moving from a replaced plugin are run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Here, Page, copy, masked, root};
use crate::world::{Host, Outcome, binary, start, wait};

/// A node with the plugin and the network of a page, and a folder as a release archive has it.
pub struct Node {
    pub host: Host,
    pub page: Page,
    /// The first plugin of the network, as the runtime sends it.
    pub network: Value,
    archive: tempfile::TempDir,
    plugin: &'static str,
    /// The replaced program.
    original: Vec<u8>,
    here: Here,
}

impl Node {
    /// A node where this program is the plugin of that name.
    pub fn new(page: Page, plugin: &'static str, original: &Path, programs: &[&str]) -> Self {
        let archive = tempfile::TempDir::new().unwrap();
        let bin = archive.path().join("bin");
        fs::create_dir(&bin).unwrap();
        copy(&root().join("install.sh"), &archive.path().join("install.sh"));
        for name in programs {
            copy(&binary(name), &bin.join(name));
        }
        let host = Host::new();
        host.shell(
            "mkdir -p /opt/cni; mount -t tmpfs tmpfs /opt/cni; mkdir /opt/cni/bin /etc/cni/net.d",
        );
        copy(original, &host.path(&format!("/opt/cni/bin/{plugin}")));
        let original = fs::read(original).unwrap();
        let (here, network) = (Here::default(), Value::Null);
        let mut node = Self { host, page, network, archive, plugin, original, here };
        node.configure();
        node
    }

    /// With a server in place of the one that the page names, and variables by which commands find it.
    pub fn with_server(
        mut self,
        named: &'static str,
        url: &str,
        variables: &[(&'static str, &str)],
    ) -> Self {
        self.here.put(named, url);
        variables.iter().for_each(|(name, value)| self.here.set(name, value));
        self.configure();
        self
    }

    /// A text of the page that is another one here.
    pub fn with(mut self, text: &'static str, here: &str) -> Self {
        self.here.put(text, here);
        self
    }

    /// Writes the network of the page.
    fn configure(&mut self) {
        let conflist = self.here.text(self.page.first("json"));
        fs::write(self.host.path("/etc/cni/net.d/10-racknet.conflist"), &conflist).unwrap();
        let conflist: Value = serde_json::from_str(&conflist).unwrap();
        self.network = conflist["plugins"][0].clone();
        self.network["cniVersion"] = conflist["cniVersion"].clone();
        self.network["name"] = conflist["name"].clone();
    }

    /// A call as the main plugin makes it.
    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        self.call_of(&format!("/opt/cni/bin/{}", self.plugin), verb, container, network)
    }

    pub fn call_of(&self, program: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let mut command = self.host.enter(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/run/netns/none");
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(&mut command, Stdio::piped());
        }
        wait(start(command, network))
    }

    #[track_caller]
    pub fn add(&self, container: &str) -> Value {
        self.call("ADD", container, &self.network).success()
    }

    #[track_caller]
    pub fn del(&self, container: &str) {
        self.call("DEL", container, &self.network).success();
    }

    /// CHECK, in the first version that has it where the network's own has none.
    #[track_caller]
    pub fn check(&self, container: &str, result: &Value) {
        let mut network = self.network.clone();
        if network["cniVersion"] == "0.3.1" {
            network["cniVersion"] = "0.4.0".into();
        }
        network["prevResult"] = result.clone();
        self.call("CHECK", container, &network).success();
    }

    /// Whether the replaced program stands under its name.
    pub fn is_original(&self) -> bool {
        let installed = self.host.path(&format!("/opt/cni/bin/{}", self.plugin));
        fs::read(installed).is_ok_and(|bytes| bytes == self.original)
    }

    /// Runs the commands of a section in the folder of the archive; each prints what stands there.
    #[track_caller]
    pub fn follow(&self, heading: &str, kind: &str) {
        for (command, expected) in self.page.commands(heading, kind) {
            self.run(&command, &expected);
        }
    }

    #[track_caller]
    pub fn run(&self, command: &str, expected: &str) {
        let folder = self.archive.path();
        let printed = self.here.run(self.host.enter("/bin/sh"), folder, command);
        let printed = printed.replace(&format!("{}/", folder.display()), "");
        // install.sh also waits for the calls of other tests: their nodes have the same processes.
        // A test's state folder lies on a tmpfs, which lint warns of.
        let is_waiting =
            |line: &&str| line.contains("running calls") || line.contains("calls still run");
        let is_own = |line: &&str| !is_waiting(line) && !line.contains("tmpfs");
        // What install.sh proposes at its end is not a step, and pages have their own.
        let steps = printed.split("\nnext: ").next().unwrap_or_default();
        let printed: String = steps.split_inclusive('\n').filter(is_own).collect();
        assert_eq!(masked(&printed), masked(&self.here.text(expected)), "{command}");
    }

    /// What a program of ours prints for a person.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> String {
        let program = self.host.enter("/opt/cni/bin/ipam-delegated").args(arguments).output();
        let output = program.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text
    }

    /// Runs a command of the archive, whatever it prints.
    #[track_caller]
    pub fn in_archive(&self, command: &str) {
        self.host.shell(&format!("cd '{}'; {command}", self.archive.path().display()));
    }
}
