//! The ledger on records passes the suites of ledgers and allocators, whatever kind of server it is
//! on, and they find a claim that is not read again.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Fake, Kind, Store};
use ipam_kit::Result;
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::NetworkName;
use ipam_records::RecordLedger;
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A store and a state folder.
#[derive(Clone)]
struct Desk {
    store: Store,
    ipam: Value,
    _folder: Arc<TempDir>,
}

impl Desk {
    fn new(kind: Kind) -> Self {
        static DESKS: AtomicU64 = AtomicU64::new(0);
        let name = format!("desk-{}", DESKS.fetch_add(1, Ordering::Relaxed));
        let folder = Arc::new(TempDir::new().unwrap());
        let ipam = json!({"fake": name, "stateDir": folder.path()});
        Self { store: Store::new(&name, kind), ipam, _folder: folder }
    }
}

impl LedgerSubject for Desk {
    type Ledger = RecordLedger<Fake>;

    fn open(&self, network: &NetworkName) -> Result<RecordLedger<Fake>> {
        let request = ledger_suite::request(network, &self.ipam)?;
        Ledger::open(request.network.settings()?, &request)
    }

    fn store_pool(&self, network: &NetworkName) -> Option<String> {
        self.store.kind.chooses.then(|| network.to_string())
    }
}

/// The check that a server without a conditional write cannot pass each time.
const ONE_WINS: &str = "of_owners_who_race_for_an_address_one_wins";

fn kinds() -> [Kind; 6] {
    let atomic = Kind { is_atomic: true, says_atomic: true, ..Kind::default() };
    [
        Kind::default(),
        Kind { omits_ids: true, ..Kind::default() },
        atomic,
        Kind { chooses: true, ..atomic },
        Kind { chooses: true, omits_ids: true, ..atomic },
        Kind { chooses: true, owns_once: true, ..atomic },
    ]
}

fn assert_well(report: &Report, not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

#[test]
fn the_ledger_passes_on_every_kind_of_server() {
    for kind in kinds() {
        let mut report = ledger_suite::run(&Desk::new(kind));
        if !kind.says_atomic {
            // Claims that meet may all be withdrawn, and the allocator tries again.
            report.outcomes.retain(|(name, _)| *name != ONE_WINS);
        }
        // The turn of an owner keeps its other calls out.
        assert_well(&report, 4);
    }
}

#[test]
fn the_allocator_passes_on_the_kinds_that_differ_most() {
    for kind in [kinds()[1], kinds()[3], kinds()[5]] {
        let desk = Desk::new(kind);
        let store = desk.store.clone();
        let delegate = Allocate::<RecordLedger<Fake>>::default();
        let subject = InProcess::new(delegate, Reach::Cluster, desk.ipam.clone())
            .aging(move |by| store.age(by))
            .keeping_names();
        let subject = if kind.chooses { subject.choosing(str::to_owned) } else { subject };
        let subject: Arc<dyn Subject> = Arc::new(subject);
        assert_well(&allocator_suite::run(&subject, &[], &[]), 4);
    }
}

#[test]
fn a_claim_that_is_not_read_again_is_found() {
    for _ in 0..3 {
        let desk = Desk::new(Kind { says_atomic: true, ..Kind::default() });
        let report = ledger_suite::run(&desk);
        assert_eq!(report.failed(), [ONE_WINS], "{report}");
    }
}
