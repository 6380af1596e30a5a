//! The program in a chain: what an attachment's life does to the keys in Consul.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use ipam_testkit::consul::{Consul, Relay};
use ipam_testkit::node::{addresses, named};
use ipam_testkit::world::{Host, binary};
use serde_json::{Value, json};

use common::chains::{chain, failing};
use common::store::{books, holdings, ours};
use common::{Node, define, stocked};

/// A server with a pool of each family.
fn dual() -> Consul {
    let consul = Consul::start();
    let four = json!([{"subnet": "10.1.0.0/16", "gateway": "10.1.0.1"}]);
    consul.put("ipam/blue", &four.to_string());
    consul.put("ipam/six", &json!([{"subnet": "fd00:1::/64"}]).to_string());
    consul
}

#[test]
fn a_chain_gives_checks_and_releases() {
    let consul = dual();
    let relay = Relay::to(&consul.endpoint());
    let (world, mut network) = chain(&consul, &["blue", "six"]);
    network["ipam"]["consul_servers"] = json!([format!("http://{}", relay.endpoint())]);
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::1"]);
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/16");
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    assert_eq!(result["ips"][1], json!({"address": "fd00:1::1/64"}));
    assert_eq!(books(&consul).len(), 2);
    assert_eq!(world.call("ADD", "c1", &network).success(), result);
    let mut with_result = network.clone();
    with_result["prevResult"] = result.clone();
    let check = relay.during(|| drop(world.call("CHECK", "c1", &with_result).success()));
    assert_eq!(check, ["PUT /v1/txn?consistent"]);
    world.call("STATUS", "", &network).success();
    // By the record: a DEL that was told nothing asks once.
    let mut stripped = network.clone();
    stripped["ipam"] = json!({"type": "ipam-delegated", "stateDir": world.path("state")});
    let del = relay.during(|| drop(world.call("DEL", "c1", &stripped).success()));
    assert_eq!(del, ["PUT /v1/txn"]);
    assert_eq!(holdings(&consul), [""; 0]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.call("CHECK", "c1", &with_result).failure().0, 104);
}

#[test]
fn what_stands_in_consul_key_by_key() {
    let consul = dual();
    let (world, network) = chain(&consul, &["blue", "six"]);
    world.call("ADD", "c1", &network).success();
    let node = fs::read_to_string(world.path("state/node")).unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    let node = node["uuid"].as_str().unwrap();
    let owner = format!("ipam/.owners/net/{node}/c1/eth0");
    let keys = [
        "ipam/".to_owned(),
        format!("ipam/.owners/net/.nodes/{node}"),
        owner.clone(),
        "ipam/blue".to_owned(),
        "ipam/blue/".to_owned(),
        "ipam/blue/10.1.0.2".to_owned(),
        "ipam/six".to_owned(),
        "ipam/six/".to_owned(),
        "ipam/six/fd00:1::1".to_owned(),
    ];
    assert_eq!(consul.keys(""), keys);
    for folder in ["ipam/", "ipam/blue/", "ipam/six/"] {
        assert_eq!(consul.get(folder).as_deref(), Some(""));
    }
    let read = |key: &str| {
        let entry = consul.entry(key).unwrap();
        (serde_json::from_str::<Value>(&entry.value).unwrap(), entry.modified)
    };
    let (document, index) = read(&owner);
    let taken = document["leases"][0]["taken"].as_u64().unwrap();
    assert!(taken > 1_600_000_000_000);
    let confirmed = document["confirmed"].clone();
    assert_eq!(
        document,
        json!({
            "network": "net", "node": node, "container": "c1", "ifname": "eth0",
            "generation": 1, "confirmed": confirmed,
            "leases": [
                {"address": "10.1.0.2/16", "gateway": "10.1.0.1", "pool": "blue", "taken": taken},
                {"address": "fd00:1::1/64", "pool": "six", "taken": document["leases"][1]["taken"]},
            ],
        })
    );
    let allocation = json!({
        "target": "c1", "ifname": "eth0", "node": node, "network": "net",
        "time": confirmed, "generation": 1, "leases": 2,
    });
    for key in ["ipam/blue/10.1.0.2", "ipam/six/fd00:1::1"] {
        // All is written at once.
        assert_eq!(read(key), (allocation.clone(), index));
    }
    // Written again it is of the next generation, and was taken when it was.
    world.call("ADD", "c1", &network).success();
    let (again, later) = read(&owner);
    assert!(later > index);
    assert_eq!((&again["generation"], &again["leases"][0]["taken"]), (&json!(2), &json!(taken)));
    let (allocation, its) = read("ipam/blue/10.1.0.2");
    assert_eq!((&allocation["generation"], its), (&json!(2), later));
    world.call("DEL", "c1", &network).success();
    let gone = [owner.as_str(), "ipam/blue/10.1.0.2", "ipam/six/fd00:1::1"];
    let left: Vec<&String> = keys.iter().filter(|key| !gone.contains(&key.as_str())).collect();
    assert_eq!(consul.keys("").iter().collect::<Vec<_>>(), left);
}

#[test]
fn alone_it_gives_checks_and_releases() {
    let consul = dual();
    let node = Node::of(&consul);
    let mut network = node.network();
    network["ipam"]["pools"] = named(&["blue", "six"]);
    network.as_object_mut().unwrap().remove("prevResult");
    network["ipam"].as_object_mut().unwrap().remove("node");
    let call = |verb: &str, network: &Value| {
        ipam_testkit::world::wait(ipam_testkit::world::start(node.command(verb, "c1"), network))
    };
    let result = call("ADD", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::1"]);
    assert_eq!(addresses(&call("ADD", &network).success()), addresses(&result));
    let mut with_result = network.clone();
    with_result["prevResult"] = result;
    call("CHECK", &with_result).success();
    call("STATUS", &network).success();
    assert_eq!(books(&consul).len(), 2);
    call("DEL", &with_result).success();
    call("DEL", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
    assert_eq!(call("CHECK", &with_result).failure().0, 104);
}

#[test]
fn a_chain_that_fails_later_leaves_what_the_owner_held() {
    let consul = dual();
    let (world, network) = chain(&consul, &["blue", "six"]);
    let failing = failing(&world, &network);
    assert_eq!(world.call("ADD", "c1", &failing).failure().0, 100);
    assert_eq!(holdings(&consul), [""; 0]);
    world.call("ADD", "c1", &network).success();
    let before = books(&consul);
    assert_eq!(world.call("ADD", "c1", &failing).failure().0, 100);
    assert_eq!(books(&consul), before);
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn of_two_pools_both_or_none_are_given() {
    let consul = dual();
    let (world, network) = chain(&consul, &["blue", "six"]);
    let small =
        json!([{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::1", "rangeEnd": "fd00:1::1"}]);
    consul.put("ipam/six", &small.to_string());
    world.call("ADD", "c1", &network).success();
    let before = ours(&consul);
    let (code, text) = world.call("ADD", "c2", &network).failure();
    assert_eq!(code, 100, "{text}");
    assert!(text.contains(r#"of the pool "six""#), "{text}");
    assert_eq!(ours(&consul), before);
    for (value, what) in
        [(None, "pool \"six\" not found"), (Some("x"), "invalid pool in Consul key ipam/six")]
    {
        match value {
            None => consul.delete("ipam/six"),
            Some(value) => consul.put("ipam/six", value),
        }
        let (code, text) = world.call("ADD", "c2", &network).failure();
        assert_eq!(code, 103, "{text}");
        assert!(text.contains(what), "{text}");
        assert_eq!(ours(&consul), before);
    }
    world.call("DEL", "c2", &network).success();
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn one_address_of_each_pool_is_given_of_many() {
    let consul = Consul::start();
    let names: Vec<String> = (0..8).map(|number| format!("pool-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        define(&consul, name, &format!("10.{number}.0.0/24"));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (world, network) = chain(&consul, &names);
    let result = world.call("ADD", "c1", &network).success();
    let expected: Vec<String> = (0..8).map(|number| format!("10.{number}.0.1")).collect();
    assert_eq!(addresses(&result), expected);
    assert_eq!(books(&consul).len(), 8);
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn two_selectors_give_an_address_of_each_pool_or_of_the_last_one_alone() {
    let consul = dual();
    let (world, mut network) = chain(&consul, &["blue"]);
    let own = |pools: Value| json!({"type": "ipam-ds-static", "pools": pools});
    let chain = |last: Value| json!(["ipam-ds-static", last, "ipam-da-consul"]);
    network["ipam"]["delegates"] = chain(own(json!([{"name": "six"}])));
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::1"]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
    // As passcod's plugins have it.
    world.install(&binary("examples/ipam-ds-rack"));
    fs::write(world.path("rack"), "r1").unwrap();
    network["ipam"]["rackFile"] = json!(world.path("rack"));
    network["ipam"]["racks"] = json!({"r1": {"name": "six"}});
    network["ipam"]["delegates"] = chain(json!({"type": "ipam-ds-rack", "pools": "replace"}));
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["fd00:1::1"]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn two_allocators_on_one_store_undo_and_release_their_own() {
    let consul = dual();
    let (world, mut network) = chain(&consul, &["blue", "six"]);
    let serving = |pool: &str| json!({"type": "ipam-da-consul", "serves": [pool]});
    network["ipam"]["delegates"] = json!(["ipam-ds-static", serving("blue"), serving("six")]);
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.1.0.2", "fd00:1::1"]);
    let before = books(&consul);
    let failing = failing(&world, &network);
    for container in ["c1", "c2"] {
        assert_eq!(world.call("ADD", container, &failing).failure().0, 100);
        assert_eq!(books(&consul), before);
    }
    assert_eq!(addresses(&world.call("ADD", "c1", &network).success()), addresses(&result));
    let mut with_result = network.clone();
    with_result["prevResult"] = result;
    world.call("CHECK", "c1", &with_result).success();
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn garbage_of_this_node_is_collected_through_the_chain() {
    let consul = dual();
    let (world, network) = chain(&consul, &["blue", "six"]);
    for container in ["kept", "gone"] {
        world.call("ADD", container, &network).success();
    }
    let other = Node::of(&consul).named("other");
    other.add("elsewhere");
    let collect = |grace: &str| {
        let host = Host::new();
        host.settings(&json!({"gcGrace": grace}));
        let mut network = network.clone();
        network["cni.dev/valid-attachments"] = json!([{"containerID": "kept", "ifname": "eth0"}]);
        let mut command = host.command(&world, "GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        ipam_testkit::world::wait(ipam_testkit::world::start(command, &network)).success();
    };
    collect("1h");
    assert_eq!(books(&consul).len(), 5);
    collect("0s");
    let left = books(&consul);
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left.values().all(|owner| !owner.contains("gone")), "{left:?}");
    world.call("DEL", "kept", &network).success();
    other.del("elsewhere");
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn several_networks_share_a_pool() {
    let consul = stocked();
    let (world, one) = chain(&consul, &["blue"]);
    let mut other = one.clone();
    other["name"] = "other".into();
    let add = |network: &Value| addresses(&world.call("ADD", "c1", network).success());
    assert_eq!((add(&one), add(&other)), (vec!["10.1.0.1".into()], vec!["10.1.0.2".into()]));
    assert_eq!((add(&one), add(&other)), (vec!["10.1.0.1".into()], vec!["10.1.0.2".into()]));
    assert_eq!(books(&consul).len(), 2);
    // What a record would tell is not known.
    for network in [&one, &other] {
        let mut lone = network.clone();
        lone["ipam"]["type"] = "ipam-da-consul".into();
        let command = world.command_of(common::PROGRAM.as_ref(), "DEL", "c1");
        ipam_testkit::world::wait(ipam_testkit::world::start(command, &lone)).success();
        let rest = if network["name"] == "net" { 1 } else { 0 };
        assert_eq!(books(&consul).len(), rest);
    }
}

#[test]
fn interfaces_of_a_container_hold_addresses_of_their_own() {
    let consul = stocked();
    let (world, network) = chain(&consul, &["blue"]);
    let call = |verb: &str, ifname: &str| {
        let mut command = world.command(verb, "c1");
        command.env("CNI_IFNAME", ifname);
        ipam_testkit::world::wait(ipam_testkit::world::start(command, &network))
    };
    for (ifname, address) in [("eth0", "10.1.0.1"), ("eth1", "10.1.0.2"), ("eth10", "10.1.0.3")] {
        assert_eq!(addresses(&call("ADD", ifname).success()), [address]);
    }
    for (ifname, left) in [("eth1", 2), ("eth0", 1), ("eth10", 0)] {
        call("DEL", ifname).success();
        assert_eq!(books(&consul).len(), left);
    }
}

#[test]
fn a_pool_that_is_asked_for_no_more_is_given_back() {
    let consul = dual();
    let (world, network) = chain(&consul, &["blue", "six"]);
    world.call("ADD", "c1", &network).success();
    let mut fewer = network.clone();
    fewer["ipam"]["pools"] = named(&["six"]);
    assert_eq!(addresses(&world.call("ADD", "c1", &fewer).success()), ["fd00:1::1"]);
    assert_eq!(books(&consul).len(), 1);
    let more = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&more), ["10.1.0.2", "fd00:1::1"]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn an_add_that_reached_no_server_is_owed_nothing() {
    let consul = stocked();
    let (world, network) = chain(&consul, &["blue"]);
    let mut mistyped = network.clone();
    mistyped["ipam"]["consul_servers"] = json!(["http://127.0.0.1:1"]);
    mistyped["ipam"]["consul"] = json!({"timeout": "1s"});
    let (code, text) = world.call("ADD", "c1", &mistyped).failure();
    assert_eq!(code, 105, "{text}");
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "none");
}
