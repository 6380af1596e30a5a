//! A shell that finds the programs of the workspace, for pages of an allocator.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{Here, masked};
use crate::world::{Outcome, World, binary, start, wait};

/// Where pages have their network.
pub const CONFLIST: &str = "/etc/cni/net.d/10-racknet.conflist";

/// A shell, and a world in which an allocator is called.
pub struct Shell {
    pub world: World,
    allocator: &'static str,
    here: Here,
}

impl Shell {
    /// With this allocator, and a file of the world's own in place of [`CONFLIST`].
    pub fn new(allocator: &'static str) -> Self {
        let world = World::new();
        for program in ["ipam-delegated", "ipam-ds-static", allocator] {
            world.install(&binary(program));
        }
        let mut shell = Self { world, allocator, here: Here::default() };
        shell.keep(CONFLIST);
        let plugins = shell.world.path("bin").display().to_string();
        shell.put("/opt/cni/bin", &plugins);
        shell
    }

    /// A variable by which commands find a server.
    pub fn set(&mut self, variable: &'static str, value: &str) {
        self.here.set(variable, value);
    }

    /// A text of a page that is another one here.
    pub fn put(&mut self, text: &'static str, here: &str) {
        self.here.put(text, here);
    }

    /// A file of a page that is one of the world's own here.
    pub fn keep(&mut self, file: &'static str) {
        self.put(file, &self.file(file));
    }

    /// Where a file of a page lies here.
    pub fn file(&self, file: &str) -> String {
        self.world.path(file.rsplit('/').next().unwrap()).display().to_string()
    }

    /// A call of a program by its name.
    pub fn call(&self, program: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let command = self.world.command_of(&self.world.path("bin").join(program), verb, container);
        wait(start(command, network))
    }

    /// A call of the allocator for an interface.
    pub fn call_for(&self, verb: &str, [container, ifname]: [&str; 2], network: &Value) -> Outcome {
        let program = self.world.path("bin").join(self.allocator);
        let mut command = self.world.command_of(&program, verb, container);
        command.env("CNI_IFNAME", ifname);
        wait(start(command, network))
    }

    /// What the allocator lists for a person, of this network.
    pub fn list(&self, network: &Value) -> Output {
        let file = self.file(CONFLIST);
        fs::write(&file, network.to_string()).unwrap();
        let mut list = Command::new(self.world.path("bin").join(self.allocator));
        list.args(["list", "--config", &file]).output().unwrap()
    }

    /// Runs each command, and compares what it prints.
    #[track_caller]
    pub fn try_all(&self, commands: &[(String, String)]) {
        for (command, expected) in commands {
            let mut shell = Command::new("sh");
            let path = format!("{}:/usr/bin:/bin", self.world.path("bin").display());
            shell.env_clear().env("PATH", path);
            let printed = self.here.run(shell, &self.world.path(""), command);
            assert_eq!(masked(&printed), masked(&self.here.text(expected)), "{command}");
        }
    }

    /// Restores a store in which two addresses are held, to when one was, and runs each of these
    /// two commands: the second lets addresses be given again. It gives the next one.
    #[track_caller]
    pub fn assert_reasserted<S>(
        &self,
        network: &Value,
        commands: &[(String, String)],
        snapshot: impl FnOnce() -> S,
        restore: impl FnOnce(&S),
        leases: impl Fn() -> Vec<String>,
    ) -> Vec<String> {
        let mut network = network.clone();
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.insert("type".to_owned(), json!("ipam-delegated"));
        ipam.insert("delegates".to_owned(), json!(["ipam-ds-static", self.allocator]));
        ipam.remove("node");
        let state = self.world.path("state");
        ipam.insert("stateDir".to_owned(), json!(state));
        let conf_dir = self.world.path("net.d");
        fs::create_dir(&conf_dir).unwrap();
        fs::write(conf_dir.join("10-racknet.conf"), network.to_string()).unwrap();
        let add = |container: &str| self.call("ipam-delegated", "ADD", container, &network);

        let first = add("3f9c1e").ips();
        assert!(first[0].ends_with(".2/16"), "{first:?}");
        let snapshot = snapshot();
        let second = add("77ab02").ips();
        assert!(second[0].ends_with(".3/16"), "{second:?}");
        restore(&snapshot);
        let (code, text) = add("c0ffee").failure();
        assert!(code == 11 && text.contains("ipam-delegated reassert"), "{code} {text}");

        assert_eq!(commands.len(), 2);
        for (command, _) in commands {
            let mut reassert = Command::new(self.world.path("bin/ipam-delegated"));
            reassert.args(command.split_whitespace().skip(1)).arg("--state-dir").arg(&state);
            reassert.arg("--conf-dir").arg(&conf_dir);
            reassert.arg("--cni-path").arg(self.world.path("bin"));
            let output = reassert.env_remove("CNI_COMMAND").output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
            let trusts = !command.contains("--claim-only");
            let leases = leases();
            assert_eq!(leases.len(), 2, "{leases:?}");
            let outcome = add("c0ffee");
            assert_eq!(outcome.exit == Some(0), trusts, "{command}: {outcome:?}");
        }
        add("c0ffee").ips()
    }
}
