//! What people do with the books: reading them, by the program and through `ipam-delegated`, and
//! letting go.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::{addresses, members, named};
use ipam_testkit::world::World;
use serde_json::{Value, json};

use common::chains::chain;
use common::filling::{occupy, usable};
use common::store::{books, everything, holdings};
use common::{Node, PROGRAM, define, stocked};

/// A server with what two nodes and passcod hold.
fn mixed() -> (Consul, [Node; 2]) {
    let consul = stocked();
    define(&consul, "six", "fd00:1::/120");
    let one = Node::of(&consul).with_pools(&["blue", "six"]);
    let two = Node::of(&consul).with_pools(&["blue", "six"]).named("node-2");
    one.add("c1");
    two.add("c2");
    occupy(&consul, "blue", &["10.1.9.9".parse().unwrap()]);
    (consul, [one, two])
}

#[test]
fn people_see_all_that_is_held() {
    let (consul, [one, _]) = mixed();
    let before = everything(&consul);
    let rows = one.typed(&["list", "--json"]).success();
    let listed = members(&rows, &["address", "pool", "containerID", "ifname", "node", "state"]);
    let find = |start: &str| listed.iter().filter(|row| row[0].starts_with(start)).count();
    assert_eq!((find("10.1."), find("fd00:1::"), listed.len()), (3, 2, 5));
    let blue = |address: &str, container: &str, ifname: &str, node: &str| {
        [address, "blue", container, ifname, node, "held"].map(str::to_owned).to_vec()
    };
    assert_eq!(
        listed[..3],
        [
            blue("10.1.0.1", "c1", "eth0", "node-1"),
            blue("10.1.0.2", "c2", "eth0", "node-2"),
            blue("10.1.9.9", "fill-10.1.9.9", "null", "null"),
        ]
    );
    assert!(rows[0]["ageSeconds"].is_u64() || rows[0]["age"].is_u64(), "{}", rows[0]);
    let table = one.told(&["list"]);
    assert_eq!(table.lines().count(), 6, "{table}");
    let who = one.typed(&["who", "10.1.0.2", "--json"]).success();
    assert_eq!(members(&who, &["containerID", "node"]), [["c2", "node-2"]]);
    assert_eq!(one.typed(&["who", "10.1.200.1", "--json"]).success(), json!([]));
    let outcome = one.typed(&["who", "10.1.200.1"]);
    assert!(outcome.exit != Some(0), "{outcome:?}");
    let pools = one.typed(&["pools", "--json"]).success();
    assert_eq!(
        members(&pools, &["pool", "held", "size"]),
        [["blue", "3", "65534"], ["six", "2", "255"]]
    );
    let map = one.told(&["pools"]);
    assert!(map.contains("blue  10.1.0.1-10.1.255.254"), "{map}");
    let about = Command::new(PROGRAM).args(["about", "--json"]).output().unwrap();
    let about: Value = serde_json::from_slice(&about.stdout).unwrap();
    assert_eq!((&about["reach"], &about["role"]), (&json!("cluster"), &json!("allocator")));
    assert_eq!(everything(&consul), before);
}

#[test]
fn a_pool_that_is_not_asked_for_is_not_shown() {
    let (_consul, [one, _]) = mixed();
    let six = Node { pools: named(&["six"]), ..one };
    let rows = six.typed(&["list", "--json"]).success();
    assert_eq!(members(&rows, &["pool"]), [["six"], ["six"]]);
}

#[test]
fn an_address_of_two_released_by_hand_leaves_the_other() {
    let (consul, [one, _]) = mixed();
    let held = one.add("c1");
    let before = everything(&consul);
    let text = one.told(&["release", "10.1.0.1"]);
    assert!(text.ends_with("nothing was released; add --yes to do it\n"), "{text}");
    assert_eq!(everything(&consul), before);
    let text = one.told(&["release", "10.1.0.1", "--yes"]);
    assert!(text.ends_with("released\n"), "{text}");
    assert_eq!(consul.get("ipam/blue/10.1.0.1"), None);
    let owner = consul.get("ipam/.owners/net/node-1/c1/eth0").unwrap();
    let owner: Value = serde_json::from_str(&owner).unwrap();
    assert_eq!(owner["leases"].as_array().unwrap().len(), 1);
    assert_eq!(one.check("c1", &held).failure().0, 104);
    let again = one.add("c1");
    assert_eq!(addresses(&again)[1], addresses(&held)[1]);
    // passcod's, which has no owner's key.
    one.told(&["release", "10.1.9.9", "--yes"]);
    assert_eq!(books(&consul).len(), 4);
    one.del_known("c1", &again).success();
    assert_eq!(books(&consul).len(), 2);
}

#[test]
fn owners_and_whole_nodes_are_released() {
    let (consul, [one, two]) = mixed();
    let rows = one.typed(&["release", "--owner", "c2", "--yes", "--json"]).success();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    assert!(books_of(&consul, "node-2").is_empty());
    // A node that is gone: another one gives back what it held, and nobody else's.
    (0..70).for_each(|number| drop(two.add(&format!("many{number}"))));
    let text = one.told(&["release", "--node", "node-2"]);
    assert!(text.ends_with("nothing was released; add --yes to do it\n"), "{text}");
    assert_eq!(books_of(&consul, "node-2").len(), 140);
    let rows = one.typed(&["release", "--node", "node-2", "--yes", "--json"]).success();
    assert_eq!(rows.as_array().unwrap().len(), 140);
    assert_eq!(
        holdings(&consul),
        [
            "ipam/.owners/net/node-1/c1/eth0",
            "ipam/blue/10.1.0.1",
            "ipam/blue/10.1.9.9",
            "ipam/six/fd00:1::1"
        ]
    );
    let text = one.told(&["release", "--node", "node-2", "--yes"]);
    assert!(text.ends_with("nothing to release\n"), "{text}");
}

#[test]
fn an_owner_of_another_network_in_the_same_pool_is_released_by_its_address_alone() {
    let consul = stocked();
    let node = Node::of(&consul);
    node.add("c1");
    let mut elsewhere = node.network();
    elsewhere["name"] = "other".into();
    let add = node.command("ADD", "c1");
    ipam_testkit::world::wait(ipam_testkit::world::start(add, &elsewhere)).success();
    let released = |words: &[&str]| {
        let words = [&["release", "--yes", "--json"], words].concat();
        members(&node.typed(&words).success(), &["address"]).concat()
    };
    assert_eq!(released(&["--owner", "c1"]), ["10.1.0.1"]);
    assert_eq!(released(&["--node", "node-1"]), [""; 0]);
    assert_eq!(released(&["--owner", "c1", "--node", "node-1"]), [""; 0]);
    assert_eq!(books(&consul).len(), 1);
    assert_eq!(released(&["10.1.0.2"]), ["10.1.0.2"]);
    assert_eq!(holdings(&consul), [""; 0]);
}

/// The owners of a node, once for each address.
fn books_of(consul: &Consul, node: &str) -> Vec<String> {
    let keys = consul.list("ipam/").into_iter().filter(|entry| {
        let value: Value = serde_json::from_str(&entry.value).unwrap_or_default();
        value["target"].is_string() && value["node"] == node
    });
    keys.map(|entry| entry.key).collect()
}

#[test]
fn people_read_and_release_thousands_of_leases() {
    const MANY: u32 = 2_345;
    let consul = stocked();
    let all = usable("10.1.0.0", MANY);
    occupy(&consul, "blue", &all);
    let node = Node::of(&consul);
    let own = node.address("own");
    assert_eq!(own, "10.1.9.42");
    let listed = node.listed();
    let expected = all.iter().map(|a| (a.to_string(), format!("fill-{a}")));
    assert!(expected.eq(listed.iter().filter(|(address, _)| *address != own).cloned()));
    let pools = node.typed(&["pools", "--json"]).success();
    assert_eq!((&pools[0]["held"], &pools[0]["size"]), (&json!(MANY + 1), &json!(65_534)));
    let words: Vec<String> = all[..200].iter().map(ToString::to_string).collect();
    let mut typed = vec!["release", "--yes", "--json"];
    typed.extend(words.iter().map(String::as_str));
    let rows = node.typed(&typed).success();
    assert_eq!(rows.as_array().unwrap().len(), 200);
    assert_eq!(node.listed().len(), all.len() + 1 - 200);
}

/// A network that `ipam-delegated` finds by its name.
fn by_name(world: &World, network: &Value) {
    world.conflist("10-net.conflist", network);
}

#[test]
fn ipam_delegated_tells_the_same_by_the_networks_name() {
    let consul = stocked();
    define(&consul, "six", "fd00:1::/120");
    let (world, network) = chain(&consul, &["blue", "six"]);
    by_name(&world, &network);
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result)[0], "10.1.0.1");
    occupy(&consul, "blue", &["10.1.9.9".parse().unwrap()]);
    let typed = |words: &[&str]| world.typed(words).success();
    let rows = typed(&["list", "net", "--json"]);
    let listed = members(&rows, &["address", "containerID"]);
    assert!(listed.contains(&vec!["10.1.0.1".to_owned(), "c1".to_owned()]), "{rows}");
    assert!(listed.contains(&vec!["10.1.9.9".to_owned(), "fill-10.1.9.9".to_owned()]), "{rows}");
    assert_eq!(listed.len(), 3);
    let who = typed(&["who", "net", "10.1.0.1", "--json"]);
    assert_eq!(members(&who, &["address", "containerID"]), [["10.1.0.1", "c1"]]);
    let pools = typed(&["pools", "net", "--json"]);
    assert_eq!(
        members(&pools, &["pool", "held", "size"]),
        [["blue", "2", "65534"], ["six", "1", "255"]]
    );
    let rows = typed(&["release", "net", "10.1.9.9", "--yes", "--json"]);
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    assert_eq!(consul.get("ipam/blue/10.1.9.9"), None);
    // A node that is gone.
    let gone = Node::of(&consul).named("gone").with_pools(&["blue", "six"]);
    (0..3).for_each(|number| drop(gone.add(&format!("c{number}"))));
    let rows = typed(&["release", "net", "--node", "gone", "--yes", "--json"]);
    assert_eq!(rows.as_array().unwrap().len(), 6, "{rows}");
    assert_eq!(books(&consul).len(), 2);
    let lint = world.typed(&["lint", "net"]);
    assert_eq!(lint.exit, Some(0), "{lint:?}");
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_store_that_was_emptied_is_accepted_by_hand() {
    let consul = stocked();
    let node = Node::of(&consul);
    node.add("c1");
    consul.delete_all("ipam/.owners/");
    consul.delete_all("ipam/blue/");
    let (code, text) = node.call("ADD", "c2").failure();
    assert_eq!(code, 11, "{text}");
    assert!(text.contains("reassert"), "{text}");
    assert_eq!(holdings(&consul), [""; 0]);
    assert_eq!(node.call("STATUS", "").failure().0, 50);
    assert_eq!(node.typed(&["accept", "--json"]).success(), json!({"accepted": true}));
    assert_eq!(node.address("c2"), "10.1.0.1");
    node.call("STATUS", "").success();
}

#[test]
fn what_is_typed_wrong_is_refused() {
    let consul = stocked();
    let node = Node::of(&consul);
    for words in [
        &["release"][..],
        &["who"],
        &["who", "x"],
        &["who", "10.1.0.1", "10.1.0.2"],
        &["list", "net"],
        &["nonsense"],
        &["list", "--yes"],
    ] {
        let outcome = node.typed(words);
        assert!(outcome.exit != Some(0) && !outcome.stderr.is_empty(), "{words:?} {outcome:?}");
    }
    let mut lost = Node::at(&["http://127.0.0.1:1".to_owned()]);
    lost.store["consul"] = json!({"timeout": "1s"});
    let outcome = lost.typed(&["list"]);
    assert!(outcome.exit != Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("127.0.0.1:1"), "{outcome:?}");
}
