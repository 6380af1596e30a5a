//! The promises of a selector, check by check.
//!
//! The subject brings a network configuration by which the selector chooses pools. A selector gives
//! no address and keeps no state, so that all checks share this configuration.

mod answering;
mod calls;
mod choosing;

use std::sync::Arc;

use self::calls::SelectorCalls;
use super::Report;
use super::subject::Subject;

/// Makes every check except the `skipped`. A check among `unclaimed` that does not hold is reported
/// as a difference, not as a failure.
pub fn run(subject: &Arc<dyn Subject>, unclaimed: &[&str], skipped: &[&str]) -> Report {
    let mut report = Report::default();
    for (name, check) in all() {
        if !skipped.contains(&name) {
            let calls = SelectorCalls::of(subject.as_ref());
            report.check(name, !unclaimed.contains(&name), || check(&calls));
        }
    }
    report
}

/// The name of every check.
pub fn names() -> Vec<&'static str> {
    all().into_iter().map(|(name, _)| name).collect()
}

type SelectorCheck = fn(&SelectorCalls<'_>) -> super::CheckResult;

fn all() -> Vec<(&'static str, SelectorCheck)> {
    [choosing::all(), answering::all()].concat()
}

/// Checks by their names.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        /// Each check of this file, with its name.
        pub(super) fn all() -> Vec<(&'static str, super::SelectorCheck)> {
            vec![$((stringify!($name), $name as super::SelectorCheck)),+]
        }
    };
}
use checks;
