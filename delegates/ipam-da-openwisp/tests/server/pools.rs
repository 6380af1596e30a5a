//! Which subnet a pool is: one match by id, CIDR or name, or an error that names the matches.

use ipam_testkit::node::addresses;
use ipam_testkit::openwisp::{ORGANIZATION, OpenWisp};
use serde_json::json;

use crate::site::Site;

#[test]
fn a_pool_is_a_subnet_by_its_id_its_cidr_or_its_name() {
    let site = Site::new();
    let name = format!("of {}", site.cidr);
    for (number, pool) in [&site.subnet, &site.cidr, &name].into_iter().enumerate() {
        let node = site.node().with_pools(&[pool]);
        let result = node.add(&format!("c{number}"));
        let address = &addresses(&result)[0];
        let (network, _) = site.cidr.rsplit_once('.').unwrap();
        assert!(address.starts_with(network), "{address}");
        assert_eq!(result["ips"][0]["address"], format!("{address}/24"));
    }
    assert_eq!(site.records().len(), 3);
}

#[test]
fn the_gateway_in_a_subnets_description_is_answered_and_not_given_out() {
    let server = OpenWisp::shared();
    let subnet = server.subnet_of(&json!({
        "organization": ORGANIZATION, "subnet": "10.98.1.0/29", "name": "with a gateway",
        "description": r#"{"gw":"10.98.1.3"}"#,
    }));
    let site = Site { server, subnet, cidr: "10.98.1.0/29".to_owned() };
    let node = site.node();
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
}

#[test]
fn a_malformed_gateway_in_a_subnets_description_is_error_7_and_no_release_fails() {
    let server = OpenWisp::shared();
    let members = |description: &str| {
        json!({"organization": ORGANIZATION, "subnet": "10.98.5.0/29", "name": "without a gateway",
               "description": description})
    };
    let subnet = server.subnet_of(&members(""));
    let site = Site { server, subnet, cidr: "10.98.5.0/29".to_owned() };
    let node = site.lone_node();
    node.add("c1");
    let malformed = r#"{"gw": 10.98.5.1}"#;
    let target = format!("ipam/subnet/{}/", site.subnet);
    server.ask("PATCH", &target, Some(&members(malformed))).success();
    let (code, text) = site.node().named("node-2").call("ADD", "c2").failure();
    let quoted = format!("{malformed:?}");
    assert!(code == 7 && text.contains(&site.cidr) && text.contains(&quoted), "{code} {text}");
    std::fs::remove_dir_all(node.world.path("state/openwisp")).unwrap();
    node.del("c1");
    site.assert_empty();
}

#[test]
fn an_unknown_or_ambiguous_pool_is_an_error_that_names_the_matches() {
    let server = OpenWisp::shared();
    let site = Site::new();
    let (code, text) = site.node().with_pools(&["no such pool"]).call("ADD", "c1").failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("no such pool"), "{text}");
    let twins = ["10.98.2.0/24", "10.98.3.0/24"]
        .map(|cidr| server.subnet(Some(ORGANIZATION), cidr, "twins"));
    let (code, text) = site.node().with_pools(&["twins"]).call("ADD", "c1").failure();
    assert_eq!(code, 7, "{text}");
    for part in twins.iter().map(String::as_str).chain(["10.98.2.0/24", "10.98.3.0/24"]) {
        let is_named = text.contains(part);
        assert!(is_named || !part.contains('.'), "without {part}: {text}");
    }
    assert!(twins.iter().all(|subnet| server.records(subnet).is_empty()));
}

#[test]
fn a_pool_is_found_on_the_last_page_of_subnets() {
    let server = OpenWisp::start();
    for number in 0..120 {
        server.subnet(Some(ORGANIZATION), &format!("10.1.{number}.0/24"), &format!("n{number}"));
    }
    let subnet = server.subnet(Some(ORGANIZATION), "192.0.2.0/24", "the last");
    let site = Site { server: &server, subnet, cidr: "192.0.2.0/24".to_owned() };
    let address = site.node().with_pools(&["the last"]).address("c1");
    assert!(address.starts_with("192.0.2."), "{address}");
}

#[test]
fn a_subnet_that_contains_others_is_refused_as_a_pool() {
    let server = OpenWisp::shared();
    let parent = server.subnet(Some(ORGANIZATION), "10.97.0.0/16", "parent");
    let child = server.subnet_of(&json!({
        "organization": ORGANIZATION, "subnet": "10.97.1.0/24", "name": "child",
        "master_subnet": parent,
    }));
    let site = Site { server, subnet: parent, cidr: "10.97.0.0/16".to_owned() };
    let (code, text) = site.node().call("ADD", "c1").failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("10.97.1.0/24"), "{text}");
    let address = site.node().with_pools(&[&child]).address("c1");
    assert!(address.starts_with("10.97.1."), "{address}");
}

#[test]
fn a_pool_of_each_family_gives_an_address_of_each() {
    let server = OpenWisp::shared();
    let six = server.subnet(Some(ORGANIZATION), "fd00:99::/64", "six");
    let four = Site::new();
    let node = four.node().with_pools(&[&four.subnet, &six]);
    let result = node.add("c1");
    let given = addresses(&result);
    assert!(given.len() == 2 && given[1].starts_with("fd00:99::"), "{given:?}");
    assert_ne!(given[1], "fd00:99::");
    assert_eq!((four.records().len(), server.records(&six).len()), (1, 1));
    node.check("c1", &result).success();
    node.del_known("c1", &result).success();
    four.assert_empty();
    assert_eq!(server.records(&six), []);
}

#[test]
fn a_full_pool_of_two_leaves_nothing_in_the_other() {
    let server = OpenWisp::shared();
    let full = server.subnet(Some(ORGANIZATION), "10.98.4.0/30", "full");
    for host in 1..=2 {
        server.record(&full, &format!("10.98.4.{host}"), "of others");
    }
    let site = Site::new();
    let node = site.node().with_pools(&[&site.subnet, &full]);
    let (code, text) = node.call("ADD", "c1").failure();
    assert_eq!(code, 100, "{text}");
    site.assert_empty();
    assert_eq!(server.records(&full).len(), 2);
}

#[test]
fn a_requested_address_is_given_or_refused_with_its_holder() {
    let site = Site::new();
    let wish = site.host(200);
    let node = site.node().with_in_pools("requested-ip", &*wish);
    assert_eq!(node.address("c1"), wish);
    let (code, text) = node.call("ADD", "c2").failure();
    assert_eq!(code, 102, "{text}");
    assert!(text.contains(&wish), "{text}");
    let by_hand = site.host(201);
    site.server.record(&site.subnet, &by_hand, "a printer");
    let node = site.node().named("node-2").with_in_pools("requested-ip", &*by_hand);
    let (code, text) = node.call("ADD", "c3").failure();
    assert_eq!(code, 102, "{text}");
    assert_eq!(site.records().len(), 2);
}
