//! The contract between the chain and its delegates, with real processes.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ipam_testkit::world::{World, start, wait};
use serde_json::{Value, json};

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
    for call in &calls[3..] {
        assert_eq!(call["stdin"]["prevResult"]["undo"], true, "both told what they took");
    }
    assert_eq!(world.events("c1"), ["attempt", "running", "running", "failed"]);
}

#[test]
fn a_delegate_that_did_not_tell_what_it_took_is_undone_whole() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    world.delegate("two", "case $CNI_COMMAND in ADD) kill -9 $$;; esac");
    world.call("ADD", "c1", &world.network(json!(["one", "two"]))).failure();
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["one ADD", "two ADD", "one DEL", "two DEL"]);
    assert_eq!(calls[2]["stdin"]["prevResult"]["undo"], true);
    assert_eq!(calls[3]["stdin"]["prevResult"].get("undo"), None);
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

#[test]
fn an_add_starts_with_an_empty_result_whatever_our_caller_is_chained_behind() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let mut network = world.network(json!(["a"]));
    network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.9/24"}], "dns": {"domain": "x"}});
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.0.0.2/24"]);
    assert_eq!(world.calls()[0]["stdin"]["prevResult"], json!({"cniVersion": "1.0.0", "ips": []}));
    world.take_calls();
    // DEL is given the runtime's.
    world.call("DEL", "c1", &network).success();
    let given = &world.calls()[0]["stdin"]["prevResult"];
    assert_eq!(given["ips"], json!([{"address": "192.0.2.9/24"}]));
    assert_eq!(given["leases"], json!(["a"]));
}

#[test]
fn the_environment_goes_on_unchanged() {
    let world = World::new();
    let seen = world.path("environment");
    world.delegate(
        "a",
        &format!(
            "case $CNI_COMMAND in ADD) tr '\\0' '\\n' </proc/$$/environ >'{0}'; printf '{{\"code\":100,\"msg\":\"full\"}}'; exit 1;;\n\
             DEL) tr '\\0' '\\n' </proc/$$/environ >'{0}.undo';; esac",
            seen.display()
        ),
    );
    let mut command = world.command("ADD", "c1");
    command.env("CNI_ARGS", "b=2;a=1;b=3;").env("HTTP_PROXY", "http://p:1").env("EMPTY", "");
    let given: BTreeSet<String> = command
        .get_envs()
        .map(|(key, value)| {
            format!("{}={}", key.to_str().unwrap(), value.unwrap().to_str().unwrap())
        })
        .collect();
    wait(start(command, &world.network(json!(["a"])))).failure();
    let read = |path: &Path| -> BTreeSet<String> {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .filter(|line| !line.starts_with("IPAM_DELEGATED_"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(read(&seen), given);
    let of_undo = given.iter().map(|line| line.replace("CNI_COMMAND=ADD", "CNI_COMMAND=DEL"));
    assert_eq!(read(&world.path("environment.undo")), of_undo.collect::<BTreeSet<_>>());
}

#[test]
fn settings_of_several_selectors_are_merged_one_after_the_other() {
    let world = World::new();
    let answer = |ipam: Value| {
        let answer = json!({"pools": [{"name": "p", "colour": {"of": [1]}}], "ipam": ipam});
        format!("printf '%s' '{answer}'")
    };
    world.delegate("ipam-ds-a", &answer(json!({"k": {"a": 1}, "old": null, "gone": {"x": 1}})));
    world.delegate("ipam-ds-b", &answer(json!({"k": {"b": 2}, "old": {"new": 1}, "gone": null})));
    world.allocator("a", "10.0.0.2/24");
    let mut network = world.network(json!(["ipam-ds-a", "ipam-ds-b", "a"]));
    network["ipam"]["k"] = json!({"c": 3});
    network["ipam"]["old"] = json!({"was": 0});
    world.call("ADD", "c1", &network).success();
    let given = world.calls().remove(2);
    let ipam = &given["stdin"]["ipam"];
    assert_eq!(ipam["k"], json!({"a": 1, "b": 2, "c": 3}));
    assert_eq!(ipam["old"], json!({"new": 1}));
    assert!(ipam.get("gone").is_none(), "{ipam}");
    // What nobody knows of a pool goes through.
    let pools = &given["stdin"]["prevResult"]["pools"];
    assert_eq!(pools, &json!([{"name": "p", "colour": {"of": [1]}}]));
}

#[test]
fn what_a_selector_may_not_set_is_an_error_that_names_the_key_and_is_undone() {
    for key in ["type", "delegates", "timeout", "stateDir", "logDir", "dataDir"] {
        let world = World::new();
        let answer = json!({"pools": [], "ipam": {key: "/etc"}});
        world.allocator("a", "10.0.0.2/24").delegate(
            "ipam-ds-late",
            &format!("case $CNI_COMMAND in ADD) printf '%s' '{answer}';; esac"),
        );
        let network = world.network(json!(["a", "ipam-ds-late"]));
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 110, "{text}");
        let start = format!("ipam-ds-late: its answer sets ipam.{key}");
        assert!(text.starts_with(&start), "{text}");
        assert!(world.held().is_empty());
    }
}

#[test]
fn pools_that_nobody_served_are_an_error_and_what_was_served_is_undone() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "red"}]));
    let held = world.path("took");
    let answer = json!({"ips": [{"address": "10.0.0.2/24"}], "pools": [{"name": "red"}]});
    world.delegate(
        "a",
        &format!(
            "case $CNI_COMMAND in ADD) : >'{0}'; printf '%s' '{answer}';; DEL) rm '{0}';; esac",
            held.display()
        ),
    );
    let network = world.network(json!(["ipam-ds-x", "a"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 112);
    assert!(text.starts_with("no delegate served the pool \"red\""), "{text}");
    assert!(!held.exists());
    assert_eq!(world.take_calls(), ["ipam-ds-x ADD", "a ADD", "a DEL"]);
}

#[test]
fn a_delegate_is_a_program_of_the_plugin_folders() {
    let world = World::new();
    world.allocator("ipam-da-x", "10.0.0.2/24").program("elsewhere", "#!/bin/sh\n: >\"$0.ran\"\n");
    let elsewhere = world.path("bin/elsewhere").display().to_string();
    for name in [&*elsewhere, "./elsewhere", "../bin/elsewhere", "..", ""] {
        for delegate in [json!(name), json!({"type": name})] {
            let network = world.network(json!(["ipam-da-x", delegate]));
            let (code, text) = world.call("ADD", "c1", &network).failure();
            assert!(code == 7 && text.contains("invalid delegate name"), "{text}");
        }
    }
    assert!(world.take_calls().is_empty() && !world.path("bin/elsewhere.ran").exists());
}

#[test]
fn a_standard_plugin_that_looks_at_no_result_loses_none() {
    let world = World::new();
    let first = json!({
        "ips": [{"address": "fd00::2/64"}], "pools": [{"name": "blue"}],
        "routes": [{"dst": "::/0", "mtu": 1400, "table": 7}], "dns": {"nameservers": ["fd00::1"]},
    });
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "six"}]));
    world.delegate("six", &format!("case $CNI_COMMAND in ADD) printf '%s' '{first}';; esac"));
    let second = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}], "dns": {}});
    world.delegate("four", &format!("case $CNI_COMMAND in ADD) printf '%s' '{second}';; esac"));
    // The object says that the plugin's own range is this pool's.
    let four = json!({"type": "four", "serves": ["blue"]});
    let network = world.network(json!(["ipam-ds-x", "six", four]));
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(result["ips"], json!([{"address": "fd00::2/64"}, {"address": "10.0.0.2/24"}]));
    assert_eq!(result["routes"], first["routes"]);
    assert_eq!(result["dns"], first["dns"]);
    for key in ["pools", "leases", "ipam"] {
        assert!(result.get(key).is_none(), "{result}");
    }
}
