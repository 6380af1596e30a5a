//! Calls that are killed at a request: before the server has it, and after it has answered; and calls
//! between which another makes its own, with bugs that these tests find.

mod leftovers;
pub(crate) mod planted;

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use ipam_testkit::whereabouts::Crds;
use ipam_testkit::world::{Outcome, full_size, start, wait};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::common::relay::{Ask, Fate, Relay};
use crate::common::site::{On, Plan, Site};
use crate::common::{v07, v094};

/// What is there before the call.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    /// The pools, without entries. The node has seen them.
    Pools,
    /// The same, beside one that overlaps.
    Overlapping,
    /// As `Pools`; another program has reserved the first address.
    Reserved,
    /// The container holds addresses.
    Held,
    /// An earlier sandbox of the same pod holds addresses.
    Sandbox,
}

/// The call that is killed.
#[derive(Clone, Copy, PartialEq)]
enum Call {
    Add,
    Del,
    /// An ADD in a chain that fails after our delegate.
    Undo,
}

/// The moment of a kill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moment {
    /// The server does not get the request.
    Early,
    /// The server has carried the request out.
    Late,
}

struct Scenario {
    plan: Plan,
    before: Before,
    call: Call,
    /// How many requests the call has, unless one is repeated.
    requests: usize,
}

const POD: &str = "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=7c0e";
const FIRST: &str = "10.1.0.2";
/// A pool that overlaps with that of the network.
const WIDE: &str = "10.1.0.0/16";

impl Site {
    /// A call of the pod's sandbox, and its network.
    fn of_pod(&self, verb: &str, container: &str) -> Outcome {
        let mut command = self.command(On::First, verb, container);
        command.env("CNI_ARGS", POD);
        wait(start(command, &self.network(On::First)))
    }

    /// Makes what is there before the call, and returns the addresses that the container is given
    /// again.
    fn prepare(&self, before: Before) -> Vec<String> {
        match before {
            Before::Nothing => Vec::new(),
            Before::Pools | Before::Overlapping | Before::Reserved => {
                if before == Before::Overlapping {
                    self.desk.objects().create_pool("", WIDE, &json!({}));
                }
                self.of_pod("ADD", "warm").success();
                self.of_pod("DEL", "warm").ended_well();
                if before == Before::Reserved {
                    self.reserve(FIRST);
                }
                Vec::new()
            }
            Before::Held => self.of_pod("ADD", "c1").ips(),
            Before::Sandbox => self.of_pod("ADD", "c0").ips(),
        }
    }

    /// Calls for the pod, and kills all processes of the call at its request of this number, if it
    /// has so many.
    fn kill_at(&self, number: usize, moment: Moment, verb: &str, network: &Value) -> Outcome {
        let mut command = self.command(On::First, verb, "c1");
        command.env("CNI_ARGS", POD);
        self.kill_command_at(number, moment, command, network)
    }

    /// Runs a command of the first node, likewise.
    fn kill_command_at(
        &self,
        number: usize,
        moment: Moment,
        command: Command,
        network: &Value,
    ) -> Outcome {
        let count = AtomicUsize::new(0);
        let is_last = move |_: &Ask| count.fetch_add(1, Ordering::SeqCst) == number;
        self.kill_command_when(is_last, moment, command, network)
    }

    /// The same, at a request of this kind.
    fn kill_command_when(
        &self,
        is_last: impl Fn(&Ask) -> bool + Send + Sync + 'static,
        moment: Moment,
        command: Command,
        network: &Value,
    ) -> Outcome {
        self.relay.kill_when(is_last, moment, command, network)
    }
}

impl Relay {
    /// Runs a command, and kills all its processes at the first request of this kind.
    pub(crate) fn kill_when(
        &self,
        is_last: impl Fn(&Ask) -> bool + Send + Sync + 'static,
        moment: Moment,
        mut command: Command,
        network: &Value,
    ) -> Outcome {
        let group = Arc::new(OnceLock::<Pid>::new());
        let its = group.clone();
        self.decide(move |ask| {
            if !is_last(ask) {
                return Fate::Pass;
            }
            let its = its.clone();
            let kill = move || kill_process_group(*its.wait(), Signal::KILL).unwrap();
            match moment {
                Moment::Early => {
                    kill();
                    Fate::End
                }
                Moment::Late => Fate::Lose(Box::new(kill)),
            }
        });
        command.process_group(0);
        let child = start(command, network);
        group.set(Pid::from_child(&child)).unwrap();
        let outcome = wait(child);
        self.pass();
        outcome
    }
}

/// Prints which kill it was if the test fails.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = writeln!(io::stderr(), "{}", self.0);
        }
    }
}

impl Scenario {
    fn run(&self) {
        thread::scope(|scope| {
            for moment in [Moment::Early, Moment::Late] {
                // To the server, a kill after a request is one before the next: in CI, only the
                // last request has both.
                let is_next = moment == Moment::Late && !full_size();
                let first = if is_next { self.requests - 1 } else { 0 };
                for retry in ["ADD", "DEL"] {
                    scope.spawn(move || {
                        // A server under load may have a request twice.
                        let ended = (first..3 * self.requests)
                            .find(|number| !self.once(*number, moment, retry));
                        assert!(ended.is_some_and(|ended| ended >= self.requests), "{ended:?}");
                    });
                }
            }
        });
    }

    /// Kills the call at a request, and calls again. Returns whether the call has had the request.
    fn once(&self, number: usize, moment: Moment, retry: &str) -> bool {
        let _told = Told(format!("killed at request {number} ({moment:?}), then {retry}"));
        let site = Site::new(self.plan);
        let held = site.prepare(self.before);
        let (verb, network) = match self.call {
            Call::Add => ("ADD", site.network(On::First)),
            Call::Del => ("DEL", site.network(On::First)),
            Call::Undo => ("ADD", site.failing()),
        };
        let outcome = site.kill_at(number, moment, verb, &network);
        let is_killed = outcome.exit.is_none();
        match self.call {
            Call::Undo if !is_killed => assert_eq!(outcome.failure().0, 100),
            _ => assert!(is_killed || outcome.exit == Some(0), "{outcome:?}"),
        }
        let others = site.call(On::Second, "ADD", "c2").ips();
        if retry == "ADD" {
            let own = site.of_pod("ADD", "c1").ips();
            assert_eq!(own.len(), self.plan.ranges.len());
            assert!(own.iter().all(|address| !others.contains(address)), "{own:?} {others:?}");
            if self.call == Call::Add && !held.is_empty() {
                assert_eq!(own, held);
            }
            site.assert_holds("c1", &own);
            if self.before == Before::Sandbox {
                site.of_pod("DEL", "c0").ended_well();
                site.assert_holds("c1", &own);
            }
        }
        site.of_pod("DEL", "c1").ended_well();
        site.assert_holds("c1", &[]);
        if self.before == Before::Sandbox {
            site.of_pod("DEL", "c0").ended_well();
        }
        site.assert_holds("c2", &others);
        site.call(On::Second, "DEL", "c2").ended_well();
        if self.before == Before::Reserved {
            site.unreserve(FIRST);
        }
        site.assert_empty();
        is_killed
    }
}

const ONE: &[&str] = &["10.1.0.0/24"];
const TWO: &[&str] = &["10.1.0.0/24", "fd00:1::/64"];

const ALONE: Plan = Plan { crds: v094, overlap_check: true, ranges: ONE, is_chain: false };
const CHAIN: Plan = Plan { is_chain: true, ..ALONE };
/// The plans of a test: the first of them in CI, all of them by hand, as with histories.
fn in_size<T>(plans: Vec<T>) -> Vec<T> {
    let count = if full_size() { plans.len() } else { 1 };
    plans.into_iter().take(count).collect()
}

/// Without reservations: the entry has the revision, or the node's note.
const UNCHECKED: Plan = Plan { crds: Crds::shipped, overlap_check: false, ..ALONE };
const NOTED: Plan = Plan { crds: v07, ..UNCHECKED };

#[test]
fn an_add_that_makes_its_pool() {
    let scenario =
        |plan, requests| Scenario { plan, before: Before::Nothing, call: Call::Add, requests };
    for (plan, requests) in in_size(vec![(ALONE, 4), (UNCHECKED, 2), (NOTED, 2)]) {
        scenario(plan, requests).run();
    }
}

#[test]
fn an_add_to_a_pool() {
    let scenario =
        |plan, requests| Scenario { plan, before: Before::Pools, call: Call::Add, requests };
    let v07 = Plan { crds: v07, ..ALONE };
    let plans = vec![(UNCHECKED, 2), (ALONE, 3), (CHAIN, 3), (v07, 3), (NOTED, 2)];
    for (plan, requests) in in_size(plans) {
        scenario(plan, requests).run();
    }
}

#[test]
fn an_add_to_two_pools() {
    let plan = Plan { ranges: TWO, ..ALONE };
    Scenario { plan, before: Before::Pools, call: Call::Add, requests: 6 }.run();
}

#[test]
fn an_add_to_a_pool_that_overlaps_with_another() {
    Scenario { plan: ALONE, before: Before::Overlapping, call: Call::Add, requests: 5 }.run();
}

#[test]
fn an_add_that_takes_its_entry_back() {
    Scenario { plan: ALONE, before: Before::Reserved, call: Call::Add, requests: 8 }.run();
}

#[test]
fn a_repeated_add() {
    let scenario =
        |plan, requests| Scenario { plan, before: Before::Held, call: Call::Add, requests };
    for (plan, requests) in in_size(vec![(ALONE, 2), (UNCHECKED, 2)]) {
        scenario(plan, requests).run();
    }
}

#[test]
fn an_add_of_the_next_sandbox() {
    // On these definitions, only a note shows whose an entry is.
    let v07 = Plan { crds: v07, ..ALONE };
    for plan in in_size(vec![v07, ALONE]) {
        Scenario { plan, before: Before::Sandbox, call: Call::Add, requests: 4 }.run();
    }
}

#[test]
fn a_del_without_a_record() {
    let scenario =
        |plan, requests| Scenario { plan, before: Before::Held, call: Call::Del, requests };
    for (plan, requests) in in_size(vec![(ALONE, 4), (UNCHECKED, 2), (NOTED, 2)]) {
        scenario(plan, requests).run();
    }
}

#[test]
fn a_del_with_a_record() {
    let scenario =
        |plan, requests| Scenario { plan, before: Before::Held, call: Call::Del, requests };
    for (plan, requests) in in_size(vec![(CHAIN, 2), (Plan { ranges: TWO, ..CHAIN }, 4)]) {
        scenario(plan, requests).run();
    }
}

#[test]
fn an_add_that_the_chain_undoes() {
    Scenario { plan: CHAIN, before: Before::Pools, call: Call::Undo, requests: 7 }.run();
}
