//! A server that is away, slow, or says what OpenWISP does not: a clear error in time, and nothing
//! is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipam_testkit::fake_http::{Fake, Reply, answering, http};
use ipam_testkit::node::{addresses, given};
use ipam_testkit::openwisp::{Fate, ORGANIZATION, OpenWisp, Relay};
use ipam_testkit::servers::silent::Silent;
use serde_json::json;

use crate::site::{Node, Site, VERBS, assert_told, brief};

const SECOND: Duration = Duration::from_secs(1);

/// Answers of other programs than OpenWISP, and a part of the error about each.
fn strange() -> Vec<(&'static str, Fake, [u64; 4], &'static str)> {
    let with_type = |status: u16, kind: &str, body: &str| {
        let head = format!("X\r\nContent-Type: {kind}");
        http(status, body).replacen('X', &head, 1)
    };
    let page = with_type(200, "text/html", "<h1>Log in</h1>");
    let moved = http(301, "").replacen('X', "X\r\nLocation: /login/", 1);
    let objects = |text: &'static str| answering(move |_, _| Reply::Say(http(200, text)));
    vec![
        ("HTML", answering(move |_, _| Reply::Say(page.clone())), [103, 103, 103, 50], ""),
        ("301", answering(move |_, _| Reply::Say(moved.clone())), [103, 103, 103, 50], "301"),
        ("truncated", objects(r#"{"count":1,"next":null,"resu"#), [103, 103, 103, 50], ""),
        ("a number", objects("7"), [103, 103, 103, 50], ""),
        (
            "other types",
            objects(r#"{"count":"many","next":false,"results":{},"id":7,"ip_address":[]}"#),
            [103, 103, 103, 50],
            "",
        ),
    ]
}

/// A server that drips each answer in seconds.
fn dripping() -> Fake {
    let text = http(200, &format!(r#"{{"count":0,"next":null,"results":[{}]}}"#, " ".repeat(2000)));
    answering(move |_, _| Reply::Drip(text.clone()))
}

#[test]
fn an_absent_or_foreign_server_is_an_error_in_time_and_nothing_changes() {
    let site = Site::new();
    let result = site.node().add("c1");
    let before = site.records();
    let silent = Silent::listen();
    let gateway = http(502, "<h1>Bad Gateway</h1>");
    let gateway = answering(move |_, _| Reply::Say(gateway.clone()));
    let drip = dripping();
    let mut servers = vec![
        ("a closed port", "http://127.0.0.1:1".to_owned(), [105, 11, 11, 50], "Connection refused"),
        ("silence", format!("http://{}", silent.endpoint()), [11, 11, 11, 50], ""),
        ("a slow drip", drip.url.clone(), [11, 11, 11, 50], ""),
        ("502", gateway.url.clone(), [11, 11, 11, 50], "502"),
    ];
    let strange = strange();
    servers.extend(
        strange.iter().map(|(what, fake, codes, part)| (*what, fake.url.clone(), *codes, *part)),
    );
    std::thread::scope(|scope| {
        for (what, url, codes, part) in servers {
            let (site, result) = (&site, &result);
            scope.spawn(move || {
                // An answer that OpenWISP does not give names the key of the URL, and others the server.
                let is_strange = codes[0] == 103 && what != "301";
                let place = if is_strange { "ipam.openwisp.url" } else { &url };
                assert_told(&site.node_at(&url), what, result, codes, &[place, part]);
            });
        }
    });
    assert_eq!(site.records(), before);
}

/// A server with 101 records whose export is cut before the first.
fn cutting() -> Fake {
    let record = |n: usize| {
        json!({"id": format!("r{n}"), "modified": "2026-01-01T00:00:00Z", "subnet": "s",
               "ip_address": format!("10.9.0.{n}"), "description": ""})
    };
    let page = move |from: usize, to: usize, count: usize, next: Option<&str>| {
        let results: Vec<_> = (from..=to).map(record).collect();
        http(200, &json!({"count": count, "next": next, "results": results}).to_string())
    };
    let subnet = json!({"id": "s", "name": "s", "subnet": "10.9.0.0/24", "description": "",
                        "organization": ORGANIZATION, "master_subnet": null});
    let subnets = json!({"count": 1, "next": null, "results": [subnet]}).to_string();
    let taken = json!({"ip_address": ["IP address already used."]}).to_string();
    answering(move |request, _| {
        let line = request.lines().next().unwrap();
        if line.contains("/export/") {
            let cut = "HTTP/1.1 200 X\r\n\r\ns\r\n\r\nip_address,description\r\n";
            return Reply::SayAndClose(cut.to_owned());
        }
        Reply::Say(match line {
            _ if line.contains("/ip-address/00000000") => http(404, r#"{"detail":"Not found."}"#),
            _ if line.contains("&page=2") => page(101, 101, 101, None),
            _ if line.contains("/s/ip-address/?") => page(1, 100, 101, Some("more")),
            _ if line.starts_with("POST") => http(400, &taken),
            _ => http(200, &subnets),
        })
    })
}

#[test]
fn an_export_that_may_be_cut_is_not_used() {
    let fake = cutting();
    let node = Node::at(std::slice::from_ref(&fake.url))
        .with_pools(&["s"])
        .with("organization", ORGANIZATION);
    let (code, text) = node.call("ADD", "c1").failure();
    assert_eq!(code, 11, "{text}");
    let seen = fake.seen.lock().unwrap();
    let claim =
        seen.iter().find(|request| request.starts_with("POST") && request.contains("10.9."));
    assert!(claim.unwrap().contains(r#""10.9.0.102""#), "{claim:?}");
}

/// A node behind a relay that knows its pool already.
fn warm(site: &Site<'_>, relay: &Relay) -> Node {
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    node.add("warm");
    node
}

#[test]
fn silence_after_a_post_leaves_nothing_once_the_chain_has_released() {
    let fates: [fn() -> Fate; 4] = [
        // Longer than the call may take.
        || Fate::Delay(8 * SECOND),
        || Fate::Lose,
        || Fate::Cut,
        || Fate::Answer(500, "<h1>Server Error (500)</h1>".to_owned()),
    ];
    for fate in fates {
        let site = Site::new();
        let spoilt = Mutex::new(true);
        let relay = Relay::deciding(&site.server.endpoint(), move |request| {
            let is_claim = request.method == "POST" && request.target.ends_with("/ip-address/");
            let is_first = is_claim
                && request.body.contains("c1")
                && std::mem::take(&mut *spoilt.lock().unwrap());
            if is_first { fate() } else { Fate::Pass }
        });
        let node = warm(&site, &relay);
        let outcome = brief(&node, "ADD", &json!({}));
        if outcome.exit == Some(0) {
            let result = outcome.success();
            let held: Vec<_> = site.records().into_iter().map(|record| record.address).collect();
            assert_eq!(held.len(), 2, "{held:?}");
            assert!(held.contains(&addresses(&result)[0]), "{held:?} {result}");
        } else {
            let (code, text) = outcome.failure();
            assert!([11, 111].contains(&code), "{code} {text}");
        }
        node.del("c1");
        assert_eq!(site.records().len(), 1, "the address of the other container");
        // The next ADD finds nothing of the first.
        node.add("c1");
        assert_eq!(site.records().len(), 2);
    }
}

#[test]
fn an_add_after_a_lost_answer_takes_no_second_address() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = warm(&site, &relay);
    relay.next([Fate::Pass, Fate::Lose]);
    let outcome = node.call("ADD", "c1");
    let result = match outcome.exit {
        Some(0) => outcome.success(),
        _ => node.add("c1"),
    };
    assert_eq!(site.records().len(), 2);
    node.check("c1", &result).success();
}

#[test]
fn a_limit_of_requests_is_waited_for_or_names_the_setting() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let node = warm(&site, &relay);
    let result = node.add("c1");
    let busy = r#"{"detail":"Request was throttled."}"#;
    // Without a time: it may be retried at once.
    relay.next([Fate::Answer(429, busy.to_owned())]);
    let outcome = node.call("ADD", "c2");
    if outcome.exit != Some(0) {
        let (code, text) = outcome.failure();
        assert!(code == 11 && text.contains("429"), "{code} {text}");
        node.add("c2");
    }
    // For longer than any call.
    let said = http(429, busy).replacen('X', "X\r\nRetry-After: 3585", 1);
    let limited = answering(move |_, _| Reply::Say(said.clone()));
    assert_told(&site.node_at(&limited.url), "429", &result, [11, 11, 11, 50], &["429"]);
    let (_, text) = brief(&site.node_at(&limited.url), "ADD", &json!({})).failure();
    assert!(text.contains("DEFAULT_THROTTLE_RATES"), "{text}");
    assert_eq!(site.records().len(), 3);
}

#[test]
fn the_rate_of_a_real_server_is_an_error_that_names_the_setting_and_loses_nothing() {
    let server = OpenWisp::builder().workers(1).rate("40/hour").start();
    let site = Site::on(&server, "10.4.0.0/24");
    let node = site.node();
    let mut held = Vec::new();
    let refused = (0..40).find_map(|number| {
        let container = format!("c{number}");
        let outcome = node.call("ADD", &container);
        if outcome.exit != Some(0) {
            return Some(outcome.failure());
        }
        held.push((container, outcome.success()));
        None
    });
    let (code, text) = refused.expect("a refused ADD");
    assert_eq!(code, 11, "{text}");
    assert!(text.contains("429") && text.contains("DEFAULT_THROTTLE_RATES"), "{text}");
    // Another hour: the counts are in the server's memory.
    server.restart();
    for (container, result) in held {
        node.del_known(&container, &result).success();
    }
    server.restart();
    site.assert_empty();
}

#[test]
fn a_repeated_page_does_not_complete_a_list() {
    let site = Site::new();
    let server = site.server;
    server.records_of(&site.subnet, (1..=150).map(|host| (site.host(host), "of others")));
    let endpoint = server.endpoint();
    let first = format!("/api/v1/ipam/subnet/{}/ip-address/?page_size=100", site.subnet);
    let first = server.ask("GET", first.trim_start_matches("/api/v1/"), None).success().text();
    let relay = Relay::deciding(&endpoint, move |request| {
        let page = request.target.contains("/ip-address/?") && request.method == "GET";
        let export = request.target.ends_with("/export/");
        match (page, export) {
            (true, _) => Fate::Answer(200, first.clone()),
            // No right to export.
            (_, true) => Fate::Answer(403, r#"{"detail":"Forbidden"}"#.to_owned()),
            _ => Fate::Pass,
        }
    });
    let node = site.node_at(&format!("http://{}", relay.endpoint()));
    let (code, text) = brief(&node, "ADD", &json!({})).failure();
    assert!([11, 103].contains(&code), "{code} {text}");
    assert_eq!(site.records().len(), 150);
}

/// The server counts the records and then reads that many. If one is added between, the last one is
/// missing.
#[test]
fn a_list_that_lacks_its_last_record_hides_no_lease() {
    let site = Site::new();
    let server = site.server;
    server.record(&site.subnet, &site.host(10), "of others");
    let path = format!("ipam/subnet/{}/ip-address/?page_size=100", site.subnet);
    let list = path.clone();
    let first = Arc::new(Mutex::new(None));
    let answer = first.clone();
    let relay = Relay::deciding(&server.endpoint(), move |request| {
        let is_list = request.target.ends_with(&list);
        match is_list.then(|| answer.lock().unwrap().take()).flatten() {
            Some(text) => Fate::Answer(200, text),
            // No right to export.
            None if request.target.ends_with("/export/") => {
                Fate::Answer(403, r#"{"detail":"Forbidden"}"#.to_owned())
            }
            None => Fate::Pass,
        }
    });
    // Without memory, a DEL looks for its owner in the subnets of other tests, too.
    let node = site.node_at(&format!("http://{}", relay.endpoint())).named("node-of-a-short-list");
    let node = node.with_in_pools("requested-ip", site.host(99));
    node.add("c1");
    std::fs::remove_dir_all(node.world.path("state/openwisp")).unwrap();
    let mut list = server.ask("GET", &path, None).success().json();
    list["results"].as_array_mut().unwrap().pop();
    list["count"] = 1.into();
    *first.lock().unwrap() = Some(list.to_string());
    node.del("c1");
    assert!(first.lock().unwrap().is_none(), "the list was not read");
    assert_eq!(site.records().len(), 1);
}

#[test]
fn a_server_that_comes_back_has_what_it_had() {
    let server = OpenWisp::start();
    let site = Site::on(&server, "10.5.0.0/24");
    let node = site.node();
    let result = node.add("c1");
    server.kill();
    // A worker that is being killed may have accepted a connection.
    let expected: [&[u64]; 4] = [&[105, 11, 111], &[11, 111], &[11, 111], &[50]];
    for (verb, expected) in VERBS.into_iter().zip(expected) {
        let known = if verb == "ADD" { json!({}) } else { given(&result) };
        let (code, text) = brief(&node, verb, &known).failure();
        assert!(expected.contains(&code), "{verb}: {code} {text}");
    }
    server.restart();
    node.check("c1", &result).success();
    node.del_known("c1", &result).success();
    site.assert_empty();
}
