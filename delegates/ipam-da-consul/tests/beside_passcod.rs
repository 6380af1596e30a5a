//! Beside passcod's ipam-da-consul, on its pools: while it is replaced node by node, and on the way
//! back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::consul::{Consul, Relay};
use ipam_testkit::kills::strace;
use ipam_testkit::node::at_once;
use ipam_testkit::old::passcod::Passcod;
use ipam_testkit::world::{start, wait};
use serde_json::{Value, json};

use common::beside::{Ours, add_until_given, amid, define, given, held, holdings, owners};

const POOL: &str = "p";

/// A server with a pool of 61 addresses.
fn site() -> Consul {
    let consul = Consul::start();
    define(&consul, POOL, "10.1.2.0/26");
    consul
}

fn passcod(consul: &Consul, pool: &str) -> Passcod {
    Passcod::new(&[consul.endpoint()], pool)
}

/// An ADD of passcod that succeeds.
#[track_caller]
fn add(old: &Passcod, container: &str) -> IpAddr {
    ipam_testkit::old::passcod::given(&old.add(container).run().unwrap())
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_add() {
    let consul = site();
    let requests = passcod(&consul, POOL).add("c1").count();
    assert_eq!(requests, 4);
    at_once(requests + 1, |requests| {
        for family in ["10.1.2.0/26", "fd00:1::/120"] {
            for kind in [Ours::chain, Ours::alone] {
                let pool = format!("after-{requests}-{}-{}", kind("", POOL).kind, family.len());
                let ours = kind(&consul.url(), &pool);
                define(&consul, &pool, family);
                let old = passcod(&consul, &pool);
                let leaving = format!("earlier-{pool}");
                let earlier = ours.add(&leaving);

                let (first, outcome) =
                    amid(old.add("first"), requests, || ours.start("ADD", "ours"));
                let own = given(outcome);
                let mut all = vec![(&leaving[..], earlier), ("ours", own)];
                match first {
                    Ok(result) => all.push(("first", ipam_testkit::old::passcod::given(&result))),
                    // Both chose the lowest, after passcod had looked; it gives up.
                    Err(error) => assert_eq!((&error["code"], requests), (&json!(125), 3)),
                }
                assert_eq!(all.len() == 2, requests == 3);
                assert_eq!(held(&consul, &pool), holdings(all.clone()), "after {requests}");

                let (second, outcome) =
                    amid(old.add("second"), requests, || ours.start("DEL", &leaving));
                outcome.success();
                all.remove(0);
                all.push(("second", ipam_testkit::old::passcod::given(&second.unwrap())));
                assert_eq!(held(&consul, &pool), holdings(all), "after {requests} requests");
                assert!(!owners(&consul).iter().any(|key| key.contains(&leaving)));
            }
        }
    });
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_del() {
    let consul = site();
    let old = passcod(&consul, POOL);
    add(&old, "c1");
    let requests = old.del("c1").count();
    assert_eq!(requests, 3);
    at_once(requests + 1, |requests| {
        for kind in [Ours::chain, Ours::alone] {
            let pool = format!("after-{requests}-{}", kind("", POOL).kind);
            let ours = kind(&consul.url(), &pool);
            define(&consul, &pool, "10.1.2.0/26");
            let old = passcod(&consul, &pool);
            let earlier = ours.add("earlier");

            add(&old, "old");
            let (gone, outcome) = amid(old.del("old"), requests, || ours.start("ADD", "ours"));
            let own = given(outcome);
            gone.unwrap();
            let all = [("earlier", earlier), ("ours", own)];
            assert_eq!(held(&consul, &pool), holdings(all), "after {requests} requests");

            add(&old, "old");
            let (gone, outcome) = amid(old.del("old"), requests, || ours.start("DEL", "earlier"));
            outcome.success();
            gone.unwrap();
            let all = [("ours", own)];
            assert_eq!(held(&consul, &pool), holdings(all), "after {requests} requests");

            // Both release the same.
            let (gone, outcome) = amid(old.del("ours"), requests, || ours.start("DEL", "ours"));
            outcome.success();
            gone.unwrap();
            assert_eq!(held(&consul, &pool), BTreeMap::new(), "after {requests} requests");
        }
    });
}

#[test]
fn twenty_of_both_at_once_hold_addresses_of_their_own() {
    const WORKERS: usize = 20;
    // Of 62 addresses 60 are given and 40 are held in the end.
    let consul = site();
    let nodes: Vec<[Ours; 2]> =
        (0..WORKERS / 2).map(|_| Ours::kinds(&consul.url(), POOL)).collect();
    let old = passcod(&consul, POOL).delay(Duration::from_millis(4));
    let kept = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let ours = &nodes[worker / 2][worker / 2 % 2];
        let is_old = worker % 2 == 0;
        let add = |id: &str| if is_old { add_until_given(&old, id) } else { ours.add(id) };
        let del = |id: &str| match is_old {
            true => drop(old.del(id).run().unwrap()),
            false => ours.del(id),
        };
        let [gone, stays, last] = ["gone", "stays", "last"].map(|id| format!("{id}-{worker}"));
        add(&gone);
        let first = add(&stays);
        del(&gone);
        let second = add(&last);
        kept.lock().unwrap().extend([(stays, first), (last, second)]);
    });
    let kept = kept.into_inner().unwrap();
    let all = kept.iter().map(|(id, address)| (&id[..], *address));
    assert_eq!(held(&consul, POOL), holdings(all));
    assert_eq!(owners(&consul).len(), WORKERS);
}

#[test]
fn passcod_finds_the_folders_that_it_needs() {
    for kind in [Ours::chain, Ours::alone] {
        let consul = Consul::start();
        consul.put("ipam/p", r#"[{"subnet": "10.1.2.0/26"}]"#);
        let old = passcod(&consul, POOL);
        assert_eq!(old.add("c1").run().unwrap_err()["code"], 100);
        let ours = kind(&consul.url(), POOL);
        ours.add("c1");
        ours.del("c1");
        assert_eq!(consul.keys("ipam/p"), ["ipam/p", "ipam/p/"]);
        assert_eq!(consul.entry("ipam/").unwrap().value, "");
        old.add("c1").run().unwrap();
        old.del("c1").run().unwrap();
    }
}

#[test]
fn passcod_releases_what_ours_gave() {
    let consul = site();
    let old = passcod(&consul, POOL);
    for ours in Ours::kinds(&consul.url(), POOL) {
        let own = ours.add("c1");
        assert_eq!(held(&consul, POOL), holdings([("c1", own)]));
        assert_eq!(ours.check("c1", &[own]).success(), Value::Null);
        old.del("c1").run().unwrap();
        assert_eq!(held(&consul, POOL), BTreeMap::new());
        assert_eq!(ours.check("c1", &[own]).failure().0, 104, "{}", ours.kind);

        // Given to another, it is not ours to release any more.
        assert_eq!(add(&old, "c2"), own);
        let again = ours.add("c1");
        assert_eq!(held(&consul, POOL), holdings([("c1", again), ("c2", own)]));
        ours.del("c1");
        assert_eq!(held(&consul, POOL), holdings([("c2", own)]));
        assert_eq!(owners(&consul), [""; 0]);

        // Nor when nothing tells that it has gone.
        let own = ours.add("c3");
        old.del("c3").run().unwrap();
        assert_eq!(add(&old, "c4"), own);
        ours.del("c3");
        assert_eq!(held(&consul, POOL).remove(&own).as_deref(), Some("c4"));
        assert_eq!(owners(&consul), [""; 0]);
        for container in ["c2", "c4"] {
            old.del(container).run().unwrap();
        }
    }
}

#[test]
fn passcod_takes_over_what_ours_gave_and_ours_notices() {
    let consul = site();
    for ours in Ours::kinds(&consul.url(), POOL) {
        let own = ours.add("c1");
        let asking = json!([{"name": POOL, "requested_ip": own}]);
        let old = Passcod::with_pools(&[consul.endpoint()], &asking);
        assert_eq!(add(&old, "c2"), own);
        let (code, text) = ours.check("c1", &[own]).failure();
        assert_eq!(code, 104, "{text}");
        let other = ours.add("c1");
        assert_eq!(held(&consul, POOL), holdings([("c1", other), ("c2", own)]), "{}", ours.kind);

        // And when only the DEL comes.
        let asking = json!([{"name": POOL, "requested_ip": other}]);
        let old = Passcod::with_pools(&[consul.endpoint()], &asking);
        assert_eq!(add(&old, "c3"), other);
        ours.del("c1");
        assert_eq!(held(&consul, POOL), holdings([("c2", own), ("c3", other)]), "{}", ours.kind);
        assert_eq!(owners(&consul), [""; 0]);
        for container in ["c2", "c3"] {
            old.del(container).run().unwrap();
        }
    }
}

#[test]
fn ours_releases_what_passcod_gave_at_the_price_of_one_listing() {
    let consul = site();
    let relay = Relay::to(&consul.endpoint());
    let url = format!("http://{}", relay.endpoint());
    let old = passcod(&consul, POOL);
    for kind in [Ours::chain, Ours::alone] {
        // A node that has never called, for each.
        let ours = || kind(&url, POOL);
        let [first, second, third] = ["c1", "c2", "c1"].map(|container| add(&old, container));
        assert_eq!(ours().check("c2", &[second]).success(), Value::Null);
        assert_eq!(ours().check("c2", &[first]).failure().0, 104);
        let lines = relay.during(|| ours().del("c1"));
        assert_eq!(held(&consul, POOL), holdings([("c2", second)]), "{first} {third}");
        let listings: Vec<_> = lines.iter().filter(|line| line.starts_with("GET ")).collect();
        assert_eq!(listings, ["GET /v1/kv/ipam/p/?recurse&consistent"], "{lines:?}");
        assert_eq!(lines.len(), 3, "{lines:?}");
        ours().del("c1");
        ours().del("c2");
        assert_eq!(held(&consul, POOL), BTreeMap::new());
    }
}

#[test]
fn told_of_no_pool_ours_finds_what_passcod_gave_in_any() {
    let consul = site();
    define(&consul, "q", "fd00:1::/64");
    let relay = Relay::to(&consul.endpoint());
    let url = format!("http://{}", relay.endpoint());
    for kind in [Ours::chain, Ours::alone] {
        let ours = kind(&url, POOL).without_pools();
        let [one, other] = ["c1", "c2"].map(|container| add(&passcod(&consul, POOL), container));
        add(&passcod(&consul, "q"), "c1");
        let lines = relay.during(|| ours.del("c1"));
        assert_eq!(held(&consul, POOL), holdings([("c2", other)]), "{one}");
        assert_eq!(held(&consul, "q"), BTreeMap::new());
        let listings: Vec<_> = lines.iter().filter(|line| line.starts_with("GET ")).collect();
        assert_eq!(listings, ["GET /v1/kv/ipam/?recurse&consistent"], "{lines:?}");
        passcod(&consul, POOL).del("c2").run().unwrap();
    }
}

#[test]
fn a_container_that_starts_again_keeps_the_address_that_passcod_gave() {
    let consul = site();
    let old = passcod(&consul, POOL);
    for ours in Ours::kinds(&consul.url(), POOL) {
        add(&old, "c0");
        let first = add(&old, "c1");
        old.del("c0").run().unwrap();
        // The runtime's cache names it.
        let cache = ours.world.path("results");
        std::fs::create_dir_all(&cache).unwrap();
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": format!("{first}/26")}]});
        let cached = json!({
            "kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "net",
            "result": result,
        });
        std::fs::write(cache.join("net-c1-eth0"), cached.to_string()).unwrap();
        assert_eq!(ours.add("c1"), first, "{}", ours.kind);
        assert_eq!(held(&consul, POOL), holdings([("c1", first)]));
        ours.del("c1");
        assert_eq!(held(&consul, POOL), BTreeMap::new());
        assert_eq!(owners(&consul), [""; 0]);
    }
}

#[test]
fn each_goes_on_where_the_other_has_stopped() {
    for kind in [Ours::chain, Ours::alone] {
        let consul = Consul::start();
        define(&consul, POOL, "10.1.2.0/29");
        let definition = consul.entry("ipam/p");
        let old = passcod(&consul, POOL);
        let ours = kind(&consul.url(), POOL);
        let mut held_by: BTreeMap<&str, IpAddr> = BTreeMap::new();
        held_by.insert("c1", add(&old, "c1"));
        held_by.insert("c2", ours.add("c2"));
        held_by.insert("c3", add(&old, "c3"));
        held_by.insert("c4", ours.add("c4"));
        let all = || held_by.iter().map(|(container, address)| (*container, *address));
        assert_eq!(held(&consul, POOL), holdings(all()));
        // Back again, with one of each gone.
        old.del("c1").run().unwrap();
        old.del("c2").run().unwrap();
        let mut free: Vec<IpAddr> = (1..=7).map(|n| IpAddr::from([10, 1, 2, n])).collect();
        free.retain(|address| ![held_by["c3"], held_by["c4"]].contains(address));
        for (container, address) in ["c5", "c6", "c7", "c8", "c9"].iter().zip(free) {
            assert_eq!(add(&old, container), address);
        }
        assert_eq!(old.add("c10").run().unwrap_err()["code"], 122);
        // And forth: what this node remembers of c2 has become another's. The last, which passcod
        // gives out, is the broadcast address, and no other is free.
        let before = held(&consul, POOL);
        assert_eq!(before.len(), 7);
        let (code, text) = ours.call("ADD", "c2").failure();
        assert_eq!(code, 100, "{text}");
        ours.del("c2");
        assert_eq!(held(&consul, POOL), before);
        ours.del("c5");
        let freed = before.iter().find(|(_, container)| *container == "c5").unwrap().0;
        assert_eq!(ours.add("c2"), *freed);
        assert_eq!(ours.add("c4"), held_by["c4"]);
        for container in ["c2", "c3", "c4", "c6", "c7", "c8", "c9"] {
            ours.del(container);
        }
        assert_eq!(held(&consul, POOL), BTreeMap::new());
        assert_eq!(owners(&consul), [""; 0]);
        assert_eq!(consul.entry("ipam/p"), definition);
    }
}

/// What is no allocation, below the pool, and what passcod's ADD and DEL make of it.
const INVALID: [(&str, &str, [u64; 2]); 9] = [
    // An empty value counts as free there, and the key as taken when it is written.
    ("10.1.2.1", "", [125, 0]),
    ("10.1.2.1", "null", [117, 117]),
    ("10.1.2.1", "c1", [117, 117]),
    ("10.1.2.1", "{}", [117, 117]),
    ("10.1.2.1", r#"{"target":7}"#, [117, 117]),
    ("10.1.2.1/26", r#"{"target":"c1"}"#, [117, 117]),
    ("010.1.2.1", r#"{"target":"c1"}"#, [117, 117]),
    ("gateway", r#"{"target":"c1"}"#, [117, 117]),
    ("gateway", "", [0, 0]),
];

#[test]
fn what_is_no_allocation_is_named_where_it_is_met_and_stays_as_it_is() {
    let consul = Consul::start();
    for (number, (name, value, [add, del])) in INVALID.into_iter().enumerate() {
        let pool = format!("p{number}");
        define(&consul, &pool, "10.1.2.0/29");
        let key = format!("ipam/{pool}/{name}");
        consul.put(&key, value);
        let before = consul.entry(&key);

        let old = passcod(&consul, &pool);
        let code = |result: Result<Value, Value>| {
            result.map_or_else(|e| e["code"].as_u64().unwrap(), |_| 0)
        };
        assert_eq!([code(old.add("c1").run()), code(old.del("c1").run())], [add, del], "{key}");

        let invalid: Option<IpAddr> = name.parse().ok();
        for ours in Ours::kinds(&consul.url(), &pool) {
            // The DEL of a container of which nothing is known lists the pool.
            ours.del("c1");
            let mut given_so_far = Vec::new();
            let (code, text) = loop {
                let outcome = ours.call("ADD", &format!("c{}", given_so_far.len()));
                if outcome.exit == Some(1) {
                    break outcome.failure();
                }
                given_so_far.push(given(outcome));
            };
            assert!(!invalid.is_some_and(|invalid| given_so_far.contains(&invalid)), "{key}");
            match (invalid, name.contains('/')) {
                (Some(_), _) => assert_eq!((code, given_so_far.len()), (100, 5), "{text}"),
                // It lies where free addresses are looked for.
                (None, true) => assert_eq!((code, given_so_far.len()), (103, 0), "{text}"),
                // All addresses of the pool are seen without it.
                (None, false) => assert_eq!((code, given_so_far.len()), (100, 6), "{text}"),
            }
            assert_eq!(code == 103, text.contains(&key), "{text}");
            (0..given_so_far.len()).for_each(|number| ours.del(&format!("c{number}")));
            assert_eq!(consul.entry(&key), before);

            if invalid.is_some() {
                let mut ours = ours.asking("requested-ip", name);
                for takeover in [false, true] {
                    ours.network["ipam"]["takeover"] = takeover.into();
                    let (code, text) = ours.call("ADD", "c1").failure();
                    assert!(code == 102 && text.contains(&key), "{text}");
                    assert_eq!(consul.entry(&key), before);
                }
            }
        }
        assert_eq!(consul.keys(&format!("ipam/{pool}/")).len(), 2);
    }
}

#[test]
fn a_result_that_cannot_be_read_releases_no_address_of_another_attachment() {
    let consul = site();
    let ours = Ours::alone(&consul.url(), POOL);
    for address in ["10.1.2.5", "10.1.2.6"] {
        consul.put(&format!("ipam/{POOL}/{address}"), r#"{"target":"c1"}"#);
    }
    let cached = json!({
        "kind": "cniCacheV1", "containerId": "c1", "ifName": "net1", "networkName": "net",
        "result": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.6/26"}]},
    });
    let file = ours.world.path("results/net-c1-net1");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, cached.to_string()).unwrap();
    let mut command = ours.world.command_of(&strace(), "DEL", "c1");
    command.args(["-f", "-o", "/dev/null", "-P"]).arg(&file);
    command.args(["-e", "inject=?open,openat:error=EIO"]).arg(common::PROGRAM);
    let (code, text) = wait(start(command, &ours.network)).failure();
    assert!(code == 5 && text.contains(file.to_str().unwrap()), "{code}: {text}");
    assert_eq!(held(&consul, POOL).len(), 2);
    ours.del("c1");
    assert_eq!(held(&consul, POOL).len(), 1);
}
