//! Stores that did not answer, so that no record waits for one a second time.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::record::{Record, Run};
use crate::error::{Error, ErrorCode};

/// The stores that did not answer a DEL of this call.
#[derive(Debug, Default)]
pub(super) struct Away(RefCell<Vec<Run>>);

impl Away {
    /// Notes the store of a delegate whose DEL failed, if that is for want of an answer.
    pub fn note(&self, run: &Run, error: &Error) {
        let silent = [ErrorCode::TRY_AGAIN, ErrorCode::UNREACHED, ErrorCode::TIMED_OUT];
        if silent.contains(&error.code()) && !self.holds(run) {
            self.0.borrow_mut().push(run.clone());
        }
    }

    /// Whether a delegate of this record has a store that did not answer.
    pub fn holds_any_of(&self, record: &Record) -> bool {
        !self.0.borrow().is_empty() && record.runs().into_iter().any(|run| self.holds(run))
    }

    fn holds(&self, run: &Run) -> bool {
        let same = |away: &Run| away.delegate == run.delegate && store_of(away) == store_of(run);
        self.0.borrow().iter().any(same)
    }
}

/// Keys of `ipam` that are about the chain or an attachment, and not about a store.
const OF_NO_STORE: [&str; 6] =
    ["node", "delegates", "timeout", "verbose", "requested-ip", "requested_ip"];

/// The section `ipam` of a delegate as far as it is about its store.
pub(super) fn store_of(run: &Run) -> Map<String, Value> {
    let mut settings = run.ipam.clone();
    for key in OF_NO_STORE {
        settings.remove(key);
    }
    settings
}
