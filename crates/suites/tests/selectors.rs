//! The selector suite passes on a sound selector, and each planted bug is found by its check.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use ipam_suites::selector_mutants::{SelectorBug, SelectorMutant};
use ipam_suites::selector_suite::{names, run};
use ipam_suites::subject::Subject;

#[test]
fn a_selector_without_a_bug_passes_every_check() {
    let subject: Arc<dyn Subject> = Arc::new(SelectorMutant::default());
    let report = run(&subject, &[], &[]);
    assert_eq!(report.passed(), names(), "{report}");
}

#[test]
fn each_planted_bug_is_found_by_its_check() {
    for (bug, check) in SelectorBug::ALL {
        let subject: Arc<dyn Subject> = Arc::new(SelectorMutant::with(bug));
        let report = run(&subject, &[], &[]);
        assert!(report.failed().contains(&check), "{bug:?}: {report}");
        let report = run(&subject, &[check], &[]);
        assert!(report.differs().contains(&check), "{bug:?}: {report}");
    }
}

#[test]
fn each_check_finds_a_planted_bug() {
    for name in names() {
        assert!(SelectorBug::ALL.iter().any(|(_, check)| *check == name), "{name}");
    }
}
