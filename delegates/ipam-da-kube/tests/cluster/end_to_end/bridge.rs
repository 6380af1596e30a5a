//! Through Debian's bridge plugin: pods with two networks on one pool, and with two interfaces of a
//! network.

use std::net::IpAddr;

use ipam_testkit::bridge::{BridgeHost, Pod, addresses};
use ipam_testkit::doorway::Doorway;
use ipam_testkit::whereabouts::Release;
use ipam_testkit::world::{start, wait};
use serde_json::Value;

use super::{Node, assert_empty, desk, holders, ip};

/// A network with a bridge of its own, on the one pool of each family.
fn network(node: &Node<'_>, name: &str) -> Value {
    let mut network = node.network(&["10.1.0.0/24", "fd00:1::/64"]);
    network["name"] = name.into();
    network["bridge"] = name.into();
    network
}

/// A call of the bridge plugin for an interface of a pod.
#[track_caller]
fn call(host: &BridgeHost<'_>, verb: &str, pod: &Pod, ifname: &str, network: &Value) -> Value {
    let mut command = host.command(verb, pod);
    command.env("CNI_IFNAME", ifname);
    wait(start(command, network)).success()
}

/// The n-th address of each pool.
fn held(n: u8) -> [IpAddr; 2] {
    [ip(&format!("10.1.0.{n}")), ip(&format!("fd00:1::{n}"))]
}

#[test]
fn a_pod_has_addresses_of_its_own_in_each_of_two_networks_on_one_pool() {
    let desk = desk(Release::V094);
    let node = Node::new(&desk);
    let (blue, red) = (network(&node, "blue"), network(&node, "red"));
    let host = BridgeHost::new(&node.world);
    let _way = Doorway::inside(&host.outside.path(), desk.kube.address());
    let [web, db] = ["web", "db"].map(|name| Pod::new(name).in_namespace("shop"));
    for (pod, ifname, network, n) in
        [(&web, "eth0", &blue, 2), (&web, "net1", &red, 3), (&db, "eth0", &red, 4)]
    {
        let result = call(&host, "ADD", pod, ifname, network);
        assert_eq!(addresses(&result, "address"), held(n));
        let mut checked = network.clone();
        checked["prevResult"] = result;
        call(&host, "CHECK", pod, ifname, &checked);
    }
    desk.objects().assert_consistent();

    // The pod has two ways to the subnet until then.
    for _ in 0..2 {
        call(&host, "DEL", &web, "eth0", &blue);
    }
    assert_eq!(holders(&desk).len(), 4);
    held(3).into_iter().for_each(|address| db.namespace.ping(address));
    call(&host, "DEL", &web, "net1", &red);
    call(&host, "DEL", &db, "eth0", &red);
    assert_empty(&desk);
}

#[test]
fn a_pod_has_addresses_of_its_own_on_each_of_two_interfaces_of_a_network() {
    let desk = desk(Release::V094);
    let node = Node::new(&desk);
    let blue = network(&node, "blue");
    let host = BridgeHost::new(&node.world);
    let _way = Doorway::inside(&host.outside.path(), desk.kube.address());
    let [web, db] = ["web", "db"].map(|name| Pod::new(name).in_namespace("shop"));
    for (pod, ifname, n) in [(&web, "net1", 2), (&web, "net2", 3), (&db, "eth0", 4)] {
        let result = call(&host, "ADD", pod, ifname, &blue);
        assert_eq!(addresses(&result, "address"), held(n));
    }
    for n in [2, 3] {
        held(n).into_iter().for_each(|address| db.namespace.ping(address));
    }
    for _ in 0..2 {
        call(&host, "DEL", &web, "net1", &blue);
    }
    assert_eq!(holders(&desk).get("10.1.0.3").map(String::as_str), Some("web/net2"));
    assert_eq!(holders(&desk).len(), 4);
    held(3).into_iter().for_each(|address| db.namespace.ping(address));
    call(&host, "DEL", &web, "net2", &blue);
    call(&host, "DEL", &db, "eth0", &blue);
    assert_empty(&desk);
}
