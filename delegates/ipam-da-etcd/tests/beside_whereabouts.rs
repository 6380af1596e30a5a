//! Beside whereabouts with the datastore `etcd`, on its keys: while it is replaced node by node, and
//! on the way back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::etcd::{Etcd, Silent};
use ipam_testkit::node::at_once;
use ipam_testkit::old::Done;
use ipam_testkit::old::whereabouts::InEtcd;
use ipam_testkit::world::binary;
use serde_json::{Value, json};

use common::beside::{Ours, amid, given, holdings};

/// The preset, with a configuration of whereabouts.
fn preset(etcd: &Etcd, subnet: &str) -> Ours {
    let ipam = json!({"etcd_host": etcd.endpoint(), "range": subnet});
    let ours = Ours::preset("whereabouts", &ipam, &Value::Null);
    ours.world.install(&binary("ipam-ds-whereabouts"));
    ours
}

/// The allocator alone.
fn ours(etcd: &Etcd, subnet: &str) -> Ours {
    let mut ours = Ours::alone(&etcd.endpoint(), "whereabouts", &json!([[{"subnet": subnet}]]));
    ours.network["ipam"]["strategy"] = "lowest".into();
    ours
}

fn old(etcd: &Etcd, subnet: &str) -> InEtcd {
    InEtcd::new(etcd, &json!({ "range": subnet }))
}

/// Who holds which address of a pool.
#[track_caller]
fn held(etcd: &Etcd, old: &InEtcd) -> BTreeMap<IpAddr, String> {
    let value = etcd.get(&old.key()).unwrap();
    let lines = value.lines().map(|line| line.split_once(' ').unwrap());
    let mut held = BTreeMap::new();
    for (address, id) in lines {
        let other = held.insert(address.parse().unwrap(), id.to_owned());
        assert_eq!(other, None, "{address} has two holders: {value}");
    }
    held
}

#[test]
fn the_requests_of_an_old_add_and_del_are_these() {
    let etcd = Etcd::start();
    let old = old(&etcd, "10.1.2.0/24");
    let kinds = |call: ipam_testkit::old::Call| -> Vec<String> {
        let word = |done: Done| done.to_string().split(' ').next().unwrap().to_owned();
        call.map(word).collect()
    };
    let add = ["grant", "create", "get", "get", "put", "delete", "revoke"];
    assert_eq!(kinds(old.add("c1")), add);
    assert_eq!(kinds(old.del("c1")), add);
    assert_eq!(kinds(old.del("c1")), ["grant", "create", "get", "get", "delete", "revoke"]);
    assert_eq!(etcd.get("/whereabouts/10.1.2.0/24").as_deref(), Some(""));
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_call() {
    let etcd = Etcd::start();
    at_once(16, |case| {
        let (requests, subnet) = (case / 2, format!("10.1.{case}.0/24"));
        let of_kind = [ours, preset][case % 2];
        let (ours, old) = (of_kind(&etcd, &subnet), old(&etcd, &subnet));
        let earlier = ours.add("earlier");

        let (first, outcome) = amid(old.add("first"), requests, || ours.start("ADD", "ours"));
        let (first, own) = (first.unwrap(), given(outcome));
        let all = [("earlier", &earlier[..]), ("first", &first), ("ours", &own)];
        assert_eq!(held(&etcd, &old), holdings(all), "after {requests} requests");

        let (second, outcome) = amid(old.add("second"), requests, || ours.start("DEL", "earlier"));
        outcome.success();
        let second = second.unwrap();
        let all = [("first", &first[..]), ("second", &second), ("ours", &own)];
        assert_eq!(held(&etcd, &old), holdings(all), "after {requests} requests");

        let (gone, outcome) = amid(old.del("first"), requests, || ours.start("ADD", "late"));
        let late = given(outcome);
        assert_eq!(gone, Ok(vec![]));
        let all = [("second", &second[..]), ("ours", &own), ("late", &late)];
        assert_eq!(held(&etcd, &old), holdings(all), "after {requests} requests");

        let (gone, outcome) = amid(old.del("second"), requests, || ours.start("DEL", "ours"));
        outcome.success();
        assert_eq!(gone, Ok(vec![]));
        assert_eq!(held(&etcd, &old), holdings([("late", &late[..])]), "after {requests} requests");
    });
}

#[test]
fn twenty_of_both_at_once_hold_addresses_of_their_own() {
    const WORKERS: usize = 20;
    let etcd = Etcd::start();
    let kinds = [ours, preset].into_iter().cycle().take(WORKERS / 2);
    let nodes: Vec<Ours> = kinds.map(|kind| kind(&etcd, "10.1.2.0/26")).collect();
    let old = old(&etcd, "10.1.2.0/26").delay(Duration::from_millis(4));
    let kept = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let ours = &nodes[worker / 2];
        let is_old = worker % 2 == 0;
        let add = |id: &str| if is_old { old.add(id).run().unwrap() } else { ours.add(id) };
        let [gone, stays, last] = ["gone", "stays", "last"].map(|id| format!("{id}-{worker}"));
        add(&gone);
        let first = add(&stays);
        if is_old {
            drop(old.del(&gone).run().unwrap())
        } else {
            ours.del(&gone)
        }
        let second = add(&last);
        kept.lock().unwrap().extend([(stays, first), (last, second)]);
    });
    let kept = kept.into_inner().unwrap();
    let all = kept.iter().map(|(id, addresses)| (&id[..], &addresses[..]));
    assert_eq!(held(&etcd, &old), holdings(all));
    assert_eq!(etcd.keys(&format!("{}/", old.key())), [""; 0]);
}

#[test]
fn the_mutex_of_a_killed_call_runs_out_and_ours_waits_for_it() {
    let etcd = Etcd::start();
    let (ours, old) = (ours(&etcd, "10.1.2.0/24"), old(&etcd, "10.1.2.0/24"));
    let mut killed = old.add("killed");
    let last = |done: &Done| matches!(done, Done::Created(_));
    killed.find(last).unwrap();
    drop(killed);
    let [mutex] = &etcd.keys(&format!("{}/", old.key()))[..] else { panic!("one key") };
    let lease = i64::from_str_radix(mutex.rsplit_once('/').unwrap().1, 16).unwrap();
    let add = ours.start("ADD", "ours");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(etcd.get(&old.key()), None);
    // As after 60 s.
    etcd.requests().revoke(lease).unwrap();
    let own = given(ipam_testkit::world::wait(add));
    assert_eq!(held(&etcd, &old), holdings([("ours", &own[..])]));
}

/// Recorded of the fork (whereabouts-fork-004, 008, 017, 019, 021, 025): what is in etcd
/// afterwards, and what ours leaves instead where it differs.
#[test]
fn what_the_fork_left_in_etcd_is_left_by_the_preset_but_for_these() {
    let etcd = Etcd::start();
    let play = |ipam: Value, calls: &[(&str, &str, &str)]| {
        let mut ours = preset(&etcd, "192.168.1.0/24");
        ours.network["ipam"].as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
        for (verb, container, ifname) in calls {
            ours.call_on(verb, container, ifname).success();
        }
        let left = etcd.get("/whereabouts/192.168.1.0/24").unwrap();
        etcd.etcdctl(&["del", "--prefix", "/whereabouts/"]);
        left
    };
    let exclude = json!({"exclude": ["192.168.1.0/28", "192.168.1.16/28"]});
    assert_eq!(play(exclude, &[("ADD", "dummy-0", "eth0")]), "192.168.1.32 dummy-0");
    let both = [("ADD", "dummy-0", "eth0"), ("ADD", "dummy-1", "eth0")];
    let bounds = json!({"range": "192.168.1.5-192.168.1.25/24"});
    assert_eq!(play(bounds, &both), "192.168.1.5 dummy-0\n192.168.1.6 dummy-1");
    let interfaces =
        [("ADD", "dummy-0", "eth0"), ("ADD", "dummy-0", "net1"), ("DEL", "dummy-0", "net1")];
    // The fork releases the first of the container, here that of eth0.
    assert_eq!(play(json!({}), &interfaces), "192.168.1.1 dummy-0");
    assert_eq!(play(json!({}), &[("ADD", "c1", "eth0"), ("DEL", "c1", "eth0")]), "");

    // The fork gives the broadcast address, too.
    let mut ours = preset(&etcd, "192.168.2.0/30");
    let bounds = json!({"range_start": "192.168.2.2", "range_end": "192.168.2.3"});
    ours.network["ipam"].as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
    ours.add("a");
    assert_eq!(ours.call("ADD", "b").failure().0, 100);
    assert_eq!(etcd.get("/whereabouts/192.168.2.0/30").as_deref(), Some("192.168.2.2 a"));

    // The fork takes this for empty, and overwrites it.
    let ours = preset(&etcd, "192.168.2.225/28");
    let malformed = "192.168.2.225 c1\ngarbage\n192.168.2.226 c2";
    etcd.put("/whereabouts/192.168.2.224/28", malformed);
    assert_eq!(ours.call("ADD", "z").failure().0, 103);
    assert_eq!(etcd.get("/whereabouts/192.168.2.224/28").as_deref(), Some(malformed));
}

#[test]
fn the_flat_file_chooses_the_store_and_a_record_needs_neither() {
    let etcd = Etcd::start();
    let mut ours = preset(&etcd, "10.1.2.0/24");
    let flat = ours.world.path("whereabouts.conf");
    let ipam = ours.network["ipam"].as_object_mut().unwrap();
    ipam.remove("etcd_host");
    ipam.insert("configuration_path".to_owned(), json!(flat));
    let write = |content: Value| std::fs::write(&flat, content.to_string()).unwrap();
    write(
        json!({"datastore": "etcd", "etcd_host": etcd.endpoint(), "kubernetes": {"kubeconfig": "/k"}}),
    );
    let own = ours.add("c1");
    let old = old(&etcd, "10.1.2.0/24");
    assert_eq!(held(&etcd, &old), holdings([("c1", &own[..])]));
    assert_eq!(own, ["10.1.2.1".parse::<IpAddr>().unwrap()]);
    ours.call("STATUS", "").success();
    // Without a record, by the configuration.
    old.add("c2").run().unwrap();
    ours.del("c2");
    std::fs::remove_file(&flat).unwrap();
    ours.network["ipam"].as_object_mut().unwrap().remove("range");
    ours.del("c1");
    assert_eq!(held(&etcd, &old), BTreeMap::new());
}

#[test]
fn a_password_of_the_flat_file_logs_in_and_is_not_shown() {
    let etcd = Etcd::start();
    etcd.etcdctl(&["user", "add", "root:pa55word"]);
    etcd.etcdctl(&["user", "grant-role", "root", "root"]);
    etcd.etcdctl(&["auth", "enable"]);
    let mut ours = preset(&etcd, "10.1.2.0/24");
    let ipam = ours.network["ipam"].as_object_mut().unwrap();
    ipam.insert("etcd_username".to_owned(), "root".into());
    for (password, code) in
        [(Some("wr0ng"), Some(103)), (None, Some(103)), (Some("pa55word"), None)]
    {
        ours.network["ipam"]["etcd_password"] = json!(password);
        let outcome = ours.call("ADD", &format!("c-{code:?}").replace(['(', ')'], ""));
        let shown = format!("{outcome:?}");
        assert!(!shown.contains("pa55word") && !shown.contains("wr0ng"), "{shown}");
        match code {
            None => drop(given(outcome)),
            Some(code) => assert_eq!(outcome.failure().0, code),
        }
    }
}

#[test]
fn each_releases_what_the_other_gave() {
    let etcd = Etcd::start();
    let (ours, old) = (ours(&etcd, "10.1.2.0/28"), old(&etcd, "10.1.2.0/28"));
    let first = old.add("c1").run().unwrap();
    let second = ours.add("c2");
    assert_eq!(ours.check("c1", &first).success(), Value::Null);
    ours.del("c1");
    old.del("c2").run().unwrap();
    assert_eq!(held(&etcd, &old), BTreeMap::new());
    assert_eq!(ours.check("c2", &second).failure().0, 104);
    // Given to another, it is not ours to release any more. The gateway of ours is not given.
    old.add("c3").run().unwrap();
    assert_eq!(old.add("c4").run().unwrap(), second);
    ours.del("c2");
    assert!(held(&etcd, &old).contains_key(&second[0]));
    let third = ours.add("c2");
    assert_ne!(third, second);
    ours.del("c2");
    assert_eq!(held(&etcd, &old).len(), 2);
}

#[test]
fn a_release_by_an_older_record_logs_in_by_the_keys_of_today() {
    let etcd = Etcd::builder().auth("first", "0ld", "/whereabouts/").start();
    let mut ours = preset(&etcd, "10.1.2.0/24");
    let flat = ours.world.path("whereabouts.conf");
    let write = |name: &str, password: &str| {
        let login = json!({"etcd_username": name, "etcd_password": password});
        std::fs::write(&flat, login.to_string()).unwrap();
    };
    // What it has signed in with before counts no more.
    let exchange = |before: &str, name: &str, password: &str| {
        etcd.etcdctl(&["user", "delete", before]);
        etcd.etcdctl(&["user", "add", &format!("{name}:{password}")]);
        etcd.etcdctl(&["user", "grant-role", name, "below-the-prefix"]);
    };
    ours.network["ipam"]["configuration_path"] = json!(flat);
    write("first", "0ld");
    let containers = ["flat", "own", "other", "kept"];
    let held = containers.map(|container| ours.add(container));

    exchange("first", "first", "n3w");
    write("first", "n3w");
    // No secret goes to other servers.
    let elsewhere = json!(Silent::listen().endpoint());
    let host = std::mem::replace(&mut ours.network["ipam"]["etcd_host"], elsewhere);
    let (code, text) = ours.call("DEL", "flat").failure();
    assert_eq!(code, 103, "{text}");
    assert!(!text.contains("0ld") && !text.contains("n3w"), "{text}");
    ours.network["ipam"]["etcd_host"] = host;
    ours.del("flat");

    exchange("first", "first", "th1rd");
    ours.network["ipam"]["etcd_password"] = "th1rd".into();
    ours.check("own", &held[1]).success();
    ours.del("own");

    exchange("first", "second", "f0urth");
    let ipam = ours.network["ipam"].as_object_mut().unwrap();
    // The same server, listed otherwise.
    ipam.insert("etcd_host".to_owned(), json!(format!("127.0.0.1:1,{}", etcd.endpoint())));
    ipam.insert("etcd_username".to_owned(), "second".into());
    ipam.insert("etcd_password".to_owned(), "f0urth".into());
    ours.del("other");
    assert_eq!(etcd.get("/whereabouts/10.1.2.0/24").as_deref(), Some("10.1.2.4 kept"));
}
