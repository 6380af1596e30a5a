//! Beside cni-ipam-etcd, on its keys: while it is replaced node by node, and on the way back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::at_once;
use ipam_testkit::old::{Done, Old};
use ipam_testkit::world::{until, wait};
use serde_json::{Value, json};

use common::beside::{Ours, amid, given, held, holdings};
use common::relay::Relay;

/// Both families.
fn both() -> Value {
    json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]])
}

fn prefix(network: &str) -> String {
    format!("/etcd-cni/networks/{network}")
}

fn used(etcd: &Etcd, network: &str) -> BTreeMap<IpAddr, String> {
    held(etcd, &format!("{}/used/", prefix(network)))
}

/// The preset, with the old plugin's configuration.
fn preset(etcd: &Etcd, ranges: &Value) -> Ours {
    preset_at(&etcd.endpoint(), ranges)
}

fn preset_at(endpoint: &str, ranges: &Value) -> Ours {
    let url = format!("http://{endpoint}");
    Ours::preset("etcd", &json!({"etcdConfig": {"etcdURL": url}}), ranges)
}

/// The preset, and the allocator alone.
fn kinds(etcd: &Etcd, ranges: &Value) -> [Ours; 2] {
    [preset(etcd, ranges), Ours::alone(&etcd.endpoint(), "cni-ipam-etcd", ranges)]
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_add() {
    let etcd = Etcd::start();
    let requests = Old::cni_ipam_etcd(&etcd, "other", &both()).add("c1").count();
    assert_eq!(requests, 17);
    at_once(requests + 1, |requests| {
        for (kind, ours) in kinds(&etcd, &both()).into_iter().enumerate() {
            let network = format!("after-{requests}-{kind}");
            let (ours, old) = (ours.named(&network), Old::cni_ipam_etcd(&etcd, &network, &both()));
            let earlier = ours.add("earlier");

            let (first, outcome) = amid(old.add("first"), requests, || ours.start("ADD", "ours"));
            let (first, own) = (first.unwrap(), given(outcome));
            let all = [("earlier", &earlier[..]), ("first", &first), ("ours", &own)];
            assert_eq!(used(&etcd, &network), holdings(all), "after {requests} requests");

            let (second, outcome) =
                amid(old.add("second"), requests, || ours.start("DEL", "earlier"));
            outcome.success();
            let second = second.unwrap();
            let all = [("first", &first[..]), ("second", &second), ("ours", &own)];
            assert_eq!(used(&etcd, &network), holdings(all), "after {requests} requests");
        }
    });
}

#[test]
fn ours_come_between_any_two_requests_of_an_old_del() {
    let etcd = Etcd::start();
    let old = Old::cni_ipam_etcd(&etcd, "other", &both());
    old.add("c1").run().unwrap();
    let requests = old.del("c1").count();
    assert_eq!(requests, 13);
    at_once(requests + 1, |requests| {
        for (kind, ours) in kinds(&etcd, &both()).into_iter().enumerate() {
            let network = format!("after-{requests}-{kind}");
            let (ours, old) = (ours.named(&network), Old::cni_ipam_etcd(&etcd, &network, &both()));
            let earlier = ours.add("earlier");

            old.add("old").run().unwrap();
            let (gone, outcome) = amid(old.del("old"), requests, || ours.start("ADD", "ours"));
            let own = given(outcome);
            assert_eq!(gone, Ok(vec![]));
            let all = [("earlier", &earlier[..]), ("ours", &own)];
            assert_eq!(used(&etcd, &network), holdings(all), "after {requests} requests");

            old.add("old").run().unwrap();
            let (gone, outcome) = amid(old.del("old"), requests, || ours.start("DEL", "earlier"));
            outcome.success();
            assert_eq!(gone, Ok(vec![]));
            let all = [("ours", &own[..])];
            assert_eq!(used(&etcd, &network), holdings(all), "after {requests} requests");
        }
    });
}

#[test]
fn twenty_of_both_at_once_hold_addresses_of_their_own() {
    const WORKERS: usize = 20;
    let etcd = Etcd::start();
    // 61 addresses, of which 60 are given and 40 are held in the end.
    let ranges = json!([[{"subnet": "10.1.2.0/26"}]]);
    let nodes: Vec<[Ours; 2]> = (0..WORKERS / 2).map(|_| kinds(&etcd, &ranges)).collect();
    let [pause, delay] = [20, 4].map(Duration::from_millis);
    let old = Old::cni_ipam_etcd(&etcd, "net", &ranges).pause(pause).delay(delay);
    let kept = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let ours = &nodes[worker / 2][worker / 2 % 2];
        let is_old = worker % 2 == 0;
        let add = |id: &str| if is_old { old.add(id).run().unwrap() } else { ours.add(id) };
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
    let all = kept.iter().map(|(id, addresses)| (&id[..], &addresses[..]));
    assert_eq!(used(&etcd, "net"), holdings(all));
}

#[test]
fn the_lock_of_a_killed_add_runs_out_and_ours_wait_for_it() {
    let etcd = Etcd::start();
    at_once(2, |case| {
        let network = format!("net-{case}");
        let mut killed = Old::cni_ipam_etcd(&etcd, &network, &both()).add("killed");
        let address = format!("{}/used/10.1.2.2", prefix(&network));
        let last = |done: &Done| match case {
            0 => matches!(done, Done::Created(_)),
            _ => *done == Done::Put(address.clone()),
        };
        killed.find(last).unwrap();
        drop(killed);
        let lock = format!("{}/lock", prefix(&network));
        assert!(etcd.get(&lock).is_some());

        let ours = preset(&etcd, &both()).named(&network);
        let own = ours.add("ours");
        assert_eq!(etcd.get(&lock), None, "it did not wait");
        let left: IpAddr = "10.1.2.2".parse().unwrap();
        let all = [("ours", &own[..]), ("killed", &[left][..case])];
        assert_eq!(used(&etcd, &network), holdings(all));
    });
}

#[test]
fn a_lock_without_a_lease_is_named() {
    let etcd = Etcd::start();
    let lock = format!("{}/lock", prefix("net"));
    etcd.put(&lock, "by hand");
    let mut ours = preset(&etcd, &both());
    ours.network["ipam"]["timeout"] = "8s".into();
    let (code, text) = ours.call("ADD", "c1").failure();
    assert_eq!(code, 11, "{text}");
    assert!(text.contains(&lock), "{text}");
    // What it holds does not keep addresses from being released.
    ours.del("c1");
    assert_eq!(etcd.get(&lock).as_deref(), Some("by hand"));
    assert_eq!(used(&etcd, "net"), BTreeMap::new());

    etcd.del(&lock);
    let own = ours.add("c1");
    assert_eq!(used(&etcd, "net"), holdings([("c1", &own[..])]));
}

/// An ADD of ours that has queued in for the lock, got it, and is held up before it takes an address.
struct InTurn {
    add: Option<Child>,
    may_go: Arc<AtomicBool>,
    /// The key of the lock.
    lock: String,
    _relay: Relay,
    ours: Ours,
}

impl InTurn {
    fn new(etcd: &Etcd) -> Self {
        let lock = format!("{}/lock", prefix("net"));
        let requests = etcd.requests();
        let foreign = requests.grant(600).unwrap();
        assert!(requests.create(&lock, &foreign.to_string(), foreign).unwrap());
        let may_go = Arc::new(AtomicBool::new(false));
        let (key, opened) = (lock.clone(), may_go.clone());
        let relay = Relay::gated(&etcd.endpoint(), move |_| {
            // With a lease of its own it asks for the lock, and once it has it, for an address.
            let is_held_up = || match requests.get(&key).unwrap() {
                Some(found) if found.value == foreign.to_string() => {
                    requests.leases().unwrap().len() > 1
                }
                found => found.is_some(),
            };
            while !opened.load(Ordering::SeqCst) && is_held_up() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let ours = Ours::alone(&relay.endpoint(), "cni-ipam-etcd", &both());
        let add = Some(ours.start("ADD", "ours"));
        until("it has a lease of its own", || requests.leases().unwrap().len() > 1);
        requests.revoke(foreign).unwrap();
        until("it has the lock", || etcd.get(&lock).is_some());
        Self { add, may_go, lock, _relay: relay, ours }
    }

    /// Lets the ADD go on to its end.
    fn end(&mut self) -> Vec<IpAddr> {
        self.may_go.store(true, Ordering::SeqCst);
        given(wait(self.add.take().unwrap()))
    }
}

#[test]
fn an_old_add_waits_while_ours_has_the_lock() {
    let etcd = Etcd::start();
    let mut ours = InTurn::new(&etcd);
    let old = Old::cni_ipam_etcd(&etcd, "net", &both()).pause(Duration::from_millis(20));
    let mut old = old.add("old");
    let refused = Done::Refused(ours.lock.clone());
    assert_eq!(old.nth(2), Some(refused.clone()));
    let lease: i64 = etcd.get(&ours.lock).unwrap().parse().unwrap();
    let told = etcd.etcdctl(&["lease", "timetolive", "--keys", &format!("{lease:x}")]);
    assert!(told.contains("granted with TTL(10s)") && told.contains(&ours.lock), "{told}");
    assert_eq!(old.nth(1), Some(refused));

    let own = ours.end();
    let theirs = old.run().unwrap();
    let all = [("ours", &own[..]), ("old", &theirs)];
    assert_eq!(used(&etcd, "net"), holdings(all));
    assert_eq!(etcd.get(&ours.lock), None);
    assert_eq!(ours.ours.check("ours", &own).success(), Value::Null);
}

#[test]
fn ours_takes_another_turn_when_an_old_one_ends_its_own() {
    let etcd = Etcd::start();
    let mut ours = InTurn::new(&etcd);
    // So does one that goes on without the lock: whatever lease the key names, it revokes.
    let old = Old::cni_ipam_etcd(&etcd, "net", &both()).patience(Duration::ZERO);
    let theirs = old.add("old").run().unwrap();
    assert_eq!(etcd.get(&ours.lock), None);
    let own = ours.end();
    assert_eq!(used(&etcd, "net"), holdings([("ours", &own[..]), ("old", &theirs)]));
    assert_eq!(etcd.get(&ours.lock), None);
}

#[test]
fn the_old_plugin_releases_what_ours_gave() {
    let etcd = Etcd::start();
    let old = Old::cni_ipam_etcd(&etcd, "net", &both());
    for ours in kinds(&etcd, &both()) {
        let own = ours.add("c1");
        assert_eq!(used(&etcd, "net"), holdings([("c1", &own[..])]));
        old.del("c1").run().unwrap();
        assert_eq!(used(&etcd, "net"), BTreeMap::new());
        assert_eq!(ours.check("c1", &own).failure().0, 104);

        // Given to another, they are not ours to release any more.
        let texts: Vec<String> = own.iter().map(ToString::to_string).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(old.add_requesting("c2", &texts).run().unwrap(), own);
        let again = ours.add("c1");
        let all = [("c1", &again[..]), ("c2", &own)];
        assert_eq!(used(&etcd, "net"), holdings(all));
        ours.del("c1");
        assert_eq!(used(&etcd, "net"), holdings([("c2", &own[..])]));
        old.del("c2").run().unwrap();
    }
}

#[test]
fn ours_releases_what_the_old_plugin_gave() {
    let etcd = Etcd::start();
    let old = Old::cni_ipam_etcd(&etcd, "net", &both());
    for ours in kinds(&etcd, &both()) {
        let first = old.add("c1").run().unwrap();
        let second = old.add("c2").run().unwrap();
        assert_eq!(ours.check("c1", &first).success(), Value::Null);
        assert_eq!(ours.check("c1", &second).failure().0, 104);
        ours.del("c1");
        assert_eq!(used(&etcd, "net"), holdings([("c2", &second[..])]));
        ours.del("c1");
        ours.del("c2");
        assert_eq!(used(&etcd, "net"), BTreeMap::new());
    }
}

#[test]
fn each_goes_on_where_the_other_has_stopped() {
    let etcd = Etcd::start();
    let ranges = json!([[{"subnet": "10.1.2.0/29"}]]);
    let old = Old::cni_ipam_etcd(&etcd, "net", &ranges);
    let plain = |addresses: Vec<IpAddr>| addresses[0].to_string();
    assert_eq!(plain(old.add("c1").run().unwrap()), "10.1.2.2");
    let document = etcd.get(&prefix("net")).unwrap();
    let ours = preset(&etcd, &ranges);
    assert_eq!(plain(ours.add("c2")), "10.1.2.3");
    assert_eq!(etcd.get(&prefix("net")), Some(document));
    // Back again, with one of each gone.
    old.del("c1").run().unwrap();
    old.del("c2").run().unwrap();
    assert_eq!(plain(old.add("c3").run().unwrap()), "10.1.2.4");
    assert_eq!(plain(old.add("c4").run().unwrap()), "10.1.2.5");
    assert_eq!(plain(old.add("c5").run().unwrap()), "10.1.2.6");
    assert_eq!(plain(old.add("c6").run().unwrap()), "10.1.2.2");
    assert_eq!(plain(old.add("c7").run().unwrap()), "10.1.2.3");
    let full =
        "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.6";
    assert_eq!(old.add("c8").run(), Err(full.to_owned()));
    // And forth: what this node remembers of c2 has become c7's.
    let (code, text) = ours.call("ADD", "c2").failure();
    assert_eq!(code, 100, "{text}");
    ours.del("c2");
    assert_eq!(used(&etcd, "net").len(), 5);
    ours.del("c3");
    assert_eq!(plain(ours.add("c2")), "10.1.2.4");
}
