//! Users, tokens and rights that the server refuses: an error that says so, without a secret.

use std::os::unix::fs::PermissionsExt;

use ipam_testkit::node::{at_once, given};
use ipam_testkit::phpipam::{Fate, PASSWORD, PhpIpam, Relay, Security, USER};
use serde_json::{Value, json};

use crate::site::{Node, Site, assert_told};

/// It fails with one of these codes, tells a part, and shows no secret.
#[track_caller]
fn assert_refused(node: &Node, verb: &str, known: &Value, code: u64, part: &str, secret: &str) {
    let outcome = node.call_with(verb, "c1", known);
    let all = format!("{outcome:?}");
    assert!(!all.contains(secret), "{verb}: {all}");
    let (found, text) = outcome.failure();
    assert!(found == code && text.contains(part), "{verb}: {found} {text}");
}

/// A node that logs in with this password.
fn with_password(site: &Site<'_>, password: &str) -> Node {
    let node = site.node().with("username", USER).with("password", password);
    let mut node = node.with("insecure", true);
    node.store["phpipam"].as_object_mut().unwrap().remove("token");
    node
}

#[test]
fn a_user_attaches_checks_and_releases_with_one_token_that_is_renewed() {
    let server = PhpIpam::builder().security(Security::Token).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let relay = Relay::to(&server.endpoint());
    let mut node = with_password(&site, PASSWORD);
    node.store["phpipam"]["urls"] = json!([format!("http://{}", relay.endpoint())]);
    let result = node.add("c1");
    let folder = node.world.path("state/phpipam");
    let tokens: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    let tokens = tokens.iter().filter(|it| it.file_name().to_str().unwrap().contains("json"));
    for token in tokens {
        assert_eq!(token.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{token:?}");
    }
    let logins = |lines: Vec<String>| lines.iter().filter(|it| it.contains("/user/")).count();
    let calm = relay.during(|| drop(node.check("c1", &result).success()));
    assert_eq!((calm.len(), logins(calm)), (1, 0));
    // Each verb after the end of the token.
    server.expire();
    assert_eq!(logins(relay.during(|| drop(node.check("c1", &result).success()))), 1);
    server.expire();
    assert_eq!(logins(relay.during(|| drop(node.add("c2")))), 1);
    server.expire();
    assert_eq!(logins(relay.during(|| drop(node.call("STATUS", "").success()))), 1);
    server.expire();
    assert_eq!(logins(relay.during(|| node.del("c2"))), 1);
    node.del_known("c1", &result).success();
    site.assert_empty();
    assert!(relay.requests().iter().all(|it| it.method != "DELETE" || !it.target.contains("user")));
}

#[test]
fn a_refused_login_is_sent_once_by_however_many_calls() {
    let server = PhpIpam::builder().security(Security::Token).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let wrong = "another-password";
    let node = with_password(&site, wrong);
    at_once(20, |number| {
        let outcome = node.call("ADD", &format!("c{number}"));
        assert!(!format!("{outcome:?}").contains(wrong));
        let (code, text) = outcome.failure();
        assert!(code == 103 && text.contains("ipam.phpipam"), "{code} {text}");
    });
    assert_eq!(server.refused_logins(), 1);
    // A node with the right one has a file of its own.
    let right = with_password(&site, PASSWORD);
    right.add("c1");
    assert_eq!(server.refused_logins(), 1);
}

#[test]
fn a_blocked_node_is_told_why() {
    let server = PhpIpam::builder().security(Security::Token).start();
    let site = Site::on(&server, "10.1.0.0/24");
    for number in 0..11 {
        let node = with_password(&site, &format!("wrong-password-{number}"));
        assert_refused(&node, "ADD", &json!({}), 103, "Invalid username", "wrong-password");
    }
    let node = with_password(&site, PASSWORD);
    assert_refused(&node, "ADD", &json!({}), 11, "eleven refused logins", PASSWORD);
    site.assert_empty();
}

#[test]
fn a_wrong_token_is_told_by_every_verb_and_shown_by_none() {
    let site = Site::new();
    let result = site.node().add("c1");
    let secret = "fedcba9876543210fedcba9876543210";
    let node = site.node().with("token", secret);
    for (verb, code) in [("ADD", 103), ("CHECK", 103), ("DEL", 103), ("STATUS", 50)] {
        let known = if verb == "ADD" { json!({}) } else { given(&result) };
        assert_refused(&node, verb, &known, code, "401", secret);
        assert_refused(&node, verb, &known, code, "App code", secret);
    }
    assert_eq!(site.records().len(), 1);
    site.node().check("c1", &result).success();
}

#[test]
fn an_app_that_is_unknown_or_may_only_read_is_told() {
    let site = Site::new();
    let unknown = site.node().with("appId", "another");
    for (verb, code) in [("ADD", 103), ("STATUS", 50)] {
        assert_refused(&unknown, verb, &json!({}), code, "ipam.phpipam.appId", "0123456789");
    }
    let server = PhpIpam::builder().read_only().start();
    let reading = Site::on(&server, "10.1.0.0/24");
    for (verb, code) in [("ADD", 103), ("STATUS", 50)] {
        assert_refused(&reading.node(), verb, &json!({}), code, "Read / Write", "0123456789");
    }
    reading.assert_empty();
}

#[test]
fn an_app_that_wants_encrypted_requests_or_tls_is_told_what_to_choose() {
    let server = PhpIpam::builder().security(Security::Crypt).start();
    let site = Site::on(&server, "10.1.0.0/24");
    let result = Site::new().node().add("c1");
    let advice = "SSL with App code token";
    assert_told(&site.node(), "crypt", &result, [103, 103, 103, 50], &[advice]);
    for (said, part) in [
        ("SSL connection is required for API", "https://"),
        ("API server disabled", "enable the API"),
        ("Application disabled", "enable the API"),
    ] {
        let envelope = json!({"code": 503, "success": false, "message": said}).to_string();
        let relay =
            Relay::deciding(&server.endpoint(), move |_| Fate::Answer(503, envelope.clone()));
        let node = site.node_at(&format!("http://{}", relay.endpoint()));
        assert_told(&node, said, &result, [103, 103, 103, 50], &[said, part]);
    }
}

#[test]
fn a_code_is_no_password_and_a_password_over_plain_http_needs_a_word() {
    let server = PhpIpam::builder().imitated().start();
    let site = Site::on(&server, "10.1.0.0/24");
    // The App of this server has a code.
    let node = with_password(&site, PASSWORD);
    let (code, text) = node.call("ADD", "c1").failure();
    assert!(code == 103 && text.contains("instead of username"), "{code} {text}");
    let node = node.with("insecure", false);
    let (code, text) = node.call("ADD", "c1").failure();
    assert!(code == 7 && text.contains("insecure"), "{code} {text}");
    site.assert_empty();
}

#[test]
fn a_key_field_that_phpipam_does_not_have_is_told() {
    let site = Site::new();
    let node = site.node().with("keyField", "absent");
    assert_refused(&node, "ADD", &json!({}), 103, "ipam.phpipam.keyField", "0123456789");
    site.assert_empty();
}
