//! The verbs for people, on pools that several programs and networks share.

use ipam_testkit::node::members;
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::Release;
use serde_json::json;

use crate::common::node::{Node, POOL, SUBNET};
use crate::common::{Desk, v094};

/// Two nodes, an old one, and a network of another name, each with a lease.
fn mixed() -> (Desk, [Node; 2]) {
    let desk = Desk::new(&v094());
    let nodes = ["node-1", "node-2"].map(|name| Node::of(&desk).named(name));
    let range = json!({"range": SUBNET, "range_start": "10.1.2.9"});
    let old = Whereabouts::new(Release::V094, &desk.client, &desk.namespace, &range);
    old.add("old", "eth0", "ns/old").run().unwrap();
    nodes[0].add("c1");
    nodes[1].add("c2");
    Node::of(&desk).with("networkName", "red").add("r1");
    (desk, nodes)
}

#[test]
fn people_see_what_each_program_holds_in_the_pools_of_the_network() {
    let (desk, [one, _]) = mixed();
    let before = desk.held();
    let rows = one.typed(&["list", "--json"]).success();
    let seen = members(&rows, &["address", "containerID", "ifname", "node", "state"]);
    assert_eq!(
        seen,
        [
            ["10.1.2.2", "c1", "eth0", "node-1", "held"],
            ["10.1.2.3", "c2", "eth0", "node-2", "held"],
            ["10.1.2.9", "old", "eth0", "null", "held"],
        ]
    );
    let who = one.typed(&["who", "10.1.2.3", "--json"]).success();
    assert_eq!(members(&who, &["containerID", "node"]), [["c2", "node-2"]]);
    let who = one.typed(&["who", "10.1.2.9", "--json"]).success();
    assert_eq!(members(&who, &["containerID", "node"]), [["old", "null"]]);
    assert_eq!(one.typed(&["who", "10.1.2.77", "--json"]).success(), json!([]));
    let pools = one.typed(&["pools", "--json"]).success();
    assert_eq!(members(&pools, &["held", "size"]), [["3", "253"]]);
    let lint = one.told(&["lint"]);
    assert!(!lint.contains(POOL), "{lint}");
    one.told(&["list"]);
    assert_eq!(desk.held(), before);
}

#[test]
fn people_release_addresses_owners_and_nodes() {
    let (desk, [one, two]) = mixed();
    two.add("c3");
    let text = one.told(&["release", "10.1.2.9"]);
    assert!(text.ends_with("nothing was released; add --yes to do it\n"), "{text}");
    assert_eq!(one.typed(&["list", "--json"]).success().as_array().unwrap().len(), 4);
    one.told(&["release", "10.1.2.9", "--yes"]);
    one.told(&["release", "--owner", "c1", "--yes"]);
    one.told(&["release", "--node", "node-2", "--yes"]);
    let text = one.told(&["release", "--node", "node-2", "--yes"]);
    assert!(text.contains("no lease names the node node-2: list shows the names"), "{text}");
    let red = ["red-10.1.2.0-24 2 r1", "red-10.1.2.2 r1"];
    assert_eq!(desk.held(), red);
    // The ADD succeeds although the node still has the note of the released lease.
    assert_eq!(one.address("c1"), "10.1.2.2");
    assert_eq!(two.address("c2"), "10.1.2.3");
    one.del("c1");
    two.del("c2");
    assert_eq!(desk.held(), red);
}

#[test]
fn a_lease_of_another_network_on_the_same_pool_is_told_apart() {
    let (desk, [one, _]) = mixed();
    let mut other = one.network();
    other["name"] = "other".into();
    let outcome =
        ipam_testkit::world::wait(ipam_testkit::world::start(one.command("ADD", "o1"), &other));
    assert_eq!(outcome.ips(), ["10.1.2.4/24"]);
    let who = one.typed(&["who", "10.1.2.4", "--json"]).success();
    assert_eq!(members(&who, &["containerID", "node"]), [["o1", "node-1"]]);
    // `--owner` and `--node` choose leases of this network alone.
    one.typed(&["release", "--owner", "o1", "--yes"]);
    one.typed(&["release", "--node", "node-1", "--yes"]);
    assert!(desk.held().contains(&"10.1.2.4 o1".to_owned()), "{:?}", desk.held());
    desk.age(std::time::Duration::from_secs(7200));
    // GC of a network releases its own leases.
    one.gc(&["c1"]).ended_well();
    assert!(desk.held().contains(&"10.1.2.4 o1".to_owned()));
}

#[test]
fn a_reservation_belongs_to_its_entry_where_pools_overlap() {
    let desk = Desk::new(&v094());
    Node::of(&desk).add("c1");
    // 10.1.2.2 in the other pool.
    let entry = json!({"514": {"id": "w1", "podref": "ns/w1", "ifname": "eth0"}});
    desk.objects().create_pool("", "10.1.0.0/16", &entry);
    let other = Node { pools: json!([]), ..Node::of(&desk).named("node-2") };
    let rows = other.typed(&["list", "--json"]).success();
    let mut seen = members(&rows, &["address", "containerID", "node"]);
    seen.sort();
    assert_eq!(seen, [["10.1.2.2", "c1", "node-1"], ["10.1.2.2", "w1", "null"]]);
}
