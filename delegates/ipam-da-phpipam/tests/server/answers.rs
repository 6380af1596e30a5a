//! A server that is unreachable, slow, or says what phpIPAM does not: a clear error in time, and nothing is
//! lost.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ipam_testkit::fake_http::{Fake, Reply, answering, http};
use ipam_testkit::node::{addresses, given};
use ipam_testkit::phpipam::{Fate, LockKind, PhpIpam, Relay};
use ipam_testkit::servers::silent::Silent;
use ipam_testkit::world::{start, wait};
use serde_json::{Value, json};

use crate::site::{KEY, Node, Site, VERBS, assert_told, brief};

const SECOND: Duration = Duration::from_secs(1);

/// What another program than phpIPAM says, and what an error tells of it.
fn strange() -> Vec<(&'static str, Fake, &'static str)> {
    let with_type = |status: u16, kind: &str, body: &str| {
        let head = format!("X\r\nContent-Type: {kind}");
        http(status, body).replacen('X', &head, 1)
    };
    let page = with_type(200, "text/html", "<h1>Log in</h1>");
    let moved = http(301, "").replacen('X', "X\r\nLocation: /login/", 1);
    let objects = |text: &'static str| answering(move |_, _| Reply::Say(http(200, text)));
    let absent = with_type(404, "text/html", "<h1>Not Found</h1>");
    vec![
        ("HTML", answering(move |_, _| Reply::Say(page.clone())), ""),
        ("404 of others", answering(move |_, _| Reply::Say(absent.clone())), "404"),
        ("301", answering(move |_, _| Reply::Say(moved.clone())), "301"),
        ("truncated", objects(r#"{"code":200,"success":true,"data":[{"id":"#), ""),
        ("a number", objects("7"), ""),
        ("other types", objects(r#"{"code":"many","success":7,"data":{},"id":[]}"#), ""),
    ]
}

/// A server that drips each answer in seconds.
fn dripping() -> Fake {
    let text = format!(r#"{{"code":200,"success":true,"data":[{}]}}"#, " ".repeat(2000));
    let text = http(200, &text);
    answering(move |_, _| Reply::Drip(text.clone()))
}

#[test]
fn an_unreachable_or_strange_server_is_told_in_time_and_nothing_changes() {
    let site = Site::new();
    let result = site.node().add("c1");
    let before = site.records();
    let silent = Silent::listen();
    let gateway = http(502, "<h1>Bad Gateway</h1>");
    let gateway = answering(move |_, _| Reply::Say(gateway.clone()));
    let failing = answering(move |_, _| Reply::Say(http(500, "")));
    let drip = dripping();
    let later = [11, 11, 11, 50];
    let mut servers = vec![
        ("a closed port", "http://127.0.0.1:1".to_owned(), [105, 11, 11, 50], "Connection refused"),
        ("silence", format!("http://{}", silent.endpoint()), later, ""),
        ("a slow drip", drip.url.clone(), later, ""),
        ("502", gateway.url.clone(), later, "502"),
        ("500", failing.url.clone(), later, ""),
    ];
    let strange = strange();
    servers.extend(
        strange
            .iter()
            .map(|(what, fake, part)| (*what, fake.url.clone(), [103, 103, 103, 50], *part)),
    );
    thread::scope(|scope| {
        for (what, url, codes, part) in servers {
            let (site, result) = (&site, &result);
            scope.spawn(move || {
                assert_told(&site.node_at(&url), what, result, codes, &["phpIPAM", part]);
            });
        }
    });
    assert_eq!(site.records(), before);
}

/// A node behind a relay that knows its pool already.
fn warm(site: &Site<'_>, relay: &Relay) -> Node {
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    node.add("warm");
    node
}

#[test]
fn silence_after_a_post_leaves_nothing_once_the_chain_has_released() {
    let fates: [fn() -> Fate; 5] = [
        // Longer than the call may take.
        || Fate::Delay(8 * SECOND),
        || Fate::Lose,
        || Fate::Cut,
        || Fate::Answer(500, String::new()),
        || Fate::Answer(200, r#"{"code":201,"success":true,"id":"x"}"#.to_owned()),
    ];
    for (number, fate) in fates.into_iter().enumerate() {
        for has_key in [false, true] {
            let server = PhpIpam::builder().key_field(KEY).start();
            let site = Site::on(&server, "10.1.0.0/24");
            let spoilt = Mutex::new(true);
            let relay = Relay::deciding(&server.endpoint(), move |request| {
                let is_claim = request.method == "POST" && request.body.contains("/c1/");
                let is_first = is_claim && std::mem::take(&mut *spoilt.lock().unwrap());
                if is_first { fate() } else { Fate::Pass }
            });
            let mut node = warm(&site, &relay);
            if has_key {
                node = node.with("keyField", KEY);
            }
            let outcome = brief(&node, "ADD", &json!({}));
            if outcome.exit == Some(0) {
                let result = outcome.success();
                let held: Vec<_> = site.records().into_iter().map(|it| it.address).collect();
                assert_eq!(held.len(), 2, "{number}: {held:?}");
                assert!(held.contains(&addresses(&result)[0]), "{held:?} {result}");
            } else {
                let (code, text) = outcome.failure();
                assert!([11, 111].contains(&code), "{number}: {code} {text}");
            }
            node.del("c1");
            assert_eq!(site.records().len(), 1, "the address of the other container");
            // The next ADD finds nothing of the first.
            node.add("c1");
            assert_eq!(site.records().len(), 2);
        }
    }
}

#[test]
fn a_lost_answer_to_a_keep_or_a_delete_loses_nothing() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = warm(&site, &relay);
    let address = node.address("c1");
    // The read, then the PATCH.
    relay.next([Fate::Pass, Fate::Lose]);
    let outcome = node.call("ADD", "c1");
    if outcome.exit != Some(0) {
        assert_eq!(outcome.failure().0, 11);
    }
    assert_eq!(node.address("c1"), address);
    relay.next([Fate::Pass, Fate::Lose]);
    node.del("c1");
    assert_eq!(site.records().len(), 1);
}

#[test]
fn a_change_that_does_not_get_the_lock_is_sent_again_and_then_fails() {
    let builder = PhpIpam::builder().waiting(Duration::from_millis(300));
    assert_sent_again(&builder.clone().start(), "Cannot obtain lock");
    let server = builder.lock(LockKind::MySql).imitated().start();
    assert_sent_again(&server, "MySQL wait timeout exceeded");
}

#[track_caller]
fn assert_sent_again(server: &PhpIpam, words: &str) {
    let site = Site::on(server, "10.1.0.0/24");
    let node = site.node();
    let result = node.add("c1");
    let turn = server.hold();
    for (verb, code) in [("ADD", 11), ("DEL", 11), ("STATUS", 50)] {
        let container = if verb == "DEL" { "c1" } else { "c2" };
        let known = if verb == "DEL" { given(&result) } else { json!({}) };
        let (found, text) = node.call_with(verb, container, &known).failure();
        assert!(found == code && text.contains(words), "{verb}: {found} {text}");
    }
    node.check("c1", &result).success();
    assert_eq!(site.records().len(), 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(450));
            drop(turn);
        });
        node.add("c2");
    });
    node.del_known("c1", &result).success();
    node.del("c2");
    site.assert_empty();
}

/// An ADD that gives up while its claim waits for the lock, and the number of records once the
/// claims are made.
fn add_late(server: &PhpIpam, site: &Site<'_>, node: &Node) -> usize {
    let before = site.records().len();
    let turn = server.hold();
    let mut impatient = node.network();
    impatient["ipam"]["phpipam"]["timeout"] = "1s".into();
    let mut command = node.command("ADD", "c1");
    command.env("IPAM_DELEGATED_DEADLINE_MS", "4000");
    let (code, text) = wait(start(command, &impatient)).failure();
    assert!([11, 111].contains(&code), "{code} {text}");
    assert_eq!(site.records().len(), before);
    drop(turn);
    server.until(&site.subnet, |records| records.len() > before);
    // All that wait for the lock get it now.
    thread::sleep(SECOND / 2);
    site.records().len() - before
}

#[test]
fn records_that_come_late_are_one_after_the_next_add_and_none_after_a_del() {
    for has_key in [false, true] {
        let server = PhpIpam::builder().key_field(KEY).start();
        let site = Site::on(&server, "10.1.0.0/24");
        let mut node = site.node();
        if has_key {
            node = node.with("keyField", KEY);
        }
        node.add("other");
        let late = add_late(&server, &site, &node);
        assert!(late == 1 || !has_key, "the key lets one of {late} in");
        let address = node.address("c1");
        let records = site.records();
        assert_eq!(records.len(), 2, "{records:?}");
        assert!(records.iter().any(|record| record.address == address));
        node.del("c1");
        assert_eq!(site.records().len(), 1);
        add_late(&server, &site, &node);
        node.del("c1");
        assert_eq!(site.records().len(), 1);
    }
}

#[test]
fn an_unreachable_database_is_told_and_has_what_it_had_when_it_is_back() {
    let server = PhpIpam::builder().imitated().start();
    let site = Site::on(&server, "10.1.0.0/24");
    let node = site.node();
    let result = node.add("c1");
    for broken in [true, false] {
        let set = |is_bad| match broken {
            true => server.set_broken(is_bad),
            false => server.set_down(is_bad),
        };
        set(true);
        for (verb, code) in VERBS.into_iter().zip([11, 11, 11, 50]) {
            let known = if verb == "ADD" { json!({}) } else { given(&result) };
            let (found, text) = brief(&node, verb, &known).failure();
            assert!(found == code || (code == 11 && found == 111), "{verb}: {found} {text}");
        }
        set(false);
        node.check("c1", &result).success();
    }
    node.del_known("c1", &result).success();
    site.assert_empty();
}

#[test]
fn ids_may_be_texts_and_other_records_of_a_loose_filter_are_not_taken() {
    let site = Site::new();
    let text = |value: &mut Value| {
        if let Value::Number(number) = value {
            *value = number.to_string().into();
        }
    };
    // As PHP before 8.1 says it, or with api-stringify-results.
    let server = site.server.endpoint();
    let inner = server.clone();
    let relay = Relay::deciding(&server, move |request| {
        if request.method != "GET" {
            return Fate::Pass;
        }
        let target = request.target.split_once("/api/").unwrap().1.to_owned();
        let header = format!("token: {}", request.header("token").unwrap());
        let answer = ask(&inner, &target, &header);
        let mut envelope: Value = serde_json::from_slice(&answer.1).unwrap();
        let rows = match &mut envelope["data"] {
            Value::Array(rows) => rows.iter_mut().collect(),
            row @ Value::Object(_) => vec![row],
            _ => Vec::new(),
        };
        for row in rows {
            row.as_object_mut().unwrap().values_mut().for_each(text);
        }
        Fate::Answer(answer.0, envelope.to_string())
    });
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let result = node.add("c1");
    assert_eq!(node.address("c1"), addresses(&result)[0]);
    node.add("c2");
    node.check("c1", &result).success();
    node.del_known("c1", &result).success();
    node.del("c2");
    site.assert_empty();
}

/// One GET: the status and the body.
fn ask(endpoint: &str, target: &str, header: &str) -> (u16, Vec<u8>) {
    let stream = std::net::TcpStream::connect(endpoint).unwrap();
    let head =
        format!("GET /api/{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n\r\n");
    let answer = ipam_testkit::servers::http::exchange(stream, head.as_bytes()).unwrap();
    (answer.status, answer.body)
}
