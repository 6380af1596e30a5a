//! The example of a network, and the definitions that are shipped.

use ipam_testkit::bridge::{BridgeHost, Pod, addresses};
use ipam_testkit::doorway::Doorway;
use ipam_testkit::whereabouts::Crds;

use super::{Interface, Node, assert_empty, holders, ip};
use crate::common::Desk;

#[test]
fn the_example_connects_pods_over_both_families() {
    let desk = Desk::new(&Crds::shipped());
    let node = Node::new(&desk);
    let network = node.example("75-ipam-delegated-kube.conflist");
    let host = BridgeHost::new(&node.world);
    let _way = Doorway::inside(&host.outside.path(), desk.kube.address());
    let pods = ["web", "db"].map(|name| Pod::new(name).in_namespace("shop"));
    let add = |pod: &Pod| host.call("ADD", pod, &network).success();
    let given = [add(&pods[0]), add(&pods[1])];
    let held = [["10.225.0.2", "fd00:225::2"], ["10.225.0.3", "fd00:225::3"]];
    for (result, held) in given.iter().zip(held) {
        assert_eq!(addresses(result, "address"), held.map(ip));
        assert_eq!(addresses(result, "gateway"), ["10.225.0.1", "fd00:225::1"].map(ip));
    }
    for (pod, result) in pods.iter().zip(&given) {
        for (family, gateway) in [("-4", "10.225.0.1"), ("-6", "fd00:225::1")] {
            let routes = pod.namespace.run("ip", &[family, "route", "show", "default"]);
            assert!(routes.contains(&format!("via {gateway} ")), "{routes}");
            pod.namespace.ping(ip(gateway));
        }
        held.iter().flatten().for_each(|address| pod.namespace.ping(ip(address)));
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        host.call("CHECK", pod, &checked).success();
    }
    assert_eq!(holders(&desk).len(), 4);
    desk.objects().assert_consistent();
    for held in desk.objects().held() {
        assert_eq!(held.entry.podref, Some(format!("shop/{}", held.entry.id)));
    }

    for pod in &pods {
        // A runtime may call twice.
        for _ in 0..2 {
            host.call("DEL", pod, &network).success();
        }
    }
    assert_empty(&desk);
    assert_eq!(host.ports("pod0"), 0);
    assert_eq!(addresses(&add(&pods[1]), "address"), held[0].map(ip));
    host.call("DEL", &pods[1], &network).success();
    assert_empty(&desk);
}

#[test]
fn a_pod_that_moves_keeps_its_addresses_without_reservations() {
    let desk = Desk::new(&Crds::shipped());
    let nodes = [(); 2].map(|()| Node::new(&desk));
    let networks = nodes.each_ref().map(|node| {
        let mut network = node.network(&["10.1.0.0/24", "fd00:1::/64"]);
        network["ipam"]["kube"]["overlapCheck"] = false.into();
        network
    });
    let [before, after] = ["c1", "c2"].map(|container| Interface::of(container, "eth0"));
    let given = nodes[0].add(before, &networks[0]);
    assert_eq!(nodes[1].add(after, &networks[1]), given);
    assert!(holders(&desk).values().all(|holder| holder == "c2/eth0"), "{:?}", holders(&desk));
    let moved = desk.objects().pools();
    for _ in 0..2 {
        nodes[0].call("DEL", before, &networks[0]).success();
    }
    nodes[0].collect(&networks[0]);
    assert_eq!(desk.objects().pools(), moved);
    nodes[1].call("DEL", after, &networks[1]).success();
    assert_empty(&desk);
}
