//! Calls for a sticky name that are killed at a request: the next ADD of the name, or the DEL, ends
//! what they leave.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ipam_testkit::kube::Node as NodeObject;
use ipam_testkit::node::given;
use ipam_testkit::world::{Outcome, full_size};
use serde_json::{Value, json};

use crate::common::Desk;
use crate::common::node::{Node, SUBNET};
use crate::common::relay::{Ask, Relay};
use crate::common::sticky::{StickySandbox, sticky_desk};
use crate::kills::Moment;

/// What the name is before the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    New,
    /// Kept after a DEL.
    Kept,
    /// Held by a pod that has been deleted.
    Dead,
    /// Held by another pod of another node, whose object is deleted.
    Elsewhere,
    /// Held by the container of the call.
    Held,
}

/// What comes after the kill.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// The same call again.
    Again,
    /// The DEL.
    Del,
    /// A pod of another node, and then the DEL.
    Other,
}

struct Scenario {
    before: Before,
    verb: &'static str,
    keep: &'static str,
    requests: usize,
}

struct Stage {
    desk: Desk,
    relay: Relay,
    /// The first reaches the server through the relay.
    nodes: [Node; 2],
    plain: Node,
}

impl Stage {
    /// With a pool of this subnet.
    fn new(keep: &str, subnet: &str) -> Self {
        let desk = sticky_desk();
        let nodes = ["node-1", "node-2"].map(|name| sticky_node(&desk, name, keep, subnet));
        let plain = Node::of(&desk).named("node-3").with_subnets(&[subnet]);
        // The pool exists.
        plain.add("warm");
        plain.del("warm");
        let relay = Relay::to(&desk.client, crate::common::relay::no_bug);
        let kubeconfig = desk.kubeconfig_of(&desk.login).server(&relay.url()).authority(None);
        kubeconfig.write(&desk.folder.path().join("relayed"));
        let mut nodes = nodes;
        nodes[0].store["kube"]["kubeconfig"] = json!(desk.folder.path().join("relayed"));
        Self { desk, relay, nodes, plain }
    }

    /// Calls for a sandbox of the first node, and kills the call at its request of this number.
    fn kill_at(
        &self,
        number: usize,
        moment: Moment,
        pod: &StickySandbox<'_>,
        call: (&str, &Value),
    ) -> Outcome {
        let mut network = pod.node.network();
        for (key, value) in call.1.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        self.kill_command_at(number, moment, pod.command(call.0), &network)
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
        self.relay.kill_when(is_last, moment, command, network)
    }

    /// Gives the name to a last pod, which keeps nothing. Returns the address.
    #[track_caller]
    fn end_name(&self, subnet: &str) -> String {
        let desk = &self.desk;
        let uid = desk.create_pod("last", "");
        let last = sticky_node(desk, "node-2", "0s", subnet);
        let last = StickySandbox::of_pod(desk, &last, "c3", "last", &uid);
        let address = last.address();
        last.del();
        address
    }

    #[track_caller]
    fn assert_empty(&self, told: &str) {
        let left = (self.desk.held(), self.desk.sticky_objects());
        assert_eq!(left, (Vec::new(), Vec::new()), "{told}");
    }
}

/// A node whose pool has the name.
fn sticky_node(desk: &Desk, node: &str, keep: &str, subnet: &str) -> Node {
    let node = Node::of(desk).named(node).with_subnets(&[subnet]);
    node.with_in_pools("sticky", "web").with_in_pools("keep", keep)
}

/// Kills a call at each of its requests in turn: `once` does so, and returns whether the call has had
/// the request.
fn at_each_request(requests: usize, once: impl Fn(usize, Moment) -> bool + Sync) {
    thread::scope(|scope| {
        for moment in [Moment::Early, Moment::Late] {
            // To the server, a kill after a request is one before the next.
            let mut number = if moment == Moment::Late { requests - 1 } else { 0 };
            let once = &once;
            scope.spawn(move || {
                while once(number, moment) {
                    number += 1;
                }
                assert!(number >= requests, "{moment:?}: {number} requests");
            });
        }
    });
}

impl Scenario {
    fn run(&self) {
        // The same call again is by hand alone, as with histories.
        let thens = [Then::Del, Then::Other, Then::Again];
        thread::scope(|scope| {
            for then in thens.into_iter().take(if full_size() { 3 } else { 2 }) {
                let once = move |number, moment| self.once(number, moment, then);
                scope.spawn(move || at_each_request(self.requests, once));
            }
        });
    }

    /// Kills the call at a request. Returns whether it has had the request.
    fn once(&self, number: usize, moment: Moment, then: Then) -> bool {
        let stage = Stage::new(self.keep, SUBNET);
        let desk = &stage.desk;
        let told = format!("{:?} {} {number} {moment:?} {then:?}", self.before, self.verb);
        let mut uid = desk.create_pod("web-0", "n1");
        let [one, two] = &stage.nodes;
        let mut own = StickySandbox::of_pod(desk, one, "c1", "web-0", &uid);
        let object = format!("n9.{}", desk.namespace);
        desk.client.create_node(&NodeObject::named(&object));
        let earlier_uid = desk.create_pod("web-9", &object);
        let earlier = StickySandbox::of_pod(desk, two, "c0", "web-9", &earlier_uid);
        let mut known = json!({});
        let mut address = None;
        if self.before != Before::New {
            let holder = match self.before {
                Before::Held => own,
                Before::Elsewhere => earlier,
                _ => StickySandbox { container: "c0", ..own },
            };
            let result = holder.add();
            address = Some(ipam_testkit::node::addresses(&result).swap_remove(0));
            match self.before {
                Before::Kept => holder.del_known(&result),
                Before::Held => known = given(&result),
                Before::Elsewhere => desk.client.delete_node(&object),
                _ => {}
            }
        }
        if self.before == Before::Dead {
            desk.force_delete_pod("web-0");
            uid = desk.create_pod("web-0", "n1");
            own = StickySandbox::of_pod(desk, one, "c1", "web-0", &uid);
        }
        let sent = if self.verb == "DEL" { known.clone() } else { json!({}) };
        let outcome = stage.kill_at(number, moment, &own, (self.verb, &sent));
        let is_killed = outcome.exit.is_none();
        assert!(is_killed || outcome.exit == Some(0), "{told}: {outcome:?}");
        // Others come at once, and get another address.
        let other = stage.plain.address("c9");
        let expects = |found: &String| {
            assert_ne!(*found, other, "{told}");
            // A DEL may have begun to free it.
            if let Some(address) = address.as_ref().filter(|_| self.verb == "ADD") {
                assert_eq!(found, address, "{told}");
            }
        };
        match then {
            Then::Again if self.verb == "ADD" => expects(&own.address()),
            Then::Again => drop(own.call_with("DEL", &known).success()),
            Then::Del => own.del(),
            Then::Other => {
                desk.force_delete_pod("web-0");
                let uid = desk.create_pod("web-0", "n2");
                let next = StickySandbox::of_pod(desk, two, "c2", "web-0", &uid);
                expects(&next.address());
                assert_eq!(own.call_with("DEL", &known).exit, Some(0), "{told}");
                earlier.del();
                let holder = desk.sticky("web").unwrap()["spec"]["holder"]["container"].clone();
                assert_eq!(holder, "c2", "{told}");
                desk.objects().assert_consistent();
                next.del();
            }
        }
        own.del();
        expects(&stage.end_name(SUBNET));
        stage.plain.del("c9");
        stage.assert_empty(&told);
        is_killed
    }
}

#[test]
fn the_first_add_of_a_name() {
    Scenario { before: Before::New, verb: "ADD", keep: "0s", requests: 4 }.run();
}

#[test]
fn an_add_of_a_name_that_is_kept() {
    Scenario { before: Before::Kept, verb: "ADD", keep: "1h", requests: 4 }.run();
}

#[test]
fn an_add_of_a_name_whose_holder_is_gone() {
    Scenario { before: Before::Dead, verb: "ADD", keep: "0s", requests: 7 }.run();
}

#[test]
fn a_del_that_frees_the_address() {
    Scenario { before: Before::Held, verb: "DEL", keep: "0s", requests: 3 }.run();
}

#[test]
fn a_del_that_keeps_the_address() {
    Scenario { before: Before::Held, verb: "DEL", keep: "1h", requests: 1 }.run();
}

#[test]
fn a_repeated_add_of_a_name() {
    Scenario { before: Before::Held, verb: "ADD", keep: "1h", requests: 3 }.run();
}

#[test]
fn an_add_of_a_name_that_moves_to_another_pod_and_node() {
    Scenario { before: Before::Elsewhere, verb: "ADD", keep: "0s", requests: 8 }.run();
}

/// A pool of one address.
const FULL: &str = "10.1.2.0/30";

#[test]
fn an_add_to_a_full_pool_that_ends_a_name() {
    for name_comes in [false, true] {
        at_each_request(8, |number, moment| {
            let told = format!("{number} {moment:?}, the name comes: {name_comes}");
            let mut stage = Stage::new("1h", FULL);
            stage.nodes[0].pools = stage.plain.pools.clone();
            let Stage { desk, nodes: [one, two], .. } = &stage;
            let expire = || {
                let over = json!({"spec": {"keptUntil": "2026-01-01T00:00:00Z"}});
                desk.client.patch(&desk.sticky_path("10.1.2.0-30.web"), &over);
            };
            let name = |container| StickySandbox::of_pod(desk, two, container, "", "");
            let plain = StickySandbox::of_pod(desk, one, "c1", "", "");
            name("c0").add();
            name("c0").del();
            expire();
            let outcome = stage.kill_at(number, moment, &plain, ("ADD", &json!({})));
            let is_killed = outcome.exit.is_none();
            assert!(is_killed || outcome.exit == Some(0), "{told}: {outcome:?}");
            if name_comes {
                match name("c2").call_with("ADD", &json!({})) {
                    came if came.exit == Some(0) => {
                        assert_eq!(came.ips(), ["10.1.2.2/30"], "{told}");
                        plain.refused(100);
                        name("c2").del();
                        expire();
                    }
                    // The killed call has the address.
                    late => assert_eq!(late.failure().0, 100, "{told}"),
                }
            }
            assert_eq!(plain.address(), "10.1.2.2", "{told}");
            desk.objects().assert_consistent();
            plain.del();
            stage.end_name(FULL);
            stage.assert_empty(&told);
            is_killed
        });
    }
}

#[test]
fn an_add_that_moves_a_name_to_another_address() {
    // In CI each kill has one of the two ends.
    let ends = |number: usize| if full_size() { 0..2 } else { number % 2..number % 2 + 1 };
    at_each_request(12, |number, moment| {
        let had_it: Vec<bool> = ends(number).map(|end| move_at(number, moment, end == 0)).collect();
        had_it.contains(&true)
    });
}

/// Kills an ADD that requests another address for a name that is kept. Then the same ADD comes again
/// or, after the DEL, another node's without a request. Returns whether the ADD has had the request.
fn move_at(number: usize, moment: Moment, again: bool) -> bool {
    let told = format!("{number} {moment:?}, the same again: {again}");
    let mut stage = Stage::new("1h", SUBNET);
    // Three addresses.
    for node in stage.nodes.iter_mut().chain([&mut stage.plain]) {
        node.pools[0]["ranges"][0]["rangeEnd"] = "10.1.2.4".into();
    }
    stage.nodes[0].pools[0]["requested-ip"] = "10.1.2.3".into();
    let Stage { desk, nodes: [one, two], plain, .. } = &stage;
    let [a, b] = ["web-0", "web-1"].map(|name| desk.create_pod(name, ""));
    let earlier = StickySandbox::of_pod(desk, two, "c0", "web-0", &a);
    assert_eq!(earlier.address(), "10.1.2.2");
    earlier.del();
    let own = StickySandbox::of_pod(desk, one, "c1", "web-0", &a);
    let outcome = stage.kill_at(number, moment, &own, ("ADD", &json!({})));
    let is_killed = outcome.exit.is_none();
    assert!(is_killed || outcome.exit == Some(0), "{told}: {outcome:?}");
    if again {
        assert_eq!(own.address(), "10.1.2.3", "{told}");
    }
    desk.objects().assert_distinct();
    own.del();
    let next = StickySandbox::of_pod(desk, two, "c2", "web-1", &b);
    let address = next.address();
    assert!(!again || address == "10.1.2.3", "{told}: {address}");
    let spec = desk.sticky("web").unwrap()["spec"].clone();
    assert_eq!((&spec["address"], &spec["holder"]["container"]), (&json!(address), &json!("c2")));
    desk.objects().assert_distinct();
    next.del();
    // What is left of the name's earlier object keeps no other pod from its address.
    desk.force_delete_pod("web-0");
    desk.expire("web");
    let others = ["net1", "net2", "net3"];
    let others = others.map(|ifname| StickySandbox { node: plain, ifname, ..next });
    others.iter().for_each(|other| drop(other.add()));
    others.iter().for_each(StickySandbox::del);
    stage.assert_empty(&told);
    is_killed
}

#[test]
fn a_gc_of_names() {
    for (keep, requests) in [("1h", 3), ("0s", 5)] {
        for name_moves in [false, true] {
            at_each_request(requests, |number, moment| {
                let told = format!("{keep} {number} {moment:?}, the name moves: {name_moves}");
                // An entry that is left is ended by the next ADD to the full pool.
                let stage = Stage::new(keep, FULL);
                let Stage { desk, nodes: [one, two], .. } = &stage;
                let uid = desk.create_pod("web-0", "n1");
                StickySandbox::of_pod(desk, one, "c1", "web-0", &uid).add();
                desk.force_delete_pod("web-0");
                desk.age(Duration::from_secs(7200));
                let mut network = one.network();
                network["cni.dev/valid-attachments"] = json!([]);
                let gc = one.command("GC", "");
                let outcome = stage.kill_command_at(number, moment, gc, &network);
                let is_killed = outcome.exit.is_none();
                assert!(is_killed || outcome.exit == Some(0), "{told}: {outcome:?}");
                let uid = desk.create_pod("web-1", "n2");
                let next = StickySandbox::of_pod(desk, two, "c2", "web-1", &uid);
                if name_moves {
                    assert_eq!(next.address(), "10.1.2.2", "{told}");
                }
                one.gc(&[]).ended_well();
                let spec = desk.sticky_objects().pop().map(|(_, object)| object["spec"].clone());
                match spec.as_ref() {
                    Some(spec) if name_moves => {
                        assert_eq!(spec["holder"]["container"], "c2", "{told}");
                        next.del();
                    }
                    Some(spec) => assert!(keep == "1h" && spec["keptUntil"].is_string(), "{told}"),
                    None => {
                        let is_freed = desk.objects().reservations().is_empty();
                        assert!(keep == "0s" && !name_moves && is_freed, "{told}");
                    }
                }
                assert_eq!(stage.end_name(FULL), "10.1.2.2", "{told}");
                stage.assert_empty(&told);
                is_killed
            });
        }
    }
}
