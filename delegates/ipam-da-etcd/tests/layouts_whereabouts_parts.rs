//! The layout of whereabouts with more leases than one transaction releases.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, given, within};
use ipam_testkit::world::start;
use serde_json::json;

use common::Node;
use common::layouts::{on, whereabouts_at, whereabouts_node as node};
use common::relay::Relay;

const OWNERS: &str = "/whereabouts/ipam-delegated/owners/";

/// The key that each change of values writes.
const WRITTEN: &[u8] = b"/whereabouts/ipam-delegated/written/net";

/// How many leases one transaction releases.
const PART: usize = 30;

fn subnets(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("10.{n}.0.0/24")).collect()
}

fn with_pools(node: Node, count: usize) -> Node {
    let subnets = subnets(count);
    node.with_subnets(&subnets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// How many lines of all pools name a container.
fn held(etcd: &Etcd, container: &str) -> usize {
    let pools = etcd.requests().list("/whereabouts/10.").unwrap();
    let lines = pools.iter().flat_map(|pool| pool.value.lines());
    lines.filter(|line| line.split(' ').nth(1) == Some(container)).count()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Gives a container so many lines as whereabouts does, in turn in each of three pools.
fn give_bare(etcd: &Etcd, container: &str, lines: usize) {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for number in 0..lines {
        let (pool, host) = (number % 3 + 1, number / 3 + 2);
        let lines = values.entry(format!("/whereabouts/10.{pool}.0.0/24")).or_default();
        lines.push(format!("10.{pool}.0.{host} {container}"));
    }
    for (key, lines) in values {
        etcd.put(&key, &lines.join("\n"));
    }
}

#[test]
fn an_add_from_as_many_pools_as_a_transaction_bears_can_be_released() {
    let etcd = Etcd::start();
    let subnets: Vec<String> = (1..=42).map(|n| format!("10.{n}.0.0/24")).collect();
    let subnets: Vec<&str> = subnets.iter().map(String::as_str).collect();
    let node_of = |most| node(&etcd).with_subnets(&subnets[..most]);
    for (verb, code) in [("ADD", 7), ("STATUS", 50)] {
        let call = node_of(42).call(verb, if verb == "ADD" { "c1" } else { "" });
        let (found, text) = call.failure();
        assert_eq!(found, code, "{text}");
        assert!(text.contains("42 pools: expected at most 41"), "{text}");
    }
    assert_eq!(etcd.keys("/"), [""; 0]);
    let node = node_of(41);
    let held = |container: &str| held(&etcd, container);
    let (recorded, _, _) = (node.add("recorded"), node.add("indexed"), node.add("bare"));
    assert_eq!(["recorded", "indexed", "bare"].map(held), [41; 3]);
    node.del_known("recorded", &recorded).success();
    node.del("indexed");
    assert_eq!(etcd.keys(OWNERS).len(), 1);
    etcd.etcdctl(&["del", "--prefix", OWNERS]);
    node.del("bare");
    assert_eq!(["recorded", "indexed", "bare"].map(held), [0; 3]);

    // A place in each mutex: their guards are operations, too.
    node.add("queued");
    let requests = etcd.requests();
    let lease = requests.grant(600).unwrap();
    let mutexes = subnets[..41].iter().map(|subnet| format!("/whereabouts/{subnet}/694d"));
    for mutex in mutexes {
        assert!(requests.create(&mutex, "", lease).unwrap());
    }
    std::thread::scope(|scope| {
        let add = scope.spawn(|| node.add("late"));
        let places = || etcd.keys("/whereabouts/10.1.0.0/24/").len();
        within(Duration::from_secs(5), || while places() < 2 {});
        requests.revoke(lease).unwrap();
        assert_eq!(addresses(&add.join().unwrap()).len(), 41);
    });
    node.told(&["release", "--node", "node-1", "--yes"]);
    assert_eq!(["queued", "late"].map(held), [0; 2]);
}

#[test]
fn a_del_of_more_than_sixty_lines_releases_all_in_three_parts() {
    let etcd = Etcd::start();
    give_bare(&etcd, "many", 65);
    give_bare_other(&etcd);
    let changes = Arc::new(AtomicUsize::new(0));
    let its = changes.clone();
    let relay = Relay::gated(&etcd.endpoint(), move |piece| {
        its.fetch_add(usize::from(contains(piece, WRITTEN)), Ordering::SeqCst);
    });
    with_pools(whereabouts_at(&relay.endpoint()), 3).del("many");
    assert_eq!(changes.load(Ordering::SeqCst), 3);
    assert_eq!((held(&etcd, "many"), held(&etcd, "other")), (0, 1));
}

/// Gives another container an address of the first pool.
fn give_bare_other(etcd: &Etcd) {
    let key = "/whereabouts/10.1.0.0/24";
    etcd.put(key, &format!("{}\n10.1.0.250 other", etcd.get(key).unwrap()));
}

/// The leases of a container that a DEL is to release.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leases {
    /// Lines of whereabouts alone.
    Bare,
    Indexed,
    Recorded,
}

/// The id of the cluster, as protobuf writes it in each answer.
fn cluster_in_answers(etcd: &Etcd) -> Vec<u8> {
    let mut number: u64 = etcd.cluster_id().parse().unwrap();
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// Kills a DEL when the server has answered to the part of this number, from 1. The next DEL releases
/// the rest.
fn assert_completed_after_kill(leases: Leases, part: usize) {
    let told = format!("{leases:?}, part {part}");
    let etcd = Etcd::start();
    let (count, pools) = if leases == Leases::Bare { (65, 3) } else { (41, 41) };
    let mut known = json!({});
    match leases {
        Leases::Bare => give_bare(&etcd, "many", count),
        _ => known = given(&with_pools(node(&etcd), pools).add("many")),
    }
    if leases != Leases::Recorded {
        known = json!({});
    }
    give_bare_other(&etcd);
    let call: Arc<Mutex<Option<Child>>> = Arc::default();
    let (its, cluster) = (call.clone(), cluster_in_answers(&etcd));
    let changes = Arc::new(AtomicUsize::new(0));
    let sent = changes.clone();
    let gate = move |piece: &[u8]| {
        sent.fetch_add(usize::from(contains(piece, WRITTEN)), Ordering::SeqCst);
    };
    let kill = move |frame: &mut [u8]| {
        if changes.load(Ordering::SeqCst) == part && contains(frame, &cluster) {
            its.lock().unwrap().as_mut().unwrap().kill().unwrap();
        }
    };
    let relay = Relay::edited(&etcd.endpoint(), gate, kill);
    let node = with_pools(whereabouts_at(&relay.endpoint()), pools);
    let (command, network) = on(&node).command("DEL", "many", &known);
    {
        // The relay waits for it.
        let mut call = call.lock().unwrap();
        *call = Some(start(command, &network));
    }
    within(Duration::from_secs(10), || {
        while call.lock().unwrap().as_mut().unwrap().try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let exit = call.lock().unwrap().as_mut().unwrap().wait().unwrap();
    assert_eq!(exit.code(), None, "{told}");
    assert_eq!(held(&etcd, "many"), count - part * PART, "{told}");
    // What is left is released by the next DEL, with or without the record.
    on(&node).call("DEL", "many", &known).success();
    assert_eq!((held(&etcd, "many"), held(&etcd, "other")), (0, 1), "{told}");
    assert_eq!(etcd.keys(OWNERS), [""; 0], "{told}");
}

#[test]
fn a_del_that_is_killed_between_two_parts_is_completed_by_the_next_one() {
    std::thread::scope(|scope| {
        for (leases, part) in
            [(Leases::Bare, 1), (Leases::Bare, 2), (Leases::Indexed, 1), (Leases::Recorded, 1)]
        {
            scope.spawn(move || assert_completed_after_kill(leases, part));
        }
    });
}

#[test]
fn a_claim_in_another_cluster_is_withdrawn_from_all_pools_while_the_call_queues_in_some() {
    const POOLS: usize = 41;
    let etcd = Etcd::start();
    let cluster = cluster_in_answers(&etcd);
    let [is_queued, is_swapped]: [Arc<AtomicBool>; 2] = Default::default();
    let (queued, swapped, swaps) = (is_queued.clone(), is_swapped.clone(), is_swapped.clone());
    // From the claim on, answers name another cluster.
    let gate = move |piece: &[u8]| {
        if queued.load(Ordering::SeqCst) && contains(piece, b"10.41.0.3 late") {
            swaps.store(true, Ordering::SeqCst);
        }
    };
    let edit = move |frame: &mut [u8]| {
        let at = frame.windows(cluster.len()).position(|window| window == cluster);
        if let Some(at) = at.filter(|_| swapped.load(Ordering::SeqCst)) {
            frame[at] ^= 1;
        }
    };
    let relay = Relay::edited(&etcd.endpoint(), gate, edit);
    let node = with_pools(whereabouts_at(&relay.endpoint()), POOLS);
    node.add("early");
    let requests = etcd.requests();
    let mutexes = ["10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24"].map(|subnet| {
        let lease = requests.grant(600).unwrap();
        assert!(requests.create(&format!("/whereabouts/{subnet}/694d"), "", lease).unwrap());
        (format!("/whereabouts/{subnet}/"), lease)
    });
    std::thread::scope(|scope| {
        let add = scope.spawn(|| node.call("ADD", "late"));
        for (mutex, lease) in &mutexes {
            within(Duration::from_secs(5), || while etcd.keys(mutex).len() < 2 {});
            is_queued.store(*mutex == mutexes[2].0, Ordering::SeqCst);
            requests.revoke(*lease).unwrap();
        }
        let (code, text) = add.join().unwrap().failure();
        assert!(code == 11 && text.contains("the store is the etcd cluster"), "{code}: {text}");
        assert!(!text.contains("may still be held"), "{text}");
    });
    assert!(is_swapped.load(Ordering::SeqCst));
    assert_eq!((held(&etcd, "early"), held(&etcd, "late")), (POOLS, 0));
    assert_eq!(etcd.keys(OWNERS).len(), 1);
}
