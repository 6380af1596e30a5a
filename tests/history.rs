//! Twenty workers, random kills, and a log of who held which address when: no address ever has two
//! holders, and nothing is left in the end.
//!
//! Every day a tenth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use ipam_testkit::history::site::{Site, assert_sound, collect_all};
use ipam_testkit::history::workload::{Report, Workload, seed};
use ipam_testkit::history::{has_double, judge, plant_double};
use ipam_testkit::world::{World, binary};
use serde_json::{Value, json};

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

    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let folder = self.world.path("data/net");
        let mut leases: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for name in ipam_testkit::world::names(&folder) {
            if let Ok(address) = name.parse() {
                let text = fs::read_to_string(folder.join(name)).unwrap();
                let owner = text.split("\r\n").next().unwrap().to_owned();
                leases.entry(owner).or_default().insert(address);
            }
        }
        leases
    }

    fn collectors(&self) -> Vec<usize> {
        vec![0, 2]
    }

    fn is_quiet_within(&self, time: Duration) -> bool {
        self.world.is_quiet_within(time)
    }
}

/// A part of the full size.
fn workload(part: usize) -> Workload {
    Workload {
        seed: seed(),
        workers: 20,
        operations: 20_000 / part,
        owners_per_worker: 5,
        kills: 60,
        call_time: Duration::from_millis(60),
        limit: Duration::from_secs(120),
    }
}

#[track_caller]
fn assert_well(local: &Local, report: &Report) {
    let lost: Vec<_> = report.failures.iter().filter(|failure| failure.verb == "CHECK").collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert!(report.hung.is_empty(), "{:?}", report.hung);
    assert_sound(local, report);
}

#[test]
fn no_address_ever_has_two_holders_and_nothing_is_left() {
    let part = if ipam_testkit::world::full_size() { 1 } else { 10 };
    let (local, workload) = (Local::new(), workload(part));
    let report = workload.run(&local);
    // Not through the harness, which keeps what a passing test prints.
    let _ = writeln!(std::io::stderr(), "history: seed {}, {report}", workload.seed);
    assert!(local.is_quiet_within(Duration::from_secs(15)), "processes live on");
    assert_well(&local, &report);
    assert_eq!(report.operations(), 20_000 / part);
    assert!(report.kills >= 500 / part, "only {} kills", report.kills);
    collect_all(&local);
    assert!(local.leases().is_empty(), "after GC: {:?}", local.leases());
}

#[test]
fn a_planted_double_in_a_real_history_is_found() {
    let local = Local::new();
    let workload = Workload { operations: 150, workers: 4, kills: 0, ..workload(10) };
    let mut report = workload.run(&local);
    assert_well(&local, &report);
    plant_double(&mut report.calls);
    let (violations, _) = judge(&report.calls, |call| call.ended);
    assert!(has_double(&violations), "{violations:?}");
}
