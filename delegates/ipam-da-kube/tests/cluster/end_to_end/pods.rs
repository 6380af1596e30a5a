//! Pods with several interfaces and networks.

use std::net::IpAddr;

use ipam_testkit::bridge::addresses;
use ipam_testkit::whereabouts::Release;
use serde_json::json;

use super::{Interface, Node, assert_empty, desk, holders, ip};

#[test]
fn networks_on_one_pool_give_distinct_addresses_and_release_their_own() {
    let desk = desk(Release::V094);
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let [node, other] = &nodes;
    let named = |node: &Node<'_>, name: &str| {
        let mut network = node.network(&["10.1.0.0/24"]);
        network["name"] = name.into();
        network
    };
    let (blue, red) = (named(node, "blue"), named(node, "red"));
    let [eth0, net1] = ["eth0", "net1"].map(|name| Interface::of("c1", name));
    for _ in 0..2 {
        assert_eq!(node.add(eth0, &blue), [ip("10.1.0.2")]);
        assert_eq!(node.add(net1, &red), [ip("10.1.0.3")]);
    }
    let elsewhere = Interface { pod: ["db-0", "uid-1"], ..Interface::of("c2", "eth0") };
    assert_eq!(other.add(elsewhere, &named(other, "blue")), [ip("10.1.0.4")]);
    desk.objects().assert_consistent();

    for _ in 0..2 {
        node.call("DEL", eth0, &blue).success();
    }
    assert_eq!(holders(&desk).keys().collect::<Vec<_>>(), ["10.1.0.3", "10.1.0.4"]);
    assert_eq!(node.add(eth0, &blue), [ip("10.1.0.2")]);
    node.collect(&blue);
    assert_eq!(holders(&desk).keys().collect::<Vec<_>>(), ["10.1.0.3", "10.1.0.4"]);
    desk.objects().assert_consistent();
    assert_eq!(node.add(net1, &red), [ip("10.1.0.3")]);
    node.collect(&red);
    assert_eq!(holders(&desk).keys().collect::<Vec<_>>(), ["10.1.0.4"]);
}

#[test]
fn interfaces_of_a_pod_in_one_network_hold_their_own_addresses() {
    assert_interfaces_hold_their_own(Release::V094);
}

/// Interfaces of a pod in one network hold their own addresses, with reservations and without.
#[track_caller]
pub(crate) fn assert_interfaces_hold_their_own(release: Release) {
    let desk = desk(release);
    for (i, overlap_check) in [true, false].into_iter().enumerate() {
        let node = Node::new(&desk);
        let mut network = node.network(&[&format!("10.{i}.0.0/24"), &format!("fd00:{i}::/64")]);
        network["ipam"]["kube"]["overlapCheck"] = overlap_check.into();
        let [net1, net2] = ["net1", "net2"].map(|name| Interface::of("c1", name));
        let held = |n: u8| [ip(&format!("10.{i}.0.{n}")), ip(&format!("fd00:{i}::{n}"))];
        let all = |verb: &str| {
            for (interface, n) in [(net1, 2), (net2, 3)] {
                let mut network = network.clone();
                if verb == "CHECK" {
                    let [v4, v6] = held(n);
                    let ips = [format!("{v4}/24"), format!("{v6}/64")];
                    let ips = ips.map(|address| json!({"address": address}));
                    network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": ips});
                }
                let result = node.call(verb, interface, &network).success();
                assert!(verb == "CHECK" || addresses(&result, "address") == held(n));
            }
        };
        all("ADD");
        all("ADD");
        all("CHECK");
        // A DEL of one, also repeated, leaves the other.
        for (gone, kept, n) in [(net1, net2, 3), (net2, net1, 2)] {
            for _ in 0..2 {
                node.call("DEL", gone, &network).success();
            }
            let of_round: Vec<IpAddr> =
                desk.objects().held().iter().map(|held| held.address).collect();
            assert_eq!(of_round, held(n), "{release:?} {overlap_check}");
            assert_eq!(node.add(kept, &network), held(n));
            assert_eq!(node.add(gone, &network), held(5 - n));
            all("CHECK");
        }
        for interface in [net1, net2] {
            node.call("DEL", interface, &network).success();
        }
        assert_empty(&desk);
    }
}
