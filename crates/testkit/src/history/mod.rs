//! Who held which address when: a log of calls, and the search in it for two holders.
//!
//! A call begins when its caller starts it and ends when its caller has seen its end, so what an
//! owner is said to hold it held in truth. An outcome that nobody knows (a killed call) may have
//! done its work or not: the owner may hold something from then on, but that proves nothing.

pub mod cluster;
pub mod old_nodes;
pub mod records;
pub mod site;
pub mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One call for an owner, as its caller saw it. An owner's calls never overlap each other.
#[derive(Clone, Debug)]
pub struct Call {
    pub owner: String,
    pub verb: Verb,
    /// Nanoseconds since some moment that is the same for all.
    pub began: u64,
    pub ended: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded, an ADD with these addresses.
    Done(BTreeSet<IpAddr>),
    /// It said that it failed. An ADD has then changed nothing; of a DEL nobody knows how far it
    /// came.
    Failed,
    /// It was killed, or what it started was.
    Unknown,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two owners held one address at the same time.
    Double { address: IpAddr, first: Holding, second: Holding },
    /// An owner that held addresses was given others.
    Moved { owner: String, from: BTreeSet<IpAddr>, to: BTreeSet<IpAddr>, at: u64 },
}

/// A time for which it is certain that an owner held an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holding {
    pub from: u64,
    pub until: u64,
    pub owner: String,
}

/// What the log says of the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The addresses that are certainly held, by owner.
    pub certain: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The owners that may hold something, those among them.
    pub possible: BTreeSet<String>,
}

/// What an owner holds while its calls are gone through.
#[derive(Default)]
struct State {
    certain: BTreeSet<IpAddr>,
    since: u64,
    possible: bool,
    /// Until then an ADD may still give something.
    unsettled: u64,
}

/// Goes through the calls, in whatever order they come. A store may do late what an ADD has asked it
/// for: `settled` says when nothing more can come of it. A DEL before that releases nothing for good.
pub fn judge(calls: &[Call], settled: impl Fn(&Call) -> u64) -> (Vec<Violation>, End) {
    let mut of_owner: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        of_owner.entry(&call.owner).or_default().push(call);
    }
    let mut violations = Vec::new();
    let mut holdings: BTreeMap<IpAddr, Vec<Holding>> = BTreeMap::new();
    let mut end = End::default();
    for (owner, mut calls) in of_owner {
        calls.sort_by_key(|call| call.began);
        let mut state = State::default();
        let mut hold = |state: &mut State, until: u64| {
            for address in std::mem::take(&mut state.certain) {
                let holding = Holding { from: state.since, until, owner: owner.to_owned() };
                holdings.entry(address).or_default().push(holding);
            }
        };
        for call in calls {
            if call.verb == Verb::Add {
                state.unsettled = state.unsettled.max(settled(call));
            }
            match (call.verb, &call.outcome) {
                (Verb::Add, Outcome::Done(given)) if state.certain == *given => {}
                (Verb::Add, Outcome::Done(given)) => {
                    if !state.certain.is_empty() {
                        let from = state.certain.clone();
                        let owner = owner.to_owned();
                        let (to, at) = (given.clone(), call.ended);
                        violations.push(Violation::Moved { owner, from, to, at });
                    }
                    hold(&mut state, call.began);
                    state.certain.clone_from(given);
                    state.since = call.ended;
                    state.possible = true;
                }
                // What it held it still holds.
                (Verb::Add, Outcome::Failed) => {}
                (Verb::Add, Outcome::Unknown) => state.possible = true,
                (Verb::Del, outcome) => {
                    hold(&mut state, call.began);
                    let released = matches!(outcome, Outcome::Done(_));
                    state.possible &= !released || call.began < state.unsettled;
                }
            }
        }
        if state.possible {
            end.possible.insert(owner.to_owned());
        }
        if !state.certain.is_empty() {
            end.certain.insert(owner.to_owned(), state.certain.clone());
            hold(&mut state, u64::MAX);
        }
    }
    for (address, holdings) in &mut holdings {
        violations.extend(doubles(*address, holdings));
    }
    (violations, end)
}

/// Holdings of one address by different owners that overlap.
fn doubles(address: IpAddr, holdings: &mut [Holding]) -> Vec<Violation> {
    holdings.sort();
    let mut found = Vec::new();
    let mut longest: Option<&Holding> = None;
    for holding in holdings.iter() {
        if let Some(first) = longest.filter(|first| first.until > holding.from)
            && first.owner != holding.owner
        {
            let (first, second) = (first.clone(), holding.clone());
            found.push(Violation::Double { address, first, second });
        }
        if longest.is_none_or(|longest| longest.until < holding.until) {
            longest = Some(holding);
        }
    }
    found
}

/// Writes into a log that somebody else, too, was given what an owner holds at its end.
pub fn plant_double(calls: &mut Vec<Call>) {
    let (_, end) = judge(calls, |call| call.ended);
    let (owner, addresses) = end.certain.first_key_value().expect("something is held");
    let of_owner = |call: &&Call| call.owner == *owner && call.verb == Verb::Add;
    let last = calls.iter().filter(of_owner).max_by_key(|call| call.began).expect("an ADD");
    let mut planted = last.clone();
    planted.owner = "planted".to_owned();
    planted.outcome = Outcome::Done(addresses.iter().take(1).copied().collect());
    calls.push(planted);
}

/// Whether two owners held one address at the same time.
pub fn has_double(violations: &[Violation]) -> bool {
    violations.iter().any(|violation| matches!(violation, Violation::Double { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(calls: &[Call]) -> (Vec<Violation>, End) {
        super::judge(calls, |call| call.ended)
    }

    fn given(address: &str) -> Outcome {
        Outcome::Done(BTreeSet::from([address.parse().unwrap()]))
    }

    fn add(owner: &str, times: (u64, u64), outcome: Outcome) -> Call {
        let (began, ended) = times;
        Call { owner: owner.to_owned(), verb: Verb::Add, began, ended, outcome }
    }

    fn del(owner: &str, times: (u64, u64), outcome: Outcome) -> Call {
        Call { verb: Verb::Del, ..add(owner, times, outcome) }
    }

    fn released() -> Outcome {
        Outcome::Done(BTreeSet::new())
    }

    #[track_caller]
    fn double(calls: &[Call]) -> (Holding, Holding) {
        match &judge(calls).0[..] {
            [Violation::Double { first, second, .. }] => (first.clone(), second.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_double_is_found() {
        let (first, second) = double(&[
            add("b", (5, 6), given("10.0.0.2")),
            add("a", (1, 2), given("10.0.0.2")),
            del("a", (8, 9), released()),
        ]);
        assert_eq!((first.owner.as_str(), first.from, first.until), ("a", 2, 8));
        assert_eq!((second.owner.as_str(), second.from, second.until), ("b", 6, u64::MAX));
    }

    #[test]
    fn a_double_after_a_short_holding_of_the_same_owner_is_found() {
        let calls = [
            add("a", (1, 2), given("10.0.0.2")),
            add("b", (3, 4), given("10.0.0.2")),
            del("b", (5, 6), released()),
            add("c", (7, 8), given("10.0.0.2")),
        ];
        assert_eq!(judge(&calls).0.len(), 2);
    }

    #[test]
    fn one_after_the_other_is_no_double() {
        for first_end in [Outcome::Unknown, Outcome::Failed, released()] {
            let calls = [
                add("a", (1, 2), given("10.0.0.2")),
                // The address was free as soon as the DEL had begun, at the earliest.
                del("a", (3, 9), first_end),
                add("b", (4, 5), given("10.0.0.2")),
            ];
            assert_eq!(judge(&calls).0, []);
        }
    }

    #[test]
    fn an_unknown_outcome_may_hold_and_proves_nothing() {
        let calls = [
            add("a", (1, 2), Outcome::Unknown),
            add("b", (3, 4), given("10.0.0.2")),
            del("b", (5, 6), Outcome::Unknown),
            add("c", (7, 8), given("10.0.0.2")),
        ];
        let (violations, end) = judge(&calls);
        assert_eq!(violations, []);
        assert_eq!(end.possible, BTreeSet::from(["a", "b", "c"].map(str::to_owned)));
        assert_eq!(end.certain.keys().collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn what_an_owner_holds_it_holds_through_more_adds() {
        for more in [Outcome::Unknown, Outcome::Failed, given("10.0.0.2")] {
            let (first, _) = double(&[
                add("a", (1, 2), given("10.0.0.2")),
                add("a", (3, 4), more),
                add("b", (5, 6), given("10.0.0.2")),
            ]);
            assert_eq!((first.from, first.until), (2, u64::MAX));
        }
    }

    #[test]
    fn an_owner_that_comes_back_after_a_killed_del_is_seen() {
        double(&[
            add("a", (1, 2), given("10.0.0.2")),
            del("a", (3, 4), Outcome::Unknown),
            add("b", (5, 6), given("10.0.0.2")),
            add("a", (7, 8), given("10.0.0.2")),
        ]);
    }

    #[test]
    fn an_address_that_changes_while_it_is_held_is_a_violation() {
        let calls = [add("a", (1, 2), given("10.0.0.2")), add("a", (3, 4), given("10.0.0.3"))];
        let (violations, end) = judge(&calls);
        assert!(matches!(violations[..], [Violation::Moved { at: 4, .. }]), "{violations:?}");
        assert_eq!(end.certain["a"], BTreeSet::from(["10.0.0.3".parse().unwrap()]));
    }

    #[test]
    fn nothing_is_held_after_a_del() {
        let calls = [
            add("a", (1, 2), Outcome::Unknown),
            add("a", (3, 4), given("10.0.0.2")),
            del("a", (5, 6), released()),
            add("b", (7, 8), Outcome::Failed),
        ];
        assert_eq!(judge(&calls), (Vec::new(), End::default()));
    }
    #[test]
    fn what_a_store_may_do_late_no_del_in_between_releases() {
        for outcome in [Outcome::Unknown, given("10.0.0.2")] {
            for (began, possible) in [(3, true), (11, true), (12, false)] {
                let del = del("a", (began, began + 1), released());
                let calls = [add("a", (1, 2), outcome.clone()), del];
                let (violations, end) = super::judge(&calls, |call| call.ended + 10);
                assert_eq!((violations, end.certain), (Vec::new(), BTreeMap::new()));
                assert_eq!(end.possible.contains("a"), possible, "{began}");
            }
        }
    }
}
