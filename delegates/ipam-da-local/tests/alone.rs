//! The allocator without a selector: as the runtime's own IPAM plugin, or alone in a chain.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::{Command, Output, Stdio};

use ipam_testkit::world::{Outcome, binary, start, wait};
use serde_json::{Value, json};

use common::{C1, LONG, Place, Program, leases, owned_by};

const BOTH: [&str; 2] = ["10.5.0.0/24", "fd05::/64"];

/// The advice to who gives an allocator nothing to serve.
const SELECTOR: &str = "put a selector (ipam-ds-…) before this delegate in ipam.delegates";

/// A place whose ranges are what these members of `ipam` say.
fn place(ipam: Value) -> Place {
    let mut place = Place::new(&[]);
    place.ipam = ipam;
    place
}

fn add(place: &Place) -> Outcome {
    place.call(Program::Alone, "ADD", C1)
}

/// A configuration for a chain, with these members of `ipam`.
fn chain(place: &Place, delegates: Value, ipam: &Value) -> Value {
    let mut network = place.world.network(delegates);
    for (key, value) in ipam.as_object().unwrap() {
        network["ipam"][key] = value.clone();
    }
    network
}

fn by_hand(place: &Place, arguments: &[&str]) -> Output {
    let file = place.world.path("net.json");
    fs::write(&file, place.network(Program::Alone).to_string()).unwrap();
    Command::new(binary("ipam-da-local"))
        .env_clear()
        .args(arguments)
        .args(["--config", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn an_attachment_lives_and_goes_without_a_chain() {
    let mut place = Place::new(&BOTH);
    let resolv_conf = place.world.path("resolv.conf");
    fs::write(&resolv_conf, "nameserver 192.0.2.3\n").unwrap();
    place.ipam = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.5.0.9"}],
        "resolvConf": resolv_conf});
    let mut result = add(&place).success();
    let leases = result.as_object_mut().unwrap().remove("leases").unwrap();
    assert_eq!(leases.as_array().unwrap().len(), 2);
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.0.0",
            "ips": [{"address": "10.5.0.2/24", "gateway": "10.5.0.1"},
                    {"address": "fd05::2/64", "gateway": "fd05::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.5.0.9"}],
            "dns": {"nameservers": ["192.0.2.3"]},
            "pools": [],
        })
    );
    let node = fs::read(place.world.path("state/node")).unwrap();
    assert_eq!(add(&place).ips(), ["10.5.0.2/24", "fd05::2/64"]);
    assert_eq!(fs::read(place.world.path("state/node")).unwrap(), node);
    assert!(!place.world.path("state/attachments").exists());
    place.status(Program::Alone).success();
    place.add(Program::Alone, "other");

    // The runtime's result has neither pools nor leases, but another plugin's address.
    let mut runtimes = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}],
        "ips": result["ips"]});
    runtimes["ips"].as_array_mut().unwrap().push(json!({"address": "192.168.0.1/24"}));
    place.check(Program::Alone, C1, &runtimes).success();
    let (code, text) = place.check(Program::Alone, "third", &runtimes).failure();
    assert!(code == 104 && text.contains("10.5.0.2 is not held by"), "{code} {text}");

    // Nothing but where the leases are.
    let ipam = &place.network(Program::Alone)["ipam"];
    let bare = json!({"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "ipam-da-local",
        "dataDir": ipam["dataDir"], "stateDir": ipam["stateDir"]}});
    for _ in 0..2 {
        let mut command = place.command(Program::Alone, "DEL", C1);
        command.env_remove("CNI_NETNS");
        assert_eq!(wait(start(command, &bare)).success(), Value::Null);
        let held: Vec<_> = place.leases().into_values().collect();
        assert_eq!(held, [owned_by("other"), owned_by("other")]);
    }
    place.age(LONG);
    place.gc(Program::Alone, &[]).success();
    assert!(place.leases().is_empty());
}

#[test]
fn it_gives_what_it_gives_behind_a_selector() {
    let set = |subnet: &str| json!([{"subnet": subnet}]);
    let two = json!({"ranges": [set("10.5.0.0/24"), set("fd05::/64")],
        "routes": [{"dst": "0.0.0.0/0"}]});
    for (ipam, more, args, expected) in [
        (
            json!({"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.9", "gateway": "10.5.0.254",
                   "exclude": ["10.5.0.9"], "ranges": [set("fd05::/64")]}),
            json!({}),
            "",
            &["10.5.0.10/24", "fd05::2/64"][..],
        ),
        (json!({"rangeRules": "etcd", "subnet": "10.5.0.9/24"}), json!({}), "", &["10.5.0.11/24"]),
        (
            json!({"pools": [{"name": "a", "ranges": set("10.5.0.0/24"), "requested-ip": "10.5.0.4"},
                             {"name": "b", "ranges": set("10.6.0.0/24"), "strategy": "lowest"}]}),
            json!({}),
            "",
            &["10.5.0.4/24", "10.6.0.2/24"],
        ),
        (two.clone(), json!({}), "IgnoreUnknown=1;IP=fd05::7", &["10.5.0.2/24", "fd05::7/64"]),
        (
            two.clone(),
            json!({"args": {"cni": {"ips": ["10.5.0.7"]}}, "runtimeConfig": {"ips": ["fd05::9/64"]}}),
            "",
            &["10.5.0.7/24", "fd05::9/64"],
        ),
        (
            two.clone(),
            json!({"runtimeConfig": {"ipRanges": [set("10.6.0.0/24")]}}),
            "IP=10.6.0.7",
            &["10.6.0.7/24", "10.5.0.2/24", "fd05::2/64"],
        ),
        (two, json!({"cniVersion": "0.2.0"}), "IP=10.5.0.7", &["10.5.0.7/24", "fd05::2/64"]),
    ] {
        let mut place = place(ipam);
        place.more = more;
        let mut results = [Program::Chain, Program::Alone].map(|program| {
            let mut command = place.command(program, "ADD", C1);
            command.env("CNI_ARGS", args);
            let result = wait(start(command, &place.network(program))).success();
            place.del(program, C1);
            fs::remove_dir_all(place.folder()).unwrap();
            result
        });
        for between_delegates in ["pools", "leases"] {
            results[1].as_object_mut().unwrap().remove(between_delegates).unwrap();
        }
        assert_eq!(results[0], results[1], "{:?}", place.ipam);
        let text = results[1].to_string();
        let place_of = |address: &&str| text.find(&format!("\"{address}\""));
        let places: Vec<_> = expected.iter().map(place_of).collect();
        assert!(places.is_sorted() && places[0].is_some(), "{expected:?} {text}");
    }
}

#[test]
fn errors_are_the_selectors() {
    for (ipam, args, path) in [
        (json!({"ranges": [[{"subnet": "10.5.0.9/24"}]]}), "", "ipam.ranges[0][0].subnet: "),
        (json!({"ranges": [[{"subnet": "10.5.0.0/24"}], []]}), "", "ipam.ranges[1]: "),
        (json!({"subnet": "10.5.0.0/24", "rangeEnd": "10.6.0.1"}), "", "ipam.rangeEnd: "),
        (json!({"subnet": "10.5.0.0/24", "GATEWAY": "10.5.0.9"}), "", "ipam.GATEWAY: "),
        (json!({"subnet": "10.5.0.0/24", "routes": [{}]}), "", "ipam.routes[0].dst: "),
        (json!({"subnet": "10.5.0.0/24", "resolvConf": "/nowhere/r"}), "", "ipam.resolvConf: "),
        (json!({"pools": [{}]}), "", "ipam.pools[0]: "),
        (json!({"pools": [{"name": "a"}], "subnet": "10.5.0.0/24"}), "", "ipam.pools: "),
        (json!({"subnet": "10.5.0.0/24"}), "IP=10.5.0.1", "CNI_ARGS IP: "),
        (json!({"subnet": "10.5.0.0/24"}), "IP=pear", "CNI_ARGS IP: "),
    ] {
        let place = place(ipam);
        let [chains, its] = [Program::Chain, Program::Alone].map(|program| {
            let mut command = place.command(program, "ADD", C1);
            command.env("CNI_ARGS", args);
            wait(start(command, &place.network(program))).failure()
        });
        assert!(its.1.starts_with(path), "{its:?}");
        assert_eq!(chains, (its.0, format!("ipam-ds-static: {}", its.1)));
        assert!(!place.folder().exists());
    }
}

#[test]
fn errors_of_the_allocator_name_what_is_written() {
    for (pools, message) in [
        (json!([{"name": "blue"}]), "ipam.pools[0].ranges: missing: this store has no named pools"),
        (
            json!([{"ranges": [{"subnet": "10.5.0.0/24"}]}, {"name": "b", "strategy": "best"}]),
            "ipam.pools[1].strategy: unknown strategy \"best\": expected round-robin",
        ),
    ] {
        let place = place(json!({"pools": pools, "statusExhaustion": true}));
        for outcome in [add(&place), place.status(Program::Alone)] {
            let (code, text) = outcome.failure();
            assert!(code == 7 && text.starts_with(message), "{code} {text}");
        }
        let output = by_hand(&place, &["pools"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[test]
fn flat_ranges_are_told_the_form() {
    for (ranges, at) in [
        (json!([{"subnet": "10.5.0.0/24"}]), "ipam.ranges[0]"),
        (json!([[{"subnet": "10.5.0.0/24"}], {"subnet": "10.6.0.0/24"}]), "ipam.ranges[1]"),
        (json!({"subnet": "10.5.0.0/24"}), "ipam.ranges"),
    ] {
        let (code, text) = add(&place(json!({"ranges": ranges}))).failure();
        let message = format!(
            r#"{at}: expected a set of ranges, such as "ranges": [[{{"subnet": "10.1.2.0/24"}}]]: "#
        );
        assert!(code == 7 && text.starts_with(&message), "{code} {text}");
    }
}

#[test]
fn with_nothing_to_serve_both_ways_out_are_named() {
    let message = "prevResult.pools: missing or empty: no selector runs before this delegate";
    let ranges = r#"or give ranges in ipam, such as "ranges": [[{"subnet": "10.1.2.0/24"}]]"#;
    let nothing = place(json!({}));
    for prev_result in [json!(null), json!({"ips": []}), json!({"pools": null})] {
        let mut network = nothing.network(Program::Alone);
        network["prevResult"] = prev_result;
        let error = nothing.call_with(Program::Alone, "ADD", C1, &network).failure();
        assert_eq!(error, (7, format!("{message}: {SELECTOR}, {ranges}")));
    }
    // An allocator before has served all.
    let place = Place::new(&BOTH);
    let mut network = place.network(Program::Alone);
    network["prevResult"] = json!({"ips": [{"address": "10.9.0.2/24"}], "pools": []});
    let error = place.call_with(Program::Alone, "ADD", C1, &network).failure();
    let served = "prevResult.pools: missing or empty: an earlier delegate has served every pool: \
                  remove this delegate from ipam.delegates, or set serves of each allocator to the \
                  pools that it serves";
    assert_eq!(error, (7, served.to_owned()));
    network["prevResult"] = json!({"pools": []});
    let error = place.call_with(Program::Alone, "ADD", C1, &network).failure();
    assert_eq!(error, (7, format!("{message}: {SELECTOR}")));
    // The selectors before it alone.
    network["ipam"]["delegates"] =
        json!(["ipam-ds-x", {"type": "ipam-ds-y"}, "ipam-da-local", "ipam-ds-z"]);
    let (_, text) = place.call_with(Program::Alone, "ADD", C1, &network).failure();
    assert!(
        text.contains(
            ": ipam-ds-x, ipam-ds-y returned no pools: run ipam-delegated explain NETWORK"
        ),
        "{text}"
    );
    network["prevResult"] = json!({"pools": null});
    assert_eq!(place.call_with(Program::Alone, "ADD", C1, &network).ips().len(), 2);
}

#[test]
fn broken_ranges_stop_neither_del_nor_gc_nor_release() {
    for broken in [
        json!({"ranges": [[{"subnet": "10.5.0.0/240"}]]}),
        json!({"ranges": [{"subnet": "10.5.0.0/24"}]}),
        json!({"pools": 5}),
        json!({"subnet": "10.5.0.0/24", "Routes": []}),
        json!({"subnet": "10.5.0.0/24", "routes": "none"}),
    ] {
        let mut place = Place::new(&["10.5.0.0/24"]);
        let result = add(&place).success();
        place.add(Program::Alone, "stale");
        place.add(Program::Alone, "leaked");
        place.age(LONG);
        place.subnets.clear();
        place.ipam = broken.clone();
        let runtimes = json!({"cniVersion": "1.0.0", "ips": result["ips"]});
        for outcome in
            [add(&place), place.status(Program::Alone), place.check(Program::Alone, C1, &runtimes)]
        {
            let (code, text) = outcome.failure();
            assert!(code == 7 && text.starts_with("ipam."), "{broken}: {code} {text}");
        }
        let output = by_hand(&place, &["release", "--owner", "leaked", "--yes"]);
        assert!(output.status.success(), "{broken}: {output:?}");
        assert!(by_hand(&place, &["list"]).status.success());
        assert!(!by_hand(&place, &["pools"]).status.success(), "{broken}");
        place.gc(Program::Alone, &[C1]).success();
        assert_eq!(place.leases().len(), 1, "{broken}");
        place.del(Program::Alone, C1);
        assert!(place.leases().is_empty(), "{broken}");
    }
}

#[test]
fn a_main_plugins_result_is_not_answered() {
    let place = Place::new(&["10.5.0.0/24"]);
    let mut network = place.network(Program::Alone);
    network["prevResult"] = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}],
        "ips": [{"address": "192.168.0.1/24"}], "routes": [{"dst": "192.168.0.0/16"}]});
    let result = place.call_with(Program::Alone, "ADD", C1, &network).success();
    assert_eq!(result["ips"], json!([{"address": "10.5.0.2/24", "gateway": "10.5.0.1"}]));
    assert!(result.get("routes").is_none() && result.get("interfaces").is_none(), "{result}");
}

#[test]
fn people_are_told_by_the_ranges_of_ipam() {
    let place = place(json!({"pools": [{"name": "blue", "ranges": [{"subnet": "10.5.0.0/29"}]}]}));
    add(&place).success();
    let rows = |arguments: &[&str]| -> Value {
        let output = by_hand(&place, &[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let pools = rows(&["pools"]);
    assert_eq!(
        (&pools[0]["pool"], &pools[0]["held"], &pools[0]["free"]),
        (&json!("blue"), &json!(1), &json!(4))
    );
    for arguments in [&["list"][..], &["who", "10.5.0.2"], &["release", "10.5.0.2", "--yes"]] {
        let rows = rows(arguments);
        let shown = (&rows[0]["address"], &rows[0]["pool"], &rows[0]["containerID"]);
        assert_eq!(shown, (&json!("10.5.0.2"), &json!("blue"), &json!(C1)), "{arguments:?}");
    }
    assert!(place.leases().is_empty());
}

#[test]
fn a_chain_of_allocators_alone_serves_the_ranges() {
    let place = Place::new(&[]);
    let ranges = json!({"ranges": [[{"subnet": "10.5.0.0/24"}], [{"subnet": "fd05::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}]});
    let network = chain(&place, json!(["ipam-da-local"]), &ranges);
    let call = |verb: &str, network: &Value| place.world.call(verb, C1, network);
    let result = call("ADD", &network).success();
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.0.0",
            "ips": [{"address": "10.5.0.2/24", "gateway": "10.5.0.1"},
                    {"address": "fd05::2/64", "gateway": "fd05::1"}],
            "routes": [{"dst": "0.0.0.0/0"}],
        })
    );
    assert_eq!(call("ADD", &network).success(), result);
    let mut check = network.clone();
    check["prevResult"] = result;
    call("CHECK", &check).success();
    let stripped = json!({"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "ipam-delegated",
        "stateDir": network["ipam"]["stateDir"]}});
    call("DEL", &stripped).success();
    assert!(place.leases().is_empty());
    // All is served by the first.
    let two = chain(&place, json!(["ipam-da-local", "ipam-da-local"]), &ranges);
    let (code, text) = call("ADD", &two).failure();
    assert!(code == 7 && text.contains("prevResult.pools: missing or empty"), "{code} {text}");
    assert!(place.leases().is_empty());
}

#[test]
fn allocators_of_a_chain_share_the_pools_by_name() {
    let place = Place::new(&[]);
    let [one, other] = ["one", "other"].map(|name| place.world.path(name));
    let entry = |serves: &str, folder| json!({"type": "ipam-da-local", "serves": [serves], "dataDir": folder});
    let pools = json!({"pools": [
        {"name": "blue", "ranges": [{"subnet": "10.5.0.0/24"}]},
        {"name": "red", "ranges": [{"subnet": "10.6.0.0/24"}]},
    ]});
    let call = |verb: &str, delegates: Value| {
        place.world.call(verb, C1, &chain(&place, delegates, &pools))
    };
    let both = json!([entry("red", &other), entry("blue", &one)]);
    assert_eq!(call("ADD", both.clone()).ips(), ["10.6.0.2/24", "10.5.0.2/24"]);
    let held =
        || [&one, &other].map(|folder| leases(&folder.join("net")).into_keys().collect::<Vec<_>>());
    assert_eq!(held(), [vec!["10.5.0.2".to_owned()], vec!["10.6.0.2".to_owned()]]);
    call("DEL", both).success();
    assert_eq!(held(), [Vec::<String>::new(), Vec::new()]);
    for delegates in [json!([entry("blue", &one)]), json!([entry("green", &one)])] {
        let (code, text) = call("ADD", delegates).failure();
        assert!(code == 112 && text.contains("no delegate served"), "{code} {text}");
        assert!(text.contains("the pool \"red\""), "{text}");
        assert_eq!(held(), [Vec::<String>::new(), Vec::new()]);
    }
}

#[test]
fn behind_a_selector_the_ranges_are_not_read() {
    let place = Place::new(&[]);
    place.world.selector("ipam-ds-x", &json!([{"ranges": [{"subnet": "10.7.0.0/24"}]}]));
    let broken = json!({"ranges": "none", "routes": 5});
    let network = chain(&place, json!(["ipam-ds-x", "ipam-da-local"]), &broken);
    assert_eq!(place.world.call("ADD", C1, &network).ips(), ["10.7.0.2/24"]);
    place.world.call("DEL", C1, &network).success();
    assert!(place.leases().is_empty());
}
