//! Workers that call a plugin at random, are killed at random, and write down what they saw.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Call, Outcome, Verb};
use crate::support::start;

/// What is worked on.
pub trait Site: Sync {
    /// A call for an owner, ready to be started, and its stdin. All calls for an owner are of one
    /// program. A CHECK comes with what the ADD answered.
    fn call(&self, verb: &str, worker: usize, owner: &str, answer: &Value) -> (Command, Value);
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The same seed makes the same choices, though not the same races.
    pub seed: u64,
    pub workers: usize,
    /// Of all workers together.
    pub operations: usize,
    pub owners_per_worker: usize,
    /// How many of a thousand calls are killed, in part or as a whole.
    pub kills: u64,
    /// A kill comes after a random part of this time.
    pub call_time: Duration,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Report {
    pub calls: Vec<Call>,
    pub checks: usize,
    /// Signals that met a process which still ran.
    pub kills: usize,
    pub unknown: usize,
    pub failed: usize,
    /// CHECKs of what was certainly held that failed.
    pub lost: Vec<String>,
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// What a worker knows of one of its owners.
#[derive(Clone, Default)]
enum Knows {
    #[default]
    Nothing,
    /// It may hold something.
    Maybe,
    /// This is what it holds.
    Holds(Value),
}

impl Workload {
    pub fn run(&self, site: &impl Site) -> Report {
        let report = Mutex::new(Report::default());
        let (left, start) = (AtomicUsize::new(self.operations), Instant::now());
        std::thread::scope(|scope| {
            for number in 0..self.workers {
                let (report, left) = (&report, &left);
                scope.spawn(move || Worker::new(self, number, start).run(site, left, report));
            }
        });
        report.into_inner().expect("no worker panicked")
    }
}

struct Worker<'a> {
    load: &'a Workload,
    number: usize,
    random: Random,
    start: Instant,
    owners: Vec<Knows>,
}

/// A call that has ended.
struct Ended {
    began: u64,
    ended: u64,
    killed: bool,
    exit: Option<i32>,
    answer: Value,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Workload, number: usize, start: Instant) -> Self {
        let random = Random(load.seed ^ (number as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let owners = vec![Knows::default(); load.owners_per_worker];
        Self { load, number, random, start, owners }
    }

    fn run(mut self, site: &impl Site, left: &AtomicUsize, report: &Mutex<Report>) {
        let take = |n: usize| n.checked_sub(1);
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let place = self.random.below(self.owners.len() as u64) as usize;
            let owner = format!("w{}-{place}", self.number);
            let knows = self.owners[place].clone();
            let verb = match (&knows, self.random.below(10)) {
                (Knows::Nothing, 0) => "DEL",
                (Knows::Nothing, _) | (_, 0 | 1) => "ADD",
                (Knows::Holds(_), 2 | 3) => "CHECK",
                _ => "DEL",
            };
            let held = match &knows {
                Knows::Holds(answer) => answer.clone(),
                _ => Value::Null,
            };
            let (command, stdin) = site.call(verb, self.number, &owner, &held);
            let ended = self.call(command, &stdin);
            let mut report = report.lock().expect("no worker panicked");
            report.kills += usize::from(ended.killed);
            if verb == "CHECK" {
                report.checks += 1;
                if ended.exit != Some(0) && !ended.killed {
                    report.lost.push(format!("{owner}: {}", ended.answer));
                }
                continue;
            }
            let (verb, outcome) = match (verb, ended.exit) {
                ("ADD", Some(0)) => (Verb::Add, Outcome::Done(addresses(&ended.answer))),
                ("ADD", _) => (Verb::Add, ended.failure()),
                (_, Some(0)) => (Verb::Del, Outcome::Done(BTreeSet::new())),
                _ => (Verb::Del, ended.failure()),
            };
            self.owners[place] = match (verb, &outcome) {
                (Verb::Add, Outcome::Done(_)) => Knows::Holds(ended.answer),
                (Verb::Del, Outcome::Done(_)) => Knows::Nothing,
                (Verb::Add, Outcome::Failed) => knows,
                (Verb::Add, Outcome::Unknown) if matches!(knows, Knows::Holds(_)) => knows,
                _ => Knows::Maybe,
            };
            report.unknown += usize::from(outcome == Outcome::Unknown);
            report.failed += usize::from(outcome == Outcome::Failed);
            let (began, ended) = (ended.began, ended.ended);
            report.calls.push(Call { owner, verb, began, ended, outcome });
        }
    }

    fn call(&mut self, mut command: Command, stdin: &Value) -> Ended {
        command.stderr(Stdio::null());
        let kill = self.random.below(1000) < self.load.kills;
        let delay = self.random.below(self.load.call_time.as_micros() as u64);
        let of_chain = self.random.below(2) == 0;
        let began = self.now();
        let mut child = start(command, stdin);
        let killed = kill && {
            std::thread::sleep(Duration::from_micros(delay));
            kill_part(&mut child, of_chain)
        };
        let output = child.wait_with_output().expect("a child can be waited for");
        let killed = killed || output.status.signal().is_some();
        let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ended { began, ended: self.now(), killed, exit: output.status.code(), answer }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl Ended {
    fn failure(&self) -> Outcome {
        // Of what was given up, and of what says that it does not know, nobody knows.
        let unsure = matches!(self.answer["code"].as_u64(), None | Some(11 | 110 | 111));
        if self.killed || unsure { Outcome::Unknown } else { Outcome::Failed }
    }
}

/// Kills a call, or the delegate that it is running; tells whether there was anything to kill.
fn kill_part(child: &mut Child, whole: bool) -> bool {
    if child.try_wait().is_ok_and(|status| status.is_some()) {
        return false;
    }
    let id = child.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let delegate = children.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
    match delegate.filter(|_| !whole).and_then(Pid::from_raw) {
        Some(pid) => kill_process(pid, Signal::KILL).is_ok(),
        None => child.kill().is_ok(),
    }
}

fn addresses(answer: &Value) -> BTreeSet<std::net::IpAddr> {
    let ips = answer["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
}
