//! Workers that call a plugin at random, are killed at random, and write down what they saw.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::site::Site;
use super::{Call, Outcome, Verb};
use crate::world::start;

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
    /// A call that takes longer hangs.
    pub limit: Duration,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Report {
    pub calls: Vec<Call>,
    pub checks: usize,
    /// Signals that met a process which still ran.
    pub kills: usize,
    pub unknown: usize,
    /// What was not killed and failed.
    pub failures: Vec<Failure>,
    /// Calls that had not ended in time.
    pub hung: Vec<String>,
    /// The longest call.
    pub longest: Duration,
}

/// A call that said that it failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub verb: &'static str,
    pub owner: String,
    /// None of an answer that is no error.
    pub code: Option<u64>,
    pub answer: Value,
    pub began: u64,
    pub ended: u64,
}

/// How far the workers have come.
#[derive(Debug)]
pub struct Progress {
    operations: usize,
    begun: AtomicUsize,
    working: AtomicUsize,
    /// Whether the workers go on however much they have done.
    held: AtomicBool,
}

/// Random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Nanoseconds since some moment that is the same for all.
pub fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// The seed that `IPAM_DELEGATED_SEED` sets, else 1.
pub fn seed() -> u64 {
    let seed = std::env::var("IPAM_DELEGATED_SEED").ok().and_then(|seed| seed.parse().ok());
    seed.unwrap_or(1)
}

impl Workload {
    pub fn run(&self, site: &impl Site) -> Report {
        self.go(site, false, |_| ()).0
    }

    /// Runs, and goes on until what is done meanwhile has ended, too.
    pub fn run_while<T: Send>(
        &self,
        site: &impl Site,
        meanwhile: impl FnOnce(&Progress) -> T + Send,
    ) -> (Report, T) {
        self.go(site, true, meanwhile)
    }

    fn go<T: Send>(
        &self,
        site: &impl Site,
        held: bool,
        meanwhile: impl FnOnce(&Progress) -> T + Send,
    ) -> (Report, T) {
        let report = Mutex::new(Report::default());
        let progress = Progress {
            operations: self.operations,
            begun: AtomicUsize::new(0),
            working: AtomicUsize::new(self.workers),
            held: AtomicBool::new(held),
        };
        let done = std::thread::scope(|scope| {
            for number in 0..self.workers {
                let (report, progress) = (&report, &progress);
                scope.spawn(move || {
                    let _working = Working(progress);
                    Worker::new(self, number).run(site, progress, report);
                });
            }
            let meanwhile = scope.spawn(|| meanwhile(&progress)).join();
            progress.held.store(false, Ordering::Relaxed);
            meanwhile.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        (report.into_inner().expect("no worker panicked"), done)
    }
}

impl Progress {
    /// How many operations have begun.
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many operations there are to be at least.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Whether all workers have ended, although they were to go on.
    pub fn is_over(&self) -> bool {
        self.working.load(Ordering::Acquire) == 0
    }

    fn begin(&self) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        let next = |begun: usize| (begun < self.operations || held).then_some(begun + 1);
        self.begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl Report {
    /// Adds what was seen later.
    pub fn append(&mut self, later: Self) {
        self.calls.extend(later.calls);
        self.checks += later.checks;
        self.kills += later.kills;
        self.unknown += later.unknown;
        self.failures.extend(later.failures);
        self.hung.extend(later.hung);
        self.longest = self.longest.max(later.longest);
    }

    /// How many operations there were.
    pub fn operations(&self) -> usize {
        self.calls.len() + self.checks
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, checks, kills, unknown, failures, longest, .. } = self;
        write!(f, "{} ADDs and DELs, {checks} CHECKs, {kills} kills, ", calls.len())?;
        write!(f, "{unknown} unknown outcomes, the longest call {longest:.1?}, errors:")?;
        let mut codes: BTreeMap<_, usize> = BTreeMap::new();
        for failure in failures {
            *codes.entry((failure.verb, failure.code)).or_default() += 1;
        }
        if codes.is_empty() {
            f.write_str(" none")?;
        }
        for ((verb, code), count) in codes {
            let code = code.map_or("none".to_owned(), |code| code.to_string());
            write!(f, " {verb} {code}: {count};")?;
        }
        Ok(())
    }
}

/// Counts a worker until it ends, in whatever way.
struct Working<'a>(&'a Progress);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Release);
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

struct Worker<'a> {
    load: &'a Workload,
    number: usize,
    random: Random,
    owners: Vec<Knows>,
}

/// A call that has ended.
struct Ended {
    began: u64,
    ended: u64,
    killed: bool,
    /// It had to be killed, for it did not end.
    hung: bool,
    exit: Option<i32>,
    answer: Value,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Workload, number: usize) -> Self {
        let random = Random(load.seed ^ (number as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let owners = vec![Knows::default(); load.owners_per_worker];
        Self { load, number, random, owners }
    }

    fn run(mut self, site: &impl Site, progress: &Progress, report: &Mutex<Report>) {
        while progress.begin() {
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
            ended.note(verb, &owner, &mut report);
            if verb == "CHECK" {
                report.checks += 1;
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
            let (began, ended) = (ended.began, ended.ended);
            report.calls.push(Call { owner, verb, began, ended, outcome });
        }
    }

    fn call(&mut self, mut command: Command, stdin: &Value) -> Ended {
        command.stderr(Stdio::null());
        let kill = self.random.below(1000) < self.load.kills;
        let delay = self.random.below(self.load.call_time.as_micros() as u64);
        let of_chain = self.random.below(2) == 0;
        let began = now();
        let give_up = Instant::now() + self.load.limit;
        let mut child = start(command, stdin);
        let killed = kill && {
            std::thread::sleep(Duration::from_micros(delay));
            kill_part(&mut child, of_chain)
        };
        let answered = read_until(&mut child, give_up);
        let status = wait_until(&mut child, give_up);
        let hung = answered.is_none() || status.is_none();
        if hung {
            let _ = child.kill();
            let _ = child.wait();
        }
        let killed = killed || status.is_some_and(|status| status.signal().is_some());
        let answer = serde_json::from_slice(&answered.unwrap_or_default()).unwrap_or_default();
        let exit = status.and_then(|status| status.code());
        Ended { began, ended: now(), killed, hung, exit, answer }
    }
}

impl Ended {
    fn failure(&self) -> Outcome {
        // Of what was given up, and of what says that it does not know, nobody knows.
        let unsure = matches!(self.code(), None | Some(11 | 110 | 111));
        if self.killed || unsure { Outcome::Unknown } else { Outcome::Failed }
    }

    fn code(&self) -> Option<u64> {
        self.answer["code"].as_u64()
    }

    fn note(&self, verb: &'static str, owner: &str, report: &mut Report) {
        report.kills += usize::from(self.killed);
        report.longest = report.longest.max(Duration::from_nanos(self.ended - self.began));
        if self.hung {
            report.hung.push(format!("{verb} of {owner}"));
        } else if self.exit != Some(0) && !self.killed {
            let Self { began, ended, .. } = *self;
            let (owner, code, answer) = (owner.to_owned(), self.code(), self.answer.clone());
            report.failures.push(Failure { verb, owner, code, answer, began, ended });
        }
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

/// What a call prints until nobody has its stdout any more; none when that does not come in time.
fn read_until(child: &mut Child, give_up: Instant) -> Option<Vec<u8>> {
    let mut stdout = child.stdout.take().expect("it is piped");
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = give_up.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a short time");
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return None,
            Ok(_) => match stdout.read(&mut piece).expect("a pipe can be read") {
                0 => return Some(text),
                length => text.extend(&piece[..length]),
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The end of a call; none when it does not come in time.
fn wait_until(child: &mut Child, give_up: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() > give_up {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn addresses(answer: &Value) -> BTreeSet<IpAddr> {
    let ips = answer["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
}
