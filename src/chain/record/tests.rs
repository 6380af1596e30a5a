use super::*;
use ipam_kit::cni::{Attachment, ContainerId, IfName};
use serde_json::Map;

pub(crate) fn run(delegate: &str, store: &str) -> Run {
    let ipam = Map::from_iter([("store".to_owned(), store.into())]);
    Run { delegate: delegate.to_owned(), ipam, ..Run::default() }
}

pub(crate) fn record(events: impl IntoIterator<Item = Event>) -> Record {
    let mut record = Record::default();
    events.into_iter().for_each(|event| record.apply(event));
    record
}

pub(crate) fn attachment(container: &str, ifname: &str) -> Attachment {
    Attachment {
        container: ContainerId::parse(container).unwrap(),
        ifname: IfName::parse(ifname).unwrap(),
        netns: String::new(),
    }
}

fn attempt() -> Event {
    Event::Attempt(AttemptHeader::default())
}

fn held(leases: &[&str]) -> Event {
    let grants = leases
        .iter()
        .map(|lease| Granted { leases: vec![Value::from(*lease)], ..Granted::default() });
    Event::Held(Held::default(), grants.collect())
}

fn failed(unsure: bool) -> Event {
    Event::Failed(Failed { unsure, ..Failed::default() }, LastRun::MayHold)
}

#[test]
fn a_failed_re_add_leaves_what_is_held() {
    let record = record([
        attempt(),
        Event::Running(run("a", "1")),
        held(&["l"]),
        attempt(),
        Event::Running(run("a", "2")),
        failed(false),
    ]);
    assert_eq!(record.state(), State::Held);
    assert!(record.may_be_in_use());
    assert_eq!(record.runs(), [&run("a", "1"), &run("a", "2")]);
    assert_eq!(record.granted(&run("a", "1")).unwrap().leases, [Value::from("l")]);
    assert_eq!(record.granted(&run("a", "2")), None);
    assert!(!record.is_unsure());
}

#[test]
fn what_is_forgotten_is_so_until_the_next_add() {
    let mut forgotten = record([Event::Forgotten(Map::new())]);
    assert_eq!((forgotten.state(), forgotten.is_empty()), (State::Forgotten, false));
    assert_eq!(record(forgotten.compacted()), forgotten);
    forgotten.apply(attempt());
    assert_eq!(forgotten.state(), State::Unfinished);
}

#[test]
fn an_edited_store_stays_owed() {
    let record = record([
        attempt(),
        Event::Running(run("a", "old")),
        held(&["l1"]),
        attempt(),
        Event::Running(run("a", "new")),
        held(&["l2"]),
    ]);
    assert_eq!(record.runs().len(), 2);
    assert_eq!(record.granted(&run("a", "new")).unwrap().leases, [Value::from("l2")]);
}

#[test]
fn a_killed_add_is_unsure_only_when_a_delegate_ran() {
    assert!(!record([attempt()]).is_unsure());
    let killed = record([attempt(), Event::Running(run("a", "1"))]);
    assert!(killed.is_unsure());
    assert_eq!(killed.state(), State::Unfinished);
    assert!(record([attempt(), Event::Running(run("a", "1")), failed(true)]).is_unsure());
}

#[test]
fn an_add_that_succeeded_is_unsure_when_a_delegate_says_so() {
    let of = |unsure| {
        let granted = Granted { delegate: "a".to_owned(), unsure, ..Granted::default() };
        let held = Event::Held(Held::default(), vec![granted]);
        record([attempt(), Event::Running(run("a", "1")), held])
    };
    assert!(of(true).is_unsure() && !of(false).is_unsure());
    let compacted = record(of(true).compacted());
    assert!(compacted.is_unsure());
}

#[test]
fn a_released_record_holds_nothing_until_the_next_add() {
    let released = Event::Released(Released { time: 1, due: 2, ..Released::default() });
    let mut record = record([attempt(), Event::Running(run("a", "1")), held(&["l"]), released]);
    assert_eq!(record.state(), State::Unsure);
    assert!(!record.may_be_in_use());
    record.apply(attempt());
    assert!(record.released().is_none());
    record.apply(Event::Running(run("a", "1")));
    record.apply(held(&["m"]));
    assert_eq!(record.state(), State::Held);
    assert_eq!(record.runs().len(), 1);
}

#[test]
fn the_window_of_a_killed_add_has_room_for_a_longer_timeout() {
    let ipam = Map::from_iter([("timeout".to_owned(), "5m".into())]);
    let own = Run { ipam, ..run("a", "1") };
    let killed = |run| {
        record([
            Event::Attempt(AttemptHeader { time: 1, ..AttemptHeader::default() }),
            Event::Running(run),
        ])
    };
    assert_eq!(killed(own).window(), Some((1, 300_001)));
    assert_eq!(killed(run("a", "1")).window(), Some((1, 60_001)));
}

#[test]
fn members_of_newer_programs_outlive_a_compaction() {
    let later = |value: &str| Map::from_iter([("later".to_owned(), value.into())]);
    let header = |value| AttemptHeader { extra: later(value), ..AttemptHeader::default() };
    let failed = |value| Failed { extra: later(value), ..Failed::default() };
    let run = Run { extra: later("run"), ..run("a", "1") };
    let granted = Granted { extra: later("granted"), ..Granted::default() };
    let held = Held { extra: later("held"), ..Held::default() };
    let released = Released { extra: later("released"), ..Released::default() };
    let long = record([
        Event::Attempt(header("first")),
        Event::Failed(failed("first"), LastRun::MayHold),
        Event::Attempt(header("second")),
        Event::Failed(failed("second"), LastRun::MayHold),
        Event::Released(released.clone()),
        Event::Attempt(header("third")),
        Event::Running(run.clone()),
        Event::Held(held.clone(), vec![granted.clone()]),
    ]);
    let expected = [
        Event::Attempt(header("second")),
        Event::Failed(failed("second"), LastRun::MayHold),
        Event::Released(released),
        Event::Attempt(header("third")),
        Event::Running(run),
        Event::Held(held, vec![granted]),
    ];
    assert_eq!(long.compacted(), expected);
    let failure_with = |key: &str| {
        let extra = Map::from_iter([(key.to_owned(), 1.into())]);
        let failed = Failed { extra: extra.clone(), ..Failed::default() };
        [
            Event::Attempt(AttemptHeader { extra, ..AttemptHeader::default() }),
            Event::Failed(failed, LastRun::MayHold),
        ]
    };
    let both = Map::from_iter([("a".to_owned(), 1.into()), ("b".to_owned(), 1.into())]);
    let merged = record(failure_with("a").into_iter().chain(failure_with("b"))).compacted();
    let expected = [
        Event::Attempt(AttemptHeader { extra: both.clone(), ..AttemptHeader::default() }),
        Event::Failed(Failed { extra: both, ..Failed::default() }, LastRun::MayHold),
    ];
    assert_eq!(merged, expected);
    let forgotten = record([Event::Forgotten(later("forgotten"))]);
    assert_eq!(forgotten.compacted(), [Event::Forgotten(later("forgotten"))]);
}
