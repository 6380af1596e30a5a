//! What a chain costs as whole processes, beside the host-local it carries. See `benches/README.md`.

#![allow(clippy::print_stdout, reason = "a table for the one who runs it")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Each process of the chain, for the floor: ipam-delegated, ipam-ds-static, host-local.
const PROCESSES: u32 = 3;

fn main() {
    // `cargo test --benches` starts this program too; only `cargo bench` says --bench.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run it with: cargo bench --bench chain");
        return;
    }
    let host_local = ["/usr/lib/cni/host-local", "/opt/cni/bin/host-local"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.exists())
        .expect("host-local: apt-get install containernetworking-plugins");
    let runs = count("BENCH_RUNS", 300);
    let warm_up = count("BENCH_WARMUP", 20);
    println!("{runs} interleaved runs each, after {warm_up} to warm up; times in milliseconds");
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut builds = vec![("glibc", None, 1.0)];
    if has_target(&musl) {
        builds.insert(0, ("static", Some(musl.as_str()), 0.45));
    } else {
        println!("no static builds: rustup target add {musl}");
    }
    for (label, target, most) in builds {
        Bench::new(target, &host_local).run(label, most, warm_up, runs);
    }
}

fn count(variable: &str, otherwise: usize) -> usize {
    let Ok(text) = std::env::var(variable) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, no number"))
}

fn has_target(target: &str) -> bool {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc");
    let sysroot = String::from_utf8(sysroot.stdout).unwrap();
    Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").exists()
}

/// One build, with plugin folders and state of its own.
struct Bench {
    folder: TempDir,
    binaries: PathBuf,
    alone: Value,
    chain: Value,
}

impl Bench {
    fn new(target: Option<&str>, host_local: &Path) -> Self {
        let binaries = build(target);
        let folder = TempDir::new().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for name in ["ipam-delegated", "ipam-ds-static"] {
            symlink(binaries.join(name), bin.join(name)).unwrap();
        }
        symlink(host_local, bin.join("host-local")).unwrap();
        compile_hello(target, &bin.join("hello"));
        let network = |ipam: Value, data: &str| {
            let mut network =
                json!({"cniVersion": "1.0.0", "name": "bench", "type": "bridge", "ipam": ipam});
            network["ipam"]["dataDir"] = json!(folder.path().join("data").join(data));
            network["ipam"]["ranges"] = json!([[{"subnet": "10.77.0.0/16"}]]);
            network["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
            network
        };
        let alone = network(json!({"type": "host-local"}), "alone");
        let chain = network(
            json!({
                "type": "ipam-delegated",
                "delegates": ["ipam-ds-static", "host-local"],
                "stateDir": folder.path().join("state"),
            }),
            "chain",
        );
        Self { binaries, alone, chain, folder }
    }

    fn run(&self, label: &str, most: f64, warm_up: usize, runs: usize) {
        let mut floor = Vec::new();
        let mut one = Vec::new();
        let [mut alone_add, mut alone_del, mut chain_add, mut chain_del, mut selector] =
            [const { Vec::new() }; 5];
        for i in 0..warm_up + runs {
            let container = format!("bench-{i}");
            let call = |program, verb, network| self.call(program, verb, &container, network);
            let hello = || self.call("hello", "", &container, &Value::Null);
            let times = [
                (&mut one, hello()),
                (&mut floor, (0..PROCESSES).map(|_| hello()).sum()),
                (&mut alone_add, call("host-local", "ADD", &self.alone)),
                (&mut chain_add, call("ipam-delegated", "ADD", &self.chain)),
                (&mut alone_del, call("host-local", "DEL", &self.alone)),
                (&mut chain_del, call("ipam-delegated", "DEL", &self.chain)),
                (&mut selector, call("ipam-ds-static", "ADD", &self.chain)),
            ];
            if i >= warm_up {
                times.into_iter().for_each(|(series, time)| series.push(time));
            }
        }
        println!("\n{label} builds");
        println!(
            "{:<44}{:>8}{:>8}{:>8}{:>8}{:>22}",
            "", "median", "p10", "p90", "min", "÷ host-local's own"
        );
        let row = |name: &str, times: &[Duration], own: &[Duration]| {
            let of = |share| at(times, share);
            let ratio = of(0.5) / at(own, 0.5);
            println!(
                "{name:<44}{:>8.2}{:>8.2}{:>8.2}{:>8.2}{ratio:>22.2}",
                of(0.5),
                of(0.1),
                of(0.9),
                of(0.0)
            );
        };
        row("one bare process", &one, &alone_add);
        row(&format!("{PROCESSES} bare processes, one after another"), &floor, &alone_add);
        row("ipam-ds-static alone, ADD", &selector, &alone_add);
        row("host-local alone, ADD", &alone_add, &alone_add);
        row("the chain, ADD", &chain_add, &alone_add);
        row("host-local alone, DEL", &alone_del, &alone_del);
        row("the chain, DEL", &chain_del, &alone_del);
        let added = |chain: &[Duration], own: &[Duration]| at(chain, 0.5) / at(own, 0.5) - 1.0;
        let add = added(&chain_add, &alone_add);
        println!(
            "added on ADD: {add:.2} x host-local's own (target: at most {most:.2}): {}",
            verdict(add <= most)
        );
        println!("added on DEL: {:.2} x host-local's own", added(&chain_del, &alone_del));
        let memory = self.peak_memory();
        println!(
            "peak memory of ipam-delegated: {memory} KiB (target: at most 4096): {}",
            verdict(memory <= 4096)
        );
        for name in ["ipam-delegated", "ipam-ds-static"] {
            let size = fs::metadata(self.binaries.join(name)).unwrap().len() / 1024;
            println!(
                "size of {name}: {size} KiB (target for static builds: at most 1024): {}",
                verdict(size <= 1024)
            );
        }
    }

    /// The time from the start of a process to its end, with its answer read.
    fn call(&self, program: &str, verb: &str, container: &str, network: &Value) -> Duration {
        let stdin = network.to_string();
        let mut command = Command::new(self.folder.path().join("bin").join(program));
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", self.folder.path().join("bin"))
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/run/netns/none")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
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

    /// KiB, as the last delegate of a chain finds it while its parent waits.
    fn peak_memory(&self) -> u64 {
        let seen = self.folder.path().join("seen");
        let script = format!(
            "#!/bin/sh\ncat >/dev/null\ngrep VmHWM /proc/$PPID/status >{}\n\
             echo '{{\"ips\":[{{\"address\":\"10.77.0.2/16\"}}],\"pools\":[]}}'\n",
            seen.display()
        );
        let path = self.folder.path().join("bin/look");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let mut network = self.chain.clone();
        network["ipam"]["delegates"] = json!(["ipam-ds-static", "look"]);
        self.call("ipam-delegated", "ADD", "memory", &network);
        let line = fs::read_to_string(seen).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Builds this workspace's programs and tells their folder.
fn build(target: Option<&str>) -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_ipam-delegated")).ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--release", "--workspace", "--bins", "--target-dir"])
        .arg(folder);
    cargo.args(target.iter().flat_map(|target| ["--target", target]));
    assert!(
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success(),
        "cargo build"
    );
    target.map_or(folder.to_owned(), |target| folder.join(target)).join("release")
}

fn compile_hello(target: Option<&str>, out: &Path) {
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition=2024", "-Copt-level=3", "-Cpanic=abort", "-Cstrip=symbols", "-o"])
        .arg(out);
    rustc.args(target.iter().flat_map(|target| ["--target", target]));
    rustc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/floor/hello.rs"));
    assert!(rustc.status().expect("rustc").success(), "rustc");
}

/// The time that this share of the runs stayed below, in milliseconds.
fn at(times: &[Duration], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = ((sorted.len() - 1) as f64 * share).round() as usize;
    sorted[index].as_secs_f64() * 1000.0
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
