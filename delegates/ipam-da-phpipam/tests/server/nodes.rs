//! Two nodes on one subnet: neither touches what the other one holds.

use std::time::Duration;

use ipam_testkit::node::addresses;
use ipam_testkit::phpipam::PhpIpam;

use crate::age::age;
use crate::site::{KEY, Node, Site};

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
    let site = Site::new();
    let [one, two] = pair(&site);
    let by_hand = site.server.record(&site.subnet, &site.host(200), &[("hostname", "a printer")]);
    let marked = site.server.record(&site.subnet, &site.host(201), &[("note", "ipd:")]);
    for container in ["kept", "gone"] {
        one.add(container);
        two.add(container);
    }
    // A new record may be of an ADD that has not ended.
    one.gc(&["kept"]).success();
    assert_eq!(site.records().len(), 6);
    age(site.server, &site.subnet, 24 * HOUR);
    one.gc(&["kept"]).success();
    let left = site.records();
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.iter().any(|record| record.id == by_hand));
    assert!(left.iter().any(|record| record.id == marked));
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
    // The node that lost its latest address looks at the whole subnet.
    one.add("c3");
    one.del("c1");
    one.del("c3");
    assert_eq!(site.records(), after);
}

#[test]
fn a_node_that_lost_its_memory_finds_what_it_holds() {
    let server = PhpIpam::builder().key_field(KEY).start();
    let site = Site::on(&server, "10.1.0.0/24");
    for node in [site.node(), site.node().with("keyField", KEY)] {
        let address = node.address("c1");
        std::fs::remove_dir_all(node.world.path("state/phpipam")).unwrap();
        assert_eq!(node.address("c1"), address);
        assert_eq!(site.records().len(), 1);
        std::fs::remove_dir_all(node.world.path("state/phpipam")).unwrap();
        node.del("c1");
        site.assert_empty();
    }
}

#[test]
fn names_keep_their_addresses_and_make_room_when_their_time_is_over() {
    let site = Site::of_bits(29);
    let sticky = |name: &str| site.node().with_in_pools("sticky", name).with_in_pools("keep", "1h");
    for number in 0..6 {
        let node = sticky(&format!("name-{number}"));
        let address = node.address("c1");
        node.del("c1");
        assert_eq!(site.records().len(), number + 1);
        assert_eq!(sticky(&format!("name-{number}")).address("c2"), address);
        // The node that gave it, by another container.
        let again = sticky(&format!("name-{number}")).taking_over(true);
        assert_eq!(again.address("c3"), address);
        again.del("c3");
    }
    let node = site.node();
    let (code, text) = node.call("ADD", "late").failure();
    assert_eq!(code, 100, "{text}");
    age(site.server, &site.subnet, 2 * HOUR);
    node.add("late");
}
