//! A store with the programs that work on it, and what must be true of it after a workload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::workload::Report;
use super::{Call, Violation, judge};
use crate::world::{Host, start, wait};

/// What is worked on.
pub trait Site: Sync {
    /// A call for an owner, ready to be started, and its stdin. All calls for an owner are of one
    /// program. A CHECK comes with what the ADD answered. A GC has no owner, and lists nobody.
    fn call(&self, verb: &str, worker: usize, owner: &str, answer: &Value) -> (Command, Value);

    /// The addresses that the store says are held, by owner.
    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>>;

    /// Workers whose GCs together are about everything.
    fn collectors(&self) -> Vec<usize>;

    /// Whether all processes of the calls have ended, within this time.
    fn is_quiet_within(&self, time: Duration) -> bool;

    /// What there is to read about an owner, for a person who looks at a failure.
    fn about(&self, _owner: &str) -> String {
        String::new()
    }

    /// When nothing more can come of an ADD: a store may do late what it was asked for.
    fn settled(&self, add: &Call) -> u64 {
        add.ended
    }
}

/// No address had two holders, and the store holds what the log says of its end.
#[track_caller]
pub fn assert_sound(site: &impl Site, report: &Report) {
    let (violations, end) = judge(&report.calls, |call| site.settled(call));
    let tell = |violation: &Violation| match violation {
        Violation::Double { first, second, .. } => {
            format!("{}\n{}", story(site, report, &first.owner), story(site, report, &second.owner))
        }
        Violation::Moved { owner, .. } => story(site, report, owner),
    };
    let told = violations.first().map(tell).unwrap_or_default();
    assert!(violations.is_empty(), "{violations:#?}\n{told}");
    let leases = site.leases();
    for (owner, addresses) in &end.certain {
        let held = leases.get(owner);
        assert_eq!(held, Some(addresses), "{owner}\n{}", story(site, report, owner));
    }
    for (owner, addresses) in &leases {
        assert!(
            end.possible.contains(owner),
            "{owner} was released, and holds {addresses:?}\n{}",
            story(site, report, owner)
        );
    }
}

/// The last calls of an owner, their errors, and what else is known.
fn story(site: &impl Site, report: &Report, owner: &str) -> String {
    let calls: Vec<_> = report.calls.iter().filter(|call| call.owner == owner).collect();
    let failures = report.failures.iter().filter(|failure| failure.owner == owner);
    let mut lines: Vec<(u64, String)> =
        calls.iter().map(|call| (call.began, format!("{call:?}"))).collect();
    lines.extend(failures.map(|failure| (failure.began, format!("  {}", failure.answer))));
    lines.sort();
    let last = lines.len().saturating_sub(20);
    let lines: Vec<String> = lines.split_off(last).into_iter().map(|(_, line)| line).collect();
    format!("{}\n{}", lines.join("\n"), site.about(owner))
}

/// GC of everything, with no grace.
#[track_caller]
pub fn collect_all(site: &impl Site) {
    let host = Host::new();
    host.settings(&json!({"gcGrace": "0s"}));
    for worker in site.collectors() {
        let (inside, mut network) = site.call("GC", worker, "", &Value::Null);
        network["cni.dev/valid-attachments"] = json!([]);
        let mut command = host.enter(inside.get_program());
        command.env_clear();
        command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, &network)).success();
    }
}
