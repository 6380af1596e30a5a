use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use serde_json::Value;
use tempfile::TempDir;

use super::programs::Build;

/// A plugin folder, and calls of what is in it.
pub struct Plugins {
    folder: PathBuf,
}

impl Plugins {
    /// Makes the folder, with these programs of a build, `hello`, and what stands under
    /// host-local's name there.
    pub fn new(folder: &Path, build: &Build, names: &[&str], host_local: &Path) -> Self {
        fs::create_dir(folder).unwrap();
        for name in names {
            install(&build.folder.join(name), &folder.join(name));
        }
        symlink(host_local, folder.join("host-local")).unwrap();
        let hello = build.folder.join("hello");
        build.compile_hello(&hello);
        install(&hello, &folder.join("hello"));
        Self { folder: folder.to_owned() }
    }

    /// The time from the start of a process to its end, with its answer read.
    pub fn call(&self, program: &str, verb: &str, container: &str, network: &Value) -> Duration {
        let stdin = network.to_string();
        let mut command = self.command(program, verb, container);
        command.stdout(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().unwrap();
        // hello does not read it.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        let time = began.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program} {verb}: {text}");
        time
    }

    /// As many bare processes, one after another.
    pub fn bare(&self, processes: u32) -> Duration {
        (0..processes).map(|_| self.call("hello", "", "", &Value::Null)).sum()
    }

    /// `VmHWM` of a process that is held up where it gives its answer, in KiB.
    pub fn peak_memory(&self, program: &str, container: &str, network: &Value) -> u64 {
        let (mut answer, stdout) = full_pipe();
        let mut child = self.command(program, "ADD", container).stdout(stdout).spawn().unwrap();
        child.stdin.take().unwrap().write_all(network.to_string().as_bytes()).unwrap();
        let path = format!("/proc/{}/status", child.id());
        let (mut peak, mut calm) = (0, 0);
        while calm < 30 {
            std::thread::sleep(Duration::from_millis(10));
            let status = fs::read_to_string(&path).unwrap();
            let value = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key));
                line.and_then(|line| line.split_whitespace().next()).map(str::to_owned)
            };
            let now = value("VmHWM:").and_then(|text| text.parse().ok());
            let now = now.expect("it ended before it gave its answer");
            let asleep = value("State:").as_deref() == Some("S");
            calm = if asleep && now == peak { calm + 1 } else { 0 };
            peak = now;
        }
        let mut text = String::new();
        answer.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{program}: {}", text.trim());
        peak
    }

    fn command(&self, program: &str, verb: &str, container: &str) -> Command {
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

/// As on a host: the kernel maps a file that was copied quicker than one the linker wrote.
fn install(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

/// A folder for leases and state: in memory where there is such a place, or in `BENCH_DIR`.
pub fn state_folder() -> TempDir {
    let memory = || Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir());
    let chosen = std::env::var_os("BENCH_DIR").map(PathBuf::from).or_else(memory);
    TempDir::new_in(chosen.unwrap_or_else(std::env::temp_dir)).unwrap()
}

/// A pipe that takes no more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    // Another description of the same pipe: whoever gets `writer` waits.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let filler = open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    while rustix::io::write(&filler, &[b' '; 4096]).is_ok() {}
    (reader, writer)
}
