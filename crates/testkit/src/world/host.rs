//! A host of a test's own.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Outcome, World, start, wait};

/// A mount namespace of a test's own, with empty `/etc/cni`, `/var/lib/cni` and `/var/log/cni`.
pub struct Host {
    keeper: Child,
}

impl Host {
    /// Makes the namespace. Needs root: a test that cannot run fails.
    pub fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test mounts in a namespace of its own: run it as root (cargo test under sudo, or in a container with CAP_SYS_ADMIN)"
        );
        let script = "for d in /etc/cni /var/lib/cni /var/log/cni; do mkdir -p $d && mount -t tmpfs tmpfs $d || exit 1; done\n\
                      echo ready; exec cat >/dev/null";
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare of util-linux is needed");
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the namespace could not be made");
        Self { keeper }
    }

    /// A place in the namespace, seen from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.keeper.id()))
    }

    /// Runs shell in the namespace; it must succeed.
    #[track_caller]
    pub fn shell(&self, script: &str) {
        let output = self.enter("/bin/sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Writes the host-wide settings.
    pub fn settings(&self, settings: &Value) -> &Self {
        fs::write(self.path("/etc/cni/ipam-delegated.json"), settings.to_string()).unwrap();
        self
    }

    /// A program to run in the namespace.
    pub fn enter(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id())).arg(program);
        command
    }

    /// A call of `ipam-delegated` in the namespace, ready to be changed and started.
    pub fn command(&self, world: &World, verb: &str, container: &str) -> Command {
        let outside = world.command(verb, container);
        let mut command = self.enter(outside.get_program());
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Calls `ipam-delegated` in the namespace and waits.
    pub fn call(&self, world: &World, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.command(world, verb, container), network))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
