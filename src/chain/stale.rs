//! The release of many stale records in a row, by GC and `reap`: the oldest first, within one time, and
//! without waiting for a store twice.

use std::time::{Duration, SystemTime};

use super::record::{Opened, RecordPlace};
use super::release::NetworkAttachment;
use super::session::Session;
use super::settle::release_stale;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The release of stale records: its time, and its results so far.
#[derive(Debug)]
pub(crate) struct ReleaseRound {
    deadline: Deadline,
    floor: Duration,
    released: usize,
    failed: usize,
    untried: usize,
}

/// The outcome for one stale record.
pub(crate) enum Tried {
    Released,
    /// It was not tried, for this reason, and stays for the next time.
    No(&'static str),
}

/// A record gets at least this much time, or is left.
const FLOOR: Duration = Duration::from_secs(1);

const UNREACHABLE: &str = "its store did not answer for an earlier record";
const TIME_IS_OVER: &str = "deadline exceeded";

impl ReleaseRound {
    /// Records to be released in this time, from now on.
    pub(crate) fn of(time: Duration) -> Self {
        let deadline = Deadline::after(time);
        Self { deadline, floor: FLOOR.min(time / 4), released: 0, failed: 0, untried: 0 }
    }

    /// Releases a stale record, if there is time and its stores have answered so far.
    ///
    /// # Errors
    /// A delegate failed. The record stays, and becomes the last in the order of the next round.
    pub(crate) fn release(
        &mut self,
        session: &Session<'_>,
        target: NetworkAttachment<'_>,
        opened: Opened,
    ) -> Result<Tried> {
        if session.unreachable.has_any_of(&opened.record) {
            self.untried += 1;
            return Ok(Tried::No(UNREACHABLE));
        }
        let Some(time) = self.time_of_next() else {
            self.untried += 1;
            return Ok(Tried::No(TIME_IS_OVER));
        };
        let deadline = Deadline::after(time.min(session.timeout()));
        match release_stale(session, target, opened, deadline) {
            Ok(()) => {
                self.released += 1;
                Ok(Tried::Released)
            }
            Err(error) => {
                self.failed += 1;
                Err(error)
            }
        }
    }

    /// The time of the next record: half of the time left, so a hanging one does not use up all.
    fn time_of_next(&self) -> Option<Duration> {
        let left = self.deadline.left();
        (left >= self.floor).then(|| self.floor.max(left / 2))
    }

    /// Whether nothing was released.
    pub(crate) fn is_stuck(&self) -> bool {
        self.released == 0
    }

    /// An error with the number of records left; `None` if each was tried.
    pub(crate) fn left(&self) -> Option<Error> {
        let left = self.untried + self.failed;
        let all = left + self.released;
        let message = format!("{left} of {all} stale records are left for the next run");
        (self.untried > 0).then(|| Error::new(ErrorCode::TRY_AGAIN, message))
    }
}

/// Sorts by the time of the last change or failed try, the oldest first.
pub(crate) fn sort_oldest_first<T>(all: &mut [T], place: impl Fn(&T) -> RecordPlace) {
    all.sort_by_cached_key(|item| {
        let changed = place(item).path().metadata().and_then(|file| file.modified());
        changed.unwrap_or(SystemTime::UNIX_EPOCH)
    });
}
