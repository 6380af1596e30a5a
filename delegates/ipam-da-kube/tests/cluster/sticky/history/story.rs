//! What the log of calls does not say: the sandboxes of pods, and how they ended.

use std::collections::BTreeMap;

use ipam_testkit::history::workload::{Random, Report, now};
use ipam_testkit::history::{Call, Outcome, Verb};

use super::fleet::node_of;

/// A sandbox of a pod. The latest one of each pod is called for.
#[derive(Clone)]
pub struct Sandbox {
    pub container: String,
    pub number: usize,
    /// The uid of its pod.
    pub uid: String,
    /// Its node was off since it was made, and its pod is deleted.
    pub is_lost: bool,
}

/// A time for which a node was off.
pub struct Loss {
    pub node: usize,
    pub from: u64,
    pub until: u64,
}

/// Pods have the names of the owners in the log.
pub struct Story {
    pub random: Random,
    /// For each pod its calls: when each was made ready, and for which sandbox.
    pub calls: BTreeMap<String, Vec<(u64, Sandbox)>>,
    /// When sandboxes ended that got no DEL: with their node, or by the next one of their pod.
    pub ended: BTreeMap<String, u64>,
    /// Sandboxes whose runtime is late with the DEL.
    pub late: Vec<(String, Sandbox)>,
    pub losses: Vec<Loss>,
}

impl Story {
    pub fn new(random: Random) -> Self {
        Self {
            random,
            calls: BTreeMap::new(),
            ended: BTreeMap::new(),
            late: Vec::new(),
            losses: Vec::new(),
        }
    }

    /// The latest sandbox of each pod.
    pub fn latest(&self) -> Vec<(String, Sandbox)> {
        let of = |(pod, calls): (&String, &Vec<(u64, Sandbox)>)| {
            (pod.clone(), calls.last().unwrap().1.clone())
        };
        self.calls.iter().map(of).collect()
    }

    /// Ends a sandbox without a DEL.
    pub fn end(&mut self, pod: &str, sandbox: Sandbox) {
        self.ended.entry(sandbox.container.clone()).or_insert_with(now);
        self.late.push((pod.to_owned(), sandbox));
    }

    /// Ends all sandboxes of a node that is off. Returns their pods.
    pub fn lose(&mut self, node: usize) -> Vec<String> {
        let mut lost = Vec::new();
        for (pod, calls) in self.calls.iter_mut().filter(|(pod, _)| node_of(pod) == node) {
            let latest = &mut calls.last_mut().unwrap().1;
            if !latest.is_lost {
                lost.push((pod.clone(), latest.clone()));
                latest.is_lost = true;
            }
        }
        lost.iter().for_each(|(pod, sandbox)| self.end(pod, sandbox.clone()));
        lost.into_iter().map(|(pod, _)| pod).collect()
    }

    /// The sandbox for which a call of a pod began at a time, and when the call was made ready.
    pub fn sandbox_at(&self, pod: &str, began: u64) -> (u64, &Sandbox) {
        let calls = &self.calls[pod];
        let (ready, sandbox) = &calls[calls.partition_point(|(ready, _)| *ready <= began) - 1];
        (*ready, sandbox)
    }

    /// The calls of a report, by sandbox. A call that ran while its node was off proves nothing.
    pub fn calls_of(&self, report: &Report) -> Vec<Call> {
        let of_report = |call: &Call| {
            let (ready, sandbox) = self.sandbox_at(&call.owner, call.began);
            let node = node_of(&call.owner);
            let is_cut =
                |loss: &Loss| loss.node == node && ready < loss.until && loss.from < call.ended;
            let mut call = Call { owner: sandbox.container.clone(), ..call.clone() };
            if call.verb == Verb::Add && self.losses.iter().any(is_cut) {
                call.outcome = Outcome::Unknown;
            }
            call
        };
        let end = |(container, at): (&String, &u64)| {
            let (owner, began, ended) = (container.clone(), *at, *at);
            Call { owner, verb: Verb::Del, began, ended, outcome: Outcome::Unknown }
        };
        report.calls.iter().map(of_report).chain(self.ended.iter().map(end)).collect()
    }
}
