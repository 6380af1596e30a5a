use crate::caller::Caller;
use crate::crowd::AT_A_TIME;
use crate::site::{HELD, Results};
use crate::table::{self, Row};
use crate::times::Series;

/// What a system is asked for. Series are given by their names, as in tables.
#[derive(Clone, Copy)]
pub enum Target {
    /// The most that one series is of another at so many leases held, built static and not.
    Ratio { of: &'static str, to: &'static str, held: usize, most: [f64; 2] },
    /// The most that a series at 50,000 leases held is of itself at none.
    Growth { of: &'static str, most: f64 },
    /// The least number of calls a second, 20 at a time.
    Rate { of: &'static str, least: f64 },
    /// The same beside another caller's, wherever that was measured.
    RateRatio { of: &'static str, to: &'static str, least: f64 },
    /// The most KiB of a caller's process, where the most leases are held.
    Memory { of: &'static str, verbs: &'static [&'static str], most: u64 },
    /// The same where none are held.
    MemoryAtNone { of: &'static str, verbs: &'static [&'static str], most: u64 },
    /// The most KiB of static programs.
    Size { of: &'static [&'static str], most: u64 },
}

impl Target {
    /// Whether it is met, as far as that was measured.
    pub fn rows(&self, results: &Results<'_>) -> Vec<Row> {
        let Results { build, sites, series, rates } = results;
        let at = |number: usize| Some(&series.iter().find(|(held, _)| *held == number)?.1);
        let held_of = |held: usize| match series.len() {
            1 => String::new(),
            _ => format!(", {held} held"),
        };
        match *self {
            Self::Ratio { of, to, held, most } => {
                let most = most[usize::from(!build.is_static())];
                let what = format!("{of} ≤ {most} × {to}{}", held_of(held));
                let found = at(held).and_then(|it| Some(it.get(of)?.ratio(it.get(to)?)));
                found.map(|found| Row::new(what, times(found), found <= most)).into_iter().collect()
            }
            Self::Growth { of, most } => {
                let most_held = HELD[HELD.len() - 1];
                let what = format!("{of} at {most_held} ≤ {most} × its own at none");
                let found = at(0).zip(at(most_held)).map(|(none, full)| full[of].ratio(&none[of]));
                found.map(|found| Row::new(what, times(found), found <= most)).into_iter().collect()
            }
            Self::Rate { of, least } => {
                let what = format!("{AT_A_TIME} at a time, {of} a second ≥ {least}, none failing");
                let rate = rates[0].1[of].median();
                vec![Row::new(what, format!("{rate:.0}"), rate >= least)]
            }
            Self::RateRatio { of, to, least } => {
                let row = |(held, rates): &(usize, Series)| {
                    let what = format!("{AT_A_TIME} at a time, {of} a second ≥ {least} × {to}");
                    let found = rates.get(of)?.ratio(rates.get(to)?);
                    Some(Row::new(what + &held_of(*held), times(found), found >= least))
                };
                rates.iter().filter_map(row).collect()
            }
            Self::Memory { of, verbs, most } => {
                let caller = &sites.last().unwrap().callers()[of];
                memory(caller, verbs, &held_of(series.last().unwrap().0), most)
            }
            Self::MemoryAtNone { of, verbs, most } => {
                memory(&sites[0].callers()[of], verbs, &held_of(0), most)
            }
            Self::Size { of, most } => {
                let row = |name: &&str| {
                    let size = build.size(name);
                    let what = format!("size of {name} ≤ {most} KiB");
                    Row::new(what, format!("{size} KiB"), size <= most)
                };
                of.iter().filter(|_| build.is_static()).map(row).collect()
            }
        }
    }
}

fn memory(caller: &Caller, verbs: &[&str], held: &str, most: u64) -> Vec<Row> {
    let row = |verb: &&str| {
        let what = format!("peak memory of {}, {verb}{held} ≤ {most} KiB", caller.name());
        let memory = caller.peak_memory(verb);
        Row::new(what, format!("{memory} KiB"), memory <= most)
    };
    verbs.iter().map(row).collect()
}

fn times(ratio: f64) -> String {
    format!("{} ×", table::ratio(ratio))
}
