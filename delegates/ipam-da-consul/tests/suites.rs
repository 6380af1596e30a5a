//! The leases in a real Consul pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipam_da_consul::Consul;
use ipam_kit::Result;
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::NetworkName;
use ipam_suites::between::{InterleavedLedger, next_commit};
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{Binary, Form, InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A server and a state folder.
struct Desk {
    server: Arc<ipam_testkit::consul::Consul>,
    state: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            server: Arc::new(ipam_testkit::consul::Consul::start()),
            state: TempDir::new().unwrap(),
        }
    }

    fn ipam(&self) -> Value {
        json!({"consul_servers": [self.server.url()], "stateDir": self.state.path()})
    }

    /// What makes all leases look older.
    fn aging(&self) -> impl Fn(Duration) + Send + Sync + 'static {
        let server = self.server.clone();
        move |by| age(&server, by)
    }
}

/// Writes owners and allocations again, each owner's in one transaction as we do, with an older time.
fn age(server: &ipam_testkit::consul::Consul, by: Duration) {
    let by = u64::try_from(by.as_millis()).unwrap();
    let older = |value: &str, member: &str| {
        let mut document: Value = serde_json::from_str(value).unwrap();
        document[member] = (document[member].as_u64().unwrap() - by).into();
        document
    };
    for owner in server.list("ipam/.owners/").iter().filter(|entry| !entry.key.contains("/.nodes/"))
    {
        let document = older(&owner.value, "confirmed");
        let mut ops = vec![(owner.key.clone(), document.to_string())];
        for item in document["leases"].as_array().unwrap() {
            let pool = item["pool"].as_str().or(document["network"].as_str()).unwrap();
            let address = item["address"].as_str().unwrap().split('/').next().unwrap();
            let key = format!("ipam/{pool}/{address}");
            let value = server.get(&key).unwrap();
            ops.push((key, older(&value, "time").to_string()));
        }
        server.put_all(ops);
    }
}

#[derive(Clone)]
struct MemoryStore(Value);

impl LedgerSubject for MemoryStore {
    type Ledger = InterleavedLedger<Consul>;

    fn open(&self, network: &NetworkName) -> Result<InterleavedLedger<Consul>> {
        // Networks may share pools, which are told apart by their names: here by that of the network.
        let mut ipam = self.0.clone();
        ipam["ranges"] = json!([[{"subnet": "10.1.2.0/24"}]]);
        let request = ledger_suite::request(network, &ipam)?;
        Ledger::open(request.network.settings()?, &request)
    }

    fn interleave(&self, between: Box<dyn FnOnce() + Send>) -> bool {
        next_commit(between)
    }
}

fn assert_well(report: &Report, not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

#[test]
fn the_ledger_in_consul_passes() {
    let desk = Desk::new();
    assert_well(&ledger_suite::run(&MemoryStore(desk.ipam())), 0);
}

#[test]
fn the_allocator_in_consul_passes() {
    let desk = Desk::new();
    let delegate = Allocate::<InterleavedLedger<Consul>>::default();
    let subject = InProcess::new(delegate, Reach::Cluster, desk.ipam())
        .interleaved(next_commit)
        .aging(desk.aging());
    let subject: Arc<dyn Subject> = Arc::new(subject);
    // It is no process that could be killed.
    assert_well(&allocator_suite::run(&subject, &[], &[]), 1);
}

#[test]
fn the_program_passes() {
    let desk = Desk::new();
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-consul"));
    let config = Map::from_iter([("ipam".to_owned(), desk.ipam())]);
    let subject = Binary::new(program, Form::Delegate, desk.state.path())
        .reaching(Reach::Cluster)
        .configured(config)
        .aging(desk.aging());
    let subject: Arc<dyn Subject> = Arc::new(subject);
    // Nothing can come between look and change.
    assert_well(&allocator_suite::run(&subject, &[], &[]), 3);
}
