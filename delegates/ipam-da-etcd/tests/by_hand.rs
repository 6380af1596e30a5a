//! What people do with the books: reading them, by the program and by etcdctl, and letting go.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::addresses;
use serde_json::{Value, json};

use common::Node;
use common::store::{books, fill, holdings, lease_key, owner_key, roomy, usable};

const NET: &str = "/ipam-delegated/networks/net/";

fn key(address: &str) -> String {
    lease_key("net", address.parse().unwrap())
}

#[test]
fn people_read_and_release_thousands_of_leases() {
    const MANY: u32 = 2_345;
    let etcd = roomy();
    let all = usable("10.1.0.0", MANY);
    fill(&etcd, "net", &all);
    fill(&etcd, "other", &all[..10]);
    let node = Node::of(&etcd);
    let own = node.address("own");
    let listed = node.listed();
    assert_eq!(listed.len(), all.len() + 1);
    let expected = all.iter().map(|a| (a.to_string(), format!("fill-{a}")));
    assert!(expected.eq(listed.iter().filter(|(address, _)| *address != own).cloned()));
    let table = node.told(&["list"]);
    assert_eq!(table.lines().count(), all.len() + 2);
    let pools = node.typed(&["pools", "--json"]).success();
    assert_eq!((&pools[0]["held"], &pools[0]["size"]), (&json!(MANY + 1), &json!(65_533)));
    let who = node.typed(&["who", "10.1.8.8", "--json"]).success();
    assert_eq!(
        (&who[0]["containerID"], &who[0]["node"]),
        (&json!("fill-10.1.8.8"), &json!("filler"))
    );
    let nobody = node.typed(&["who", "10.1.200.1", "--json"]).success();
    assert_eq!(nobody, json!([]));

    let count = || etcd.keys(&format!("{NET}leases/")).len();
    for words in [&["release", "10.1.8.8"][..], &["release", "--node", "filler"]] {
        let text = node.told(words);
        assert!(text.ends_with("nothing was released; add --yes to do it\n"), "{text}");
        assert_eq!(count(), all.len() + 1);
    }
    let text = node.told(&["release", "10.1.8.8", "--yes"]);
    assert!(text.ends_with("released\n"), "{text}");
    assert_eq!(etcd.get(&key("10.1.8.8")), None);
    assert_eq!(etcd.get(&owner_key("net", "filler", "fill-10.1.8.8")), None);
    assert_eq!(count(), all.len());
    let rows = node.typed(&["release", "--node", "filler", "--yes", "--json"]).success();
    assert_eq!(rows.as_array().unwrap().len(), all.len() - 1);
    assert_eq!(node.listed(), [(own, "own".to_owned())]);
    assert_eq!(etcd.keys(&format!("{NET}owners/")), [owner_key("net", "node-1", "own")]);
    assert_eq!(etcd.keys("/ipam-delegated/networks/other/").len(), 20);
}

#[test]
fn an_address_of_two_released_by_hand_leaves_the_other() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd).with_subnets(&["10.5.0.0/24", "fd05::/64"]);
    let held = node.add("c1");
    node.told(&["release", "10.5.0.2", "--yes"]);
    assert_eq!(books(&etcd), [("fd05::2".parse().unwrap(), "node-1/c1/eth0".to_owned())].into());
    assert_eq!(node.check("c1", &held).failure().0, 104);
    let again = node.add("c1");
    assert_eq!(addresses(&again)[1], "fd05::2");
    node.del_known("c1", &held).success();
    node.del_known("c1", &again).success();
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn a_release_leaves_what_another_has_of_its_owner_by_now() {
    let etcd = Etcd::start();
    let node = Node::of(&etcd).with_subnets(&["10.5.0.0/24", "fd05::/64"]);
    node.add("c1");
    // Somebody deletes a key by hand, and another container gets the address.
    assert!(etcd.del(&key("fd05::2")));
    let other = Node::of(&etcd).named("node-2").with_subnets(&["fd05::/64"]);
    assert_eq!(other.with_in_pools("strategy", "lowest").address("c2"), "fd05::2");
    let theirs = etcd.get(&key("fd05::2"));
    node.told(&["release", "10.5.0.2", "--yes"]);
    assert_eq!(etcd.get(&key("10.5.0.2")), None);
    assert_eq!(etcd.get(&key("fd05::2")), theirs);
}

#[test]
fn etcdctl_shows_who_holds_what() {
    let etcd = Etcd::start();
    let mut node = Node::of(&etcd).with_subnets(&["10.5.0.0/24", "fd05::/64"]);
    node.pools[0]["name"] = "blue".into();
    node.add("c1");
    // One address: 10.5.0.2 in hexadecimal.
    let lease = etcd.etcdctl(&["get", "--print-value-only", &format!("{NET}leases/4/0a050002")]);
    let lease: Value = serde_json::from_str(&lease).unwrap();
    for (member, value) in [
        ("network", json!("net")),
        ("node", json!("node-1")),
        ("container", json!("c1")),
        ("ifname", json!("eth0")),
        ("generation", json!(1)),
        ("leases", json!(2)),
        ("address", json!("10.5.0.2/24")),
        ("gateway", json!("10.5.0.1")),
        ("pool", json!("blue")),
    ] {
        assert_eq!(lease[member], value, "{member}");
    }
    assert!(lease["taken"].as_u64() > Some(1_600_000_000_000) && lease["confirmed"].is_u64());
    // All of a container, of a node, and how many there are.
    let owner =
        etcd.etcdctl(&["get", "--print-value-only", &format!("{NET}owners/node-1/c1/eth0")]);
    let owner: Value = serde_json::from_str(&owner).unwrap();
    assert_eq!(owner["leases"][1]["address"], "fd05::2/64");
    let of_node =
        etcd.etcdctl(&["get", "--prefix", "--keys-only", &format!("{NET}owners/node-1/")]);
    assert_eq!(of_node.trim(), format!("{NET}owners/node-1/c1/eth0"));
    let count = ["get", "--prefix", "--keys-only", "--limit=1", "--write-out=fields"];
    let count = etcd.etcdctl(&[&count[..], &[&format!("{NET}leases/4/")]].concat());
    assert!(count.lines().any(|line| line == "\"Count\" : 1"), "{count}");
    // A subnet is a range of keys.
    let range = [
        "get",
        "--keys-only",
        &format!("{NET}leases/4/0a050000"),
        &format!("{NET}leases/4/0a050100"),
    ];
    assert_eq!(etcd.etcdctl(&range).trim(), format!("{NET}leases/4/0a050002"));
    // Written again it is of the next generation, and was taken when it was.
    node.add("c1");
    let again: Value = serde_json::from_str(&etcd.get(&key("10.5.0.2")).unwrap()).unwrap();
    assert_eq!((&again["generation"], &again["taken"]), (&json!(2), &lease["taken"]));
}
