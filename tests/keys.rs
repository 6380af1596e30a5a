//! Misspelt keys: what a call refuses or warns of, and what `lint` finds.

#![allow(clippy::unwrap_used, reason = "a test, with helpers of its own")]

use std::os::unix::fs::symlink;
use std::process::Command;

use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// The chain of ranges from the configuration and leases on the disk.
fn local() -> World {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-local"));
    world
}

/// An object with one more member.
fn set(object: &Value, key: &str, value: impl Into<Value>) -> Value {
    let mut object = object.clone();
    object[key] = value.into();
    object
}

fn of(world: &World, delegates: Value) -> Value {
    set(&world.network(delegates), "cniVersion", "1.1.0")
}

/// A network of the chain of [`local`], with these members of `ipam`.
fn network(world: &World, ipam: &Value) -> Value {
    let mut network = of(world, json!(["ipam-ds-static", "ipam-da-local"]));
    for (key, value) in ipam.as_object().unwrap() {
        network["ipam"][key] = value.clone();
    }
    network
}

/// A network whose only range has one more member.
fn with_range(world: &World, key: &str, value: Value) -> Value {
    let range = set(&json!({"subnet": "10.210.1.0/24"}), key, value);
    network(world, &json!({"ranges": [[range]]}))
}

/// What a call has logged about keys.
fn warnings(outcome: &Outcome) -> Vec<&str> {
    outcome.stderr.lines().filter(|line| line.contains(" is ignored (did you mean ")).collect()
}

/// Asserts that a call has logged one warning about keys, with these words.
#[track_caller]
fn assert_warned_once(outcome: &Outcome, words: &str) {
    let told = warnings(outcome);
    assert!(told.len() == 1 && told[0].contains("[WARN]") && told[0].contains(words), "{told:#?}");
}

/// The errors of `lint` on a network, each of which makes it fail.
fn lint(world: &World, network: &Value) -> Vec<String> {
    world.conflist("10-net.conflist", network);
    let cache = format!("--cache-dir={}", world.path("results").display());
    let outcome = world.typed(&["lint", "net", "--json", &cache]);
    let reports = outcome.json();
    let findings = reports[0]["findings"].as_array().unwrap().iter();
    let errors = findings.filter(|finding| finding["level"] == "error");
    let errors: Vec<_> =
        errors.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect();
    assert_eq!(outcome.exit, Some(i32::from(!errors.is_empty())), "{errors:#?}");
    errors
}

#[test]
fn a_misspelt_key_fails_add_status_and_lint_by_its_place() {
    let range = |key: &str, value: Value| json!({"ranges": [[set(&json!({"subnet": "10.210.1.0/24"}), key, value)]]});
    let pool = |key: &str, value: Value| {
        let pool = json!({"name": "a", "ranges": [{"subnet": "10.210.1.0/24"}]});
        json!({"pools": [set(&pool, key, value)]})
    };
    let in_pool =
        json!({"pools": [{"ranges": [{"subnet": "10.210.1.0/24", "rangeStat": "10.210.1.9"}]}]});
    let route =
        json!({"subnet": "10.210.1.0/24", "routes": [{"dst": "0.0.0.0/0", "gws": "10.210.1.1"}]});
    for (ipam, place) in [
        (
            range("rangeStat", json!("10.210.1.9")),
            "ipam.ranges[0][0].rangeStat: unknown key (did you mean rangeStart?)",
        ),
        (
            range("range_end", json!("10.210.1.9")),
            "ipam.ranges[0][0].range_end: unknown key (did you mean rangeEnd?)",
        ),
        (
            range("excludes", json!(["10.210.1.2"])),
            "ipam.ranges[0][0].excludes: unknown key (did you mean exclude?)",
        ),
        (
            range("gatway", json!("10.210.1.254")),
            "ipam.ranges[0][0].gatway: unknown key (did you mean gateway?)",
        ),
        (
            range("Subnet", json!("10.210.2.0/24")),
            "ipam.ranges[0][0].Subnet: unknown key (did you mean subnet?)",
        ),
        (
            pool("requestedIp", json!("10.210.1.9")),
            "ipam.pools[0].requestedIp: unknown key (did you mean requested-ip?)",
        ),
        (
            pool("strateyg", json!("lowest")),
            "ipam.pools[0].strateyg: unknown key (did you mean strategy?)",
        ),
        (pool("Ranges", json!([])), "ipam.pools[0].Ranges: unknown key (did you mean ranges?)"),
        (in_pool, "ipam.pools[0].ranges[0].rangeStat: unknown key (did you mean rangeStart?)"),
        (route, "ipam.routes[0].gws: unknown key (did you mean gw?)"),
    ] {
        let world = local();
        let network = network(&world, &ipam);
        for outcome in [world.call("ADD", "c1", &network), world.call("STATUS", "", &network)] {
            let (_, text) = outcome.failure();
            assert!(text.starts_with(&format!("ipam-ds-static: {place}")), "{text}");
        }
        let (code, _) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 7);
        let errors = lint(&world, &network);
        assert!(errors.len() == 1 && errors[0].contains(place), "{errors:#?}");
        // No address is held by then, and the allocator refuses it alone as well.
        assert!(!world.path("data/net").exists());
        let mut alone = network.clone();
        alone["ipam"]["type"] = "ipam-da-local".into();
        let command = world.command_of(&binary("ipam-da-local"), "ADD", "c1");
        let (code, text) = wait(start(command, &alone)).failure();
        assert!(code == 7 && text.starts_with(place), "{code} {text}");
    }
}

#[test]
fn keys_of_third_delegates_are_kept() {
    let world = local();
    let range = json!({"subnet": "10.210.1.0/24", "vlan": 7, "node": "n", "comment": "x"});
    let pools = json!([{"name": "a", "note": 1, "colour": {"nmae": 1}, "ranges": [range]}]);
    let network = network(&world, &json!({"pools": pools, "subnets": 1, "Server": {"x": 1}}));
    let outcome = world.call("ADD", "c1", &network);
    assert_eq!(warnings(&outcome), [""; 0]);
    assert_eq!(outcome.ips(), ["10.210.1.2/24"]);
    assert_eq!(lint(&world, &network), [""; 0]);
}

#[test]
fn what_an_earlier_release_took_is_released_and_checked() {
    let world = local();
    let held = |container: &str| world.path("data/net").join(container).exists();
    let (good, bad) = (
        with_range(&world, "comment", json!(1)),
        with_range(&world, "rangeStat", json!("10.210.1.9")),
    );
    for container in ["c1", "c2"] {
        world.call("ADD", container, &good).success();
    }
    let result = |address: &str| json!({"cniVersion": "1.1.0", "ips": [{"address": address}]});
    let check = set(&bad, "prevResult", result("10.210.1.2/24"));
    world.call("CHECK", "c1", &check).ended_well();
    world.call("DEL", "c1", &bad).ended_well();
    assert!(!held("10.210.1.2") && held("10.210.1.3"));
    // Without a record the chain runs as it is configured.
    std::fs::remove_dir_all(world.path("state/attachments")).unwrap();
    let check = set(&bad, "prevResult", result("10.210.1.3/24"));
    world.call("CHECK", "c2", &check).ended_well();
    let outcome = world.call("DEL", "c2", &bad);
    assert!(!outcome.stderr.contains("rangeStat"), "{}", outcome.stderr);
    outcome.ended_well();
    assert!(!held("10.210.1.3"));
    world.call("ADD", "c3", &good).success();
    let gc = set(&bad, "cni.dev/valid-attachments", json!([]));
    world.call("GC", "", &gc).ended_well();
}

#[test]
fn a_preset_warns_once_and_serves_its_unchanged_configuration() {
    for (key, place) in [
        (
            json!({"rangeStat": "10.210.1.9"}),
            "ipam.ranges[0][0].rangeStat is ignored (did you mean rangeStart?)",
        ),
        (
            json!({"Exclude": ["10.210.1.2"]}),
            "ipam.ranges[0][0].Exclude is ignored (did you mean exclude?)",
        ),
    ] {
        let world = local();
        symlink(binary("ipam-delegated"), world.path("bin/host-local")).unwrap();
        let (name, value) = key.as_object().unwrap().iter().next().unwrap();
        let mut network = with_range(&world, name, value.clone());
        network["ipam"]["type"] = "host-local".into();
        network["ipam"].as_object_mut().unwrap().remove("delegates");
        let call = |verb: &str, container: &str| {
            let program = world.path("bin/host-local");
            wait(start(world.command_of(&program, verb, container), &network))
        };
        for (verb, container) in [("ADD", "c1"), ("STATUS", "")] {
            let outcome = call(verb, container);
            assert_warned_once(&outcome, place);
            outcome.ended_well();
        }
        let errors = lint(&world, &network);
        let (path, _) = place.split_once(" is").unwrap();
        assert!(errors.len() == 1 && errors[0].starts_with(path), "{errors:#?}");
        let outcome = call("DEL", "c1");
        assert_eq!(warnings(&outcome), [""; 0]);
        outcome.ended_well();
    }
}

#[test]
fn a_preset_ignores_a_strategy_in_a_range() {
    let world = local();
    symlink(binary("ipam-delegated"), world.path("bin/host-local")).unwrap();
    let mut network = with_range(&world, "strategy", json!("of another program"));
    network["ipam"]["type"] = "host-local".into();
    network["ipam"].as_object_mut().unwrap().remove("delegates");
    for (verb, container, warnings) in [("ADD", "c1", 1), ("STATUS", "", 0), ("DEL", "c1", 0)] {
        let program = world.path("bin/host-local");
        let outcome = wait(start(world.command_of(&program, verb, container), &network));
        let told = outcome.stderr.matches("ipam.ranges[0][0].strategy: ").count();
        assert_eq!(told, warnings, "{verb}: {outcome:?}");
        outcome.ended_well();
    }
}

#[test]
fn pools_of_somebody_elses_selector_are_warned_of_once() {
    let world = local();
    let pools =
        json!([{"naem": "a", "ranges": [{"subnet": "10.210.1.0/24", "gatway": "10.210.1.9"}]}]);
    world.selector("ipam-ds-x", &pools);
    let mut network = of(&world, json!(["ipam-ds-x", "ipam-da-local"]));
    network["ipam"].as_object_mut().unwrap().remove("ranges");
    for (verb, container) in [("ADD", "c1"), ("STATUS", "")] {
        let outcome = world.call(verb, container, &network);
        let words = "prevResult.pools[0].naem is ignored (did you mean name?); \
                     prevResult.pools[0].ranges[0].gatway is ignored (did you mean gateway?)";
        assert_warned_once(&outcome, words);
        outcome.ended_well();
    }
    let errors = lint(&world, &network);
    let expected = [
        "pools[0].naem: unknown key (did you mean name?)",
        "pools[0].ranges[0].gatway: unknown key (did you mean gateway?)",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, place) in errors.iter().zip(expected) {
        assert!(error.starts_with(&format!("ipam-ds-x: its answer's {place}")), "{error}");
    }
}

#[test]
fn a_misspelt_key_in_a_section_of_a_delegate_is_named() {
    let ranges = json!([[{"subnet": "10.210.1.0/24"}]]);
    for (program, ipam, place) in [
        (
            "ipam-da-etcd",
            json!({"etcd": {"endpoint": ["127.0.0.1:1"]}, "ranges": ranges}),
            "ipam.etcd.endpoint: unknown key (did you mean endpoints?)",
        ),
        (
            "ipam-da-etcd",
            json!({"etcd": {"endpoints": ["127.0.0.1:1"], "trustedCAfile": "/c"}, "ranges": ranges}),
            "ipam.etcd.trustedCAfile: unknown key (did you mean trustedCaFile?)",
        ),
        (
            "ipam-da-etcd",
            json!({"etcdConfig": {"etcdURLs": "http://127.0.0.1:1"}, "ranges": ranges}),
            "ipam.etcdConfig.etcdURLs: unknown key (did you mean etcdURL?)",
        ),
        (
            "ipam-da-consul",
            json!({"consul_servers": ["http://127.0.0.1:1"], "consul": {"tokenfile": "/t"}, "ranges": ranges}),
            "ipam.consul.tokenfile: unknown key (did you mean tokenFile?)",
        ),
        (
            "ipam-da-kube",
            json!({"kube": {"kubeconfig": "/k", "networkname": "blue"}, "ranges": ranges}),
            "ipam.kube.networkname: unknown key (did you mean networkName?)",
        ),
        (
            "ipam-da-openwisp",
            json!({"openwisp": {"url": "http://127.0.0.1:1", "tokenfile": "/t"}, "ranges": ranges}),
            "ipam.openwisp.tokenfile: unknown key (did you mean tokenFile?)",
        ),
        (
            "ipam-da-phpipam",
            json!({"phpipam": {"url": "http://127.0.0.1:1", "appid": "cni"}, "ranges": ranges}),
            "ipam.phpipam.appid: unknown key (did you mean appId?)",
        ),
        (
            "ipam-ds-nomad",
            json!({"nomad_servers": ["http://127.0.0.1:1"], "nomad": {"timeot": "1s"}}),
            "ipam.nomad.timeot: unknown key (did you mean timeout?)",
        ),
    ] {
        let world = World::new();
        let mut network = of(&world, json!([]));
        network["ipam"] = ipam;
        network["ipam"]["stateDir"] = world.path("state").display().to_string().into();
        for (verb, container) in [("ADD", "c1"), ("STATUS", "")] {
            let command = world.command_of(&binary(program), verb, container);
            let (code, text) = wait(start(command, &network)).failure();
            assert!(code == 7 && text.starts_with(place), "{verb}: {code} {text}");
        }
    }
}

#[test]
fn a_section_of_a_replaced_system_is_warned_of() {
    let world = World::new();
    let mut network = of(&world, json!([]));
    network["ipam"] = json!({"rangeRules": "etcd", "etcd": {"layout": "cni-ipam-etcd", "timeout": "1s"},
        "ranges": [[{"subnet": "10.210.1.0/24"}]], "stateDir": world.path("state"),
        "etcdConfig": {"etcdURL": "http://127.0.0.1:1", "etcdCertFiles": "/c"}});
    let outcome = wait(start(world.command_of(&binary("ipam-da-etcd"), "STATUS", ""), &network));
    let words = "ipam.etcdConfig.etcdCertFiles is ignored (did you mean etcdCertFile?)";
    assert_warned_once(&outcome, words);
    let (_, text) = outcome.failure();
    assert!(!text.contains("etcdCertFiles"), "{text}");
}

#[test]
fn a_person_reads_and_releases_what_was_given_before() {
    let world = local();
    let network = with_range(&world, "rangeStat", json!("10.210.1.9"));
    let file = world.path("net.json");
    std::fs::write(&file, set(&network, "name", "net").to_string()).unwrap();
    let list = Command::new(binary("ipam-da-local"))
        .env_clear()
        .args(["pools", "--config", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(list.status.code(), Some(0), "{list:?}");
}
