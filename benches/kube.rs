//! What the selectors `ipam-ds-kube-node` and `ipam-ds-node-annotation`, alone and in front of
//! `ipam-da-local`, cost as whole processes, beside a bare process that makes one GET and beside a
//! chain that asks nobody. See `benches/README.md`.

#![allow(clippy::print_stdout, reason = "a table for the one who runs it")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

mod common;
#[path = "kube/measured.rs"]
mod measured;
#[path = "kube/site.rs"]
mod site;

use common::plugins::{Plugins, state_folder};
use common::programs::{Build, builds};
use common::times::Times;
use common::{count, is_wanted, target};
use measured::{CHAIN, Measured, installed};
use serde_json::Value;
use site::{ALLOCATOR, SELECTORS, Site};
use tempfile::TempDir;

const PROGRAMS: [&str; 5] = [CHAIN, "ipam-ds-static", ALLOCATOR, SELECTORS[0], SELECTORS[1]];

/// The most that a selector alone, which asks, may be of the floor.
const OF_THE_FLOOR: f64 = 1.3;

/// The most that a chain whose selector remembers may be of one that asks nobody.
const OF_THE_STILL_CHAIN: f64 = 1.3;

/// In KiB.
const MEMORY: u64 = 8 * 1024;
const SIZE: u64 = 3 * 1024;

fn main() {
    if !is_wanted("kube") {
        return;
    }
    let runs = count("BENCH_RUNS", 100);
    println!("{runs} interleaved runs each; medians with quartiles, in milliseconds");
    for build in builds() {
        println!("\n## {} builds\n", build.label);
        let bench = Bench::new(&build);
        bench.print(&bench.run(runs));
    }
}

/// One build, with a plugin folder and a server of its own.
struct Bench<'a> {
    build: &'a Build,
    plugins: Plugins,
    site: Site,
    _state: TempDir,
    _programs: TempDir,
}

impl<'a> Bench<'a> {
    fn new(build: &'a Build) -> Self {
        let (programs, state) = (TempDir::new().unwrap(), state_folder());
        let plugins = Plugins::new(&programs.path().join("bin"), build, &PROGRAMS, None);
        build.cargo(&["--package", "ipam-delegated", "--features", "kube", "--example", FLOOR]);
        plugins.install(&build.folder.join("examples").join(FLOOR));
        let site = Site::start(state.path());
        Self { build, plugins, site, _state: state, _programs: programs }
    }

    fn run(&self, runs: usize) -> Measured {
        let mut measured = Measured::new();
        measured.round(&self.plugins, &self.site, "bench-0");
        measured = Measured::new();
        for round in 1..=runs {
            measured.round(&self.plugins, &self.site, &format!("bench-{round}"));
        }
        measured
    }

    fn print(&self, measured: &Measured) {
        let Measured { bare: [one, two, three], floor, cold_alone, warm_alone, .. } = measured;
        println!("| one process | with a client certificate | ÷ | with a token | ÷ |");
        println!("|---|---|---|---|---|");
        println!("| the floor, one GET | {} | | {} | |", floor[0], floor[1]);
        for (name, times) in SELECTORS.iter().zip(cold_alone) {
            let [first, second] = [0, 1].map(|i| beside(&times[i], &floor[i]));
            println!("| {name} alone, cold | {first} | {second} |");
        }
        for (name, times) in SELECTORS.iter().zip(warm_alone) {
            println!("| {name} alone, warm | {} | | |", beside(times, &floor[0]));
        }
        for (name, times) in &measured.others {
            match installed(name) {
                Some(_) => println!("| {name}, one GET | {} | | |", beside(times, &floor[0])),
                None => println!("| {name} is not installed | | | | |"),
            }
        }
        println!("\n| chain with {ALLOCATOR} | ADD | ÷ | DEL | ÷ |");
        println!("|---|---|---|---|---|");
        let Measured { still, warm, cold, .. } = measured;
        println!("| ipam-ds-static | {} | | {} | |", still[0], still[1]);
        for (state, chains) in [("warm", warm), ("cold", cold)] {
            for (name, times) in SELECTORS.iter().zip(chains) {
                let [add, del] = [0, 1].map(|verb| beside(&times[verb], &still[verb]));
                println!("| {name}, {state} | {add} | {del} |");
            }
        }
        println!("\nbare processes that do nothing: one {one}, two {two}, three {three}");
        println!("\n| target | measured | |\n|---|---|---|");
        self.print_requests();
        for (name, times) in SELECTORS.iter().zip(warm) {
            let ratio = times[0].median() / still[0].median();
            let what = format!(
                "ADD of the chain with {name}, warm ≤ {OF_THE_STILL_CHAIN} × that with ipam-ds-static"
            );
            target(&what, &format!("{ratio:.2} ×"), ratio <= OF_THE_STILL_CHAIN);
        }
        for (name, times) in SELECTORS.iter().zip(cold_alone) {
            for (i, login) in ["client certificate", "token"].iter().enumerate() {
                let ratio = times[i].median() / floor[i].median();
                let what = format!("{name} alone, cold, {login} ≤ {OF_THE_FLOOR} × the floor");
                target(&what, &format!("{ratio:.2} ×"), ratio <= OF_THE_FLOOR);
            }
        }
        self.print_sizes();
    }

    /// What the server was asked in an ADD of each chain.
    fn print_requests(&self) {
        for (state, chains, wanted) in [("cold", &self.site.cold, 1), ("warm", &self.site.warm, 0)]
        {
            for (name, network) in SELECTORS.iter().zip(chains) {
                let asked = self.site.server.requests_during(|| {
                    self.plugins.call(CHAIN, "ADD", "counted", network);
                });
                self.plugins.call(CHAIN, "DEL", "counted", network);
                let what =
                    format!("requests of an ADD of the chain with {name}, {state}: {wanted}");
                target(&what, &asked.len().to_string(), asked.len() == wanted);
            }
        }
    }

    fn print_sizes(&self) {
        let peak = |program: &str, network: &Value| {
            let memory = self.plugins.peak_memory(program, "ADD", "memory", network);
            let what = format!("peak memory of {program}, ADD, cold ≤ {MEMORY} KiB");
            target(&what, &format!("{memory} KiB"), memory <= MEMORY);
        };
        for (name, networks) in SELECTORS.iter().zip(&self.site.cold_alone) {
            peak(name, &networks[0]);
        }
        peak(CHAIN, &self.site.cold[0]);
        if self.build.is_static() {
            for name in SELECTORS {
                let size = self.build.size(name);
                target(
                    &format!("size of {name} ≤ {SIZE} KiB"),
                    &format!("{size} KiB"),
                    size <= SIZE,
                );
            }
        }
        let size = self.build.size(&format!("examples/{FLOOR}"));
        println!("\nsize of the floor: {size} KiB");
    }
}

const FLOOR: &str = "kube-floor";

/// Times, and how many times those of something else they are.
fn beside(times: &Times, other: &Times) -> String {
    format!("{times} | {:.2}", times.median() / other.median())
}
