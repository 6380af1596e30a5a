//! The leases in a real etcd pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, missing_docs, reason = "the rooms of a program, which is no library")]

#[path = "../src/change.rs"]
mod change;
#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/client.rs"]
mod client;
#[path = "../src/codec.rs"]
mod codec;
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
#[path = "../src/greeting.rs"]
mod greeting;
#[path = "../src/held.rs"]
mod held;
#[path = "../src/hints.rs"]
mod hints;
#[path = "../src/keys.rs"]
mod keys;
#[path = "../src/layout.rs"]
mod layout;
#[path = "../src/ledger.rs"]
mod ledger;
#[path = "../src/lock.rs"]
mod lock;
#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/page.rs"]
mod page;
#[path = "../src/present.rs"]
mod present;
#[path = "../src/refusal.rs"]
mod refusal;
#[path = "../src/removal.rs"]
mod removal;
#[path = "../src/scan.rs"]
mod scan;
#[path = "../src/tls.rs"]
mod tls;
#[path = "../src/token.rs"]
mod token;
#[path = "../src/view.rs"]
mod view;
#[path = "../src/written.rs"]
mod written;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipam_delegated::allocate::{Allocate, Bookkeeper, Ledger, Reach};
use ipam_delegated::cni::{Environment, IpamResult, Keep, NetworkName, Verb};
use ipam_delegated::delegate::{Deadline, Delegate};
use ipam_delegated::host::Settings;
use ipam_delegated::testing::between::{Between, next_commit};
use ipam_delegated::testing::ledger_suite::{self, Stage};
use ipam_delegated::testing::subject::{Binary, Form, InProcess, Subject};
use ipam_delegated::testing::{Report, allocator_suite};
use ipam_delegated::{ErrorCode, Request, Result};
use layout::{LAYOUTS, Layout};
use ledger::Etcd;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A server and a state folder.
struct Desk {
    server: Arc<etcd::Etcd>,
    state: TempDir,
    layout: &'static Layout,
}

impl Desk {
    /// One of each layout.
    fn each() -> impl Iterator<Item = Self> {
        LAYOUTS.into_iter().map(|layout| Self {
            server: Arc::new(etcd::Etcd::start()),
            state: TempDir::new().unwrap(),
            layout,
        })
    }

    fn ipam(&self) -> Value {
        json!({
            "etcd": {"endpoints": [self.server.endpoint()], "layout": self.layout.name},
            "stateDir": self.state.path(),
        })
    }

    /// What makes all leases look older.
    fn aging(&self) -> impl Fn(Duration) + Send + Sync + 'static {
        let (server, layout) = (self.server.clone(), self.layout);
        move |by| age(&server.endpoint(), layout, by)
    }
}

/// Writes the owners of all networks again, each in one transaction as we do, with an older time.
fn age(endpoint: &str, layout: &'static Layout, by: Duration) {
    let config = json!({"etcd": {"endpoints": [endpoint], "layout": layout.name}});
    let store = serde_json::from_value::<config::Config>(config).unwrap().store().unwrap();
    let client =
        client::Client::new(&store, None, ErrorCode::TRY_AGAIN, Deadline::after(Deadline::DEFAULT))
            .unwrap();
    let mut owners = Vec::new();
    let all = format!("{}/", store.prefix);
    let found = page::below(&client, &all, |_| Ok(()), &mut |found| {
        if found.key_str().unwrap().contains("/owners/") {
            owners.push((found.key_str().unwrap().to_owned(), document::holding(found).unwrap()));
        }
        ControlFlow::Continue(())
    });
    found.unwrap();
    for (key, mut holding) in owners {
        let network = NetworkName::parse(&holding.document.network).unwrap();
        holding.document.confirmed -= u64::try_from(by.as_millis()).unwrap();
        let mut writes = Vec::new();
        let (prefix, _) =
            key.split_once("/networks/").or_else(|| key.split_once(layout.owners)).unwrap();
        let keys = keys::Keys::new(layout, prefix, &network);
        claim::write_owner(&keys, key, &holding.document, &mut writes);
        client.write(&etcd_client::Txn::new().and_then(writes)).unwrap().unwrap();
    }
}

#[derive(Clone)]
struct Store(Value);

/// A delegate with a prefix of its own for each network: the suites take it that networks have nothing
/// to do with each other, which in host-etcd's layout have one space of addresses.
struct Apart<D>(D);

impl<D> Apart<D> {
    fn of(request: &Request) -> Request {
        let mut ipam = request.network.ipam().clone();
        set_apart(&mut ipam, request.network.name().as_str());
        Request { network: request.network.with("ipam", ipam.into()), ..request.clone() }
    }
}

fn set_apart(ipam: &mut Map<String, Value>, network: &str) {
    if ipam["etcd"]["layout"] == layout::HOST_ETCD.name {
        ipam["etcd"]["prefix"] = format!("/ipam/{network}").into();
        // By these it tells which addresses of a container are the network's.
        ipam.entry("ranges")
            .or_insert(json!([[{"subnet": "10.0.0.0/8"}], [{"subnet": "fd00::/8"}]]));
    }
}

impl<D: Delegate> Delegate for Apart<D> {
    fn add(&self, request: &Request) -> Result<IpamResult> {
        self.0.add(&Self::of(request))
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.del(&Self::of(request))
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.check(&Self::of(request))
    }

    fn gc(&self, request: &Request, keep: &Keep) -> Result<Option<IpamResult>> {
        self.0.gc(&Self::of(request), keep)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.status(&Self::of(request))
    }
}

impl Stage for Store {
    type Ledger = Between<Etcd>;

    fn open(&self, network: &NetworkName) -> Result<Between<Etcd>> {
        let mut ipam = self.0.as_object().unwrap().clone();
        set_apart(&mut ipam, network.as_str());
        let config = json!({"cniVersion": "1.1.0", "name": network.as_str(), "ipam": ipam});
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

fn assert_well(report: &Report, layout: &Layout, not_applicable: usize) {
    let well = report.failed().is_empty() && report.differs().is_empty();
    assert!(well, "{}: {report}", layout.name);
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

#[test]
fn the_ledger_in_etcd_passes() {
    for desk in Desk::each() {
        assert_well(&ledger_suite::run(&Store(desk.ipam())), desk.layout, 0);
    }
}

#[test]
fn the_allocator_in_etcd_passes() {
    for desk in Desk::each() {
        let delegate = Apart(Allocate::<Bookkeeper<Between<Etcd>>>::default());
        let subject = InProcess::new(delegate, Reach::Cluster, desk.ipam())
            .interleaved(next_commit)
            .aging(desk.aging());
        let subject: Arc<dyn Subject> = Arc::new(subject);
        // It is no process that could be killed.
        assert_well(&allocator_suite::run(&subject, &[], &[]), desk.layout, 1);
    }
}

#[test]
fn the_program_passes() {
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-etcd"));
    // Its networks cannot be set apart where they have one space of addresses.
    for desk in Desk::each().filter(|desk| desk.layout.old.as_ref().is_none_or(|old| !old.flat)) {
        let config = Map::from_iter([("ipam".to_owned(), desk.ipam())]);
        let subject = Binary::new(program, Form::Delegate, desk.state.path())
            .reaching(Reach::Cluster)
            .configured(config)
            .aging(desk.aging());
        let subject: Arc<dyn Subject> = Arc::new(subject);
        // Nothing can come between look and change.
        assert_well(&allocator_suite::run(&subject, &[], &[]), desk.layout, 3);
    }
}
