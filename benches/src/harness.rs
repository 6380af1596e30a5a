//! How a system is measured: interleaved rounds, 20 at a time, targets.

use std::path::Path;

use crate::caller::{Caller, VERBS};
use crate::crowd::{AT_A_TIME, throughput};
use crate::plot::{self, Curve, Curves, Drawing, Scale};
use crate::programs::Build;
use crate::site::{HELD, Results, Site, Sites, Stage, Turn};
use crate::table::Table;
use crate::target::Target;
use crate::times::Series;

/// What is measured of a system, and what is asked of it. Series are named `CALLER VERB` where
/// nothing else is said.
pub struct System {
    /// As it is named to `cargo bench`.
    pub name: &'static str,
    pub title: &'static str,
    /// The numbers of leases held.
    pub levels: &'static [usize],
    /// The most leases held, where `BENCH_HELD` says nothing else.
    pub held: usize,
    pub runs: usize,
    /// Rounds that do not count.
    pub warm_up: usize,
    /// Makes the sites, with as many leases held.
    pub start: fn(&Stage<'_>, &[usize]) -> Sites,
    pub tables: &'static [Table],
    pub drawing: Option<(Scale, Curves)>,
    /// The callers that are run 20 at a time.
    pub crowd: &'static [&'static str],
    /// At how many numbers of leases held, from the least on.
    pub crowded: usize,
    pub targets: &'static [Target],
    /// The least program that does the same.
    pub floor: Option<&'static str>,
}

impl System {
    pub fn run(&self, build: &Build) {
        println!("\n## {}, {} builds{}\n", self.name, build.label, self.title);
        let most = if self.held == 0 { 0 } else { count("BENCH_HELD", self.held) };
        let held: Vec<usize> = self.levels.iter().copied().filter(|held| *held <= most).collect();
        let runs = count("BENCH_RUNS", self.runs);
        println!("{runs} interleaved runs each; medians with quartiles, in milliseconds\n");
        let stage = Stage::new(build);
        let sites = (self.start)(&stage, &held);
        let series = self.series(&stage, &sites, &held, runs);
        for table in self.tables {
            println!("{}", table.of(&series));
        }
        println!(
            "bare processes: {}",
            BARE.map(|name| format!("{name} {}", series[0].1[name])).join(", ")
        );
        let mut rates = Vec::new();
        for (site, held) in sites.iter().zip(&held).take(self.crowded) {
            let now = self.rates(&**site);
            println!("\n{AT_A_TIME} at a time, {held} held, a second:");
            for (name, rates) in &now {
                println!("- {name}: {:.0}", rates.median());
            }
            rates.push((*held, now));
        }
        let results = Results { build, sites, series, rates };
        let rows = results.sites.last().unwrap().more(&stage);
        println!("\n| target | measured | |\n|---|---|---|");
        let targets = self.targets.iter().flat_map(|target| target.rows(&results));
        rows.into_iter().chain(targets).for_each(|row| println!("{row}"));
        if let Some(floor) = self.floor {
            println!("\nsize of the floor: {} KiB", build.size(floor));
        }
        if let Some((scale, curves)) = self.drawing.filter(|_| build.is_static() && held == HELD) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{}.svg", self.name));
            let curve = |(class, name, key, on_disk): (_, _, _, Option<&str>)| {
                let points = results.series.iter().map(|(held, series)| (*held, &series[key]));
                let on_disk = on_disk.and_then(|key| results.series[0].1.get(key));
                Curve { class, name, points: points.collect(), on_disk }
            };
            let curves = curves.into_iter().map(curve).collect();
            std::fs::write(path, plot::svg(&Drawing { runs, scale, curves })).unwrap();
        }
    }

    fn series(
        &self,
        stage: &Stage<'_>,
        sites: &[Box<dyn Site>],
        held: &[usize],
        runs: usize,
    ) -> Vec<(usize, Series)> {
        let bare = stage.plugins("bare", &["hello"]).tool("hello", Vec::new());
        let mut series: Vec<_> = held.iter().map(|held| (*held, Series::new())).collect();
        let warm_up = count("BENCH_WARMUP", self.warm_up);
        for round in 0..warm_up + runs {
            if round == warm_up {
                series.iter_mut().for_each(|(_, series)| series.clear());
            }
            self::round(round, &bare, sites, &mut series);
        }
        series
    }

    fn rates(&self, site: &dyn Site) -> Series {
        let mut rates = Series::new();
        let each = count("BENCH_EACH", 10);
        for _ in 0..count("BENCH_BATCHES", 9) {
            for name in self.crowd {
                let Some(caller) = site.callers().get(*name) else { continue };
                site.before_batch(name);
                let now = throughput(caller, each);
                for (verb, rate) in VERBS.iter().zip(now) {
                    rates.entry(format!("{name} {verb}")).or_default().push(rate);
                }
            }
        }
        rates
    }
}

/// The series of one, two and three bare processes that do nothing.
const BARE: [&str; 3] = ["one", "two", "three"];

fn round(round: usize, bare: &Caller, sites: &[Box<dyn Site>], series: &mut [(usize, Series)]) {
    let container = &*format!("bench-{round}");
    for (processes, name) in (1..).zip(BARE) {
        let time = (0..processes).map(|_| bare.call("", "")).sum();
        for (_, series) in series.iter_mut() {
            Turn { round, container, series }.push(name, time);
        }
    }
    // Each number of leases has its turn as the first.
    let count = sites.len();
    let order = (0..count).map(|i| (round + i) % count);
    for i in order.clone() {
        sites[i].round(&mut Turn { round, container, series: &mut series[i].1 });
    }
    for i in order {
        sites[i].last(&mut Turn { round, container, series: &mut series[i].1 });
    }
}

/// A number from the environment.
fn count(variable: &str, otherwise: usize) -> usize {
    let Ok(text) = std::env::var(variable) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, no number"))
}
