//! The promises of an allocator, check by check.

mod adding;
mod choosing;
mod keeping;
mod naming;
mod racing;
mod releasing;
mod requesting;
mod resting;

use std::sync::Arc;

use super::Report;
use super::bench::Bench;
use super::subject::Subject;

/// Makes every check but the `skipped`. A check among `unclaimed` that does not hold is reported
/// as a difference, not as a failure.
pub fn run(subject: &Arc<dyn Subject>, unclaimed: &[&str], skipped: &[&str]) -> Report {
    let mut report = Report::default();
    let of_names = if subject.keeps_names() { naming::all() } else { Vec::new() };
    let of_rest = if subject.rests_freed() { resting::all() } else { Vec::new() };
    let chooses = subject.store_pool("conformance").is_some();
    let of_choice = if chooses { choosing::all() } else { Vec::new() };
    for (name, check) in all().into_iter().chain(of_names).chain(of_rest).chain(of_choice) {
        if !skipped.contains(&name) {
            report.check(name, !unclaimed.contains(&name), || check(&Bench::new(subject)));
        }
    }
    report
}

/// The name of every check that does not depend on the subject.
pub fn names() -> Vec<&'static str> {
    all().into_iter().map(|(name, _)| name).collect()
}

type Check = fn(&Bench) -> super::CheckResult;

fn all() -> Vec<(&'static str, Check)> {
    [adding::all(), requesting::all(), releasing::all(), keeping::all(), racing::all()].concat()
}

/// Checks by their names.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        /// Each check of this file, with its name.
        pub(super) fn all() -> Vec<(&'static str, super::Check)> {
            vec![$((stringify!($name), $name as super::Check)),+]
        }
    };
}
use checks;
