//! The verbs for people, on a subnet that nodes and persons share.

use ipam_testkit::node::members;
use ipam_testkit::openwisp::{Fate, OPERATOR, ORGANIZATION, Relay};

use crate::logins::with_password;
use crate::site::{Node, Site, make_twin};

/// Two nodes with a lease each, and a record that a person made.
fn mixed() -> (Site<'static>, [Node; 2], [String; 3]) {
    let site = Site::new();
    let nodes = ["node-1", "node-2"].map(|name| site.node().named(name));
    let by_hand = site.host(200);
    site.server.record(&site.subnet, &by_hand, "a printer");
    let given =
        [("c1", &nodes[0]), ("c2", &nodes[1])].map(|(container, node)| node.address(container));
    let [first, second] = given;
    (site, nodes, [first, second, by_hand])
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
    let (site, [one, two], [first, second, by_hand]) = mixed();
    let text = one.told(&["release", &first]);
    assert!(text.contains("--yes"), "{text}");
    assert_eq!(site.records().len(), 3);
    one.told(&["release", &first, "--yes"]);
    one.told(&["release", "--node", "node-2", "--yes"]);
    let left: Vec<String> = site.records().into_iter().map(|record| record.address).collect();
    assert_eq!(left, [by_hand]);
    // A node whose latest record is gone asks whether the server was restored.
    let (code, text) = two.call("ADD", "c2").failure();
    assert!(code == 11 && text.contains(&second) && text.contains("accept"), "{code} {text}");
    assert_eq!(site.records().len(), 1);
}

#[test]
fn lint_reports_two_records_of_an_address_or_an_owner_and_marks_that_it_cannot_read() {
    let site = Site::new();
    let node = site.node();
    let address = node.address("c1");
    let mark = site.records()[0].description.clone();
    site.server.record(&site.subnet, &site.host(7), "ipd:x");
    site.server.record(&site.subnet, &site.host(8), &mark);
    make_twin(site.server, &address, "a second");
    let told = linted(&node);
    let of_owner = format!("{mark} has 2 records in ");
    let of_address = format!("{} has 2 records", address.split('/').next().unwrap());
    for finding in [&of_owner, &of_address, &site.host(7)] {
        assert!(told.contains(finding), "{finding}: {told}");
    }
}

#[test]
fn lint_reports_a_name_that_means_several_subnets() {
    let site = Site::new();
    let cidrs = ["10.95.0.0/24", "10.95.1.0/24"];
    cidrs.iter().for_each(|cidr| drop(site.server.subnet(Some(ORGANIZATION), cidr, "twice")));
    let node = site.node().with_pools(&["twice"]);
    let outcome = node.typed(&["lint"]);
    let told = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(cidrs.iter().all(|cidr| told.contains(cidr)), "{told}");
}

/// What `lint` prints.
fn linted(node: &Node) -> String {
    let outcome = node.typed(&["lint"]);
    format!("{}{}", outcome.stdout, outcome.stderr)
}

#[test]
fn lint_reports_each_missing_right_beside_the_other_findings() {
    let site = Site::new();
    let rights: Vec<&str> =
        OPERATOR.into_iter().filter(|right| !right.contains("delete")).collect();
    let user = site.server.user("may-only-add", Some(ORGANIZATION), &rights);
    let told = linted(&site.node().with("token", &*user.token));
    assert!(told.contains("the right to delete IP addresses"), "{told}");
    assert!(!told.contains("the right to change"), "{told}");
    assert!(told.contains("of 254 addresses are held"), "{told}");
}

#[test]
fn lint_reports_a_login_that_is_sent_over_http() {
    let site = Site::new();
    let node = site.node();
    let told = linted(&node);
    let plain = "is asked without encryption, and gets";
    assert!(told.contains(&format!("{plain} the token of ipam.openwisp: use https://")), "{told}");
    let user = site.server.user("in-plain-text", Some(ORGANIZATION), &OPERATOR);
    let told = linted(&with_password(&node, &user.name, &user.password));
    assert!(told.contains(&format!("{plain} the password and the token of")), "{told}");
}

#[test]
fn lint_reports_that_the_server_refused_requests_as_too_many() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    assert!(!linted(&node).contains("HTTP 429"));
    relay.next([Fate::Answer(429, "{}".to_owned())]);
    node.add("c1");
    let told = linted(&node);
    assert!(told.contains("HTTP 429") && told.contains("DEFAULT_THROTTLE_RATES"), "{told}");
    assert!(!linted(&node.with("token", "another")).contains("HTTP 429"));
}
