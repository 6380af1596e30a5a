//! The selector at the head of a chain: the life of an attachment, with our allocator and with
//! Debian's host-local, from kube-node's state and without the API server.

use std::fs;
use std::time::{Duration, SystemTime};

use ipam_testkit::kube::{End, Speaker};
use ipam_testkit::node_site::by;
use ipam_testkit::world::{Host, binary, with};
use serde_json::{Value, json};

use crate::common::{Site, addresses, pod_in};

/// The chains, each with the network that has it.
fn chains(site: &Site) -> [(&'static str, Value); 3] {
    let chain = |allocator: &str| {
        let mut network = site.chain(json!(["ipam-ds-kube-node", allocator]));
        network["cniVersion"] = "1.1.0".into();
        network["name"] = format!("by-{allocator}").into();
        network
    };
    let mut preset = site.network();
    preset["cniVersion"] = "1.1.0".into();
    preset["name"] = "preset".into();
    [
        ("kube-node", preset),
        ("ipam-delegated", chain("ipam-da-local")),
        ("ipam-delegated", chain("host-local")),
    ]
}

/// Calls one of our programs.
#[track_caller]
fn call(site: &Site, program: &str, verb: &str, network: &Value) -> ipam_testkit::world::Outcome {
    let mut command = site.world.command_of(&site.world.path("bin").join(program), verb, "c1");
    if matches!(verb, "GC" | "STATUS") {
        command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
    }
    site.run(command, network)
}

#[test]
fn the_nodes_subnets_are_behind_the_pools_of_a_selector_before_it() {
    let site = Site::new("behind-others", &["11.0.1.0/24"]).with_host_local();
    site.world.install(&binary("ipam-ds-static"));
    let first = json!({"type": "ipam-ds-static", "ranges": [[{"subnet": "10.210.1.0/24"}]]});
    let alone = json!({"type": "ipam-ds-kube-node", "pools": "replace"});
    for (allocator, own, expected) in [
        ("ipam-da-local", json!("ipam-ds-kube-node"), &["10.210.1.2/24", "11.0.1.2/24"][..]),
        ("host-local", json!("ipam-ds-kube-node"), &["10.210.1.2/24", "11.0.1.2/24"]),
        ("ipam-da-local", alone.clone(), &["11.0.1.2/24"]),
        ("host-local", alone, &["11.0.1.2/24"]),
    ] {
        let mut network = site.chain(json!([first, own, allocator]));
        network["name"] = format!("{allocator}-{}", expected.len()).into();
        let result = call(&site, "ipam-delegated", "ADD", &network).success();
        assert_eq!(addresses(&result), expected, "{network}");
        call(&site, "ipam-delegated", "DEL", &network).ended_well();
    }
}

#[test]
fn an_attachment_lives_from_add_to_del() {
    let site = Site::dual("life").with_host_local();
    for (program, mut network) in chains(&site) {
        let name = network["name"].as_str().unwrap().to_owned();
        if name == "by-host-local" {
            // Debian's host-local does not know the version.
            network["cniVersion"] = "1.0.0".into();
        }
        let before = site.requests().len();
        let result = call(&site, program, "ADD", &network).success();
        assert_eq!(addresses(&result), ["11.0.1.2/24", "1100:0:0:1::2/64"], "{name}");
        assert_eq!(site.held(&name).len(), 2);
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        call(&site, program, "CHECK", &checked).success();
        let again = call(&site, program, "ADD", &network);
        match name == "by-host-local" {
            // That is how host-local is; what it gave stays.
            true => assert!(again.failure().1.contains("duplicate allocation"), "{name}"),
            false => assert_eq!(again.success(), result, "{name}"),
        }
        assert_eq!(site.held(&name).len(), 2);
        call(&site, program, "CHECK", &checked).success();
        if network["cniVersion"] == "1.1.0" {
            call(&site, program, "STATUS", &network).success();
        }
        assert_eq!(site.requests().len() - before, 1, "{name}");
        for _ in 0..2 {
            assert_eq!(call(&site, program, "DEL", &network).success(), Value::Null, "{name}");
        }
        assert!(site.held(&name).is_empty() && site.records().is_empty(), "{name}");
        assert_eq!(call(&site, program, "CHECK", &checked).exit, Some(1));
        assert_eq!(site.requests().len() - before, 1, "{name}");
    }
}

#[test]
fn a_del_waits_for_no_api_server() {
    let site = Site::dual("del-alone").with_host_local();
    for (program, network) in chains(&site) {
        let mut network = with(&network, "timeout", "3s");
        network["cniVersion"] = "1.0.0".into();
        let name = network["name"].as_str().unwrap().to_owned();
        site.calls_home();
        call(&site, program, "ADD", &network).success();
        site.kube.annotate_node("del-alone", "a/b", Some(&name));
        site.calls_nobody();
        let _ = fs::remove_dir_all(site.world.path("state/kubernetes"));
        call(&site, program, "DEL", &network).success();
        assert!(site.held(&name).is_empty() && site.records().is_empty(), "{name}");
    }
}

#[test]
fn a_del_needs_neither_kubeconfig_nor_node() {
    let site = Site::dual("del-bare");
    let network = site.network();
    for broken in [
        with(&network, "kubeconfig", "/nowhere"),
        with(&network, "nodeName", "another"),
        with(&network, "cacheTtl", "garbage"),
        with(&network, "ipv4-namespaces", "garbage"),
        with(&network, "annotation", json!({"not": "a name"})),
    ] {
        site.call("ADD", "c1", &network).success();
        site.call("DEL", "c1", &broken).success();
        assert!(site.held("k8snet").is_empty() && site.records().is_empty(), "{broken}");
    }
}

/// What kube-node leaves of an attachment: host-local's files, and its own cache.
fn old_state(site: &Site, network: &str, containers: &[&str]) {
    let folder = site.world.path("data").join(network);
    fs::create_dir_all(&folder).unwrap();
    for (number, container) in (2..).zip(containers) {
        for address in [format!("11.0.1.{number}"), format!("1100:0:0:1::{number}")] {
            fs::write(folder.join(address), format!("{container}\r\neth0")).unwrap();
        }
    }
    // kube-node's IPv6-only pods wrote into the cursor of the other family.
    fs::write(folder.join("last_reserved_ip.0"), "1100:0:0:1::3").unwrap();
    fs::write(folder.join("lock"), "").unwrap();
    let content = format!(
        r#"{{"type":"host-local","dataDir":"{}","ranges":[[{{"subnet":"11.0.1.0/24"}}],[{{"subnet":"1100:0:0:1::/64"}}]]}}"#,
        site.world.path("data").display()
    );
    fs::write(site.world.path("data/kube-node.json"), content).unwrap();
}

#[test]
fn what_kube_node_gave_is_released_without_record_and_api_server() {
    let site = Site::dual("old-del");
    old_state(&site, "k8snet", &["c1", "c2"]);
    site.calls_nobody();
    site.call_briefly("DEL", "c1", &site.network()).success();
    let held = site.held("k8snet");
    assert_eq!(held.len(), 2);
    assert!(held.values().all(|owner| owner == "c2\r\neth0"), "{held:?}");
    // Nor without the cache that it left.
    fs::remove_file(site.world.path("data/kube-node.json")).unwrap();
    let outcome = site.call_briefly("DEL", "c2", &site.network());
    assert!(outcome.stderr.contains("ipam-ds-kube-node"), "{}", outcome.stderr);
    outcome.success();
    assert!(site.held("k8snet").is_empty());
    site.call_briefly("DEL", "c2", &site.network()).success();
}

#[test]
fn what_kube_node_gave_is_checked_without_record_cache_and_api_server() {
    let site = Site::dual("old-check");
    old_state(&site, "k8snet", &["c1", "c2"]);
    fs::remove_file(site.world.path("data/kube-node.json")).unwrap();
    site.calls_nobody();
    let check = |container: &str, addresses: &[&str]| {
        let mut network = site.network();
        let ips = addresses.iter().map(|address| json!({"address": address}));
        network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": ips.collect::<Value>()});
        site.call("CHECK", container, &network)
    };
    check("c1", &["11.0.1.2/24", "1100:0:0:1::2/64"]).success();
    for (container, addresses) in [
        ("c1", &["11.0.1.2/24"][..]),
        ("c1", &["11.0.1.9/24", "1100:0:0:1::2/64"]),
        ("c9", &["11.0.1.2/24", "1100:0:0:1::2/64"]),
    ] {
        let (code, text) = check(container, addresses).failure();
        assert_eq!(code, 104, "{container} {addresses:?}: {text}");
    }
}

#[test]
fn a_del_does_not_wait_as_long_as_an_add() {
    let site = Site::dual("del-brief");
    let busy = Speaker::answer("429 Too Many Requests", "Retry-After: 5\r\n", "{}");
    let speaker = Speaker::saying(site.kube.certificates(), busy, End::Next);
    site.calls(&speaker.url());
    // An ADD would ask once more, after these five seconds.
    site.call("DEL", "c1", &site.network()).success();
    assert_eq!(speaker.requests().len(), 1);
}

#[test]
fn what_kube_node_gave_is_kept_and_gone_on_from() {
    let site = Site::dual("old-add");
    old_state(&site, "k8snet", &["c1", "c2"]);
    let network = site.network();
    // A pod of before has no record, and is checked by its result.
    let mut checked = network.clone();
    checked["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [
        {"address": "11.0.1.2/24"}, {"address": "1100:0:0:1::2/64"},
    ]});
    site.call("CHECK", "c1", &checked).success();
    assert_eq!(site.call("ADD", "c3", &network).ips(), ["11.0.1.4/24", "1100:0:0:1::4/64"]);
    assert_eq!(site.call("ADD", "c1", &network).ips(), ["11.0.1.2/24", "1100:0:0:1::2/64"]);
    let data = site.data();
    assert_eq!(data["k8snet/last_reserved_ip.0"], "11.0.1.4");
    assert_eq!(data["k8snet/last_reserved_ip.1"], "1100:0:0:1::4");
}

#[test]
fn a_stripped_del_finds_what_it_was_about() {
    let site = Site::dual("stripped");
    let host = Host::new();
    let stripped = json!({"cniVersion": "1.0.0", "name": "k8snet", "type": "bridge", "ipam": {"type": "kube-node"}});
    let call = |verb: &str, container: &str, network: &Value| {
        site.run(by(host.enter("env"), &site.command(verb, container)), network)
    };
    // In its default places, since nothing else is found by a configuration without anything.
    let network = ipam_testkit::world::without(&site.network(), &["dataDir", "stateDir"]);
    call("ADD", "new", &network).success();
    let leases = host.path("/var/lib/cni/networks/k8snet");
    for address in ["11.0.1.77", "1100:0:0:1::77"] {
        fs::write(leases.join(address), "old\r\neth0").unwrap();
    }
    let held = || {
        let names = ipam_testkit::world::names(&leases);
        names.iter().filter(|name| name.parse::<std::net::IpAddr>().is_ok()).count()
    };
    assert_eq!(held(), 4);
    call("DEL", "new", &stripped).success();
    assert_eq!(held(), 2);
    // From before the change there is no record.
    call("DEL", "old", &stripped).success();
    assert_eq!(held(), 0);
    assert_eq!(site.requests().len(), 1);
}

#[test]
fn garbage_is_collected_with_and_without_the_api_server() {
    let site = Site::dual("garbage");
    let host = Host::new();
    host.settings(&json!({"gcGrace": "0s"}));
    let mut network = site.network();
    network["cniVersion"] = "1.1.0".into();
    network["cni.dev/valid-attachments"] = json!([{"containerID": "kept", "ifname": "eth0"}]);
    let network = with(&network, "timeout", "3s");
    let collect = || site.run(by(host.enter("env"), &site.command("GC", "")), &network);
    for away in [false, true] {
        site.calls_home();
        for container in ["kept", "gone"] {
            site.call("ADD", container, &network).success();
        }
        // host-local's own, of a pod that nobody knows any more.
        let old = site.world.path("data/k8snet/11.0.1.99");
        fs::write(&old, "old\r\neth0").unwrap();
        let hour = SystemTime::now() - Duration::from_secs(3600);
        fs::File::options().write(true).open(&old).unwrap().set_modified(hour).unwrap();
        if away {
            site.calls_nobody();
            fs::remove_dir_all(site.world.path("state/kubernetes")).unwrap();
        }
        collect().success();
        let held = site.held("k8snet");
        assert_eq!(held.len(), 2, "{held:?}");
        assert!(held.values().all(|owner| owner == "kept\r\neth0"), "{held:?}");
        let records: Vec<String> = site.records().into_keys().collect();
        assert_eq!(records, ["k8snet/kept:eth0"]);
    }
}

#[test]
fn a_chain_that_fails_later_gives_back_what_it_took() {
    let site = Site::dual("undone");
    site.world.delegate(
        "ipam-da-zz",
        "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }",
    );
    let network = site.chain(json!(["ipam-ds-kube-node", "ipam-da-local", "ipam-da-zz"]));
    let (code, text) = site.run(site.world.command("ADD", "c1"), &network).failure();
    assert!(code == 100 && text.contains("ipam-da-zz"), "{code}: {text}");
    assert!(site.held("k8snet").is_empty());
}

#[test]
fn a_full_subnet_is_told_by_its_range() {
    let site = Site::new("full-subnet", &["11.0.1.0/30"]);
    site.call("ADD", "c1", &site.network()).success();
    let (code, text) = site.call("ADD", "c2", &site.network()).failure();
    assert!(code == 100 && text.contains("11.0.1.1-11.0.1.2"), "{code}: {text}");
    assert_eq!(site.held("k8snet").len(), 1);
    site.call("DEL", "c1", &site.network()).success();
    assert_eq!(site.call("ADD", "c2", &site.network()).ips(), ["11.0.1.2/30"]);
}

#[test]
fn debians_host_local_gives_ipv6_alone_where_the_namespace_has_no_ipv4() {
    let site = Site::dual("plain-six").with_host_local();
    let network = site.chain(json!(["ipam-ds-kube-node", "host-local"]));
    let network = with(&network, "ipv4-namespaces", json!(["old"]));
    let add = |container: &str, namespace: &str| {
        let mut command = site.world.command("ADD", container);
        command.env("CNI_ARGS", pod_in(namespace));
        site.run(command, &network).ips()
    };
    assert_eq!(add("a", "old"), ["11.0.1.2/24", "1100:0:0:1::2/64"]);
    assert_eq!(add("b", "default"), ["1100:0:0:1::3/64"]);
    for container in ["a", "b"] {
        site.run(site.world.command("DEL", container), &network).success();
    }
    assert!(site.held("k8snet").is_empty());
}
