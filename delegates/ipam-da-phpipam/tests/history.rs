//! Three nodes and many workers with ADDs, CHECKs and DELs, random kills of calls, and a server whose
//! lock is held for a while and which ends connections: records come late, and changes fail for want of it.
//! No address ever has two holders, every call ends, and nothing is left in the end.
//!
//! Every day a twentieth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it. `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use ipam_testkit::history::cluster::{Fault, Lease, Nodes, Store, Window};
use ipam_testkit::history::site::{Site, assert_sound, collect_all};
use ipam_testkit::history::workload::{Progress, Report, Workload, now, seed};
use ipam_testkit::history::{Outcome, Verb, has_double, judge, plant_double};
use ipam_testkit::phpipam::{APP, CODE, LockKind, PhpIpam, Record};
use ipam_testkit::world::full_size;
use serde_json::{Map, Value, json};

const SECOND: Duration = Duration::from_secs(1);

/// How long a change waits for the lock.
const WAIT: Duration = Duration::from_millis(800);

/// Later than any request of a killed call can be done.
const LATE: Duration = Duration::from_secs(3);

const KEY: &str = "cni_key";

/// The records of two subnets with fewer addresses than there are owners.
struct Records<'a> {
    server: &'a PhpIpam,
    subnets: [String; 2],
    has_key: bool,
}

impl<'a> Records<'a> {
    #[track_caller]
    fn on(server: &'a PhpIpam, has_key: bool) -> Self {
        let subnets =
            ["10.5.0.0/27", "fd05::/120"].map(|cidr| server.subnet(cidr, &format!("of {cidr}")));
        Self { server, subnets, has_key }
    }

    fn all(&self) -> Vec<Record> {
        self.subnets.iter().flat_map(|subnet| self.server.records(subnet)).collect()
    }
}

impl Store for Records<'_> {
    const NAME: &'static str = "phpipam";

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        let pools = self.subnets.iter().map(|subnet| json!({"name": subnet})).collect();
        ipam.insert("pools".to_owned(), pools);
        let mut section =
            json!({"urls": endpoints, "appId": APP, "token": CODE, "timeout": timeout});
        if self.has_key {
            section["keyField"] = KEY.into();
        }
        ipam.insert("phpipam".to_owned(), section);
    }

    fn leases(&self) -> Vec<Lease> {
        self.all().iter().map(lease).collect()
    }

    /// A record is the owner's, too.
    fn owners(&self) -> Vec<Value> {
        let mut owners: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
        for Lease { node, container, address } in self.leases() {
            owners.entry((node, container)).or_default().push(json!({"address": address}));
        }
        let document = |((node, container), leases)| json!({"node": node, "container": container, "leases": Value::Array(leases)});
        owners.into_iter().map(document).collect()
    }

    fn forget_leases(&self) {
        self.all().iter().for_each(|record| self.server.delete(&record.id));
    }

    fn holdings(&self) -> Vec<String> {
        self.all().into_iter().map(|record| record.note).collect()
    }
}

/// Whose record it is, by its mark `ipd:NODE/NETWORK/CONTAINER/IFNAME`.
fn lease(record: &Record) -> Lease {
    let mark = record.note.strip_prefix("ipd:").unwrap();
    let mut parts = mark.split('/');
    let node = uuid(parts.next().unwrap().strip_prefix('~').unwrap());
    let container = parts.nth(1).unwrap().to_owned();
    Lease { node, container, address: record.address.parse().unwrap() }
}

/// The identity of a node, of which a mark has 22 characters of base64url.
fn uuid(text: &str) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let value = |digit| DIGITS.find(digit).unwrap();
    let bits: String = text.chars().map(|digit| format!("{:06b}", value(digit))).collect();
    let number = u128::from_str_radix(&bits[..128], 2).unwrap();
    let digits = format!("{number:032x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

/// Holds the lock for less and for more than a change waits, and ends connections, in turn and so
/// often while the work goes on.
fn disturb(server: &PhpIpam, progress: &Progress, times: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let every = progress.operations() / (times + 1);
    while windows.len() < times && !progress.is_over() {
        if progress.begun() < every * (windows.len() + 1) {
            sleep(SECOND / 50);
            continue;
        }
        let from = now();
        match windows.len() % 3 {
            0 => {
                let turn = server.hold();
                sleep(WAIT / 2);
                drop(turn);
            }
            1 => {
                let turn = server.hold();
                sleep(WAIT * 2);
                drop(turn);
            }
            _ => {
                server.set_down(true);
                sleep(SECOND / 2);
                server.set_down(false);
            }
        }
        windows.push(Window { fault: Fault::Killed, from, until: now() });
    }
    windows
}

/// All calls have ended, and failed only with a full subnet, or with a code that means to try again.
#[track_caller]
fn assert_ended(report: &Report) {
    assert!(report.hung.is_empty(), "{:?}", report.hung);
    let known = [11, 100, 105, 111].map(Some);
    let mut others = report.failures.iter().filter(|failure| !known.contains(&failure.code));
    assert_eq!(others.next(), None);
    let adds = report.calls.iter().filter(|call| call.verb == Verb::Add);
    let (done, failed): (Vec<_>, Vec<_>) =
        adds.partition(|call| matches!(call.outcome, Outcome::Done(_)));
    assert!(done.len() > failed.len(), "{} ADDs were done, {} were not", done.len(), failed.len());
}

#[track_caller]
fn assert_sound_with(lock: LockKind, has_key: bool) {
    let server = PhpIpam::builder().lock(lock).waiting(WAIT).key_field(KEY).start();
    let nodes = Nodes::new(vec![server.url()], Records::on(&server, has_key));
    let (operations, faults) = if full_size() { (4_000, 30) } else { (200, 6) };
    let workload = Workload {
        seed: seed(),
        workers: 9,
        operations,
        owners_per_worker: 4,
        kills: 100,
        call_time: SECOND / 10,
        limit: 120 * SECOND,
    };
    let (mut report, windows) =
        workload.run_while(&nodes, |progress| disturb(&server, progress, faults));
    let _ = writeln!(std::io::stderr(), "history on phpipam: seed {}, {report}", workload.seed);
    assert_eq!(windows.len(), faults);
    assert!(report.kills > 0);
    assert!(nodes.is_quiet_within(60 * SECOND), "processes live on");
    assert_ended(&report);
    nodes.remember(&windows);
    sleep(LATE);
    assert_sound(&nodes, &report);

    let calm =
        Workload { operations: operations / 5, kills: 0, seed: workload.seed + 1, ..workload };
    let later = calm.run(&nodes);
    assert_ended(&later);
    report.append(later);
    assert_sound(&nodes, &report);
    // It would be seen.
    plant_double(&mut report.calls);
    let (violations, _) = judge(&report.calls, |call| nodes.settled(call));
    assert!(has_double(&violations), "{violations:?}");

    nodes.release_all(&workload);
    collect_all(&nodes);
    assert_eq!(nodes.holdings(), [""; 0]);
}

#[test]
fn no_address_ever_has_two_holders_whatever_happens_to_the_lock() {
    assert_sound_with(LockKind::File, false);
}

#[test]
fn no_address_ever_has_two_holders_where_a_key_keeps_owners_apart() {
    assert_sound_with(LockKind::Disabled, true);
}
