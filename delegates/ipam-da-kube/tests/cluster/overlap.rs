//! Pools that overlap: the reservation decides, and entries whose reservations are gone count.

use ipam_testkit::node::{at_once, subnets};
use ipam_testkit::old::whereabouts::{Whereabouts, reconcile};
use ipam_testkit::whereabouts::{POOLS, Release};
use serde_json::{Value, json};

use crate::common::node::{Node, POOL, SUBNET, Sandbox, change_note};
use crate::common::relay::Fate;
use crate::common::{Desk, v094};

/// A node with a pool of this subnet, from 10.1.2.5 on.
fn node(desk: &Desk, subnet: &str) -> Node {
    let mut node = Node::of(desk).with_subnets(&[subnet]).with("networkName", "blue");
    node.pools[0]["ranges"][0]["rangeStart"] = "10.1.2.5".into();
    node
}

#[test]
fn the_reservation_decides_among_pools_that_overlap() {
    let desk = Desk::new(&v094());
    let (narrow, wide) = (node(&desk, SUBNET), node(&desk, "10.1.0.0/16"));
    // The reservations alone show each node the other's addresses.
    assert_eq!(narrow.address("c0"), "10.1.2.5");
    assert_eq!(wide.address("c0"), "10.1.2.6");
    let mut held = Vec::new();
    for round in 0..3 {
        held.extend([narrow.address(&format!("n{round}")), wide.address(&format!("w{round}"))]);
    }
    held.sort();
    held.dedup();
    assert_eq!(held.len(), 6);
    desk.objects().assert_consistent();
    for round in 0..3 {
        narrow.del(&format!("n{round}"));
        wide.del(&format!("w{round}"));
    }
    narrow.del("c0");
    wide.del("c0");
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn the_reservation_decides_among_ipv6_pools_that_overlap() {
    let desk = Desk::new(&v094());
    let [wide, narrow] = ["2001::2:3:0/124", "2001::2:3:0/126"].map(|subnet| {
        let mut node = Node::of(&desk).with_subnets(&[subnet]);
        node.pools[0]["ranges"][0]["gateway"] = "2001::2:3:3".into();
        node
    });
    assert_eq!(wide.address("a"), "2001::2:3:1");
    assert_eq!(narrow.address("b"), "2001::2:3:2");
    desk.objects().assert_consistent();
    wide.del("a");
    narrow.del("b");
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn two_networks_give_one_address_each_with_a_reservation_of_its_own() {
    let desk = Desk::new(&v094());
    let [a, b] = ["a", "b"].map(|network| Node::of(&desk).with("networkName", network));
    assert_eq!([a.address("c1"), b.address("c2")], ["10.1.2.2", "10.1.2.2"]);
    let of_b = ["b-10.1.2.0-24 2 c2", "b-10.1.2.2 c2"];
    let held = ["a-10.1.2.0-24 2 c1", of_b[0], "a-10.1.2.2 c1", of_b[1]];
    assert_eq!(desk.held(), held);
    a.del("c1");
    assert_eq!(desk.held(), of_b);
}

#[test]
fn entries_whose_reservations_the_reconciler_deleted_count_as_taken() {
    let desk = Desk::new(&v094());
    let (narrow, wide) = (node(&desk, SUBNET), node(&desk, "10.1.0.0/16"));
    let pod =
        |container, name| Sandbox { node: &narrow, container, ifname: "eth0", pod: (name, "u") };
    let sandboxes = [pod("c0", "p0"), pod("c1", "p1")];
    let held = sandboxes.map(|sandbox| sandbox.address());
    assert_eq!(held, ["10.1.2.5", "10.1.2.6"]);
    let living = [("ns/p0", "10.1.2.5"), ("ns/p1", "10.1.2.6")];
    reconcile(&desk.client, &desk.namespace, &living);
    assert!(desk.objects().reservations().is_empty());
    let relay = desk.relayed();
    let lists = |work: &dyn Fn()| {
        relay.during(work).iter().filter(|line| *line == "LIST ippools 200").count()
    };
    let first = || assert_eq!(wide.address("w0"), "10.1.2.7");
    assert_eq!(lists(&first), 1);
    let second = || assert_eq!(wide.address("w1"), "10.1.2.8");
    assert_eq!(lists(&second), 0);
    // After ten minutes the list is made again.
    let note = wide.world.path("state/kube/net/pools/blue-10.1.0.0-16.json");
    change_note(&note, |noted| {
        assert_eq!(noted["overlapping"], json!({"blue-10.1.2.0-24": SUBNET}));
        noted["listed"] = (noted["listed"].as_u64().unwrap() - 600_001).into();
    });
    assert_eq!(lists(&|| drop(wide.add("w2"))), 1);
    // Owners whose reservations were deleted keep their addresses, and get new reservations.
    for (sandbox, address) in sandboxes.iter().zip(&held) {
        assert_eq!(sandbox.address(), *address);
    }
    desk.objects().assert_consistent();
    sandboxes.into_iter().for_each(|sandbox| sandbox.del());
    ["w0", "w1", "w2"].into_iter().for_each(|container| wide.del(container));
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_del_after_the_reconciler_releases_the_entry() {
    let desk = Desk::new(&v094());
    let narrow = node(&desk, SUBNET);
    let pod = Sandbox { node: &narrow, container: "c0", ifname: "eth0", pod: ("p0", "u") };
    for by_record in [true, false] {
        let held = pod.add();
        reconcile(&desk.client, &desk.namespace, &[("ns/p0", "10.1.2.5")]);
        narrow.check("c0", &held).success();
        if by_record {
            pod.del_known(&held)
        } else {
            pod.del()
        }
        assert_eq!(desk.held(), [""; 0]);
    }
}

#[test]
fn a_requested_address_that_another_pool_holds_is_named_and_never_taken_over() {
    let desk = Desk::new(&v094());
    let requesting = |subnet| node(&desk, subnet).with_in_pools("requested-ip", "10.1.2.77");
    let narrow = requesting(SUBNET);
    let held = narrow.add("c1");
    let all = desk.held();
    let wide = || requesting("10.1.0.0/16").named("node-2");
    for (wide, part) in [
        (wide(), "c1"),
        (
            wide().taking_over(true),
            "10.1.2.77 is held in the pool blue-10.1.2.0-24, which overlaps",
        ),
    ] {
        let (code, text) = wide.call("ADD", "c2").failure();
        assert!(code == 102 && text.contains(part), "{code}: {text}");
        assert_eq!(desk.held(), all);
        wide.del("c2");
    }
    narrow.check("c1", &held).success();
    narrow.del("c1");
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn an_address_that_two_pools_name_is_never_taken_over() {
    let desk = Desk::new(&v094());
    let requesting = || node(&desk, SUBNET).with_in_pools("requested-ip", "10.1.2.77");
    requesting().add("c1");
    // The number of 10.1.2.77.
    let late = json!({"589": {"id": "late", "podref": "ns/late", "ifname": "eth0"}});
    desk.objects().create_pool("blue", "10.1.0.0/16", &late);
    let all = desk.held();
    let (code, text) = requesting().named("node-2").taking_over(true).call("ADD", "c2").failure();
    let part = "10.1.2.77 is held in the pool blue-10.1.0.0-16, which overlaps";
    assert!(code == 102 && text.contains(part), "{code}: {text}");
    assert_eq!(desk.held(), all);
}

#[test]
fn a_takeover_amid_a_claim_in_another_pool_leaves_the_address_with_its_holder() {
    let desk = Desk::new(&v094());
    let wide = "blue-10.1.0.0-16";
    desk.objects().create_pool("blue", "10.1.0.0/16", &json!({}));
    let relay = desk.relayed();
    let requesting = || node(&desk, SUBNET).with_in_pools("requested-ip", "10.1.2.77");
    let held = requesting().add("c1");
    let (client, path) = (desk.client.clone(), desk.objects().path(POOLS, wide));
    relay.decide(move |ask| {
        if ask.method == "PATCH" && ask.target.contains(wide) {
            // The number of 10.1.2.77.
            let late = json!({"589": {"id": "late", "podref": "ns/late", "ifname": "eth0"}});
            client.patch(&path, &json!({"spec": {"allocations": late}}));
        }
        Fate::Pass
    });
    let (code, text) = requesting().named("node-2").taking_over(true).call("ADD", "c2").failure();
    assert_eq!(code, 102, "{text}");
    relay.pass();
    requesting().check("c1", &held).success();
}

#[test]
fn a_range_whose_addresses_a_later_pool_took_is_full() {
    let desk = Desk::new(&v094());
    let (mut narrow, mut wide) = (node(&desk, SUBNET), node(&desk, "10.1.0.0/16"));
    for node in [&mut narrow, &mut wide] {
        node.pools[0]["ranges"][0]["rangeEnd"] = "10.1.2.40".into();
    }
    // This node notes that no pool overlaps.
    wide.add("w0");
    at_once(35, |number| drop(narrow.add(&format!("n{number}"))));
    let (code, text) = wide.call("ADD", "w1").failure();
    assert_eq!(code, 100, "{text}");
}

#[test]
fn a_pool_of_another_network_does_not_count() {
    let desk = Desk::new(&v094());
    let allocations = json!({"5": {"id": "x", "podref": "ns/x", "ifname": "eth0"}});
    desk.objects().create_pool("red", SUBNET, &allocations);
    desk.objects().create_pool("", SUBNET, &allocations);
    assert_eq!(node(&desk, "10.1.0.0/16").address("c0"), "10.1.2.5");
    desk.objects().create_pool("blue-node-7", "10.1.3.0/24", &json!({}));
    // The slices of nodes count, and the pool of the network itself.
    desk.objects().create_pool("blue-node-7", "10.1.2.0/28", &json!({"6": allocations["5"]}));
    assert_eq!(node(&desk, SUBNET).address("c1"), "10.1.2.7");
}

#[test]
fn the_key_of_the_network_address_stands_for_the_first_address_too() {
    let desk = Desk::new(&Release::Fork.crds());
    let entry = json!({"0": {"id": "c1", "podref": "ns/p"}});
    desk.objects().create_pool("", SUBNET, &entry);
    let mut node = Node::of(&desk).with("overlapCheck", false);
    node.pools = json!([{"ranges": [{"subnet": SUBNET, "gateway": "10.1.2.254"}]}]);
    assert_eq!(node.address("c2"), "10.1.2.2");
    node.pools = subnets(&[SUBNET]);
    node.pools[0]["ranges"][0]["rangeStart"] = "10.1.2.9".into();
    assert_eq!(node.address("c3"), "10.1.2.10");
    let lint = node.told(&["lint"]);
    assert!(lint.contains(&format!("{POOL} spec.allocations[\"0\"]")), "{lint}");
    // The address that the fork gave is in the result.
    let ips = json!({"ips": [{"address": "10.1.2.1/24"}]});
    assert_eq!(node.call_with("DEL", "c1", &ips).success(), Value::Null);
    ["c2", "c3"].into_iter().for_each(|container| node.del(container));
    assert_eq!(desk.held(), [""; 0]);
}

#[test]
fn a_fork_beside_us_and_its_short_keys_stay_apart() {
    let desk = Desk::new(&Release::Fork.crds());
    let range = json!({"range": SUBNET});
    let fork = Whereabouts::new(Release::Fork, &desk.client, &desk.namespace, &range);
    let node = Node::of(&desk).with("overlapCheck", false);
    let mut ours = Vec::new();
    for round in 0..3 {
        let theirs = fork.add(&format!("f{round}"), "eth0", "ns/p").run().unwrap();
        ours.push(node.address(&format!("c{round}")));
        // The fork gives its first address again and again.
        assert!(!ours.contains(&theirs[0].to_string()), "{theirs:?} {ours:?}");
    }
    let ips = json!({"ips": [{"address": "10.1.2.1/24"}]});
    node.call_with("CHECK", "f2", &ips).success();
    assert_eq!(node.call_with("CHECK", "f1", &ips).failure().0, 104);
    node.del("f2");
    for round in 0..3 {
        fork.del(&format!("c{round}"), "eth0", "ns/p").run().unwrap();
    }
    assert_eq!(desk.held(), [""; 0]);
}
