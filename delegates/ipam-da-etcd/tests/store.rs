//! What others leave under the prefix, what other nodes and people do there, and reading it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::IpAddr;
use std::time::Duration;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, given, subnets};
use serde_json::json;

use common::Node;
use common::store::{age, books, holdings, lease_key, ours, owner_key};

const NET: &str = "/ipam-delegated/networks/net/";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(address: &str) -> String {
    lease_key("net", ip(address))
}

/// ADD of new containers until the pool is full.
#[track_caller]
fn fill_up(node: &Node) -> Vec<String> {
    let mut given = Vec::new();
    for number in 0..300 {
        let outcome = node.call("ADD", &format!("fill{number}"));
        if outcome.exit != Some(0) {
            assert_eq!(outcome.failure().0, 100);
            return given;
        }
        given.extend(addresses(&outcome.success()));
    }
    panic!("{} addresses given, and still not full", given.len());
}

/// A lease of another node, as the program writes it, without the key of its owner.
fn lease_of_another(address: &str) -> String {
    json!({
        "network": "net", "node": "another", "container": "theirs", "ifname": "eth0", "generation": 1,
        "confirmed": 0, "leases": 1, "address": format!("{address}/29"), "taken": 0,
    })
    .to_string()
}

/// What is not ours below the prefix, by key.
fn foreign() -> Vec<(String, String)> {
    vec![
        (key("10.5.0.2"), "garbage".to_owned()),
        (key("10.5.0.3"), lease_of_another("10.5.0.3")),
        (key("10.5.0.4"), lease_of_another("10.5.0.99")),
        (key("10.5.0.5"), String::new()),
        (format!("{NET}leases/4/0A050006"), "not hexadecimal as we write it".to_owned()),
        (format!("{NET}leases/5/0a050006"), "a family that is none".to_owned()),
        (format!("{NET}leases/10.5.0.6"), lease_of_another("10.5.0.6")),
        (format!("{NET}owners/node-1/spoilt/eth0"), "garbage".to_owned()),
        (format!("{NET}something"), "else".to_owned()),
        ("/ipam-delegated-not/ours".to_owned(), "x".to_owned()),
    ]
}

#[track_caller]
fn assert_untouched(etcd: &Etcd) {
    for (key, value) in foreign() {
        assert_eq!(etcd.get(&key).as_ref(), Some(&value), "{key}");
    }
}

#[test]
fn keys_that_are_not_ours_count_as_taken_and_are_left_alone() {
    let etcd = Etcd::start();
    for (key, value) in foreign() {
        etcd.put(&key, &value);
    }
    for strategy in ["round-robin", "lowest", "random"] {
        let node = Node::of(&etcd).with_subnets(&["10.5.0.0/29"]);
        let node = node.with_in_pools("strategy", strategy);
        assert_eq!(fill_up(&node), ["10.5.0.6"], "{strategy}");
        assert_untouched(&etcd);
        node.del("fill0");
        node.gc(&[]).success();
        assert_untouched(&etcd);
    }
    age_nothing_of(&etcd);
}

/// GC of the node that a lease without an owner's key names goes by owners, and leaves it.
#[track_caller]
fn age_nothing_of(etcd: &Etcd) {
    let another = Node::of(etcd).named("another");
    another.gc(&[]).success();
    assert_untouched(etcd);
}

#[test]
fn keys_that_are_not_ours_are_warned_about_by_name() {
    let etcd = Etcd::start();
    for (key, value) in foreign() {
        etcd.put(&key, &value);
    }
    let node = Node::of(&etcd).with_subnets(&["10.5.0.0/29"]);
    let warning = |key: &str| format!("foreign key {key}: it counts as taken");
    let list = node.typed(&["list", "--json"]);
    let leases = format!("{NET}leases/");
    for (key, value) in foreign() {
        let strange = key.starts_with(&leases) && value != lease_of_another("10.5.0.3");
        assert_eq!(list.stderr.contains(&warning(&key)), strange, "{key}: {}", list.stderr);
    }
    let rows = list.success();
    let rows = rows.as_array().unwrap();
    let states = rows.iter().map(|row| (&row["address"], &row["state"])).collect::<Vec<_>>();
    let expected = [
        ("10.5.0.2", "unreadable"),
        ("10.5.0.3", "held"),
        ("10.5.0.4", "unreadable"),
        ("10.5.0.5", "unreadable"),
    ];
    assert_eq!(json!(states), json!(expected));
    for row in rows {
        let its_key = key(row["address"].as_str().unwrap());
        let named = row["note"].as_str().is_some_and(|note| note.contains(&its_key));
        assert_eq!(named, row["state"] == "unreadable", "{row}");
    }
    let gc = node.gc(&[]);
    assert!(gc.stderr.contains(&warning(&owner_key("net", "node-1", "spoilt"))), "{gc:?}");
    gc.success();
    assert_untouched(&etcd);
}

#[test]
fn a_requested_address_is_not_taken_from_what_is_not_ours() {
    let etcd = Etcd::start();
    for (key, value) in foreign() {
        etcd.put(&key, &value);
    }
    for takeover in [false, true] {
        for (address, holder) in [
            ("10.5.0.2", key("10.5.0.2")),
            ("10.5.0.4", key("10.5.0.4")),
            ("10.5.0.5", key("10.5.0.5")),
        ] {
            let node = Node::of(&etcd).with_subnets(&["10.5.0.0/29"]);
            let node = node.with_in_pools("requested-ip", address).taking_over(takeover);
            let (code, text) = node.call("ADD", "c1").failure();
            assert_eq!(code, 102, "{text}");
            assert!(text.contains(&holder), "{text}");
            assert_untouched(&etcd);
        }
    }
    let node =
        Node::of(&etcd).with_subnets(&["10.5.0.0/29"]).with_in_pools("requested-ip", "10.5.0.3");
    let (code, text) = node.call("ADD", "c1").failure();
    assert_eq!(code, 102, "{text}");
    assert!(text.contains("theirs/eth0 of node another"), "{text}");
    assert!(!ours(&etcd).keys().any(|key| key.contains("/c1/")));
}

#[test]
fn an_owners_key_that_is_not_ours_is_named_by_every_verb() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd).with_subnets(&["10.5.0.0/29", "fd05::/64"]);
    let result = node.add("c1");
    let owner = owner_key("net", "node-1", "c1");
    for garbage in ["garbage", "{}", "[1]"] {
        etcd.put(&owner, garbage);
        let before = ours(&etcd);
        for (verb, prev_result) in [
            ("ADD", json!({})),
            ("CHECK", given(&result)),
            ("CHECK", json!({"ips": result["ips"]})),
            ("DEL", given(&result)),
            ("DEL", json!({})),
        ] {
            let (code, text) = node.call_with(verb, "c1", &prev_result).failure();
            assert_eq!(code, 103, "{verb}: {text}");
            assert!(text.contains(&format!("invalid value of the key {owner}")), "{text}");
            assert!(text.contains("etcdctl get"), "{text}");
            assert_eq!(ours(&etcd), before, "{verb}");
        }
        node.call("STATUS", "").success();
        node.add("c2");
        node.del("c2");
    }
    // What the advice says helps.
    etcd.del(&owner);
    node.told(&["release", "--owner", "c1", "--yes"]);
    assert_eq!(holdings(&etcd), [""; 0]);
}

/// Two nodes of one cluster.
fn two(etcd: &Etcd) -> [Node; 2] {
    ["node-1", "node-2"].map(|name| Node::of(etcd).named(name).with_subnets(&["10.5.0.0/24"]))
}

#[test]
fn a_node_may_take_an_address_over_from_another() {
    let etcd = Etcd::start();
    let [mut first, mut second] = two(&etcd);
    first.pools = subnets(&["10.5.0.0/24", "fd05::/64"]);
    let held = first.add("vm");
    second.pools[0]["requested-ip"] = "10.5.0.2".into();
    let (code, text) = second.call("ADD", "vm").failure();
    assert_eq!(code, 102, "{text}");
    assert!(text.contains("it is held by vm/eth0 of node node-1"), "{text}");
    // What a pool says may be a selector's word.
    second.pools[0]["takeover"] = true.into();
    assert_eq!(second.call("ADD", "vm").failure().0, 102);
    second.ipam["takeover"] = true.into();
    let taken = second.add("vm");
    assert_eq!(addresses(&taken), ["10.5.0.2"]);
    let expected = [("10.5.0.2", "node-2/vm/eth0"), ("fd05::2", "node-1/vm/eth0")];
    let expected = expected.map(|(address, owner)| (ip(address), owner.to_owned()));
    assert_eq!(books(&etcd), expected.clone().into());
    assert_eq!(first.check("vm", &held).failure().0, 104);
    second.check("vm", &taken).success();
    // The old owner's DEL, which knows of both, frees what it still holds.
    first.del_known("vm", &held).success();
    assert_eq!(books(&etcd), [expected[0].clone()].into());
    first.del("vm");
    second.del_known("vm", &taken).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn an_owner_who_lost_everything_to_another_is_gone() {
    let etcd = Etcd::start();
    let [first, mut second] = two(&etcd);
    first.add("vm");
    second.pools[0]["requested-ip"] = "10.5.0.2".into();
    second.ipam["takeover"] = true.into();
    second.add("vm");
    assert!(etcd.keys(&format!("{NET}owners/node-1/")).is_empty());
    assert_eq!(first.address("vm"), "10.5.0.3");
    assert_eq!(books(&etcd).len(), 2);
}

#[test]
fn a_lease_deleted_by_hand_and_given_to_another_is_not_freed_by_its_old_owner() {
    for known in [true, false] {
        let etcd = Etcd::start();
        let [first, mut second] = two(&etcd);
        let held = first.add("old");
        assert!(etcd.del(&key("10.5.0.2")));
        second.pools[0]["requested-ip"] = "10.5.0.2".into();
        let new = second.add("new");
        assert_eq!(first.check("old", &held).failure().0, 104);
        let hint = if known { given(&held) } else { json!({}) };
        first.call_with("DEL", "old", &hint).success();
        assert_eq!(books(&etcd), [(ip("10.5.0.2"), "node-2/new/eth0".to_owned())].into());
        second.check("new", &new).success();
        // The other way round: an ADD of the old owner gets another address.
        assert_eq!(first.address("old"), "10.5.0.3");
        assert_eq!(books(&etcd).len(), 2);
    }
}

#[test]
fn an_add_of_an_owner_whose_lease_was_deleted_or_given_away_gets_one_that_is_free() {
    let etcd = Etcd::start();
    let [first, mut second] = two(&etcd);
    first.add("c1");
    etcd.del(&key("10.5.0.2"));
    second.pools[0]["requested-ip"] = "10.5.0.2".into();
    second.add("c2");
    let again = first.address("c1");
    assert_ne!(again, "10.5.0.2");
    assert_eq!(books(&etcd)[&ip(&again)], "node-1/c1/eth0");
    assert_eq!(books(&etcd)[&ip("10.5.0.2")], "node-2/c2/eth0");
    // Deleted, and free: it is this owner's again, or another is.
    etcd.del(&key(&again));
    let third = first.address("c1");
    assert_eq!(books(&etcd)[&ip(&third)], "node-1/c1/eth0");
    assert_eq!(books(&etcd).len(), 2);
}

#[test]
fn an_owners_key_deleted_by_hand_leaves_its_addresses_taken() {
    let etcd = Etcd::start();
    let [first, mut second] = two(&etcd);
    first.add("c1");
    assert!(etcd.del(&owner_key("net", "node-1", "c1")));
    first.call_with("DEL", "c1", &json!({})).success();
    assert!(etcd.get(&key("10.5.0.2")).is_some());
    assert_eq!(second.address("c2"), "10.5.0.3");
    assert_eq!(first.address("c1"), "10.5.0.4");
    let text = first.told(&["release", "10.5.0.2", "--yes"]);
    assert!(text.contains("10.5.0.2") && text.ends_with("released\n"), "{text}");
    assert_eq!(books(&etcd).len(), 2);
    // Whoever names the address finds it.
    assert!(etcd.del(&owner_key("net", "node-2", "c2")));
    second.pools[0]["requested-ip"] = "10.5.0.3".into();
    let held = second.add("c2");
    assert_eq!(addresses(&held), ["10.5.0.3"]);
    assert!(etcd.del(&owner_key("net", "node-2", "c2")));
    second.call_with("DEL", "c2", &given(&held)).success();
    assert!(etcd.get(&key("10.5.0.3")).is_none());
}

#[test]
fn a_pool_that_was_renamed_keeps_its_leases() {
    let etcd = Etcd::start();
    let [mut node, _] = two(&etcd);
    node.pools = json!([{"name": "red", "ranges": [{"subnet": "10.5.0.0/28"}]}]);
    let held = node.add("c1");
    node.pools[0]["name"] = "blue".into();
    assert_eq!(addresses(&node.add("c1")), addresses(&held));
    node.pools[0]["requested-ip"] = "10.5.0.2".into();
    let asked = node.add("c1");
    assert_eq!(addresses(&asked), addresses(&held));
    assert_eq!(asked["leases"][0]["pool"], "blue");
    assert_eq!(books(&etcd).len(), 1);
}

#[test]
fn gc_is_about_its_own_node_and_network() {
    let etcd = Etcd::start();
    let [first, second] = two(&etcd);
    let named = |name: &str, container: &str, verb: &str| {
        let mut network = first.network();
        network["name"] = name.into();
        network["cni.dev/valid-attachments"] = json!([]);
        ipam_testkit::world::wait(ipam_testkit::world::start(
            first.command(verb, container),
            &network,
        ))
        .success()
    };
    first.add("kept");
    first.add("stale");
    second.add("stale");
    named("other", "stale", "ADD");
    named("netx", "stale", "ADD");
    // Young leases may be of attachments that the list does not know yet.
    first.gc(&[]).success();
    assert_eq!(books_of(&etcd).len(), 5);
    age(&etcd, Duration::from_secs(3600));
    first.gc(&["kept"]).success();
    let stay = ["net node-1/kept", "net node-2/stale", "netx node-1/stale", "other node-1/stale"];
    assert_eq!(books_of(&etcd), stay);
    named("other", "", "GC");
    assert_eq!(books_of(&etcd), stay[..3]);
    second.gc(&["stale"]).success();
    assert_eq!(books_of(&etcd), stay[..3]);
    second.gc(&["kept"]).success();
    assert_eq!(books_of(&etcd), [stay[0], stay[2]]);
}

/// The owners of all networks.
fn books_of(etcd: &Etcd) -> Vec<String> {
    let owner = |key: String| {
        let key = key.strip_prefix("/ipam-delegated/networks/")?.strip_suffix("/eth0")?.to_owned();
        let (network, owner) = key.split_once("/owners/")?;
        Some(format!("{network} {owner}"))
    };
    etcd.keys("/ipam-delegated/").into_iter().filter_map(owner).collect()
}

#[test]
fn names_with_strange_characters_have_keys_of_their_own() {
    let etcd = Etcd::start();
    let [first, second] = ["rack/1", "rack%2f1"].map(|name| Node::of(&etcd).named(name));
    let results = [first.add("c1"), second.add("c1")];
    assert_ne!(addresses(&results[0]), addresses(&results[1]));
    let owners = ["rack%252f1", "rack%2f1"].map(|node| owner_key("net", node, "c1"));
    assert_eq!(etcd.keys(&format!("{NET}owners/")), owners);
    age(&etcd, Duration::from_secs(3600));
    first.gc(&[]).success();
    assert_eq!(etcd.keys(&format!("{NET}owners/")), owners[..1]);
    second.del_known("c1", &results[1]).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn stores_below_other_prefixes_do_not_meet() {
    let etcd = Etcd::start();
    let nodes = ["/a", "/a/", "/ab", "b"].map(|prefix| Node::of(&etcd).with("prefix", prefix));
    let given = nodes.each_ref().map(|node| node.address("c1"));
    assert_eq!(given, ["10.1.0.2"; 4]);
    assert_eq!(holdings(&etcd).len(), 6);
    etcd.put("/a/networks/net/leases/4/0a010003", "garbage");
    assert_eq!(nodes[2].address("c2"), "10.1.0.3");
    assert_eq!(nodes[1].address("c2"), "10.1.0.4");
}
