//! How many requests a verb takes, counted before the server.

use ipam_testkit::node::{addresses, at_once, named};
use ipam_testkit::openwisp::{Fate, Relay};
use serde_json::Value;

use crate::site::{Node, Site};

/// What the verbs of an attachment cost.
#[derive(Debug, PartialEq)]
struct Costs {
    add: usize,
    check: usize,
    status: usize,
    del: usize,
    /// A DEL that is told nothing.
    del_alone: usize,
}

fn requests(relay: &Relay, done: impl FnOnce()) -> usize {
    let lines = relay.during(done);
    assert!(lines.iter().all(|line| line.contains(" /api/v1/ipam/")), "{lines:?}");
    lines.len()
}

/// What the node costs that has had an ADD before.
fn costs(relay: &Relay, node: &Node) -> Costs {
    let mut result = Value::Null;
    let add = requests(relay, || result = node.add("cost"));
    let check = requests(relay, || drop(node.check("cost", &result).success()));
    let status = requests(relay, || drop(node.call("STATUS", "").success()));
    let del = requests(relay, || drop(node.del_known("cost", &result).success()));
    node.add("cost");
    let del_alone = requests(relay, || node.del("cost"));
    Costs { add, check, status, del, del_alone }
}

const BEST: Costs = Costs { add: 3, check: 1, status: 1, del: 2, del_alone: 2 };

#[test]
fn verbs_take_as_few_requests_however_many_addresses_are_held() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let cold = requests(&relay, || drop(node.add("first")));
    // The pools, and once for a node the rights to read, write and delete.
    assert!((BEST.add..=BEST.add + 5).contains(&cold), "the first ADD took {cold} requests");
    assert_eq!(costs(&relay, &node), BEST);
    let held = (10..=99).map(|host| (site.host(host), "of others"));
    site.server.records_of(&site.subnet, held);
    assert_eq!(costs(&relay, &node), BEST);
}

#[test]
fn a_long_subnet_costs_as_much_where_it_may_be_exported() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let held = (10..160).map(|host| (site.host(host), "of others"));
    site.server.records_of(&site.subnet, held);
    node.add("first");
    assert_eq!(costs(&relay, &node), BEST);
}

#[test]
fn a_repeated_add_takes_two_requests() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let first = addresses(&node.add("c1"));
    let mut again = Vec::new();
    let taken = requests(&relay, || again = addresses(&node.add("c1")));
    assert_eq!(again, first);
    assert!(taken <= 2, "a repeated ADD took {taken} requests");
    assert_eq!(site.records().len(), 1);
}

#[test]
fn a_takeover_takes_eight_requests_more_by_address_and_three_by_name() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let url = format!("http://{}", relay.endpoint());
    let [one, two] = ["node-1", "node-2"].map(|name| site.node_at(&url).named(name));
    let address = one.address("c1");
    two.add("warm");
    let two = two.with_in_pools("requested-ip", address).taking_over(true);
    assert_eq!(requests(&relay, || drop(two.add("c2"))), BEST.add + 8);

    let [one, mut two] = ["node-3", "node-4"].map(|name| site.node_at(&url).named(name));
    one.with_in_pools("sticky", "web").add("c3");
    two.add("warm");
    two = two.with_in_pools("sticky", "web").taking_over(true);
    assert_eq!(requests(&relay, || drop(two.add("c4"))), BEST.add + 3);
}

#[test]
fn after_a_lost_answer_a_check_or_del_lists_each_subnet_of_the_network() {
    let (site, other) = (Site::new(), Site::new());
    let relay = Relay::to(&site.server.endpoint());
    let mut node = site.node_at(&format!("http://{}", relay.endpoint()));
    node.add("warm");
    node.pools = named(&[&other.subnet]);
    node.add("warm-too");
    node.pools = named(&[&site.subnet]);
    relay.next([Fate::Pass, Fate::Lose]);
    let mut result = Value::Null;
    let add = requests(&relay, || result = node.add("c1"));
    assert!(add <= BEST.add + 2, "the ADD took {add} requests");
    let subnets = 2;
    // The export does not show the id of the owner's record.
    let lists = subnets + 1;
    assert_eq!(requests(&relay, || drop(node.check("c1", &result).success())), lists);
    // A busy server confirms the record so late that the ADD lists the subnet.
    let again = requests(&relay, || drop(node.add("c1")));
    assert!((3..=4).contains(&again), "the repeated ADD took {again} requests");
    assert_eq!(requests(&relay, || node.del("c1")), lists + 1);
    // It looks whether the lost request was carried out late.
    assert_eq!(requests(&relay, || node.del("c1")), subnets);
}

#[test]
fn twenty_callers_take_five_requests_each_at_most_on_the_average() {
    const CALLERS: usize = 20;
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    node.add("first");
    let taken = requests(&relay, || {
        at_once(CALLERS, |caller| drop(node.add(&format!("c{caller}"))));
    });
    assert!(taken <= 5 * CALLERS, "{CALLERS} callers took {taken} requests");
    assert_eq!(site.addresses().len(), CALLERS + 1);
}
