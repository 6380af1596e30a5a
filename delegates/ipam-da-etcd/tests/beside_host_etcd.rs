//! Beside host-etcd, on its keys: what ours keep while it may overwrite anything.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use common::beside::{Ours, given, held, holdings};
use common::etcd::Etcd;
use common::old::{Done, Old};
use common::support::{until, wait};
use serde_json::{Value, json};

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
    assert!(!told.contains("at work"), "{told}");

    let mut old = Old::host_etcd(&etcd, &small()).add("c8");
    old.find(|done| matches!(done, Done::Created(_))).unwrap();
    assert!(ours.warnings().contains("at work"));
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
        assert_eq!(ips(&etcd), holdings([("old", &theirs[..]), ("ours", &own)]));
        later.run().unwrap();
        assert_eq!(places(), 0);

        // Where that takes too long, it says for whom it waits, and leaves nothing.
        let mut add = old.add("old-2");
        add.find(|done| matches!(done, Done::Created(_))).unwrap();
        ours.network["ipam"]["timeout"] = "3s".into();
        if ours.network["ipam"]["type"] == "host-etcd" {
            let (code, text) = ours.call("ADD", "ours-2").failure();
            assert_eq!(code, 11, "{text}");
            assert!(text.contains("/ipam/lock/"), "{text}");
            assert_eq!(places(), 1);
            assert!(!ips(&etcd).values().any(|id| id == "ours-2"));
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
