//! The delegate at the head of a chain, and the preset: an attachment's life, what it costs the API server,
//! and what becomes of it when that is away.

use std::fs;
use std::net::IpAddr;
use std::process::Stdio;

use ipam_testkit::bridge::{BridgeHost, PLUGINS, Pod, addresses};
use ipam_testkit::doorway::Doorway;
use ipam_testkit::kube::Kubeconfig;
use ipam_testkit::world::{Outcome, World, binary, host_local, start, wait};
use serde_json::{Value, json};

use crate::common::{SELECTOR, Site};

const DUAL: &str = r#""ranges": [
  [{ "subnet": "4000::16.0.0.0/120" }],
  [{ "subnet": "16.0.0.0/24" }]
]"#;

/// The networks that end in an allocator of ours, in the real host-local, and in the preset.
fn networks(site: &Site) -> [(&'static str, Value); 3] {
    site.world.install(&host_local());
    [
        ("ipam-da-local", site.chain("ipam-da-local")),
        ("host-local", site.chain("host-local")),
        ("the preset", site.network()),
    ]
}

fn ips(first: &str, second: &str) -> Value {
    json!([
        {"address": format!("4000::1000:{first}/120"), "gateway": "4000::1000:1"},
        {"address": format!("16.0.0.{second}/24"), "gateway": "16.0.0.1"},
    ])
}

/// STATUS succeeds, but for Debian's host-local, which no ADD of that version could call.
#[track_caller]
fn assert_ready(site: &Site, name: &str, network: &Value) {
    let status = site.call_with("STATUS", "", network);
    match name {
        "host-local" => assert!(status.failure().1.contains("does not support cniVersion 1.1.0")),
        _ => drop(status.success()),
    }
}

#[test]
fn an_attachment_lives_from_add_to_del_at_the_cost_of_one_request() {
    for number in 0..3 {
        let site = Site::new(DUAL);
        let (name, network) = networks(&site)[number].clone();
        site.conf(&json!({"cacheTtl": "5m"}));
        let result = site.call_with("ADD", "c1", &network).success();
        assert_eq!(result["ips"], ips("2", "2"), "{name}");
        assert_eq!(site.asked(), 1, "{name}");
        site.call_with("ADD", "c2", &network).success();
        // Debian's host-local refuses an ADD again; the chain leaves what is held.
        let again = site.call_with("ADD", "c1", &network);
        match name {
            "host-local" => assert!(again.failure().1.contains("duplicate allocation")),
            _ => assert_eq!(again.success(), result),
        }
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        site.call_with("CHECK", "c1", &checked).success();
        let mut collected = network.clone();
        collected["cniVersion"] = json!("1.1.0");
        assert_ready(&site, name, &collected);
        collected["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "eth0"}]);
        site.call_with("GC", "", &collected).success();
        assert_eq!(site.leases("net").len(), 4, "{name}");
        site.call_with("DEL", "c1", &network).success();
        site.call_with("DEL", "c1", &network).success();
        assert_eq!(site.leases("net"), ["16.0.0.3", "4000::1000:3"], "{name}");
        assert_eq!(site.call_with("CHECK", "c1", &checked).exit, Some(1), "{name}");
        site.call_with("DEL", "c2", &network).success();
        assert_eq!(site.leases("net"), [""; 0], "{name}");
        assert_eq!(site.requests(), [format!("get /api/v1/nodes/{} 200", site.node)], "{name}");
    }
}

#[test]
fn gc_releases_what_is_not_in_the_list() {
    let site = Site::new(DUAL);
    for (name, network) in networks(&site) {
        // Debian's host-local does not know the versions that have GC.
        if name == "host-local" {
            continue;
        }
        for container in ["c1", "c2"] {
            site.call_with("ADD", container, &network).success();
        }
        site.world.edit_record("c2", |line| line["time"] = json!(1));
        let mut collected = network.clone();
        collected["cniVersion"] = json!("1.1.0");
        collected["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
        site.call_with("GC", "", &collected).success();
        assert!(!site.world.record("c2").exists(), "{name}");
        assert_eq!(site.leases("net").len(), 2, "{name}");
        site.call_with("DEL", "c1", &network).success();
        assert_eq!(site.leases("net"), [""; 0], "{name}");
    }
}

/// A host whose way to the API server can be shut.
fn by_a_door(text: &str) -> (Site, Doorway) {
    let site = Site::new(text);
    let door = Doorway::to(site.kube.address());
    let config = Kubeconfig::of(site.kube, &site.login).server(&door.url());
    config.write(&site.world.path("kubeconfig"));
    (site, door)
}

#[test]
fn an_api_server_that_is_away_is_not_missed_by_who_was_answered_before() {
    let (site, mut door) = by_a_door(DUAL);
    let networks = networks(&site);
    // Each of another name, so that none remembers for the others.
    let named = |number: usize| {
        let mut network = networks[number].1.clone();
        network["name"] = json!(format!("net-{number}"));
        network
    };
    for number in 1..3 {
        site.call_with("ADD", "c1", &named(number)).success();
    }
    door.shut();
    for (number, (name, _)) in networks.iter().enumerate().skip(1) {
        let network = named(number);
        let outcome = site.call_with("ADD", "c2", &network);
        assert!(
            outcome.stderr.contains(": the API server does not answer, using the value read "),
            "{outcome:?}"
        );
        assert_eq!(outcome.success()["ips"], ips("3", "3"), "{name}");
        let mut status = network.clone();
        status["cniVersion"] = json!("1.1.0");
        assert_ready(&site, name, &status);
        for container in ["c1", "c2"] {
            site.call_with("DEL", container, &network).success();
        }
        assert_eq!(site.leases(&format!("net-{number}")), [""; 0], "{name}");
    }
}

#[test]
fn an_api_server_that_is_away_fails_who_was_never_answered() {
    let (site, mut door) = by_a_door(DUAL);
    door.shut();
    for (name, mut network) in networks(&site) {
        network["ipam"]["timeout"] = json!("3s");
        let (code, error) = site.call_with("ADD", "c1", &network).failure();
        // Nobody was asked for anything, so that nothing is owed.
        assert_eq!(code, 105, "{name}: {error}");
        assert!(error.contains(&door.url()), "{name}: {error}");
        assert!(!site.world.events("c1").contains(&"running".to_owned()), "{name}");
        let mut status = network.clone();
        status["cniVersion"] = json!("1.1.0");
        assert_eq!(site.call_with("STATUS", "", &status).failure().0, 50, "{name}");
        assert_eq!(site.call_with("DEL", "c1", &network).success(), Value::Null);
        assert_eq!(site.leases("net"), [""; 0], "{name}");
    }
    assert_eq!(site.asked(), 0);
}

#[test]
fn an_annotation_that_changes_counts_for_the_next_add_and_not_for_a_del() {
    let site = Site::new(DUAL);
    let network = site.network();
    let first = site.call("ADD", "c1").success();
    site.annotate(r#"ranges: [[{subnet: "10.8.0.0/24"}]]"#);
    assert_eq!(site.call("ADD", "c2").ips(), ["10.8.0.2/24"]);
    let mut checked = network.clone();
    checked["prevResult"] = first;
    site.call_with("CHECK", "c1", &checked).success();
    site.kube.delete_node(&site.node);
    site.call("DEL", "c1").success();
    assert_eq!(site.leases("net"), ["10.8.0.2"]);
    // Stripped by the runtime.
    let stripped = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "node-annotation"}});
    site.call_with("DEL", "c2", &stripped).success();
    assert_eq!(site.leases("net"), [""; 0]);
}

#[test]
fn an_annotation_of_no_use_is_not_remembered() {
    let site = Site::new("ranges: oops");
    site.conf(&json!({"cacheTtl": "5m"}));
    for text in ["ranges: oops", "ranges: [[{subnet: \"10.0.0.0/33\"}]]"] {
        site.annotate(text);
        assert_eq!(site.call("ADD", "c1").failure().0, 7);
    }
    site.annotate(DUAL);
    assert_eq!(site.call("ADD", "c1").success()["ips"], ips("2", "2"));
}

#[test]
fn the_annotation_takes_the_place_of_the_pools_of_a_selector_before_it() {
    let site = Site::new(r#"ranges: [[{subnet: "10.9.0.0/24"}]]"#);
    site.world.install(&binary("ipam-ds-static")).install(&host_local());
    let first = json!({"type": "ipam-ds-static", "ranges": [[{"subnet": "10.210.1.0/24"}]]});
    for last in ["ipam-da-local", "host-local"] {
        let mut network = site.chain(last);
        network["name"] = json!(last);
        network["ipam"]["delegates"] = json!([first, SELECTOR, last]);
        assert_eq!(site.call_with("ADD", "c1", &network).ips(), ["10.9.0.2/24"], "{last}");
        site.call_with("DEL", "c1", &network).ended_well();
    }
    let mut network = site.chain("ipam-da-local");
    let own = json!({"type": SELECTOR, "pools": "add"});
    network["ipam"]["delegates"] = json!([first, own, "ipam-da-local"]);
    let both = ["10.210.1.2/24", "10.9.0.2/24"];
    assert_eq!(site.call_with("ADD", "c1", &network).ips(), both);
}

#[test]
fn explain_tells_what_is_only_remembered() {
    let site = Site::new(DUAL);
    let mut network = site.chain("ipam-da-local");
    let more = json!({
        "kubeconfig": site.world.path("kubeconfig"), "nodeName": site.node, "cacheTtl": "5m",
        "stateDir": site.world.path("state"),
    });
    network["ipam"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    site.world.conflist("10-net.conflist", &network);
    let explained = || site.world.typed(&["explain", "net"]).stdout;
    let now = explained();
    assert!(now.contains("pools = [") && !now.contains("remembered"), "{now}");
    let later = explained();
    let about = format!("annotation {} of node {}, ", crate::common::ANNOTATION, site.node);
    let start = ["    remembered = \"", &about].concat();
    let line = later.lines().find(|line| line.starts_with(&start));
    assert!(line.is_some_and(|line| line.ends_with("s ago\"")), "{later}");
}

#[test]
fn status_fails_while_the_annotation_gives_no_ranges() {
    let site = Site::new(DUAL);
    for (name, mut network) in networks(&site) {
        // It has another fault: see `assert_ready`.
        if name == "host-local" {
            continue;
        }
        network["cniVersion"] = json!("1.1.0");
        let status = || site.call_with("STATUS", "", &network);
        site.annotate(DUAL);
        status().success();
        for text in [Some("ranges: oops"), Some(""), None] {
            site.kube.annotate_node(&site.node, crate::common::ANNOTATION, text);
            let (code, error) = status().failure();
            assert!(code == 50 && error.contains(crate::common::ANNOTATION), "{error}");
        }
    }
}

#[test]
fn requested_addresses_and_the_runtimes_ranges_count_as_for_host_local() {
    let site = Site::new(r#"ranges: [[{subnet: "10.9.0.0/24"}]]"#);
    for (number, (name, mut network)) in networks(&site).into_iter().enumerate() {
        network["name"] = json!(format!("net-{number}"));
        network["args"] = json!({"cni": {"ips": ["10.9.0.77"]}});
        assert_eq!(site.call_with("ADD", "c1", &network).ips(), ["10.9.0.77/24"], "{name}");
        network.as_object_mut().unwrap().remove("args");
        network["runtimeConfig"] = json!({"ipRanges": [[{"subnet": "10.5.0.0/24"}]]});
        let both = ["10.5.0.2/24", "10.9.0.78/24"];
        let given = site.call_with("ADD", "c2", &network).ips();
        assert_eq!((given[0].as_str(), given.len()), (both[0], 2), "{name}: {given:?}");
        for container in ["c1", "c2"] {
            site.call_with("DEL", container, &network).success();
        }
    }
}

#[test]
fn a_delegate_after_it_that_fails_is_undone() {
    let site = Site::new(DUAL);
    site.world.full("ipam-da-x");
    let mut network = site.chain("ipam-da-local");
    network["ipam"]["delegates"] = json!([SELECTOR, "ipam-da-local", "ipam-da-x"]);
    let (code, error) = site.call_with("ADD", "c1", &network).failure();
    assert!(code == 100 && error.starts_with("ipam-da-x: full"), "{error}");
    assert_eq!(site.leases("net"), [""; 0]);
}

/// Both pods reach each other by every address, on a host whose file says more.
fn two_pods(conf: &Value) {
    // A host sees the namespaces that were there before it.
    let (folders, pods) = (World::new(), [Pod::new("one"), Pod::new("two")]);
    let bridges = BridgeHost::new(&folders);
    let site = Site::new(DUAL);
    let network = &meridio(site.conf(conf));
    // The API server is where it is, on this machine's loopback and on that host's.
    let _door = Doorway::inside(&bridges.outside.path(), site.kube.address());
    let call = |verb: &str, pod: &Pod, network: &Value| -> Outcome {
        let outside = bridges.command(verb, pod);
        let mut command = site.host.enter(outside.get_program());
        command.args(outside.get_args()).env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.env("CNI_PATH", format!("{}:{PLUGINS}", site.world.path("bin").display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, network))
    };
    let results = pods.each_ref().map(|pod| call("ADD", pod, network).success());
    assert_eq!(bridges.ports("cbr2"), 2);
    let given = results.each_ref().map(|result| addresses(result, "address"));
    let parsed = |text: &str| -> IpAddr { text.parse().unwrap() };
    assert_eq!(given[0], ["4000::1000:2", "16.0.0.2"].map(parsed));
    assert_eq!(given[1], ["4000::1000:3", "16.0.0.3"].map(parsed));
    for (pod, others) in pods.iter().zip(given.iter().rev()) {
        others.iter().for_each(|address| pod.namespace.ping(*address));
        addresses(&results[0], "gateway").iter().for_each(|address| pod.namespace.ping(*address));
    }
    for (pod, result) in pods.iter().zip(&results) {
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        call("CHECK", pod, &checked).success();
    }
    for pod in &pods {
        call("DEL", pod, network).success();
        call("DEL", pod, network).success();
    }
    assert_eq!((bridges.ports("cbr2"), site.leases("meridio-bridge")), (0, vec![]));
}

/// The network of the section about kind.
fn meridio(site: &Site) -> Value {
    let mut network = site.network();
    network["cniVersion"] = json!("0.4.0");
    network["name"] = json!("meridio-bridge");
    network["bridge"] = json!("cbr2");
    network["isGateway"] = json!(true);
    network
}

#[test]
fn pods_of_both_families_on_a_bridge_ping_each_other() {
    two_pods(&json!({}));
}

#[test]
fn pods_on_a_bridge_ping_each_other_by_the_real_host_local() {
    two_pods(&json!({"nextipam": host_local()}));
}

#[test]
fn lint_and_explain_tell_the_preset() {
    let site = Site::new(DUAL);
    site.conf(&json!({"nextipam": host_local()}));
    let folder = site.host.path("/etc/cni/net.d");
    fs::create_dir(&folder).unwrap();
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [site.network()]});
    fs::write(folder.join("10-net.conflist"), list.to_string()).unwrap();
    let typed = |words: &[&str]| {
        let path = format!("--cni-path={}", site.world.path("bin").display());
        let words = [words, &["net", &path]].concat();
        site.typed(&binary("ipam-delegated"), &words, "")
    };
    let found = typed(&["lint"]);
    assert!(found.stdout.contains("host-local") && found.stdout.contains(SELECTOR), "{found:?}");
    let told = found.stdout.contains("The annotation is parsed");
    assert!(told, "{found:?}");
    let explained = typed(&["explain", "--json"]).success();
    let last = &explained[0]["delegates"][1]["input"]["ipam"];
    let ranges = json!([[{"subnet": "4000::16.0.0.0/120"}], [{"subnet": "16.0.0.0/24"}]]);
    assert_eq!(last, &json!({"type": "host-local", "ranges": ranges}));
}
