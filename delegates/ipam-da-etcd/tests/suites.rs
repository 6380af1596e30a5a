//! The leases in a real etcd pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::any::Any;
use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipam_da_etcd::{Etcd, LAYOUTS, Layout};
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::{IpamResult, NetworkName, ValidAttachments};
use ipam_kit::delegate::Delegate;
use ipam_kit::{Request, Result};
use ipam_suites::between::{InterleavedLedger, next_commit};
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{Binary, Form, InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use ipam_testkit::etcd::{Cluster, Requests};
use ipam_testkit::world::full_size;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Servers and a state folder.
struct Desk {
    endpoints: Vec<String>,
    requests: Requests,
    /// They run until the end of the test.
    _servers: Box<dyn Any>,
    state: TempDir,
    layout: &'static Layout,
}

impl Desk {
    /// One of each layout with one server, and one of whereabouts' with three.
    fn each() -> impl Iterator<Item = Self> {
        let of_three = || LAYOUTS.into_iter().filter(|layout| layout.name == "whereabouts");
        LAYOUTS.into_iter().map(Self::with_one).chain(of_three().map(Self::with_three))
    }

    fn with_one(layout: &'static Layout) -> Self {
        let server = ipam_testkit::etcd::Etcd::start();
        let (endpoints, requests) = (vec![server.endpoint()], server.requests());
        let state = TempDir::new().unwrap();
        Self { endpoints, requests, _servers: Box::new(server), state, layout }
    }

    fn with_three(layout: &'static Layout) -> Self {
        let cluster = Cluster::start(3);
        let (endpoints, requests) = (cluster.endpoints(), cluster.member(0).requests());
        let state = TempDir::new().unwrap();
        Self { endpoints, requests, _servers: Box::new(cluster), state, layout }
    }

    fn ipam(&self) -> Value {
        json!({
            "etcd": {"endpoints": self.endpoints, "layout": self.layout.name},
            "stateDir": self.state.path(),
        })
    }

    /// The program, which gives each network a prefix of its own where networks share addresses.
    fn program(&self) -> PathBuf {
        let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-etcd"));
        if !SHARING.contains(&self.layout.name) {
            return program.to_owned();
        }
        let script = self.state.path().join("ipam-da-etcd");
        let text = SET_APART.replace("PROGRAM", program.to_str().unwrap());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        script
    }

    /// What makes all leases look older.
    fn aging(&self) -> impl Fn(Duration) + Send + Sync + 'static {
        let (requests, layout) = (self.requests, self.layout);
        move |by| age(&requests, layout, by)
    }
}

/// Writes the owners of all networks again, each in one transaction as we do, with an older time.
fn age(requests: &Requests, layout: &Layout, by: Duration) {
    let by = u64::try_from(by.as_millis()).unwrap();
    let older = |value: &str| {
        let mut document: Value = serde_json::from_str(value).unwrap();
        document["confirmed"] = (document["confirmed"].as_u64().unwrap() - by).into();
        document
    };
    let found = requests.list("/").unwrap();
    for owner in found.iter().filter(|entry| entry.key.contains("/owners/")) {
        let document = older(&owner.value);
        let (network, _) = owner.key.split_once("owners/").unwrap();
        let network = network.strip_suffix("/ipam-delegated/").unwrap_or(network);
        let network = network.trim_end_matches('/');
        let mut puts = vec![(owner.key.clone(), document.to_string())];
        let items = document["leases"].as_array().unwrap().iter();
        // whereabouts has one value for all of a pool, in which no owner is.
        let has_keys = layout.name != "whereabouts";
        for item in items.filter(|item| has_keys && item["since"].is_null()) {
            let address = item["address"].as_str().unwrap().split('/').next().unwrap();
            let key = format!("{network}/{}", key_of(layout, address.parse().unwrap()));
            let value = requests.get(&key).unwrap().unwrap().value;
            // The replaced plugins' values have no time.
            let is_ours = layout.name == "native";
            puts.push((key, if is_ours { older(&value).to_string() } else { value }));
        }
        requests.put_all(&puts).unwrap();
    }
}

/// The key of an address, below its network's.
fn key_of(layout: &Layout, address: IpAddr) -> String {
    match (layout.name, address) {
        ("native", IpAddr::V4(v4)) => format!("leases/4/{:08x}", v4.to_bits()),
        ("native", IpAddr::V6(v6)) => format!("leases/6/{:032x}", v6.to_bits()),
        ("cni-ipam-etcd", address) => format!("used/{address}"),
        (_, address) => format!("ips/{address}"),
    }
}

/// Layouts in which networks have one space of addresses.
const SHARING: [&str; 2] = ["host-etcd", "whereabouts"];

/// Does with the configuration of a process what `set_apart` does. The process stays the one that
/// the suite kills.
const SET_APART: &str = r#"#!/bin/sh
network=$(cat)
printf %s "$network" | jq -c 'if .ipam.etcd then .ipam.etcd.prefix = "/ipam/" + .name
    | .ipam.ranges //= [[{subnet: "10.0.0.0/8"}], [{subnet: "fd00::/8"}]] else . end' >"$0.$$" ||
    printf %s "$network" >"$0.$$"
exec PROGRAM <"$0.$$"
"#;

#[derive(Clone)]
struct MemoryStore(Value);

/// A delegate with a prefix of its own for each network: the suites take it that networks have nothing
/// to do with each other, which in two layouts share addresses.
struct Apart<D>(D);

impl<D> Apart<D> {
    fn of(request: &Request) -> Request {
        let mut ipam = request.network.ipam().clone();
        set_apart(&mut ipam, request.network.name().as_str());
        Request { network: request.network.with("ipam", ipam.into()), ..request.clone() }
    }
}

fn set_apart(ipam: &mut Map<String, Value>, network: &str) {
    if SHARING.contains(&ipam["etcd"]["layout"].as_str().unwrap()) {
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

    fn gc(&self, request: &Request, keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        self.0.gc(&Self::of(request), keep)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.status(&Self::of(request))
    }
}

impl LedgerSubject for MemoryStore {
    type Ledger = InterleavedLedger<Etcd>;

    fn open(&self, network: &NetworkName) -> Result<InterleavedLedger<Etcd>> {
        let mut ipam = self.0.as_object().unwrap().clone();
        set_apart(&mut ipam, network.as_str());
        let request = ledger_suite::request(network, &ipam.into())?;
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
        assert_well(&ledger_suite::run(&MemoryStore(desk.ipam())), desk.layout, 0);
    }
}

#[test]
fn the_allocator_in_etcd_passes() {
    for desk in Desk::each() {
        let delegate = Apart(Allocate::<InterleavedLedger<Etcd>>::default());
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
    // Four more processes for each call take minutes.
    let is_daily = |layout: &Layout| full_size() || !SHARING.contains(&layout.name);
    for desk in Desk::each().filter(|desk| is_daily(desk.layout)) {
        let program = desk.program();
        let config = Map::from_iter([("ipam".to_owned(), desk.ipam())]);
        let subject = Binary::new(&program, Form::Delegate, desk.state.path())
            .reaching(Reach::Cluster)
            .configured(config)
            .aging(desk.aging());
        let subject: Arc<dyn Subject> = Arc::new(subject);
        // Nothing can come between look and change.
        assert_well(&allocator_suite::run(&subject, &[], &[]), desk.layout, 3);
    }
}
