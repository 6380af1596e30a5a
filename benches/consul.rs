//! What `ipam-da-consul`, alone and as the chain `ipam-ds-static`, `ipam-da-consul`, costs as whole
//! processes, beside a bare process that makes one transaction, and beside passcod's chain where
//! `IPAM_DELEGATED_ANCESTOR` names the folder with its programs. See `benches/README.md`.
//!
//! For scale, measured elsewhere and not here: passcod's chain took 17 ms for an ADD, 777 ms with 50,000
//! leases held, and served 58 a second to 20 callers, of which it failed 60 of 100.

#![allow(clippy::print_stdout, reason = "a table for the one who runs it")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

mod common;
#[path = "common/crowd.rs"]
mod crowd;
#[path = "consul/measured.rs"]
mod measured;
#[path = "common/plot.rs"]
mod plot;
#[path = "consul/site.rs"]
mod site;
#[path = "common/subnet.rs"]
mod subnet;

use std::path::{Path, PathBuf};

use common::plugins::{Plugins, state_folder};
use common::programs::{Build, builds};
use common::times::Times;
use common::{count, is_wanted, target};
use crowd::{AT_A_TIME, median};
use measured::{Measured, System};
use plot::{Class, Curve, Drawing, Scale};
use serde_json::Value;
use site::Site;
use tempfile::TempDir;

const HELD: [usize; 4] = [0, 1_000, 10_000, 50_000];

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-consul"];

/// The most that an ADD alone may be of the floor.
const OF_THE_FLOOR: f64 = 1.5;

/// The most that an ADD at 50,000 leases may be of one at none.
const GROWTH: f64 = 1.2;

/// In KiB.
const MEMORY: u64 = 6 * 1024;
const SIZE: u64 = 2560;

fn main() {
    if !is_wanted("consul") {
        return;
    }
    let most_held = count("BENCH_HELD", 10_000);
    let held: Vec<usize> = HELD.into_iter().filter(|held| *held <= most_held).collect();
    let runs = count("BENCH_RUNS", 100);
    println!("{runs} interleaved runs each; medians with quartiles, in milliseconds");
    let ancestor = std::env::var_os("IPAM_DELEGATED_ANCESTOR").map(PathBuf::from);
    if ancestor.is_none() {
        println!("without passcod's chain: IPAM_DELEGATED_ANCESTOR names no folder");
    }
    for build in builds() {
        println!("\n## {} builds\n", build.label);
        let bench = Bench::new(&build, &held, ancestor.as_deref());
        let measured = bench.run(runs);
        bench.print(&measured);
        if build.is_static() && held == HELD {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("consul.svg");
            std::fs::write(path, plot::svg(&drawing(&measured.by_held, runs))).unwrap();
        }
    }
}

fn drawing(measured: &[Measured], runs: usize) -> Drawing<'_> {
    let curve = |class, name, of: fn(&Measured) -> &Times| {
        let points = measured.iter().map(|m| (m.held, of(m))).collect();
        Curve { class, name, points }
    };
    Drawing {
        runs,
        scale: Scale::FromZero,
        curves: vec![
            curve(Class::Floor, "a bare transaction", |m| &m.floor[0]),
            curve(Class::Alone, "ipam-da-consul", |m| &m.alone[0]),
            curve(Class::Chain, "the chain", |m| &m.chain[0]),
        ],
    }
}

/// One build, with a plugin folder and stores of its own.
struct Bench<'a> {
    build: &'a Build,
    plugins: Plugins,
    ancestor: Option<Plugins>,
    sites: Vec<Site>,
    _state: TempDir,
    _programs: TempDir,
}

/// What the interleaved runs gave.
struct All {
    /// One, two and three bare processes that do nothing.
    bare: [Times; 3],
    by_held: Vec<Measured>,
}

impl<'a> Bench<'a> {
    fn new(build: &'a Build, held: &[usize], ancestor: Option<&Path>) -> Self {
        let (programs, state) = (TempDir::new().unwrap(), state_folder());
        let plugins = Plugins::new(&programs.path().join("bin"), build, &PROGRAMS, None);
        let ancestor = ancestor.map(|folder| {
            let plugins = Plugins::new(&programs.path().join("ancestor"), build, &[], None);
            PROGRAMS.iter().for_each(|program| plugins.install(&folder.join(program)));
            plugins
        });
        build.cargo(&["--package", "ipam-da-consul", "--examples"]);
        let examples = build.folder.join("examples");
        plugins.install(&examples.join("consul-floor"));
        let fill = examples.join("consul-fill");
        let sites = held.iter().map(|held| Site::holding(state.path(), &fill, *held)).collect();
        Self { build, plugins, ancestor, sites, _state: state, _programs: programs }
    }

    fn run(&self, runs: usize) -> All {
        self.round(0, &mut self.nothing());
        let mut all = self.nothing();
        for round in 1..=runs {
            self.round(round, &mut all);
        }
        all
    }

    fn nothing(&self) -> All {
        All {
            bare: [const { Times::new() }; 3],
            by_held: self.sites.iter().map(|site| Measured::new(site.held)).collect(),
        }
    }

    fn round(&self, round: usize, all: &mut All) {
        for (processes, times) in (1..).zip(&mut all.bare) {
            times.push(self.plugins.bare(processes));
        }
        // Each number of leases has its turn as the first.
        let count = self.sites.len();
        for i in (0..count).map(|i| (round + i) % count) {
            let container = format!("bench-{round}");
            let (plugins, ancestor) = (&self.plugins, self.ancestor.as_ref());
            all.by_held[i].round(plugins, ancestor, &self.sites[i], &container);
        }
    }

    fn print(&self, all: &All) {
        println!(
            "| leases held | floor ADD | alone ADD | ÷ | cold | chain ADD | ÷ | floor DEL | alone DEL | ÷ | without a record | chain DEL | ÷ |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for measured in &all.by_held {
            let Measured { held, floor, alone, cold, unremembered, chain, .. } = measured;
            let cell = |times: &Times, verb: usize| {
                format!("{times} | {:.2}", times.median() / floor[verb].median())
            };
            println!(
                "| {held} | {} | {} | {} | {} | {} | {} | {} | {} |",
                floor[0],
                cell(&alone[0], 0),
                cold,
                cell(&chain[0], 0),
                floor[1],
                cell(&alone[1], 1),
                unremembered,
                cell(&chain[1], 1),
            );
        }
        if self.ancestor.is_some() {
            println!("\n| leases held | passcod's chain, ADD | ours ÷ | DEL | ours ÷ |");
            println!("|---|---|---|---|---|");
            for Measured { held, chain, ancestor, .. } in &all.by_held {
                let [add, del] = [0, 1].map(|verb| {
                    let share = chain[verb].median() / ancestor[verb].median();
                    format!("{} | {share:.2}", ancestor[verb])
                });
                println!("| {held} | {add} | {del} |");
            }
        }
        let [one, two, three] = &all.bare;
        println!("\nbare processes without a transaction: one {one}, two {two}, three {three}");
        let throughput = self.throughput();
        println!("\n| target | measured | |\n|---|---|---|");
        let empty = &all.by_held[0];
        let ratio = empty.alone[0].median() / empty.floor[0].median();
        let what = format!("alone ADD ≤ {OF_THE_FLOOR} × the floor, no lease held");
        target(&what, &format!("{ratio:.2} ×"), ratio <= OF_THE_FLOOR);
        for full in all.by_held.iter().filter(|measured| measured.held == HELD[HELD.len() - 1]) {
            let alone = ("alone", &empty.alone, &full.alone);
            for (name, empty, full) in [alone, ("chain", &empty.chain, &full.chain)] {
                let grown = full[0].median() / empty[0].median();
                let what =
                    format!("{name} ADD at {} ≤ {GROWTH} × its own at none", HELD[HELD.len() - 1]);
                target(&what, &format!("{grown:.2} ×"), grown <= GROWTH);
            }
        }
        let what = format!("{AT_A_TIME} at a time, ADDs of the chain a second ≥ 250, none failing");
        target(&what, &format!("{throughput:.0}"), throughput >= 250.0);
        self.print_sizes();
    }

    /// The chain's ADDs a second.
    fn throughput(&self) -> f64 {
        let systems = [System::Floor, System::Alone, System::Chain];
        let mut counts = [const { [const { Vec::new() }; 2] }; 3];
        for _ in 0..count("BENCH_BATCHES", 9) {
            for (system, verbs) in systems.iter().zip(&mut counts) {
                let now = system.throughput(&self.plugins, &self.sites[0]);
                verbs.iter_mut().zip(now).for_each(|(counts, now)| counts.push(now));
            }
        }
        let medians = counts.map(|verbs| verbs.map(median));
        println!("\n{AT_A_TIME} at a time, a second:");
        for (system, [adds, dels]) in systems.iter().zip(medians) {
            println!("- {system:?}: {adds:.0} ADDs, {dels:.0} DELs");
        }
        medians[2][0]
    }

    fn print_sizes(&self) {
        let site = self.sites.last().unwrap();
        let peak = |program: &str, verb: &str, network: &Value| {
            let memory = self.plugins.peak_memory(program, verb, "memory", network);
            let what = format!("peak memory of {program}, {verb} at {} ≤ {MEMORY} KiB", site.held);
            target(&what, &format!("{memory} KiB"), memory <= MEMORY);
        };
        for verb in ["ADD", "DEL"] {
            peak("ipam-da-consul", verb, &site.alone);
        }
        for verb in ["ADD", "DEL"] {
            peak("ipam-delegated", verb, &site.chain);
        }
        if self.build.is_static() {
            let size = self.build.size("ipam-da-consul");
            let what = format!("size of ipam-da-consul ≤ {SIZE} KiB");
            target(&what, &format!("{size} KiB"), size <= SIZE);
        }
        println!("\nsize of the floor: {} KiB", self.build.size("examples/consul-floor"));
    }
}
