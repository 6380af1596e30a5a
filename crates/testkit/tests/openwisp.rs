//! What tests of OpenWISP rely on without a look: its server is the one that was started, a kill
//! ends all of it, a user has the rights that were given, and four workers give an address twice.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::node::at_once;
use ipam_testkit::openwisp::{Client, OPERATOR, ORGANIZATION, OpenWisp, Relay, TOKEN};
use serde_json::{Value, json};

#[test]
fn another_openwisp_on_its_port_is_not_taken_for_it() {
    let server = OpenWisp::builder().workers(1).start();
    server.kill();
    let other = OpenWisp::builder().workers(1).in_place_of(&server).start();
    assert_eq!((other.endpoint(), other.answers()), (server.endpoint(), Ok(())));
    let reason = server.answers().unwrap_err();
    assert!(reason.contains("another server has its port"), "{reason}");
}

#[test]
fn no_worker_outlives_a_killed_openwisp_and_its_database_does() {
    let server = OpenWisp::start();
    let subnet = server.subnet(Some(ORGANIZATION), "10.1.0.0/24", "blue");
    let record = server.record(&subnet, "10.1.0.9", "by hand");
    let snapshot = server.snapshot();
    server.kill();
    // A connection may still be accepted for a moment.
    server.try_ask("GET", "ipam/subnet/", None).unwrap_err();
    server.restart();
    assert_eq!(server.records(&subnet), std::slice::from_ref(&record));
    server.delete(&record.id);
    assert_eq!(server.record_by_id(&record.id), None);
    server.restore(&snapshot);
    assert_eq!(server.record_by_id(&record.id).as_ref(), Some(&record));
    let other = server.organization("other");
    server.age(&other, Duration::from_secs(3600));
    assert_eq!(server.record_by_id(&record.id).as_ref(), Some(&record));
    server.age(ORGANIZATION, Duration::from_secs(3600));
    let aged = server.record_by_id(&record.id).unwrap().modified;
    assert!(aged < record.modified, "{aged} {}", record.modified);
}

#[test]
fn requests_are_counted_by_a_relay_and_every_page_is_read() {
    let server = OpenWisp::shared();
    let subnet = server.subnet(Some(ORGANIZATION), "10.2.0.0/24", "pages");
    let addresses = (1..=150).map(|host| (format!("10.2.0.{host}"), "of others"));
    server.records_of(&subnet, addresses.clone());
    let relay = Relay::to(&server.endpoint());
    let client = Client::to(relay.endpoint().parse().unwrap(), Some(TOKEN));
    let mut seen = BTreeSet::new();
    let requests = relay.during(|| {
        let records = client.records(&subnet).into_iter();
        seen.extend(records.map(|record| (record.address, record.description)));
    });
    let records: BTreeSet<_> =
        addresses.map(|(address, text)| (address, text.to_owned())).collect();
    assert_eq!(seen, records);
    let page = |number| {
        let target = format!("/api/v1/ipam/subnet/{subnet}/ip-address/?page={number}");
        format!("GET {target}&page_size=100")
    };
    assert_eq!(requests, [page(1), page(2)]);
}

#[test]
fn a_user_has_the_rights_that_were_given() {
    let server = OpenWisp::shared();
    let other = server.organization("others");
    let subnet = server.subnet(Some(ORGANIZATION), "10.3.0.0/24", "rights");
    let record = server.record(&subnet, "10.3.0.1", "by hand");
    let target = format!("ipam/ip-address/{}/", record.id);
    let users = [
        (server.user("operator", Some(ORGANIZATION), &OPERATOR), [200, 200]),
        (server.user("reader", Some(ORGANIZATION), &OPERATOR[3..]), [200, 403]),
        (server.user("powerless", Some(ORGANIZATION), &[]), [403, 403]),
        (server.user("foreigner", Some(&other), &OPERATOR), [403, 403]),
    ];
    let change = json!({"description": "changed"});
    let statuses = |client: &Client| {
        let read = client.ask("GET", &target, None).status;
        [read, client.ask("PATCH", &target, Some(&change)).status]
    };
    for (user, expected) in &users {
        let client = server.with_token(Some(&user.token));
        assert_eq!(statuses(&client), *expected, "{}", user.name);
    }
    let operator = &users[0].0;
    server.disarm(operator);
    assert_eq!(statuses(&server.with_token(Some(&operator.token))), [403, 403]);
    assert_eq!(statuses(&server.with_token(None)), [401, 401]);
}

#[test]
fn a_rate_limits_the_requests_of_a_user() {
    let server = OpenWisp::builder().workers(1).rate("10/hour").start();
    let answers = (0..10).map(|_| server.ask("GET", "ipam/subnet/", None)).collect::<Vec<_>>();
    let last = answers.last().unwrap();
    assert_eq!((answers[0].status, last.status), (200, 429), "{}", last.text());
    assert!(last.head.to_lowercase().contains("\r\nretry-after: "), "{}", last.head);
}

/// The addresses that twenty get at once, of which each asks for the next free one.
fn requested_at_once(server: &OpenWisp, subnet: &str) -> Vec<Value> {
    let given = Mutex::new(Vec::new());
    at_once(20, |caller| {
        let target = format!("ipam/subnet/{subnet}/request-ip/");
        let body = json!({"description": format!("caller {caller}")});
        let answer = server.ask("POST", &target, Some(&body));
        if answer.status == 201 {
            given.lock().unwrap().push(answer.json()["ip_address"].clone());
        }
    });
    given.into_inner().unwrap()
}

#[test]
fn four_workers_give_an_address_twice_and_one_does_not() {
    let [four, one] = [4, 1].map(|workers| OpenWisp::builder().workers(workers).start());
    let mut has_doubles = false;
    for round in 0..20 {
        if !has_doubles {
            let subnet = four.subnet(Some(ORGANIZATION), &format!("10.{round}.0.0/24"), "race");
            let given = requested_at_once(&four, &subnet);
            let distinct: BTreeSet<_> = given.iter().map(Value::to_string).collect();
            has_doubles = distinct.len() < given.len();
        }
    }
    assert!(has_doubles);
    let subnet = one.subnet(Some(ORGANIZATION), "10.0.0.0/24", "race");
    let given = requested_at_once(&one, &subnet);
    let distinct: BTreeSet<_> = given.iter().map(Value::to_string).collect();
    assert_eq!((given.len(), distinct.len()), (20, 20));
}
