//! The contract between the chain and its delegates, with real processes.

mod support;

use serde_json::json;
use support::World;

#[test]
fn delegates_run_in_order_and_each_sees_the_one_before() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("ipam-da-x", "10.0.0.2/24");
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(result, json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}));
    let calls = world.calls();
    assert_eq!(calls[0]["stdin"]["prevResult"], json!({"cniVersion": "1.0.0", "ips": []}));
    assert_eq!(calls[0]["stdin"]["ipam"]["type"], "ipam-ds-x");
    assert_eq!(calls[1]["stdin"]["prevResult"]["pools"], json!([{"name": "blue"}]));
    assert_eq!(calls[1]["stdin"]["type"], "bridge");
    assert_eq!(world.take_calls(), ["ipam-ds-x ADD", "ipam-da-x ADD"]);
    assert_eq!(world.held(), ["ipam-da-x-c1-eth0"]);

    world.call("CHECK", "c1", &network).success();
    world.call("DEL", "c1", &network).success();
    assert_eq!(
        world.take_calls(),
        ["ipam-da-x CHECK", "ipam-da-x DEL"],
        "selectors are not run with a record"
    );
    assert!(world.held().is_empty() && !world.record("c1").exists());

    world.call("DEL", "c1", &network).success();
    assert_eq!(
        world.take_calls(),
        ["ipam-ds-x DEL", "ipam-da-x DEL"],
        "without one the whole chain runs"
    );
}

#[test]
fn a_failed_add_is_undone_in_list_order() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "a"}, {"name": "b"}]));
    world.delegate("one", "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}],\"pools\":[{\"name\":\"b\"}],\"leases\":[7]}';; esac");
    world.delegate("two", "case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\",\"details\":\"x\"}'; exit 1;; esac");
    let network = world.network(json!(["ipam-ds-x", "one", "two"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!((code, text.as_str()), (100, "two: full: x"));
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["ipam-ds-x ADD", "one ADD", "two ADD", "one DEL", "two DEL"]);
    assert_eq!(calls[3]["stdin"]["prevResult"]["leases"], json!([7]));
    assert_eq!(world.events("c1"), ["attempt", "running", "running", "failed"]);
}

#[test]
fn a_del_whose_version_was_edited_down_still_releases() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24").allocator("two", "10.0.1.2/24");
    let mut network = world.network(json!(["one", "two"]));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.0.0.2/24", "10.0.1.2/24"]);
    // No place for two addresses of a family: prevResult cannot be written in this form.
    network["cniVersion"] = json!("0.2.0");
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty());
}

#[test]
fn what_has_no_place_in_the_version_is_undone() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24").allocator("two", "10.0.1.2/24");
    let mut network = world.network(json!(["one", "two"]));
    network["cniVersion"] = json!("0.2.0");
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 1, "{text}");
    assert!(!text.contains("undo"), "{text}");
    assert_eq!(world.take_calls(), ["one ADD", "two ADD", "one DEL", "two DEL"]);
    assert!(world.held().is_empty());
}
