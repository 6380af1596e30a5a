//! A long record as a short one that says the same.

use serde_json::Map;

use super::event::{Event, Failed, Granted, Held};
use super::{AddOutcome, AttemptState, DelegateRun, Record};

/// The common end of the attempts that a compaction merges. One DEL released all released ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The last one without a recorded end; there is one at most.
    Open,
    Failed {
        unsure: bool,
    },
    /// Its addresses were released, or a later ADD gave others.
    Superseded,
    /// The ADD that is in effect; there is one at most.
    Held,
}

impl Record {
    /// The fewest events that amount to the same.
    pub(crate) fn compacted(&self) -> Vec<Event> {
        // A group takes the place of its last ADD, so the last ADD of all stays the last.
        let mut groups: Vec<((bool, Fate), Vec<&AttemptState>)> = Vec::new();
        for (index, attempt) in self.attempts.iter().enumerate() {
            let key = (attempt.released.is_some(), self.fate(index));
            let mut group = match groups.iter().position(|(other, _)| *other == key) {
                Some(at) => groups.remove(at).1,
                None => Vec::new(),
            };
            group.push(attempt);
            groups.push((key, group));
        }
        let mut events: Vec<Event> = self.unknown.iter().cloned().map(Event::Unknown).collect();
        for attempt in groups.iter().filter_map(|((_, fate), group)| merge(*fate, group)) {
            events.extend(attempt.events());
            events.extend(attempt.released.map(Event::Released));
            events.extend(attempt.unknown.into_iter().map(Event::Unknown));
        }
        events.extend(self.forgotten.clone().map(Event::Forgotten));
        events
    }

    fn fate(&self, index: usize) -> Fate {
        let attempt = &self.attempts[index];
        let later = &self.attempts[index + 1..];
        let is_last_of = |kind: fn(&AddOutcome) -> bool| {
            attempt.released.is_none()
                && !later.iter().any(|other| other.released.is_none() && kind(&other.outcome))
        };
        match &attempt.outcome {
            AddOutcome::Open if is_last_of(|other| *other == AddOutcome::Open) => Fate::Open,
            // Its claim may still commit, as that of an ADD that failed without a report.
            AddOutcome::Open => Fate::Failed { unsure: true },
            AddOutcome::Failed(failed) => Fate::Failed { unsure: failed.unsure },
            AddOutcome::Held(_) if is_last_of(|other| matches!(other, AddOutcome::Held(_))) => {
                Fate::Held
            }
            AddOutcome::Held(_) => Fate::Superseded,
        }
    }
}

/// Several ADDs of one fate as a single one, with the lines of newer programs after it. Where two have a
/// member of a newer program, the later one's stays.
fn merge(fate: Fate, group: &[&AttemptState]) -> Option<AttemptState> {
    let mut merged = AttemptState::clone(group.last()?);
    merged.header.after_unreadable = group.iter().any(|attempt| attempt.header.after_unreadable);
    let began = group.iter().map(|attempt| attempt.began()).min();
    merged.header.since = began.filter(|began| *began < merged.header.time);
    merged.unknown = group.iter().flat_map(|attempt| attempt.unknown.iter().cloned()).collect();
    if fate == Fate::Held {
        return Some(merged);
    }
    let attempts = group.iter().copied().cloned().collect();
    let all = Record { attempts, ..Record::default() };
    merged.runs = all.runs().into_iter().cloned().map(DelegateRun::from).collect();
    let time = group.iter().map(|attempt| attempt.ended()).max().unwrap_or_default();
    let mut extra = Map::new();
    for attempt in group {
        merged.header.extra.extend(attempt.header.extra.clone());
        extra.extend(attempt.outcome.extra().cloned().unwrap_or_default());
    }
    match fate {
        Fate::Open | Fate::Held => {}
        Fate::Failed { unsure } => {
            let reason = match &merged.outcome {
                AddOutcome::Failed(failed) => failed.reason.clone(),
                _ => None,
            };
            merged.outcome = AddOutcome::Failed(Failed { time, unsure, reason, extra })
        }
        Fate::Superseded => {
            let unsure = group.iter().any(|attempt| attempt.is_unsure());
            if let Some(first) = merged.runs.first_mut().filter(|_| unsure) {
                first.granted = Some(Granted { unsure, ..Granted::default() });
            }
            merged.outcome = AddOutcome::Held(Held { time, extra, ..Held::default() });
        }
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{record, run};
    use super::super::{AttemptHeader, FailureReason, LastRun, Released};
    use super::*;
    use ipam_kit::error::ErrorCode;

    #[test]
    fn compaction_changes_nothing_that_follows() {
        let reason = |time: u64| {
            let message = format!("full at {time}");
            Some(FailureReason { code: ErrorCode::EXHAUSTED, message })
        };
        let event = |n: u32, time: u64| match n {
            0 | 1 => {
                let after_unreadable = n == 1;
                Event::Attempt(AttemptHeader { time, after_unreadable, ..AttemptHeader::default() })
            }
            2 => Event::Running(run("a", "1")),
            3 => Event::Running(run("b", "2")),
            4 => {
                let granted = Granted { leases: vec![time.into()], ..Granted::default() };
                Event::Held(Held { time, ..Held::default() }, vec![granted.clone(), granted])
            }
            5 | 6 => Event::Failed(
                Failed { time, unsure: n == 5, reason: reason(time), ..Failed::default() },
                LastRun::MayHold,
            ),
            7 => Event::Unknown(format!("{{\"event\":\"later\",\"time\":{time}}}")),
            _ => Event::Released(Released { time, due: time + 2, ..Released::default() }),
        };
        // Every sequence of five events after a first attempt, by a clock that goes on, and by one that
        // is set back.
        for code in 0..2 * 9_u32.pow(5) {
            let time = |place: u32| if code % 2 == 0 { 10 + place } else { 70_000 - place };
            let sequence = (0..5)
                .map(|place| event(code / 2 / 9_u32.pow(place) % 9, u64::from(time(place + 1))));
            let long = record([event(0, time(0).into())].into_iter().chain(sequence));
            let short = record(long.compacted());
            assert_eq!(short.state(), long.state(), "{long:?}");
            assert_eq!(short.is_unsure(), long.is_unsure(), "{long:?}");
            assert_eq!(short.may_be_in_use(), long.may_be_in_use(), "{long:?}");
            assert_eq!(short.released(), long.released(), "{long:?}");
            assert_eq!(short.unsure_until(), long.unsure_until(), "{long:?}");
            assert_eq!(short.window(), long.window(), "{long:?}");
            assert_eq!(short.last_failure(), long.last_failure(), "{long:?}");
            assert_eq!(short.last_attempt(), long.last_attempt(), "{long:?}");
            assert_eq!(short.held().map(|h| h.1), long.held().map(|h| h.1), "{long:?}");
            for run in [run("a", "1"), run("b", "2")] {
                assert_eq!(short.granted(&run), long.granted(&run), "{long:?}");
                assert_eq!(short.only_failed(&run), long.only_failed(&run), "{long:?}");
            }
            let after_unreadable = |record: &Record| {
                let mut unreleased = record.unreleased();
                unreleased.any(|attempt| attempt.header.after_unreadable)
            };
            assert_eq!(after_unreadable(&short), after_unreadable(&long), "{long:?}");
            let sorted = |record: &Record| {
                let mut runs: Vec<_> = record.runs().iter().map(|r| r.delegate.clone()).collect();
                runs.sort();
                let unknown = record.attempts.iter().flat_map(|attempt| attempt.unknown.clone());
                let mut unknown: Vec<String> = unknown.collect();
                unknown.sort();
                (runs, unknown)
            };
            assert_eq!(sorted(&short), sorted(&long), "{long:?}");
        }
    }
}
