//! Which address is given: the lowest while it is calm, any after a lost race.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_testkit::consul::{Consul, Relay};
use ipam_testkit::node::addresses;

use common::counting::{behind, requests};
use common::filling::{occupy, usable};
use common::{Node, define};

#[test]
fn the_lowest_address_is_given_while_it_is_calm() {
    let consul = Consul::start();
    define(&consul, "blue", "10.1.0.0/16");
    let node = Node::of(&consul);
    let address = |number: u32| format!("10.1.0.{number}");
    let mut results = Vec::new();
    for number in 1..=9 {
        results.push(node.add(&format!("c{number}")));
        assert_eq!(addresses(results.last().unwrap()), [address(number)]);
    }
    for number in [3, 5] {
        node.del_known(&format!("c{number}"), &results[number - 1]).success();
    }
    node.del("c7");
    for number in [3, 5, 7, 10] {
        assert_eq!(node.address(&format!("again{number}")), address(number));
    }
    // So does a node that has seen nothing of it.
    node.del("c2");
    assert_eq!(Node::of(&consul).named("node-2").address("other"), address(2));
}

#[test]
fn the_lowest_address_is_given_wherever_it_lies() {
    let consul = Consul::start();
    for (pool, subnet) in [("four", "10.1.0.0/16"), ("six", "fd00:1::/64")] {
        define(&consul, pool, subnet);
        let first = match pool {
            "four" => 0x0a01_0001_u128,
            _ => "fd00:1::1".parse::<Ipv6Addr>().unwrap().to_bits(),
        };
        let address = |number: u128| match pool {
            "four" => Ipv4Addr::from_bits((first + number) as u32).to_string(),
            _ => Ipv6Addr::from_bits(first + number).to_string(),
        };
        // Within the first block, at its end, at that of the first ten, and of the first sixteen.
        let mut held = 0;
        for begin in [0, 14, 250, 2555, 4090] {
            let all: Vec<IpAddr> =
                (held..begin).map(|number| address(number).parse().unwrap()).collect();
            occupy(&consul, pool, &all);
            let node = Node::of(&consul).with_pools(&[pool]).named(&format!("{pool}-{begin}"));
            for number in begin..begin + 10 {
                assert_eq!(node.address(&format!("c{number}")), address(number), "{pool}");
            }
            held = begin + 10;
        }
    }
}

#[test]
fn whoever_lost_a_race_spreads_for_a_while() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    define(&consul, "blue", "10.1.0.0/16");
    let node = behind(&relay);
    assert_eq!(node.address("first"), "10.1.0.1");
    occupy(&consul, "blue", &usable("10.1.0.1", 1));
    let mut lost = String::new();
    let requests = requests(&relay, || lost = node.address("lost"));
    // The claim, a wider look, another claim.
    assert_eq!(requests, 3, "{lost}");
    let mut spread = vec![lost];
    spread.extend((0..6).map(|number| node.address(&format!("spread{number}"))));
    let low: Vec<String> = (3..=9).map(|number| format!("10.1.0.{number}")).collect();
    assert!(spread.iter().filter(|address| low.contains(address)).count() < 3, "{spread:?}");
    (0..9).for_each(|number| drop(node.add(&format!("more{number}"))));
    // What the node knew is forgotten after a minute, and it is calm.
    std::fs::remove_dir_all(node.world.path("state/consul/pools")).unwrap();
    assert_eq!(node.address("calm"), "10.1.0.3");
}
