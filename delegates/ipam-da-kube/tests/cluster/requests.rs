//! The requests of each call. A call sends no others.

use std::collections::BTreeMap;

use ipam_testkit::node::{addresses, at_once, given};
use ipam_testkit::pages::Page;
use ipam_testkit::whereabouts::{Crds, RESERVATIONS};
use serde_json::{Value, json};

use crate::common::node::{Node, Sandbox, change_note};
use crate::common::relay::Relay;
use crate::common::sticky::{StickySandbox, sticky_desk};
use crate::common::{Desk, changing, v07, v094};

/// A desk whose nodes reach the server through a relay, which counts.
struct Counter {
    desk: Desk,
    relay: Relay,
}

const GET: &str = "GET ippools/10.1.2.0-24 200";
const GET_MISSING: &str = "GET ippools/10.1.2.0-24 404";
const PATCH: &str = "PATCH ippools/10.1.2.0-24 200";
const LIST: &str = "LIST ippools 200";
const CLUSTER: &str = "GET namespaces/kube-system 200";
const MAKE: &str = "POST ippools 201";
const RESERVE: &str = "POST overlappingrangeipreservations 201";

impl Counter {
    fn new(crds: &Crds) -> Self {
        Self::on(Desk::new(crds))
    }

    fn on(desk: Desk) -> Self {
        let relay = desk.relayed();
        Self { desk, relay }
    }

    fn node(&self, name: &str) -> Node {
        Node::of(&self.desk).named(name)
    }

    #[track_caller]
    fn assert_sends(&self, expected: &[&str], done: impl FnOnce()) {
        assert_eq!(self.relay.during(done), expected);
    }
}

fn reservation(verb: &str, address: &str) -> String {
    format!("{verb} overlappingrangeipreservations/{address} 200")
}

#[test]
fn with_reservations() {
    let counter = Counter::new(&v094());
    let (node, other) = (counter.node("node-1"), counter.node("node-2"));
    counter.assert_sends(&[LIST, GET_MISSING, CLUSTER, MAKE, RESERVE], || drop(node.add("first")));
    let mut result = Value::Null;
    counter.assert_sends(&[GET, PATCH, RESERVE], || result = node.add("c1"));
    let address = addresses(&result).swap_remove(0);
    let confirm = reservation("PATCH", &address);
    counter.assert_sends(&[GET, &confirm], || result = node.add("c1"));
    counter.assert_sends(&[GET], || drop(node.check("c1", &result).success()));
    let delete = reservation("DELETE", &address);
    counter.assert_sends(&[&delete, PATCH], || drop(node.del_known("c1", &result).success()));
    // The pool shows what is left to release.
    counter.assert_sends(&[GET], || node.del("c1"));
    counter.assert_sends(&[GET], || node.del("unknown"));
    // Another node meets the pool, and takes the address that is free.
    counter.assert_sends(&[LIST, GET, CLUSTER, PATCH, RESERVE], || drop(other.add("c2")));
    // Without its leases a DEL reads the present state of each.
    let read = reservation("GET", &address);
    counter.assert_sends(&[GET, &read, &delete, PATCH], || other.del("c2"));
    let ready = ["PATCH ippools/ipam-delegated-status 404"];
    counter.assert_sends(&ready, || drop(node.call("STATUS", "").success()));
}

#[test]
fn of_the_next_sandbox_of_a_pod() {
    let counter = Counter::new(&v094());
    let node = counter.node("node-1");
    let [first, next] = ["c1", "c2"].map(|container| Sandbox {
        node: &node,
        container,
        ifname: "eth0",
        pod: ("web-0", "u1"),
    });
    let address = first.address();
    let (read, replace) = (reservation("GET", &address), reservation("PATCH", &address));
    counter.assert_sends(&[GET, &read, PATCH, &replace], || drop(next.add()));
    assert_eq!(next.address(), address);
}

#[test]
fn a_del_that_nothing_helps_lists_the_pools() {
    let counter = Counter::new(&v094());
    let node = counter.node("node-1");
    let result = node.add("c1");
    let address = addresses(&result).swap_remove(0);
    let (get, delete) = (reservation("GET", &address), reservation("DELETE", &address));
    let without_pools = Node { pools: json!([]), ..counter.node("node-1") };
    counter.assert_sends(&[LIST], || without_pools.del("unknown"));
    // This node has another state folder, without a note.
    counter.assert_sends(&[LIST, &get, &delete, PATCH], || without_pools.del("c1"));
    assert_eq!(counter.desk.held(), [""; 0]);
}

#[test]
fn without_reservations() {
    let counter = Counter::new(&Crds::shipped());
    let node = counter.node("node-1").with("overlapCheck", false);
    counter.assert_sends(&[GET_MISSING, CLUSTER, MAKE], || drop(node.add("first")));
    let mut result = Value::Null;
    counter.assert_sends(&[GET, PATCH], || result = node.add("c1"));
    counter.assert_sends(&[GET, PATCH], || result = node.add("c1"));
    counter.assert_sends(&[GET], || drop(node.check("c1", &result).success()));
    counter.assert_sends(&[PATCH], || drop(node.del_known("c1", &result).success()));
    counter.assert_sends(&[GET, PATCH], || node.del("first"));
}

#[test]
fn a_del_is_one_request_as_soon_as_the_definitions_keep_what_it_tests() {
    let kube = changing();
    v07().install_alone(&kube);
    let counter = Counter::on(Desk::on(&kube));
    let node = counter.node("node-1").with("overlapCheck", false);
    let held = node.add("c1");
    counter.assert_sends(&[GET, PATCH], || drop(node.del_known("c1", &held).success()));
    Crds::shipped().install(&kube);
    // The next one sees what is kept of this one.
    node.add("c2");
    let held = node.add("c3");
    counter.assert_sends(&[PATCH], || drop(node.del_known("c3", &held).success()));
}

#[test]
fn pools_that_overlap_are_read_and_changed_along() {
    let counter = Counter::new(&v094());
    let wide = counter.node("node-1").with_subnets(&["10.1.0.0/16"]);
    wide.add("wide");
    let node = counter.node("node-2");
    let (get_wide, patch_wide) = ("GET ippools/10.1.0.0-16 200", "PATCH ippools/10.1.0.0-16 200");
    let first = [LIST, GET_MISSING, CLUSTER, get_wide, MAKE, RESERVE, patch_wide];
    counter.assert_sends(&first, || drop(node.add("c1")));
    // A node that knows both lists nothing.
    let later = [GET, get_wide, PATCH, RESERVE, patch_wide];
    counter.assert_sends(&later, || drop(node.add("c2")));
    let mut result = Value::Null;
    counter.assert_sends(&later, || result = node.add("c3"));
    // A list counts for 10 minutes.
    let note = node.world.path("state/kube/net/pools/10.1.2.0-24.json");
    for (minutes, is_listed) in [(9, false), (11, true)] {
        change_note(&note, |noted| {
            noted["listed"] = (noted["listed"].as_u64().unwrap() - minutes * 60_000).into();
        });
        let expected = &[&[LIST][..], &later].concat()[usize::from(!is_listed)..];
        counter.assert_sends(expected, || drop(node.add(&format!("minute-{minutes}"))));
    }
    let address = addresses(&result).swap_remove(0);
    let confirm = reservation("PATCH", &address);
    counter.assert_sends(&[GET, get_wide, &confirm], || drop(node.add("c3")));
    // Without a note, the first ADD may have been killed before it changed the other pool.
    std::fs::remove_file(node.world.path("state/kube/net/owners/c3:eth0")).unwrap();
    let read = reservation("GET", &address);
    let again = [GET, get_wide, &read, &confirm, patch_wide];
    counter.assert_sends(&again, || drop(node.add("c3")));
    // Nor did a reservation that was deleted keep the other pool from an old node.
    counter.desk.client.delete(&counter.desk.objects().path(RESERVATIONS, &address));
    let missing = confirm.replace("200", "404");
    let anew = [GET, get_wide, &missing, RESERVE, patch_wide];
    counter.assert_sends(&anew, || drop(node.add("c3")));
}

#[test]
fn an_ipv6_pool_that_is_new_is_looked_for_under_the_name_of_0_3_too() {
    let counter = Counter::new(&v094());
    let node = counter.node("node-1").with_subnets(&["fd00:1::/64"]);
    let missing = ["fd00-1---64", "fd00-1--64"].map(|name| format!("GET ippools/{name} 404"));
    let first = [LIST, &missing[0], CLUSTER, &missing[1], MAKE, RESERVE];
    counter.assert_sends(&first, || drop(node.add("c1")));
    let known = ["GET ippools/fd00-1---64 200", "PATCH ippools/fd00-1---64 200", RESERVE];
    counter.assert_sends(&known, || drop(node.add("c2")));
}

#[test]
fn calls_at_once_send_no_more() {
    let counter = Counter::new(&v094());
    let node = counter.node("node-1");
    node.add("first");
    const CALLS: usize = 20;
    let sent =
        counter.relay.during(|| at_once(CALLS, |number| drop(node.add(&format!("c{number}")))));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    sent.iter().for_each(|line| *counts.entry(line).or_default() += 1);
    assert_eq!(counts, BTreeMap::from([(GET, CALLS), (PATCH, CALLS), (RESERVE, CALLS)]));
    let results: Vec<Value> = (0..CALLS).map(|number| node.add(&format!("c{number}"))).collect();
    let sent = counter.relay.during(|| {
        at_once(CALLS, |number| {
            let given = given(&results[number]);
            node.call_with("DEL", &format!("c{number}"), &given).success();
        });
    });
    assert_eq!(sent.len(), 2 * CALLS, "{sent:#?}");
}

#[test]
fn of_sticky_names() {
    let counter = Counter::on(sticky_desk());
    let plain = counter.node("node-1");
    plain.add("first");
    let pools = |keep: &str| counter.desk.sticky_node("node-1", "web", keep).pools;
    let node = Node { pools: pools("0s"), ..plain };
    let mut result = Value::Null;
    let make = "POST stickyleases 201";
    let object = |verb: &str| format!("{verb} stickyleases/10.1.2.0-24.web 200");
    counter.assert_sends(&[GET, make, PATCH, RESERVE], || result = node.add("c1"));
    let confirm = reservation("PATCH", "10.1.2.3");
    counter.assert_sends(&[GET, &confirm, &object("PATCH")], || result = node.add("c1"));
    let (read, delete) = (reservation("GET", "10.1.2.3"), reservation("DELETE", "10.1.2.3"));
    let ends = [&object("DELETE"), &delete, PATCH];
    counter.assert_sends(&ends, || drop(node.del_known("c1", &result).success()));
    // One that is kept.
    let node = Node { pools: pools("1h"), ..node };
    let result = node.add("c2");
    let keep = object("PATCH");
    counter.assert_sends(&[&keep], || drop(node.del_known("c2", &result).success()));
    counter.assert_sends(&[GET, &keep, &read, &confirm], || drop(node.add("c3")));
    counter.assert_sends(&[GET, &object("GET"), &read, &keep], || node.del("c3"));
    // Nor is anything listed where the one address of a pool is kept for the name.
    let small =
        counter.node("node-1").with_subnets(&["10.1.3.0/30"]).with_in_pools("sticky", "web");
    let small = small.with_in_pools("keep", "1h");
    small.add("c5");
    small.del("c5");
    let expected = [
        "GET ippools/10.1.3.0-30 200".to_owned(),
        "PATCH stickyleases/10.1.3.0-30.web 200".to_owned(),
        reservation("GET", "10.1.3.2"),
        reservation("PATCH", "10.1.3.2"),
    ];
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    counter.assert_sends(&expected, || drop(small.add("c6")));
    // Others pay nothing beside it.
    let plain = Node { pools: counter.node("node-1").pools, ..node };
    counter.assert_sends(&[GET, PATCH, RESERVE], || drop(plain.add("c4")));
}

#[test]
fn of_entries_without_an_object_in_a_full_pool() {
    let counter = Counter::on(sticky_desk());
    let desk = &counter.desk;
    let mut node = counter.node("node-1").with_subnets(&["10.1.3.0/29"]);
    let plain = node.pools.clone();
    let hosts = 2..=6;
    for host in hosts.clone() {
        let pod = format!("web-{host}");
        node = node.with_in_pools("sticky", pod.as_str());
        StickySandbox::of_pod(desk, &node, &format!("c{host}"), &pod, "u0").add();
    }
    let node = Node { pools: plain, ..node };
    for (name, _) in desk.sticky_objects() {
        desk.client.delete(&desk.sticky_path(&name));
    }
    let pod = |uid| StickySandbox::of_pod(desk, &node, "c9", "own", uid);
    let pods = format!("namespaces/{}/pods", desk.namespace);
    let judged = |host: u8| {
        [reservation("GET", &format!("10.1.3.{host}")), format!("GET {pods}/web-{host} 404")]
    };
    let lists = ["GET ippools/10.1.3.0-29 200", "LIST stickyleases 200"].map(str::to_owned);
    // The pods are in another cluster: each entry is judged, and the own pod is asked once.
    let sent = counter.relay.during(|| drop(pod("u1").refused(100)));
    let mut expected = lists.to_vec();
    expected.extend(hosts.flat_map(judged));
    expected.insert(4, format!("GET {pods}/own 404"));
    assert_eq!(sent, expected);
    let uid = desk.create_pod("own", "");
    let sent = counter.relay.during(|| drop(pod(&uid).add()));
    let mut expected = lists.to_vec();
    expected.extend(judged(2));
    expected.push(format!("GET {pods}/own 200"));
    let removes = ["GET", "DELETE"].map(|verb| reservation(verb, "10.1.3.2"));
    let patch = "PATCH ippools/10.1.3.0-29 200".to_owned();
    expected.extend(removes.into_iter().chain([patch.clone(), patch, RESERVE.to_owned()]));
    assert_eq!(sent, expected);
}

#[test]
fn the_page_says_how_many_they_are() {
    let sizes = Page::read("delegates/ipam-da-kube/README.md").section("Sizes").to_owned();
    let says = "ADD 3, DEL 2, CHECK and STATUS 1; without `overlapCheck` ADD 2 and DEL 1.";
    assert!(sizes.contains(says), "{sizes}");
}
