//! The leases in a real API server pass the suites of a ledger and of an allocator.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ipam_da_kube::IpPools;
use ipam_kit::Result;
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::NetworkName;
use ipam_suites::apart::Apart;
use ipam_suites::between::{CallBetween, InterleavedLedger, next_commit};
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{Binary, Form, InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use ipam_testkit::whereabouts::{Crds, Release};
use ipam_testkit::world::full_size;
use serde_json::{Map, Value, json};

use crate::common::sticky::serve_sticky;
use crate::common::{Desk, age, v07, v094};

#[derive(Clone)]
struct Opened(Value);

impl LedgerSubject for Opened {
    type Ledger = InterleavedLedger<IpPools>;

    fn open(&self, network: &NetworkName) -> Result<InterleavedLedger<IpPools>> {
        let mut ipam = self.0.clone();
        // Networks of other names have pools of their own.
        ipam["kube"]["networkName"] = network.as_str().into();
        ipam["ranges"] = json!([
            [{"subnet": "10.1.2.0/24"}],
            [{"subnet": "10.1.3.0/24"}],
            [{"subnet": "fd00:1::/64"}],
        ]);
        let request = ledger_suite::request(network, &ipam)?;
        Ledger::open(request.network.settings()?, &request)
    }

    fn interleave(&self, between: CallBetween) -> bool {
        next_commit(between)
    }
}

/// Networks have pools of their own, by `networkName`.
fn apart(network: &mut Value) {
    network["ipam"]["kube"]["networkName"] = network["name"].clone();
}

fn assert_well(report: &Report, not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

/// With and without reservations.
#[derive(Clone, Copy)]
enum Overlap {
    Checked,
    Unchecked,
}

use Overlap::{Checked, Unchecked};

/// A desk on which no call waits for another of its node, and the section `ipam`. A call that comes
/// between a view and its commit would wait for the very call that it comes between.
fn without_turns(crds: fn() -> Crds, overlap: Overlap) -> (Desk, Value) {
    let desk = Desk::new(&crds());
    desk.end_turns();
    let ipam = ipam(&desk, overlap);
    (desk, ipam)
}

/// A server under load answers late, which is not what these suites are about.
fn ipam(desk: &Desk, overlap: Overlap) -> Value {
    let overlap_check = matches!(overlap, Checked);
    desk.ipam(&json!({"timeout": "20s", "overlapCheck": overlap_check}))
}

fn ledger(crds: fn() -> Crds, overlap: Overlap) {
    let (_desk, ipam) = without_turns(crds, overlap);
    assert_well(&ledger_suite::run(&Opened(ipam)), 0);
}

/// On definitions that drop our member of an entry, the owner's note has the state of its lease. Two
/// nodes with one state folder share the note, so the check that plays them is left out.
fn noted_ledger(crds: fn() -> Crds, overlap: Overlap) {
    let (_desk, ipam) = without_turns(crds, overlap);
    let mut report = ledger_suite::run(&Opened(ipam));
    report.outcomes.retain(|(name, _)| *name != "the_node_is_of_the_owner");
    assert_well(&report, 0);
}

fn allocator(crds: fn() -> Crds, overlap: Overlap) {
    let (desk, ipam) = without_turns(crds, overlap);
    let (client, namespace) = (desk.client.clone(), desk.namespace.clone());
    let delegate = Allocate::<InterleavedLedger<IpPools>>::default();
    let mut subject = InProcess::new(delegate, Reach::Cluster, ipam)
        .interleaved(next_commit)
        .resting()
        .aging(move |by: Duration| age(&client, &namespace, by));
    if matches!(overlap, Checked) {
        serve_sticky(desk.kube);
        subject = subject.keeping_names();
    }
    let subject: Arc<dyn Subject> = Arc::new(Apart(subject, apart));
    // A subject inside this process cannot be killed.
    assert_well(&allocator_suite::run(&subject, &[], &[]), 1);
}

fn program(crds: fn() -> Crds, overlap: Overlap) {
    let desk = Desk::new(&crds());
    let (client, namespace) = (desk.client.clone(), desk.namespace.clone());
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-kube"));
    let config = Map::from_iter([("ipam".to_owned(), ipam(&desk, overlap))]);
    let subject = Binary::new(program, Form::Delegate, desk.folder.path())
        .reaching(Reach::Cluster)
        .configured(config)
        .aging(move |by: Duration| age(&client, &namespace, by));
    let subject: Arc<dyn Subject> = Arc::new(Apart(subject, apart));
    // Nothing can come between look and change.
    assert_well(&allocator_suite::run(&subject, &[], &[]), 3);
}

type Case = (fn(fn() -> Crds, Overlap), Overlap);

/// Runs suites at once on a server with these CRDs; the second ones by hand alone, as with histories.
fn run(crds: fn() -> Crds, always: &[Case], by_hand: &[Case]) {
    let by_hand = if full_size() { by_hand } else { &[] };
    thread::scope(|scope| {
        for (suite, overlap) in always.iter().chain(by_hand) {
            scope.spawn(move || suite(crds, *overlap));
        }
    });
}

#[test]
fn the_crd_of_v04_passes() {
    // These CRDs have no reservations.
    run(|| Release::V04.crds(), &[(ledger, Unchecked)], &[]);
}

#[test]
fn the_crds_of_v07_pass() {
    run(v07, &[(ledger, Checked), (noted_ledger, Unchecked)], &[]);
}

#[test]
fn the_crds_of_v094_pass() {
    run(
        v094,
        &[(allocator, Checked)],
        &[(ledger, Checked), (program, Checked), (noted_ledger, Unchecked)],
    );
}

#[test]
fn the_crds_of_this_release_pass() {
    run(
        Crds::shipped,
        &[(program, Unchecked), (ledger, Checked)],
        &[(ledger, Unchecked), (allocator, Unchecked)],
    );
}
