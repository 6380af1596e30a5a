//! What people, GC, CHECK and STATUS find in the old layouts, whatever somebody has changed there.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, given, subnets};
use serde_json::{Value, json};

use common::Node;
use common::layouts::{HOUR, Old, all, assert_books, assert_empty, each, on};

#[test]
fn check_believes_the_store_alone() {
    each(|old, etcd| {
        let node = old.node(etcd);
        old.give(etcd, "10.1.0.7", "c1");
        on(&node).check_of("c1", &["10.1.0.7"]).success();
        on(&node).remember("c1", &["10.1.0.7"]);
        on(&node).check_of("c1", &["10.1.0.7", "192.0.2.1"]).success();
        assert_eq!(on(&node).check_of("c2", &["10.1.0.7"]).failure().0, 104, "{old:?}");
        assert_eq!(on(&node).check_of("c1", &["10.1.0.8"]).failure().0, 104, "{old:?}");
        old.give(etcd, "10.1.0.7", "c2");
        assert_eq!(on(&node).check_of("c1", &["10.1.0.7"]).failure().0, 104, "{old:?}");
        // What we gave and the replaced plugin has given again.
        let result = on(&node).add("c3");
        node.check("c3", &result).success();
        old.give(etcd, &addresses(&result)[0], "thief");
        for known in [true, false] {
            let outcome = match known {
                true => node.check("c3", &result),
                false => on(&node).check_of("c3", &["10.1.0.2"]),
            };
            assert!(outcome.stderr.contains("which now names thief"), "{old:?} {outcome:?}");
            assert_eq!(outcome.failure().0, 104, "{old:?}");
        }
        on(&node).del_known("c3", &result);
        on(&node).del("c3");
        assert_books(old, etcd, &["10.1.0.2 thief", "10.1.0.7 c2"]);
        assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0]);
    });
}

#[test]
fn gc_releases_what_the_index_says_of_this_node_and_leaves_the_rest() {
    each(|old, etcd| {
        let [one, two] = old.nodes(etcd);
        old.give(etcd, "10.1.0.100", "gone");
        old.give(etcd, "10.1.0.101", "stale");
        on(&one).add("kept");
        on(&one).add("stale");
        on(&one).ifname("net1").add("stale");
        on(&two).add("stale");
        let all = old.books(etcd);
        one.gc(&["kept"]).success();
        assert_eq!(old.books(etcd), all, "{old:?}: young ones stay");
        old.age(etcd, HOUR);
        // The replaced plugin has given one of them again.
        old.give(etcd, "10.1.0.3", "thief");
        one.gc(&["kept"]).success();
        let rest = [
            "10.1.0.2 node-1/net/kept/eth0",
            "10.1.0.3 thief",
            "10.1.0.5 node-2/net/stale/eth0",
            "10.1.0.100 gone",
            "10.1.0.101 stale",
        ];
        assert_books(old, etcd, &rest);
    });
}

#[test]
fn gc_of_one_network_leaves_what_the_index_says_of_another() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    let node = old.node(&etcd);
    on(&node).add("stale");
    on(&node).network("other").add("stale");
    old.age(&etcd, HOUR);
    node.gc(&[]).success();
    assert_books(old, &etcd, &["10.1.0.3 node-1/other/stale/eth0"]);
}

/// A store with entries of all kinds.
fn mixed(old: Old, etcd: &Etcd) -> [Node; 2] {
    let [mut one, two] = old.nodes(etcd);
    on(&one).add("c1");
    on(&one).ifname("net1").add("c1");
    on(&two).add("c2");
    old.give(etcd, "10.1.0.7", "c1");
    old.give(etcd, "10.1.0.8", "bare");
    old.give(etcd, "10.1.0.9", "");
    old.give(etcd, "garbage", "bare");
    let pools = std::mem::replace(&mut one.pools, subnets(&["10.2.0.0/24"]));
    on(&one).network("other").add("c1");
    one.pools = pools;
    [one, two]
}

#[test]
fn people_see_all_entries_of_a_network() {
    each(|old, etcd| {
        let [one, _two] = mixed(old, etcd);
        let rows = one.typed(&["list", "--json"]).success();
        let text = |row: &Value| {
            ["address", "containerID", "ifname", "node", "state"]
                .map(|key| row[key].as_str().unwrap_or("-").to_owned())
                .join(" ")
        };
        let rows: Vec<String> = rows.as_array().unwrap().iter().map(text).collect();
        let expected = [
            "10.1.0.2 c1 eth0 node-1 held",
            "10.1.0.3 c1 net1 node-1 held",
            "10.1.0.4 c2 eth0 node-2 held",
            "10.1.0.7 c1 - - held",
            "10.1.0.8 bare - - held",
            "10.1.0.9 - - - unreadable",
        ];
        assert_eq!(rows, expected, "{old:?}");
        for (address, container) in [("10.1.0.2", "c1"), ("10.1.0.8", "bare")] {
            let who = one.typed(&["who", address, "--json"]).success();
            assert_eq!(who[0]["containerID"], container, "{old:?}");
        }
        let nobody = one.typed(&["who", "10.2.0.2", "--json"]).success();
        assert_eq!(nobody, json!([]), "{old:?}: the index says that it is another network's");
        let pools = one.typed(&["pools", "--json"]).success();
        assert_eq!((&pools[0]["held"], &pools[0]["size"]), (&json!(6), &json!(253)), "{old:?}");
    });
}

#[test]
fn people_release_by_address_owner_and_node() {
    each(|old, etcd| {
        let [one, _two] = mixed(old, etcd);
        let before = old.books(etcd);
        let release = |words: &[&str], gone: &[&str]| {
            let told = one.told(&[&["release"], words, &["--yes"]].concat());
            let rows = told.lines().filter(|line| line.starts_with("10.")).count();
            assert_eq!(rows, gone.len(), "{old:?} {words:?}: {told}");
            for address in gone {
                assert_eq!(etcd.get(&old.lease(address)), None, "{old:?} {words:?}");
            }
            old.books(etcd).len()
        };
        assert_eq!(release(&["10.1.0.9"], &["10.1.0.9"]), before.len() - 1);
        assert_eq!(release(&["--node", "node-2"], &["10.1.0.4"]), before.len() - 2);
        assert_eq!(release(&["--owner", "c1/net1"], &["10.1.0.3"]), before.len() - 3);
        assert_eq!(release(&["10.1.0.8"], &["10.1.0.8"]), before.len() - 4);
        let left = release(&["--owner", "c1"], &["10.1.0.2", "10.1.0.7"]);
        assert_eq!(left, 1, "{old:?}: that of the other network");
        assert_eq!(etcd.get(&old.lease("garbage")).unwrap(), "bare");
        let owners: Vec<String> =
            all(etcd).into_keys().filter(|key| key.contains("/owners/")).collect();
        assert_eq!(owners.len(), 1, "{old:?} {owners:?}");
    });
}

#[test]
fn keys_of_owners_deleted_by_hand_leave_what_the_container_id_tells() {
    each(|old, etcd| {
        let node = old.node(etcd);
        let result = on(&node).add("c1");
        let other = on(&node).ifname("net1").add("c1");
        assert!(etcd.del(&old.owner("node-1", "c1")));
        node.check("c1", &result).success();
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.3 node-1/net/c1/net1"]);
        etcd.etcdctl(&["del", "--prefix", old.ours()]);
        on(&node).ifname("net1").del_known("c1", &other);
        assert_empty(old, etcd);
    });
}

#[test]
fn addresses_deleted_by_hand_are_taken_off_their_owners() {
    each(|old, etcd| {
        let node = old.node(etcd).with_in_pools("strategy", "lowest");
        let result = on(&node).add("c1");
        assert!(etcd.del(&old.lease("10.1.0.2")));
        assert_eq!(node.check("c1", &result).failure().0, 104, "{old:?}");
        let other = on(&node).add("c2");
        assert_eq!(addresses(&other), ["10.1.0.2"]);
        assert_eq!(on(&node).address("c1"), "10.1.0.3", "{old:?}");
        assert_books(old, etcd, &["10.1.0.2 node-1/net/c2/eth0", "10.1.0.3 node-1/net/c1/eth0"]);
        on(&node).del_known("c1", &result);
        on(&node).del("c2");
        assert_empty(old, etcd);
    });
}

#[test]
fn an_owners_key_that_is_not_ours_is_named() {
    each(|old, etcd| {
        let node = old.node(etcd);
        let result = on(&node).add("c1");
        let key = old.owner("node-1", "c1");
        etcd.put(&key, "garbage");
        for (verb, known) in [("ADD", json!({})), ("CHECK", given(&result)), ("DEL", json!({}))] {
            let (code, text) = on(&node).call(verb, "c1", &known).failure();
            assert_eq!(code, 103, "{old:?} {verb} {text}");
            assert!(text.contains(&key), "{old:?} {text}");
        }
        // It is in no other's way.
        on(&node).ifname("net1").add("c1");
        on(&node).ifname("net1").del("c1");
        assert_eq!(etcd.get(&old.lease("10.1.0.2")).unwrap(), "c1", "{old:?}");
        etcd.del(&key);
        on(&node).del("c1");
        assert_empty(old, etcd);
    });
}

#[test]
fn what_the_replaced_plugin_releases_of_ours_is_free() {
    each(|old, etcd| {
        let node = old.node(etcd);
        for verb in ["ADD", "DEL", "DEL by the record", "CHECK", "GC"] {
            let result = on(&node).add("c1");
            on(&node).ifname("net1").add("c1");
            // It gives the container one more, and frees all.
            old.give(etcd, "10.1.0.99", "c1");
            etcd.etcdctl(&["del", "--prefix", old.leases()]);
            match verb {
                "ADD" => assert_ne!(addresses(&on(&node).add("c1")), addresses(&result), "{old:?}"),
                "DEL" => on(&node).del("c1"),
                "CHECK" => assert_eq!(node.check("c1", &result).failure().0, 104, "{old:?}"),
                "GC" => {
                    old.age(etcd, HOUR);
                    // Making them older writes them again.
                    etcd.etcdctl(&["del", "--prefix", old.leases()]);
                    node.gc(&[]).success();
                }
                _ => on(&node).del_known("c1", &result),
            }
            node.told(&["list"]);
            on(&node).del("c1");
            on(&node).ifname("net1").del("c1");
            assert_empty(old, etcd);
        }
    });
}

#[test]
fn status_of_host_etcd_warns_of_what_it_has_given_again() {
    let etcd = Etcd::start();
    let old = Old::HostEtcd;
    let node = old.node(&etcd);
    on(&node).add("c1");
    on(&node).remember("c1", &["10.1.0.2"]);
    let quiet = node.call("STATUS", "");
    assert!(!quiet.stderr.contains("WARN"), "{quiet:?}");
    old.give(&etcd, "10.1.0.2", "thief");
    etcd.put("/ipam/lock/7fffffff", "");
    let warned = node.call("STATUS", "");
    for words in ["host-etcd gave 10.1.0.2 of c1 to thief", "host-etcd still runs on this store"] {
        assert!(warned.stderr.contains(words), "{warned:?}");
    }
    warned.success();
}
