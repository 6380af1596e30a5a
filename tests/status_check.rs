//! STATUS and CHECK of a chain.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;

use ipam_testkit::world::{Host, World, start, wait, with};
use serde_json::{Value, json};

fn error(code: u32, message: &str) -> String {
    format!("printf '{{\"code\":{code},\"msg\":\"{message}\"}}'; exit 1")
}

#[test]
fn status_shows_each_delegate_the_pools_and_settings_and_prints_nothing() {
    let world = World::new();
    let answer = json!({"pools": [{"name": "blue"}], "ipam": {"rangeRules": "z"}});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.delegate("ipam-da-x", r#"printf '{"ips":[]}'"#).delegate("last", "");
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x", "last"]));
    let outcome = world.status(&network);
    assert_eq!(outcome.stdout, "");
    outcome.success();
    let calls = world.calls();
    for call in &calls[1..] {
        assert_eq!(call["stdin"]["prevResult"]["pools"], json!([{"name": "blue"}]), "{call}");
        assert_eq!(call["stdin"]["ipam"]["rangeRules"], "z");
    }
    assert_eq!(world.take_calls(), ["ipam-ds-x STATUS", "ipam-da-x STATUS", "last STATUS"]);
    assert!(
        ipam_testkit::world::names(&world.path("state/attachments")).is_empty(),
        "STATUS records nothing"
    );
}

#[test]
fn status_passes_over_plugins_that_do_not_know_it_and_no_other_error() {
    for (code, message, is_ready) in [
        (4, "unknown", true),
        (3, "container id is empty", true),
        (100, "unknown CNI_COMMAND: STATUS", true),
        (1, "incompatible CNI versions", false),
        (7, "no ranges", false),
        (50, "full", false),
    ] {
        let world = World::new();
        world.delegate("a", &error(code, message)).delegate("b", "");
        let outcome = world.status(&world.network(json!(["a", "b"])));
        if is_ready {
            assert_eq!(outcome.success(), Value::Null);
        } else {
            let (answered, text) = outcome.failure();
            assert_eq!(answered, u64::from(code));
            assert!(text.starts_with(&format!("a: {message}")), "{text}");
        }
        let mut calls = world.take_calls();
        // It is asked whether it knows the version.
        calls.retain(|call| !(is_ready && call == "a VERSION"));
        assert_eq!(calls, ["a STATUS", "b STATUS"]);
    }
}

#[test]
fn status_fails_with_a_selector_whose_source_is_away_and_names_all_that_failed() {
    let world = World::new();
    world.delegate("ipam-ds-x", &error(103, "away")).delegate("b", &error(50, "full"));
    let (code, text) = world.status(&world.network(json!(["ipam-ds-x", "b"]))).failure();
    assert_eq!(code, 103);
    assert!(text.contains("ipam-ds-x: away") && text.contains("b: full"), "{text}");
}

#[test]
fn status_fails_where_an_add_would_find_no_delegate() {
    let world = World::new();
    let (code, text) = world.status(&world.network(json!(["nobody-installed-it"]))).failure();
    assert_eq!(code, 7, "{text}");
}

#[test]
fn status_fails_where_the_state_folder_cannot_be_written() {
    let (world, host) = (World::new(), Host::new());
    world.delegate("a", "");
    let mut network = ipam_testkit::world::without(&world.network(json!(["a"])), &["stateDir"]);
    network["cniVersion"] = json!("1.1.0");
    let call = || {
        let mut command = host.command(&world, "STATUS", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        wait(start(command, &network))
    };
    call().success();
    host.shell("mount -o remount,ro /var/lib/cni");
    let (code, text) = call().failure();
    assert_eq!(code, 50, "{text}");
    assert!(text.contains("/var/lib/cni/ipam-delegated is not writable"), "{text}");
    host.shell("mount -o remount,rw /var/lib/cni");
    call().success();
}

#[test]
fn check_fails_when_an_allocator_holds_the_address_no_more() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let outcome = world.call("CHECK", "c1", &network);
    assert_eq!(outcome.stdout, "");
    outcome.success();
    fs::remove_file(world.path("held/a-c1-eth0")).unwrap();
    let (code, text) = world.call("CHECK", "c1", &network).failure();
    assert_eq!((code, text.as_str()), (104, "a: not held: "));
}

#[test]
fn check_gives_each_allocator_its_pools_leases_and_the_runtimes_result() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["ipam-ds-x", "a"]));
    let result = world.call("ADD", "c1", &network).success();
    world.take_calls();
    let mut checked = network.clone();
    // Addresses of other plugins are not its affair.
    checked["prevResult"] = result;
    checked["prevResult"]["ips"].as_array_mut().unwrap().push(json!({"address": "192.0.2.9/24"}));
    world.call("CHECK", "c1", &checked).success();
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["a CHECK"]);
    let shown = &calls[0]["stdin"]["prevResult"];
    assert_eq!(shown["pools"], json!([{"name": "blue"}]));
    assert_eq!(shown["leases"], json!(["a"]));
    assert_eq!(shown["ips"].as_array().unwrap().len(), 2);
}

#[test]
fn check_without_a_record_asks_the_chain_as_configured() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("a", "10.0.0.2/24");
    let network = with(&world.network(json!(["ipam-ds-x", "a"])), "timeout", "10s");
    let (code, _) = world.call("CHECK", "c1", &network).failure();
    assert_eq!(code, 104);
    assert_eq!(world.calls()[1]["stdin"]["prevResult"]["pools"], json!([{"name": "blue"}]));
    assert_eq!(world.take_calls(), ["ipam-ds-x CHECK", "a CHECK"]);
    assert!(!world.record("c1").exists(), "CHECK leaves no record");
}

#[test]
fn check_of_what_no_add_gave_is_error_104() {
    let world = World::new();
    world.full("a");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).failure();
    world.take_calls();
    let (code, text) = world.call("CHECK", "c1", &network).failure();
    assert_eq!(code, 104);
    assert!(text.contains("c1/eth0 holds no address: its record is failed"), "{text}");
    assert!(world.take_calls().is_empty());
}
