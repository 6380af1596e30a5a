//! The attachment record: what this node knows of an attachment's ADD.
//!
//! One small file per attachment, one JSON line per event, only ever appended to. The lines are
//! written before what they announce happens, so whatever a kill leaves behind, the record names
//! every delegate that may hold a lease.

mod compaction;
mod event;
mod file;
mod lines;
mod list;
mod unsure;

pub(crate) use event::{Attempt, Event, Failed, Gave, Held, Released, Run, UNSURE_FOR, now};
pub(crate) use file::{Opened, RecordFile};
pub(crate) use list::{SetAside, attachments, networks, set_aside, set_aside_of};
pub(crate) use unsure::Unsure;

use serde_json::Value;

use ipam_kit::delegate::Deadline;
use ipam_kit::host::parse_duration;

/// A record, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    pub attempts: Vec<AttemptState>,
    /// An operator has forgotten it, and no ADD came since.
    pub forgotten: bool,
    /// Lines of a newer program before the first ADD.
    unknown: Vec<String>,
}

/// One ADD and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttemptState {
    pub attempt: Attempt,
    pub runs: Vec<Run>,
    pub outcome: Outcome,
    /// The DEL that released it, while its repetition is due.
    pub released: Option<Released>,
    /// Lines of a newer program that follow it: what they say is not known.
    unknown: Vec<String>,
}

impl AttemptState {
    /// Whether a claim of a delegate that ran may still commit.
    fn is_unsure(&self) -> bool {
        let unsure = match &self.outcome {
            Outcome::Open => true,
            Outcome::Failed(failed) => failed.unsure,
            Outcome::Held(held) => held.gave.iter().any(|gave| gave.unsure),
        };
        unsure && !self.runs.is_empty()
    }

    /// When it had ended at the latest, in milliseconds since 1970.
    fn ended_by(&self) -> u64 {
        let ended = self.ended();
        self.released.as_ref().map_or(ended, |released| ended.min(released.time))
    }

    fn ended(&self) -> u64 {
        match &self.outcome {
            Outcome::Held(held) => held.time,
            Outcome::Failed(failed) => failed.time,
            Outcome::Open => {
                let own = |run: &Run| parse_duration(run.ipam.get("timeout")?.as_str()?);
                let longest = self.runs.iter().filter_map(own).max();
                let time = longest.unwrap_or_default().max(Deadline::DEFAULT);
                self.attempt
                    .time
                    .saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }

    /// When it began, or the first of those it replaces, in milliseconds since 1970.
    fn began(&self) -> u64 {
        self.attempt.since.map_or(self.attempt.time, |since| since.min(self.attempt.time))
    }
}

/// How an ADD ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Not told: it runs, or was killed.
    Open,
    Held(Held),
    Failed(Failed),
}

/// What a record amounts to, in one word, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Empty,
    /// Addresses are held.
    Held,
    /// An ADD neither succeeded nor failed.
    Unfinished,
    /// Every ADD failed.
    Failed,
    /// Released, to be released once more.
    Unsure,
    /// Its next DEL is to release nothing.
    Forgotten,
}

impl State {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Held => "held",
            Self::Unfinished => "unfinished",
            Self::Failed => "failed",
            Self::Unsure => "unsure",
            Self::Forgotten => "forgotten",
        }
    }
}

impl Record {
    /// Adds an event that follows those before it.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Attempt(attempt) => {
                self.forgotten = false;
                self.attempts.push(AttemptState {
                    attempt,
                    runs: Vec::new(),
                    outcome: Outcome::Open,
                    released: None,
                    unknown: Vec::new(),
                });
            }
            Event::Forgotten => self.forgotten = true,
            Event::Unknown(line) => match self.attempts.last_mut() {
                Some(last) => last.unknown.push(line),
                None => self.unknown.push(line),
            },
            Event::Running(run) => self.last().runs.push(run),
            Event::Held(held) => self.last().outcome = Outcome::Held(held),
            Event::Failed(mut failed) => {
                let last = self.last();
                let not_run = std::mem::take(&mut failed.not_run);
                if std::mem::take(&mut failed.refused) || not_run {
                    last.runs.pop();
                }
                last.outcome = Outcome::Failed(failed);
            }
            Event::Released(released) => {
                for attempt in &mut self.attempts {
                    attempt.released = Some(released.clone());
                }
            }
        }
    }

    /// Whether nothing was ever written to it.
    pub(crate) fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.unknown.is_empty() && !self.forgotten
    }

    /// The last successful ADD that no DEL released.
    pub(crate) fn held(&self) -> Option<(&AttemptState, &Held)> {
        self.standing().rev().find_map(|attempt| match &attempt.outcome {
            Outcome::Held(held) => Some((attempt, held)),
            _ => None,
        })
    }

    /// The last ADD, and the record as it was before.
    pub(crate) fn split_last(&self) -> Option<(&AttemptState, Self)> {
        let (last, before) = self.attempts.split_last()?;
        Some((last, Self { attempts: before.to_vec(), ..Self::default() }))
    }

    /// Whether addresses may be in use, so that a failed ADD must not release anything.
    pub(crate) fn may_be_in_use(&self) -> bool {
        self.held().is_some() || self.standing().any(|attempt| attempt.attempt.after_unreadable)
    }

    /// Every delegate that may hold a lease, each once for each configuration it had, in order.
    pub(crate) fn runs(&self) -> Vec<&Run> {
        let mut runs: Vec<&Run> = Vec::new();
        for run in self.attempts.iter().flat_map(|attempt| &attempt.runs) {
            if !runs.iter().any(|known| known.owes_the_same(run)) {
                runs.push(run);
            }
        }
        runs
    }

    /// Whether every ADD that reached this delegate failed, and it is known how.
    pub(crate) fn only_failed(&self, run: &Run) -> bool {
        let reached =
            |attempt: &&AttemptState| attempt.runs.iter().any(|its| its.owes_the_same(run));
        self.attempts
            .iter()
            .filter(reached)
            .all(|attempt| matches!(&attempt.outcome, Outcome::Failed(failed) if !failed.unsure))
    }

    /// Whether `reassert` has claimed in another store what this delegate gave, and no ADD has used this one
    /// since.
    pub(crate) fn is_superseded(&self, run: &Run) -> bool {
        let place = self.attempts.iter().rposition(|attempt| attempt.attempt.reasserted);
        let Some(since) = place.map(|place| &self.attempts[place..]) else { return false };
        let mut used = since.iter().flat_map(|attempt| &attempt.runs);
        since[0].runs.iter().any(|its| its.delegate == run.delegate)
            && !used.any(|its| its.owes_the_same(run))
    }

    /// What the delegate last said of the leases it holds for this run.
    pub(crate) fn leases(&self, run: &Run) -> &[Value] {
        let Some((attempt, held)) = self.held() else {
            return &[];
        };
        attempt
            .runs
            .iter()
            .zip(&held.gave)
            .find(|(known, _)| known.owes_the_same(run))
            .map_or(&[], |(_, gave)| &gave.leases)
    }

    /// Whether a claim of some ADD may still commit after a DEL.
    pub(crate) fn is_unsure(&self) -> bool {
        self.standing().any(AttemptState::is_unsure)
    }

    /// The DEL that has released every ADD of the record, when there was one.
    pub(crate) fn released(&self) -> Option<&Released> {
        let released = self.attempts.last()?.released.as_ref()?;
        Some(released)
    }

    /// Until when a claim of some released ADD may still commit, in milliseconds since 1970.
    pub(crate) fn unsure_until(&self) -> Option<u64> {
        self.attempts.iter().filter_map(|attempt| Some(attempt.released.as_ref()?.due)).max()
    }

    /// From when to when delegates may have taken leases for its ADDs, in milliseconds since 1970.
    pub(crate) fn window(&self) -> Option<(u64, u64)> {
        let begin = self.attempts.iter().map(AttemptState::began).min()?;
        let end = self.attempts.iter().map(AttemptState::ended_by).max()?;
        Some((begin, end))
    }

    /// When the last ADD began, in milliseconds since 1970.
    pub(crate) fn last_attempt(&self) -> Option<u64> {
        self.attempts.last().map(|attempt| attempt.attempt.time)
    }

    pub(crate) fn state(&self) -> State {
        if self.forgotten {
            return State::Forgotten;
        }
        let Some(last) = self.attempts.last() else {
            return State::Empty;
        };
        if last.released.is_some() {
            State::Unsure
        } else if self.held().is_some() {
            State::Held
        } else if self.standing().any(|attempt| attempt.outcome == Outcome::Open) {
            State::Unfinished
        } else {
            State::Failed
        }
    }

    fn standing(&self) -> impl DoubleEndedIterator<Item = &AttemptState> {
        self.attempts.iter().filter(|attempt| attempt.released.is_none())
    }

    fn last(&mut self) -> &mut AttemptState {
        if self.attempts.is_empty() {
            self.apply(Event::Attempt(Attempt::default()));
        }
        let last = self.attempts.len() - 1;
        &mut self.attempts[last]
    }
}

#[cfg(test)]
mod tests;
