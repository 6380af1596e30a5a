//! Users, tokens and rights that the server refuses: an error that says so, without a secret.

use ipam_testkit::fake_http::{Reply, answering, http};
use ipam_testkit::node::{at_once, given};
use ipam_testkit::openwisp::{OPERATOR, ORGANIZATION, OpenWisp, Relay, User};
use serde_json::{Value, json};

use crate::site::{Node, Site};

/// A node of a site that has another token.
fn with_token(site: &Site<'_>, token: &str) -> Node {
    site.node().with("token", token)
}

/// The same node that logs in with a password.
pub fn with_password(node: &Node, name: &str, password: &str) -> Node {
    let mut node = Node::with_store(node.store.clone(), node.pools.clone());
    node = node.with("username", name).with("password", password).with("insecure", true);
    node.store["openwisp"].as_object_mut().unwrap().remove("token");
    node
}

/// The logins of the requests that a relay got.
fn logins(lines: &[String]) -> usize {
    lines.iter().filter(|line| *line == "POST /api/v1/users/token/").count()
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
    let by_password = with_password(&site.node(), &name, &password);
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
fn every_verb_reports_a_wrong_token_and_shows_it_nowhere() {
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
fn a_password_over_http_needs_insecure() {
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
fn a_shared_subnet_serves_superusers_alone() {
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
fn every_verb_reports_lost_rights_and_a_del_fails_until_they_are_back() {
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
fn a_wrong_organization_is_an_error() {
    let site = Site::new();
    for wrong in ["00000000-0000-4000-8000-00000000dead", "no-such-organization"] {
        let node = site.node().with("organization", wrong);
        let (code, text) = node.call("ADD", "c1").failure();
        assert_eq!(code, 7, "{text}");
    }
    site.assert_empty();
}

#[test]
fn rights_are_remembered_for_their_user() {
    let server = OpenWisp::shared();
    let site = Site::new();
    let fewer = without("Can delete IP address");
    let user = server.user("has-fewer-rights", Some(ORGANIZATION), &fewer);
    let node = site.node();
    node.add("c1");
    let (code, text) = node.with("token", &*user.token).call("ADD", "c2").failure();
    assert!(code == 103 && text.contains("403"), "{code} {text}");
    assert_eq!(site.records().len(), 1);

    // The same for a subnet that only a superuser may use.
    let user = server.user("shares-too", Some(ORGANIZATION), &OPERATOR);
    let subnet = server.subnet(None, "10.96.1.0/24", "shared too");
    let site = Site { server, subnet, cidr: "10.96.1.0/24".to_owned() };
    let node = site.node().with("organization", "shared");
    node.add("c1");
    let (code, text) = node.with("token", &*user.token).call("ADD", "c2").failure();
    assert!(code == 7 && text.contains("superuser"), "{code} {text}");
    assert_eq!(site.records().len(), 1);
}

#[test]
fn callers_at_once_log_in_once_and_again_after_the_token_was_deleted() {
    let server = OpenWisp::start();
    let site = Site::on(&server, "10.7.0.0/24");
    let relay = Relay::to(&server.endpoint());
    let User { id, name, password, .. } = server.user("many", Some(ORGANIZATION), &OPERATOR);
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let node = with_password(&node, &name, &password).patient();
    for round in ["first", "second"] {
        let lines = relay.during(|| {
            at_once(20, |caller| drop(node.add(&format!("{round}-{caller}"))));
        });
        assert_eq!(logins(&lines), 1, "{round}: {lines:?}");
        let user = id.replace('-', "");
        server.sql(&format!("DELETE FROM authtoken_token WHERE user_id = '{user}'"));
    }
    assert_eq!(site.records().len(), 40);
}

#[test]
fn too_many_logins_are_an_error_that_names_the_setting() {
    let server = OpenWisp::builder().workers(1).rate("10/hour").start();
    let site = Site::on(&server, "10.8.0.0/24");
    let relay = Relay::to(&server.endpoint());
    let User { name, password, .. } = server.user("many", Some(ORGANIZATION), &OPERATOR);
    let login = json!({"username": name, "password": password});
    let refused = (0..10)
        .any(|_| server.with_token(None).ask("POST", "users/token/", Some(&login)).status == 429);
    assert!(refused, "the server takes any number of logins");
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let node = with_password(&node, &name, &password);
    for expected in [1, 0] {
        let lines = relay.during(|| {
            let (code, text) = node.call("ADD", "c1").failure();
            assert_eq!(code, 11, "{text}");
            assert!(text.contains("OPENWISP_USERS_AUTH_THROTTLE_RATE"), "{text}");
            assert!(!text.contains(&password), "{text}");
        });
        assert_eq!(logins(&lines), expected, "{lines:?}");
    }
}

#[test]
fn a_server_that_repeats_a_secret_has_it_shown_nowhere() {
    const PASSWORD: &str = "fedcba9876543210-password";
    const TOKEN: &str = "fedcba9876543210fedcba98-token";
    // As a string where another type is expected: the words of a parser quote it.
    for (secret, at_login) in [(TOKEN, false), (TOKEN, true), (PASSWORD, true), (PASSWORD, false)] {
        let server = answering(move |request, _| {
            let is_login = request.starts_with("POST /api/v1/users/token/");
            let body = match is_login && !at_login {
                true => json!({"token": TOKEN}),
                false => json!(secret),
            };
            Reply::SayAndClose(http(200, &body.to_string()))
        });
        let node = Node::at(std::slice::from_ref(&server.url)).with("timeout", "5s");
        let with_password = with_password(&node, "u", PASSWORD);
        let with_token = node.with("token", TOKEN);
        for (node, secrets) in [(with_password, &[PASSWORD, TOKEN][..]), (with_token, &[TOKEN])] {
            for verb in ["ADD", "CHECK", "DEL", "STATUS"] {
                assert_refused(&node, verb, &json!({}), &[50, 103], secrets);
            }
            let outcome = format!("{:?}", node.typed(&["lint"]));
            assert!(secrets.iter().all(|secret| !outcome.contains(secret)), "{outcome}");
        }
    }
}

#[test]
fn a_user_whose_new_token_is_refused_is_not_told_to_correct_a_token() {
    let server = answering(|request, _| {
        let is_login = request.starts_with("POST /api/v1/users/token/");
        Reply::SayAndClose(match is_login {
            true => http(200, r#"{"token":"fedcba9876543210"}"#),
            false => http(401, r#"{"detail":"User inactive or deleted."}"#),
        })
    });
    let node = Node::at(std::slice::from_ref(&server.url)).with("timeout", "5s");
    let (code, text) = with_password(&node, "ann", "s3cret-word").call("ADD", "c1").failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.contains("401") && text.contains("User inactive"), "{text}");
    assert!(text.contains("ipam.openwisp.username") && !text.contains("tokenFile"), "{text}");
}

#[test]
fn a_login_that_is_not_sent_again_shows_why_the_last_one_failed() {
    let server = answering(|_, _| {
        Reply::SayAndClose(http(400, r#"{"non_field_errors":["Unable to log in."]}"#))
    });
    let node = Node::at(std::slice::from_ref(&server.url)).with("timeout", "5s");
    let node = with_password(&node, "ann", "s3cret-word");
    for _ in 0..2 {
        let (code, text) = node.call("ADD", "c1").failure();
        assert!(code == 103 && text.contains("Unable to log in."), "{code} {text}");
    }
}
