//! `lint`: what it shows of a network, and what it finds unsafe.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use ipam_testkit::world::{Host, World, binary, with, without};
use serde_json::{Value, json};

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
    let cache = format!("--cache-dir={}", world.path("results").display());
    let outcome = world.typed(&[&["lint", "net", "--json", &cache], words].concat());
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
fn remarks_of_a_selector_are_warnings() {
    let (world, network) = world("cluster");
    let answer = json!({"pools": [{"name": "blue"}], "remarks": ["ipam.old has no effect"]});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.conflist("10-net.conflist", &network);
    has(&findings(&world, &[]).1, "warning: ", "ipam-ds-x: ipam.old has no effect");
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
        has(&found, level, "is on a tmpfs");
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
    assert!(text.contains("warning: /etc/machine-id is mounted from memory"), "{text}");
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
    let host_local = json!({"type": "host-local", "serves": ["blue"]});
    world.conflist(
        "10-net.conflist",
        &with(&network, "delegates", json!(["ipam-ds-x", host_local])),
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

/// A node whose leases ipam-da-local keeps for the network `net`, in 10.0.0.0/24.
fn local_world() -> (World, Value) {
    let world = World::new();
    world.install(&binary("ipam-da-local"));
    let network = world.network(json!(["ipam-da-local"]));
    let network = with(&network, "ranges", json!([[{"subnet": "10.0.0.0/24"}]]));
    world.conflist("10-net.conflist", &network);
    (world, network)
}

/// What libcni keeps of an attachment that got these addresses.
fn cached(network: &str, container: &str, ifname: &str, addresses: &[&str]) -> Value {
    let ip = |address: &&str| json!({"address": format!("{address}/24"), "interface": 0});
    let ips: Vec<Value> = addresses.iter().map(ip).collect();
    json!({
        "kind": "cniCacheV1", "containerId": container, "ifName": ifname, "networkName": network,
        "config": "e30=", "result": {"cniVersion": "1.0.0", "interfaces": [{"name": ifname}], "ips": ips},
    })
}

/// Writes a file of this world's result cache.
fn cache(world: &World, name: &str, content: &Value) {
    let folder = world.path("results");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), content.to_string()).unwrap();
}

/// Caches an attachment on `net` that has the interface eth0.
fn in_use(world: &World, container: &str, addresses: &[&str]) {
    let name = format!("net-{container}-eth0");
    cache(world, &name, &cached("net", container, "eth0", addresses));
}

/// The findings about the result cache, sorted.
#[track_caller]
fn of_cache(world: &World) -> Vec<String> {
    let (exit, mut found) = findings(world, &[]);
    assert_eq!(exit, Some(0), "{found:#?}");
    found.retain(|finding| finding.contains("result cache"));
    found.sort();
    found
}

const GIVEN_AGAIN: &str = "does not have it, and may give it again: re-create the container";

#[test]
fn what_the_result_cache_and_the_store_both_say_is_no_finding() {
    let (world, network) = local_world();
    assert!(of_cache(&world).is_empty(), "there is no cache");
    let address = world.call("ADD", "c1", &network).ips()[0].replace("/24", "");
    assert_eq!(address, "10.0.0.2");
    // Another plugin of the list gave the second one.
    in_use(&world, "c1", &["10.0.0.2", "192.168.7.7"]);
    cache(&world, "net-c2-eth0", &json!({"kind": "cniCacheV1"}));
    cache(&world, "blue-c3-eth0", &cached("blue", "c3", "eth0", &["10.0.0.2"]));
    // A network whose name begins as this one's.
    cache(&world, "net-b-c3-eth0", &cached("net-b", "c3", "eth0", &["10.0.0.2"]));
    let made = Command::new("mkfifo").arg(world.path("results/net-c4-eth0")).status().unwrap();
    assert!(made.success());
    assert_eq!(of_cache(&world), [""; 0]);
}

#[test]
fn an_address_that_the_store_gave_another_container_or_nobody_is_a_warning() {
    let (world, network) = local_world();
    world.call("ADD", "c1", &network).success();
    in_use(&world, "c2", &["10.0.0.2", "10.0.0.77"]);
    // Before libcni 0.8, by a plugin of before 0.3.0.
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.78/24"}});
    cache(&world, "net-b6cd8f3e-c9ac-eth0", &old);
    cache(&world, "net-c1-net1", &cached("net", "c1", "net1", &["10.0.0.2"]));
    // The pools have changed since, but the ledger knows it.
    fs::write(world.path("data/net/10.9.0.5"), "c9\r\neth0").unwrap();
    in_use(&world, "c3", &["10.9.0.5", "10.9.0.6"]);
    assert_eq!(
        of_cache(&world),
        [
            "warning: 10.0.0.2 is used by c1/net1 (result cache), but the store says c1/eth0: \
             its DEL will not release it; re-create the container",
            "warning: 10.0.0.2 is used by c2/eth0 (result cache), but the store says c1/eth0: \
             two containers may use one address; re-create the one in the cache",
            &format!(
                "warning: 10.0.0.77 is used by c2/eth0 (result cache), but the store {GIVEN_AGAIN}"
            ),
            &format!(
                "warning: 10.0.0.78 is used by b6cd8f3e-c9ac/eth0 (result cache), but the store \
                 {GIVEN_AGAIN}"
            ),
            "warning: 10.9.0.5 is used by c3/eth0 (result cache), but the store says c9/eth0: \
             two containers may use one address; re-create the one in the cache",
        ]
    );
    let words = ["lint", "net", &format!("--cache-dir={}", world.path("results").display())];
    let text = world.typed(&words).stdout;
    assert!(text.contains("\nwarning: 10.0.0.77 is used by c2/eth0 (result cache), "), "{text}");
}

#[test]
fn a_result_whose_namespace_is_gone_is_a_note() {
    let (world, _) = local_world();
    for (container, netns) in [("c1", "/proc/self/ns/net"), ("c2", "/run/netns/none")] {
        let content = cached("net", container, "eth0", &["10.0.0.77"]);
        let mut content = content.as_object().unwrap().clone();
        content.insert("netns".to_owned(), netns.into());
        cache(&world, &format!("net-{container}-eth0"), &content.into());
    }
    let found = of_cache(&world);
    assert_eq!(found.len(), 2, "{found:#?}");
    has(&found, "note: 10.0.0.77 is used by c2/eth0", "its network namespace is gone");
    has(&found, "warning: 10.0.0.77 is used by c1/eth0", "the store does not have it");
    assert!(!found[1].contains("gone"), "{found:#?}");
}

/// A chain whose allocator answers these leases, with the pool 10.0.0.0/24.
fn answering_world(leases: &Value) -> World {
    let (world, network) = world("cluster");
    world.conflist("10-net.conflist", &network);
    world.answer("ipam-da-x", "list", leases);
    let pool = json!({
        "pool": "blue", "ranges": "10.0.0.0-10.0.0.255", "size": 256,
        "blocks": [{"from": "10.0.0.0", "to": "10.0.0.127", "size": 128},
                   {"from": "10.0.0.128", "to": "10.0.0.255", "size": 128}],
    });
    world.answer("ipam-da-x", "pools", &json!([pool]));
    world
}

#[test]
fn interface_and_node_are_compared_where_the_store_names_them() {
    let lease = |last: u8, container: Value, ifname: Value, node: Value| {
        json!({"address": format!("10.0.0.{last}"), "containerID": container, "ifname": ifname,
               "node": node, "state": "held"})
    };
    let null = Value::Null;
    let world = answering_world(&json!([
        lease(2, json!("c1"), null.clone(), null.clone()),
        lease(3, null.clone(), null.clone(), null.clone()),
        lease(4, json!("c1"), json!("eth0"), json!("n2")),
        lease(5, json!("c2"), null.clone(), json!("n\u{1b}2")),
        // Two stores, of which one is right.
        lease(6, json!("c2"), null.clone(), null.clone()),
        lease(6, json!("c1"), json!("eth0"), null),
    ]));
    in_use(&world, "c9", &["10.0.0.200"]);
    in_use(&world, "c1", &["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    let found = of_cache(&world);
    let both = " two containers may use one address; re-create the one in the cache";
    let used = |rest: &str| format!("warning: 10.0.0.{rest}");
    assert_eq!(
        found,
        [
            used("200 is used by c9/eth0 (result cache), but the store ")
                + GIVEN_AGAIN
                + ", or, if it has a record here, claim it with ipam-delegated reassert",
            used(
                "4 is used by c1/eth0 (result cache), but the store says c1/eth0 on node n2: \
                 its DEL will not release it; re-create the container"
            ),
            used("5 is used by c1/eth0 (result cache), but the store says c2 on node n\u{1b}2:")
                + both,
        ]
    );
}

#[test]
fn a_store_that_does_not_answer_is_one_warning() {
    let world = answering_world(&json!({"code": 103, "msg": "no leader"}));
    assert_eq!(of_cache(&world), [""; 0], "nobody is asked without need");
    in_use(&world, "c1", &["10.0.0.2"]);
    in_use(&world, "c2", &["10.0.0.3"]);
    let start = "warning: the result cache is not compared with the store: ipam-da-x: ";
    assert_eq!(of_cache(&world), [format!("{start}no leader")]);
    for (verb, answer) in [
        ("list", json!({})),
        ("list", json!([{"address": "10.0.0.2"}])),
        ("pools", json!({"code": 7, "msg": "no pools"})),
        ("pools", json!([1])),
    ] {
        world.answer("ipam-da-x", "list", &json!([])).answer("ipam-da-x", verb, &answer);
        let found = of_cache(&world);
        assert!(found.len() == 1 && found[0].starts_with(start), "{answer}: {found:#?}");
    }
    // Its server picks addresses itself.
    world.answer("ipam-da-x", "list", &json!({"code": 2, "msg": "keeps no books"}));
    assert_eq!(of_cache(&world), [""; 0]);
}

#[test]
fn a_store_that_is_away_by_its_status_is_not_asked_for_leases() {
    let world = answering_world(&json!([]));
    in_use(&world, "c1", &["10.0.0.2"]);
    for (code, compared) in [(103, 0), (105, 0), (100, 1)] {
        let status = format!("printf '{{\"code\":{code},\"msg\":\"so it is\"}}'; exit 1");
        world.delegate("ipam-da-x.cni", &status);
        let (exit, found) = findings(&world, &[]);
        assert_eq!(exit, Some(0));
        has(&found, "warning: ", "ipam-da-x: so it is");
        let of_cache = found.iter().filter(|it| it.contains("result cache")).count();
        assert_eq!(of_cache, compared, "{found:#?}");
    }
    let lists = world.asked().iter().filter(|it| it["asked"] != "about --json").count();
    assert_eq!(lists, 3, "lint, list and pools, of the full one");
}

#[test]
fn what_the_runtime_releases_in_the_meantime_is_no_finding() {
    let world = answering_world(&json!([]));
    in_use(&world, "c1", &["10.0.0.2"]);
    let file = world.path("results/net-c1-eth0");
    let script = |then: &str| {
        format!(
            "#!/bin/sh\n[ -z \"$CNI_COMMAND\" ] || exit 0\n\
             case $1 in pools) {then}; cat '{}';; *) echo '[]';; esac\n",
            world.path("ipam-da-x.pools").display()
        )
    };
    world.program("ipam-da-x", &script("true"));
    has(&of_cache(&world), "warning: 10.0.0.2 is used", GIVEN_AGAIN);
    world.program("ipam-da-x", &script(&format!("rm '{}'", file.display())));
    assert_eq!(of_cache(&world), [""; 0]);
    assert!(!file.exists());
}

#[test]
fn a_store_that_never_answers_is_given_up() {
    let (world, network) = world("cluster");
    world.conflist("10-net.conflist", &with(&network, "timeout", "1s"));
    in_use(&world, "c1", &["10.0.0.2"]);
    let hangs = "#!/bin/sh\n[ -z \"$CNI_COMMAND\" ] || exit 0\n[ $1 != list ] || sleep 1000\n";
    world.program("ipam-da-x", hangs);
    let found = of_cache(&world);
    assert!(found.len() == 1 && found[0].contains("ipam-da-x: timed out after 1s"), "{found:#?}");
}
