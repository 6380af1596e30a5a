//! Users, tokens and rights that the server refuses: an error that says so, without a secret.

use ipam_testkit::node::given;
use ipam_testkit::openwisp::{OPERATOR, ORGANIZATION, OpenWisp, User};
use serde_json::{Value, json};

use crate::site::{Node, Site};

/// A node of a site that has another token.
fn with_token(site: &Site<'_>, token: &str) -> Node {
    site.node().with("token", token)
}

/// It fails with one of these codes, and shows no secret.
#[track_caller]
fn assert_refused(node: &Node, verb: &str, known: &Value, codes: &[u64], secrets: &[&str]) {
    let outcome = node.call_with(verb, "c1", known);
    let all = format!("{outcome:?}");
    assert!(secrets.iter().all(|secret| !all.contains(secret)), "{verb}: {all}");
    let (code, text) = outcome.failure();
    assert!(codes.contains(&code), "{verb}: {code} {text}");
}

#[test]
fn an_operator_with_a_token_or_a_password_attaches_checks_and_releases() {
    let site = Site::new();
    let User { name, password, token, .. } =
        site.server.user("attaches", Some(ORGANIZATION), &OPERATOR);
    let mut by_password = site.node().with("username", &*name).with("password", &*password);
    by_password = by_password.with("insecure", true);
    by_password.store["openwisp"].as_object_mut().unwrap().remove("token");
    for node in [with_token(&site, &token), by_password] {
        let result = node.add("c1");
        assert_eq!(site.records().len(), 1);
        node.check("c1", &result).success();
        node.call("STATUS", "").success();
        node.del_known("c1", &result).success();
        site.assert_empty();
    }
}

#[test]
fn a_wrong_token_is_told_by_every_verb_and_shown_by_none() {
    let site = Site::new();
    let result = site.node().add("c1");
    let secret = "fedcba9876543210fedcba9876543210fedcba98";
    let node = with_token(&site, secret);
    for (verb, code) in [("ADD", 103), ("CHECK", 103), ("DEL", 103), ("STATUS", 50)] {
        let known = if verb == "ADD" { json!({}) } else { given(&result) };
        assert_refused(&node, verb, &known, &[code], &[secret]);
        let (_, text) = node.call_with(verb, "c1", &known).failure();
        assert!(text.contains("401") && text.contains("token"), "{verb}: {text}");
    }
    assert_eq!(site.records().len(), 1);
    site.node().check("c1", &result).success();
}

#[test]
fn a_password_over_plain_http_needs_a_word() {
    let site = Site::new();
    let User { name, password, .. } = site.server.user("plain", Some(ORGANIZATION), &OPERATOR);
    let mut node = site.node().with("username", &*name).with("password", &*password);
    node.store["openwisp"].as_object_mut().unwrap().remove("token");
    assert_refused(&node, "ADD", &json!({}), &[7], &[&password]);
    let (_, text) = node.call("ADD", "c1").failure();
    assert!(text.contains("insecure"), "{text}");
    let wrong = node.with("insecure", true).with("password", "another-secret");
    assert_refused(&wrong, "ADD", &json!({}), &[103], &["another-secret"]);
    site.assert_empty();
}

#[test]
fn a_user_without_rights_or_of_another_organization_gets_nothing() {
    let site = Site::new();
    let other = site.server.organization("elsewhere");
    let users = [
        site.server.user("idle", Some(ORGANIZATION), &[]),
        site.server.user("looks", Some(ORGANIZATION), &OPERATOR[3..]),
        site.server.user("elsewhere", Some(&other), &OPERATOR),
        site.server.user("may-not-change", Some(ORGANIZATION), &without("Can change IP address")),
        site.server.user("may-not-delete", Some(ORGANIZATION), &without("Can delete IP address")),
    ];
    for user in &users {
        let node = with_token(&site, &user.token);
        assert_refused(&node, "ADD", &json!({}), &[7, 103], &[&user.token]);
        site.assert_empty();
    }
}

/// The rights of an operator but one.
fn without(right: &str) -> Vec<&'static str> {
    OPERATOR.into_iter().filter(|other| *other != right).collect()
}

#[test]
fn a_shared_subnet_is_a_superusers_alone() {
    let server = OpenWisp::shared();
    let user = server.user("shares", Some(ORGANIZATION), &OPERATOR);
    let subnet = server.subnet(None, "10.96.0.0/24", "shared");
    let site = Site { server, subnet, cidr: "10.96.0.0/24".to_owned() };
    let before = server.subnet_json(&site.subnet);
    let node = with_token(&site, &user.token).with("organization", "shared");
    let (code, text) = node.call("ADD", "c1").failure();
    assert!(code == 7 && text.contains("superuser"), "{code} {text}");
    site.assert_empty();
    let node = site.node().with("organization", "shared");
    node.add("c1");
    node.del("c1");
    site.assert_empty();
    assert_eq!(server.subnet_json(&site.subnet), before);
}

#[test]
fn rights_that_are_taken_away_are_told_and_a_del_fails_until_they_are_back() {
    let server = OpenWisp::start();
    let site = Site::on(&server, "10.6.0.0/24");
    let user = server.user("loses", Some(ORGANIZATION), &OPERATOR);
    let node = with_token(&site, &user.token);
    let result = node.add("c1");
    server.disarm(&user);
    for verb in ["CHECK", "DEL"] {
        assert_refused(&node, verb, &given(&result), &[103], &[&user.token]);
    }
    assert_refused(&node, "STATUS", &json!({}), &[50], &[&user.token]);
    assert_eq!(site.records().len(), 1);
    site.node().del_known("c1", &result).success();
}

#[test]
fn a_wrong_organization_is_told() {
    let site = Site::new();
    for wrong in ["00000000-0000-4000-8000-00000000dead", "no-such-organization"] {
        let node = site.node().with("organization", wrong);
        let (code, text) = node.call("ADD", "c1").failure();
        assert_eq!(code, 7, "{text}");
    }
    site.assert_empty();
}
