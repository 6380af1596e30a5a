//! Tokens that may do no more than the replaced plugins needed: everything works without our own keys, and goes on
//! with them once they are allowed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, subnets};
use serde_json::{Value, json};

use common::layouts::{BOTH, HOUR, Old, age_notes, all, assert_books, on, told};
use common::rights::Rights::{All, None, Theirs, TheirsAndRead};
use common::rights::{POOR, each, forget_refusal, grant_all, guarded, node_of, revoke_all};

#[track_caller]
fn assert_no_key_of_ours(old: Old, etcd: &Etcd) {
    assert_eq!(etcd.keys(old.ours()), [""; 0], "{old:?}");
}

#[test]
fn a_token_for_all_below_the_old_prefix_has_the_index() {
    each(&[All], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        node.call("STATUS", "").success();
        let result = on(&node).add("c1");
        on(&node).ifname("net1").add("c1");
        assert_books(old, etcd, &["10.1.0.2 node-1/net/c1/eth0", "10.1.0.3 node-1/net/c1/net1"]);
        node.check("c1", &result).success();
        node.gc(&["c1"]).success();
        on(&node).del_known("c1", &result);
        on(&node).ifname("net1").del("c1");
        assert_books(old, etcd, &[]);
        assert_eq!(node.listed(), []);
        assert!(!node.world.path("state/etcd/owners").exists());
    });
}

#[test]
fn a_token_of_the_old_plugin_gives_checks_and_releases() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        node.call("STATUS", "").success();
        let result = on(&node).add("c1");
        assert_eq!(addresses(&result), ["10.1.0.2"]);
        for _ in 0..2 {
            let again = on(&node).add("c1");
            assert_eq!(
                (addresses(&again)[0].as_str(), &again["leases"][0]["kept"]),
                ("10.1.0.2", &json!(true))
            );
        }
        let result = on(&node).add("c1");
        let second = on(&node).ifname("net1").add("c1");
        assert_eq!(addresses(&second), ["10.1.0.3"]);
        assert_eq!(on(&node).address("c2"), "10.1.0.4");
        assert_books(old, etcd, &["10.1.0.2 c1", "10.1.0.3 c1", "10.1.0.4 c2"]);
        node.check("c1", &result).success();
        on(&node).check_of("c1", &["10.1.0.2"]).success();
        assert_eq!(on(&node).check_of("c1", &["10.1.0.4"]).failure().0, 104, "{old:?}");
        assert_eq!(
            on(&node).check_of("c1", &["10.1.0.3"]).failure().0,
            104,
            "{old:?}: the other's"
        );
        on(&node).del_known("c1", &result);
        on(&node).del_known("c1", &result);
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.3 c1", "10.1.0.4 c2"]);
        on(&node).ifname("net1").check_of("c1", &["10.1.0.3"]).success();
        on(&node).ifname("net1").del("c1");
        on(&node).ifname("net1").del("c1");
        on(&node).del("c2");
        assert_books(old, etcd, &[]);
        node.call("STATUS", "").success();
        assert_no_key_of_ours(old, etcd);
        let notes = node.world.path("state/etcd/owners");
        assert_eq!(ipam_testkit::world::names(&notes), [""; 0], "{old:?}");
    });
}

#[test]
fn del_of_one_interface_leaves_the_other_whatever_is_known() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        for [first, second] in [["eth0", "net1"], ["net1", "eth0"]] {
            on(&node).ifname(first).add("c1");
            let kept = addresses(&on(&node).ifname(second).add("c1"));
            on(&node).ifname(first).del("c1");
            on(&node).ifname(first).del("c1");
            let rest: Vec<String> = kept.iter().map(|address| format!("{address} c1")).collect();
            assert_eq!(told(&old.books(etcd)), rest, "{old:?}");
            assert_eq!(addresses(&on(&node).ifname(second).add("c1")), kept, "{old:?}");
            on(&node).ifname(second).del("c1");
            assert_books(old, etcd, &[]);
        }
    });
}

#[test]
fn networks_side_by_side_leave_each_others_addresses() {
    let old = Old::HostEtcd;
    let etcd = guarded(&[(old, Theirs)]);
    let mut node = node_of(old, &etcd, Theirs);
    on(&node).network("a").add("c1");
    on(&node).network("b").add("c1");
    assert_books(old, &etcd, &["10.1.0.2 c1", "10.1.0.3 c1"]);
    on(&node).network("a").del("c1");
    on(&node).network("a").del("c1");
    assert_books(old, &etcd, &["10.1.0.3 c1"]);
    node.pools = subnets(&["10.0.0.0/8"]);
    on(&node).network("c").del("c1");
    assert_books(old, &etcd, &["10.1.0.3 c1"]);
    on(&node).network("b").del("c1");
    assert_books(old, &etcd, &[]);
}

#[test]
fn people_see_and_release_what_the_container_ids_tell() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        on(&node).add("c1");
        on(&node).ifname("net1").add("c1");
        old.give(etcd, "10.1.0.9", "theirs");
        let listed = [("10.1.0.2", "c1"), ("10.1.0.3", "c1"), ("10.1.0.9", "theirs")];
        assert_eq!(node.listed(), listed.map(|(a, c)| (a.to_owned(), c.to_owned())));
        let who = node.typed(&["who", "10.1.0.9", "--json"]).success();
        assert_eq!(who[0]["containerID"], "theirs");
        let pools = node.typed(&["pools", "--json"]).success();
        assert_eq!(pools[0]["held"], 3);
        node.told(&["release", "10.1.0.2", "--yes"]);
        assert_books(old, etcd, &["10.1.0.3 c1", "10.1.0.9 theirs"]);
        // The note of it is worth nothing.
        assert_eq!(on(&node).address("c1"), "10.1.0.4");
        node.told(&["release", "--owner", "c1", "--yes"]);
        assert_books(old, etcd, &["10.1.0.9 theirs"]);
    });
}

#[test]
fn what_was_given_without_the_index_goes_on_with_it() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        let names = ["again", "known", "unknown", "gc"];
        let results = names.map(|name| on(&node).add(name));
        on(&node).ifname("net1").add("again");
        grant_all(etcd, old, rights);
        // The refusal counts for a while.
        on(&node).add("early");
        assert_no_key_of_ours(old, etcd);
        forget_refusal(&node);
        node.call("STATUS", "").success();
        for (name, result) in names.iter().zip(&results) {
            node.check(name, result).success();
        }
        let again = on(&node).add("again");
        assert_eq!(addresses(&again), addresses(&results[0]), "{old:?}");
        assert_books(
            old,
            etcd,
            &[
                "10.1.0.2 node-1/net/again/eth0",
                "10.1.0.3 known",
                "10.1.0.4 unknown",
                "10.1.0.5 gc",
                "10.1.0.6 again",
                "10.1.0.7 early",
            ],
        );
        assert_eq!(on(&node).ifname("net1").address("again"), "10.1.0.6", "{old:?}");
        on(&node).del_known("known", &results[1]);
        on(&node).del("unknown");
        age_notes(&node, HOUR);
        node.gc(&["early"]).success();
        let rest =
            ["10.1.0.2 node-1/net/again/eth0", "10.1.0.6 node-1/net/again/net1", "10.1.0.7 early"];
        assert_books(old, etcd, &rest);
        on(&node).add("new");
        node.call("STATUS", "").success();
        on(&node).del("again");
        on(&node).ifname("net1").del("again");
        on(&node).del("new");
        on(&node).del("early");
        assert_books(old, etcd, &[]);
        assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0], "{old:?}");
        revoke_all(etcd, old, rights);
    });
}

#[test]
fn what_was_given_with_the_index_goes_on_without_it() {
    each(&[Theirs, TheirsAndRead], |old, etcd, rights| {
        grant_all(etcd, old, rights);
        let node = node_of(old, etcd, rights);
        let names = ["again", "known", "unknown"];
        let results = names.map(|name| on(&node).add(name));
        revoke_all(etcd, old, rights);
        let restored = match rights {
            TheirsAndRead => vec![old.ours()],
            _ => vec![],
        };
        for key in restored {
            let role = format!("{}-{rights:?}", old.name());
            etcd.etcdctl(&["role", "grant-permission", "--prefix=true", &role, "read", key]);
        }
        node.check("known", &results[1]).success();
        on(&node).del_known("known", &results[1]);
        on(&node).del("unknown");
        assert_eq!(etcd.keys(old.leases()), [old.lease("10.1.0.2")], "{old:?} {rights:?}");
        // Nobody tells what it had but the container id: another address, or the same where reading is allowed.
        let again = on(&node).address("again");
        on(&node).del("again");
        assert_eq!(etcd.keys(old.leases()), [""; 0], "{old:?} {rights:?} {again}");
        // Once it is allowed again, what is left of the index is in nobody's way.
        grant_all(etcd, old, rights);
        forget_refusal(&node);
        for name in names {
            on(&node).add(name);
            on(&node).del(name);
        }
        assert_books(old, etcd, &[]);
        assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0], "{old:?}");
        revoke_all(etcd, old, rights);
    });
}

#[test]
fn the_old_lock_is_waited_for_and_queued_for() {
    each(&[All, Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        on(&node).add("warm");
        let lock = match old {
            Old::CniIpamEtcd => "/etcd-cni/networks/net/lock",
            Old::HostEtcd => "/ipam/lock/1234",
        };
        for wait in [50, 900] {
            etcd.put(lock, "1234");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(wait));
                    etcd.del(lock);
                });
                // A DEL has no need of it.
                on(&node).del("c1");
                on(&node).add("c1");
            });
        }
        assert_eq!(old.books(etcd).len(), 2, "{old:?} {rights:?}");
        let locks = etcd.keys(lock.trim_end_matches("1234"));
        assert_eq!(locks, [""; 0], "{old:?} {rights:?}");
    });
}

#[test]
fn a_token_without_rights_is_told_so_by_every_verb() {
    each(&[None], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        old.give(etcd, "10.1.0.2", "c1");
        let before = all(etcd);
        let leases = json!({"ips": [{"address": "10.1.0.2/24"}]});
        for (verb, known, expected) in [
            ("ADD", json!({}), 103),
            ("CHECK", leases, 103),
            ("DEL", json!({}), 103),
            ("STATUS", json!({}), 50),
        ] {
            for _ in 0..2 {
                let (code, text) = on(&node).call(verb, "c1", &known).failure();
                assert_eq!(code, expected, "{old:?} {verb} {text}");
                for word in ["permission denied", "grant-permission", &etcd.url()] {
                    assert!(text.contains(word), "{old:?} {verb}: {text}");
                }
            }
        }
        for words in [&["list"][..], &["who", "10.1.0.2"], &["release", "10.1.0.2", "--yes"]] {
            let outcome = node.typed(words);
            assert_ne!(outcome.exit, Some(0), "{old:?} {outcome:?}");
            assert!(format!("{outcome:?}").contains("permission denied"), "{old:?} {outcome:?}");
        }
        assert_eq!(all(etcd), before);
        // It is not taken for a token that may have no index.
        grant_all(etcd, old, rights);
        on(&node).add("c2");
        assert_books(old, etcd, &["10.1.0.2 c1", "10.1.0.3 node-1/net/c2/eth0"]);
    });
}

#[test]
fn the_refusal_is_remembered_for_ten_minutes() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        let adds = |expected: u64, container: &str| {
            let calls = etcd.rpcs_during(|| drop(on(&node).add(container)));
            let calls: u64 =
                calls.iter().filter(|(name, _)| *name != "Authenticate").map(|(_, n)| n).sum();
            assert_eq!(calls, expected, "{old:?} {container}");
        };
        // A look that is refused, one without the index, and the claim.
        adds(3, "c1");
        adds(1, "c2");
        adds(2, "c2");
        forget_refusal(&node);
        adds(2, "c3");
        adds(1, "c4");
    });
}

#[test]
fn a_refused_request_changes_nothing_and_is_not_noted() {
    // The servers ask for a user, and the node names none.
    let etcd = guarded(&[]);
    for old in BOTH {
        let node = old.node(&etcd).with("timeout", "1s");
        let (code, text) = on(&node).call("ADD", "c1", &json!({})).failure();
        assert_eq!(code, 103, "{text}");
        assert!(text.contains("user name is empty"), "{text}");
        assert_eq!(etcd.keys(""), [""; 0]);
        let memory: Value = fs::read(node.memory())
            .map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
        assert_eq!(memory[""]["unindexed"], Value::Null);
    }
}

#[test]
fn who_has_the_index_and_who_has_not_respect_each_other() {
    each(&[Theirs], |old, etcd, rights| {
        grant_all(etcd, old, rights);
        let rich = node_of(old, etcd, rights);
        let held = on(&rich).add("c1");
        revoke_all(etcd, old, rights);
        let poor = node_of(old, etcd, rights).named("node-2");
        let other = on(&poor).add("c2");
        assert_ne!(addresses(&held), addresses(&other), "{old:?}");
        on(&poor).del_known("c1", &other);
        on(&poor).del("c2");
        assert_books(old, etcd, &["10.1.0.2 node-1/net/c1/eth0"]);
    });
}
