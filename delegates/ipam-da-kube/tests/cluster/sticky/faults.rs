//! A server that fails once, at each request about a sticky name and its holder: the call succeeds
//! or can be repeated, and the name has one address and the right holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ipam_testkit::kube::Node as NodeObject;
use ipam_testkit::node::given;
use ipam_testkit::world::Outcome;
use serde_json::{Value, json};

use crate::common::Desk;
use crate::common::node::Node;
use crate::common::relay::{Ask, Fate, Relay};
use crate::common::sticky::{StickySandbox, sticky_desk};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// 429 with `Retry-After`.
    Busy,
    /// 504, and nothing was done.
    Late,
    /// 504, and it was done.
    LateAnswer,
    /// The connection ends before the request is carried out.
    Cut,
    /// The connection ends before the answer.
    CutAnswer,
}

use Fault::{Busy, Cut, CutAnswer, Late, LateAnswer};

/// A call, and what the name is before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    /// ADD of a new name.
    New,
    /// ADD of a name that is kept.
    Kept,
    /// ADD of a name whose holder was on a node that is gone.
    Lost,
    /// DEL of a name that is kept.
    Keep,
    /// DEL of a name that is freed.
    Free,
    /// ADD without a name to a pool that has one address, which was kept until now.
    Full,
}

struct Stage {
    desk: Desk,
    relay: Relay,
    node: Node,
    /// The pod of the call.
    uid: String,
    /// The leases of a DEL.
    known: Value,
}

const SUBNET: &str = "10.1.2.0/30";
const OBJECT: &str = "10.1.2.0-30.web";

impl Stage {
    fn new(call: Call) -> Self {
        let desk = sticky_desk();
        let keep = if call == Call::Free { "0s" } else { "1h" };
        let of_name = |name: &str| {
            let node = Node::of(&desk).named(name).with_subnets(&[SUBNET]);
            node.with_in_pools("sticky", "web").with_in_pools("keep", keep)
        };
        let node = of_name("node-1");
        let uid = desk.create_pod("b", "");
        let mut known = json!({});
        let before = of_name("node-0");
        match call {
            Call::New => {}
            Call::Kept | Call::Full => {
                let pod = StickySandbox::of_pod(&desk, &before, "c0", "", "");
                pod.add();
                pod.del();
            }
            Call::Lost => {
                let object = format!("n1.{}", desk.namespace);
                desk.client.create_node(&NodeObject::named(&object));
                let uid = desk.create_pod("a", &object);
                StickySandbox::of_pod(&desk, &before, "c0", "a", &uid).add();
                desk.client.delete_node(&object);
            }
            Call::Keep | Call::Free => {
                known = given(&StickySandbox::of_pod(&desk, &node, "c1", "b", &uid).add());
            }
        }
        if call == Call::Full {
            let over = json!({"spec": {"keptUntil": "2026-01-01T00:00:00Z"}});
            desk.client.patch(&desk.sticky_path(OBJECT), &over);
        }
        let relay = desk.relayed();
        Self { desk, relay, node, uid, known }
    }

    fn make(&self, call: Call) -> Outcome {
        let plain = Node::of(&self.desk).named("node-1").with_subnets(&[SUBNET]);
        let node = if call == Call::Full { &plain } else { &self.node };
        let pod = StickySandbox::of_pod(&self.desk, node, "c1", "b", &self.uid);
        match call {
            Call::Keep | Call::Free => pod.call_with("DEL", &self.known),
            _ => pod.call_with("ADD", &json!({})),
        }
    }

    /// Makes the call, with a fault at its request of this number about a name or its holder.
    /// Returns whether it had one.
    fn fail_at(&self, number: usize, fault: Fault, call: Call) -> (Outcome, bool) {
        let count = Arc::new(AtomicUsize::new(0));
        let (its, client) = (count.clone(), self.desk.client.clone());
        self.relay.decide(move |ask| {
            let kinds = ["stickyleases", "/pods/", "/nodes/"];
            let is_counted = kinds.iter().any(|kind| ask.target.contains(kind));
            if !is_counted || its.fetch_add(1, Ordering::SeqCst) != number {
                return Fate::Pass;
            }
            let late = || {
                let status = r#"{"kind": "Status", "message": "late", "code": 504}"#;
                Fate::Answer(504, status.to_owned())
            };
            let carry_out = |ask: &Ask| client.ask(&ask.method, &ask.target, ask.body.as_bytes());
            match fault {
                Busy => Fate::Busy,
                Late => late(),
                LateAnswer => {
                    carry_out(ask);
                    late()
                }
                Cut => Fate::End,
                CutAnswer => Fate::Lose(Box::new(|| {})),
            }
        });
        let outcome = self.make(call);
        self.relay.pass();
        (outcome, count.load(Ordering::SeqCst) > number)
    }

    fn assert_ended(&self, call: Call, told: &str) {
        let spec = self.desk.client.get(&self.desk.sticky_path(OBJECT));
        let spec = spec.map(|object| object["spec"].clone()).unwrap_or_default();
        let held = self.desk.held();
        match call {
            Call::Free => assert_eq!((held, spec), (Vec::new(), Value::Null), "{told}"),
            Call::Full => {
                assert_eq!(held, ["10.1.2.0-30 2 c1", "10.1.2.2 c1"], "{told}");
                assert_eq!(spec, Value::Null, "{told}");
            }
            _ => {
                let is_kept = call == Call::Keep;
                assert_eq!(spec["keptUntil"].is_string(), is_kept, "{told}: {spec}");
                let holder = if is_kept { Value::Null } else { "c1".into() };
                assert_eq!(spec["holder"]["container"], holder, "{told}");
                assert_eq!(held.len(), 2, "{told}: {held:?}");
            }
        }
        self.desk.objects().assert_consistent();
    }
}

/// Runs a call with each fault at each of its requests about a name or its holder.
fn run(call: Call, requests: usize) {
    for fault in [Busy, Late, LateAnswer, Cut, CutAnswer] {
        let mut number = 0;
        loop {
            let told = format!("{call:?} {fault:?} {number}");
            let stage = Stage::new(call);
            let (outcome, was_there) = stage.fail_at(number, fault, call);
            if outcome.exit != Some(0) {
                let (code, text) = outcome.failure();
                assert!(code == 11 && fault != Busy && was_there, "{told}: {code} {text}");
            }
            let again = stage.make(call);
            assert_eq!(again.exit, Some(0), "{told}: {again:?}");
            stage.assert_ended(call, &told);
            if !was_there {
                break;
            }
            number += 1;
        }
        assert_eq!(number, requests, "{call:?} {fault:?}");
    }
}

#[test]
fn a_server_that_fails_once_at_any_request_loses_no_name() {
    thread::scope(|scope| {
        for (call, requests) in [
            (Call::New, 1),
            (Call::Kept, 1),
            (Call::Lost, 5),
            (Call::Keep, 1),
            (Call::Free, 1),
            (Call::Full, 2),
        ] {
            scope.spawn(move || run(call, requests));
        }
    });
}
