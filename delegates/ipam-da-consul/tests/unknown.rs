//! A change that was carried out though the server did not say so, or later than it was asked for, gives
//! nothing twice and loses nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::consul::{Consul, Fate, Relay, Request};
use common::store::{books, holdings};
use common::support::{World, binary, start, until, wait};
use common::{Node, PROGRAM, addresses, define, given, stocked};
use serde_json::{Value, json};

/// What a leader says that steps down while it commits; the change is carried out all the same.
const LOST: &str = "rpc error making call: leadership lost while committing log";

fn url(endpoint: &str) -> String {
    format!("http://{endpoint}")
}

fn is_change(request: &Request) -> bool {
    ["\"cas\"", "\"set\"", "\"delete-cas\""].iter().any(|verb| request.body.contains(verb))
}

/// Spoils the answers to so many changes after so many that pass.
struct Spoiler {
    relay: Relay,
    passes: Arc<AtomicUsize>,
    spoils: Arc<AtomicUsize>,
    spoilt: Arc<AtomicUsize>,
}

impl Spoiler {
    fn of(consul: &Consul, fate: &Fate) -> Self {
        let [passes, spoils, spoilt] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let (fate, counts) = (fate.clone(), [&passes, &spoils, &spoilt].map(Arc::clone));
        let take = |count: &AtomicUsize| {
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        };
        let relay = Relay::deciding(&consul.endpoint(), move |request| {
            let [passes, spoils, spoilt] = &counts;
            if !is_change(request) || take(passes) || !take(spoils) {
                return Fate::Pass;
            }
            spoilt.fetch_add(1, Ordering::SeqCst);
            fate.clone()
        });
        Self { relay, passes, spoils, spoilt }
    }

    fn spoil(&self, passes: usize, spoils: usize) {
        self.passes.store(passes, Ordering::SeqCst);
        self.spoils.store(spoils, Ordering::SeqCst);
        self.spoilt.store(0, Ordering::SeqCst);
    }

    fn url(&self) -> String {
        url(&self.relay.endpoint())
    }

    fn spoilt(&self) -> usize {
        self.spoilt.load(Ordering::SeqCst)
    }
}

/// What becomes of a change that is carried out, as the client sees it.
fn fates() -> Vec<Fate> {
    vec![
        Fate::Lose,
        Fate::Cut,
        Fate::Delay(Duration::from_millis(2500)),
        Fate::Answer(500, LOST.to_owned()),
        Fate::Answer(502, String::new()),
        Fate::Answer(504, "<html>Gateway Timeout</html>".to_owned()),
        // Nothing was done, which the client cannot know.
        Fate::Refuse,
    ]
}

/// Runs `with` for every fate, beside each other, with a server of its own each, and a node that has the
/// spoilt way alone or another one too.
fn in_every_way(with: impl Fn(&Consul, &Spoiler, &dyn Fn() -> Node) + Sync) {
    let fates = fates();
    common::at_once(2 * fates.len(), |number| {
        let consul = stocked();
        define(&consul, "red", "fd00:1::/64");
        let spoiler = Spoiler::of(&consul, &fates[number / 2]);
        let mut servers = vec![spoiler.url()];
        if number % 2 == 0 {
            servers.push(consul.url());
        }
        let node = || {
            // A delay is longer than this.
            Node::at(&servers).with("timeout", "2s").with_pools(&["blue", "red"])
        };
        with(&consul, &spoiler, &node);
        assert_eq!(holdings(&consul), [""; 0], "{:?} {servers:?}", fates[number / 2]);
    });
}

/// An ADD either succeeds, and exactly its addresses are held, or ends with code 11; DEL leaves nothing.
#[track_caller]
fn assert_settled(consul: &Consul, node: &Node, container: &str) {
    let outcome = node.call("ADD", container);
    let told = format!("{outcome:?}");
    if outcome.exit == Some(0) {
        let result = outcome.success();
        let held: Vec<String> = books(consul).keys().map(ToString::to_string).collect();
        assert_eq!(held, addresses(&result), "{told}");
        // It is this ADD's own, so that its undo takes it back.
        assert!(result["leases"].as_array().unwrap().iter().all(|l| l["kept"].is_null()), "{told}");
        let mut undo = given(&result);
        undo["undo"] = true.into();
        node.call_with("DEL", container, &undo).success();
    } else {
        assert_eq!(outcome.failure().0, 11, "{told}");
        assert!(books(consul).len() <= 2, "{told}");
    }
    node.del(container);
    assert_eq!(holdings(consul), [""; 0], "{told}");
}

#[test]
fn an_add_whose_claim_is_not_answered_gives_each_pool_one_address_or_owes_a_del() {
    in_every_way(|consul, spoiler, node| {
        // A node that knows nothing, and one that claims with its first request.
        let busy = node();
        for (node, spoils) in [(&node(), 1), (&node(), 2), (&busy, 1), (&busy, 1), (&busy, 2)] {
            spoiler.spoil(0, spoils);
            assert_settled(consul, node, "c1");
            assert!(spoiler.spoilt() > 0, "no claim was spoilt");
            spoiler.spoil(0, 0);
        }
    });
}

#[test]
fn an_add_for_an_address_of_its_own_is_settled_too() {
    in_every_way(|consul, spoiler, node| {
        let mut node = node();
        node.pools[0]["requested-ip"] = "10.1.0.77".into();
        node.pools[1]["requested-ip"] = "fd00:1::77".into();
        for spoils in [1, 2] {
            spoiler.spoil(0, spoils);
            assert_settled(consul, &node, "c1");
            spoiler.spoil(0, 0);
        }
    });
}

#[test]
fn an_add_again_that_is_not_answered_keeps_its_addresses() {
    in_every_way(|consul, spoiler, node| {
        let node = node();
        let first = node.add("c1");
        for spoils in [1, 2] {
            spoiler.spoil(0, spoils);
            let outcome = node.call("ADD", "c1");
            assert!(spoiler.spoilt() > 0);
            spoiler.spoil(0, 0);
            if outcome.exit == Some(0) {
                let again = outcome.success();
                assert_eq!(addresses(&again), addresses(&first));
                let leases = again["leases"].as_array().unwrap();
                assert!(leases.iter().all(|lease| lease["kept"] == true), "{again}");
            } else {
                assert_eq!(outcome.failure().0, 11);
            }
            assert_eq!(books(consul).len(), 2);
            // An ADD that is made again gives them.
            assert_eq!(addresses(&node.add("c1")), addresses(&first));
        }
        node.del("c1");
    });
}

#[test]
fn a_del_that_is_not_answered_frees_its_own_and_nothing_of_others() {
    in_every_way(|consul, spoiler, node| {
        let node = node();
        let other = Node::of(consul).named("node-2").with_pools(&["blue", "red"]);
        let others = other.add("other");
        let before = books(consul);
        for spoils in [1, 2, 3] {
            for known in [true, false] {
                let result = node.add("c1");
                let hint = if known { given(&result) } else { json!({}) };
                spoiler.spoil(0, spoils);
                let outcome = node.call_with("DEL", "c1", &hint);
                spoiler.spoil(0, 0);
                if outcome.exit == Some(0) {
                    assert_eq!(books(consul), before);
                } else {
                    assert_eq!(outcome.failure().0, 11);
                }
                // Somebody else may have what was freed.
                let next = other.add("next");
                node.call_with("DEL", "c1", &hint).success();
                assert_eq!(books(consul).len(), 4);
                other.check("next", &next).success();
                other.del("next");
                assert_eq!(books(consul), before);
            }
        }
        other.del_known("other", &others).success();
    });
}

#[test]
fn a_gc_and_a_release_by_hand_that_are_not_answered_release_the_stale_alone() {
    in_every_way(|consul, spoiler, node| {
        let node = node();
        node.add("kept");
        let before = books(consul);
        for by_hand in [false, true] {
            node.add("stale");
            age(consul);
            spoiler.spoil(0, 1);
            let release = || match by_hand {
                false => node.gc(&["kept"]),
                true => node.typed(&["release", "--owner", "stale/eth0", "--yes"]),
            };
            let first = release();
            assert_eq!(spoiler.spoilt(), 1, "{first:?}");
            spoiler.spoil(0, 0);
            if first.exit != Some(0) {
                let told = format!("{first:?}");
                if !by_hand {
                    assert_eq!(first.failure().0, 11, "{told}");
                }
                let second = release();
                assert!(by_hand || second.exit == Some(0), "{told} {second:?}");
            }
            assert_eq!(books(consul), before);
        }
        node.del("kept");
    });
}

/// Makes all leases older than any grace, each owner's in one transaction as the program writes them.
fn age(consul: &Consul) {
    let older = |value: &str, member: &str| {
        let mut document: Value = serde_json::from_str(value).unwrap();
        document[member] = (document[member].as_u64().unwrap() - 3_600_000).into();
        document
    };
    for owner in consul.list("ipam/.owners/").iter().filter(|e| !e.key.contains("/.nodes/")) {
        let document = older(&owner.value, "confirmed");
        let mut pairs = vec![(owner.key.clone(), document.to_string())];
        for item in document["leases"].as_array().unwrap() {
            let address = item["address"].as_str().unwrap().split('/').next().unwrap();
            let key = format!("ipam/{}/{address}", item["pool"].as_str().unwrap());
            let value = consul.get(&key).unwrap();
            pairs.push((key, older(&value, "time").to_string()));
        }
        consul.put_all(pairs);
    }
}

/// Holds back the first change that comes until it is told to let it through.
#[derive(Default)]
struct Gate {
    came: AtomicBool,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A way to a server through it.
    fn before(consul: &Consul) -> (Arc<Self>, Relay) {
        let gate = Arc::new(Self::default());
        let own = gate.clone();
        let relay = Relay::deciding(&consul.endpoint(), move |request| {
            if is_change(request) && !own.came.swap(true, Ordering::SeqCst) {
                let mut open = own.open.lock().unwrap();
                while !*open {
                    open = own.opened.wait(open).unwrap();
                }
            }
            Fate::Pass
        });
        (gate, relay)
    }

    /// The change goes on, and is carried out by the server.
    fn open(&self, consul: &Consul, relay: &Relay) {
        assert!(self.came.load(Ordering::SeqCst), "nothing was held back");
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
        // The server takes one after the other on a connection; this one shows that it has come so far.
        let before = consul.list("ipam/");
        for _ in 0..100 {
            if consul.list("ipam/") != before {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        drop(relay.requests());
    }
}

#[test]
fn a_claim_that_comes_late_finds_its_owner_served_and_does_nothing() {
    let consul = stocked();
    let (gate, relay) = Gate::before(&consul);
    let node = Node::at(&[url(&relay.endpoint()), consul.url()]);
    let result = node.add("c1");
    assert_eq!(result["unsure"], true);
    let before = consul.list("ipam/");
    gate.open(&consul, &relay);
    assert_eq!(consul.list("ipam/"), before);
    node.check("c1", &result).success();
    node.del_known("c1", &result).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_claim_that_comes_after_del_is_found_by_the_next_del() {
    let consul = stocked();
    let (gate, relay) = Gate::before(&consul);
    let node = Node::at(&[url(&relay.endpoint())]).with("timeout", "1s");
    assert_eq!(node.call("ADD", "c1").failure().0, 11);
    node.del("c1");
    assert_eq!(holdings(&consul), [""; 0]);
    gate.open(&consul, &relay);
    assert_eq!(books(&consul).len(), 1, "it was carried out late");
    node.del("c1");
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_del_that_comes_late_frees_nothing_that_was_confirmed_since() {
    let consul = stocked();
    let node = Node::of(&consul);
    for known in [true, false] {
        let first = node.add("c1");
        let (gate, relay) = Gate::before(&consul);
        let late = Node::at(&[url(&relay.endpoint())]).with("timeout", "1s");
        let hint = if known { given(&first) } else { json!({}) };
        assert_eq!(late.call_with("DEL", "c1", &hint).failure().0, 11);
        let again = node.add("c1");
        assert_eq!(addresses(&again), addresses(&first));
        let before = consul.list("ipam/");
        gate.open(&consul, &relay);
        assert_eq!(consul.list("ipam/"), before);
        node.check("c1", &again).success();
        node.del_known("c1", &again).success();
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

/// A world in which `ipam-ds-static → ipam-da-consul` gives addresses of two families.
fn chain(servers: &[String]) -> (World, Value) {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-consul"]));
    network["ipam"]["consul_servers"] = json!(servers);
    network["ipam"]["consul"] = json!({"timeout": "2s"});
    network["ipam"]["pools"] = json!([{"name": "blue"}, {"name": "red"}]);
    (world, network)
}

#[test]
fn a_chain_whose_claim_is_not_answered_holds_what_it_gave_and_repeats_its_del() {
    in_every_way(|consul, spoiler, _| {
        for other in [true, false] {
            let mut servers = vec![spoiler.url()];
            servers.extend(other.then(|| consul.url()));
            let (world, network) = chain(&servers);
            spoiler.spoil(0, 1);
            let outcome = world.call("ADD", "c1", &network);
            assert_eq!(spoiler.spoilt(), 1, "{outcome:?}");
            spoiler.spoil(0, 0);
            let told = format!("{outcome:?}");
            if outcome.exit == Some(0) {
                let held: Vec<String> = books(consul).keys().map(ToString::to_string).collect();
                assert_eq!(held, addresses(&outcome.success()), "{told}");
            } else {
                assert_eq!(outcome.failure().0, 11, "{told}");
            }
            world.call("DEL", "c1", &network).success();
            assert_eq!(holdings(consul), [""; 0], "{told}");
            assert_eq!(world.state_of("c1"), "unsure", "{told}");
        }
    });
}

#[test]
fn what_a_chain_asked_for_and_got_late_is_released_by_the_repeated_del() {
    let consul = stocked();
    define(&consul, "red", "fd00:1::/64");
    let (gate, relay) = Gate::before(&consul);
    let (world, mut network) = chain(&[url(&relay.endpoint())]);
    network["ipam"]["consul"]["timeout"] = "1s".into();
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 11);
    assert_ne!(world.state_of("c1"), "none");
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "unsure");
    gate.open(&consul, &relay);
    assert_eq!(books(&consul).len(), 2, "it was carried out late");
    world.make_due();
    // The next ADD of this node looks after it.
    world.call("ADD", "c2", &network).success();
    until("the late claim is released", || {
        books(&consul).values().all(|owner| !owner.contains("/c1/"))
    });
    world.call("DEL", "c2", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_runtime_that_gives_up_waiting_leaves_nothing_after_del() {
    let consul = stocked();
    define(&consul, "red", "fd00:1::/64");
    let (gate, relay) = Gate::before(&consul);
    let (world, mut network) = chain(&[url(&relay.endpoint())]);
    network["ipam"]["consul"]["timeout"] = "20s".into();
    let mut call = start(world.command("ADD", "c1"), &network);
    until("the claim is on its way", || gate.came.load(Ordering::SeqCst));
    common::support::kill_now(&mut call);
    drop(wait(call));
    until("no process is left", || {
        // The delegate goes with its own deadline at the latest; a runtime would kill it by its cgroup.
        for pid in world.processes() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        world.processes().is_empty()
    });
    let mut mended = network.clone();
    mended["ipam"]["consul_servers"] = json!([consul.url()]);
    world.call("DEL", "c1", &mended).success();
    gate.open(&consul, &relay);
    assert_eq!(books(&consul).len(), 2, "it was carried out late");
    assert_eq!(world.state_of("c1"), "unsure");
    world.make_due();
    world.call("ADD", "c2", &mended).success();
    world.call("DEL", "c2", &mended).success();
    assert_eq!(holdings(&consul), [""; 0]);
}
