//! How many requests a verb takes, counted before the server.

use ipam_testkit::node::{addresses, at_once};
use ipam_testkit::phpipam::{PhpIpam, Relay};
use serde_json::Value;

use crate::site::{KEY, Node, Site};

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
    assert!(lines.iter().all(|line| line.contains(" /api/")), "{lines:?}");
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

const BEST: Costs = Costs { add: 2, check: 1, status: 1, del: 2, del_alone: 2 };

#[test]
fn verbs_take_as_few_requests_however_many_addresses_are_held() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let cold = requests(&relay, || drop(node.add("first")));
    // The list of subnets, and the gateway of one.
    assert_eq!(cold, BEST.add + 2);
    assert_eq!(costs(&relay, &node), BEST);
    for host in 20..=99 {
        site.server.record(&site.subnet, &site.host(host), &[("hostname", "of others")]);
    }
    assert_eq!(costs(&relay, &node), BEST);
    // The addresses of others are not shown again.
    let lists = relay.requests().into_iter().filter(|it| it.target.contains("filter_by=note"));
    assert!(lists.count() >= 2);
}

#[test]
fn an_add_takes_one_request_where_a_key_keeps_owners_apart() {
    let server = PhpIpam::builder().key_field(KEY).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let relay = Relay::to(&server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint())).with("keyField", KEY);
    node.add("first");
    // The look of the minute.
    node.add("second");
    assert_eq!(costs(&relay, &node), Costs { add: 1, ..BEST });
    assert!(site.records().iter().all(|record| record.key.len() == 32));
}

#[test]
fn an_owner_whose_mark_a_person_has_removed_gets_another_address() {
    let server = PhpIpam::builder().key_field(KEY).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let node = site.node().with("keyField", KEY);
    let first = addresses(&node.add("c1"));
    node.add("c2");
    // Its key is still there.
    let edit = |note: &str| if note.contains("/c1/") { "printer".to_owned() } else { note.into() };
    server.edit(&site.subnet, "note", edit);
    let second = addresses(&node.add("c1"));
    assert_ne!(second, first);
    node.del("c1");
    assert_eq!(site.records().len(), 2);
}

#[test]
fn a_pool_with_a_strategy_takes_two_requests_as_well() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let node = node.with_in_pools("strategy", "random");
    node.add("first");
    assert_eq!(costs(&relay, &node), BEST);
}

#[test]
fn an_add_after_a_release_takes_as_few_requests() {
    let server = PhpIpam::builder().key_field(KEY).start();
    for (number, has_key, has_others, expected) in
        [(1, false, true, 2), (2, true, true, 1), (3, false, false, 2), (4, true, false, 2)]
    {
        let site = Site::on(&server, &format!("10.{number}.0.0/24"));
        let relay = Relay::to(&server.endpoint());
        let mut node = site.node_at(&format!("http://{}", relay.endpoint()));
        if has_key {
            node = node.with("keyField", KEY);
        }
        if has_others {
            node.add("other");
        }
        // The look of the minute.
        node.add("c1");
        for _ in 0..2 {
            node.del("c1");
            let lines = relay.during(|| drop(node.add("c1")));
            let has_whole = lines.iter().any(|line| line.ends_with("/addresses/"));
            assert_eq!((lines.len(), has_whole), (expected, !has_others), "{lines:?}");
        }
    }
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
fn twenty_callers_take_hardly_more_requests_each() {
    const CALLERS: usize = 20;
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    node.add("first");
    let taken = requests(&relay, || {
        at_once(CALLERS, |caller| drop(node.add(&format!("c{caller}"))));
    });
    // 2.3 each.
    assert!(taken * 10 <= 23 * CALLERS, "{CALLERS} callers took {taken} requests");
    assert_eq!(site.addresses().len(), CALLERS + 1);
}
