//! The leases in the imitation of phpIPAM pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]

mod server {
    pub mod age;
}

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipam_da_phpipam::PhpIpamLedger;
use ipam_kit::Result;
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::{Environment, NetworkName};
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{Binary, CallOutput, Form, InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use ipam_testkit::phpipam::{Builder, LockKind, PhpIpam};
use ipam_testkit::world;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use server::age::age;

const KEY: &str = "cni_key";

/// A server on which each network has a section with subnets of its own.
#[derive(Clone)]
struct Desk {
    server: Arc<PhpIpam>,
    cidrs: &'static [&'static str],
    has_key: bool,
    /// The number of each network's section, and the ids of its subnets.
    sections: Arc<Mutex<HashMap<String, Section>>>,
    state: Arc<TempDir>,
}

type Section = (u64, Vec<String>);

impl Desk {
    fn new(cidrs: &'static [&'static str], builder: Builder, has_key: bool) -> Self {
        let builder = if has_key { builder.key_field(KEY) } else { builder };
        let state = Arc::new(TempDir::new().unwrap());
        let server = Arc::new(builder.start());
        Self { server, cidrs, has_key, sections: Arc::default(), state }
    }

    fn ipam(&self) -> Value {
        let (app, code) = self.server.app();
        let mut section = json!({
            "url": self.server.url(), "appId": app, "token": code, "timeout": "30s",
        });
        if self.has_key {
            section["keyField"] = KEY.into();
        }
        json!({"phpipam": section, "stateDir": self.state.path()})
    }

    /// The section of a network; its subnet 10.1.2.0/28 has the network's name.
    fn section(&self, network: &str) -> String {
        let mut sections = self.sections.lock().unwrap();
        let next = sections.len() as u64 + 1;
        let (id, _) = sections.entry(network.to_owned()).or_insert_with(|| {
            let subnet = |cidr: &&str| {
                let is_chosen = *cidr == CHOSEN;
                let name = if is_chosen { network.to_owned() } else { format!("{network} {cidr}") };
                self.server.subnet_in(next, None, cidr, &name)
            };
            (next, self.cidrs.iter().map(subnet).collect())
        });
        self.server.section(*id)
    }

    /// The name of the pool of choices, which has a gateway from then on.
    fn chosen(&self, network: &str) -> String {
        self.section(network);
        let sections = self.sections.lock().unwrap();
        let place = self.cidrs.iter().position(|cidr| *cidr == CHOSEN).unwrap();
        let subnet = &sections[network].1[place];
        if self.server.records(subnet).is_empty() {
            self.server.gateway(subnet, "10.1.2.1");
        }
        network.to_owned()
    }

    fn age(&self, by: Duration) {
        for (_, subnets) in self.sections.lock().unwrap().values() {
            subnets.iter().for_each(|subnet| age(&self.server, subnet, by));
        }
    }

    fn with_section(&self, stdin: &[u8]) -> Vec<u8> {
        let mut network: Value = serde_json::from_slice(stdin).unwrap();
        let section = self.section(network["name"].as_str().unwrap());
        network["ipam"]["phpipam"]["section"] = section.into();
        network.to_string().into_bytes()
    }
}

impl LedgerSubject for Desk {
    type Ledger = PhpIpamLedger;

    fn open(&self, network: &NetworkName) -> Result<PhpIpamLedger> {
        let mut ipam = self.ipam();
        ipam["phpipam"]["section"] = self.section(network.as_str()).into();
        let request = ledger_suite::request(network, &ipam)?;
        Ledger::open(request.network.settings()?, &request)
    }

    fn store_pool(&self, network: &NetworkName) -> Option<String> {
        Some(self.chosen(network.as_str()))
    }
}

/// A subject whose networks have sections of their own.
struct Apart<S>(S, Desk);

impl<S: Subject> Subject for Apart<S> {
    fn form(&self) -> Form {
        self.0.form()
    }

    fn reach(&self) -> Reach {
        self.0.reach()
    }

    fn config(&self) -> Map<String, Value> {
        self.0.config()
    }

    fn answer(&self, environment: Environment, stdin: &[u8]) -> Result<CallOutput> {
        self.0.answer(environment, &self.1.with_section(stdin))
    }

    fn age(&self, by: Duration) -> bool {
        self.1.age(by);
        true
    }

    fn keeps_names(&self) -> bool {
        self.0.keeps_names()
    }

    fn store_pool(&self, network: &str) -> Option<String> {
        Some(self.1.chosen(network))
    }

    fn kill_during(&self, environment: Environment, stdin: &[u8], after: Duration) -> bool {
        self.0.kill_during(environment, &self.1.with_section(stdin), after)
    }
}

fn assert_well(report: &Report, not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

/// The pool of choices.
const CHOSEN: &str = "10.1.2.0/28";

const OF_LEDGER: &[&str] = &["10.1.2.0/24", "10.1.3.0/24", "fd00:1::/64", CHOSEN];
const OF_ALLOCATOR: &[&str] = &[CHOSEN, "10.1.3.0/28", "fd00:1::/64"];

#[test]
fn the_ledger_in_phpipam_passes_with_a_lock_without_one_and_with_a_key() {
    let without_lock = PhpIpam::builder().lock(LockKind::Disabled);
    for (builder, has_key) in [
        (PhpIpam::builder(), false),
        (without_lock.clone(), false),
        (PhpIpam::builder(), true),
        (without_lock, true),
    ] {
        // The turn of an owner keeps its other calls out.
        assert_well(&ledger_suite::run(&Desk::new(OF_LEDGER, builder, has_key)), 4);
    }
}

#[test]
fn the_allocator_in_phpipam_passes_with_a_key_and_without_one() {
    for has_key in [false, true] {
        let desk = Desk::new(OF_ALLOCATOR, PhpIpam::builder(), has_key);
        let delegate = Allocate::<PhpIpamLedger>::default();
        let subject = InProcess::new(delegate, Reach::Cluster, desk.ipam()).keeping_names();
        let subject: Arc<dyn Subject> = Arc::new(Apart(subject, desk));
        assert_well(&allocator_suite::run(&subject, &[], &[]), 4);
    }
}

#[test]
fn the_program_passes() {
    let desk = Desk::new(OF_ALLOCATOR, PhpIpam::builder(), false);
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-phpipam"));
    let config = Map::from_iter([("ipam".to_owned(), desk.ipam())]);
    let subject = Binary::new(program, Form::Delegate, desk.state.path())
        .reaching(Reach::Cluster)
        .configured(config);
    let subject: Arc<dyn Subject> = Arc::new(Apart(subject, desk));
    // All checks of ipam-conformance are for the run by hand; CI makes those of the allocator in this
    // process, and here those of kills.
    let kept = ["a_killed_add_leaves_nothing_that_a_del_does_not_find", "a_del_releases"];
    let is_skipped = |name: &&str| !world::full_size() && !kept.contains(name);
    let skipped: Vec<&str> = allocator_suite::names().into_iter().filter(is_skipped).collect();
    let not_applicable = if world::full_size() { 3 } else { 0 };
    assert_well(&allocator_suite::run(&subject, &[], &skipped), not_applicable);
}
