//! Races for a sticky name, at each request of one of two calls; and clients with one bug each,
//! which the races find.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use ipam_testkit::kube::{Client, Node as NodeObject};
use ipam_testkit::node::given;
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use crate::common::Desk;
use crate::common::node::Node;
use crate::common::relay::{Ask, Bug, Fate, Relay, no_bug};
use crate::common::sticky::{StickySandbox, sticky_desk};
use crate::kills::planted::{made, strip_tests, success};

/// Two nodes, of which the first has the bug, and the two pods of a name.
struct Stage {
    desk: Desk,
    relay: Relay,
    nodes: [Node; 2],
    uids: [String; 2],
}

/// What another does when a request arrives: pods are deleted, then a call is made.
struct Other {
    deleted: &'static [&'static str],
    call: (Command, Value),
}

/// A race on a stage at the request of a number. Returns whether there was one.
struct Race {
    name: &'static str,
    /// For how long addresses are kept.
    keep: &'static str,
    run: fn(&Stage, usize) -> Result<bool, String>,
}

/// How many requests a call may have.
const MOST: usize = 16;

const ALIVE: Race = Race { name: "an ADD, while the holder is alive", keep: "0s", run: alive };
const NEW: Race = Race { name: "two ADDs of a new name", keep: "0s", run: Stage::two_adds };
const KEPT: Race = Race { name: "two ADDs of a name that is kept", keep: "1h", run: adds_of_kept };
const GONE: Race = Race { name: "two ADDs after a lost node", keep: "0s", run: adds_after_loss };
const LATE_DEL: Race = Race { name: "a late DEL, and an ADD", keep: "0s", run: late_del };
const LATE_KEEPING: Race =
    Race { name: "a late DEL that keeps, and an ADD", keep: "1h", run: late_del };

impl Stage {
    fn new(keep: &str, bug: Bug) -> Self {
        let desk = sticky_desk();
        let relay = Relay::to(&desk.client, bug);
        let mut nodes = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web", keep));
        let kubeconfig = desk.kubeconfig_of(&desk.login).server(&relay.url()).authority(None);
        kubeconfig.write(&desk.folder.path().join("relayed"));
        nodes[0].store["kube"]["kubeconfig"] = json!(desk.folder.path().join("relayed"));
        let object = format!("n1.{}", desk.namespace);
        desk.client.create_node(&NodeObject::named(&object));
        let uids = ["a", "b"].map(|pod| desk.create_pod(pod, &object));
        Self { desk, relay, nodes, uids }
    }

    /// The sandbox of a pod on the node of its number: `c0` of the pod `a`, and `c1` of `b`.
    fn pod(&self, number: usize) -> StickySandbox<'_> {
        let (container, pod) = [("c0", "a"), ("c1", "b")][number];
        let node = &self.nodes[number];
        StickySandbox::of_pod(&self.desk, node, container, pod, &self.uids[number])
    }

    fn prepared(&self, number: usize, verb: &str) -> (Command, Value) {
        (self.pod(number).command(verb), self.nodes[number].network())
    }

    /// Makes a call of the first node, and another when its request of this number arrives.
    fn race(
        &self,
        number: usize,
        call: (Command, Value),
        other: Other,
    ) -> (Outcome, Option<Outcome>) {
        let (count, other) = (AtomicUsize::new(0), Mutex::new(Some(other)));
        let ended = Arc::new(Mutex::new(None));
        let (its, client) = (ended.clone(), self.desk.client.clone());
        let pods = self.desk.pod_path("");
        self.relay.decide(move |_| {
            if count.fetch_add(1, Ordering::SeqCst) == number {
                let Other { deleted, call } = other.lock().unwrap().take().unwrap();
                for pod in deleted {
                    client.delete(&format!("{pods}{pod}?gracePeriodSeconds=0"));
                }
                *its.lock().unwrap() = Some(wait(start(call.0, &call.1)));
            }
            Fate::Pass
        });
        let outcome = wait(start(call.0, &call.1));
        self.relay.pass();
        (outcome, ended.lock().unwrap().take())
    }

    /// Two ADDs at once, of which one gets the name.
    fn two_adds(&self, number: usize) -> Result<bool, String> {
        let other = Other { deleted: &[], call: self.prepared(1, "ADD") };
        let (own, other) = self.race(number, self.prepared(0, "ADD"), other);
        let Some(other) = other else { return Ok(false) };
        match (given_to(own), given_to(other)) {
            (Some(address), None) => self.holds("c0", "a", &address)?,
            (None, Some(address)) => self.holds("c1", "b", &address)?,
            (own, other) => return Err(format!("given are {own:?} and {other:?}")),
        }
        self.end().map(|()| true)
    }

    /// Compares the one lease that there is with that of this container.
    fn holds(&self, container: &str, pod: &str, address: &str) -> Result<(), String> {
        let object = self.desk.sticky("web").ok_or("no object has the name")?;
        let bare = address.split('/').next().unwrap_or_default();
        let (spec, uid) = (&object["spec"], object["metadata"]["uid"].as_str().unwrap());
        if spec["holder"]["container"] != container || spec["address"] != bare {
            return Err(format!("{container} has {address}, and the object says {spec}"));
        }
        let id = format!("sticky:10.1.2.0-24.web:{uid}");
        let host = bare.rsplit('.').next().unwrap_or_default();
        let expected = [format!("10.1.2.0-24 {host} {id}"), format!("{bare} {id}")];
        let held = self.desk.held();
        if held != expected {
            return Err(format!("held are {held:?}, expected {expected:?}"));
        }
        let podref = self.desk.objects().reservations()[bare]["spec"]["podref"].clone();
        match podref == format!("{}/{pod}", self.desk.namespace) {
            true => Ok(()),
            false => Err(format!("{address} is reserved for {podref}")),
        }
    }

    /// Both containers end, and what is kept is given up; nothing may be left.
    fn end(&self) -> Result<(), String> {
        for number in [0, 1] {
            let outcome = self.pod(number).call_with("DEL", &json!({}));
            if outcome.exit != Some(0) {
                return Err(format!("the DEL of c{number} fails: {outcome:?}"));
            }
        }
        if let Some(kept) = self.desk.sticky("web") {
            if kept["spec"]["keptUntil"].is_null() {
                return Err(format!("left is {}", kept["spec"]));
            }
            let address = kept["spec"]["address"].as_str().unwrap_or_default();
            self.nodes[1].told(&["release", address, "--yes"]);
        }
        match self.desk.held() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left are {left:?}")),
        }
    }
}

/// The address that an ADD gives; `None` if another has the name.
fn given_to(outcome: Outcome) -> Option<String> {
    if outcome.exit == Some(0) {
        return Some(outcome.ips().swap_remove(0));
    }
    assert_eq!(outcome.json()["code"], 11, "{outcome:?}");
    None
}

fn alive(stage: &Stage, number: usize) -> Result<bool, String> {
    if number > 0 {
        return Ok(false);
    }
    let address = stage.pod(1).address();
    if let Some(own) = given_to(stage.pod(0).call_with("ADD", &json!({}))) {
        return Err(format!("{own} has a holder that is alive"));
    }
    stage.holds("c1", "b", &address)?;
    stage.end().map(|()| true)
}

fn adds_of_kept(stage: &Stage, number: usize) -> Result<bool, String> {
    stage.pod(1).add();
    stage.pod(1).del();
    stage.two_adds(number)
}

fn adds_after_loss(stage: &Stage, number: usize) -> Result<bool, String> {
    let uid = stage.desk.create_pod("lost", "");
    let lost = StickySandbox { container: "c9", pod: ("lost", &uid), ..stage.pod(1) };
    lost.add();
    stage.desk.force_delete_pod("lost");
    stage.two_adds(number)
}

fn late_del(stage: &Stage, number: usize) -> Result<bool, String> {
    let result = stage.pod(0).add();
    let (command, mut network) = stage.prepared(0, "DEL");
    for (key, value) in given(&result).as_object().unwrap() {
        network["prevResult"][key] = value.clone();
    }
    let other = Other { deleted: &["a"], call: stage.prepared(1, "ADD") };
    let (del, other) = stage.race(number, (command, network), other);
    if del.exit != Some(0) {
        return Err(format!("{del:?}"));
    }
    let Some(other) = other else { return Ok(false) };
    let address = given_to(other).ok_or("the holder of a deleted pod counts as alive")?;
    stage.holds("c1", "b", &address)?;
    stage.end().map(|()| true)
}

impl Race {
    /// Runs it at each request. Returns the first fault, and how many requests there were.
    fn run_with(&self, bug: Bug) -> (Option<String>, usize) {
        for number in 0..MOST {
            match (self.run)(&Stage::new(self.keep, bug), number) {
                Ok(true) => {}
                Ok(false) => return (None, number),
                Err(fault) => return (Some(format!("request {number}: {fault}")), number),
            }
        }
        (None, MOST)
    }
}

#[test]
fn each_race_for_a_name_ends_well() {
    thread::scope(|scope| {
        for race in [ALIVE, NEW, KEPT, GONE, LATE_DEL, LATE_KEEPING] {
            scope.spawn(move || {
                let (fault, requests) = race.run_with(no_bug);
                assert!(fault.is_none(), "{}: {fault:?}", race.name);
                assert!((1..MOST).contains(&requests), "{}: {requests} requests", race.name);
            });
        }
    });
}

#[test]
fn each_planted_bug_of_names_is_found() {
    let bugs: [(&str, Bug, Race); 9] = [
        ("an object that exists counts as made", name_made, NEW),
        ("the object is not made, and the entry is", claim_dropped, NEW),
        ("names are taken without a test", taken_untested, GONE),
        ("a pod counts as gone", pods_gone, ALIVE),
        ("a node counts as gone", nodes_gone, ALIVE),
        ("objects are deleted without preconditions", deleted_unguarded, LATE_DEL),
        ("names are kept without a test", kept_untested, LATE_KEEPING),
        ("objects are left", name_left, LATE_DEL),
        ("holders are left", holder_left, KEPT),
    ];
    thread::scope(|scope| {
        for (name, bug, race) in bugs {
            scope.spawn(move || {
                let (fault, _) = race.run_with(bug);
                assert!(fault.is_some(), "{name}: {}", race.name);
            });
        }
    });
}

const KIND: &str = "/stickyleases";

fn name_made(client: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    made(client, ask, KIND)
}

fn claim_dropped(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    if ask.method != "POST" || !ask.target.contains(KIND) {
        return None;
    }
    let mut object: Value = serde_json::from_str(&ask.body).unwrap();
    object["metadata"]["uid"] = "7c0e".into();
    object["metadata"]["resourceVersion"] = "1".into();
    Some((201, object.to_string()))
}

/// Whether it ends a hold, and keeps the address.
fn is_keeping(ask: &Ask) -> bool {
    ask.method == "PATCH" && ask.target.contains(KIND) && ask.body.contains(r#""op":"remove""#)
}

fn taken_untested(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    if !is_keeping(ask) {
        strip_tests(ask, KIND, "add");
    }
    None
}

fn kept_untested(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    if is_keeping(ask) {
        strip_tests(ask, KIND, "add");
    }
    None
}

fn missing(ask: &Ask, part: &str) -> Option<(u16, String)> {
    let status = json!({
        "kind": "Status", "reason": "NotFound", "message": "m", "details": {"name": "x"}, "code": 404,
    });
    ask.target.contains(part).then(|| (404, status.to_string()))
}

fn pods_gone(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    // The holder's. Where the pod of the call is missing, too, no pod counts as gone.
    missing(ask, "/pods/b")
}

fn nodes_gone(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    missing(ask, "/nodes/")
}

fn deleted_unguarded(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    if ask.method == "DELETE" && ask.target.contains(KIND) {
        ask.body = "{}".to_owned();
    }
    None
}

fn name_left(_: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    (ask.method == "DELETE" && ask.target.contains(KIND)).then(success)
}

fn holder_left(client: &Client, ask: &mut Ask) -> Option<(u16, String)> {
    is_keeping(ask).then(|| (200, client.get(&ask.target).unwrap().to_string()))
}
