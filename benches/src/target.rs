use std::fmt;

use crate::crowd::AT_A_TIME;
use crate::harness::{HELD, Results};

/// What a system is asked for. Series are given by their names, as in tables.
#[derive(Clone, Copy)]
pub enum Target {
    /// The most that one series is of another at so many leases held, built static and not.
    Ratio { of: &'static str, to: &'static str, held: usize, most: [f64; 2] },
    /// The most that a series at 50,000 leases held is of itself at none.
    Growth { of: &'static str, most: f64 },
    /// The least number of calls a second, 20 at a time.
    Rate { of: &'static str, least: f64 },
    /// The same beside another caller's.
    RateRatio { of: &'static str, to: &'static str, least: f64 },
    /// The most KiB of a caller's process, where the most leases are held.
    Memory { of: &'static str, verbs: &'static [&'static str], most: u64 },
    /// The most KiB of static programs.
    Size { of: &'static [&'static str], most: u64 },
}

/// A row of the table of targets.
pub struct Row {
    pub what: String,
    pub value: String,
    pub met: bool,
}

impl Target {
    /// Whether it is met, as far as that was measured.
    pub fn rows(&self, results: &Results<'_>) -> Vec<Row> {
        let Results { build, sites, series, rates } = results;
        let at =
            |number: usize| series.iter().find(|(held, _)| *held == number).map(|found| &found.1);
        let times = |ratio: f64| {
            if ratio < 0.1 { format!("{ratio:.4} ×") } else { format!("{ratio:.2} ×") }
        };
        let most_held = HELD[HELD.len() - 1];
        match *self {
            Self::Ratio { of, to, held, most } => {
                let most = most[usize::from(!build.is_static())];
                let row = |ratio| Row {
                    what: format!("{of} ≤ {most} × {to}, {held} held"),
                    value: times(ratio),
                    met: ratio <= most,
                };
                at(held).map(|series| row(series[of].ratio(&series[to]))).into_iter().collect()
            }
            Self::Growth { of, most } => {
                let row = |ratio| Row {
                    what: format!("{of} at {most_held} ≤ {most} × its own at none"),
                    value: times(ratio),
                    met: ratio <= most,
                };
                let both = at(0).zip(at(most_held));
                both.map(|(none, full)| row(full[of].ratio(&none[of]))).into_iter().collect()
            }
            Self::Rate { of, least } => {
                let rate = rates[of].median();
                vec![Row {
                    what: format!("{AT_A_TIME} at a time, {of} a second ≥ {least}, none failing"),
                    value: format!("{rate:.0}"),
                    met: rate >= least,
                }]
            }
            Self::RateRatio { of, to, least } => {
                let ratio = rates[of].ratios(&rates[to]).median();
                vec![Row {
                    what: format!("{AT_A_TIME} at a time, {of} a second ≥ {least} × {to}"),
                    value: times(ratio),
                    met: ratio >= least,
                }]
            }
            Self::Memory { of, verbs, most } => {
                let caller = &sites.last().unwrap().callers()[of];
                let row = |verb: &&str| {
                    let memory = caller.peak_memory(verb);
                    let (name, held) = (caller.name(), series.last().unwrap().0);
                    let what = format!("peak memory of {name}, {verb} at {held} ≤ {most} KiB");
                    Row { what, value: format!("{memory} KiB"), met: memory <= most }
                };
                verbs.iter().map(row).collect()
            }
            Self::Size { of, most } => {
                let row = |name: &&str| {
                    let size = build.size(name);
                    let what = format!("size of {name} ≤ {most} KiB");
                    Row { what, value: format!("{size} KiB"), met: size <= most }
                };
                of.iter().filter(|_| build.is_static()).map(row).collect()
            }
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, met } = self;
        let verdict = if *met { "met" } else { "**missed**" };
        write!(f, "| {what} | {value} | {verdict} |")
    }
}
