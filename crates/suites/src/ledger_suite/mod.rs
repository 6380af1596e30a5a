//! The promises of a [`Ledger`](ipam_kit::allocate::Ledger), check by check.
//!
//! A check opens the ledger for each step as a process of its own would, on a network of its own.

mod bench;
mod choosing;
mod owning;
mod racing;
mod scanning;
mod steps;
mod viewing;

pub use bench::{LedgerSubject, request};

use bench::{LedgerBench, fresh_network};

use super::Report;

/// Makes every check.
pub fn run<S: LedgerSubject>(subject: &S) -> Report {
    let mut report = Report::default();
    let of_choice = match fresh_network().is_ok_and(|name| subject.store_pool(&name).is_some()) {
        true => choosing::all(),
        false => Vec::new(),
    };
    let checks = [steps::all(), viewing::all(), owning::all(), scanning::all(), racing::all()];
    for (name, check) in checks.into_iter().flatten().chain(of_choice) {
        report.check(name, true, || check(&LedgerBench::new(subject)?));
    }
    report
}

/// Checks by their names.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        /// Each check of this file, with its name.
        pub(super) fn all<S: LedgerSubject>() -> Vec<(&'static str, fn(&LedgerBench<'_, S>) -> CheckResult)> {
            vec![$((stringify!($name), $name::<S>)),+]
        }
    };
}
use checks;
