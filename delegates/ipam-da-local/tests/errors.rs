//! An error of every single system call around ADD, CHECK, DEL and GC: of the delegate alone, of the
//! delegate in a chain, of the chain.
//!
//! Whatever fails: no address has two holders, who holds one keeps it, a release that says that it has
//! released has, and the next DEL, stripped of all but its type, releases what is left. Every day a part
//! of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, `IPAM_DELEGATED_SEED` chooses another part.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod errors {
    pub mod stage;
}

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use ipam_testkit::errors::{Call, calls, is_injected};
use ipam_testkit::world::{Host, full_size};

use errors::stage::{ALL, Scenario, Stage, Who};

/// Every day one point of so many is tried.
const PART: usize = 16;

#[derive(Clone, Debug)]
struct Point {
    scenario: Scenario,
    who: Who,
    verb: &'static str,
    call: Call,
    error: &'static str,
}

/// Every call of a scenario with every error, from a run of it without one.
fn points(host: &Host, (scenario, who, verb): (Scenario, Who, &'static str)) -> Vec<Point> {
    let (_, log) = Stage::new(host, scenario, who).victim(verb, None);
    let calls = calls(&log);
    assert!(!calls.is_empty(), "{scenario:?} {who:?} {verb} calls nothing: {log}");
    let of = |call: Call| {
        let errors = call.errors().into_iter();
        errors.map(move |error| Point { scenario, who, verb, call: call.clone(), error })
    };
    calls.into_iter().flat_map(of).collect()
}

/// Whether the error came about, and what was wrong after it.
fn fail_at(host: &Host, point: &Point) -> Result<bool, String> {
    let stage = Stage::new(host, point.scenario, point.who);
    let (outcome, log) = stage.victim(point.verb, Some(&point.call.injection(point.error)));
    if !is_injected(&log) {
        return Ok(false);
    }
    stage.judge(&point.call, &outcome).map(|()| true)
}

#[test]
fn an_error_of_any_system_call_loses_no_address_and_gives_none_twice() {
    let seed = std::env::var("IPAM_DELEGATED_SEED").ok().and_then(|seed| seed.parse().ok());
    let (part, first) = if full_size() { (1, 0) } else { (PART, seed.unwrap_or(0) % PART) };
    let host = Host::new();
    let every = ALL.into_iter().flat_map(|scenario| points(&host, scenario));
    let queue: Vec<Point> = every.skip(first).step_by(part).collect();
    let tallies: Mutex<BTreeMap<(Scenario, Who), [usize; 2]>> = Mutex::default();
    let failures = Mutex::new(Vec::new());
    let next = Mutex::new(queue.iter());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let host = Host::new();
                loop {
                    let Some(point) = next.lock().unwrap().next() else { return };
                    match fail_at(&host, point) {
                        Ok(failed) => {
                            let mut tallies = tallies.lock().unwrap();
                            let tally = tallies.entry((point.scenario, point.who)).or_default();
                            tally[usize::from(!failed)] += 1;
                        }
                        Err(error) => failures.lock().unwrap().push(format!("{point:?}: {error}")),
                    }
                }
            });
        }
    });
    let tallies = tallies.into_inner().unwrap();
    // Not through the harness, which keeps what a passing test prints.
    let _ = writeln!(std::io::stderr(), "errors (met, not reached): {tallies:?}");
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), queue.len(), failures.join("\n"));
    for ((scenario, who), [met, missed]) in tallies {
        assert!(met > 0 && missed <= met / 10 + 1, "{scenario:?} {who:?}: {met}, {missed}");
    }
}
