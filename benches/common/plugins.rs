use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::VERBS;
use super::programs::Build;
use super::times::Times;

/// A plugin folder, and calls of what is in it.
pub struct Plugins {
    folder: PathBuf,
}

impl Plugins {
    /// Makes the folder, with these programs of a build, `hello`, and a link of this name, if any.
    pub fn new(folder: &Path, build: &Build, names: &[&str], link: Option<(&str, &Path)>) -> Self {
        fs::create_dir(folder).unwrap();
        let this = Self { folder: folder.to_owned() };
        for name in names {
            this.install(&build.folder.join(name));
        }
        if let Some((name, program)) = link {
            symlink(program, folder.join(name)).unwrap();
        }
        let hello = build.folder.join("hello");
        build.compile_hello(&hello);
        this.install(&hello);
        this
    }

    /// As on a host: the kernel maps a file that was copied quicker than one the linker wrote.
    pub fn install(&self, program: &Path) {
        fs::copy(program, self.folder.join(program.file_name().unwrap())).unwrap();
    }

    /// The time from the start of a process to its end, with its answer read.
    pub fn call(&self, program: &str, verb: &str, container: &str, network: &Value) -> Duration {
        measure(self.command(program, verb, container), &network.to_string()).0
    }

    /// One ADD and one DEL.
    #[allow(dead_code, reason = "not every benchmark does")]
    pub fn pair(&self, program: &str, network: &Value, container: &str, times: &mut [Times; 2]) {
        for (verb, times) in VERBS.iter().zip(times) {
            times.push(self.call(program, verb, container, network));
        }
    }

    /// As many bare processes, one after another.
    pub fn bare(&self, processes: u32) -> Duration {
        (0..processes).map(|_| self.call("hello", "", "", &Value::Null)).sum()
    }

    /// `VmHWM` of a process that strace holds up at its end, in KiB.
    pub fn peak_memory(&self, program: &str, verb: &str, container: &str, network: &Value) -> u64 {
        let call = self.command(program, verb, container);
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
        child.stdin.take().unwrap().write_all(network.to_string().as_bytes()).unwrap();
        let status = format!("/proc/{}/status", child.id());
        let mut peak = None;
        // One that has ended has no memory.
        while let Some(now) = high_water(&status) {
            peak = Some(now);
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program} {verb}: {text}");
        peak.expect("it ended at once")
    }

    pub fn command(&self, program: &str, verb: &str, container: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", &self.folder)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/run/netns/none")
            .stdin(Stdio::piped())
            .stderr(Stdio::null());
        command
    }
}

/// The time of a process that must succeed, from its start to its end, and what it printed.
pub fn measure(mut command: Command, stdin: &str) -> (Duration, Vec<u8>) {
    command.stdout(Stdio::piped());
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

/// A folder for leases and state: in memory where there is such a place, or in `BENCH_DIR`.
pub fn state_folder() -> TempDir {
    let memory = || Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir());
    let chosen = std::env::var_os("BENCH_DIR").map(PathBuf::from).or_else(memory);
    TempDir::new_in(chosen.unwrap_or_else(std::env::temp_dir)).unwrap()
}

fn high_water(status: &str) -> Option<u64> {
    let status = fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
