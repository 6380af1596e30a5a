//! Calls for a sticky name that are killed at a request: the next ADD of the name, or the DEL, ends
//! what they leave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ipam_testkit::node::given;
use ipam_testkit::world::{Outcome, full_size};
use serde_json::{Value, json};

use crate::common::Desk;
use crate::common::node::Node;
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
    fn new(keep: &str) -> Self {
        let desk = sticky_desk();
        let nodes = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web", keep));
        let plain = Node::of(&desk).named("node-3");
        // The nodes know the pool.
        for node in &nodes {
            let node = Node { pools: plain.pools.clone(), ..Node::of(&desk).named(&node.name) };
            node.add("warm");
            node.del("warm");
        }
        let relay = Relay::to(&desk.client, crate::common::relay::no_bug);
        let kubeconfig = desk.kubeconfig_of(&desk.login).server(&relay.url()).authority(None);
        kubeconfig.write(&desk.folder.path().join("relayed"));
        let mut nodes = nodes;
        nodes[0].store["kube"]["kubeconfig"] = json!(desk.folder.path().join("relayed"));
        Self { desk, relay, nodes, plain }
    }

    fn kill_at(
        &self,
        number: usize,
        moment: Moment,
        pod: &StickySandbox<'_>,
        call: (&str, &Value),
    ) -> Outcome {
        let count = AtomicUsize::new(0);
        let is_last = move |_: &Ask| count.fetch_add(1, Ordering::SeqCst) == number;
        let mut network = pod.node.network();
        for (key, value) in call.1.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        self.relay.kill_when(is_last, moment, pod.command(call.0), &network)
    }
}

impl Scenario {
    fn run(&self) {
        thread::scope(|scope| {
            for moment in [Moment::Early, Moment::Late] {
                // To the server, a kill after a request is one before the next.
                let first = if moment == Moment::Late { self.requests - 1 } else { 0 };
                // The same call again is by hand alone, as with histories.
                let thens = [Then::Del, Then::Other, Then::Again];
                for then in thens.into_iter().take(if full_size() { 3 } else { 2 }) {
                    scope.spawn(move || {
                        let mut number = first;
                        while self.once(number, moment, then) {
                            number += 1;
                        }
                        assert!(number >= self.requests, "{:?} {then:?} {number}", self.before);
                    });
                }
            }
        });
    }

    /// Kills the call at a request. Returns whether it has had the request.
    fn once(&self, number: usize, moment: Moment, then: Then) -> bool {
        let stage = Stage::new(self.keep);
        let desk = &stage.desk;
        let told = format!("{:?} {} {number} {moment:?} {then:?}", self.before, self.verb);
        let mut uid = desk.create_pod("web-0", "n1");
        let [one, two] = &stage.nodes;
        let mut own = StickySandbox::of_pod(desk, one, "c1", "web-0", &uid);
        let mut known = json!({});
        let mut address = None;
        if self.before != Before::New {
            let earlier = StickySandbox { container: "c0", ..own };
            let holder = if self.before == Before::Held { own } else { earlier };
            let result = holder.add();
            address = Some(ipam_testkit::node::addresses(&result).swap_remove(0));
            match self.before {
                Before::Kept => holder.del_known(&result),
                Before::Held => known = given(&result),
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
                let holder = desk.sticky("web").unwrap()["spec"]["holder"]["container"].clone();
                assert_eq!(holder, "c2", "{told}");
                desk.objects().assert_consistent();
                next.del();
            }
        }
        own.del();
        // A new owner that keeps nothing shows that the name can be had and ended.
        let last = desk.sticky_node("node-2", "web", "0s");
        let uid = desk.client.get(&desk.pod_path("web-0")).unwrap()["metadata"]["uid"].clone();
        let last = StickySandbox::of_pod(desk, &last, "c3", "web-0", uid.as_str().unwrap());
        expects(&last.address());
        last.del();
        stage.plain.del("c9");
        assert_eq!(desk.held(), [""; 0], "{told}");
        assert_eq!(desk.sticky("web"), None, "{told}");
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
