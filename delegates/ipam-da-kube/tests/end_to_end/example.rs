//! The example of a network, through Debian's bridge plugin.

use ipam_testkit::bridge::{BridgeHost, Pod, addresses};
use ipam_testkit::doorway::Doorway;
use ipam_testkit::whereabouts::Crds;

use crate::common::Desk;
use crate::{Node, assert_empty, holders, ip};

#[test]
fn the_example_connects_pods_over_both_families() {
    let desk = Desk::new(Crds::shipped);
    let node = Node::new(&desk);
    let network = node.example("75-ipam-delegated-kube.conflist");
    let host = BridgeHost::new(&node.world);
    let _way = Doorway::inside(&host.outside.path(), desk.served.address());
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
