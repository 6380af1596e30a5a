//! Beside host-etcd, on its keys: what ours keep while it may overwrite anything.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::sync::Mutex;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::at_once;
use ipam_testkit::old::{Done, Old};
use ipam_testkit::world::{until, wait};
use serde_json::{Value, json};

use common::beside::{Ours, amid, given, held, holdings};

/// Both families.
fn both() -> Value {
    json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]])
}

/// Five addresses: 10.1.2.2 to 10.1.2.6.
fn small() -> Value {
    json!([[{"subnet": "10.1.2.0/29"}]])
}

fn ips(etcd: &Etcd) -> BTreeMap<IpAddr, String> {
    held(etcd, "/ipam/ips/")
}

/// The preset, with the old plugin's configuration.
fn preset(etcd: &Etcd, ranges: &Value) -> Ours {
    Ours::preset("host-etcd", &json!({"endpoints": [etcd.url()]}), ranges)
}

/// The preset, and the allocator alone.
fn kinds(etcd: &Etcd, ranges: &Value) -> [Ours; 2] {
    [preset(etcd, ranges), Ours::alone(&etcd.endpoint(), "host-etcd", ranges)]
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Does something for each number, on a server that nobody else uses meanwhile: its networks share
/// all keys.
fn in_rounds(count: usize, work: impl Fn(&Etcd, usize) + Sync) {
    const SERVERS: usize = 4;
    at_once(SERVERS, |server| {
        let etcd = Etcd::start();
        (server..count).step_by(SERVERS).for_each(|number| work(&etcd, number));
    });
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_add() {
    let etcd = Etcd::start();
    let requests = Old::host_etcd(&etcd, &both()).add("c1").count();
    assert_eq!(requests, 11);
    in_rounds(requests + 1, |etcd, requests| {
        for (kind, ours) in kinds(etcd, &both()).into_iter().enumerate() {
            etcd.etcdctl(&["del", "--prefix", "/ipam/"]);
            let old = Old::host_etcd(etcd, &both());
            let earlier = ours.add("earlier");

            let (first, outcome) = amid(old.add("first"), requests, || ours.start("ADD", "ours"));
            let (first, own) = (first.unwrap(), given(outcome));
            let all = [("earlier", &earlier[..]), ("first", &first), ("ours", &own)];
            assert_eq!(ips(etcd), holdings(all), "{kind}, after {requests} requests");

            let (second, outcome) =
                amid(old.add("second"), requests, || ours.start("DEL", "earlier"));
            outcome.success();
            let second = second.unwrap();
            let all = [("first", &first[..]), ("second", &second), ("ours", &own)];
            assert_eq!(ips(etcd), holdings(all), "{kind}, after {requests} requests");
        }
    });
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_del() {
    let etcd = Etcd::start();
    let old = Old::host_etcd(&etcd, &both());
    old.add("c1").run().unwrap();
    let requests = old.del("c1").count();
    assert_eq!(requests, 9);
    in_rounds(requests + 1, |etcd, requests| {
        for (kind, ours) in kinds(etcd, &both()).into_iter().enumerate() {
            etcd.etcdctl(&["del", "--prefix", "/ipam/"]);
            let old = Old::host_etcd(etcd, &both());
            let earlier = ours.add("earlier");

            old.add("old").run().unwrap();
            let (gone, outcome) = amid(old.del("old"), requests, || ours.start("ADD", "ours"));
            let own = given(outcome);
            assert_eq!(gone, Ok(vec![]));
            let all = [("earlier", &earlier[..]), ("ours", &own)];
            assert_eq!(ips(etcd), holdings(all), "{kind}, after {requests} requests");

            old.add("old").run().unwrap();
            let (gone, outcome) = amid(old.del("old"), requests, || ours.start("DEL", "earlier"));
            outcome.success();
            assert_eq!(gone, Ok(vec![]));
            assert_eq!(ips(etcd), holdings([("ours", &own[..])]), "{kind}, after {requests}");
        }
    });
}

#[test]
fn twenty_of_both_at_once_before_its_range_wraps() {
    const WORKERS: usize = 20;
    let etcd = Etcd::start();
    let ranges = json!([[{"subnet": "10.1.0.0/16"}]]);
    let nodes: Vec<[Ours; 2]> = (0..WORKERS / 2).map(|_| kinds(&etcd, &ranges)).collect();
    let old = Old::host_etcd(&etcd, &ranges);
    let kept = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let ours = &nodes[worker / 2][worker / 2 % 2];
        for round in 0..3 {
            let id = format!("c{worker}-{round}");
            let given = if worker % 2 == 0 { old.add(&id).run().unwrap() } else { ours.add(&id) };
            kept.lock().unwrap().push((id, given));
        }
    });
    let kept = kept.into_inner().unwrap();
    let all = kept.iter().map(|(id, addresses)| (&id[..], &addresses[..]));
    assert_eq!(ips(&etcd), holdings(all));
}

#[test]
fn ours_never_take_what_the_old_plugin_holds() {
    let etcd = Etcd::start();
    let old = Old::host_etcd(&etcd, &small());
    for id in ["c1", "c2", "c3"] {
        old.add(id).run().unwrap();
    }
    // Its next ones would be those of c1 and c2.
    etcd.put("/ipam/last_reserved_ip0", "10.1.2.1");
    let [first, second] = kinds(&etcd, &small());
    let (fourth, fifth) = (first.add("c4"), second.add("c5"));
    for ours in [&first, &second] {
        assert_eq!(ours.call("ADD", "c6").failure().0, 100);
    }
    let all = [
        ("c1", &[address("10.1.2.2")][..]),
        ("c2", &[address("10.1.2.3")]),
        ("c3", &[address("10.1.2.4")]),
        ("c4", &fourth),
        ("c5", &fifth),
    ];
    assert_eq!(ips(&etcd), holdings(all));
}

#[test]
fn ours_do_not_set_the_old_plugin_back_to_what_others_hold() {
    let etcd = Etcd::start();
    let ranges = json!([[{"subnet": "10.1.2.0/24"}]]);
    let old = Old::host_etcd(&etcd, &ranges);
    let ours = preset(&etcd, &ranges);
    let first = ours.add("c1");
    let [gone, second] = ["c2", "c3"].map(|id| old.add(id).run().unwrap());
    old.del("c2").run().unwrap();
    // This node remembers the address before the one that is free again.
    let third = ours.add("c4");
    assert_ne!(third, gone);
    let fourth = old.add("c5").run().unwrap();
    let all = [("c1", &first[..]), ("c3", &second), ("c4", &third), ("c5", &fourth)];
    assert_eq!(ips(&etcd), holdings(all));
}

/// An old plugin whose range has wrapped gives c9 the address of ours.
fn overwritten(etcd: &Etcd, ours: &Ours) -> Vec<IpAddr> {
    let own = ours.add("c1");
    let old = Old::host_etcd(etcd, &small());
    let theirs = (0..5).map(|_| old.add("c9").run().unwrap()).collect::<Vec<_>>();
    assert_eq!(theirs.last(), Some(&own));
    own
}

#[test]
fn what_the_old_plugin_has_overwritten_is_told_and_left_to_it() {
    for kind in 0..2 {
        let etcd = Etcd::start();
        let ours = &kinds(&etcd, &small())[kind];
        let own = overwritten(&etcd, ours);
        let (code, text) = ours.check("c1", &own).failure();
        assert_eq!(code, 104, "{text}");

        let after = ips(&etcd);
        assert_eq!(after.get(&own[0]).map(String::as_str), Some("c9"));
        ours.del("c1");
        assert_eq!(ips(&etcd), after);
    }
}

#[test]
fn an_add_again_after_an_address_was_overwritten_gives_another() {
    let etcd = Etcd::start();
    let ours = preset(&etcd, &small());
    let own = overwritten(&etcd, &ours);
    Old::host_etcd(&etcd, &small()).del("c9").run().unwrap();
    etcd.put(&format!("/ipam/ips/{}", own[0]), "c9");
    let again = ours.add("c1");
    assert_eq!(ips(&etcd), holdings([("c1", &again[..]), ("c9", &own)]));
    assert_eq!(ours.check("c1", &again).success(), Value::Null);
}

#[test]
fn status_warns_of_the_old_plugin_at_work_and_of_what_it_has_overwritten() {
    let etcd = Etcd::start();
    let ours = preset(&etcd, &small());
    assert_eq!(ours.warnings().matches("host-etcd").count(), 0);
    let own = overwritten(&etcd, &ours);
    let cached = json!({
        "kind": "cniCacheV1",
        "containerId": "c1",
        "ifName": "eth0",
        "networkName": "net",
        "result": {"cniVersion": "1.0.0", "ips": [{"address": format!("{}/29", own[0])}]},
    });
    fs::create_dir_all(ours.world.path("results")).unwrap();
    fs::write(ours.world.path("results/net-c1-eth0"), cached.to_string()).unwrap();
    let told = ours.warnings();
    for word in [&own[0].to_string()[..], "c1", "c9"] {
        assert!(told.contains(word), "{told}");
    }
    assert!(!told.contains("still runs"), "{told}");

    let mut old = Old::host_etcd(&etcd, &small()).add("c8");
    old.find(|done| matches!(done, Done::Created(_))).unwrap();
    assert!(ours.warnings().contains("still runs"));
}

#[test]
fn ours_wait_while_somebody_has_the_lock() {
    let etcd = Etcd::start();
    let ranges = json!([[{"subnet": "10.1.2.0/24"}]]);
    for mut ours in kinds(&etcd, &ranges) {
        let old = Old::host_etcd(&etcd, &ranges);
        let mut add = old.add("old");
        add.find(|done| matches!(done, Done::Created(_))).unwrap();
        let mut child = ours.start("ADD", "ours");
        let places = || etcd.keys("/ipam/lock/").len();
        until("it has queued in", || places() == 2);
        assert!(child.try_wait().unwrap().is_none());
        // One that comes later stands behind it.
        let mut later = old.add("later");
        let queued = |done: Option<Done>| matches!(done, Some(Done::Queued(_)));
        assert!(queued(later.nth(1)));
        let theirs = add.run().unwrap();
        let own = given(wait(child));
        let last = later.run().unwrap();
        let all = [("old", &theirs[..]), ("ours", &own), ("later", &last)];
        assert_eq!(ips(&etcd), holdings(all));
        assert_eq!(places(), 0);

        // Where that takes too long, it says for whom it waits, and leaves nothing.
        let mut add = old.add("old-2");
        add.find(|done| matches!(done, Done::Created(_))).unwrap();
        ours.network["ipam"]["timeout"] = "8s".into();
        if ours.network["ipam"]["type"] == "host-etcd" {
            let (code, text) = ours.call("ADD", "ours-2").failure();
            assert_eq!(code, 11, "{text}");
            assert!(text.contains("/ipam/lock/"), "{text}");
            assert_eq!((places(), ips(&etcd).len()), (1, 3));
        }
        add.run().unwrap();
        for id in ["old", "ours", "later", "old-2"] {
            old.del(id).run().unwrap();
        }
    }
}

#[test]
fn each_releases_what_the_other_gave() {
    let etcd = Etcd::start();
    let old = Old::host_etcd(&etcd, &both());
    for ours in kinds(&etcd, &both()) {
        let own = ours.add("c1");
        assert_eq!(ips(&etcd), holdings([("c1", &own[..])]));
        old.del("c1").run().unwrap();
        assert_eq!(ips(&etcd), BTreeMap::new());
        assert_eq!(ours.check("c1", &own).failure().0, 104);
        ours.del("c1");

        let (first, second) = (old.add("c2").run().unwrap(), old.add("c3").run().unwrap());
        assert_eq!(ours.check("c2", &first).success(), Value::Null);
        ours.del("c2");
        assert_eq!(ips(&etcd), holdings([("c3", &second[..])]));
        // It trims what it writes and what it reads.
        etcd.put(
            &format!("/ipam/ips/{}", second[0]),
            " c3
",
        );
        ours.del("c3");
        assert_eq!(ips(&etcd), BTreeMap::new());
    }
}
