//! A cluster that loses its leader under load gives no address twice and loses none.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ipam_testkit::consul::{Cluster, Consul, Cut};
use ipam_testkit::node::{VERBS, addresses, at_once, given, within};
use ipam_testkit::world::until;
use serde_json::{Value, json};

use common::store::{books, holdings};
use common::{Node, POOL, SUBNET, define};

const WORKERS: usize = 8;

fn cluster() -> Cluster {
    let cluster = Cluster::start(3);
    define(cluster.member(cluster.leader()), POOL, SUBNET);
    define(cluster.member(cluster.leader()), "red", "fd00:1::/64");
    cluster
}

fn urls(cluster: &Cluster) -> Vec<String> {
    cluster.endpoints().iter().map(|endpoint| format!("http://{endpoint}")).collect()
}

/// What a worker knows: what it holds, and whose ADD had a claim that was not answered, so that the chain
/// would repeat its DEL.
#[derive(Default)]
struct Kept {
    held: BTreeMap<IpAddr, String>,
    open: BTreeSet<String>,
}

impl Kept {
    /// DEL of what was given back, and found again: a claim that was in flight may be carried out late.
    fn release_the_late(&self, node: &Node, all: bool) {
        let held: BTreeSet<&String> = self.held.values().collect();
        let late = self.open.iter().filter(|container| all || !held.contains(container));
        late.for_each(|container| node.del(container));
    }
}

/// ADDs, CHECKs and DELs one after the other until `done`, as a runtime would: a call that fails with code 11
/// or 111 is called again.
fn work(node: &Node, done: &AtomicBool, calls: &AtomicUsize) -> Kept {
    let mut kept = Kept::default();
    for round in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let container = format!("c{round}");
        let (result, was_open) = again(node, "ADD", &container, &json!({}));
        if was_open || result["unsure"] == true {
            kept.open.insert(container.clone());
        }
        again(node, "CHECK", &container, &given(&result));
        match round % 3 {
            0 => {
                let held = addresses(&result);
                kept.held.extend(held.iter().map(|a| (a.parse().unwrap(), container.clone())));
            }
            1 => drop(again(node, "DEL", &container, &given(&result))),
            _ => drop(again(node, "DEL", &container, &json!({}))),
        }
        calls.fetch_add(1, Ordering::Relaxed);
    }
    kept
}

/// A call that succeeds in the end, and whether one before it left open what it did.
#[track_caller]
fn again(node: &Node, verb: &str, container: &str, known: &Value) -> (Value, bool) {
    let mut was_open = false;
    for _ in 0..20 {
        let outcome = node.call_with(verb, container, known);
        if outcome.exit == Some(0) {
            return (outcome.success(), was_open);
        }
        let (code, text) = outcome.failure();
        assert!([11, 105, 111].contains(&code), "{verb} {container}: {code}: {text}");
        was_open |= code != 105;
    }
    panic!("{verb} {container} does not end");
}

/// Workers of a node each while a fault comes and goes, and what is held afterwards.
fn under_load(cluster: &Cluster, with: impl FnOnce(&dyn Fn(usize))) {
    let done = AtomicBool::new(false);
    let calls = AtomicUsize::new(0);
    let node = |worker: usize| {
        let mut servers = urls(cluster);
        servers.rotate_left(worker % 3);
        let pools = &[POOL, "red"][..1 + worker % 2];
        Node::at(&servers).named(&format!("node-{worker}")).with_pools(pools)
    };
    let nodes: Vec<Node> = (0..WORKERS).map(node).collect();
    let kept: Vec<Kept> = thread::scope(|scope| {
        let (done, calls) = (&done, &calls);
        let run = |node| scope.spawn(move || work(node, done, calls));
        let workers: Vec<_> = nodes.iter().map(run).collect();
        let progress = |more: usize| {
            let enough = calls.load(Ordering::Relaxed) + more;
            for _ in 0..6000 {
                let ended = workers.iter().any(thread::ScopedJoinHandle::is_finished);
                if calls.load(Ordering::Relaxed) >= enough || ended {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
            done.store(true, Ordering::Relaxed);
            panic!("work does not go on");
        };
        progress(WORKERS);
        with(&progress);
        progress(WORKERS);
        done.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    cluster.members().iter().for_each(Consul::until_ready);
    let leader = cluster.member(cluster.leader());
    let mut expected = BTreeMap::new();
    for (node, kept) in nodes.iter().zip(&kept) {
        for (address, container) in &kept.held {
            let owner = format!("{}/{container}/eth0", node.name);
            let other = expected.insert(*address, owner.clone());
            assert_eq!(other, None, "{address} was given twice, to {owner} too");
        }
    }
    assert!(expected.len() > WORKERS, "{expected:?}");
    let all = || nodes.iter().zip(&kept);
    let settled = || {
        all().for_each(|(node, kept)| kept.release_the_late(node, false));
        books(leader) == expected
    };
    if !settled() {
        thread::sleep(Duration::from_secs(2));
        settled();
    }
    assert_eq!(books(leader), expected);
    for (node, kept) in all() {
        let containers: BTreeSet<&String> = kept.held.values().collect();
        containers.into_iter().for_each(|container| node.del(container));
    }
    until("nothing is left", || {
        all().for_each(|(node, kept)| kept.release_the_late(node, true));
        holdings(leader).is_empty()
    });
}

#[test]
fn a_leader_that_is_killed_under_load_costs_no_address() {
    let cluster = cluster();
    under_load(&cluster, |progress| {
        for _ in 0..2 {
            let leader = cluster.leader();
            cluster.member(leader).kill();
            progress(3 * WORKERS);
            cluster.member(leader).restart();
            progress(WORKERS);
        }
    });
}

#[test]
fn a_leader_that_stops_under_load_costs_no_address() {
    let cluster = cluster();
    under_load(&cluster, |progress| {
        for _ in 0..2 {
            let leader = cluster.leader();
            cluster.member(leader).stop();
            progress(3 * WORKERS);
            cluster.member(leader).cont();
            progress(WORKERS);
        }
    });
}

#[test]
fn a_leader_that_is_cut_off_under_load_costs_no_address() {
    let cluster = cluster();
    under_load(&cluster, |progress| {
        for cut in [Cut::Peers, Cut::All] {
            let leader = cluster.leader();
            cluster.partition(leader, cut);
            progress(3 * WORKERS);
            cluster.heal(leader);
            progress(WORKERS);
        }
    });
}

#[test]
fn status_rides_out_an_election() {
    let cluster = cluster();
    for turn in 0..3 {
        let leader = cluster.leader();
        let mut others = urls(&cluster);
        let servers = match turn {
            // All of them, the one that is lost first.
            0 => {
                others.rotate_left(leader);
                others
            }
            1 => {
                others.remove(leader);
                others
            }
            // One that follows, alone.
            _ => vec![others.swap_remove((leader + 1) % 3)],
        };
        let node = Node::at(&servers);
        cluster.member(leader).kill();
        let outcome = within(Duration::from_secs(12), || node.call("STATUS", ""));
        outcome.success();
        node.add("c1");
        node.del("c1");
        cluster.member(leader).restart();
        cluster.members().iter().for_each(Consul::until_ready);
    }
}

#[test]
fn a_cluster_without_a_quorum_is_given_up_in_time_and_holds_nothing_afterwards() {
    let cluster = cluster();
    let node = Node::at(&urls(&cluster)).with("timeout", "4s");
    let held = node.add("held");
    let stays = cluster.leader();
    let others: Vec<usize> = (0..3).filter(|member| *member != stays).collect();
    others.iter().for_each(|member| cluster.member(*member).kill());
    let alone = Node::at(&[cluster.member(stays).url()]).with("timeout", "4s");
    at_once(4, |number| {
        let node = [&node, &alone][number % 2];
        let verb = ["ADD", "DEL"][number / 2];
        let bound = Duration::from_secs(15);
        let outcome = within(bound, || node.call(verb, &format!("c{number}")));
        // A DEL that the last leader can answer by itself finds nothing to release.
        if verb == "ADD" || outcome.exit != Some(0) {
            let (code, text) = outcome.failure();
            assert!([11, 111].contains(&code), "{verb}: {code}: {text}");
        }
    });
    let outcome = within(Duration::from_secs(15), || alone.call("STATUS", ""));
    assert!(outcome.exit == Some(0) || outcome.failure().0 == 50);
    others.iter().for_each(|member| cluster.member(*member).launch_again());
    cluster.members().iter().for_each(Consul::until_ready);
    // What was asked for meanwhile was never answered, and may have been done by now.
    for number in 0..4 {
        [&node, &alone][number % 2].del(&format!("c{number}"));
    }
    let leader = cluster.member(cluster.leader());
    assert_eq!(books(leader).len(), 1);
    node.del_known("held", &held).success();
    assert_eq!(holdings(leader), [""; 0]);
}

#[test]
fn a_leader_cut_off_from_its_quorum_is_not_believed_where_answers_are_to_be_consistent() {
    let cluster = cluster();
    let node = Node::at(&urls(&cluster));
    let held = node.add("held");
    let cut_off = cluster.leader();
    let member = cluster.member(cut_off);
    cluster.partition(cut_off, Cut::Peers);
    let alone = Node::at(&[member.url()]).with("timeout", "3s").with("consistency", "consistent");
    for (verb, code) in [("CHECK", 11), ("STATUS", 50), ("ADD", 11)] {
        let container = if verb == "ADD" { "new" } else { "held" };
        let outcome =
            within(Duration::from_secs(15), || alone.call_with(verb, container, &given(&held)));
        assert_eq!(outcome.failure().0, code, "{verb}");
    }
    // With the others named it goes on with them.
    let mut servers = urls(&cluster);
    servers.rotate_left(cut_off);
    let every = Node::at(&servers).with("consistency", "consistent");
    let new = every.add("new-2");
    every.check("new-2", &new).success();
    every.call("STATUS", "").success();
    node.del("held");
    cluster.heal(cut_off);
    cluster.members().iter().for_each(Consul::until_ready);
    alone.del("new");
    every.del("new-2");
    until("all members have the same", || {
        cluster.members().iter().all(|member| holdings(member).is_empty())
    });
}

#[test]
fn any_consistency_serves_every_verb() {
    let cluster = cluster();
    let leader = cluster.leader();
    for consistency in ["default", "consistent", "stale", ""] {
        let servers = [cluster.member((leader + 1) % 3).url()];
        let node = Node::at(&servers).with("consistency", consistency);
        let result = node.add("c1");
        assert_eq!(addresses(&node.add("c1")), addresses(&result));
        until("a follower knows of it", || node.check("c1", &result).exit == Some(0));
        node.call("STATUS", "").success();
        node.del_known("c1", &result).success();
        assert_eq!(holdings(cluster.member(cluster.leader())), [""; 0], "{consistency}");
    }
    let node = Node::at(&[cluster.member(leader).url()]).with("consistency", "strong");
    for verb in VERBS {
        let (code, text) = node.call(verb, "c1").failure();
        assert_eq!(code, 7, "{verb}: {text}");
        assert!(
            text.contains("ipam.consul.consistency: unknown consistency \"strong\": expected "),
            "{text}"
        );
    }
}
