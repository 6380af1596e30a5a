//! Servers are tried in their order; one that answers serves everything, and no other server's state fails a
//! verb while one answers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ipam_testkit::consul::{Cluster, Consul, Fate, Relay, Silent};
use ipam_testkit::node::{VERBS, addresses, at_once, given, within};
use ipam_testkit::world::Outcome;
use serde_json::{Value, json};

use common::store::{books, holdings};
use common::{Node, POOL, SUBNET, define, stocked};

/// What several servers that do not answer may cost a call, on a machine under load.
const BOUND: Duration = Duration::from_secs(25);

/// A URL of this machine on which nobody listens.
fn refused() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    url(&listener.local_addr().unwrap().to_string())
}

fn url(endpoint: &str) -> String {
    format!("http://{endpoint}")
}

/// A server of HTTP that gives every request the same answer.
struct Parrot {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Parrot {
    fn saying(status: &str, head: &str, body: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = url(&listener.local_addr().unwrap().to_string());
        let requests = Arc::new(AtomicUsize::new(0));
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let counted = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(&stream);
                let (mut line, mut length) = (String::new(), 0);
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    if let Some(told) = line.to_lowercase().strip_prefix("content-length:") {
                        length = told.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let _ = reader.read_exact(&mut vec![0; length]);
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Servers that do not serve, each with words that tell why.
struct Bad {
    cluster: Cluster,
    silent: Silent,
    stopped: Consul,
    parrots: Vec<(Parrot, &'static str)>,
}

impl Bad {
    fn start() -> Self {
        let cluster = Cluster::start(1);
        define(cluster.member(0), POOL, SUBNET);
        let stopped = Consul::start();
        stopped.stop();
        let parrots = [
            ("500 Internal Server Error", "", "No cluster leader", "HTTP 500: No cluster leader"),
            ("503 Service Unavailable", "", "", "HTTP 503"),
            ("429 Too Many Requests", "", "", "HTTP 429"),
            ("404 Not Found", "", "no such page", "HTTP 404: no such page"),
            ("405 Method Not Allowed", "", "", "HTTP 405"),
            (
                "301 Moved Permanently",
                "Location: http://10.9.9.9:1/x\r\n",
                "",
                "a redirect to http://10.9.9.9:1/x",
            ),
            ("307 Temporary Redirect", "Location: /elsewhere\r\n", "", "a redirect to /elsewhere"),
        ];
        let parrots = parrots.map(|(s, head, body, words)| (Parrot::saying(s, head, body), words));
        Self { cluster, silent: Silent::listen(), stopped, parrots: parrots.into() }
    }

    fn good(&self) -> &Consul {
        self.cluster.member(0)
    }

    fn all(&self) -> Vec<(String, &'static str)> {
        let mut all = vec![
            (refused(), "Connection refused"),
            (url(&self.cluster.blackhole()), "connection timed out"),
            (url(&self.silent.endpoint()), "no answer within"),
            (self.stopped.url(), "no answer within"),
        ];
        all.extend(self.parrots.iter().map(|(parrot, words)| (parrot.url.clone(), *words)));
        all
    }
}

/// A call of a node that remembers nothing.
fn fresh(servers: &[String], verb: &str, container: &str, result: &Value) -> Outcome {
    Node::at(servers).call_with(verb, container, result)
}

#[test]
fn a_bad_server_before_a_good_one_fails_no_verb() {
    let bad = Bad::start();
    let mut cases: Vec<Vec<String>> =
        bad.all().into_iter().map(|(server, _)| vec![server, bad.good().url()]).collect();
    // All of them at once, in both orders, with the good one at the end.
    for turned in [false, true] {
        let mut servers: Vec<String> = bad.all().into_iter().map(|(server, _)| server).collect();
        if turned {
            servers.reverse();
        }
        servers.push(bad.good().url());
        cases.push(servers);
    }
    at_once(cases.len(), |number| {
        let (servers, container) = (&cases[number], format!("c{number}"));
        let result = within(BOUND, || fresh(servers, "ADD", &container, &json!({}))).success();
        let result = given(&result);
        let again = fresh(servers, "ADD", &container, &json!({})).success();
        assert_eq!(again["ips"], result["ips"]);
        fresh(servers, "CHECK", &container, &given(&again)).success();
        fresh(servers, "STATUS", "", &json!({})).success();
        let known = if number % 2 == 0 { given(&again) } else { json!({}) };
        within(BOUND, || fresh(servers, "DEL", &container, &known)).success();
    });
    assert_eq!(holdings(bad.good()), [""; 0]);
}

#[test]
fn the_server_that_answered_serves_the_rest_and_is_asked_first_by_the_next_call() {
    let consul = stocked();
    let bad = [
        Parrot::saying("500 Internal Server Error", "", "No cluster leader"),
        Parrot::saying("404 Not Found", "", ""),
        Parrot::saying("307 Temporary Redirect", "Location: /\r\n", ""),
    ];
    for parrot in bad {
        let relay = Relay::to(&consul.endpoint());
        let node = Node::at(&[parrot.url.clone(), url(&relay.endpoint()), consul.url()]);
        let result = node.add("c1");
        assert_eq!(parrot.requests(), 1, "an ADD of three requests asked it once");
        assert!(relay.requests().len() >= 3);
        node.add("c1");
        node.check("c1", &result).success();
        node.call("STATUS", "").success();
        node.gc(&["c1"]).success();
        node.listed();
        node.del("c1");
        assert_eq!(parrot.requests(), 1, "nobody asked it again");
        // One that was never the first to be asked is not remembered either.
        let before = relay.requests().len();
        node.add("c2");
        assert!(relay.requests().len() > before);
        node.del("c2");
    }
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn every_verb_remembers_who_answered() {
    let consul = stocked();
    for verb in ["STATUS", "ADD", "DEL", "CHECK"] {
        let silent = Silent::listen();
        let node = Node::at(&[url(&silent.endpoint()), consul.url()]);
        let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
        let first = node.call_with(verb, "c1", &known);
        let asked = silent.connections();
        assert!(asked > 0, "{verb} {first:?}");
        node.call("STATUS", "").success();
        // A CHECK of what is not held fails, and a DEL of what is not held changes nothing.
        if ["STATUS", "ADD"].contains(&verb) {
            assert_eq!(silent.connections(), asked, "{verb}");
        }
        let known = node.add("c1");
        let asked = silent.connections();
        node.check("c1", &known).success();
        node.del_known("c1", &known).success();
        assert_eq!(silent.connections(), asked, "{verb}");
    }
}

#[test]
fn a_server_that_is_named_no_more_is_not_asked() {
    let (one, other) = (stocked(), stocked());
    let mut node = Node::at(&[refused(), one.url()]);
    node.add("c1");
    node.store["consul_servers"] = json!([other.url()]);
    // It is another store, and the node says so.
    assert_eq!(node.call("ADD", "c2").failure().0, 11);
    assert_eq!(holdings(&other), [""; 0]);
    assert_eq!(holdings(&one).len(), 2);
}

/// The requests of a call of a node that remembers nothing.
fn requests_of(consul: &Consul, verb: &str, container: &str, known: &Value) -> usize {
    let relay = Relay::to(&consul.endpoint());
    fresh(&[url(&relay.endpoint())], verb, container, known).success();
    relay.requests().len()
}

#[test]
fn a_server_that_dies_within_a_call_is_followed_by_the_next() {
    let consul = stocked();
    let node = Node::of(&consul);
    let held = node.add("held");
    let longest = requests_of(&consul, "ADD", "c0", &json!({}));
    node.del("c0");
    assert!(longest >= 3, "{longest}");
    for answered in 0..longest {
        let dies = || {
            let relay = Relay::to(&consul.endpoint());
            relay.next((0..answered).map(|_| Fate::Pass).chain(vec![Fate::Refuse; 50]));
            [url(&relay.endpoint()), consul.url()]
        };
        let result = fresh(&dies(), "ADD", "c1", &json!({})).success();
        let held_now: Vec<String> = books(&consul).keys().map(ToString::to_string).collect();
        assert_eq!(held_now, [addresses(&held), addresses(&result)].concat(), "{answered}");
        fresh(&dies(), "ADD", "c1", &json!({})).success();
        fresh(&dies(), "CHECK", "c1", &given(&result)).success();
        fresh(&dies(), "STATUS", "", &json!({})).success();
        let known = if answered % 2 == 0 { given(&result) } else { json!({}) };
        fresh(&dies(), "DEL", "c1", &known).success();
        assert_eq!(books(&consul).len(), 1, "{answered}");
    }
}

#[test]
fn none_that_answers_is_told_with_each_server_and_its_reason() {
    let bad = Bad::start();
    let all = bad.all();
    let servers: Vec<String> = all.iter().map(|(server, _)| server.clone()).collect();
    let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
    at_once(VERBS.len(), |number| {
        let verb = VERBS[number];
        let node = Node::at(&servers);
        let outcome = within(BOUND, || node.call_with(verb, "c1", &known));
        let (code, text) = outcome.failure();
        assert_eq!(code, if verb == "STATUS" { 50 } else { 11 }, "{verb}: {text}");
        for (place, (server, words)) in all.iter().enumerate() {
            assert!(text.contains(&format!("{server}: ")), "{verb}: no {server} in {text}");
            let words = if place < 4 { "" } else { *words };
            assert!(text.contains(words), "{verb}: {words:?} is not in {text}");
        }
    });
    assert_eq!(holdings(bad.good()), [""; 0]);
}

#[test]
fn a_server_is_warned_of_once_for_one_reason() {
    let servers = [refused(), refused()];
    let node = Node::at(&servers).with("timeout", "2s");
    let outcome = within(BOUND, || node.call("ADD", "c1"));
    for server in &servers {
        let warning = format!("{server} did not answer: ");
        assert_eq!(outcome.stderr.matches(&warning).count(), 1, "{outcome:?}");
    }
}

#[test]
fn servers_that_nobody_came_to_in_time_are_named_too() {
    let silent = [(); 4].map(|()| Silent::listen());
    let servers = silent.each_ref().map(|silent| url(&silent.endpoint()));
    for verb in VERBS {
        let node = Node::at(&servers).with("timeout", "2s");
        let (_, text) = within(BOUND, || node.call(verb, "c1")).failure();
        for server in &servers[..2] {
            assert!(text.contains(&format!("{server}: no answer within")), "{verb}: {text}");
        }
        for server in &servers[2..] {
            assert!(text.contains(&format!("{server}: not asked")), "{verb}: {text}");
        }
    }
}

#[test]
fn each_server_alone_is_given_up_within_timeout_with_its_reason() {
    let bad = Bad::start();
    let all = bad.all();
    let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
    at_once(all.len(), |number| {
        let (server, words) = &all[number];
        for verb in VERBS {
            let node = Node::at(std::slice::from_ref(server)).with("timeout", "1200ms");
            let outcome = within(BOUND, || node.call_with(verb, "c1", &known));
            let (code, text) = outcome.failure();
            // The server was asked for nothing (a Consul answers no change with 404 or 405), is silent,
            // or refuses.
            let expected = match number {
                0 | 1 | 7 | 8 if verb == "ADD" => 105,
                _ if verb == "STATUS" => 50,
                0..=6 => 11,
                _ => 103,
            };
            assert_eq!(code, expected, "{verb} {server}: {text}");
            assert!(text.contains(&format!("{server}: ")), "{verb}: {text}");
            assert!(text.contains(words), "{verb}: {words:?} is not in {text}");
        }
    });
}

#[test]
fn a_name_without_address_is_told() {
    let node = Node::at(&["http://no-such-host.invalid:8500".to_owned()]).with("timeout", "1s");
    let (code, text) = within(BOUND, || node.call("ADD", "c1")).failure();
    assert_eq!(code, 105, "{text}");
    assert!(text.contains("http://no-such-host.invalid:8500: "), "{text}");
}

#[test]
fn what_answers_and_is_no_consul_is_told_by_its_url() {
    for body in ["<html>It works!</html>", "{}", "[]", "null", "true", ""] {
        let parrot = Parrot::saying("200 OK", "", body);
        let node = Node::at(std::slice::from_ref(&parrot.url)).with("timeout", "1s");
        for verb in VERBS {
            let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
            let (code, text) = within(BOUND, || node.call_with(verb, "c1", &known)).failure();
            assert!([103, 50, 11].contains(&code), "{verb} {body:?}: {code} {text}");
            assert!(text.contains("Consul"), "{verb} {body:?}: {text}");
        }
    }
}

#[test]
fn what_is_no_consul_and_knows_no_page_is_not_taken_for_an_empty_store() {
    let consul = stocked();
    let held = Node::of(&consul);
    held.add("c1");
    let nothing = json!({"pools": null});
    let parrot = Parrot::saying("404 Not Found", "", "no such page");
    let both = || Node::at(&[parrot.url.clone(), consul.url()]);
    assert_eq!(both().listed(), [("10.1.0.1".to_owned(), "c1".to_owned())]);
    let who = both().typed(&["who", "10.1.0.1", "--json"]).success();
    assert_eq!(who[0]["containerID"], "c1");
    both().call_with("DEL", "c1", &nothing).success();
    assert_eq!(holdings(&consul), [""; 0]);
    // Alone it serves nobody.
    let alone = Node::at(std::slice::from_ref(&parrot.url)).with("timeout", "1s");
    for outcome in [alone.gc(&[]), alone.call_with("DEL", "c1", &nothing)] {
        let (code, text) = outcome.failure();
        assert!(code == 103 && text.contains("HTTP 404"), "{code}: {text}");
    }
    let typed = alone.typed(&["list", "--json"]);
    assert_ne!(typed.exit, Some(0), "{typed:?}");
}

#[test]
fn what_serves_nobody_is_an_error_of_the_configuration() {
    for (servers, words) in [
        (json!(null), "ipam.consul_servers: missing"),
        (json!([]), "ipam.consul_servers: empty list"),
        (json!("http://127.0.0.1:8500"), "ipam.consul_servers"),
        (json!(["127.0.0.1:8500"]), "ipam.consul_servers[0]: \"127.0.0.1:8500\""),
        (
            json!(["http://a:1", "unix:///run/consul.sock"]),
            "ipam.consul_servers[1]: \"unix:///run/consul.sock\" is a Unix socket",
        ),
        (json!(["http://a:1", 7]), "ipam.consul_servers"),
        (json!(["http://user:word@a:1"]), "ipam.consul_servers[0]: the URL contains a user name"),
    ] {
        let mut node = Node::at(&[]);
        node.ipam = json!({"consul_servers": servers});
        for verb in VERBS {
            let (code, text) = node.call(verb, "c1").failure();
            assert_eq!(code, 7, "{verb} {servers}: {text}");
            assert!(text.contains(words), "{verb} {servers}: {text}");
            assert!(!text.contains("user:word"), "{text}");
        }
    }
}

#[test]
fn a_proxy_of_the_environment_does_not_matter() {
    let consul = stocked();
    let node = Node::of(&consul);
    let silent = Silent::listen();
    let proxy = url(&silent.endpoint());
    for verb in ["ADD", "STATUS", "DEL"] {
        let mut command = node.command(verb, "c1");
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env(name, &proxy).env(name.to_uppercase(), &proxy);
        }
        ipam_testkit::world::wait(ipam_testkit::world::start(command, &node.network())).success();
    }
    assert_eq!(silent.connections(), 0);
}
