use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ledger::Change;
use crate::error::{Error, ErrorCode, Result};

/// After how many changes whose outcome is unknown a call ends.
const UNSURE: u32 = 8;

/// What the store did not say.
#[derive(Default)]
pub(super) struct Unsure {
    /// There was such a change.
    pub(super) outcome: bool,
    changes: u32,
    candidates: BTreeSet<IpAddr>,
}

impl Unsure {
    /// The outcome of this change is unknown.
    ///
    /// # Errors
    /// It has been so for too many.
    pub(super) fn note(&mut self, change: &Change<'_>) -> Result<()> {
        self.outcome = true;
        self.changes += 1;
        self.candidates.extend(change.claim.iter().flat_map(|claim| &claim.candidates));
        if self.changes < UNSURE {
            return Ok(());
        }
        let message = format!("the store did not say what became of {UNSURE} changes");
        Err(Error::new(ErrorCode::TRY_AGAIN, message)
            .advise("look at its servers, and at the log for what each of them said; call again"))
    }

    /// Whether a lease that is found held may be of this very ADD.
    pub(super) fn offered(&self, address: IpAddr) -> bool {
        self.candidates.contains(&address)
    }

    /// An error after an unknown outcome leaves open what was done, and says so by its code.
    pub(super) fn leave_open(&self, error: Error) -> Error {
        if self.outcome && error.code() != ErrorCode::TIMED_OUT {
            return error.with_code(ErrorCode::TRY_AGAIN);
        }
        error
    }
}
