//! Which subnet a pool is: one match by id, CIDR or description, or an error that names the matches.

use ipam_testkit::node::addresses;
use ipam_testkit::phpipam::PhpIpam;

use crate::site::Site;

#[test]
fn a_pool_is_a_subnet_by_its_id_its_cidr_or_its_description() {
    let site = Site::new();
    let name = format!("of {}", site.cidr);
    for (number, pool) in [&site.subnet, &site.cidr, &name].into_iter().enumerate() {
        let node = site.node().with_pools(&[pool]);
        let result = node.add(&format!("c{number}"));
        assert_eq!(result["ips"][0]["address"], format!("{}/24", site.host(number as u8 + 1)));
        assert_eq!(result["ips"][0]["gateway"], serde_json::Value::Null);
    }
    assert_eq!(site.records().len(), 3);
}

#[test]
fn the_gateway_of_a_subnet_is_answered_and_never_given() {
    let server = PhpIpam::start();
    let site = Site::on(&server, "10.98.1.0/29");
    server.gateway(&site.subnet, "10.98.1.3");
    for strategy in [None, Some("lowest")] {
        let mut node = site.node();
        if let Some(strategy) = strategy {
            node = node.with_in_pools("strategy", strategy);
        }
        let mut given: Vec<String> = Vec::new();
        for number in 0..5 {
            let result = node.add(&format!("c{number}"));
            assert_eq!(result["ips"][0]["gateway"], "10.98.1.3");
            given.extend(addresses(&result));
        }
        given.sort_unstable();
        assert_eq!(given, ["10.98.1.1", "10.98.1.2", "10.98.1.4", "10.98.1.5", "10.98.1.6"]);
        let (code, text) = node.call("ADD", "one-more").failure();
        assert_eq!(code, 100, "{text}");
        (0..5).for_each(|number| node.del(&format!("c{number}")));
    }
    assert_eq!(site.records().len(), 1);
}

#[test]
fn an_unknown_and_an_ambiguous_pool_are_told_with_the_matches() {
    let server = PhpIpam::shared();
    let site = Site::new();
    let (code, text) = site.node().with_pools(&["no such pool"]).call("ADD", "c1").failure();
    assert!(code == 7 && text.contains("no such pool"), "{code} {text}");
    let twins = ["10.98.2.0/24", "10.98.3.0/24"].map(|cidr| server.subnet(cidr, "twins"));
    let (code, text) = site.node().with_pools(&["twins"]).call("ADD", "c1").failure();
    assert_eq!(code, 7, "{text}");
    for part in ["10.98.2.0/24", "10.98.3.0/24", &format!("id {}", twins[0])] {
        assert!(text.contains(part), "without {part}: {text}");
    }
    assert!(twins.iter().all(|subnet| server.records(subnet).is_empty()));
}

#[test]
fn a_section_tells_apart_subnets_of_one_cidr() {
    let server = PhpIpam::start();
    let first = server.subnet("10.1.0.0/24", "blue");
    let second = server.subnet_in(2, None, "10.1.0.0/24", "blue");
    let site = Site { server: &server, subnet: first, cidr: "10.1.0.0/24".to_owned() };
    let mut node = site.node().with_pools(&["blue"]);
    node.store["phpipam"].as_object_mut().unwrap().remove("section");
    let (code, text) = node.call("ADD", "c1").failure();
    assert!(code == 7 && text.contains("means several subnets"), "{code} {text}");
    let [one, two] = [server.section_name(1), server.section(2)];
    for (section, subnet) in [(two, &second), (one, &site.subnet)] {
        let node = site.node().with_pools(&["blue"]).with("section", &*section);
        node.add("c1");
        assert_eq!(server.records(subnet).len(), 1, "{section}");
    }
    let node = site.node().with("section", "no such section");
    let (code, text) = node.call("ADD", "c2").failure();
    assert!(code == 7 && text.contains("no such section"), "{code} {text}");
}

#[test]
fn a_subnet_with_subnets_of_its_own_is_no_pool() {
    let server = PhpIpam::start();
    let parent = server.subnet("10.97.0.0/16", "parent");
    let child = server.subnet_in(1, Some(&parent), "10.97.1.0/24", "child");
    let site = Site { server: &server, subnet: parent, cidr: "10.97.0.0/16".to_owned() };
    let (code, text) = site.node().call("ADD", "c1").failure();
    assert!(code == 7 && text.contains("10.97.1.0/24"), "{code} {text}");
    let address = site.node().with_pools(&[&child]).address("c1");
    assert!(address.starts_with("10.97.1."), "{address}");
    site.assert_empty();
}

#[test]
fn a_pool_of_each_family_gives_an_address_of_each() {
    let server = PhpIpam::shared();
    let six = server.subnet("fd00:99::/64", "six");
    let four = Site::new();
    let node = four.node().with_pools(&[&four.subnet, &six]);
    let result = node.add("c1");
    let given = addresses(&result);
    assert!(given.len() == 2 && given[1].starts_with("fd00:99::"), "{given:?}");
    // The server itself would choose the anycast address of routers.
    assert_ne!(given[1], "fd00:99::");
    assert_eq!((four.records().len(), server.records(&six).len()), (1, 1));
    node.check("c1", &result).success();
    node.del_known("c1", &result).success();
    four.assert_empty();
    assert_eq!(server.records(&six), []);
}

#[test]
fn a_full_pool_of_two_leaves_nothing_in_the_other() {
    let server = PhpIpam::shared();
    let full = server.subnet("10.98.4.0/30", "full");
    let six = server.subnet("fd00:98::/126", "full six");
    for host in 1..=2 {
        server.record(&full, &format!("10.98.4.{host}"), &[]);
    }
    for host in 1..=3 {
        server.record(&six, &format!("fd00:98::{host}"), &[]);
    }
    let site = Site::new();
    for full in [&full, &six] {
        let held = server.records(full).len();
        for pools in [[&site.subnet, full], [full, &site.subnet]] {
            let node = site.node().with_pools(&pools.map(String::as_str));
            let (code, text) = node.call("ADD", "c1").failure();
            assert_eq!(code, 100, "{text}");
            site.assert_empty();
            assert_eq!(server.records(full).len(), held);
        }
    }
}

#[test]
fn a_requested_address_is_given_or_refused_with_its_holder() {
    let site = Site::new();
    let wish = site.host(200);
    let node = site.node().with_in_pools("requested-ip", &*wish);
    assert_eq!(node.address("c1"), wish);
    let (code, text) = node.call("ADD", "c2").failure();
    assert!(code == 102 && text.contains(&wish), "{code} {text}");
    let by_hand = site.host(201);
    site.server.record(&site.subnet, &by_hand, &[("hostname", "a printer")]);
    let node = site.node().named("node-2").with_in_pools("requested-ip", &*by_hand);
    let (code, text) = node.call("ADD", "c3").failure();
    assert!(code == 102 && text.contains("a printer"), "{code} {text}");
    assert_eq!(site.records().len(), 2);
}

#[test]
fn a_record_says_whose_it_is() {
    let site = Site::new();
    let node = site.node();
    let mut command = node.command("ADD", "c1");
    command.env("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0");
    ipam_testkit::world::wait(ipam_testkit::world::start(command, &node.network())).success();
    node.add("c2");
    let records = site.records();
    assert_eq!((&*records[0].hostname, &*records[1].hostname), ("default/web-0", "c2"));
    assert_eq!(records[0].note, "ipd:node-1/net/c1/eth0");
    assert!(records[0].owner.starts_with("ipam-delegated 20"), "{:?}", records[0]);
    // Whatever people write into the name, the record is the owner's.
    site.server.edit(&site.subnet, "hostname", |_| "renamed".to_owned());
    node.del("c1");
    node.del("c2");
    site.assert_empty();
}
