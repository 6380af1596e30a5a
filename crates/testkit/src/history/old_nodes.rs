//! Nodes that still have a replaced plugin: they work at random beside ours, and write down what
//! they saw.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::workload::{Random, now, seed};
use super::{Call, Outcome, Verb};

/// How many containers an old node has.
const CONTAINERS: usize = 4;

/// How many calls ours may be ahead of old nodes.
const AHEAD: usize = 40;

/// After how many of its requests a call that is killed has ended, at most.
const REQUESTS: u64 = 12;

/// How long an old node tries to release its containers in the end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node with a replaced plugin. It makes one call at a time.
pub trait OldNode: Sync {
    /// What the ids of its containers begin with, and those of no other node.
    fn name(&self) -> String;

    /// A call to its end, or one that is killed after so many requests, where the node can do that:
    /// none. An ADD tells its addresses, and a call that failed why.
    fn call(
        &self,
        verb: Verb,
        container: &str,
        killed_after: Option<usize>,
    ) -> Option<Result<Vec<IpAddr>, String>>;
}

/// What old nodes saw.
#[derive(Default)]
pub struct Plays {
    pub calls: Vec<Call>,
    /// What calls that failed said.
    pub failures: Vec<String>,
    pub killed: usize,
}

/// When old nodes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After their calls.
    AfterCalls,
    /// After their calls, and not before the other thing is done: it may take more of them.
    AfterAll,
}

/// Half of the calls are old nodes': ours wait for them.
#[derive(Default)]
pub struct Turns {
    /// How many old nodes work.
    working: AtomicUsize,
    ours: AtomicUsize,
    old: AtomicUsize,
}

impl Turns {
    /// Before a call of ours.
    pub fn wait(&self) {
        let number = self.ours.fetch_add(1, Ordering::Relaxed);
        let is_ahead = || number > self.old.load(Ordering::Relaxed) + AHEAD;
        while self.working.load(Ordering::Relaxed) > 0 && is_ahead() {
            sleep(Duration::from_millis(5));
        }
    }

    /// Lets old nodes make so many calls together, of which some in a thousand are killed, while
    /// something else is done with what they have seen until then.
    pub fn play<T>(
        &self,
        nodes: &[&dyn OldNode],
        count: usize,
        kills: u64,
        ending: Ending,
        meanwhile: impl FnOnce(&Mutex<Plays>) -> T,
    ) -> (Plays, T) {
        let is_over = &AtomicBool::new(ending == Ending::AfterCalls);
        let plays = Mutex::default();
        self.working.store(nodes.len(), Ordering::Relaxed);
        let done = thread::scope(|scope| {
            for (number, node) in nodes.iter().enumerate() {
                let (plays, random) = (&plays, Random(seed() ^ (number as u64 + 1) << 32));
                let count = count.div_ceil(nodes.len());
                scope.spawn(move || {
                    let _working = Working(&self.working);
                    let worker = OldWorker::new(*node, plays, random);
                    worker.run(count, kills, &self.old, is_over);
                });
            }
            let _over = Over(is_over);
            meanwhile(&plays)
        });
        (plays.into_inner().unwrap(), done)
    }

    /// How many old nodes work.
    pub fn working(&self) -> usize {
        self.working.load(Ordering::Relaxed)
    }
}

impl Plays {
    /// The share of their calls among all, in percent.
    pub fn share(&self, ours: usize) -> usize {
        100 * self.calls.len() / (self.calls.len() + ours)
    }
}

impl fmt::Display for Plays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, failures, killed } = self;
        let full = failures.iter().filter(|text| text.contains("Could not allocate")).count();
        write!(f, "{} ADDs and DELs, {killed} killed, {full} ADDs in a full pool, ", calls.len())?;
        write!(f, "{} failed in another way", failures.len() - full)?;
        let other = failures.iter().find(|text| !text.contains("Could not allocate"));
        other.map_or(Ok(()), |text| write!(f, ", as {text}"))
    }
}

/// Ends the work of old nodes, also after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts a node until it ends, in whatever way.
struct Working<'a>(&'a AtomicUsize);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An old node that works. A container whose ADD failed gets a DEL, as from a runtime.
struct OldWorker<'a> {
    node: &'a dyn OldNode,
    plays: &'a Mutex<Plays>,
    random: Random,
    may_hold: [bool; CONTAINERS],
}

impl<'a> OldWorker<'a> {
    fn new(node: &'a dyn OldNode, plays: &'a Mutex<Plays>, random: Random) -> Self {
        Self { node, plays, random, may_hold: [false; CONTAINERS] }
    }

    /// Makes so many calls, or more until it is over, and releases what is left then.
    fn run(mut self, count: usize, kills: u64, made: &AtomicUsize, is_over: &AtomicBool) {
        let mut calls = 0;
        while calls < count || !is_over.load(Ordering::Relaxed) {
            calls += 1;
            let place = self.random.below(CONTAINERS as u64) as usize;
            let is_killed = self.random.below(1000) < kills;
            let killed_after = is_killed.then(|| self.random.below(REQUESTS) as usize);
            self.call(place, killed_after);
            made.fetch_add(1, Ordering::Relaxed);
        }
        let give_up = Instant::now() + PATIENCE;
        while let Some(place) = self.may_hold.iter().position(|may_hold| *may_hold) {
            assert!(Instant::now() < give_up, "{} cannot release", self.node.name());
            self.call(place, None);
        }
    }

    fn call(&mut self, place: usize, killed_after: Option<usize>) {
        let container = format!("{}-{place}", self.node.name());
        let verb = if self.may_hold[place] { Verb::Del } else { Verb::Add };
        let began = now();
        let told = self.node.call(verb, &container, killed_after);
        let ended = now();
        let mut plays = self.plays.lock().unwrap();
        let outcome = match told {
            Some(Ok(given)) => Outcome::Done(BTreeSet::from_iter(given)),
            Some(Err(error)) => {
                plays.failures.push(error);
                Outcome::Unknown
            }
            None => {
                plays.killed += 1;
                Outcome::Unknown
            }
        };
        self.may_hold[place] = verb == Verb::Add || outcome == Outcome::Unknown;
        plays.calls.push(Call { owner: container, verb, began, ended, outcome });
    }
}
