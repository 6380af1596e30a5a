//! Definitions that passcod serves and other rules refuse: ranges that overlap, stand twice, are
//! of both families, or whose bounds lie outside of their subnet.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::named;
use ipam_testkit::old::passcod::Passcod;
use serde_json::{Value, json};

use common::filling::fill;
use common::store::{books, holdings};
use common::{Node, POOL};

/// A store with one definition, for us and for passcod.
fn site(ranges: &Value) -> Consul {
    let consul = Consul::start();
    put(&consul, ranges);
    consul
}

fn put(consul: &Consul, ranges: &Value) {
    consul.delete_all("");
    for (key, value) in [("ipam/", ""), ("ipam/blue", &*ranges.to_string()), ("ipam/blue/", "")] {
        consul.put(key, value);
    }
}

/// What the pool gives, one ADD after the other, until it is full.
fn all_of_ours(consul: &Consul) -> Vec<Value> {
    let node = Node::of(consul);
    let given = fill(&node);
    for (i, result) in given.iter().enumerate() {
        node.check(&format!("c{i}"), result).success();
    }
    given.iter().map(|result| json!([result["ips"], result["routes"]])).collect()
}

fn all_of_passcods(consul: &Consul) -> Vec<Value> {
    let old = Passcod::new(&[consul.endpoint()], POOL);
    let mut given = Vec::new();
    loop {
        match old.add(&format!("c{}", given.len())).run() {
            Ok(result) => given.push(json!([result["ips"], result["routes"]])),
            Err(error) => {
                assert_eq!(error["code"], 122, "{error}");
                return given;
            }
        }
    }
}

/// Definitions whose bounds name the network and the broadcast address, which only passcod gives
/// by default.
fn definitions() -> [Value; 7] {
    let range = |subnet: &str, start: &str, end: &str| json!({"subnet": subnet, "rangeStart": start, "rangeEnd": end});
    let four = range("10.1.0.0/29", "10.1.0.0", "10.1.0.7");
    let mut routed = four.clone();
    routed["gateway"] = "10.1.0.1".into();
    [
        // One inside the other.
        json!([{"subnet": "10.1.0.4/31", "gateway": "10.1.0.1"}, routed]),
        // One address of both.
        json!([
            range("10.1.0.0/29", "10.1.0.0", "10.1.0.4"),
            range("10.1.0.0/28", "10.1.0.4", "10.1.0.6"),
        ]),
        // Twice the same.
        json!([four, four]),
        // Of both families.
        json!([
            {"subnet": "10.1.0.4/31"},
            {"subnet": "fd00::/126", "rangeStart": "fd00::"},
            {"subnet": "10.1.0.8/32"},
        ]),
        // Bounds below and above the subnet.
        json!([
            range("10.1.0.0/31", "10.0.0.9", "10.9.0.0"),
            range("10.1.0.8/31", "10.1.0.9", "fd00::9"),
        ]),
        // Bounds that leave nothing, and a range that gives something.
        json!([
            {"subnet": "10.1.0.0/31", "rangeStart": "10.2.0.0"},
            {"subnet": "10.1.0.0/31", "rangeStart": "fd00::"},
            {"subnet": "fd00::/127", "rangeEnd": "10.2.0.0"},
            range("10.1.0.0/30", "10.1.0.2", "10.1.0.1"),
            {"subnet": "10.1.0.9/32"},
        ]),
        // In no order of addresses.
        json!([{"subnet": "10.1.0.4/31"}, {"subnet": "10.2.0.0/32"}, {"subnet": "10.1.0.2/32"}]),
    ]
}

#[test]
fn ranges_serve_in_order_and_give_each_address_once() {
    let consul = Consul::start();
    for ranges in definitions() {
        put(&consul, &ranges);
        let theirs = all_of_passcods(&consul);
        put(&consul, &ranges);
        let ours = all_of_ours(&consul);
        assert_eq!(ours, theirs, "{ranges}");
        assert_eq!(books(&consul).len(), ours.len(), "{ranges}");
    }
}

#[test]
fn an_address_of_two_ranges_has_what_passcod_says_of_it() {
    let ranges = json!([
        {"subnet": "10.0.20.0/24", "gateway": "10.0.20.1", "rangeStart": "10.0.20.9"},
        {"subnet": "10.0.0.0/16", "gateway": "10.0.0.1"},
    ]);
    let consul = site(&ranges);
    let asked = json!([{"name": POOL, "requested_ip": "10.0.20.9"}]);
    for (pools, ips) in [
        // The first range gives it.
        (named(&[POOL]), json!([{"address": "10.0.20.9/24", "gateway": "10.0.20.1"}])),
        // The last one answers a request.
        (asked, json!([{"address": "10.0.20.9/16", "gateway": "10.0.0.1"}])),
    ] {
        put(&consul, &ranges);
        let theirs = Passcod::with_pools(&[consul.endpoint()], &pools).add("c1").run().unwrap();
        assert_eq!(theirs["ips"], ips);
        put(&consul, &ranges);
        let mut node = Node::of(&consul);
        node.pools = pools;
        let ours = node.add("c1");
        assert_eq!((&ours["ips"], &ours["routes"]), (&ips, &theirs["routes"]));
        assert_eq!(node.add("c1")["ips"], ips);
        node.call("STATUS", "").success();
        node.check("c1", &ours).success();
        node.del("c1");
        assert_eq!(holdings(&consul), [""; 0]);
    }
}

#[test]
fn the_gateway_of_a_range_is_given_to_no_container() {
    let consul = site(&json!([
        {"subnet": "10.1.0.4/30", "rangeEnd": "10.1.0.5", "gateway": "10.1.0.5"},
        {"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.4", "gateway": "10.1.0.1"},
    ]));
    let ips = all_of_ours(&consul).into_iter().map(|given| given[0][0]["address"].clone());
    assert_eq!(ips.collect::<Value>(), json!(["10.1.0.4/29", "10.1.0.6/29"]));
}

#[test]
fn lint_warns_of_such_ranges() {
    let consul = Consul::start();
    for (i, ranges) in definitions().into_iter().enumerate() {
        put(&consul, &ranges);
        let text = Node::of(&consul).told(&["lint"]);
        let warnings = text.lines().filter_map(|line| line.strip_prefix("warning: "));
        // Gateways have a test of their own.
        let warnings: Vec<&str> =
            warnings.filter(|warning| !warning.starts_with("the gateway")).collect();
        let words = [
            &["10.1.0.4-10.1.0.5 and 10.1.0.0-10.1.0.7 overlap"][..],
            &["10.1.0.0-10.1.0.4 and 10.1.0.4-10.1.0.6 overlap"],
            &["10.1.0.0-10.1.0.7 and 10.1.0.0-10.1.0.7 overlap"],
            &["mixed address families"],
            &["[0].rangeStart: 10.0.0.9", "[0].rangeEnd: 10.9.0.0", "[1].rangeEnd: fd00::9"],
            &[
                "[0].rangeStart: 10.2",
                "[1].rangeStart: fd00",
                "[2].rangeEnd: 10.2",
                "[3].rangeStart: ",
            ],
            &[],
        ][i];
        assert_eq!(warnings.len(), words.len(), "{ranges}: {text}");
        for (warning, word) in warnings.iter().zip(words) {
            assert!(warning.contains("ipam/blue") && warning.contains(word), "{word}: {text}");
        }
    }
}

#[test]
fn lint_warns_of_a_gateway_outside_of_its_subnet() {
    let consul = site(&json!([{"subnet": "10.1.0.0/29", "gateway": "10.1.1.1"}]));
    let text = Node::of(&consul).told(&["lint"]);
    let told = "warning: the gateway 10.1.1.1 is outside its subnet 10.1.0.0/29";
    assert!(text.contains(told), "{text}");
    put(&consul, &json!([{"subnet": "10.1.0.0/29", "gateway": "10.1.0.6"}]));
    let text = Node::of(&consul).told(&["lint"]);
    assert!(!text.contains("gateway"), "{text}");
}
