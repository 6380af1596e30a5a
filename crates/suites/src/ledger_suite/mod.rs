//! What a [`Ledger`](ipam_kit::allocate::Ledger) promises, check by check.
//!
//! A check opens the ledger for each step as a process of its own would, on a network of its own.

mod owning;
mod racing;
mod room;
mod scanning;
mod steps;
mod viewing;

pub use room::{Stage, request};

use room::Room;

use super::Report;

/// Makes every check.
pub fn run<S: Stage>(stage: &S) -> Report {
    let mut report = Report::default();
    let checks = [steps::all(), viewing::all(), owning::all(), scanning::all(), racing::all()];
    for (name, check) in checks.into_iter().flatten() {
        report.check(name, true, || check(&Room::new(stage)?));
    }
    report
}

/// Checks by their names.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        /// Each check of this file, with its name.
        pub(super) fn all<S: Stage>() -> Vec<(&'static str, fn(&Room<'_, S>) -> Verdict)> {
            vec![$((stringify!($name), $name::<S>)),+]
        }
    };
}
use checks;
