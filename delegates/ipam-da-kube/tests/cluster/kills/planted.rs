//! Races between two calls, at each request of one of them; and clients with one bug each, which the
//! races find.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ipam_testkit::kube::Client;
use ipam_testkit::node::given;
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use super::{ALONE, FIRST, UNCHECKED};
use crate::common::relay::{Ask, Bug, Fate, no_bug};
use crate::common::site::{On, Plan, Site};

/// A call that is ready to be made.
type Call = (Command, Value);

/// A race of a site with others at the request of this number. Returns whether there was one.
type Race = fn(&Site, usize) -> Result<bool, String>;

/// How many requests a call may have.
const MOST: usize = 12;

const RACES: [(&str, Race); 6] = [
    ("two ADDs on a new pool", adds_on_a_new_pool),
    ("two ADDs on a pool", adds_on_a_pool),
    ("an ADD, while another program has reserved the address", reserved),
    ("a DEL, and another's ADD after a DEL", late_del),
    ("a DEL, and a repeated ADD", del_and_confirmation),
    ("a repeated ADD, and another's ADD after a DEL", late_confirmation),
];

impl Site {
    fn prepared(&self, on: On, verb: &str, container: &str) -> Call {
        (self.command(on, verb, container), self.network(on))
    }

    /// A DEL of the first node with the leases of an ADD.
    fn del_of(&self, container: &str, result: &Value) -> Call {
        let mut network = self.network(On::First);
        network["prevResult"] = given(result);
        network["prevResult"]["cniVersion"] = "1.0.0".into();
        (self.command(On::First, "DEL", container), network)
    }

    /// Makes a call, and others when its request of this number arrives.
    fn race(&self, number: usize, call: Call, others: Vec<Call>) -> (Outcome, Vec<Outcome>) {
        let (count, others) = (AtomicUsize::new(0), Mutex::new(Some(others)));
        let ended = Arc::new(Mutex::new(Vec::new()));
        let its = ended.clone();
        self.relay.decide(move |_| {
            if count.fetch_add(1, Ordering::SeqCst) == number {
                let others = others.lock().unwrap().take().into_iter().flatten();
                let outcomes = others.map(|(command, network)| wait(start(command, &network)));
                its.lock().unwrap().extend(outcomes);
            }
            Fate::Pass
        });
        let outcome = wait(start(call.0, &call.1));
        self.relay.pass();
        let ended = std::mem::take(&mut *ended.lock().unwrap());
        (outcome, ended)
    }

    /// Releases what two containers hold; nothing may be left.
    fn end(&self) -> Result<(), String> {
        self.call(On::First, "DEL", "c1").ended_well();
        self.call(On::Second, "DEL", "c2").ended_well();
        match self.desk.held() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left are {left:?}")),
        }
    }
}

fn adds(site: &Site, number: usize) -> Result<bool, String> {
    let call = site.prepared(On::First, "ADD", "c1");
    let (own, mut others) = site.race(number, call, vec![site.prepared(On::Second, "ADD", "c2")]);
    let Some(other) = others.pop() else { return Ok(false) };
    let (own, other) = (own.ips(), other.ips());
    if own == other {
        return Err(format!("both have {own:?}"));
    }
    site.holds("c1", &own)?;
    site.holds("c2", &other)?;
    site.end().map(|()| true)
}

fn adds_on_a_new_pool(site: &Site, number: usize) -> Result<bool, String> {
    adds(site, number)
}

fn adds_on_a_pool(site: &Site, number: usize) -> Result<bool, String> {
    site.call(On::First, "ADD", "c1").success();
    site.call(On::First, "DEL", "c1").ended_well();
    adds(site, number)
}

fn reserved(site: &Site, number: usize) -> Result<bool, String> {
    if !site.plan.overlap_check || number > 0 {
        return Ok(false);
    }
    site.reserve(FIRST);
    let own = site.call(On::First, "ADD", "c1").ips();
    if own[0].starts_with(&format!("{FIRST}/")) {
        return Err(format!("{own:?} is another's"));
    }
    site.holds("c1", &own)?;
    site.unreserve(FIRST);
    site.end().map(|()| true)
}

fn late_del(site: &Site, number: usize) -> Result<bool, String> {
    let result = site.call(On::First, "ADD", "c1").success();
    let others = vec![site.del_of("c1", &result), site.prepared(On::Second, "ADD", "c2")];
    let (del, mut others) = site.race(number, site.del_of("c1", &result), others);
    del.ended_well();
    let Some(other) = others.pop() else { return Ok(false) };
    site.holds("c2", &other.ips())?;
    site.holds("c1", &[])?;
    site.end().map(|()| true)
}

fn del_and_confirmation(site: &Site, number: usize) -> Result<bool, String> {
    site.call(On::First, "ADD", "c1").success();
    let again = vec![site.prepared(On::First, "ADD", "c1")];
    let (del, mut others) = site.race(number, site.prepared(On::First, "DEL", "c1"), again);
    del.ended_well();
    let Some(again) = others.pop() else { return Ok(false) };
    let again = again.success();
    if number == if site.plan.overlap_check { 2 } else { 1 } {
        // The DEL has seen the lease, and released nothing of it.
        site.holds("c1", &[again["ips"][0]["address"].as_str().unwrap().to_owned()])?;
    }
    // The chain, which lets no two calls of an attachment run at once, has the leases in its record.
    let (command, network) = site.del_of("c1", &again);
    wait(start(command, &network)).ended_well();
    site.end().map(|()| true)
}

fn late_confirmation(site: &Site, number: usize) -> Result<bool, String> {
    let result = site.call(On::First, "ADD", "c1").success();
    let others = vec![site.del_of("c1", &result), site.prepared(On::Second, "ADD", "c2")];
    let call = site.prepared(On::First, "ADD", "c1");
    let (own, mut others) = site.race(number, call, others);
    let Some(other) = others.pop() else { return Ok(false) };
    let (own, other) = (own.ips(), other.ips());
    if own == other {
        return Err(format!("both have {own:?}"));
    }
    site.holds("c2", &other)?;
    site.holds("c1", &own)?;
    site.end().map(|()| true)
}

/// Runs a race at each request. Returns the first fault, and how many requests there were.
fn run(plan: Plan, bug: Bug, race: Race) -> (Option<String>, usize) {
    for number in 0..MOST {
        let site = Site::with_bug(plan, bug);
        site.end_turns();
        match race(&site, number) {
            Ok(true) => {}
            Ok(false) => return (None, number),
            Err(fault) => return (Some(format!("request {number}: {fault}")), number),
        }
    }
    (None, MOST)
}

#[test]
fn each_race_ends_well() {
    for (plan, fewest) in [(ALONE, 1), (UNCHECKED, 0)] {
        for (name, race) in RACES {
            let (fault, requests) = run(plan, no_bug, race);
            assert!(fault.is_none(), "{name}: {fault:?}");
            assert!((fewest..MOST).contains(&requests), "{name}: {requests} requests");
        }
    }
}

#[test]
fn each_planted_bug_is_found() {
    // Each with a race that finds it.
    let bugs: [(&str, Bug, Race, &[Plan]); 9] = [
        ("entries are added without a test", added_untested, adds_on_a_pool, &[ALONE, UNCHECKED]),
        ("entries are removed without a test", removed_untested, late_del, &[ALONE, UNCHECKED]),
        (
            "entries are confirmed without a test",
            replaced_untested,
            late_confirmation,
            &[UNCHECKED],
        ),
        ("a pool that exists counts as made", pool_made, adds_on_a_new_pool, &[UNCHECKED]),
        ("a reservation that exists counts as made", reservation_made, reserved, &[ALONE]),
        (
            "reservations are confirmed without a test",
            restamped_untested,
            late_confirmation,
            &[ALONE],
        ),
        ("reservations are deleted without preconditions", deleted_unguarded, late_del, &[ALONE]),
        ("reservations are left", reservation_left, adds_on_a_new_pool, &[ALONE]),
        ("entries are left", entry_left, adds_on_a_new_pool, &[ALONE, UNCHECKED]),
    ];
    for (name, bug, race, plans) in bugs {
        for plan in plans {
            let (fault, _) = run(*plan, bug, race);
            assert!(fault.is_some(), "{name} (overlapCheck {})", plan.overlap_check);
        }
    }
}

/// Removes the tests of a patch of this kind that has one of these operations on an entry or, of a
/// reservation, any.
pub(crate) fn strip_tests(ask: &mut Ask, kind: &str, op: &str) {
    if ask.method != "PATCH" || !ask.target.contains(kind) {
        return;
    }
    let mut patch: Vec<Value> = serde_json::from_str(&ask.body).unwrap();
    let is_op = |step: &Value| {
        step["op"] == op && !step["path"].as_str().unwrap().starts_with("/metadata/managed")
    };
    if patch.iter().any(is_op) {
        patch.retain(|step| step["op"] != "test");
        ask.body = json!(patch).to_string();
    }
}

fn added_untested(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    strip_tests(ask, "/ippools/", "add");
    None
}

fn removed_untested(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    strip_tests(ask, "/ippools/", "remove");
    None
}

fn replaced_untested(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    strip_tests(ask, "/ippools/", "replace");
    None
}

fn restamped_untested(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    strip_tests(ask, "/overlappingrangeipreservations/", "add");
    None
}

/// Answers a POST of an object that exists as if it were made.
pub(crate) fn made(client: &Client, ask: &Ask, kind: &str) -> Option<(u16, String)> {
    if ask.method != "POST" || !ask.target.contains(kind) {
        return None;
    }
    let answer = client.ask("POST", &ask.target, ask.body.as_bytes());
    if answer.status != 409 {
        return Some((answer.status, answer.text()));
    }
    let mut object: Value = serde_json::from_str(&ask.body).unwrap();
    let path = format!("{}/{}", ask.target, object["metadata"]["name"].as_str().unwrap());
    object["metadata"] = client.get(&path).unwrap()["metadata"].clone();
    Some((201, object.to_string()))
}

fn pool_made(client: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    made(client, ask, "/ippools")
}

fn reservation_made(client: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    made(client, ask, "/overlappingrangeipreservations")
}

fn deleted_unguarded(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    if ask.method == "DELETE" {
        ask.body = "{}".to_owned();
    }
    None
}

/// What a server answers to a DELETE, and to a PATCH whose answer is not read.
pub(crate) fn success() -> (u16, String) {
    let metadata = json!({"name": "x", "uid": "x", "resourceVersion": "1"});
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Success",
    });
    (200, status.to_string())
}

fn reservation_left(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    (ask.method == "DELETE").then(success)
}

fn entry_left(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    (ask.method == "PATCH" && ask.body.contains(r#""op":"remove""#)).then(success)
}
