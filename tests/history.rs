//! Twenty workers, random kills, and a log of who held which address when: no address ever has two
//! holders, and nothing is left in the end.
//!
//! Every day a tenth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "history/mod.rs"]
mod checker;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use checker::workload::{Report, Site, Workload};
use checker::{Outcome, Verb, Violation, judge};
use serde_json::{Value, json};
use support::{Host, World, binary, start, wait};

/// Leases on the local disk, by three programs: the chain, the preset, the allocator alone.
struct Local {
    world: World,
}

impl Local {
    fn new() -> Self {
        let world = World::new();
        for name in ["ipam-ds-static", "ipam-da-local"] {
            world.install(&binary(name));
        }
        let link = world.path("bin/host-local");
        std::os::unix::fs::symlink(binary("ipam-delegated"), link).unwrap();
        Self { world }
    }

    fn network(&self, worker: usize) -> Value {
        let mut network = self.world.network(json!(["ipam-ds-static", "ipam-da-local"]));
        // Fewer addresses than owners.
        let sets = json!([[{"subnet": "10.5.0.0/26"}], [{"subnet": "fd05::/120"}]]);
        network["cniVersion"] = "1.1.0".into();
        network["ipam"]["ranges"] = sets.clone();
        match worker % 3 {
            0 => {}
            1 => {
                network["ipam"]["type"] = "host-local".into();
                network["ipam"].as_object_mut().unwrap().remove("delegates");
            }
            _ => {
                network["ipam"]["type"] = "ipam-da-local".into();
                network["ipam"]["node"] = "node-1".into();
                let pool =
                    |(index, ranges): (usize, &Value)| json!({"index": index, "ranges": ranges});
                let pools: Vec<Value> =
                    sets.as_array().unwrap().iter().enumerate().map(pool).collect();
                network["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [], "pools": pools});
            }
        }
        network
    }

    /// The addresses on file, by owner.
    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let folder = self.world.path("data/net");
        let mut leases: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for name in support::names(&folder) {
            if let Ok(address) = name.parse() {
                let text = fs::read_to_string(folder.join(name)).unwrap();
                let owner = text.split("\r\n").next().unwrap().to_owned();
                leases.entry(owner).or_default().insert(address);
            }
        }
        leases
    }

    /// GC of everything, with no grace.
    fn collect_all(&self) {
        let host = Host::new();
        host.settings(&json!({"gcGrace": "0s"}));
        for worker in [0, 2] {
            let (inside, mut network) = self.call("GC", worker, "", &Value::Null);
            network["cni.dev/valid-attachments"] = json!([]);
            let mut command = host.enter(inside.get_program());
            command.env_clear();
            command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
            command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
            command.stdin(std::process::Stdio::piped());
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            wait(start(command, &network)).success();
        }
    }
}

impl Site for Local {
    fn call(&self, verb: &str, worker: usize, owner: &str, answer: &Value) -> (Command, Value) {
        let program = match worker % 3 {
            0 => binary("ipam-delegated"),
            1 => self.world.path("bin/host-local"),
            _ => binary("ipam-da-local"),
        };
        let mut network = self.network(worker);
        if verb == "CHECK" {
            let pools = network["prevResult"]["pools"].take();
            network["prevResult"] = answer.clone();
            if !pools.is_null() {
                network["prevResult"]["pools"] = pools;
            }
        }
        (self.world.command_of(&program, verb, owner), network)
    }
}

/// A part of the full size.
fn workload(part: usize) -> Workload {
    let seed = std::env::var("IPAM_DELEGATED_SEED").ok().and_then(|seed| seed.parse().ok());
    Workload {
        seed: seed.unwrap_or(1),
        workers: 20,
        operations: 20_000 / part,
        owners_per_worker: 5,
        kills: 60,
        call_time: Duration::from_millis(60),
    }
}

#[track_caller]
fn judged(local: &Local, report: &Report) {
    assert!(report.lost.is_empty(), "lost: {:?}", report.lost);
    let (violations, end) = judge(&report.calls);
    assert!(violations.is_empty(), "{violations:?}");
    let leases = local.leases();
    for (owner, addresses) in &end.certain {
        assert_eq!(leases.get(owner), Some(addresses), "{owner}");
    }
    for (owner, addresses) in &leases {
        assert!(end.possible.contains(owner), "{owner} was released, and holds {addresses:?}");
    }
}

#[test]
fn no_address_ever_has_two_holders_and_nothing_is_left() {
    let part = if support::full_size() { 1 } else { 10 };
    let (local, workload) = (Local::new(), workload(part));
    let report = workload.run(&local);
    // Not through the harness, which keeps what a passing test prints.
    let _ = writeln!(
        std::io::stderr(),
        "history: seed {}, {} ADDs and DELs, {} CHECKs, {} kills, {} unknown outcomes, {} failed",
        workload.seed,
        report.calls.len(),
        report.checks,
        report.kills,
        report.unknown,
        report.failed
    );
    assert!(local.world.is_quiet_within(Duration::from_secs(15)), "processes live on");
    judged(&local, &report);
    assert_eq!(report.calls.len() + report.checks, 20_000 / part);
    assert!(report.kills >= 500 / part, "only {} kills", report.kills);
    local.collect_all();
    assert!(local.leases().is_empty(), "after GC: {:?}", local.leases());
}

#[test]
fn a_planted_double_in_a_real_history_is_found() {
    let local = Local::new();
    let workload = Workload { operations: 150, workers: 4, kills: 0, ..workload(10) };
    let mut report = workload.run(&local);
    judged(&local, &report);
    // Somebody else is given what an owner of the log certainly held.
    let (_, end) = judge(&report.calls);
    let (owner, addresses) = end.certain.first_key_value().expect("something is held");
    let of_owner = |call: &&checker::Call| call.owner == *owner && call.verb == Verb::Add;
    let last = report.calls.iter().filter(of_owner).max_by_key(|call| call.began).unwrap();
    let mut planted = last.clone();
    planted.owner = "planted".to_owned();
    planted.outcome = Outcome::Done(BTreeSet::from([*addresses.first().unwrap()]));
    report.calls.push(planted);
    let (violations, _) = judge(&report.calls);
    assert!(
        violations.iter().any(|violation| matches!(violation, Violation::Double { .. })),
        "{violations:?}"
    );
}
