use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ledger::{Change, Claim};
use crate::error::{Error, ErrorCode, Result};
use crate::pool::RangeSet;

/// After how many commits of unknown outcome a call ends.
const MOST: u32 = 8;

/// The commits of a call whose outcome the store did not tell.
#[derive(Default)]
pub(super) struct UnknownCommits {
    count: u32,
    candidates: BTreeSet<IpAddr>,
    /// Where the store was to choose.
    choices: Vec<RangeSet>,
}

impl UnknownCommits {
    /// Adds the commit of this change.
    ///
    /// # Errors
    /// Too many commits had an unknown outcome.
    pub(super) fn add(&mut self, change: &Change<'_>) -> Result<()> {
        self.count += 1;
        for Claim { candidates, set, .. } in &change.claim {
            self.candidates.extend(candidates);
            if candidates.is_empty() {
                self.choices.push(set.clone());
            }
        }
        if self.count < MOST {
            return Ok(());
        }
        let message = format!("the store did not confirm {MOST} changes");
        Err(Error::new(ErrorCode::TRY_AGAIN, message)
            .advise("check the store's servers (the log has each answer), then call again"))
    }

    /// Whether there was such a commit.
    pub(super) fn any(&self) -> bool {
        self.count > 0
    }

    /// Whether one of them may have taken this address.
    pub(super) fn may_have_taken(&self, address: IpAddr) -> bool {
        let may_be_chosen = self.choices.iter().any(|set| set.find(address).is_some());
        may_be_chosen || self.candidates.contains(&address)
    }

    /// An error after such a commit says by its code that the outcome of the call is unknown, too.
    pub(super) fn explain(&self, error: Error) -> Error {
        if self.any() && error.code() != ErrorCode::TIMED_OUT {
            return error.with_code(ErrorCode::TRY_AGAIN);
        }
        error
    }
}
