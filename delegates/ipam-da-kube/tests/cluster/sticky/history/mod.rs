//! Pods with names, and some without, on nodes that are lost one after the other. All call at the same
//! time, and calls are killed at random: no address and no name ever has two holders, a name that is kept
//! has one address, and nothing is left in the end.
//!
//! Every day a twentieth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it.

mod fleet;
mod story;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipam_testkit::history::site::{Site, assert_sound};
use ipam_testkit::history::workload::{Failure, Workload, seed};
use ipam_testkit::history::{Call, Outcome, Verb, has_double, judge, plant_double};
use ipam_testkit::world::full_size;

use fleet::{Fleet, PODS, WORKERS, keep_of, name_of, pod_of};
use story::Story;

#[test]
fn a_name_has_one_holder_and_one_address_whatever_node_is_lost() {
    let part = if full_size() { 1 } else { 20 };
    let began = Instant::now();
    let workload = Workload {
        seed: seed(),
        workers: WORKERS,
        operations: 6_000 / part,
        owners_per_worker: PODS,
        kills: 150,
        call_time: Duration::from_millis(200),
        limit: Duration::from_secs(90),
    };
    let fleet = Fleet::new();
    let (mut report, ()) = workload.run_while(&fleet, |progress| fleet.troubles(progress));
    let losses = fleet.story.lock().unwrap().losses.len();
    say(&format!("seed {}, {losses} losses, {:.0?}: {report}", workload.seed, began.elapsed()));
    assert!(fleet.is_quiet_within(Duration::from_secs(60)), "processes live on");
    assert!(report.hung.is_empty(), "{:?}", report.hung);
    assert!(report.kills >= 300 / part, "only {} kills", report.kills);
    for (name, addresses) in addresses(&report.calls) {
        let is_one = keep_of(name) != "1h" || addresses.len() == 1;
        assert!(is_one, "web-{name} has had {addresses:?}");
    }
    let calls = {
        let story = fleet.story.lock().unwrap();
        let calls = story.calls_of(&report);
        assert_excused(&story, &report.failures, &calls);
        calls
    };
    let mut names = of_names(&calls);
    let double = |calls: &[Call]| judge(calls, |call| fleet.settled(call)).0;
    assert_eq!(double(&names), Vec::new());
    plant_double(&mut names);
    assert!(has_double(&double(&names)));
    report.calls = calls;
    assert_sound(&fleet, &report);
    fleet.end_all();
    say(&format!("{:.0?} in all", began.elapsed()));
}

/// Fails if a call failed that had no reason to.
#[track_caller]
fn assert_excused(story: &Story, failures: &[Failure], calls: &[Call]) {
    let is_given =
        |call: &&Call| call.verb == Verb::Add && matches!(call.outcome, Outcome::Done(_));
    let given: BTreeSet<&str> = calls.iter().filter(is_given).map(|it| &*it.owner).collect();
    let is_excused = |failure: &&Failure| match (failure.verb, failure.code) {
        ("ADD", Some(100)) => true,
        ("ADD", Some(11)) => {
            let text = failure.answer.to_string();
            text.contains("the sticky name") && text.contains("is held by")
        }
        ("CHECK", Some(104)) => {
            let (_, sandbox) = story.sandbox_at(&failure.owner, failure.began);
            let container = &*sandbox.container;
            story.ended.contains_key(container) || !given.contains(container)
        }
        _ => false,
    };
    let left: Vec<&Failure> = failures.iter().filter(|failure| !is_excused(failure)).collect();
    let some = &left[..left.len().min(3)];
    assert!(some.is_empty(), "{} unexcused failures, as {some:#?}", left.len());
}

/// The calls for names, with an address for each name: then one with two holders is a double.
fn of_names(calls: &[Call]) -> Vec<Call> {
    let of_name = |call: &Call| {
        let name = u8::try_from(name_of(pod_of(&call.owner))?).unwrap();
        let outcome = match &call.outcome {
            Outcome::Done(given) if !given.is_empty() => {
                Outcome::Done(BTreeSet::from([IpAddr::from([192, 0, 2, name])]))
            }
            other => other.clone(),
        };
        Some(Call { outcome, ..call.clone() })
    };
    calls.iter().filter_map(of_name).collect()
}

/// The addresses that each name has had.
fn addresses(calls: &[Call]) -> BTreeMap<usize, BTreeSet<IpAddr>> {
    let mut addresses: BTreeMap<usize, BTreeSet<IpAddr>> = BTreeMap::new();
    for call in calls {
        let Some((name, Outcome::Done(given))) = name_of(&call.owner).zip(Some(&call.outcome))
        else {
            continue;
        };
        addresses.entry(name).or_default().extend(given);
    }
    addresses
}

/// Not through the harness, which keeps what a passing test prints.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "history of names: {line}");
}
