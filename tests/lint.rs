//! `lint`: what it shows of a network, and what it finds unsafe.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

mod support;

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use support::{Host, World, binary, with, without};

/// A chain of a selector and an allocator with this reach.
fn world(reach: &str) -> (World, Value) {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}]));
    world.answering("ipam-da-x", "10.0.0.2/24");
    world.answer(
        "ipam-da-x",
        "about",
        &json!({"name": "ipam-da-x", "role": "allocator", "reach": reach}),
    );
    let network = without(&world.network(json!(["ipam-ds-x", "ipam-da-x"])), &["stateDir"]);
    (world, network)
}

/// What was found about the network, as `level: message`, and the exit status.
fn findings(world: &World, words: &[&str]) -> (Option<i32>, Vec<String>) {
    let outcome = world.typed(&[&["lint", "net", "--json"], words].concat());
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let reports = outcome.json();
    let all = reports.as_array().unwrap().iter().flat_map(|report| {
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| format!("{}: {}", text(finding, "level"), text(finding, "message")))
    });
    (outcome.exit, all.collect())
}

#[track_caller]
fn has(findings: &[String], start: &str, words: &str) {
    let found = findings.iter().any(|it| it.starts_with(start) && it.contains(words));
    assert!(found, "{start} {words} is not in {findings:#?}");
}

#[test]
fn a_chain_is_shown_with_its_programs_and_state() {
    let (world, network) = world("cluster");
    world.conflist("10-net.conflist", &with(&network, "dbPassword", "hush"));
    let report = world.typed(&["lint", "net", "--json"]).success()[0].clone();
    let bin = world.path("bin");
    assert_eq!(
        report["chain"],
        json!([
            {"delegate": "ipam-ds-x", "role": "selector", "reach": null, "program": bin.join("ipam-ds-x")},
            {"delegate": "ipam-da-x", "role": "allocator", "reach": "cluster", "program": bin.join("ipam-da-x")},
        ])
    );
    assert_eq!(report["stateDir"], json!(world.path("state")));
    assert_eq!(report["ipam"], json!({"dataDir": world.path("data"), "dbPassword": "…"}));
    assert_eq!(world.take_calls(), ["ipam-ds-x STATUS", "ipam-da-x.cni STATUS"]);
    assert_eq!(world.asked()[0]["asked"], "about --json");
    let text = world.typed(&["lint", "net"]).stdout;
    assert!(text.contains("DELEGATE   ROLE       LEDGER OF  PROGRAM\n"), "{text}");
    assert!(text.contains("ipam-da-x  allocator  cluster    "), "{text}");
    assert!(!text.contains("hush") && !text.contains("differs"), "{text}");
}

#[test]
fn a_chain_that_cannot_be_planned_is_an_error_that_names_what_is_missing() {
    let (world, network) = world("node");
    let with_chain = |chain: Value| {
        world.conflist("10-net.conflist", &with(&network, "delegates", chain));
        world.typed(&["lint", "net", "--json"])
    };
    let outcome = with_chain(json!(["ipam-ds-x", "ipam-da-none"]));
    assert_eq!(outcome.exit, Some(1));
    let report = outcome.json()[0].clone();
    assert_eq!(report["chain"][1]["role"], "missing");
    assert_eq!(report["findings"][0]["level"], "error");
    symlink(binary("ipam-delegated"), world.path("bin/ipam-own")).unwrap();
    let report = with_chain(json!(["ipam-own"])).json()[0].clone();
    assert_eq!(report["chain"][0]["role"], "this program itself");
    assert_eq!(with_chain(json!([])).exit, Some(1));
}

#[test]
fn a_selector_that_fails_is_an_error() {
    let (world, network) = world("node");
    world.conflist("10-net.conflist", &network);
    world.delegate("ipam-ds-x", "printf '{\"code\":5,\"msg\":\"no such file\"}'; exit 1");
    let (exit, found) = findings(&world, &[]);
    assert_eq!(exit, Some(1));
    has(&found, "error: ", "ipam-ds-x: no such file");
}

#[test]
fn an_allocator_that_refuses_its_configuration_is_an_error() {
    let (world, network) = world("node");
    world.install(&binary("ipam-da-local"));
    let file = world.path("file");
    std::fs::write(&file, "").unwrap();
    let network = with(&network, "delegates", json!(["ipam-ds-x", "ipam-da-local"]));
    for data in [json!(file), json!(7)] {
        world.conflist("10-net.conflist", &with(&network, "dataDir", data.clone()));
        let (exit, found) = findings(&world, &[]);
        assert_eq!(exit, Some(1), "{data}: {found:?}");
        has(&found, "error: ", "ipam-da-local: ");
    }
}

#[test]
fn a_certificate_that_is_missing_is_an_error() {
    let (world, network) = world("node");
    world.selector("ipam-ds-x", &json!([{"ranges": [{"subnet": "10.1.0.0/24"}]}]));
    world.install(&binary("ipam-da-etcd"));
    let network = with(&network, "delegates", json!(["ipam-ds-x", "ipam-da-etcd"]));
    let store = json!({"endpoints": ["127.0.0.1:1"], "trustedCaFile": world.path("none.pem")});
    world.conflist("10-net.conflist", &with(&network, "etcd", store));
    let (exit, found) = findings(&world, &[]);
    assert_eq!(exit, Some(1), "{found:?}");
    has(&found, "error: ", "ipam-da-etcd: ipam.etcd.trustedCaFile: ");
}

#[test]
fn an_allocator_whose_store_is_away_is_a_warning() {
    let (world, network) = world("cluster");
    world.conflist("10-net.conflist", &network);
    let status = "if [ \"$CNI_COMMAND\" = STATUS ]; then \
                  printf '{\"code\":103,\"msg\":\"no leader\"}'; exit 1; fi";
    world.delegate("ipam-da-x", status);
    let (exit, found) = findings(&world, &[]);
    assert_eq!(exit, Some(0));
    has(&found, "warning: ", "ipam-da-x: no leader");
    world.delegate("ipam-ds-x", "printf '{\"code\":5,\"msg\":\"no such file\"}'; exit 1");
    let (_, found) = findings(&world, &[]);
    assert!(!found.iter().any(|it| it.contains("no leader")), "its pools are not known: {found:?}");
}

#[test]
fn state_that_a_reboot_empties_is_a_warning_where_the_ledger_is_shared() {
    let memory = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let state = format!("--state-dir={}", memory.path().join("state").display());
    for (reach, level) in [("cluster", "warning: "), ("node", "note: "), ("moon", "note: ")] {
        let (world, network) = world(reach);
        world.conflist("10-net.conflist", &network);
        let (exit, found) = findings(&world, &[&state]);
        assert_eq!(exit, Some(0), "{found:?}");
        has(&found, level, "lies on a tmpfs");
    }
}

#[test]
fn a_transient_machine_id_is_a_warning_where_the_ledger_is_shared() {
    let (world, network) = world("cluster");
    let file = world.conflist("10-net.conflist", &network);
    let host = Host::new();
    let lint = || {
        let typed = world.typing(&["lint", file.to_str().unwrap()]);
        let mut command = host.enter(typed.get_program());
        let output = command.args(typed.get_args()).env_remove("CNI_COMMAND").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    host.shell("mount -t tmpfs tmpfs /mnt && echo 0123456789abcdef0123456789abcdef >/mnt/id");
    host.shell("[ -e /etc/machine-id ] && mount --bind /mnt/id /etc/machine-id");
    let text = lint();
    assert!(text.contains("warning: /etc/machine-id is a mount from memory"), "{text}");
    host.shell("echo uninitialized >/mnt/id");
    assert!(lint().contains("warning: /etc/machine-id is not initialized yet"));
    host.settings(&json!({"node": "rack1-7"}));
    assert!(!lint().contains("machine-id"), "the name in the settings lasts");
}

#[test]
fn a_state_folder_of_the_network_is_a_warning() {
    let (world, _) = world("node");
    world.conflist("10-net.conflist", &world.network(json!(["ipam-da-x"])));
    let (exit, found) = findings(&world, &[]);
    assert_eq!(exit, Some(0));
    has(&found, "warning: ", "ipam.stateDir is set");
}

#[test]
fn a_preset_tells_its_differences_and_which_program_stands_behind_its_name() {
    let world = World::new();
    world
        .selector("ipam-ds-static", &json!([{"name": "a"}]))
        .answering("ipam-da-local", "10.0.0.2/24");
    let mut network = world.network(json!([]));
    network["ipam"] = json!({"type": "host-local", "subnet": "10.0.0.0/24"});
    world.conflist("10-net.conflist", &network);
    world.allocator("host-local", "10.0.9.2/24");
    let (exit, found) = findings(&world, &[]);
    assert_eq!(exit, Some(0));
    has(&found, "warning: ", "the real host-local runs");

    std::fs::remove_file(world.path("bin/host-local")).unwrap();
    symlink(binary("ipam-delegated"), world.path("bin/host-local")).unwrap();
    let (_, found) = findings(&world, &[]);
    has(&found, "note: ", "host-local.orig is missing");
    let report = world.typed(&["lint", "net", "--json"]).success()[0].clone();
    let names: Vec<&Value> =
        report["chain"].as_array().unwrap().iter().map(|link| &link["delegate"]).collect();
    assert_eq!(names, ["ipam-ds-static", "ipam-da-local"]);
    assert!(report["differences"][0].as_str().unwrap().contains("duplicate allocation"));
    world.allocator("host-local.orig", "10.0.9.2/24");
    let (_, found) = findings(&world, &[]);
    assert!(!found.iter().any(|it| it.contains(".orig")), "{found:?}");
}

#[test]
fn a_replaced_program_among_the_delegates_is_a_note() {
    let (world, network) = world("node");
    world.allocator("host-local", "10.0.9.2/24");
    world.conflist(
        "10-net.conflist",
        &with(&network, "delegates", json!(["ipam-ds-x", "host-local"])),
    );
    let (exit, found) = findings(&world, &[]);
    assert_eq!(exit, Some(0));
    has(&found, "note: ", "the real host-local runs");
    let report = world.typed(&["lint", "net", "--json"]).success()[0].clone();
    assert_eq!(report["chain"][1]["role"], "standard plugin");
    assert_eq!(report["chain"][1]["reach"], "unknown");
}

#[test]
fn versions_that_lack_something_are_notes() {
    let (world, mut network) = world("node");
    for (version, words) in [("0.3.1", "has no CHECK"), ("1.1.0", "containerd before 2.0")] {
        network["cniVersion"] = json!(version);
        world.conflist("10-net.conflist", &network);
        has(&findings(&world, &[]).1, "note: ", words);
    }
    network["cniVersion"] = json!("1.0.0");
    world.conflist("10-net.conflist", &network);
    assert!(!findings(&world, &[]).1.iter().any(|it| it.contains("cniVersion")));
}
