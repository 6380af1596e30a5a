//! What a chain costs as whole processes, beside the host-local it carries. See `benches/README.md`.

#![allow(clippy::print_stdout, reason = "a table for the one who runs it")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

mod common;

use common::plugins::{Plugins, state_folder};
use common::programs::{Build, builds, host_local};
use common::times::Times;
use common::{count, is_wanted, verdict};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Each process of the chain, for the floor: ipam-delegated, ipam-ds-static, host-local.
const PROCESSES: u32 = 3;

fn main() {
    if !is_wanted("chain") {
        return;
    }
    let runs = count("BENCH_RUNS", 300);
    let warm_up = count("BENCH_WARMUP", 20);
    println!("{runs} interleaved runs each, after {warm_up} to warm up; times in milliseconds");
    for build in builds() {
        let most = if build.is_static() { 0.45 } else { 1.0 };
        Bench::new(build).run(most, warm_up, runs);
    }
}

/// One build, with plugin folders and state of its own.
struct Bench {
    _programs: TempDir,
    _leases: TempDir,
    build: Build,
    plugins: Plugins,
    alone: Value,
    chain: Value,
}

impl Bench {
    fn new(build: Build) -> Self {
        let (programs, leases) = (TempDir::new().unwrap(), state_folder());
        let bin = programs.path().join("bin");
        let plugins = Plugins::new(
            &bin,
            &build,
            &["ipam-delegated", "ipam-ds-static"],
            Some(("host-local", &host_local())),
        );
        let network = |ipam: Value, data: &str| {
            let mut network =
                json!({"cniVersion": "1.0.0", "name": "bench", "type": "bridge", "ipam": ipam});
            network["ipam"]["dataDir"] = json!(leases.path().join("data").join(data));
            network["ipam"]["ranges"] = json!([[{"subnet": "10.77.0.0/16"}]]);
            network["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
            network
        };
        let alone = network(json!({"type": "host-local"}), "alone");
        let chain = network(
            json!({
                "type": "ipam-delegated",
                "delegates": ["ipam-ds-static", "host-local"],
                "stateDir": leases.path().join("state"),
            }),
            "chain",
        );
        Self { plugins, build, alone, chain, _programs: programs, _leases: leases }
    }

    fn run(&self, most: f64, warm_up: usize, runs: usize) {
        let [mut one, mut floor, mut selector] = [const { Times::new() }; 3];
        let [mut alone_add, mut alone_del, mut chain_add, mut chain_del] =
            [const { Times::new() }; 4];
        for i in 0..warm_up + runs {
            let container = format!("bench-{i}");
            let call =
                |program, verb, network| self.plugins.call(program, verb, &container, network);
            let times = [
                (&mut one, self.plugins.bare(1)),
                (&mut floor, self.plugins.bare(PROCESSES)),
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
        println!("\n{} builds", self.build.label);
        println!(
            "{:<44}{:>8}{:>8}{:>8}{:>8}{:>22}",
            "", "median", "p10", "p90", "min", "÷ host-local's own"
        );
        let row = |name: &str, times: &Times| {
            let ratio = times.median() / alone_add.median();
            let [median, low, high, min] = [0.5, 0.1, 0.9, 0.0].map(|share| times.at(share));
            println!("{name:<44}{median:>8.2}{low:>8.2}{high:>8.2}{min:>8.2}{ratio:>22.2}");
        };
        row("one bare process", &one);
        row(&format!("{PROCESSES} bare processes, one after another"), &floor);
        row("ipam-ds-static alone, ADD", &selector);
        row("host-local alone, ADD", &alone_add);
        row("the chain, ADD", &chain_add);
        row("host-local alone, DEL", &alone_del);
        row("the chain, DEL", &chain_del);
        let added = |chain: &Times, own: &Times| chain.median() / own.median() - 1.0;
        let add = added(&chain_add, &alone_add);
        println!(
            "added on ADD: {add:.2} x host-local's own (target: at most {most:.2}): {}",
            verdict(add <= most)
        );
        println!("added on DEL: {:.2} x host-local's own", added(&chain_del, &alone_del));
        let memory = self.plugins.peak_memory("ipam-delegated", "ADD", "memory", &self.chain);
        println!(
            "peak memory of ipam-delegated: {memory} KiB (target: at most 4096): {}",
            verdict(memory <= 4096)
        );
        for name in ["ipam-delegated", "ipam-ds-static"] {
            let size = self.build.size(name);
            println!(
                "size of {name}: {size} KiB (target for static builds: at most 1024): {}",
                verdict(size <= 1024)
            );
        }
    }
}
