//! The imitation of phpIPAM answers as phpIPAM 1.8.2 did where its answers were recorded.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::node::at_once;
use ipam_testkit::phpipam::{APP, LockKind, PASSWORD, PhpIpam, Security, USER};
use ipam_testkit::servers::base64;
use serde_json::{Value, json};

/// Ids have names in what was recorded, since each server has its own: `$NAME` is a text, `#NAME` a
/// number, and `@NAME` the id of what is made.
type Ids = BTreeMap<String, String>;

/// What was recorded, with the ids of this server.
fn bound(recorded: &Value, ids: &Ids) -> Value {
    let mut text = recorded.to_string();
    for (name, id) in ids {
        text = text.replace(&format!("\"#{name}\""), id).replace(&format!("${name}"), id);
    }
    serde_json::from_str(&text).unwrap()
}

/// Whether a value has what was recorded; `*` is any part of a text.
fn has(found: &Value, recorded: &Value, ids: &mut Ids) -> bool {
    match (found, recorded) {
        (Value::Object(found), Value::Object(recorded)) => {
            recorded.iter().all(|(key, value)| found.get(key).is_some_and(|it| has(it, value, ids)))
        }
        (Value::Array(found), Value::Array(recorded)) => {
            let mut pairs = found.iter().zip(recorded);
            found.len() == recorded.len() && pairs.all(|(a, b)| has(a, b, ids))
        }
        (Value::String(found), Value::String(recorded)) if recorded.starts_with('@') => {
            ids.insert(recorded[1..].to_owned(), found.clone());
            found.parse::<u64>().is_ok()
        }
        (Value::String(found), Value::String(recorded)) if recorded.contains('*') => {
            recorded.split('*').all(|part| found.contains(part))
        }
        _ => found == recorded,
    }
}

#[test]
fn answers_are_those_that_were_recorded() {
    let server = PhpIpam::builder().key_field("cni_key").start();
    let mut ids = Ids::from([("section".to_owned(), server.section(1))]);
    let recorded: Value = serde_json::from_str(include_str!("phpipam.json")).unwrap();
    for step in recorded.as_array().unwrap() {
        let step = bound(step, &ids);
        let (method, target) = step["ask"].as_str().unwrap().split_once(' ').unwrap();
        let answer = server.ask(method, target, step.get("body"));
        if let Some(status) = step.get("status") {
            assert_eq!(json!(answer.status), *status, "{step}");
        }
        match step.get("answer") {
            Some(expected) => {
                let is_so = has(&answer.json(), expected, &mut ids);
                assert!(is_so, "{step}: {}", answer.text());
            }
            None => assert_eq!(answer.text(), "", "{step}"),
        }
    }
}

fn basic(password: &str) -> String {
    format!("Authorization: Basic {}", base64::encode(&format!("{USER}:{password}")))
}

/// The code of an answer, and what it says.
fn told(server: &PhpIpam, method: &str, target: &str, header: &str) -> (u64, String) {
    let answer = server.ask_with(method, target, header, None).json();
    let message = answer["message"].as_str().unwrap_or_default().to_owned();
    (answer["code"].as_u64().unwrap(), message)
}

#[test]
fn an_app_with_a_code_refuses_others_and_writes_of_one_that_may_only_read() {
    let server = PhpIpam::builder().read_only().start();
    let (app, code) = server.app();
    let code = format!("phpipam-token: {code}");
    assert_eq!(told(&server, "GET", &format!("{app}/sections/1/"), &code).0, 200);
    assert_eq!(
        told(&server, "GET", "other/subnets/", &code),
        (400, "Invalid application id".to_owned())
    );
    let subnets = format!("{app}/subnets/");
    assert_eq!(told(&server, "GET", &subnets, "token: x"), (401, "Unauthorized".to_owned()));
    let change = told(&server, "DELETE", &format!("{app}/addresses/0/"), &code);
    assert_eq!(change, (401, "invalid permissions".to_owned()));
}

#[test]
fn a_login_gives_one_token_until_it_expires_and_eleven_refused_ones_block() {
    let server = PhpIpam::builder().security(Security::Token).start();
    server.subnet("10.40.0.0/28", "pool1");
    let (user, subnets) = (format!("{APP}/user/"), format!("{APP}/subnets/"));
    let log_in = || {
        let answer = server.ask_with("POST", &user, &basic(PASSWORD), None).json();
        answer["data"]["token"].as_str().unwrap().to_owned()
    };
    let token = log_in();
    assert_eq!((log_in(), token.len()), (token.clone(), 24));
    let header = format!("token: {token}");
    assert_eq!(told(&server, "GET", &subnets, &header).0, 200);
    server.expire();
    assert_eq!(told(&server, "GET", &subnets, &header), (401, "Unauthorized".to_owned()));
    let header = format!("token: {}", log_in());
    for _ in 0..11 {
        assert_eq!(told(&server, "GET", &subnets, &header).0, 200);
        let (code, message) = told(&server, "POST", &user, &basic("wrong"));
        assert_eq!((code, &*message), (500, "Invalid username or password"));
    }
    for (method, target, header) in [("GET", &subnets, &header), ("POST", &user, &basic(PASSWORD))]
    {
        let (code, message) = told(&server, method, target, header);
        assert!(code == 500 && message.starts_with("Your IP has been blocked"), "{message}");
    }
}

/// The answers of so many requests at once.
fn answers(count: usize, ask: impl Fn(usize) -> Value + Sync) -> Vec<Value> {
    let answers = Mutex::new(Vec::new());
    at_once(count, |number| {
        let answer = ask(number);
        answers.lock().unwrap().push(answer);
    });
    answers.into_inner().unwrap()
}

#[test]
fn twenty_at_once_get_distinct_addresses_and_without_a_lock_some_are_refused() {
    for (lock, most) in [(LockKind::File, 20), (LockKind::Disabled, 19)] {
        let server = PhpIpam::builder().lock(lock).start();
        let subnet = server.subnet("10.40.0.0/24", "pool1");
        let target = format!("addresses/first_free/{subnet}/");
        let answers = answers(20, |_| server.ask("POST", &target, Some(&json!({}))).json());
        let (made, refused): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer["success"] == true);
        let distinct: BTreeSet<String> = made.iter().map(|it| it["data"].to_string()).collect();
        assert_eq!(distinct.len(), made.len());
        assert!((1..=most).contains(&made.len()), "{lock:?}: {}", made.len());
        assert!(lock == LockKind::Disabled || made.len() == 20);
        for answer in refused {
            let message = answer["message"].as_str().unwrap();
            let is_duplicate = message.contains("Duplicate entry '")
                && message.contains("for key 'sid_ip_unique'");
            assert!(is_duplicate || answer["code"] == 409, "{answer}");
        }
    }
}

#[test]
fn of_many_at_once_one_gets_a_certain_address_and_one_a_key() {
    let server = PhpIpam::builder().lock(LockKind::Disabled).key_field("cni_key").start();
    let subnet = server.subnet("10.40.0.0/24", "pool1");
    let wish = json!({"ip": "10.40.0.9", "subnetId": subnet});
    let wishes = answers(10, |_| server.ask("POST", "addresses/", Some(&wish)).json());
    assert_eq!(wishes.iter().filter(|answer| answer["code"] == 201).count(), 1, "{wishes:?}");
    // With different addresses, the key alone refuses.
    let keys = answers(10, |number| {
        let body =
            json!({"ip": format!("10.40.0.{}", 20 + number), "subnetId": subnet, "cni_key": "k2"});
        server.ask("POST", "addresses/", Some(&body)).json()
    });
    let (made, refused): (Vec<_>, Vec<_>) = keys.iter().partition(|it| it["code"] == 201);
    assert_eq!((made.len(), refused.len()), (1, 9));
    let expected = format!("Duplicate entry '{subnet}-k2' for key 'cni_key_u'");
    assert!(refused.iter().all(|it| it["message"].as_str().unwrap().contains(&expected)));
}

#[test]
fn a_change_waits_for_the_lock_and_gets_status_200_with_a_failure_if_it_waits_too_long() {
    let server = PhpIpam::builder().waiting(Duration::from_millis(100)).start();
    let subnet = server.subnet("10.40.0.0/24", "pool1");
    let target = format!("addresses/first_free/{subnet}/");
    let turn = server.hold();
    let answer = server.ask("POST", &target, Some(&json!({})));
    assert_eq!(answer.status, 200);
    let envelope = answer.json();
    assert_eq!((&envelope["code"], &envelope["success"]), (&json!(500), &json!(false)));
    let message = envelope["message"].as_str().unwrap();
    assert!(message.starts_with("Cannot obtain lock for "), "{message}");
    assert!(message.ends_with(" seconds"), "{message}");
    // Reads do not wait.
    assert_eq!(server.ask("GET", &format!("subnets/{subnet}/"), None).status, 200);
    drop(turn);
    assert_eq!(server.ask("POST", &target, Some(&json!({}))).status, 201);
}

#[test]
fn a_subnet_with_subnets_gives_nothing_and_an_unreachable_database_says_nothing() {
    let server = PhpIpam::builder().imitated().start();
    let parent = server.subnet("10.40.0.0/24", "parent");
    server.subnet_in(1, Some(&parent), "10.40.0.0/28", "child");
    let target = format!("addresses/first_free/{parent}/");
    let answer = server.ask("POST", &target, Some(&json!({}))).json();
    assert_eq!(answer["message"], "No free addresses found");
    server.set_broken(true);
    let answer = server.ask("GET", "subnets/", None);
    assert_eq!((answer.status, answer.text()), (500, String::new()));
}
