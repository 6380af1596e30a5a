//! Addresses that a selector names outside of pools: an allocator answers them, and no store holds them.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use ipam_testkit::world::{World, binary, wait, with};
use serde_json::{Value, json};

const STATIC: &str = "192.0.2.9/24";

/// A chain of a selector that names a pool and a static address, and `ipam-da-local`.
fn chain() -> (World, Value) {
    chain_with(&json!([{"address": STATIC, "gateway": "192.0.2.1"}]))
}

fn chain_with(fixed: &Value) -> (World, Value) {
    let world = World::new();
    let pools = json!([{"name": "blue", "ranges": [{"subnet": "10.0.0.0/29"}]}]);
    let answer = json!({"pools": pools, "static": fixed});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.install(&binary("ipam-da-local"));
    let network = world.network(json!(["ipam-ds-x", "ipam-da-local"]));
    let network = with(&network, "dataDir", world.path("leases").to_str().unwrap());
    (world, network)
}

/// A chain of a selector that names a static address and no pool, and `ipam-da-local`, which
/// cannot open its store.
fn static_chain(serves: Value) -> (World, Value) {
    let world = World::new();
    let answer = json!({"pools": [], "static": [{"address": STATIC}]});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.install(&binary("ipam-da-local"));
    let mut allocator = json!({"type": "ipam-da-local"});
    if !serves.is_null() {
        allocator["serves"] = serves;
    }
    let network = world.network(json!(["ipam-ds-x", allocator]));
    std::fs::write(world.path("leases"), "a file").unwrap();
    let network = with(&network, "dataDir", world.path("leases").to_str().unwrap());
    (world, network)
}

#[test]
fn a_static_address_is_in_the_result_and_in_no_store() {
    let (world, network) = chain();
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(
        result["ips"],
        json!([{"address": "10.0.0.2/29", "gateway": "10.0.0.1"}, {"address": STATIC, "gateway": "192.0.2.1"}])
    );
    assert_eq!(result.get("static"), None);
    let held = world.lines("c1").pop().unwrap();
    assert_eq!(held["gave"][0]["ips"], json!(["10.0.0.2/29"]));
    assert_eq!(held["gave"][0]["static"], json!([STATIC]));
    // The same address for everybody: the selector's source answers for it.
    assert_eq!(world.call("ADD", "c2", &network).ips(), ["10.0.0.3/29", STATIC]);
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.0.0.2/29", STATIC]);

    let mut after = network.clone();
    after["prevResult"] = result;
    world.call("CHECK", "c1", &after).success();
    world.call("CHECK", "c1", &network).success();
    world.call("DEL", "c1", &after).success();
    assert!(!world.record("c1").exists());
    assert_eq!(world.call("ADD", "c3", &network).ips(), ["10.0.0.4/29", STATIC]);
    assert_eq!(world.call("CHECK", "c1", &after).failure().0, 104);
}

#[test]
fn static_addresses_alone_need_no_store() {
    for serves in [Value::Null, json!(["blue"])] {
        let (world, network) = static_chain(serves);
        let result = world.call("ADD", "c1", &network).success();
        assert_eq!(result["ips"], json!([{"address": STATIC}]));
        let mut after = network.clone();
        after["prevResult"] = result;
        world.call("CHECK", "c1", &after).success();
        world.call("CHECK", "c1", &network).success();
        world.call("DEL", "c1", &after).success();
        assert!(!world.record("c1").exists());
        world.call("CHECK", "c1", &after).success();
    }
}

#[test]
fn without_a_record_only_the_store_knows_what_an_add_took() {
    let (world, network) = static_chain(Value::Null);
    world.call("DEL", "c1", &network).failure();
}

#[test]
fn lint_misses_no_pool_where_static_addresses_are_named() {
    let (world, network) = static_chain(Value::Null);
    std::fs::remove_file(world.path("leases")).unwrap();
    world.conflist("10-net.conflist", &network);
    let linted = world.typed(&["lint", "net"]);
    assert!(!linted.stdout.contains("error"), "{}", linted.stdout);
}

#[test]
fn an_allocator_without_a_pool_gives_static_addresses_alone() {
    let world = World::new();
    let fixed = json!([{"address": STATIC}]);
    let answer = json!({"pools": [], "static": fixed});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    let answer = json!({"pools": [], "ips": [fixed[0], {"address": "10.0.0.2/24"}]});
    world.delegate("ipam-da-x", &format!("printf '%s' '{answer}'"));
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert!(
        code == 112 && text.contains("the answer gives 10.0.0.2, and serves no pool"),
        "{text}"
    );
}

#[test]
fn a_runtimes_result_without_the_static_address_fails_check() {
    let (world, network) = chain();
    let mut result = world.call("ADD", "c1", &network).success();
    result["ips"].as_array_mut().unwrap().pop();
    let mut after = network.clone();
    after["prevResult"] = result;
    let (code, text) = world.call("CHECK", "c1", &after).failure();
    assert!(text.contains(STATIC), "{code}: {text}");
}

#[test]
fn explain_shows_the_static_addresses_that_an_allocator_would_get() {
    let (world, network) = chain();
    world.conflist("10-net.conflist", &network);
    let text = world.typed(&["explain", "net"]).stdout;
    let (_, allocator) = text.split_once("ADD would give it\n").unwrap();
    let line = format!(r#"prevResult.static = [{{"address":"{STATIC}","gateway":"192.0.2.1"}}]"#);
    assert!(allocator.contains(&line), "{text}");
}

#[test]
fn what_a_check_without_a_record_finds_is_what_the_pools_gave() {
    let inside = json!([{"address": "10.0.0.5/29"}]);
    for fixed in [json!([{"address": STATIC}]), inside] {
        let (world, network) = chain_with(&fixed);
        let mut after = network.clone();
        after["prevResult"] = world.call("ADD", "c1", &network).success();
        std::fs::remove_file(world.record("c1")).unwrap();
        world.call("CHECK", "c1", &after).success();
        world.call("DEL", "c1", &after).success();
        assert_eq!(world.call("CHECK", "c1", &after).failure().0, 104);
    }
}

#[test]
fn without_a_chain_a_static_address_is_not_answered() {
    let world = World::new();
    let mut network = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {
        "type": "ipam-da-local", "dataDir": world.path("leases"), "stateDir": world.path("state"),
        "ranges": [[{"subnet": "10.0.0.0/29"}]],
    }});
    network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}], "static": [{"address": STATIC}]});
    let command = world.command_of(&binary("ipam-da-local"), "ADD", "c1");
    let outcome = wait(ipam_testkit::world::start(command, &network));
    assert_eq!(outcome.ips(), ["10.0.0.2/29"]);
}
