//! The leases on disk pass the suites of a ledger and of an allocator.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipam_da_local::Local;
use ipam_kit::Result;
use ipam_kit::allocate::{Allocate, Ledger, Reach};
use ipam_kit::cni::NetworkName;
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::subject::{Binary, Form, InProcess, Subject};
use ipam_suites::{Report, allocator_suite};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A data folder and a state folder.
#[derive(Clone)]
struct Disk(PathBuf);

impl Disk {
    fn ipam(&self) -> Value {
        json!({"dataDir": self.0.join("data"), "stateDir": self.0.join("state")})
    }
}

impl LedgerSubject for Disk {
    type Ledger = Local;

    fn open(&self, network: &NetworkName) -> Result<Local> {
        let request = ledger_suite::request(network, &self.ipam())?;
        Local::open(request.network.settings()?, &request)
    }
}

fn assert_well(report: &Report, not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    assert_eq!(report.outcomes.len() - report.passed().len(), not_applicable, "{report}");
}

#[test]
fn the_ledger_on_disk_passes() {
    let temp = TempDir::new().unwrap();
    // Other nodes, and three times that nothing comes between look and change under its lock.
    assert_well(&ledger_suite::run(&Disk(temp.path().to_owned())), 5);
}

#[test]
fn the_allocator_on_disk_passes() {
    let temp = TempDir::new().unwrap();
    let delegate: Allocate<Local> = Allocate::default();
    let ipam = Disk(temp.path().to_owned()).ipam();
    let subject: Arc<dyn Subject> = Arc::new(InProcess::new(delegate, Reach::Node, ipam).resting());
    let report = allocator_suite::run(&subject, &[], &[]);
    assert!(report.failed().is_empty() && report.passed().len() > 38, "{report}");
}

#[test]
fn the_allocator_on_disk_passes_without_an_index() {
    let temp = TempDir::new().unwrap();
    std::fs::create_dir(temp.path().join("state")).unwrap();
    std::fs::write(temp.path().join("state/local"), "a file in the place of the index").unwrap();
    assert_well(&ledger_suite::run(&Disk(temp.path().to_owned())), 5);
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-local"));
    let subject: Arc<dyn Subject> = Arc::new(Binary::new(program, Form::Delegate, temp.path()));
    assert_well(&allocator_suite::run(&subject, &[], &[]), 4);
}

#[test]
fn the_program_passes_as_a_standard_plugin() {
    let temp = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-local"));
    let subject: Arc<dyn Subject> = Arc::new(Binary::new(program, Form::Standard, temp.path()));
    let report = allocator_suite::run(&subject, &[], &[]);
    assert!(report.failed().is_empty() && report.passed().len() > 38, "{report}");
}

#[test]
fn the_program_passes() {
    let temp = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-da-local"));
    let subject: Arc<dyn Subject> = Arc::new(Binary::new(program, Form::Delegate, temp.path()));
    // Other nodes, and what has to come between look and change.
    assert_well(&allocator_suite::run(&subject, &[], &[]), 4);
}
