//! A long record as a short one that says the same.

use super::event::{Event, Failed, Gave, Held};
use super::{AttemptState, Outcome, Record};

/// What attempts have in common that a compaction makes one of. The same DEL released all that was
/// released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The last one whose end is not told; there is one at most.
    Open,
    Failed {
        unsure: bool,
    },
    /// What it gave was released, or a later ADD gave something else.
    Superseded,
    /// What stands; there is one at most.
    Held,
}

impl Record {
    /// The fewest events that amount to the same.
    pub(crate) fn compacted(&self) -> Vec<Event> {
        // Each group stands where its last ADD stood: the last of all stays the last.
        let mut groups: Vec<((bool, Fate), Vec<&AttemptState>)> = Vec::new();
        for attempt in &self.attempts {
            let key = (attempt.released.is_some(), self.fate(attempt));
            let mut group = match groups.iter().position(|(other, _)| *other == key) {
                Some(at) => groups.remove(at).1,
                None => Vec::new(),
            };
            group.push(attempt);
            groups.push((key, group));
        }
        let mut events: Vec<Event> = self.unknown.iter().cloned().map(Event::Unknown).collect();
        for ((_, fate), group) in groups {
            merge(fate, &group, &mut events);
        }
        events.extend(self.forgotten.then_some(Event::Forgotten));
        events
    }

    fn fate(&self, attempt: &AttemptState) -> Fate {
        match &attempt.outcome {
            Outcome::Open => match self.standing().rfind(|other| other.outcome == Outcome::Open) {
                Some(open) if std::ptr::eq(open, attempt) => Fate::Open,
                // A claim of it may still commit, as of one that failed without a word.
                _ => Fate::Failed { unsure: true },
            },
            Outcome::Failed(failed) => Fate::Failed { unsure: failed.unsure },
            Outcome::Held(_) => match self.held() {
                Some((held, _)) if std::ptr::eq(held, attempt) => Fate::Held,
                _ => Fate::Superseded,
            },
        }
    }
}

/// Several ADDs of one fate as a single one, with the lines of newer programs after it.
fn merge(fate: Fate, group: &[&AttemptState], events: &mut Vec<Event>) {
    let Some(last) = group.last() else { return };
    let mut attempt = last.attempt.clone();
    attempt.after_unreadable = group.iter().any(|a| a.attempt.after_unreadable);
    let began = group.iter().map(|attempt| attempt.began()).min();
    attempt.since = began.filter(|began| *began < attempt.time);
    events.push(Event::Attempt(attempt));
    let ended = group.iter().map(|attempt| attempt.ended()).max().unwrap_or_default();
    match (fate, &last.outcome) {
        (Fate::Held, Outcome::Held(held)) => {
            events.extend(last.runs.iter().cloned().map(Event::Running));
            events.push(Event::Held(held.clone()));
        }
        _ => {
            let merged = Record {
                attempts: group.iter().map(|attempt| (*attempt).clone()).collect(),
                ..Record::default()
            };
            events.extend(merged.runs().into_iter().cloned().map(Event::Running));
        }
    }
    match fate {
        Fate::Open | Fate::Held => {}
        Fate::Failed { unsure } => {
            events.push(Event::Failed(Failed { time: ended, unsure, ..Failed::default() }));
        }
        Fate::Superseded => {
            let unsure = group.iter().any(|attempt| attempt.is_unsure());
            let gave = unsure.then(|| Gave { unsure, ..Gave::default() });
            let gave = gave.into_iter().collect();
            events.push(Event::Held(Held { time: ended, gave, ..Held::default() }));
        }
    }
    if let Some(released) = &last.released {
        events.push(Event::Released(released.clone()));
    }
    let unknown = group.iter().flat_map(|attempt| attempt.unknown.iter().cloned());
    events.extend(unknown.map(Event::Unknown));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{record, run};
    use super::super::{Attempt, Released};
    use super::*;

    #[test]
    fn compaction_changes_nothing_that_follows() {
        let event = |n: u32, time: u64| match n {
            0 | 1 => {
                let after_unreadable = n == 1;
                Event::Attempt(Attempt { time, after_unreadable, ..Attempt::default() })
            }
            2 => Event::Running(run("a", "1")),
            3 => Event::Running(run("b", "2")),
            4 => {
                let gave = Gave { leases: vec![time.into()], ..Gave::default() };
                Event::Held(Held { time, gave: vec![gave.clone(), gave], ..Held::default() })
            }
            5 | 6 => Event::Failed(Failed { time, unsure: n == 5, ..Failed::default() }),
            7 => Event::Unknown(format!("{{\"event\":\"later\",\"time\":{time}}}")),
            _ => Event::Released(Released { time, due: time + 2 }),
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
            assert_eq!(short.last_attempt(), long.last_attempt(), "{long:?}");
            assert_eq!(short.held().map(|h| h.1), long.held().map(|h| h.1), "{long:?}");
            for run in [run("a", "1"), run("b", "2")] {
                assert_eq!(short.leases(&run), long.leases(&run), "{long:?}");
                assert_eq!(short.only_failed(&run), long.only_failed(&run), "{long:?}");
            }
            let after_unreadable = |record: &Record| {
                let mut standing = record.standing();
                standing.any(|attempt| attempt.attempt.after_unreadable)
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
