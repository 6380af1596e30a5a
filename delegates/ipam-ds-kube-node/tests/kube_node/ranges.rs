//! What becomes of the node's subnets: pools, addresses, routes, requests, and who gets IPv4.

use std::fs;

use ipam_testkit::kube::{Kube, Node};
use ipam_testkit::node_site::subnets;
use ipam_testkit::world::{with, without};
use serde_json::{Value, json};

use crate::common::{Site, addresses, pod_in};

/// A dual-stack node whose pods have IPv4 in these namespaces.
fn listing(node: &str, namespaces: Value) -> (Site, Value) {
    let site = Site::dual(node);
    let network = with(&site.network(), "ipv4-namespaces", namespaces);
    (site, network)
}

#[test]
fn the_nodes_subnets_are_range_sets_in_their_order() {
    for (node, cidrs, given) in [
        ("four", &["11.0.1.0/24"][..], &["11.0.1.2/24"][..]),
        ("six", &["1100:0:0:1::/64"], &["1100:0:0:1::2/64"]),
        ("four-six", &["11.0.1.0/24", "1100:0:0:1::/64"], &["11.0.1.2/24", "1100:0:0:1::2/64"]),
        ("six-four", &["1100:0:0:1::/64", "11.0.1.0/24"], &["1100:0:0:1::2/64", "11.0.1.2/24"]),
    ] {
        let site = Site::new(node, cidrs);
        let answer = site.select(&site.network()).success();
        assert_eq!(subnets(&answer), cidrs);
        let numbers: Vec<&Value> =
            answer["pools"].as_array().unwrap().iter().map(|pool| &pool["index"]).collect();
        assert_eq!(json!(numbers), (0..cidrs.len()).collect::<Value>());
        let result = site.call("ADD", "c1", &site.network()).success();
        assert_eq!(addresses(&result), given);
        let gateway = given[0].split('/').next().unwrap().replace("::2", "::1").replace(".2", ".1");
        assert_eq!(result["ips"][0]["gateway"], gateway);
    }
}

#[test]
fn an_annotation_may_have_spaces_around_its_commas() {
    let name = "kube-node.nordix.org/net1";
    for (place, (text, expected)) in [
        ("172.20.2.0/24,fd00::2:0:0/96", &["172.20.2.0/24", "fd00::2:0:0/96"][..]),
        (" fd00::2:0:0/96 ,\t172.20.2.0/24 ", &["fd00::2:0:0/96", "172.20.2.0/24"]),
        ("fd00::16.0.0.0/120", &["fd00::1000:0/120"]),
        // The smallest that has an address beside its gateway.
        ("10.9.0.0/30", &["10.9.0.0/30"]),
    ]
    .into_iter()
    .enumerate()
    {
        // What stands in the pod CIDRs is of no concern.
        let node = Node::named(&format!("annotated-{place}")).cidrs(&["11.0.1.0/24"]);
        let site = Site::of(Kube::shared(), &node.annotation(name, text));
        let network = with(&site.network(), "annotation", name);
        assert_eq!(subnets(&site.select(&network).success()), expected);
        assert_eq!(site.call("ADD", "c1", &network).ips().len(), expected.len());
    }
}

#[test]
fn other_keys_that_name_ranges_are_not_used() {
    let site = Site::dual("other-keys");
    let mut network = site.network();
    network["ipam"]["subnet"] = "10.9.0.0/24".into();
    network["ipam"]["rangeStart"] = "10.9.0.9".into();
    network["ipam"]["ranges"] = json!([[{"subnet": "10.8.0.0/24"}]]);
    network["ipam"]["gateway"] = "10.9.0.254".into();
    assert_eq!(site.call("ADD", "c1", &network).ips(), ["11.0.1.2/24", "1100:0:0:1::2/64"]);
}

#[test]
fn ranges_of_the_runtime_are_not_used() {
    let site = Site::dual("ip-ranges");
    let mut network = site.network();
    network["runtimeConfig"] = json!({"ipRanges": [[{"subnet": "10.9.0.0/24"}]]});
    let outcome = site.call("ADD", "c1", &network);
    assert!(outcome.stderr.contains("runtimeConfig.ipRanges is ignored"), "{}", outcome.stderr);
    assert_eq!(outcome.ips(), ["11.0.1.2/24", "1100:0:0:1::2/64"]);
}

#[test]
fn ipv4_is_for_the_namespaces_that_are_listed() {
    let both = &["11.0.1.2/24", "1100:0:0:1::2/64"][..];
    let six = &["1100:0:0:1::2/64"][..];
    let site = Site::dual("listed");
    for (listed, args, expected) in [
        (Value::Null, pod_in("default"), both),
        (Value::Null, String::new(), both),
        (json!(["old-application"]), pod_in("old-application"), both),
        (json!(["a", "old-application"]), pod_in("old-application"), both),
        (json!(["old-application"]), pod_in("default"), six),
        (json!(["old-application"]), String::new(), six),
        (json!(["old-application"]), pod_in("old-application2"), six),
        (json!([]), pod_in("old-application"), six),
        (json!([]), String::new(), six),
    ] {
        let network = match listed {
            Value::Null => site.network(),
            _ => with(&site.network(), "ipv4-namespaces", listed.clone()),
        };
        let outcome = site.call_with("ADD", "c1", &args, &network);
        assert_eq!(outcome.ips(), expected, "{listed} {args}");
        site.call("DEL", "c1", &network).success();
        assert!(site.held("k8snet").is_empty());
        // The next starts afresh.
        fs::remove_dir_all(site.world.path("data/k8snet")).unwrap();
    }
    let network = with(&site.network(), "ipv4-namespaces", Value::Null);
    assert_eq!(site.call_with("ADD", "c1", &pod_in("default"), &network).ips(), both);
}

#[test]
fn a_pod_without_ipv4_leaves_the_cursor_of_ipv4_alone() {
    let (site, network) = listing("cursors", json!(["old"]));
    let add = |container: &str, namespace: &str| {
        site.call_with("ADD", container, &pod_in(namespace), &network).ips()
    };
    let cursors = || {
        let data = site.data();
        ["k8snet/last_reserved_ip.0", "k8snet/last_reserved_ip.1"]
            .map(|name| data.get(name).cloned().unwrap_or_default())
    };
    assert_eq!(add("a", "default"), ["1100:0:0:1::2/64"]);
    assert_eq!(cursors(), ["", "1100:0:0:1::2"]);
    assert_eq!(add("b", "old"), ["11.0.1.2/24", "1100:0:0:1::3/64"]);
    assert_eq!(add("c", "default"), ["1100:0:0:1::4/64"]);
    assert_eq!(cursors(), ["11.0.1.2", "1100:0:0:1::4"]);
    assert_eq!(add("d", "old"), ["11.0.1.3/24", "1100:0:0:1::5/64"]);
}

#[test]
fn a_pod_without_ipv4_leaves_the_cursor_of_ipv4_alone_where_that_is_the_second() {
    let site = Site::new("cursors-six-four", &["1100:0:0:1::/64", "11.0.1.0/24"]);
    let network = with(&site.network(), "ipv4-namespaces", json!(["old"]));
    let given = ["default", "old", "default"].map(|namespace| {
        site.call_with("ADD", &format!("of-{namespace}"), &pod_in(namespace), &network).ips()
    });
    assert_eq!(given[0], ["1100:0:0:1::2/64"]);
    assert_eq!(given[1], ["1100:0:0:1::3/64", "11.0.1.2/24"]);
    assert_eq!(given[2], given[0]);
    let data = site.data();
    assert_eq!(data["k8snet/last_reserved_ip.1"], "11.0.1.2");
}

#[test]
fn a_pod_keeps_its_addresses_after_the_list_was_edited() {
    let (site, network) = listing("edited-list", json!(["old"]));
    let edited = with(&network, "ipv4-namespaces", json!([]));
    let args = pod_in("old");
    let mut result = Value::Null;
    for container in ["by-record", "without-record"] {
        result = site.call_with("ADD", container, &args, &network).success();
        assert_eq!(addresses(&result).len(), 2);
    }
    fs::remove_file(site.world.path("state/attachments/k8snet/without-record:eth0")).unwrap();
    let mut checked = edited.clone();
    checked["prevResult"] = result;
    site.call_with("CHECK", "without-record", &args, &checked).success();
    for container in ["by-record", "without-record"] {
        site.call_with("DEL", container, &args, &edited).success();
    }
    assert!(site.held("k8snet").is_empty());
}

#[test]
fn a_check_without_a_record_misses_the_ipv4_address_of_a_pod_that_has_none_any_more() {
    let (site, network) = listing("check-four", json!(["old"]));
    let result = site.call_with("ADD", "c1", &pod_in("old"), &network).success();
    fs::remove_dir_all(site.world.path("state/attachments")).unwrap();
    fs::remove_file(site.world.path("data/k8snet/11.0.1.2")).unwrap();
    let mut edited = with(&network, "ipv4-namespaces", json!([]));
    edited["prevResult"] = result;
    let (code, text) = site.call_with("CHECK", "c1", &pod_in("old"), &edited).failure();
    assert!(code == 104 && text.contains("11.0.1.2"), "{code}: {text}");
}

#[test]
fn an_ipv4_address_cannot_be_requested_for_a_pod_without_ipv4() {
    let (site, network) = listing("no-request", json!(["old"]));
    let args = format!("{};IP=11.0.1.99", pod_in("default"));
    let (code, text) = site.call_with("ADD", "c1", &args, &network).failure();
    assert!(code == 101 && text.contains("11.0.1.99"), "{code}: {text}");
    assert!(site.held("k8snet").is_empty());
    let args = format!("{};IP=11.0.1.99", pod_in("old"));
    let given = site.call_with("ADD", "c1", &args, &network).ips();
    assert_eq!(given, ["11.0.1.99/24", "1100:0:0:1::2/64"]);
    let args = format!("{};IP=1100:0:0:1::77", pod_in("default"));
    assert_eq!(site.call_with("ADD", "c2", &args, &network).ips(), ["1100:0:0:1::77/64"]);
}

#[test]
fn a_node_without_ipv6_has_nothing_for_a_pod_without_ipv4() {
    let site = Site::new("four-alone", &["11.0.1.0/24"]);
    let network = with(&site.network(), "ipv4-namespaces", json!(["old"]));
    let (code, text) = site.call_with("ADD", "c1", &pod_in("default"), &network).failure();
    assert_eq!(code, 7, "{text}");
    for part in ["ipam-ds-kube-node", "ipam.ipv4-namespaces", "\"default\"", "four-alone"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(site.call_with("ADD", "c1", &pod_in("old"), &network).ips(), ["11.0.1.2/24"]);
    // What is of no use to one pod is known to the next.
    assert_eq!(site.requests().len(), 1);
}

#[test]
fn a_list_that_is_none_is_refused_by_its_place() {
    let (site, network) = listing("no-list", json!("old"));
    let (code, text) = site.call("ADD", "c1", &network).failure();
    assert!(code == 7 && text.contains("ipam.ipv4-namespaces"), "{code}: {text}");
    site.is_untouched();
    assert!(site.requests().is_empty());
}

#[test]
fn routes_and_name_resolution_are_kept() {
    let (site, mut network) = listing("routes", json!(["old"]));
    let file = site.world.path("resolv.conf");
    fs::write(&file, "nameserver 192.0.2.3\nsearch a.example\n").unwrap();
    let routes =
        json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "192.168.0.0/16", "gw": "11.0.1.9"}]);
    network["ipam"]["routes"] = routes.clone();
    network["ipam"]["resolvConf"] = json!(file);
    let result = site.call_with("ADD", "c1", &pod_in("old"), &network).success();
    assert_eq!(result["routes"], routes);
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.3"], "search": ["a.example"]}));
    // What cannot be set in a pod without IPv4 is left out.
    let result = site.call_with("ADD", "c2", &pod_in("default"), &network).success();
    assert_eq!(result["routes"], json!([{"dst": "::/0"}]));
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.3"]));
}

#[test]
fn addresses_are_requested_in_every_way() {
    let site = Site::dual("requested");
    let network = site.network();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=n;IP=11.0.1.99";
    assert_eq!(
        site.call_with("ADD", "args", args, &network).ips(),
        ["11.0.1.99/24", "1100:0:0:1::2/64"]
    );
    let mut by_cni = network.clone();
    by_cni["args"] = json!({"cni": {"ips": ["1100:0:0:1::55", "11.0.1.77"]}});
    assert_eq!(site.call("ADD", "cni", &by_cni).ips(), ["11.0.1.77/24", "1100:0:0:1::55/64"]);
    let mut by_runtime = network.clone();
    by_runtime["runtimeConfig"] = json!({"ips": ["11.0.1.78/24"]});
    assert_eq!(
        site.call("ADD", "runtime", &by_runtime).ips(),
        ["11.0.1.78/24", "1100:0:0:1::56/64"]
    );
    for (container, code) in [("args", 102), ("elsewhere", 101)] {
        let ip = if code == 102 { "11.0.1.77" } else { "10.9.9.9" };
        let args = format!("IP={ip}");
        let (found, text) = site.call_with("ADD", "other", &args, &network).failure();
        assert!(found == code && text.contains(ip), "{container}: {found}: {text}");
    }
}

#[test]
fn every_version_gets_its_form_of_the_result() {
    let site = Site::dual("versions");
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut network = site.network();
        network["cniVersion"] = version.into();
        let result = site.call("ADD", "c1", &network).success();
        assert_eq!(result["cniVersion"], version);
        let [four, six] = ["11.0.1.2/24", "1100:0:0:1::2/64"];
        let [one, other] = ["11.0.1.1", "1100:0:0:1::1"];
        let expected = match version {
            "0.1.0" | "0.2.0" => json!({
                "cniVersion": version,
                "ip4": {"ip": four, "gateway": one}, "ip6": {"ip": six, "gateway": other}, "dns": {},
            }),
            "0.3.0" | "0.3.1" | "0.4.0" => json!({
                "cniVersion": version,
                "ips": [{"version": "4", "address": four, "gateway": one},
                        {"version": "6", "address": six, "gateway": other}],
                "dns": {},
            }),
            _ => json!({
                "cniVersion": version,
                "ips": [{"address": four, "gateway": one}, {"address": six, "gateway": other}],
            }),
        };
        assert_eq!(result, expected, "{version}");
        site.call("DEL", "c1", &network).success();
        fs::remove_dir_all(site.world.path("data/k8snet")).unwrap();
    }
}

#[test]
fn the_answer_has_settings_for_a_plain_host_local() {
    let (site, network) = listing("plain", json!(["old"]));
    let select = |namespace: &str| {
        let mut command = site.selecting("ADD", "c1");
        command.env("CNI_ARGS", pod_in(namespace));
        site.run(command, &crate::common::site::of_selector(&network)).success()["ipam"].clone()
    };
    let four = json!([{"subnet": "11.0.1.0/24", "rangeStart": "11.0.1.1", "rangeEnd": "11.0.1.254", "gateway": "11.0.1.1"}]);
    let six = json!([{
        "subnet": "1100:0:0:1::/64", "rangeStart": "1100:0:0:1::1",
        "rangeEnd": "1100::1:ffff:ffff:ffff:ffff", "gateway": "1100:0:0:1::1",
    }]);
    let none = json!({"subnet": null, "rangeStart": null, "rangeEnd": null, "gateway": null});
    let patch = |ranges: Value| {
        let mut patch = none.clone();
        patch["ranges"] = ranges;
        patch
    };
    assert_eq!(select("old"), patch(json!([four, six])));
    assert_eq!(select("default"), patch(json!([six])));
}

#[test]
fn pools_stay_beside_routes_that_a_delegate_before_has_set() {
    let site = Site::dual("before");
    let mut network = site.for_selector();
    network["prevResult"]["routes"] = json!([{"dst": "10.0.0.0/8"}]);
    network["ipam"]["routes"] = json!([{"dst": "::/0"}]);
    let answer = site.run(site.selecting("ADD", "c1"), &network).success();
    assert_eq!(answer["routes"], json!([{"dst": "10.0.0.0/8"}, {"dst": "::/0"}]));
    assert_eq!(answer["ips"], json!([]));
    let network = without(&site.for_selector(), &["dataDir"]);
    site.run(site.selecting("ADD", "c1"), &network).success();
}

#[test]
fn a_misspelt_key_of_a_route_is_a_warning_of_the_preset_and_an_error_of_a_chain() {
    let site = Site::new("misspelt", &["11.0.1.0/24"]);
    let routes = json!([{"dst": "0.0.0.0/0", "gws": "11.0.1.9"}]);
    let outcome = site.call("ADD", "c1", &with(&site.network(), "routes", routes.clone()));
    let told = outcome
        .stderr
        .lines()
        .filter(|line| line.contains("ipam.routes[0].gws is ignored (did you mean gw?)"));
    assert_eq!(told.count(), 1, "{}", outcome.stderr);
    outcome.success();
    let delegates = json!(["ipam-ds-kube-node", "ipam-da-local"]);
    let network = with(&site.chain(delegates), "routes", routes);
    let (code, text) = site.world.call("ADD", "c2", &network).failure();
    assert!(
        text.starts_with("ipam-ds-kube-node: ipam.routes[0].gws: unknown key (did you mean gw?)"),
        "{code} {text}"
    );
    // Without a record the chain runs as it is configured.
    site.world.call("DEL", "c2", &network).ended_well();
}
