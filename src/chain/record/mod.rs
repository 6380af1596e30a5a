//! The attachment record: the ADDs of an attachment, as this node knows them.
//!
//! One small file per attachment with one JSON line per event, which is only appended to. A line is
//! written before its announcement happens, so after any kill the record names every delegate that
//! may hold a lease.

mod compaction;
mod event;
mod failure;
mod file;
mod lines;
mod list;
mod opening;
mod place;
mod repeat_list;
mod workload;

pub(crate) use event::{
    AttemptHeader, Event, Failed, Granted, Held, LastRun, Released, Run, UNSURE_FOR, now,
};
pub(crate) use failure::FailureReason;
pub(crate) use file::{Opened, RecordFile};
pub(crate) use list::{SetAside, attachments, networks, set_aside, set_aside_of};
pub(crate) use place::RecordPlace;
pub(crate) use repeat_list::{RepeatEntry, RepeatList};
pub(crate) use workload::Workload;

use serde_json::{Map, Value};

use ipam_kit::delegate::Deadline;

/// A record, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    pub attempts: Vec<AttemptState>,
    /// An operator has forgotten it, and no ADD came since: the members of that event.
    forgotten: Option<Map<String, Value>>,
    /// Lines of a newer program before the first ADD.
    unknown: Vec<String>,
}

/// One ADD and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttemptState {
    pub header: AttemptHeader,
    /// The delegates that may hold a lease, in order.
    pub runs: Vec<DelegateRun>,
    pub outcome: AddOutcome,
    /// The DEL that released it, while its repetition is due.
    pub released: Option<Released>,
    /// Lines of a newer program that follow it.
    unknown: Vec<String>,
}

/// A delegate that was announced, with its grant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DelegateRun {
    pub run: Run,
    /// `None` while its ADD has not succeeded.
    pub granted: Option<Granted>,
}

impl From<Run> for DelegateRun {
    fn from(run: Run) -> Self {
        Self { run, granted: None }
    }
}

impl AttemptState {
    /// An ADD that begins.
    fn new(header: AttemptHeader) -> Self {
        Self {
            header,
            runs: Vec::new(),
            outcome: AddOutcome::Open,
            released: None,
            unknown: Vec::new(),
        }
    }

    /// The grants of its delegates, in order.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &Granted> {
        self.runs.iter().filter_map(|ran| ran.granted.as_ref())
    }

    /// Every address that was given, with prefix length.
    pub(crate) fn ips(&self) -> Vec<String> {
        self.grants().flat_map(|granted| granted.ips.clone()).collect()
    }

    /// The events of this ADD: its begin, its delegates, its end.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Attempt(self.header.clone())];
        events.extend(self.runs.iter().map(|ran| Event::Running(ran.run.clone())));
        events.extend(match &self.outcome {
            AddOutcome::Open => None,
            AddOutcome::Held(held) => {
                Some(Event::Held(held.clone(), self.grants().cloned().collect()))
            }
            AddOutcome::Failed(failed) => Some(Event::Failed(failed.clone(), LastRun::MayHold)),
        });
        events
    }

    /// Whether a claim of a delegate that ran may still commit.
    fn is_unsure(&self) -> bool {
        let unsure = match &self.outcome {
            AddOutcome::Open => true,
            AddOutcome::Failed(failed) => failed.unsure,
            AddOutcome::Held(_) => self.grants().any(|granted| granted.unsure),
        };
        unsure && !self.runs.is_empty()
    }

    /// Whether it announced this delegate.
    fn reached(&self, run: &Run) -> bool {
        self.runs.iter().any(|ran| ran.run.owes_the_same(run))
    }

    /// When it had ended at the latest, in milliseconds since 1970.
    fn ended_by(&self) -> u64 {
        let ended = self.ended();
        self.released.as_ref().map_or(ended, |released| ended.min(released.time))
    }

    fn ended(&self) -> u64 {
        match &self.outcome {
            AddOutcome::Held(held) => held.time,
            AddOutcome::Failed(failed) => failed.time,
            AddOutcome::Open => {
                let longest = self.runs.iter().filter_map(|ran| ran.run.timeout()).max();
                let time = longest.unwrap_or_default().max(Deadline::DEFAULT);
                let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                self.header.time.saturating_add(millis)
            }
        }
    }

    /// When it began, or the first of those it replaces, in milliseconds since 1970.
    fn began(&self) -> u64 {
        self.header.since.map_or(self.header.time, |since| since.min(self.header.time))
    }
}

/// How an ADD ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AddOutcome {
    /// No end is recorded: it runs, or was killed.
    Open,
    Held(Held),
    Failed(Failed),
}

impl AddOutcome {
    /// Members of newer programs.
    fn extra(&self) -> Option<&Map<String, Value>> {
        match self {
            Self::Open => None,
            Self::Held(held) => Some(&held.extra),
            Self::Failed(failed) => Some(&failed.extra),
        }
    }
}

/// The state of an attachment by its record, in one word for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Empty,
    /// Addresses are held.
    Held,
    /// An ADD neither succeeded nor failed.
    Unfinished,
    /// Every ADD failed.
    Failed,
    /// Released, with another DEL due.
    Unsure,
    /// Its next DEL releases nothing.
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
            Event::Attempt(header) => {
                self.forgotten = None;
                self.attempts.push(AttemptState::new(header));
            }
            Event::Forgotten(extra) => self.forgotten = Some(extra),
            Event::Unknown(line) => match self.attempts.last_mut() {
                Some(last) => last.unknown.push(line),
                None => self.unknown.push(line),
            },
            Event::Running(run) => self.last().runs.push(run.into()),
            Event::Held(held, grants) => {
                let attempt = self.last();
                let mut grants = grants.into_iter();
                for ran in &mut attempt.runs {
                    ran.granted = grants.next();
                }
                attempt.outcome = AddOutcome::Held(held);
            }
            Event::Failed(failed, last_run) => {
                let attempt = self.last();
                if last_run != LastRun::MayHold {
                    attempt.runs.pop();
                }
                attempt.outcome = AddOutcome::Failed(failed);
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
        self.attempts.is_empty() && self.unknown.is_empty() && !self.is_forgotten()
    }

    /// Whether an operator has forgotten it, and no ADD came since.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.is_some()
    }

    /// The last successful ADD that no DEL released.
    pub(crate) fn held(&self) -> Option<(&AttemptState, &Held)> {
        self.unreleased().rev().find_map(|attempt| match &attempt.outcome {
            AddOutcome::Held(held) => Some((attempt, held)),
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
        self.held().is_some() || self.unreleased().any(|attempt| attempt.header.after_unreadable)
    }

    /// Every delegate that may hold a lease, each once for each configuration it had, in order.
    pub(crate) fn runs(&self) -> Vec<&Run> {
        let mut runs: Vec<&Run> = Vec::new();
        for ran in self.attempts.iter().flat_map(|attempt| &attempt.runs) {
            if !runs.iter().any(|known| known.owes_the_same(&ran.run)) {
                runs.push(&ran.run);
            }
        }
        runs
    }

    /// Whether every ADD that reached this delegate failed, and it is known how.
    pub(crate) fn only_failed(&self, run: &Run) -> bool {
        self.attempts
            .iter()
            .filter(|attempt| attempt.reached(run))
            .all(|attempt| matches!(&attempt.outcome, AddOutcome::Failed(failed) if !failed.unsure))
    }

    /// Whether `reassert` has claimed this delegate's leases in another store, and no later ADD has used
    /// this one.
    pub(crate) fn is_superseded(&self, run: &Run) -> bool {
        let Some(index) = self.attempts.iter().rposition(|attempt| attempt.header.reasserted)
        else {
            return false;
        };
        let since = &self.attempts[index..];
        since[0].runs.iter().any(|ran| ran.run.delegate == run.delegate)
            && !since.iter().any(|attempt| attempt.reached(run))
    }

    /// The addresses and leases that the delegate last gave for this run.
    pub(crate) fn granted(&self, run: &Run) -> Option<&Granted> {
        let (attempt, _) = self.held()?;
        attempt.runs.iter().find(|ran| ran.run.owes_the_same(run))?.granted.as_ref()
    }

    /// Whether a claim of some ADD may still commit after a DEL.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unreleased().any(AttemptState::is_unsure)
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

    /// The error of the last ADD, if it failed. An older program did not record it.
    pub(crate) fn last_failure(&self) -> Option<&FailureReason> {
        match &self.attempts.last()?.outcome {
            AddOutcome::Failed(failed) => failed.reason.as_ref(),
            _ => None,
        }
    }

    /// The namespace and the name of the pod, from the latest ADD that had both.
    pub(crate) fn pod(&self) -> Option<(&str, &str)> {
        self.attempts.iter().rev().find_map(|attempt| attempt.header.workload.pod())
    }

    /// When the last ADD began, in milliseconds since 1970.
    pub(crate) fn last_attempt(&self) -> Option<u64> {
        self.attempts.last().map(|attempt| attempt.header.time)
    }

    pub(crate) fn state(&self) -> State {
        if self.is_forgotten() {
            return State::Forgotten;
        }
        let Some(last) = self.attempts.last() else {
            return State::Empty;
        };
        if last.released.is_some() {
            State::Unsure
        } else if self.held().is_some() {
            State::Held
        } else if self.unreleased().any(|attempt| attempt.outcome == AddOutcome::Open) {
            State::Unfinished
        } else {
            State::Failed
        }
    }

    fn unreleased(&self) -> impl DoubleEndedIterator<Item = &AttemptState> {
        self.attempts.iter().filter(|attempt| attempt.released.is_none())
    }

    fn last(&mut self) -> &mut AttemptState {
        if self.attempts.is_empty() {
            self.apply(Event::Attempt(AttemptHeader::default()));
        }
        let last = self.attempts.len() - 1;
        &mut self.attempts[last]
    }
}

#[cfg(test)]
pub(crate) mod tests;
