//! An allocator as a delegate: what every verb does, over a ledger in memory.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipam_kit::allocate::{Allocate, Ledger};
use ipam_kit::cni::{Environment, NetworkName};
use ipam_kit::delegate::answer;
use ipam_kit::host::Settings;
use ipam_suites::memory::{MemoryLedger, MemoryStore, Shape};
use serde_json::{Value, json};

/// A store of its own, and calls of the allocator over it.
struct Desk {
    name: String,
    store: MemoryStore,
}

impl Desk {
    fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let name = format!("role-{}", STORES.fetch_add(1, Ordering::Relaxed));
        Self { store: MemoryStore::named(&name), name }
    }

    fn call(&self, verb: &str, container: &str, prev_result: Value, more: Value) -> (u8, Value) {
        let environment = Environment::new([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/x"),
        ]);
        let mut config = json!({"cniVersion": "1.1.0", "name": "n", "ipam": {"node": "node-1"}, "prevResult": prev_result});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config["ipam"]["memory"] = self.name.clone().into();
        let delegate: Allocate<MemoryLedger> = Allocate::default();
        let stdin = config.to_string();
        let reply = answer(&delegate, environment, stdin.as_bytes(), Settings::default());
        (reply.exit, serde_json::from_str(&reply.stdout).unwrap_or(Value::Null))
    }

    /// The containers that hold addresses, in the order of these.
    fn held(&self) -> Vec<String> {
        let mut held = Vec::new();
        let mut ledger = MemoryLedger::on(&self.store, NetworkName::parse("n").unwrap());
        let scanned = ledger.scan(None, &mut |entry| {
            held.push(entry.holder.unwrap().container);
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        held
    }
}

/// The pools of these names, each with a /24 of its own.
fn pools<const N: usize>(names: [&str; N]) -> Value {
    let pool = |name: &str| {
        let third = name.as_bytes()[0] - b'a';
        json!({"name": name, "ranges": [{"subnet": format!("10.0.{third}.0/24")}]})
    };
    names.iter().map(|name| pool(name)).collect()
}

#[test]
fn an_address_per_pool_is_appended_and_found_again() {
    let desk = Desk::new();
    let before = json!({"ips": [{"address": "172.16.0.9/24"}], "pools": pools(["a", "b"])});
    let (exit, result) = desk.call("ADD", "c1", before, json!({}));
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["ips"].as_array().unwrap().len(), 3);
    assert_eq!(result["pools"], json!([]));
    assert_eq!(
        result["leases"][1],
        json!({"pool": "b", "address": "10.0.1.2/24", "gateway": "10.0.1.1", "revision": 2})
    );
    assert_eq!(desk.call("CHECK", "c1", result.clone(), json!({})).0, 0);
    let mut lost = result.clone();
    lost["ips"] = json!([]);
    assert_eq!(desk.call("CHECK", "c1", lost, json!({})).1["code"], 104);
    assert_eq!(desk.call("DEL", "c1", result.clone(), json!({})), (0, Value::Null));
    assert!(desk.held().is_empty());
    assert_eq!(desk.call("DEL", "c1", json!({}), json!({})).0, 0);
    assert_eq!(desk.call("CHECK", "c1", result, json!({})).1["code"], 104);
}

#[test]
fn static_addresses_are_answered_beside_one_for_each_pool() {
    let desk = Desk::new();
    let before = |address: &str| {
        let fixed = json!([{"address": address, "gateway": "10.9.0.1"}]);
        json!({"ips": [{"address": "172.16.0.9/24"}], "pools": pools(["a"]), "static": fixed})
    };
    let (exit, result) = desk.call("ADD", "c1", before("10.9.0.7/24"), json!({}));
    assert_eq!(exit, 0, "{result}");
    assert_eq!(
        result["ips"],
        json!([
            {"address": "172.16.0.9/24"},
            {"address": "10.0.0.2/24", "gateway": "10.0.0.1"},
            {"address": "10.9.0.7/24", "gateway": "10.9.0.1"},
        ])
    );
    assert_eq!((&result["static"], result["leases"].as_array().unwrap().len()), (&Value::Null, 1));
    // Every container may get it: it is not claimed.
    let (_, other) = desk.call("ADD", "c2", before("10.9.0.7/24"), json!({}));
    assert_eq!(other["ips"][2], result["ips"][2]);
    assert_eq!(desk.call("CHECK", "c1", result, json!({})).0, 0);
    // One that cannot be read, and one that is also requested of the pool: nothing is taken.
    let mut requested = before("10.0.0.4/24");
    requested["pools"][0]["requested-ip"] = json!("10.0.0.4");
    for (prev_result, code, message) in [
        (before("10.0.0.4"), 7, "prevResult.static[0].address: "),
        (requested, 101, "prevResult.pools[0]: requested address 10.0.0.4 is a static address"),
    ] {
        let (exit, error) = desk.call("ADD", "c3", prev_result, json!({}));
        let told = error["msg"].as_str().unwrap();
        assert!(exit == 1 && error["code"] == code && told.starts_with(message), "{error}");
        assert_eq!(desk.held(), ["c1", "c2"]);
    }
    // The address that the owner holds becomes a static one: it gets another.
    let (_, moved) = desk.call("ADD", "c1", before("10.0.0.2/24"), json!({}));
    let ips = ["172.16.0.9/24", "10.0.0.4/24", "10.0.0.2/24"];
    let given: Vec<&Value> =
        moved["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]).collect();
    assert_eq!(given, ips);
    assert_eq!(desk.held(), ["c2", "c1"]);
}

#[test]
fn static_addresses_alone_need_no_store() {
    let desk = Desk::new();
    let fixed = json!([{"address": "10.9.0.7/24"}]);
    let before = |ips: Value| json!({"ips": ips, "pools": [], "static": fixed});
    // Opening fails.
    let broken = json!({"ipam": {"node": "node-1", "takeover": 5}});
    assert_eq!(desk.call("ADD", "c1", json!({"pools": pools(["a"])}), broken.clone()).0, 1);
    let (exit, result) = desk.call("ADD", "c1", before(json!([])), broken.clone());
    assert_eq!((exit, &result["ips"]), (0, &fixed), "{result}");
    assert_eq!((&result["pools"], &result["leases"]), (&json!([]), &json!([])));
    for verb in ["CHECK", "DEL", "STATUS"] {
        let (exit, error) = desk.call(verb, "c1", before(fixed.clone()), broken.clone());
        assert_eq!(exit, 0, "{verb}: {error}");
    }
    let (_, error) = desk.call("CHECK", "c1", before(json!([])), broken.clone());
    assert_eq!(error["code"], 104, "{error}");
    // With a lease, or without a word about pools, the store is asked.
    let mut with_lease = before(fixed.clone());
    with_lease["leases"] = json!([{"address": "10.0.0.2/24", "revision": 1}]);
    let without_pools = json!({"ips": fixed, "static": fixed});
    for prev_result in [with_lease, without_pools.clone()] {
        assert_eq!(desk.call("DEL", "c1", prev_result, broken.clone()).0, 1);
    }
    assert_eq!(desk.call("CHECK", "c1", without_pools, json!({})).0, 0);
}

#[test]
fn an_error_names_the_path_where_a_person_wrote_the_pool() {
    let desk = Desk::new();
    let ipam = |more: Value| {
        let mut ipam = json!({"node": "node-1"});
        ipam.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"ipam": ipam})
    };
    for (ipam, start) in [
        (ipam(json!({"pools": [{"name": "a"}]})), "ipam.pools[0].ranges: "),
        (
            ipam(json!({"ranges": [[{"subnet": "10.0.0.0/24"}]], "strategy": "best"})),
            "ipam.strategy: ",
        ),
    ] {
        let (exit, error) = desk.call("ADD", "c1", json!(null), ipam);
        assert!(exit == 1 && error["msg"].as_str().unwrap().starts_with(start), "{error}");
    }
    // A delegate before has named a pool of `ipam`, or changed it.
    let pools = || ipam(json!({"pools": [{"name": "b"}, {"name": "a"}]}));
    for (pool, more, start) in [
        (json!({"name": "a"}), json!({}), "prevResult.pools[0].ranges: "),
        (
            json!({"name": "a", "index": 1, "requested-ip": "10.0.0.2"}),
            pools(),
            "ipam.pools[1].ranges: ",
        ),
        (json!({"name": "a", "sticky": "db"}), pools(), "prevResult.pools[0].ranges: "),
    ] {
        let (_, error) = desk.call("ADD", "c1", json!({"pools": [pool]}), more);
        assert!(error["msg"].as_str().unwrap().starts_with(start), "{error}");
    }
}

#[test]
fn an_undo_releases_what_its_add_took() {
    let desk = Desk::new();
    let (_, first) = desk.call("ADD", "c1", json!({"pools": pools(["a"])}), json!({}));
    let (_, second) = desk.call("ADD", "c1", json!({"pools": pools(["a", "b"])}), json!({}));
    assert_eq!((&second["leases"][0]["kept"], desk.held().len()), (&json!(true), 2));
    let undo = |leases: &Value| {
        let prev_result = json!({"leases": leases, "undo": true});
        assert_eq!(desk.call("DEL", "c1", prev_result, json!({})), (0, Value::Null));
        desk.held().len()
    };
    // A lease as an earlier ADD answered it is not the one that is held by now.
    assert_eq!(undo(&first["leases"]), 2);
    assert_eq!(undo(&json!([second["leases"][0]])), 2);
    assert_eq!(undo(&json!([])), 2);
    assert_eq!(undo(&second["leases"]), 1);
    assert_eq!(desk.call("DEL", "c1", json!({"leases": second["leases"]}), json!({})).0, 0);
    assert!(desk.held().is_empty());
}

#[test]
fn without_a_record_the_pools_tell_which_addresses_are_ours() {
    let desk = Desk::new();
    let ranges = json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]);
    let (_, result) = desk.call("ADD", "c1", json!({"pools": ranges}), json!({}));
    let mut foreign = json!({"ips": result["ips"], "pools": ranges});
    foreign["ips"].as_array_mut().unwrap().push(json!({"address": "192.168.0.1/24"}));
    assert_eq!(desk.call("CHECK", "c1", foreign, json!({})).0, 0);
    assert_eq!(
        desk.call("CHECK", "c2", json!({"ips": result["ips"], "pools": ranges}), json!({})).1["code"],
        104
    );
}

#[test]
fn gc_stays_in_its_scope() {
    let desk = Desk::new();
    for container in ["c1", "c2"] {
        desk.call("ADD", container, json!({"pools": pools(["a"])}), json!({}));
    }
    desk.call("ADD", "c3", json!({"pools": pools(["a"])}), json!({"ipam": {"node": "node-2"}}));
    desk.store.age(Duration::from_secs(3600));
    let keep = json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
    assert_eq!(desk.call("GC", "", json!({}), keep).0, 0);
    assert_eq!(desk.held(), ["c1", "c3"]);
}

#[test]
fn a_full_pool_fails_status_only_when_asked_to() {
    let desk = Desk::new();
    let one = json!({"pools": [{"ranges": [{"subnet": "10.0.0.0/30"}]}]});
    let asked = json!({"ipam": {"node": "node-1", "statusExhaustion": true}});
    assert_eq!(desk.call("STATUS", "", one.clone(), asked.clone()).0, 0);
    assert_eq!(desk.call("ADD", "c1", one.clone(), json!({})).0, 0);
    assert_eq!(desk.call("STATUS", "", one.clone(), json!({})).0, 0);
    assert_eq!(desk.call("STATUS", "", one, asked).1["code"], 50);
}

#[test]
fn a_cooldown_that_cannot_be_kept_fails_add_and_status_alone() {
    let desk = Desk::new();
    let pools = json!({"pools": pools(["a"])});
    let set = |cooldown: Value| json!({"ipam": {"node": "node-1", "cooldown": cooldown}});
    for cooldown in [json!(null), json!("0s"), json!("30s")] {
        assert_eq!(desk.call("ADD", "c1", pools.clone(), set(cooldown)).0, 0);
    }
    let refused = |cooldown: Value, message: &str| {
        for verb in ["ADD", "STATUS"] {
            let (_, error) = desk.call(verb, "c1", pools.clone(), set(cooldown.clone()));
            let told = (error["code"].as_u64(), error["msg"].as_str());
            assert_eq!(told, (Some(7), Some(message)), "{verb}");
        }
        assert_eq!(desk.call("DEL", "c1", json!({}), set(cooldown)).0, 0);
    };
    refused(json!("a day"), r#"ipam.cooldown: invalid duration "a day""#);
    refused(json!(30), "ipam.cooldown: invalid duration 30");
    let _ = desk.store.clone().shaped(Shape { knows_freed: false, ..Shape::default() });
    refused(json!("30s"), "ipam.cooldown: this allocator does not know when addresses were freed");
    assert_eq!(desk.call("ADD", "c1", pools.clone(), set(json!("0s"))).0, 0);
}

#[test]
fn without_pools_it_serves_what_ipam_offers() {
    let desk = Desk::new();
    let offer = |ranges: Value| json!({"ipam": {"node": "node-1", "ranges": ranges, "routes": [{"dst": "::/0"}]}});
    let ranges = offer(json!([[{"subnet": "10.0.0.0/24"}]]));
    let (exit, result) = desk.call("ADD", "c1", json!(null), ranges.clone());
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!((&result["pools"], &result["routes"]), (&json!([]), &json!([{"dst": "::/0"}])));
    let ips = json!({"ips": result["ips"]});
    assert_eq!(desk.call("CHECK", "c1", ips.clone(), ranges.clone()).0, 0);
    assert_eq!(desk.call("CHECK", "c2", ips, ranges).1["code"], 104);
    let broken = offer(json!([[{"subnet": "10.0.0.1/24"}]]));
    for verb in ["ADD", "STATUS"] {
        let (_, error) = desk.call(verb, "c1", json!(null), broken.clone());
        assert!(error["msg"].as_str().unwrap().starts_with("ipam.ranges[0][0].subnet: "));
        assert_eq!(desk.call(verb, "c1", json!({"pools": pools(["a"])}), broken.clone()).0, 0);
    }
    assert_eq!(desk.call("DEL", "c1", json!(null), broken), (0, Value::Null));
    assert!(desk.held().is_empty());
}

#[test]
fn an_allocator_needs_pools() {
    let desk = Desk::new();
    let (exit, error) = desk.call("ADD", "c1", json!({}), json!({}));
    assert_eq!((exit, error["code"].clone()), (1, json!(7)));
    assert!(error["msg"].as_str().unwrap().starts_with("prevResult.pools"));
}
