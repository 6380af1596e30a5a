//! The old plugins that tests play do what was recorded of the real ones, request by request.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::old::{Call, Done, Old};
use serde_json::{Value, json};

const NETWORK: &str = "/etcd-cni/networks/mynet";

fn cni_ipam_etcd(etcd: &Etcd, ranges: &Value) -> Old {
    Old::cni_ipam_etcd(etcd, "mynet", ranges)
}

/// All keys with their values.
fn keys(etcd: &Etcd) -> BTreeMap<String, String> {
    let entries = etcd.requests().list("/").unwrap();
    entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

/// What a call does, its network's keys without what they begin with and leases without their ids.
fn requests(call: &mut Call) -> Vec<String> {
    call.map(|done| plain(&done)).collect()
}

fn plain(done: &Done) -> String {
    let text = done.to_string().replace(NETWORK, "");
    match text.split_once("/ipam/lock/") {
        Some((what, rest)) if !rest.starts_with(':') => {
            let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
            format!("{what}/ipam/lock/LEASE{}", &rest[digits..])
        }
        _ => text,
    }
}

fn addresses(list: &[&str]) -> Vec<std::net::IpAddr> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

/// Runs the calls that were recorded of a plugin, from the keys before to the keys after.
#[track_caller]
fn assert_recorded(play: impl Fn(&Etcd, &str, &Value) -> Old, plugin: &str, count: usize) {
    let recorded: Value = serde_json::from_str(include_str!("old_plugins/recorded.json")).unwrap();
    let cases = recorded[plugin].as_array().unwrap();
    assert_eq!(cases.len(), count);
    let etcd = Etcd::start();
    for case in cases {
        etcd.etcdctl(&["del", "--prefix", "/"]);
        for (key, value) in case["before"].as_object().into_iter().flatten() {
            etcd.put(key, value.as_str().unwrap());
        }
        let old = play(&etcd, case["network"].as_str().unwrap(), &case["ranges"]);
        for call in case["calls"].as_array().unwrap() {
            let list = |key: &str| -> Vec<&str> {
                let items = call[key].as_array().into_iter().flatten();
                items.map(|item| item.as_str().unwrap()).collect()
            };
            let outcome = match (call["add"].as_str(), call["del"].as_str()) {
                (Some(id), None) => old.add_requesting(id, &list("wants")).run(),
                (None, Some(id)) => old.del(id).run(),
                _ => panic!("{call}"),
            };
            let expected = call["fails"]
                .as_str()
                .map_or_else(|| Ok(addresses(&list("gives"))), |reason| Err(reason.to_owned()));
            assert_eq!(outcome, expected, "{call} of {case}");
        }
        assert_eq!(json!(keys(&etcd)), case["after"], "{case}");
    }
}

#[test]
fn cni_ipam_etcd_gives_and_leaves_what_was_recorded() {
    assert_recorded(Old::cni_ipam_etcd, "cni-ipam-etcd", 7);
}

#[test]
fn host_etcd_gives_and_leaves_what_was_recorded() {
    assert_recorded(|etcd, _, ranges| Old::host_etcd(etcd, ranges), "host-etcd", 10);
}

/// Both families.
fn two_sets() -> Value {
    json!([[{"subnet": "10.1.2.0/29"}], [{"subnet": "fd00:1::/64"}]])
}

#[test]
fn cni_ipam_etcd_sends_the_requests_that_were_recorded() {
    let etcd = Etcd::start();
    let old = cni_ipam_etcd(&etcd, &two_sets());
    etcd.put(&format!("{NETWORK}/used/10.1.2.2"), "other");
    assert_eq!(
        requests(&mut old.add("c1")),
        [
            "put ",
            "grant 10",
            "create /lock",
            "get /lastReserved/0",
            "get /used/10.1.2.2",
            "get /used/10.1.2.3",
            "put /used/10.1.2.3",
            "put /lastReserved/0",
            "get /lock",
            "revoke",
            "grant 10",
            "create /lock",
            "get /lastReserved/1",
            "get /used/fd00:1::2",
            "put /used/fd00:1::2",
            "put /lastReserved/1",
            "get /lock",
            "revoke",
        ]
    );
    assert_eq!(
        requests(&mut old.del("c1")),
        [
            "put ",
            "grant 10",
            "create /lock",
            "list /used/",
            "delete /used/10.1.2.3",
            "delete /used/fd00:1::2",
            "get /lock",
            "revoke",
            "grant 10",
            "create /lock",
            "list /used/",
            "get /lock",
            "revoke",
        ]
    );
    etcd.put(&format!("{NETWORK}/used/fd00:1::9"), "other");
    let wanted = ["fd00:1::9"];
    let mut failing = old.add_requesting("c1", &wanted);
    assert_eq!(
        requests(&mut failing)[9..],
        [
            "grant 10",
            "create /lock",
            "get /used/fd00:1::9",
            "get /lock",
            "revoke",
            // It rolls back what the first set gave.
            "grant 10",
            "create /lock",
            "list /used/",
            "delete /used/10.1.2.4",
            "get /lock",
            "revoke",
        ]
    );
    failing.run().unwrap_err();
}

#[test]
fn host_etcd_sends_the_requests_that_were_recorded() {
    let etcd = Etcd::start();
    let old = Old::host_etcd(&etcd, &two_sets());
    assert_eq!(
        requests(&mut old.add("c1")),
        [
            "grant 60",
            "create /ipam/lock/LEASE",
            "get /ipam/last_reserved_ip0",
            "put /ipam/ips/10.1.2.2",
            "put /ipam/last_reserved_ip0",
            "delete /ipam/lock/LEASE",
            "create /ipam/lock/LEASE",
            "get /ipam/last_reserved_ip1",
            "put /ipam/ips/fd00:1::2",
            "put /ipam/last_reserved_ip1",
            "delete /ipam/lock/LEASE",
        ]
    );
    assert_eq!(
        requests(&mut old.del("c1")),
        [
            "grant 60",
            "create /ipam/lock/LEASE",
            "list /ipam/ips/",
            "delete /ipam/ips/10.1.2.2",
            "delete /ipam/ips/fd00:1::2",
            "delete /ipam/lock/LEASE",
            "create /ipam/lock/LEASE",
            "list /ipam/ips/",
            "delete /ipam/lock/LEASE",
        ]
    );
}

#[test]
fn cni_ipam_etcd_tries_again_with_a_new_lease_while_its_lock_is_held() {
    let etcd = Etcd::start();
    let old = cni_ipam_etcd(&etcd, &two_sets()).pause(Duration::ZERO);
    let lock = format!("{NETWORK}/lock");
    etcd.put(&lock, "by hand");
    let mut add = old.add("c1");
    let mut did = |times| requests_of(&mut add, times);
    assert_eq!(did(3), ["put ", "grant 10", "create /lock: refused"]);
    assert_eq!(did(2), ["grant 10", "create /lock: refused"]);
    assert!(etcd.del(&lock));
    assert_eq!(did(3), ["grant 10", "create /lock", "get /lastReserved/0"]);
    assert_eq!(etcd.etcdctl(&["lease", "list"]).lines().count(), 1 + 3);
    let lease: i64 = etcd.get(&lock).unwrap().parse().unwrap();
    let told = etcd.etcdctl(&["lease", "timetolive", "--keys", &format!("{lease:x}")]);
    assert!(told.contains("granted with TTL(10s)") && told.contains(&lock), "{told}");
}

fn requests_of(call: &mut Call, times: usize) -> Vec<String> {
    call.take(times).map(|done| plain(&done)).collect()
}

#[test]
fn cni_ipam_etcd_goes_on_without_its_lock_in_the_end() {
    let etcd = Etcd::start();
    let second = Duration::from_secs(1);
    let old = cni_ipam_etcd(&etcd, &json!([[{"subnet": "10.1.2.0/29"}]]));
    let old = old.pause(second / 10).patience(second / 5);
    let lock = format!("{NETWORK}/lock");
    etcd.put(&lock, "by hand");
    let mut add = old.add("c1");
    assert_eq!(
        requests(&mut add),
        [
            "put ",
            "grant 10",
            "create /lock: refused",
            "grant 10",
            "create /lock: refused",
            "get /lastReserved/0",
            "get /used/10.1.2.2",
            "put /used/10.1.2.2",
            "put /lastReserved/0",
            // No number, so that it names no lease.
            "get /lock",
        ]
    );
    assert_eq!(add.run(), Ok(addresses(&["10.1.2.2"])));

    let lease = etcd.requests().grant(60).unwrap();
    etcd.del(&lock);
    assert!(etcd.requests().create(&lock, &lease.to_string(), lease).unwrap());
    old.add("c2").run().unwrap();
    assert_eq!(etcd.get(&lock), None, "it ends the lease of whoever has the lock");
}

#[test]
fn cni_ipam_etcd_searches_a_full_set_of_two_ranges_for_ever() {
    let etcd = Etcd::start();
    for (key, value) in
        [("used/10.0.0.2", "x"), ("used/10.0.1.2", "x"), ("lastReserved/0", "10.0.0.2")]
    {
        etcd.put(&format!("{NETWORK}/{key}"), value);
    }
    let ranges = json!([[{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/30"}]]);
    let mut add = cni_ipam_etcd(&etcd, &ranges).add("c1");
    assert_eq!(add.by_ref().take(100).count(), 100);
    assert!(add.step().unwrap().to_string().contains("/used/10.0."));
}

#[test]
fn host_etcd_waits_until_all_before_it_have_gone() {
    let etcd = Etcd::start();
    for key in ["/ipam/lock/a", "/ipam/lock/b"] {
        etcd.put(key, "");
    }
    let old = Old::host_etcd(&etcd, &json!([[{"subnet": "10.1.2.0/29"}]]));
    let mut add = old.add("c1");
    let mut did = |times| requests_of(&mut add, times);
    assert_eq!(did(3), ["grant 60", "create /ipam/lock/LEASE: queued", "list /ipam/lock/: waits"]);
    // One that comes later is not waited for.
    etcd.put("/ipam/lock/c", "");
    etcd.del("/ipam/lock/b");
    assert_eq!(did(1), ["list /ipam/lock/: waits"]);
    etcd.del("/ipam/lock/a");
    assert_eq!(did(2), ["list /ipam/lock/: passed", "get /ipam/last_reserved_ip0"]);
    let places = etcd.keys("/ipam/lock/");
    let [own, _] = &places[..] else { panic!("{places:?}") };
    let lease = own.strip_prefix("/ipam/lock/").unwrap();
    let told = etcd.etcdctl(&["lease", "timetolive", "--keys", lease]);
    assert!(told.contains("granted with TTL(60s)") && told.contains(own), "{told}");
}

#[test]
fn a_call_that_is_dropped_sends_no_more_and_one_that_goes_on_ends_as_ever() {
    let etcd = Etcd::start();
    let ranges = json!([[{"subnet": "10.1.2.0/24"}]]);
    for old in [cni_ipam_etcd(&etcd, &ranges), Old::host_etcd(&etcd, &ranges)] {
        let whole = requests(&mut old.add("c0")).len();
        for steps in 0..=whole {
            let mut call = old.add("c1");
            assert_eq!(call.by_ref().take(steps).count(), steps);
            let revision = etcd.revision();
            drop(call);
            thread::sleep(Duration::from_millis(20));
            assert_eq!(etcd.revision(), revision, "after {steps} of {whole}");
            for key in etcd.keys("/").iter().filter(|key| key.contains("/lock")) {
                etcd.del(key);
            }

            let mut call = old.add("c2");
            assert_eq!(call.by_ref().take(steps).count(), steps);
            assert_eq!(call.run().unwrap().len(), 1);
        }
    }
}

#[test]
fn twenty_at_once_get_addresses_of_their_own() {
    let etcd = Etcd::start();
    let ranges = json!([[{"subnet": "10.1.0.0/16"}]]);
    for old in [cni_ipam_etcd(&etcd, &ranges), Old::host_etcd(&etcd, &ranges)] {
        let old = old.pause(Duration::from_millis(50)).delay(Duration::from_millis(1));
        let call = |number| old.add(&format!("c{number}"));
        let given: Vec<_> = thread::scope(|scope| {
            let threads = (0..20).map(|number| scope.spawn(move || call(number).run().unwrap()));
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(given.iter().flatten().collect::<BTreeSet<_>>().len(), 20, "{given:?}");
    }
}
