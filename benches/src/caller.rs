use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ipam_testkit::world::cni_command;
use serde_json::Value;

use crate::programs::Build;

/// ADD and DEL.
pub const VERBS: [&str; 2] = ["ADD", "DEL"];

/// What is timed, by its name in tables.
pub type Callers = BTreeMap<String, Caller>;

pub fn callers<const N: usize>(named: [(&str, Caller); N]) -> Callers {
    named.map(|(name, caller)| (name.to_owned(), caller)).into()
}

/// A program with all that a call of it needs: a plugin with its network, or a tool with arguments.
#[derive(Clone)]
pub struct Caller {
    /// The plugin folder.
    folder: PathBuf,
    program: PathBuf,
    /// `VERB` and `CONTAINER` stand for those of a call.
    arguments: Vec<String>,
    pub network: Value,
}

/// A plugin folder.
#[derive(Clone)]
pub struct Plugins(PathBuf);

impl Plugins {
    /// Makes the folder, with these programs of a build.
    pub fn new(folder: &Path, build: &Build, names: &[&str]) -> Self {
        fs::create_dir(folder).unwrap();
        let this = Self(folder.to_owned());
        for name in names {
            // As install.sh does.
            if *name == "ipam-ds-static" {
                symlink("ipam-delegated", this.0.join(name)).unwrap();
            } else {
                this.install(&build.program(name));
            }
        }
        this
    }

    /// As on a host: the kernel maps a file that was copied quicker than one the linker wrote.
    pub fn install(&self, program: &Path) {
        fs::copy(program, self.0.join(program.file_name().unwrap())).unwrap();
    }

    /// Adds a link of this name.
    pub fn link(self, name: &str, program: impl AsRef<Path>) -> Self {
        symlink(program, self.0.join(name)).unwrap();
        self
    }

    /// The plugin that a network names.
    pub fn plugin(&self, network: Value) -> Caller {
        let name = network["ipam"]["type"].as_str().unwrap();
        let program = self.0.join(name);
        Caller { folder: self.0.clone(), program, arguments: Vec::new(), network }
    }

    /// A program of the folder, or of another one by its path.
    pub fn tool(&self, program: impl AsRef<Path>, arguments: Vec<String>) -> Caller {
        let program = self.0.join(program);
        Caller { folder: self.0.clone(), program, arguments, network: Value::Null }
    }
}

impl Caller {
    pub fn name(&self) -> String {
        self.program.file_name().unwrap().display().to_string()
    }

    /// The same with another network.
    pub fn given(&self, network: Value) -> Self {
        Self { network, ..self.clone() }
    }

    /// The time from the start of a process to its end, with its answer read.
    pub fn call(&self, verb: &str, container: &str) -> Duration {
        self.answer(verb, container).0
    }

    /// The same, and the answer. The process must succeed.
    pub fn answer(&self, verb: &str, container: &str) -> (Duration, Vec<u8>) {
        let (mut command, stdin) = (self.command(verb, container), self.network.to_string());
        let began = Instant::now();
        let mut child = command.spawn().unwrap();
        // Some do not read it.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        let time = began.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command:?}: {text}");
        (time, output.stdout)
    }

    /// `VmHWM` of a process that strace holds up at its end, in KiB.
    pub fn peak_memory(&self, verb: &str) -> u64 {
        let call = self.command(verb, "memory");
        let mut command = Command::new("strace");
        // With -D it is our child that becomes the program.
        command
            .args(["-D", "-o", "/dev/null", "-e", "trace=exit_group"])
            .args(["-e", "inject=exit_group:delay_enter=300000"])
            .arg(call.get_program())
            .env_clear()
            .envs(call.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("strace: apt-get install strace");
        child.stdin.take().unwrap().write_all(self.network.to_string().as_bytes()).unwrap();
        let status = format!("/proc/{}/status", child.id());
        let mut peak = None;
        // One that has ended has no memory.
        while let Some(now) = high_water(&status) {
            peak = Some(now);
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{} {verb}: {text}", self.name());
        peak.expect("it ended at once")
    }

    fn command(&self, verb: &str, container: &str) -> Command {
        let argument = |text: &String| text.replace("VERB", verb).replace("CONTAINER", container);
        let mut command = cni_command(&self.program, &self.folder, verb, container);
        command.args(self.arguments.iter().map(argument)).stderr(Stdio::null());
        command
    }
}

fn high_water(status: &str) -> Option<u64> {
    let status = fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
