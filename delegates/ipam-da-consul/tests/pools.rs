//! Pools as they stand in Consul: what their ranges give, what is refused, and what changes under us.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::{addresses, named};
use serde_json::{Value, json};

use common::chains::chain;
use common::filling::fill;
use common::store::{books, everything, holdings, ours};
use common::{Node, define, stocked};

/// All that a pool gives, one ADD after the other.
fn all_of(consul: &Consul, ranges: &Value) -> Vec<String> {
    consul.delete_all("ipam/");
    consul.put("ipam/blue", &ranges.to_string());
    fill(&Node::of(consul)).iter().flat_map(addresses).collect()
}

#[test]
fn ranges_give_what_is_theirs() {
    let consul = Consul::start();
    let gives = |ranges: Value, expected: &[&str]| {
        assert_eq!(all_of(&consul, &ranges), expected, "{ranges}");
    };
    let subnet = "10.1.0.0/30";
    gives(json!([{"subnet": subnet}]), &["10.1.0.1", "10.1.0.2"]);
    gives(json!([{"subnet": subnet, "gateway": "10.1.0.1"}]), &["10.1.0.2"]);
    gives(
        json!([{"subnet": subnet, "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.3"}]),
        &["10.1.0.0", "10.1.0.1", "10.1.0.2", "10.1.0.3"],
    );
    gives(
        json!([{"subnet": subnet, "rangeStart": "10.1.0.0", "gateway": "10.1.0.1"}]),
        &["10.1.0.0", "10.1.0.2"],
    );
    gives(json!([{"subnet": "10.1.0.2/30"}]), &["10.1.0.1", "10.1.0.2"]);
    gives(json!([{"subnet": "10.1.0.4/31"}]), &["10.1.0.4", "10.1.0.5"]);
    gives(json!([{"subnet": "10.1.0.4/32"}]), &["10.1.0.4"]);
    gives(json!([{"subnet": "fd00::4/127"}]), &["fd00::4", "fd00::5"]);
    gives(json!([{"subnet": "fd00::4/128"}]), &["fd00::4"]);
    gives(json!([{"subnet": "fd00::4/126"}]), &["fd00::5", "fd00::6", "fd00::7"]);
    gives(
        json!([{"subnet": "fd00::4/126", "rangeStart": "fd00::4", "gateway": "fd00::6"}]),
        &["fd00::4", "fd00::5", "fd00::7"],
    );
    gives(
        json!([
            {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.9", "rangeEnd": "10.2.0.9"},
            {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.8", "rangeEnd": "10.1.0.9"},
        ]),
        &["10.2.0.9", "10.1.0.8", "10.1.0.9"],
    );
}

/// Calls that need the pool fail with code 103 and these words, and change nothing.
#[track_caller]
fn assert_refused(consul: &Consul, words: &[&str]) {
    let before = everything(consul);
    let (world, network) = chain(consul, &["blue"]);
    let status = world.call("STATUS", "", &network).failure();
    for (call, (code, text), expected) in
        [("ADD", world.call("ADD", "c1", &network).failure(), 103), ("STATUS", status, 50)]
    {
        assert_eq!(code, expected, "{call}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{call}: {text}");
    }
    world.call("DEL", "c1", &network).success();
    assert_eq!(everything(consul), before);
}

#[test]
fn a_pool_that_is_none_is_refused_by_its_key() {
    let consul = Consul::start();
    assert_refused(&consul, &["Consul has no key ipam/blue"]);
    let subnet = "10.1.0.0/24";
    for (value, word) in [
        ("", "empty"),
        ("null", "array of ranges"),
        ("{}", "array of ranges"),
        ("[", "array of ranges"),
        ("10.1.0.0/24", "array of ranges"),
        ("[]", "no range"),
        ("[7]", "array of ranges"),
        ("[{}]", "subnet"),
        (r#"[{"subnet": 7}]"#, "array of ranges"),
        (r#"[{"subnet": "10.1.0.0"}]"#, "subnet"),
        (r#"[{"subnet": "10.1.0.0/33"}]"#, "subnet"),
        (&json!([{"subnet": subnet, "rangeStart": "10.2.0.1"}]).to_string(), "rangeStart"),
        (&json!([{"subnet": subnet, "rangeEnd": "x"}]).to_string(), "rangeEnd"),
        (
            &json!([{"subnet": subnet, "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}])
                .to_string(),
            "ipam/blue[0]",
        ),
        (&json!([{"subnet": subnet, "gateway": "fd00::1"}]).to_string(), "gateway"),
    ] {
        consul.put("ipam/blue", value);
        assert_refused(&consul, &["invalid pool in Consul key ipam/blue", word]);
    }
}

#[test]
fn a_key_that_is_no_address_of_its_pool_is_refused_by_its_name() {
    for key in ["ipam/blue/10.1.0.x", "ipam/blue/10.1.0.1 ", "ipam/blue/10.1.0.1/24"] {
        let consul = stocked();
        consul.put(key, r#"{"target": "c9"}"#);
        let before = everything(&consul);
        let (world, network) = chain(&consul, &["blue"]);
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 103, "{text}");
        assert!(text.contains(key), "{text}");
        assert_eq!(everything(&consul), before);
        // Who holds nothing has nothing to give back, and GC and DEL do not stop at it.
        world.call("DEL", "c1", &network).success();
        assert_eq!(everything(&consul), before);
    }
}

#[test]
fn an_address_with_an_invalid_value_is_taken_and_has_no_owner() {
    for value in ["", "null", "c1", "{}", "[]", r#"{"target": 7}"#, r#"{"tarket": "c1"}"#] {
        let consul = stocked();
        consul.put("ipam/blue/10.1.0.1", value);
        let (world, mut network) = chain(&consul, &["blue"]);
        assert_eq!(
            addresses(&world.call("ADD", "c1", &network).success()),
            ["10.1.0.2"],
            "{value}"
        );
        for takeover in [false, true] {
            network["ipam"]["pools"] = json!([{"name": "blue", "requested-ip": "10.1.0.1"}]);
            network["ipam"]["takeover"] = takeover.into();
            let (code, text) = world.call("ADD", "c2", &network).failure();
            assert!(text.contains("ipam/blue/10.1.0.1"), "{value} {code}: {text}");
        }
        world.call("DEL", "c2", &network).success();
        world.call("DEL", "c1", &network).success();
        assert_eq!(ours(&consul), [("ipam/blue/10.1.0.1".to_owned(), value.to_owned())].into());
        let node = Node::of(&consul);
        assert_eq!(node.listed(), [("10.1.0.1".to_owned(), "unreadable".to_owned())]);
        // By hand it goes.
        node.told(&["release", "10.1.0.1", "--yes"]);
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

#[test]
fn an_owners_key_that_is_not_ours_is_refused_by_its_name() {
    let consul = stocked();
    let node = Node::of(&consul);
    let key = "ipam/.owners/net/node-1/c1/eth0";
    for value in ["", "null", "x", "{}", r#"{"target": "c1"}"#] {
        consul.put(key, value);
        let before = everything(&consul);
        for verb in ["ADD", "DEL", "CHECK"] {
            let prev_result = json!({"ips": [{"address": "10.1.0.1/16"}]});
            let outcome = match verb {
                "CHECK" => node.call_with(verb, "c1", &prev_result),
                _ => node.call(verb, "c1"),
            };
            let (code, text) = outcome.failure();
            assert_eq!(code, 103, "{verb} {value:?}: {text}");
            assert!(text.contains(key), "{verb} {value:?}: {text}");
        }
        assert_eq!(everything(&consul), before);
    }
}

#[test]
fn a_definition_that_was_edited_is_noticed_at_once() {
    let consul = Consul::start();
    let put = |range: Value| consul.put("ipam/blue", &json!([range]).to_string());
    put(json!({"subnet": "10.1.0.0/24"}));
    let node = Node::of(&consul);
    assert_eq!(node.address("c1"), "10.1.0.1");
    put(json!({"subnet": "10.2.0.0/24"}));
    assert_eq!(node.address("c2"), "10.2.0.1");
    put(json!({"subnet": "10.2.0.0/16", "rangeStart": "10.2.9.1", "gateway": "10.2.0.1"}));
    let result = node.add("c3");
    assert_eq!(result["ips"], json!([{"address": "10.2.9.1/16", "gateway": "10.2.0.1"}]));
    // What is held out of the pool's new ranges stays, with the gateway of now.
    put(json!({"subnet": "10.2.0.0/16", "rangeStart": "10.2.9.1", "gateway": "10.2.0.9"}));
    let again = node.add("c3");
    assert_eq!(again["ips"], json!([{"address": "10.2.9.1/16", "gateway": "10.2.0.9"}]));
    node.check("c3", &again).success();
    // What is held out of them no more is another address now.
    put(json!({"subnet": "10.3.0.0/24"}));
    assert_eq!(node.address("c3"), "10.3.0.1");
    assert_eq!(books(&consul).len(), 3);
    put(json!({"subnet": "10.3.0.0/24", "exclude": ["10.3.0.2/31"]}));
    assert_eq!(node.address("c4"), "10.3.0.4");
    consul.put("ipam/blue", "x");
    assert_eq!(node.call("ADD", "c5").failure().0, 103);
    consul.delete("ipam/blue");
    let (code, text) = node.call("ADD", "c5").failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.contains("not found"), "{text}");
    // What is held is given back all the same.
    (1..=4).for_each(|number| node.del(&format!("c{number}")));
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn a_full_pool_that_is_enlarged_gives_again() {
    let consul = Consul::start();
    define(&consul, "blue", "10.1.0.0/30");
    let node = Node::of(&consul);
    ["c1", "c2"].iter().for_each(|container| drop(node.add(container)));
    assert_eq!(node.call("ADD", "c3").failure().0, 100);
    define(&consul, "blue", "10.1.0.0/29");
    assert_eq!(node.address("c3"), "10.1.0.3");
}

#[test]
fn a_definition_deleted_and_made_again_is_the_same_pool() {
    let consul = stocked();
    let node = Node::of(&consul);
    assert_eq!(node.address("c1"), "10.1.0.1");
    consul.delete("ipam/blue");
    define(&consul, "blue", "10.1.0.0/16");
    assert_eq!(node.address("c2"), "10.1.0.2");
    assert_eq!(node.address("c1"), "10.1.0.1");
}

#[test]
fn who_asks_for_another_pool_gets_an_address_of_that() {
    let consul = stocked();
    define(&consul, "same", "10.1.0.0/16");
    define(&consul, "other", "10.2.0.0/16");
    for pool in ["other", "same"] {
        let (world, network) = chain(&consul, &["blue"]);
        assert_eq!(addresses(&world.call("ADD", "c1", &network).success()), ["10.1.0.1"]);
        let mut renamed = network.clone();
        renamed["ipam"]["pools"] = named(&[pool]);
        let result = world.call("ADD", "c1", &renamed).success();
        let address = addresses(&result).swap_remove(0);
        let key = format!("ipam/{pool}/{address}");
        let leases: Vec<String> =
            ours(&consul).into_keys().filter(|key| !key.starts_with("ipam/.")).collect();
        assert_eq!(leases, [key]);
        assert_eq!(books(&consul).len(), 1);
        let mut with_result = renamed.clone();
        with_result["prevResult"] = result;
        world.call("CHECK", "c1", &with_result).success();
        world.call("DEL", "c1", &network).success();
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

#[test]
fn names_of_pools_are_paths_and_escaped() {
    let consul = Consul::start();
    for pool in ["dc1/blue", "a b", "größe", "50%"] {
        define(&consul, pool, "10.1.0.0/24");
        let (world, network) = chain(&consul, &[pool]);
        assert_eq!(addresses(&world.call("ADD", "c1", &network).success()), ["10.1.0.1"], "{pool}");
        assert!(consul.get(&format!("ipam/{pool}/10.1.0.1")).is_some(), "{pool}");
        world.call("DEL", "c1", &network).success();
        assert_eq!(consul.get(&format!("ipam/{pool}/10.1.0.1")), None, "{pool}");
    }
    for pool in [".owners", "a//b", "/a", "a/", "a/../b", "10.1.0.1\n"] {
        let (world, network) = chain(&consul, &[pool]);
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 7, "{text}");
        assert!(text.contains("pools[0].name"), "{text}");
    }
}

#[test]
fn pools_whose_names_begin_alike_are_not_mistaken() {
    let consul = Consul::start();
    define(&consul, "blue", "10.1.0.0/24");
    define(&consul, "blue2", "10.1.0.0/24");
    define(&consul, "blue/2", "10.1.0.0/24");
    let nodes =
        ["blue", "blue2", "blue/2"].map(|pool| Node::of(&consul).with_pools(&[pool]).named(pool));
    for node in &nodes {
        assert_eq!(node.address("c1"), "10.1.0.1", "{}", node.name);
    }
    for (place, node) in nodes.iter().enumerate() {
        node.del("c1");
        let left = consul.keys("ipam/").into_iter().filter(|key| key.ends_with("/10.1.0.1"));
        assert_eq!(left.count(), 2 - place);
    }
}

#[test]
fn an_address_of_whoever_is_no_container_of_ours_is_held() {
    for target in ["", "no/container", "ü", "a b"] {
        let consul = stocked();
        let value = json!({"target": target, "more": {"x": [1]}}).to_string();
        consul.put("ipam/blue/10.1.0.1", &value);
        let mut node = Node::of(&consul);
        assert_eq!(node.address("c1"), "10.1.0.2", "{target}");
        node.pools[0]["requested-ip"] = "10.1.0.1".into();
        assert_eq!(node.call("ADD", "c2").failure().0, 102, "{target}");
        node.del("c1");
        assert_eq!(ours(&consul), [("ipam/blue/10.1.0.1".to_owned(), value)].into());
        assert_eq!(node.listed(), [("10.1.0.1".to_owned(), target.to_owned())]);
        node.told(&["release", "10.1.0.1", "--yes"]);
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

#[test]
fn a_misspelt_key_of_a_definition_is_warned_of_once_and_an_error_of_lint() {
    let consul = Consul::start();
    consul.put("ipam/blue", r#"[{"subnet": "10.1.0.0/24", "gatway": "10.1.0.9", "vlan": 7}]"#);
    let (world, network) = chain(&consul, &["blue"]);
    // The second ADD remembers the definition.
    for (verb, container) in [("ADD", "c1"), ("ADD", "c2"), ("STATUS", "")] {
        let outcome = world.call(verb, container, &network);
        let told: Vec<&str> = outcome
            .stderr
            .lines()
            .filter(|line| line.contains(" is ignored (did you mean "))
            .collect();
        let words = "[WARN] ipam-da-consul: ";
        let place = "ipam/blue[0].gatway is ignored (did you mean gateway?)";
        let is_it = told.len() == 1 && told[0].contains(words) && told[0].contains(place);
        assert!(is_it, "{verb}: {told:#?}");
        outcome.ended_well();
    }
    world.conflist("10-net.conflist", &network);
    let lint = world.typed(&["lint", "net"]);
    assert_eq!(lint.exit, Some(1), "{lint:?}");
    let told = "error: ipam-da-consul: ipam/blue[0].gatway: unknown key (did you mean gateway?): ";
    assert_eq!(lint.stdout.matches(told).count(), 1, "{}", lint.stdout);
    assert!(!world.call("DEL", "c1", &network).stderr.contains("gatway"));
}
