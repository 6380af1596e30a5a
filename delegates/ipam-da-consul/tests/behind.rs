//! A leader that was just elected answers by what it knew: nothing that it does not show is taken to be gone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipam_testkit::consul::{Consul, Fate, Relay, Request};
use ipam_testkit::node::{addresses, given};
use ipam_testkit::world::{World, full_size, start, wait};
use serde_json::{Value, json};

use common::chains::{chain, failing};
use common::counting::{behind, define_with_folders};
use common::filling::age;
use common::store::{books, holdings};
use common::{Node, POOL, SUBNET};

/// A server that has only begun to apply its log: whatever is read without a proof shows the pool, and that
/// nobody holds anything.
struct Site {
    consul: Consul,
    old: Consul,
    relay: Relay,
    is_behind: Arc<AtomicBool>,
}

/// Whether a request reads, and asks for no proof.
fn is_plain_read(request: &Request) -> bool {
    let is_transaction = request.target.starts_with("/v1/txn");
    let verbs = ["\"get\"", "\"get-tree\"", "\"check-index\"", "\"check-not-exists\""];
    let operations: Value = serde_json::from_str(&request.body).unwrap_or_default();
    let only_reads = operations
        .as_array()
        .into_iter()
        .flatten()
        .all(|operation| verbs.contains(&operation["KV"]["Verb"].to_string().as_str()));
    let query = request.target.split_once('?').map_or("", |(_, query)| query);
    let is_sure = query.split('&').any(|word| word == "consistent");
    (!is_transaction || only_reads) && !is_sure
}

impl Site {
    fn new() -> Self {
        let (consul, old) = (Consul::start(), Consul::start());
        define_with_folders(&consul, POOL, SUBNET);
        // Its pool is at another index, as one that was edited meanwhile.
        old.put("other", "");
        define_with_folders(&old, POOL, SUBNET);
        let is_behind = Arc::new(AtomicBool::new(false));
        let (asked, other) = (is_behind.clone(), old.endpoint());
        let relay = Relay::deciding(&consul.endpoint(), move |request| {
            let elsewhere = asked.load(Ordering::SeqCst) && is_plain_read(request);
            if elsewhere { Fate::Elsewhere(other.clone()) } else { Fate::Pass }
        });
        Self { consul, old, relay, is_behind }
    }

    fn node(&self) -> Node {
        behind(&self.relay)
    }

    /// From now on.
    fn falls_behind(&self) {
        self.is_behind.store(true, Ordering::SeqCst);
    }

    fn is_up_to_date(&self) {
        self.is_behind.store(false, Ordering::SeqCst);
    }

    #[track_caller]
    fn assert_empty(&self, what: &str) {
        assert_eq!(holdings(&self.consul), [""; 0], "{what}");
    }
}

#[test]
fn a_del_releases_what_a_leader_that_is_behind_does_not_show() {
    let site = Site::new();
    let node = site.node();
    let released = |what: &str, prev_result: &dyn Fn(&Value) -> Value| {
        site.is_up_to_date();
        let first = node.add("c1");
        site.falls_behind();
        assert_eq!(holdings(&site.consul).len(), 2, "{what}");
        let told = prev_result(&first);
        assert_eq!(node.call_with("DEL", "c1", &told).success(), Value::Null, "{what}");
        site.assert_empty(what);
    };
    released("without a record", &|_| json!({}));
    released("with the record", &given);
    released("with a record of nothing", &|result| json!({"ips": result["ips"], "leases": []}));
    released("an undo", &|result| json!({"undo": true, "leases": result["leases"]}));
    released("a repetition", &|_| json!({"fence": {"after": 0}}));
    released("with a record that is out of date", &|result| {
        site.is_up_to_date();
        node.add("c1");
        site.falls_behind();
        given(result)
    });
}

#[test]
fn a_check_finds_what_a_leader_that_is_behind_does_not_show() {
    let site = Site::new();
    let node = site.node();
    let result = node.add("c1");
    site.falls_behind();
    node.check("c1", &result).success();
    node.call_with("CHECK", "c1", &json!({"ips": result["ips"]})).success();
    // What is not there is said not to be.
    site.is_up_to_date();
    node.del("c1");
    site.falls_behind();
    assert_eq!(node.check("c1", &result).failure().0, 104);
}

#[test]
fn gc_and_people_find_what_a_leader_that_is_behind_does_not_show() {
    let site = Site::new();
    let node = site.node();
    let address = node.address("c1");
    age(&site.consul, Duration::from_secs(3600));
    site.falls_behind();
    assert_eq!(node.listed(), [(address.clone(), "c1".to_owned())]);
    node.gc(&["c1"]).success();
    assert_eq!(books(&site.consul).len(), 1);
    node.gc(&[]).success();
    site.assert_empty("GC");
}

#[test]
fn an_add_again_keeps_its_address_while_the_leader_is_behind() {
    let site = Site::new();
    let node = site.node();
    let first = addresses(&node.add("c1"));
    site.falls_behind();
    assert_eq!(addresses(&node.add("c1")), first);
    assert_eq!(books(&site.consul).len(), 1);
    assert_ne!(addresses(&node.add("c2")), first);
}

#[test]
fn status_of_a_store_whose_leader_is_behind_is_not_that_it_was_restored() {
    let site = Site::new();
    let node = site.node();
    node.add("c1");
    site.falls_behind();
    node.call("STATUS", "").success();
    node.add("c2");
}

#[test]
fn a_pool_that_a_leader_that_is_behind_does_not_show_is_not_missing() {
    let site = Site::new();
    site.old.delete(&format!("ipam/{POOL}"));
    site.falls_behind();
    for verb in ["ADD", "STATUS"] {
        // A node that remembers nothing of the pool.
        site.node().call(verb, "c1").success();
    }
}

#[test]
fn whatever_releases_or_checks_reads_surely_though_the_settings_say_stale() {
    let site = Site::new();
    let mut node = site.node();
    node.store["consul"]["consistency"] = "stale".into();
    let result = node.add("c1");
    node.add("c2");
    for (verb, prev_result) in [
        ("CHECK", given(&result)),
        ("CHECK", json!({"ips": result["ips"]})),
        ("DEL", given(&result)),
        ("DEL", json!({})),
        ("GC", json!({})),
    ] {
        let before = site.relay.requests().len();
        match verb {
            "GC" => node.gc(&[]).success(),
            _ => node.call_with(verb, "c1", &prev_result).success(),
        };
        let asked = site.relay.requests().split_off(before);
        assert!(!asked.is_empty(), "{verb}");
        for request in asked {
            let what = (verb, request.line(), request.body.clone());
            assert!(!is_plain_read(&request) && !request.target.contains("stale"), "{what:?}");
        }
    }
}

/// The chain on a node that asks through a site's relay.
struct Chain {
    world: World,
    network: Value,
}

impl Chain {
    fn of(site: &Site) -> Self {
        let (world, mut network) = chain(&site.consul, &[POOL]);
        network["ipam"]["consul_servers"] = json!([format!("http://{}", site.relay.endpoint())]);
        world.conflist("10-net.conflist", &network);
        Self { world, network }
    }

    /// An ADD whose record says that it was long ago and that its namespace is gone.
    fn abandoned(&self, container: &str) {
        let gone = self.world.path("gone");
        std::fs::write(&gone, "").unwrap();
        let mut command = self.world.command("ADD", container);
        command.env("CNI_NETNS", &gone);
        wait(start(command, &self.network)).success();
        self.world.edit_record(container, |line| {
            if line["event"] == "attempt" {
                line["time"] = (line["time"].as_u64().unwrap() - 600_000).into();
            }
        });
    }
}

#[test]
fn a_chain_releases_what_a_leader_that_is_behind_does_not_show() {
    let site = Site::new();
    let Chain { world, network } = Chain::of(&site);
    let valid = |keep: &[&str]| {
        let mut network = network.clone();
        network["cni.dev/valid-attachments"] =
            keep.iter().map(|c| json!({"containerID": c, "ifname": "eth0"})).collect();
        network
    };
    let chain = Chain { world, network: network.clone() };
    let ways: [(&str, &dyn Fn()); 3] = [
        ("reap", &|| drop(chain.world.typed(&["reap", "--no-cache", "--yes", "--json"]).success())),
        ("GC", &|| {
            age(&site.consul, Duration::from_secs(3600));
            drop(chain.world.call("GC", "", &valid(&[])).success());
        }),
        ("DEL without a record", &|| {
            std::fs::remove_file(chain.world.record("c1")).unwrap();
            drop(chain.world.call("DEL", "c1", &network).success());
        }),
    ];
    for (what, way) in ways {
        site.is_up_to_date();
        chain.abandoned("c1");
        assert_eq!(holdings(&site.consul).len(), 2, "{what}");
        site.falls_behind();
        way();
        site.assert_empty(what);
        assert!(!chain.world.record("c1").exists(), "{what}");
    }
}

#[test]
fn an_add_that_was_killed_is_undone_though_the_leader_is_behind() {
    let site = Site::new();
    let Chain { world, network } = Chain::of(&site);
    // The last delegate kills the chain once the address is claimed.
    world.delegate("ipam-da-zz", "[ $CNI_COMMAND != ADD ] || kill -9 $PPID");
    let mut killed = network.clone();
    killed["ipam"]["delegates"].as_array_mut().unwrap().push("ipam-da-zz".into());
    assert_eq!(world.call("ADD", "c1", &killed).exit, None);
    assert_eq!(holdings(&site.consul).len(), 2);
    site.falls_behind();
    world.call("DEL", "c1", &network).success();
    site.assert_empty("an ADD that was killed");
    // One that fails undoes itself.
    assert_eq!(world.call("ADD", "c2", &failing(&world, &network)).failure().0, 100);
    site.assert_empty("an ADD that failed");
}

#[test]
fn what_containers_hold_is_released_by_dels_right_after_a_server_was_killed() {
    let consul = common::stocked();
    let node = Node::of(&consul);
    let restarts = if full_size() { 12 } else { 2 };
    for round in 0..restarts {
        let containers: Vec<String> = (0..16).map(|n| format!("c{round}-{n}")).collect();
        let result: Vec<Value> = containers.iter().map(|container| node.add(container)).collect();
        consul.kill();
        consul.restart();
        for (container, result) in containers.iter().zip(&result) {
            let check = node.check(container, result);
            if check.exit != Some(0) {
                assert_eq!(check.failure().0, 11, "CHECK {container}");
            }
            let released = (0..20).any(|_| node.call("DEL", container).exit == Some(0));
            assert!(released, "DEL {container}");
        }
        assert_eq!(holdings(&consul), [""; 0], "round {round}");
    }
}
