//! The release of many stale records in a row, by GC and `reap`: the oldest first, no store is waited
//! for twice, and no longer than their time.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::del::release_stale;
use super::record::Opened;
use super::session::{Owner, Session};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The time for stale records, and what became of them.
#[derive(Debug)]
pub(crate) struct Round {
    deadline: Deadline,
    floor: Duration,
    released: usize,
    failed: usize,
    untried: usize,
}

/// What became of one stale record.
pub(crate) enum Turn {
    Released,
    /// It was not tried, for this reason, and stays for the next time.
    Left(&'static str),
}

/// A record gets at least this much time, or is left.
const FLOOR: Duration = Duration::from_secs(1);

const AWAY: &str = "its store did not answer for an earlier record";
const OVER: &str = "the time is over";

impl Round {
    /// Records to be released in this time, from now on.
    pub(crate) fn of(time: Duration) -> Self {
        let deadline = Deadline::after(time);
        Self { deadline, floor: FLOOR.min(time / 4), released: 0, failed: 0, untried: 0 }
    }

    /// Releases a record that was judged stale, when it is its turn.
    ///
    /// # Errors
    /// A delegate failed. The record stays, and becomes the last in the order of the next round.
    pub(crate) fn release(
        &mut self,
        session: &Session<'_>,
        owner: &Owner<'_>,
        opened: Opened,
    ) -> Result<Turn> {
        let why = if session.away.holds_any_of(&opened.record) {
            AWAY
        } else if let Some(time) = self.next() {
            let time = time.min(session.timeout());
            let outcome = release_stale(session, owner, opened, Deadline::after(time));
            self.released += usize::from(outcome.is_ok());
            self.failed += usize::from(outcome.is_err());
            return outcome.map(|()| Turn::Released);
        } else {
            OVER
        };
        self.untried += 1;
        Ok(Turn::Left(why))
    }

    /// The time of the next record: half of what is left, so that one that hangs does not take all.
    fn next(&self) -> Option<Duration> {
        let left = self.deadline.left();
        (left >= self.floor).then(|| self.floor.max(left / 2))
    }

    /// Whether nothing was released.
    pub(crate) fn is_stuck(&self) -> bool {
        self.released == 0
    }

    /// How many records are left, when there were some that were not tried.
    pub(crate) fn left(&self) -> Option<Error> {
        let left = self.untried + self.failed;
        let all = left + self.released;
        let message = format!("{left} of {all} stale records are left for the next time");
        (self.untried > 0).then(|| Error::new(ErrorCode::TRY_AGAIN, message))
    }
}

/// Puts first what was changed, or tried in vain, the longest time ago.
pub(crate) fn sort_oldest_first<T>(all: &mut [T], path: impl Fn(&T) -> PathBuf) {
    let changed = |each: &T| path(each).metadata().and_then(|found| found.modified());
    all.sort_by_cached_key(|each| changed(each).unwrap_or(SystemTime::UNIX_EPOCH));
}
