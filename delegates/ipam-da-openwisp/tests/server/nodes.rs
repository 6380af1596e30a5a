//! Two nodes on one subnet: neither touches what the other one holds.

use std::time::Duration;

use ipam_testkit::node::addresses;
use ipam_testkit::openwisp::{ORGANIZATION, OpenWisp};
use ipam_testkit::world::Host;
use serde_json::json;

use crate::site::{Node, Site, make_twin};

const HOUR: Duration = Duration::from_secs(3600);

fn pair(site: &Site<'_>) -> [Node; 2] {
    ["node-1", "node-2"].map(|name| site.node().named(name))
}

#[test]
fn containers_of_one_name_on_two_nodes_have_an_address_each() {
    let site = Site::new();
    let [one, two] = pair(&site);
    let [first, second] = [&one, &two].map(|node| node.add("c1"));
    assert_ne!(addresses(&first), addresses(&second));
    one.del_known("c1", &first).success();
    assert_eq!(site.records().len(), 1);
    one.check("c1", &first).failure();
    two.check("c1", &second).success();
    // Neither by a record of the other.
    one.del_known("c1", &second).success();
    assert_eq!(site.records().len(), 1);
    two.del_known("c1", &second).success();
    site.assert_empty();
}

#[test]
fn garbage_of_a_node_is_its_own_old_records() {
    let server = OpenWisp::builder().workers(1).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let [one, two] = pair(&site);
    let by_hand = server.record(&site.subnet, &site.host(200), "a printer");
    let marked = server.record(&site.subnet, &site.host(201), "ipd:");
    for container in ["kept", "gone"] {
        one.add(container);
        two.add(container);
    }
    // What is new may be an ADD of now.
    one.gc(&["kept"]).success();
    assert_eq!(site.records().len(), 6);
    server.age(ORGANIZATION, 24 * HOUR);
    one.gc(&["kept"]).success();
    let left = site.records();
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.iter().any(|record| record.id == by_hand.id));
    assert!(left.iter().any(|record| record.id == marked.id));
    let holders = two.listed().into_iter().filter(|(_, holder)| holder == "gone").count();
    assert_eq!(holders, 1);
    two.gc(&["kept", "gone"]).success();
    assert_eq!(site.records().len(), 5);
}

#[test]
fn an_address_is_taken_from_another_owner_only_with_takeover() {
    let site = Site::new();
    let [one, two] = pair(&site);
    let address = one.address("c1");
    let mut wish = two.with_in_pools("requested-ip", &*address);
    let (code, text) = wish.call("ADD", "c2").failure();
    assert_eq!(code, 102, "{text}");
    let before = site.records();
    wish = wish.taking_over(true);
    assert_eq!(wish.address("c2"), address);
    let after = site.records();
    assert_eq!(after.len(), 1);
    // What changes hands is made anew.
    assert_ne!(after[0].id, before[0].id);
    one.del("c1");
    assert_eq!(site.records(), after);
}

#[test]
fn a_record_beside_another_one_stays_with_its_owner_and_is_not_kept_for_a_name() {
    let site = Site::new();
    let node = site.node().with_in_pools("sticky", "web").with_in_pools("keep", "1h");
    let address = node.address("c1");
    make_twin(site.server, &address, "a printer");
    assert_eq!(node.address("c1"), address);
    assert_eq!(site.records().len(), 2);
    node.del("c1");
    let left: Vec<String> = site.records().into_iter().map(|record| record.description).collect();
    assert_eq!(left, ["a printer"]);
}

#[test]
fn a_node_that_lost_its_memory_finds_what_it_holds() {
    let site = Site::new();
    let node = site.lone_node();
    // A container of the same name on another node, in another subnet.
    let other = Site::new();
    other.node().named("another-node").add("c1");
    let address = node.address("c1");
    std::fs::remove_dir_all(node.world.path("state/openwisp")).unwrap();
    assert_eq!(node.address("c1"), address);
    assert_eq!(site.records().len(), 1);
    std::fs::remove_dir_all(node.world.path("state/openwisp")).unwrap();
    node.del("c1");
    site.assert_empty();
    assert_eq!(other.records().len(), 1);
}

#[test]
fn grace_is_the_hosts_and_age_is_the_records() {
    let site = Site::new();
    let node = site.node();
    node.add("gone");
    let host = Host::new();
    host.settings(&json!({"gcGrace": "0s"}));
    let mut network = node.network();
    network["cni.dev/valid-attachments"] = json!([]);
    let inside = node.command("GC", "");
    let mut command = host.enter(inside.get_program());
    command.env_clear();
    command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    ipam_testkit::world::wait(ipam_testkit::world::start(command, &network)).success();
    site.assert_empty();
}
