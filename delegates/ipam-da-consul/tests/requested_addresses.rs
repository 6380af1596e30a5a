//! What is asked of a pool beyond any address: a certain one, another's, a gateway, a default route.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::addresses;
use ipam_testkit::world::{Host, World};
use serde_json::{Value, json};

use common::chains::{chain, chain_of};
use common::filling::occupy;
use common::store::{books, holdings, ours, targets};
use common::{Node, define, stocked};

fn add(world: &World, container: &str, network: &Value) -> Vec<String> {
    addresses(&world.call("ADD", container, network).success())
}

#[test]
fn an_address_is_asked_for_in_both_spellings_and_by_the_runtime() {
    let consul = stocked();
    for (number, key) in ["requested-ip", "requested_ip"].into_iter().enumerate() {
        let asked = format!("10.1.9.{number}");
        let (world, network) = chain_of(&consul, &json!([{"name": "blue", key: asked}]));
        assert_eq!(add(&world, &format!("c{number}"), &network), std::slice::from_ref(&asked));
        assert_eq!(add(&world, &format!("c{number}"), &network), [asked]);
    }
    let (world, mut network) = chain(&consul, &["blue"]);
    network["runtimeConfig"] = json!({"ips": ["10.1.9.7/16"]});
    assert_eq!(add(&world, "c7", &network), ["10.1.9.7"]);
    let mut command = world.command("ADD", "c8");
    command.env("CNI_ARGS", "IP=10.1.9.8");
    network.as_object_mut().unwrap().remove("runtimeConfig");
    let outcome = ipam_testkit::world::wait(ipam_testkit::world::start(command, &network));
    assert_eq!(addresses(&outcome.success()), ["10.1.9.8"]);
    assert_eq!(books(&consul).len(), 4);
}

#[test]
fn an_attachment_moves_to_the_address_that_it_asks_for() {
    let consul = stocked();
    let (world, network) = chain(&consul, &["blue"]);
    assert_eq!(add(&world, "c1", &network), ["10.1.0.1"]);
    let mut wish = network.clone();
    wish["ipam"]["pools"][0]["requested-ip"] = "10.1.3.3".into();
    assert_eq!(add(&world, "c1", &wish), ["10.1.3.3"]);
    assert_eq!(books(&consul).len(), 1);
    assert_eq!(add(&world, "c1", &network), ["10.1.3.3"]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn an_address_that_does_not_fit_is_refused() {
    let consul = Consul::start();
    let range = json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.20", "gateway": "10.1.0.10"});
    consul.put("ipam/blue", &json!([range]).to_string());
    for asked in ["10.1.0.8", "10.1.0.21", "10.1.0.10", "10.2.0.9", "fd00::9"] {
        let (world, network) = chain_of(&consul, &json!([{"name": "blue", "requested-ip": asked}]));
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 101, "{text}");
        assert!(text.contains(asked), "{text}");
    }
    let (world, mut network) = chain_of(&consul, &json!([{"name": "blue", "requested-ip": "x"}]));
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 7);
    network["ipam"]["pools"][0] =
        json!({"name": "blue", "requested-ip": "10.1.0.9", "requested_ip": "10.1.0.11"});
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 7);
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn what_another_holds_is_refused_and_its_holder_is_named() {
    let consul = stocked();
    let (world, network) =
        chain_of(&consul, &json!([{"name": "blue", "requested-ip": "10.1.3.3"}]));
    world.call("ADD", "c1", &network).success();
    occupy(&consul, "blue", &["10.1.3.4".parse().unwrap()]);
    let before = ours(&consul);
    for (asked, holder) in [("10.1.3.3", "c1/eth0"), ("10.1.3.4", "fill-10.1.3.4")] {
        let mut network = network.clone();
        network["ipam"]["pools"][0]["requested-ip"] = asked.into();
        let (code, text) = world.call("ADD", "c2", &network).failure();
        assert_eq!(code, 102, "{text}");
        assert!(text.contains(asked) && text.contains(holder), "{text}");
        assert_eq!(ours(&consul), before);
        world.call("DEL", "c2", &network).success();
        assert_eq!(ours(&consul), before);
    }
}

/// Who holds 10.1.3.3 loses it, and what else it holds stays; the warning that is logged.
#[track_caller]
fn assert_taken_over(consul: &Consul, call: impl Fn(&str) -> ipam_testkit::world::Outcome) {
    define(consul, "six", "fd00:1::/64");
    let victim = Node::of(consul).named("node-7").with_pools(&["blue", "six"]);
    let mut asking = victim.network();
    asking["prevResult"]["pools"][0]["requested-ip"] = "10.1.3.3".into();
    let command = victim.command("ADD", "victim");
    let held = ipam_testkit::world::wait(ipam_testkit::world::start(command, &asking)).success();
    let outcome = call("thief");
    assert!(
        outcome.stderr.contains("WARN") && outcome.stderr.contains("takes over 10.1.3.3"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("victim/eth0 of node node-7"), "{outcome:?}");
    assert_eq!(addresses(&outcome.success()), ["10.1.3.3"]);
    let books = books(consul);
    assert!(books[&"10.1.3.3".parse().unwrap()].ends_with("/thief/eth0"), "{books:?}");
    assert_eq!(books[&"fd00:1::1".parse().unwrap()], "node-7/victim/eth0");
    assert_eq!(books.len(), 2);
    assert_eq!(victim.check("victim", &held).failure().0, 104);
    victim.del_known("victim", &held).success();
    assert_eq!(self::books(consul).len(), 1);
    // An address of passcod's, too.
    consul.put("ipam/blue/10.1.3.3", r#"{"target": "old"}"#);
    let outcome = call("another");
    assert!(outcome.stderr.contains("takes over 10.1.3.3"), "{outcome:?}");
    assert_eq!(targets(consul).into_values().collect::<Vec<_>>(), ["another"]);
}

#[test]
fn a_pool_alone_takes_no_address_over() {
    let consul = stocked();
    let pool = json!([{"name": "blue", "requested-ip": "10.1.3.3", "takeover": true}]);
    let (world, mut network) = chain_of(&consul, &pool);
    world.call("ADD", "first", &network).success();
    let before = ours(&consul);
    let refused = |network: &Value| {
        let (code, text) = world.call("ADD", "thief", network).failure();
        assert!(code == 102 && text.contains("set ipam.takeover"), "{code}: {text}");
        assert_eq!(ours(&consul), before);
    };
    refused(&network);
    // A selector says it no better.
    let answer = json!({"cniVersion": "1.0.0", "pools": pool});
    world.delegate("ipam-ds-own", &format!("printf '%s' '{answer}'"));
    network["ipam"].as_object_mut().unwrap().remove("pools");
    network["ipam"]["delegates"][0] = "ipam-ds-own".into();
    refused(&network);
}

#[test]
fn an_address_is_taken_over_where_the_network_says_so() {
    let consul = stocked();
    let pool = json!([{"name": "blue", "requested-ip": "10.1.3.3", "takeover": true}]);
    let (world, mut network) = chain_of(&consul, &pool);
    network["ipam"]["takeover"] = true.into();
    assert_taken_over(&consul, |container| world.call("ADD", container, &network));
    // Who has lost it without a word gives back nothing.
    world.call("DEL", "thief", &network).success();
    assert_eq!(books(&consul).len(), 1);
    world.call("DEL", "another", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn an_address_is_taken_over_where_ipam_says_so_and_the_pool_does_not_forbid_it() {
    let consul = stocked();
    let pool = json!([{"name": "blue", "requested-ip": "10.1.3.3"}]);
    let (world, mut network) = chain_of(&consul, &pool);
    network["ipam"]["takeover"] = true.into();
    assert_taken_over(&consul, |container| world.call("ADD", container, &network));
    network["ipam"]["pools"][0]["takeover"] = false.into();
    assert_eq!(world.call("ADD", "c9", &network).failure().0, 102);
}

#[test]
fn an_address_is_taken_over_where_the_host_wide_settings_say_so() {
    let consul = stocked();
    let pool = json!([{"name": "blue", "requested-ip": "10.1.3.3"}]);
    let (world, mut network) = chain_of(&consul, &pool);
    let host = Host::new();
    host.settings(&json!({"takeover": true}));
    assert_taken_over(&consul, |container| host.call(&world, "ADD", container, &network));
    network["ipam"]["takeover"] = false.into();
    assert_eq!(host.call(&world, "ADD", "c9", &network).failure().0, 102);
}

#[test]
fn there_is_a_default_route_for_each_family_unless_the_chain_has_routes() {
    let consul = Consul::start();
    let put =
        |pool: &str, range: Value| consul.put(&format!("ipam/{pool}"), &json!([range]).to_string());
    put("four", json!({"subnet": "10.1.0.0/16", "gateway": "10.1.0.1"}));
    put("also", json!({"subnet": "10.2.0.0/16", "gateway": "10.2.0.1"}));
    put("bare", json!({"subnet": "10.3.0.0/16"}));
    put("six", json!({"subnet": "fd00:1::/64", "gateway": "fd00:1::1"}));
    put("six-bare", json!({"subnet": "fd00:2::/64"}));
    for (pools, routes) in [
        (&["four"][..], json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}])),
        (&["bare"], json!([{"dst": "0.0.0.0/0"}])),
        (&["four", "also"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}])),
        (&["bare", "also"], json!([{"dst": "0.0.0.0/0", "gw": "10.2.0.1"}])),
        (
            &["six", "four"],
            json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0", "gw": "fd00:1::1"}]),
        ),
        (&["six-bare"], json!([{"dst": "::/0"}])),
    ] {
        let (world, mut network) = chain(&consul, pools);
        let result = world.call("ADD", "c1", &network).success();
        assert_eq!(result["routes"], routes, "{pools:?}");
        network["ipam"]["routes"] = json!([{"dst": "192.168.0.0/16", "gw": "10.1.0.9"}]);
        let result = world.call("ADD", "c1", &network).success();
        assert_eq!(result["routes"], network["ipam"]["routes"], "{pools:?}");
        world.call("DEL", "c1", &network).success();
    }
}

#[test]
fn pools_that_bring_their_ranges_need_no_definition() {
    let consul = Consul::start();
    let pools = json!([
        {"name": "own", "ranges": [{"subnet": "10.7.0.0/24"}]},
        {"ranges": [{"subnet": "fd07::/64"}]},
    ]);
    let (world, network) = chain_of(&consul, &pools);
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(addresses(&result), ["10.7.0.2", "fd07::2"]);
    assert_eq!(books(&consul).len(), 2);
    let keys =
        ours(&consul).into_keys().filter(|key| !key.starts_with("ipam/.")).collect::<Vec<_>>();
    assert_eq!(keys, ["ipam/net/fd07::2", "ipam/own/10.7.0.2"]);
    let mut with_result = network.clone();
    with_result["prevResult"] = result;
    world.call("CHECK", "c1", &with_result).success();
    world.call("DEL", "c1", &network).success();
    assert_eq!(holdings(&consul), [""; 0]);
}
