//! The verbs for people, on a subnet that nodes and persons share.

use serde_json::Value;

use crate::site::{Node, Site};

/// Two nodes with a lease each, and a record that a person made.
fn mixed() -> (Site<'static>, [Node; 2], [String; 3]) {
    let site = Site::new();
    let nodes = ["node-1", "node-2"].map(|name| site.node().named(name));
    let by_hand = site.host(200);
    site.server.record(&site.subnet, &by_hand, &[("hostname", "a printer")]);
    let given =
        [("c1", &nodes[0]), ("c2", &nodes[1])].map(|(container, node)| node.address(container));
    let [first, second] = given;
    (site, nodes, [first, second, by_hand])
}

fn members(rows: &Value, keys: &[&str]) -> Vec<Vec<String>> {
    let text = |row: &Value, key: &&str| match &row[*key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let row = |row: &Value| keys.iter().map(|key| text(row, key)).collect();
    rows.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn people_see_who_holds_what() {
    let (site, [one, _], [first, second, by_hand]) = mixed();
    let before = site.records();
    let rows = one.typed(&["list", "--json"]).success();
    let mut seen = members(&rows, &["address", "containerID", "node"]);
    seen.sort();
    let mut expected =
        [[&*first, "c1", "node-1"], [&*second, "c2", "node-2"]].map(Vec::from).to_vec();
    expected.push(vec![&*by_hand, "null", "null"]);
    expected.sort_unstable();
    assert_eq!(seen, expected);
    let who = one.typed(&["who", &second, "--json"]).success();
    assert_eq!(members(&who, &["containerID", "node"]), [["c2", "node-2"]]);
    let told = one.told(&["who", &by_hand]);
    assert!(told.contains("a printer"), "{told}");
    let pools = one.typed(&["pools", "--json"]).success();
    assert_eq!(members(&pools, &["held"]), [["3"]]);
    assert_eq!(site.records(), before);
}

#[test]
fn people_release_addresses_and_owners_of_the_program_alone() {
    let (site, [one, _], [first, _, by_hand]) = mixed();
    let text = one.told(&["release", &first]);
    assert!(text.contains("--yes"), "{text}");
    assert_eq!(site.records().len(), 3);
    one.told(&["release", &first, "--yes"]);
    one.told(&["release", "--node", "node-2", "--yes"]);
    let left: Vec<String> = site.records().into_iter().map(|record| record.address).collect();
    assert_eq!(left, [by_hand]);
}

#[test]
fn lint_reports_marks_that_it_cannot_read_and_a_token_over_http() {
    let site = Site::new();
    site.server.record(&site.subnet, &site.host(7), &[("note", "ipd:x")]);
    let outcome = site.node().typed(&["lint"]);
    let told = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(told.contains(&site.host(7)) && told.contains("unencrypted"), "{told}");
}

#[test]
fn lint_reports_a_name_that_means_several_subnets() {
    let site = Site::new();
    let cidrs = ["10.95.0.0/24", "10.95.1.0/24"];
    cidrs.iter().for_each(|cidr| drop(site.server.subnet(cidr, "twice")));
    let outcome = site.node().with_pools(&["twice"]).typed(&["lint"]);
    let told = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(cidrs.iter().all(|cidr| told.contains(cidr)), "{told}");
}
