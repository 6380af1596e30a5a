//! The preset `kube-node` under Debian's bridge plugin, in network namespaces: pods that reach each
//! other and their gateway.

use std::net::IpAddr;

use ipam_testkit::bridge::{BridgeHost, Pod, addresses};
use ipam_testkit::doorway::Doorway;
use ipam_testkit::world::with;
use serde_json::{Value, json};

use crate::common::Site;

const BRIDGE: &str = "br-kube-node";

/// The network of the README of kube-node, with the bridge's own keys.
fn network(site: &Site) -> Value {
    let mut network = site.network();
    network["bridge"] = BRIDGE.into();
    network
}

/// Pods on one host, from ADD to DEL: each reaches its gateways, and the others over what both have.
#[track_caller]
fn live(site: &Site, host: &BridgeHost<'_>, network: &Value, pods: &[Pod], families: &[usize]) {
    let results: Vec<Value> =
        pods.iter().map(|pod| host.call("ADD", pod, network).success()).collect();
    let held: Vec<Vec<IpAddr>> =
        results.iter().map(|result| addresses(result, "address")).collect();
    assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), families);
    for (pod, own) in pods.iter().zip(&held) {
        for other in held.iter().filter(|other| *other != own).flatten() {
            if own.iter().any(|own| own.is_ipv4() == other.is_ipv4()) {
                pod.namespace.ping(*other);
            }
        }
    }
    for (pod, result) in pods.iter().zip(&results) {
        let gateways = addresses(result, "gateway");
        assert_eq!(gateways.len(), addresses(result, "address").len());
        gateways.into_iter().for_each(|gateway| pod.namespace.ping(gateway));
        for family in ["-4", "-6"] {
            let routes = pod.namespace.run("ip", &[family, "route", "show", "default"]);
            let has_family =
                addresses(result, "address").iter().any(|a| a.is_ipv4() == (family == "-4"));
            assert_eq!(routes.contains("via"), has_family, "{family}: {routes}");
        }
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        host.call("CHECK", pod, &checked).success();
    }
    for pod in pods {
        for _ in 0..2 {
            host.call("DEL", pod, network).success();
        }
    }
    assert!(site.held("k8snet").is_empty() && site.records().is_empty());
    assert_eq!(host.ports(BRIDGE), 0);
}

#[test]
fn pods_of_one_family_or_both_reach_each_other() {
    for (node, cidrs) in [
        ("pods-four", &["10.96.1.0/24"][..]),
        ("pods-six", &["fd96:1::/64"]),
        ("pods-dual", &["10.96.2.0/24", "fd96:2::/64"]),
    ] {
        let site = Site::new(node, cidrs);
        let host = BridgeHost::new(&site.world);
        let _way = Doorway::inside(&host.outside.path(), site.kube.address());
        let pods = [Pod::new("one"), Pod::new("two")];
        live(&site, &host, &network(&site), &pods, &[cidrs.len(); 2]);
    }
}

#[test]
fn pods_with_and_without_ipv4_reach_each_other() {
    let site = Site::new("pods-mixed", &["10.96.3.0/24", "fd96:3::/64"]);
    let host = BridgeHost::new(&site.world);
    let _way = Doorway::inside(&host.outside.path(), site.kube.address());
    let network = with(&network(&site), "ipv4-namespaces", json!(["old-application"]));
    let pods = [
        Pod::new("old").in_namespace("old-application"),
        Pod::new("new").in_namespace("default"),
        Pod::new("newer"),
    ];
    live(&site, &host, &network, &pods, &[2, 1, 1]);
}

#[test]
fn pods_with_addresses_of_debians_host_local_reach_each_other() {
    let site = Site::new("pods-plain", &["10.96.4.0/24", "fd96:4::/64"]).with_host_local();
    let host = BridgeHost::new(&site.world);
    let _way = Doorway::inside(&host.outside.path(), site.kube.address());
    let mut network = site.chain(json!(["ipam-ds-kube-node", "host-local"]));
    network["bridge"] = BRIDGE.into();
    live(&site, &host, &network, &[Pod::new("one"), Pod::new("two")], &[2, 2]);
}
