//! Three nodes, twenty workers and random kills on one store, which each delegate brings: what must
//! hold of a cluster's leases, and that this would be seen if it did not.

mod builds;
mod faults;
mod nodes;
mod restarts;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use self::faults::Faults;
pub use self::faults::{Fault, Window};
pub use self::nodes::{Lease, Nodes, Store};
pub use self::restarts::assert_released_through_restarts;
use crate::history::old_nodes::{Ending, OldNode};
use crate::history::site::{Site, assert_sound, collect_all};
use crate::history::workload::{Failure, Progress, Report, Workload, now, seed};
use crate::history::{Call, Verb, has_double, judge, plant_double};
use crate::servers::cluster::{Cluster, Member};
use crate::world::full_size;

/// How long a cluster that is whole again may still fail calls.
const RECOVERY: Duration = Duration::from_secs(10);

/// After this time every DEL that left something open is due for a repetition, by the next ADDs.
const REPETITION: Duration = Duration::from_secs(65);

/// How many of a thousand calls of old nodes are killed.
const OLD_KILLS: u64 = 50;

/// How many workers of ours there are beside old nodes. More would only wait for the lock.
const BESIDE: usize = 12;

/// After this time a call has waited for something.
const WAITED: Duration = Duration::from_millis(1_500);

/// Members of the cluster are killed, cut off and stopped all the while: no address ever has two
/// holders, every call ends, and nothing is left in the end. Where there are old nodes, half of the
/// calls are theirs.
#[track_caller]
pub fn assert_sound_through_faults(
    cluster: &Cluster<impl Member>,
    nodes: &Nodes<impl Store>,
    old_nodes: &[&dyn OldNode],
) {
    let has_old = !old_nodes.is_empty();
    let part = match (full_size(), has_old) {
        (true, _) => 1,
        (false, true) => 20,
        (false, false) => 10,
    };
    let began = Instant::now();
    let all = 20_000 / part;
    let (operations, workers) = if has_old { (all / 2, BESIDE) } else { (all, 20) };
    let workload = Workload { operations, workers, ..workload(part) };
    let (kinds, seconds) = if part == 1 { (Fault::ALL, 3) } else { (Fault::FEW, 1) };
    let every = (workload.operations / kinds.len()).min(250);
    let faults = Faults::new(cluster, workload.seed, kinds, every, Duration::from_secs(seconds));
    let (mut report, (plays, windows)) = workload.run_while(nodes, |progress| {
        let faults = |_: &_| faults.run(progress);
        nodes.turns().play(old_nodes, all - operations, OLD_KILLS, Ending::AfterAll, faults)
    });
    let met: BTreeSet<Fault> = windows.iter().map(|window| window.fault).collect();
    let faults = format!("{} faults in {:.0?}", windows.len(), began.elapsed());
    say(nodes, &format!("seed {}, {}, {faults}, {report}", workload.seed, nodes.builds()));
    assert!(nodes.is_quiet_within(Duration::from_secs(60)), "processes live on");
    assert!(report.hung.is_empty(), "{:?}", report.hung);
    let (calls, kills) = (report.operations() + plays.calls.len(), report.kills + plays.killed);
    if has_old {
        let share = plays.share(report.operations());
        say(nodes, &format!("old nodes: {plays}, {share} % of the calls"));
        assert!(share >= 40, "only {share} % of the calls are of old nodes");
        assert!(plays.killed > 0);
        report.calls.extend(plays.calls);
    }
    assert_excused(&report.failures, &windows, has_old);
    assert!(calls >= all);
    assert!(kills >= 500 / part, "only {kills} kills");
    assert_eq!(met.into_iter().collect::<Vec<_>>(), kinds, "some fault did not come");

    nodes.remember(&windows);
    std::thread::sleep(if part == 1 { REPETITION } else { RECOVERY });
    assert_sound(nodes, &report);
    let late = late(nodes, &report);
    say(nodes, &format!("{} owners hold what came after their DEL: {late:?}", late.len()));
    let calm = Workload { operations: 2_000 / part, kills: 0, seed: workload.seed + 1, ..workload };
    let later = calm.run(nodes);
    say(nodes, &format!("on a cluster that is whole: {later}"));
    assert!(later.hung.is_empty(), "{:?}", later.hung);
    assert_excused(&later.failures, &[], false);
    report.append(later);
    assert_sound(nodes, &report);
    if part == 1 {
        let late = self::late(nodes, &report);
        assert!(late.is_empty(), "the repeated DELs have not released {late:?}");
    }

    nodes.release_all(&workload);
    collect_all(nodes);
    assert_eq!(nodes.holdings(), Vec::<String>::new());
    say(nodes, &format!("{:.0?} in all", began.elapsed()));
}

/// A planted bug of old nodes that gives an address twice is found.
#[track_caller]
pub fn assert_bug_of_old_nodes_is_found(nodes: &Nodes<impl Store>, old_nodes: &[&dyn OldNode]) {
    let workload = Workload { operations: 100, workers: 6, kills: 0, ..workload(10) };
    let (mut report, (plays, ())) = workload
        .run_while(nodes, |_| nodes.turns().play(old_nodes, 100, 0, Ending::AfterCalls, |_| ()));
    report.calls.extend(plays.calls);
    let (violations, _) = judge(&report.calls, |call| nodes.settled(call));
    assert!(has_double(&violations), "{violations:?}");
}

/// A double that is written into the log of what went well is found.
#[track_caller]
pub fn assert_planted_double_is_found(nodes: &Nodes<impl Store>) {
    let workload = Workload { operations: 150, workers: 6, kills: 0, ..workload(10) };
    let mut report = workload.run(nodes);
    assert_excused(&report.failures, &[], false);
    assert_sound(nodes, &report);
    plant_double(&mut report.calls);
    let (violations, _) = judge(&report.calls, |call| nodes.settled(call));
    assert!(has_double(&violations), "{violations:?}");
}

/// An address that the store gives twice, since its key is lost, is found.
#[track_caller]
pub fn assert_lost_leases_are_found(nodes: &Nodes<impl Store>) {
    let workload = Workload { operations: 200, kills: 0, ..workload(10) };
    // By hand, what makes an address another owner's; as much work is done before as after.
    let sabotage = |progress: &Progress| {
        let until = |begun| {
            while progress.begun() < begun && !progress.is_over() {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until(workload.operations);
        let before = now();
        nodes.forget_leases();
        until(progress.begun() + workload.operations);
        before
    };
    let (report, before) = workload.run_while(nodes, sabotage);
    let (violations, _) = judge(&report.calls, |call| nodes.settled(call));
    assert!(has_double(&violations), "{violations:?}");
    // And nothing was wrong until then.
    let is_before = |call: &Call| match call.verb {
        Verb::Add => call.ended < before,
        Verb::Del => call.began < before,
    };
    let sound: Vec<_> = report.calls.into_iter().filter(is_before).collect();
    assert_eq!(judge(&sound, |call| nodes.settled(call)).0, Vec::new());
}

/// A part of the full size.
fn workload(part: usize) -> Workload {
    Workload {
        seed: seed(),
        workers: 20,
        operations: 20_000 / part,
        owners_per_worker: 5,
        kills: 80,
        call_time: Duration::from_millis(120),
        limit: Duration::from_secs(60),
    }
}

/// Not through the harness, which keeps what a passing test prints.
fn say<S: Store>(_: &Nodes<S>, line: &str) {
    let _ = writeln!(std::io::stderr(), "history on {}: {line}", S::NAME);
}

/// Calls that failed for no good reason: the pool was not full, and the store did not fail to answer
/// because of what happened to it. Where old nodes work, a killed call keeps their lock for longer
/// than some calls wait.
fn unexcused<'a>(failures: &'a [Failure], windows: &[Window], has_old: bool) -> Vec<&'a Failure> {
    let recovery = RECOVERY.as_nanos() as u64;
    let troubled = |failure: &Failure| {
        let began = failure.began.saturating_sub(recovery);
        let has_waited = u128::from(failure.ended - failure.began) > WAITED.as_nanos();
        has_old && has_waited || windows.iter().any(|window| window.meets(began, failure.ended))
    };
    let excused = |failure: &Failure| match (failure.verb, failure.code) {
        ("ADD", Some(100)) => true,
        (_, Some(11 | 105 | 111)) => troubled(failure),
        _ => false,
    };
    failures.iter().filter(|failure| !excused(failure)).collect()
}

#[track_caller]
fn assert_excused(failures: &[Failure], windows: &[Window], has_old: bool) {
    let unexcused = unexcused(failures, windows, has_old);
    let some = &unexcused[..unexcused.len().min(3)];
    assert!(some.is_empty(), "{} unexcused failures, as {some:#?}", unexcused.len());
}

/// Owners that hold something although their last DEL has succeeded.
fn late(nodes: &Nodes<impl Store>, report: &Report) -> Vec<String> {
    let (_, end) = judge(&report.calls, |call| call.ended);
    nodes.leases().into_keys().filter(|owner| !end.possible.contains(owner)).collect()
}
