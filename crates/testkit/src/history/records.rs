//! A history on a server of address records: three nodes and many workers with ADDs, CHECKs and
//! DELs, random kills of calls, and a server that is disturbed meanwhile.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::cluster::{Fault, Lease, Nodes, Store, Window};
use super::site::{Site, assert_sound, collect_all};
use super::workload::{Progress, Report, Workload, now, seed};
use super::{Outcome, Verb, has_double, judge, plant_double};

const SECOND: Duration = Duration::from_secs(1);

/// The subnets of a history, with fewer addresses than there are owners.
pub const SUBNETS: [&str; 2] = ["10.5.0.0/27", "fd05::/120"];

/// A server of records, with [`SUBNETS`].
pub trait RecordStore: Sync {
    /// The name of its section in `ipam`; its allocator is `ipam-da-NAME`.
    const NAME: &'static str;

    /// The ids of the subnets.
    fn subnets(&self) -> &[String];

    /// The section of its settings.
    fn section(&self, endpoints: &[String], timeout: &str) -> Value;

    /// The records of all subnets.
    fn records(&self) -> Vec<MarkedRecord>;

    /// Deletes a record by its id.
    fn delete(&self, id: &str);

    /// Disturbs the server for a while; `number` counts from 0.
    fn disturb(&self, number: usize);
}

/// A record of an address.
pub struct MarkedRecord {
    pub id: String,
    pub address: IpAddr,
    /// The text with the mark `ipd:NODE/NETWORK/CONTAINER/IFNAME`.
    pub text: String,
}

impl MarkedRecord {
    fn lease(&self) -> Lease {
        let mark = self.text.strip_prefix("ipd:").unwrap();
        let mut parts = mark.split([' ', '/']);
        let node = uuid(parts.next().unwrap().strip_prefix('~').unwrap());
        let container = parts.nth(1).unwrap().to_owned();
        Lease { node, container, address: self.address }
    }
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

struct Records<'a, R>(&'a R);

impl<R: RecordStore> Store for Records<'_, R> {
    const NAME: &'static str = R::NAME;

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        let pools = self.0.subnets().iter().map(|subnet| json!({"name": subnet})).collect();
        ipam.insert("pools".to_owned(), pools);
        ipam.insert(R::NAME.to_owned(), self.0.section(endpoints, timeout));
    }

    fn leases(&self) -> Vec<Lease> {
        self.0.records().iter().map(MarkedRecord::lease).collect()
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
        self.0.records().iter().for_each(|record| self.0.delete(&record.id));
    }

    fn holdings(&self) -> Vec<String> {
        self.0.records().into_iter().map(|record| record.text).collect()
    }
}

/// The size of a history, and the pace of its server.
pub struct Plan {
    pub operations: usize,
    pub disturbances: usize,
    /// How long a call takes, about.
    pub call_time: Duration,
    /// After this time, all requests of killed calls have ended.
    pub late: Duration,
}

/// Runs a history: no address ever has two holders, every call ends, and nothing is left in the end.
#[track_caller]
pub fn assert_sound_on_records<R: RecordStore>(endpoint: String, store: &R, plan: &Plan) {
    let nodes = Nodes::new(vec![endpoint], Records(store));
    let workload = Workload {
        seed: seed(),
        workers: 9,
        operations: plan.operations,
        owners_per_worker: 4,
        kills: 100,
        call_time: plan.call_time,
        limit: 120 * SECOND,
    };
    let (mut report, windows) =
        workload.run_while(&nodes, |progress| disturb(store, progress, plan.disturbances));
    let _ = writeln!(std::io::stderr(), "history on {}: seed {}, {report}", R::NAME, workload.seed);
    assert_eq!(windows.len(), plan.disturbances);
    assert!(report.kills > 0);
    assert!(nodes.is_quiet_within(60 * SECOND), "processes live on");
    assert_ended(&report);
    nodes.remember(&windows);
    sleep(plan.late);
    assert_sound(&nodes, &report);

    let calm =
        Workload { operations: plan.operations / 5, kills: 0, seed: workload.seed + 1, ..workload };
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

/// Disturbs the server so often, while the work goes on.
fn disturb(store: &impl RecordStore, progress: &Progress, times: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let every = progress.operations() / (times + 1);
    while windows.len() < times && !progress.is_over() {
        if progress.begun() < every * (windows.len() + 1) {
            sleep(SECOND / 50);
            continue;
        }
        let from = now();
        store.disturb(windows.len());
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
