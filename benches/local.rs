//! What the chain `ipam-ds-static`, `ipam-da-local` costs as whole processes, beside host-local on
//! leases of the same layout. See `benches/README.md`.

#![allow(clippy::print_stdout, reason = "a table for the one who runs it")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

mod common;
#[path = "common/crowd.rs"]
mod crowd;
#[path = "local/measured.rs"]
mod measured;
#[path = "common/plot.rs"]
mod plot;
#[path = "local/site.rs"]
mod site;

use std::path::Path;

use common::plugins::{Plugins, state_folder};
use common::programs::{Build, builds, host_local};
use common::times::Times;
use common::{count, is_wanted, target};
use crowd::{AT_A_TIME, median};
use measured::{Measured, System};
use plot::{Class, Curve, Drawing, Scale};
use site::Site;
use tempfile::TempDir;

const HELD: [usize; 4] = [0, 1_000, 10_000, 50_000];

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-local"];

fn main() {
    if !is_wanted("local") {
        return;
    }
    let most_held = count("BENCH_HELD", HELD[HELD.len() - 1]);
    let held: Vec<usize> = HELD.into_iter().filter(|held| *held <= most_held).collect();
    let runs = count("BENCH_RUNS", 100);
    println!("{runs} interleaved runs each; medians with quartiles, in milliseconds");
    for build in builds() {
        println!("\n## {} builds\n", build.label);
        let bench = Bench::new(build, &held);
        let measured = bench.run(runs);
        bench.print(&measured);
        if bench.build.is_static() && held == HELD {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("local.svg");
            std::fs::write(path, plot::svg(&measured.drawing(runs))).unwrap();
        }
    }
}

/// One build, with plugin folders and leases of its own.
struct Bench {
    leases: TempDir,
    _programs: TempDir,
    build: Build,
    plugins: Plugins,
    preset: Plugins,
    sites: Vec<Site>,
}

/// What the interleaved runs gave.
struct All {
    /// One, two and three bare processes.
    bare: [Times; 3],
    by_held: Vec<Measured>,
}

impl All {
    fn drawing(&self, runs: usize) -> Drawing<'_> {
        let curve = |class, name, of: fn(&Measured) -> &Times| {
            let points = self.by_held.iter().map(|m| (m.held, of(m))).collect();
            Curve { class, name, points }
        };
        let ends = self.by_held.iter().map(|m| (m.held, &self.bare[2])).collect();
        Drawing {
            runs,
            scale: Scale::Logarithmic,
            curves: vec![
                Curve { class: Class::Floor, name: "three bare processes", points: ends },
                curve(Class::HostLocal, "host-local", |m| &m.host_local[0]),
                curve(Class::Chain, "ipam-delegated", |m| &m.chain[0]),
            ],
        }
    }
}

impl Bench {
    fn new(build: Build, held: &[usize]) -> Self {
        let (programs, leases) = (TempDir::new().unwrap(), state_folder());
        let folder = |name: &str, host_local: &Path| {
            Plugins::new(
                &programs.path().join(name),
                &build,
                &PROGRAMS,
                Some(("host-local", host_local)),
            )
        };
        let plugins = folder("bin", &host_local());
        let preset = folder("preset", Path::new("ipam-delegated"));
        let sites = held.iter().map(|held| Site::holding(leases.path(), *held)).collect();
        Self { leases, _programs: programs, build, plugins, preset, sites }
    }

    fn chain(&self) -> System<'_> {
        System { plugins: &self.plugins, program: "ipam-delegated" }
    }

    fn allocator(&self) -> System<'_> {
        System { plugins: &self.plugins, program: "ipam-da-local" }
    }

    fn host_local(&self) -> System<'_> {
        System { plugins: &self.plugins, program: "host-local" }
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
        let container = format!("bench-{round}");
        for (processes, times) in (1..).zip(&mut all.bare) {
            times.push(self.plugins.bare(processes));
        }
        // Each number of leases has its turn as the first.
        let count = self.sites.len();
        let order = (0..count).map(|i| (round + i) % count);
        let preset = System { plugins: &self.preset, program: "host-local" };
        for i in order.clone() {
            let (site, times) = (&self.sites[i], &mut all.by_held[i]);
            self.chain().pair(&site.chain, &container, &mut times.chain);
            preset.pair(&site.preset, &container, &mut times.preset);
            self.allocator().pair(&site.allocator, &container, &mut times.allocator);
        }
        // After all of the chain's: reading so many files leaves the others cold caches.
        for i in order {
            let times = &mut all.by_held[i].host_local;
            self.host_local().pair(&self.sites[i].host_local, &container, times);
        }
    }

    fn print(&self, all: &All) {
        println!(
            "| leases held | host-local ADD | chain ADD | ÷ | preset ADD | allocator ADD | host-local DEL | chain DEL | ÷ | preset DEL | allocator DEL |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for Measured { held, host_local, chain, preset, allocator } in &all.by_held {
            print!("| {held}");
            for i in 0..2 {
                let ratio = chain[i].median() / host_local[i].median();
                let [h, c, p, a] = [host_local, chain, preset, allocator].map(|x| &x[i]);
                print!(" | {h} | {c} | {ratio:.3} | {p} | {a}");
            }
            println!(" |");
        }
        let [one, two, three] = &all.bare;
        println!("\nbare processes: one {one}, two {two}, three {three}");
        let empty = &all.by_held[0];
        let floor = |times: &Times, floor: &Times| times.median() / floor.median();
        println!("chain ADD ÷ three bare processes: {:.2}", floor(&empty.chain[0], three));
        println!("chain DEL ÷ two bare processes: {:.2}", floor(&empty.chain[1], two));
        self.print_whole_folder();
        let throughput = self.throughput();
        println!("\n| target | measured | |\n|---|---|---|");
        let ratio = |m: &Measured| m.chain[0].median() / m.host_local[0].median();
        let most = if self.build.is_static() { 0.6 } else { 1.5 };
        let at_none = ratio(empty);
        target(
            &format!("chain ADD ≤ {most} × host-local's, no lease held"),
            &format!("{at_none:.2} ×"),
            at_none <= most,
        );
        let full = all.by_held.iter().find(|measured| measured.held == HELD[HELD.len() - 1]);
        if let Some(full) = full {
            let held = full.held;
            let at_most = ratio(full);
            let grown = full.chain[0].median() / empty.chain[0].median();
            target(
                &format!("chain ADD ≤ 0.01 × host-local's, {held} held"),
                &format!("{at_most:.4} ×"),
                at_most <= 0.01,
            );
            target(
                &format!("chain ADD at {held} ≤ 1.2 × its own at none"),
                &format!("{grown:.2} ×"),
                grown <= 1.2,
            );
        }
        target(
            &format!("{AT_A_TIME} at a time, ADDs a second ≥ 1.5 × host-local's"),
            &format!("{throughput:.2} ×"),
            throughput >= 1.5,
        );
        self.print_sizes();
    }

    /// The calls that have to list or read the folder.
    fn print_whole_folder(&self) {
        let site = self.sites.last().unwrap();
        let held = site.held;
        let first = self.chain().adds(&site.chain, 5, || site.forget());
        println!("\nchain ADD, first look at {held} leases of others: {first}");
        let after = self.chain().adds(&site.chain, 15, || site.foreign_write());
        println!("chain ADD at {held} after each write by another plugin: {after}");
        if held < HELD[HELD.len() - 1] {
            return;
        }
        let site = Site::nearly_full(self.leases.path());
        self.chain().adds(&site.chain, 1, || ());
        let chain = self.chain().adds(&site.chain, 15, || ());
        let host_local = self.host_local().adds(&site.host_local, 15, || ());
        println!(
            "ADD into a pool with {} of 65533 addresses held: chain {chain}, host-local {host_local}",
            site.held
        );
        let memory = |network| self.plugins.peak_memory("ipam-da-local", "ADD", "memory", network);
        println!("peak memory of ipam-da-local there: {} KiB", memory(&site.allocator));
        let site = self.sites.last().unwrap();
        site.forget();
        let first = memory(&site.allocator);
        println!("peak memory of ipam-da-local at the first look at {held}: {first} KiB");
    }

    /// The chain's ADDs a second ÷ host-local's.
    fn throughput(&self) -> f64 {
        let site = &self.sites[0];
        let mut ratios = Vec::new();
        let [mut chain, mut host_local] = [const { [const { Vec::new() }; 2] }; 2];
        for _ in 0..count("BENCH_BATCHES", 9) {
            let ours = self.chain().throughput(&site.chain);
            let its = self.host_local().throughput(&site.host_local);
            ratios.push(ours[0] / its[0]);
            for i in 0..2 {
                chain[i].push(ours[i]);
                host_local[i].push(its[i]);
            }
        }
        let [chain, host_local] = [chain, host_local].map(|verbs| verbs.map(median));
        println!(
            "\n{AT_A_TIME} at a time: chain {:.0} ADD/s, {:.0} DEL/s; host-local {:.0} ADD/s, {:.0} DEL/s",
            chain[0], chain[1], host_local[0], host_local[1]
        );
        median(ratios)
    }

    fn print_sizes(&self) {
        let site = self.sites.last().unwrap();
        for (name, network) in PROGRAMS.into_iter().zip([&site.chain, &site.chain, &site.allocator])
        {
            let memory = self.plugins.peak_memory(name, "ADD", "memory", network);
            let what = format!("peak memory of {name} at {} ≤ 4096 KiB", site.held);
            target(&what, &format!("{memory} KiB"), memory <= 4096);
        }
        for name in PROGRAMS.into_iter().filter(|_| self.build.is_static()) {
            let size = self.build.size(name);
            let what = format!("size of {name} ≤ 1024 KiB");
            target(&what, &format!("{size} KiB"), size <= 1024);
        }
    }
}
