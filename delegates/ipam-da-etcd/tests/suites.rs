//! The leases in a real etcd pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, missing_docs, reason = "the rooms of a program, which is no library")]

#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/client.rs"]
mod client;
#[path = "../src/config.rs"]
mod config;
#[path = "../src/connection.rs"]
mod connection;
#[path = "../src/document.rs"]
mod document;
#[path = "../src/endpoint.rs"]
mod endpoint;
#[path = "../../../tests/support/etcd/mod.rs"]
mod etcd;
#[path = "../src/keys.rs"]
mod keys;
#[path = "../src/ledger.rs"]
mod ledger;
#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/page.rs"]
mod page;
#[path = "../src/refusal.rs"]
mod refusal;
#[path = "../src/removal.rs"]
mod removal;
#[path = "../src/tls.rs"]
mod tls;
#[path = "../src/token.rs"]
mod token;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipam_delegated::allocate::{Allocate, Bookkeeper, Ledger, Reach};
use ipam_delegated::cni::{Environment, NetworkName, Verb};
use ipam_delegated::delegate::Deadline;
use ipam_delegated::host::Settings;
use ipam_delegated::testing::between::{Between, next_commit};
use ipam_delegated::testing::ledger_suite::{self, Stage};
use ipam_delegated::testing::subject::{Binary, Form, InProcess, Subject};
use ipam_delegated::testing::{Report, allocator_suite};
use ipam_delegated::{ErrorCode, Request, Result};
use ledger::Etcd;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A server and a state folder.
struct Desk {
    server: Arc<etcd::Etcd>,
    state: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self { server: Arc::new(etcd::Etcd::start()), state: TempDir::new().unwrap() }
    }

    fn ipam(&self) -> Value {
        json!({"etcd": {"endpoints": [self.server.endpoint()]}, "stateDir": self.state.path()})
    }

    /// What makes all leases look older.
    fn aging(&self) -> impl Fn(Duration) + Send + Sync + 'static {
        let server = self.server.clone();
        move |by| age(&server.endpoint(), by)
    }
}

/// Writes the owners of all networks again, each in one transaction as we do, with an older time.
fn age(endpoint: &str, by: Duration) {
    let config = json!({"etcd": {"endpoints": [endpoint]}});
    let store = serde_json::from_value::<config::Config>(config).unwrap().store().unwrap();
    let client =
        client::Client::new(&store, None, ErrorCode::TRY_AGAIN, Deadline::after(Deadline::DEFAULT))
            .unwrap();
    let mut owners = Vec::new();
    let networks = format!("{}/networks/", store.prefix);
    let found = page::below(&client, &networks, |_| Ok(()), &mut |found| {
        if found.key_str().unwrap().contains("/owners/") {
            owners.push((
                found.key_str().unwrap().to_owned(),
                document::Holding::read(found).unwrap(),
            ));
        }
        ControlFlow::Continue(())
    });
    found.unwrap();
    for (key, mut holding) in owners {
        let network = NetworkName::parse(&holding.document.network).unwrap();
        holding.document.confirmed -= u64::try_from(by.as_millis()).unwrap();
        let mut writes = Vec::new();
        let keys = keys::Keys::new(&store.prefix, &network);
        claim::write_owner(&keys, key, &holding.document, &mut writes);
        client.write(&etcd_client::Txn::new().and_then(writes)).unwrap().unwrap();
    }
}

#[derive(Clone)]
struct Store(Value);

impl Stage for Store {
    type Ledger = Between<Etcd>;

    fn open(&self, network: &NetworkName) -> Result<Between<Etcd>> {
        let config = json!({"cniVersion": "1.1.0", "name": network.as_str(), "ipam": self.0});
        let environment = Environment::new([
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
        ]);
        let stdin = config.to_string();
        let request =
            Request::parse(Verb::Del, environment, stdin.as_bytes(), Settings::default())?;
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
fn the_ledger_in_etcd_passes() {
    let desk = Desk::new();
    assert_well(&ledger_suite::run(&Store(desk.ipam())), 0);
}

#[test]
fn the_allocator_in_etcd_passes() {
    let desk = Desk::new();
    let delegate: Allocate<Bookkeeper<Between<Etcd>>> = Allocate::default();
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
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-etcd"));
    let config = Map::from_iter([("ipam".to_owned(), desk.ipam())]);
    let subject = Binary::new(program, Form::Delegate, desk.state.path())
        .reaching(Reach::Cluster)
        .configured(config)
        .aging(desk.aging());
    let subject: Arc<dyn Subject> = Arc::new(subject);
    // Nothing can come between look and change.
    assert_well(&allocator_suite::run(&subject, &[], &[]), 3);
}
