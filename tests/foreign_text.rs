//! What servers, annotations and foreign programs say reaches terminals, logs and errors without
//! anything that these obey: no control, no line of its own, no change of direction.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::{Command, Stdio};

use ipam_testkit::fake_grpc;
use ipam_testkit::fake_http::{Fake, Reply, answering, http};
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait, with};
use serde_json::{Value, json};

/// What erases a screen, paints, goes back to the beginning of a line, begins another one and turns
/// the direction.
const HOSTILE: &str = "\u{1b}[2J\u{1b}[31mFAKE\r\n[ERROR] forged\u{9b}0m\u{7f}\u{202e}\u{2028}";

/// A part of it that is left to see.
const LEFT: &str = "[31mFAKE";

/// A text for people holds the hostile one, and nothing but its line ends is obeyed.
#[track_caller]
fn assert_visible(text: &str, what: impl std::fmt::Debug) {
    assert!(text.contains(LEFT), "{what:?} does not show it: {text:?}");
    assert_harmless(text, what);
}

#[track_caller]
fn assert_harmless(text: &str, what: impl std::fmt::Debug) {
    let obeyed = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(obeyed), "{what:?}: {text:?}");
    assert!(text.lines().all(|line| !line.starts_with("[ERROR] forged")), "{what:?}: {text}");
}

/// The error on stdout, its message and its details, and what is on stderr.
#[track_caller]
fn assert_failure_visible(outcome: Outcome, what: &str) {
    assert_harmless(&outcome.stderr, what);
    let (_, text) = outcome.failure();
    assert_visible(&text, what);
    assert!(!text.contains('\n'), "{what}: {text:?}");
}

/// An API server with one node, whose annotation `example.com/ipam` has this text.
fn node_with(annotation: &str) -> Fake {
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "n", "annotations": {"example.com/ipam": annotation}},
    });
    ok(&node)
}

/// A server that answers everything with this.
fn ok(answer: &Value) -> Fake {
    let body = answer.to_string();
    answering(move |_, _| {
        Reply::Say(format!(
            "HTTP/1.1 200 OK\r\nX-Consul-Index: 1\r\nX-Consul-KnownLeader: true\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    })
}

/// A chain of `ipam-ds-node-annotation` and our allocator, for that node.
fn annotated(world: &World, server: &Fake) -> Value {
    world.install(&binary("ipam-ds-node-annotation")).install(&binary("ipam-da-local"));
    let kubeconfig = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
    });
    fs::write(world.path("kubeconfig"), kubeconfig.to_string()).unwrap();
    let mut network = world.network(json!(["ipam-ds-node-annotation", "ipam-da-local"]));
    let settings = json!({
        "annotation": "example.com/ipam", "nodeName": "n", "cacheTtl": "0s",
        "kubeconfig": world.path("kubeconfig"), "verbose": true,
    });
    network["ipam"].as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    network["ipam"].as_object_mut().unwrap().remove("dataDir");
    network
}

#[test]
fn an_annotation_in_an_error() {
    let ranges = json!([[{"subnet": "10.1.2.0/24"}]]);
    for settings in [
        json!({"ranges": ranges, "rangeRules": HOSTILE}),
        json!({"ranges": ranges, "resolvConf": format!("/nowhere/{HOSTILE}")}),
        json!({"ranges": [[{"subnet": HOSTILE}]]}),
        json!({"ranges": ranges, HOSTILE: 1, "dataDir": format!("/{HOSTILE}")}),
    ] {
        let (world, host) = (World::new(), Host::new());
        let network = annotated(&world, &node_with(&settings.to_string()));
        let outcome = host.call(&world, "ADD", "c1", &network);
        assert_visible(&outcome.stderr, &settings);
        assert_failure_visible(outcome, &settings.to_string());
        for program in ["ipam-delegated", "ipam-ds-node-annotation"] {
            let log = fs::read_to_string(host.path(&format!("/var/log/cni/{program}.log")));
            assert_visible(&log.unwrap(), program);
        }
    }
}

#[test]
fn an_annotation_in_the_log_that_the_hosts_file_names() {
    let (world, host) = (World::new(), Host::new());
    let hostile = json!({"ranges": [[{"subnet": HOSTILE}]]}).to_string();
    let mut network = annotated(&world, &node_with(&hostile));
    network["ipam"]["annotation"] = "example.com/ipam".into();
    let conf = json!({"log": "/var/log/cni/annotation.log"}).to_string();
    fs::write(host.path("/etc/cni/node-annotation.conf"), conf).unwrap();
    host.call(&world, "ADD", "c1", &network).failure();
    network["ipam"]["annotation"] = HOSTILE.into();
    host.call(&world, "ADD", "c1", &network).failure();
    let log = fs::read_to_string(host.path("/var/log/cni/annotation.log")).unwrap();
    assert_visible(&log, "the log");
    assert_eq!(log.lines().count(), 2, "{log}");
}

#[test]
fn names_of_pools_for_people() {
    let world = World::new();
    let pools = json!([{"name": HOSTILE, "ranges": [{"subnet": "10.1.2.0/28"}]}]);
    world.selector("ipam-ds-x", &pools).install(&binary("ipam-da-local"));
    let network = world.network(json!(["ipam-ds-x", "ipam-da-local"]));
    world.conflist("10-net.conflist", &network);
    world.call("ADD", "c1", &network).success();
    for words in [&["pools", "net"][..], &["list", "net"], &["lint", "net"], &["explain", "net"]] {
        let outcome = world.typed(words);
        assert_visible(&outcome.stdout, words);
        assert_harmless(&outcome.stderr, words);
    }
    // The allocator itself, and rows for programs, which are exact.
    let mut alone = network.clone();
    alone["ipam"]["type"] = "ipam-da-local".into();
    alone["prevResult"] = json!({"cniVersion": "1.0.0", "pools": pools});
    let file = world.path("alone.conf");
    fs::write(&file, alone.to_string()).unwrap();
    for verb in ["pools", "list", "lint"] {
        let typed = |more: &[&str]| {
            let mut command = Command::new(binary("ipam-da-local"));
            command.args([verb, "--config"]).arg(&file).args(more);
            wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        assert_visible(&typed(&[]).stdout, verb);
        if verb != "lint" {
            assert_eq!(typed(&["--json"]).success()[0]["pool"], HOSTILE, "{verb}");
        }
    }
}

#[test]
fn a_message_of_etcd() {
    let server = fake_grpc::refusing(8, &format!("etcdserver: mvcc: {HOSTILE}"));
    let world = World::new();
    world.install(&binary("ipam-da-etcd"));
    let mut network = world.network(json!(["ipam-da-etcd"]));
    network["ipam"]["etcd"] = json!({"endpoints": [server], "timeout": "300ms"});
    network["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/24"}]]);
    let outcome = world.call("ADD", "c1", &network);
    assert_visible(&outcome.stderr, "stderr");
    assert_failure_visible(outcome, "the error");
}

#[test]
fn a_key_of_consul() {
    let pair = json!([{"Key": format!("ipam/blue/{HOSTILE}"), "Value": "%", "Flags": 0,
        "LockIndex": 0, "CreateIndex": 1, "ModifyIndex": 1}]);
    let server = ok(&pair);
    let world = World::new();
    world.install(&binary("ipam-da-consul"));
    let network = world.network(json!(["ipam-da-consul"]));
    let network = with(&network, "consul_servers", json!([server.url]));
    let network = with(&network, "pools", json!([{"name": "blue"}]));
    world.conflist("10-net.conflist", &network);
    let outcome = world.typed(&["list", "net"]);
    assert_visible(&[outcome.stdout, outcome.stderr].concat(), "list");
}

#[test]
fn an_entry_of_kubernetes() {
    let pool = json!({
        "kind": "IPPool", "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
        "metadata": {"name": "10.1.2.0-24", "uid": "u", "resourceVersion": "7"},
        "spec": {"range": "10.1.2.0/24", "allocations": {
            HOSTILE: {"id": HOSTILE}, "5": {"id": HOSTILE, "podref": HOSTILE, "ifname": HOSTILE},
        }},
    });
    let reservations = json!({
        "kind": "OverlappingRangeIPReservationList", "metadata": {},
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
        "items": [{"metadata": {"name": HOSTILE}, "spec": {"podref": HOSTILE}}],
    });
    let server = answering(move |request, _| {
        let is_list = request.contains("reservations?");
        Reply::Say(http(200, &(if is_list { &reservations } else { &pool }).to_string()))
    });
    let world = World::new();
    world.install(&binary("ipam-da-kube"));
    let kubeconfig = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
    });
    fs::write(world.path("kubeconfig"), kubeconfig.to_string()).unwrap();
    let network = world.network(json!(["ipam-da-kube"]));
    let network = with(&network, "kube", json!({"kubeconfig": world.path("kubeconfig")}));
    let network = with(&network, "ranges", json!([[{"subnet": "10.1.2.0/24"}]]));
    world.conflist("10-net.conflist", &network);
    for words in [&["list", "net"][..], &["lint", "net"]] {
        let outcome = world.typed(words);
        assert_visible(&[outcome.stdout, outcome.stderr].concat(), words);
    }
}

#[test]
fn what_foreign_programs_say() {
    let world = World::new();
    let error = json!({"cniVersion": "1.0.0", "code": 7, "msg": HOSTILE, "details": HOSTILE});
    world.answering("ipam-da-evil", "10.0.0.2/24");
    for verb in ["list", "pools", "release", "lint"] {
        world.answer("ipam-da-evil", verb, &error);
    }
    let network = world.network(json!(["ipam-da-evil"]));
    world.conflist("10-net.conflist", &network);
    for words in [&["release", "net", "10.0.0.2", "--yes"][..], &["list", "net"], &["pools", "net"]]
    {
        let outcome = world.typed(words);
        assert_eq!(outcome.exit, Some(1), "{outcome:?}");
        assert_visible(&outcome.stderr, words);
    }
    // An error on STATUS, which lint tells, and on ADD, with words on stderr, where lines stay lines.
    fs::write(world.path("error"), error.to_string()).unwrap();
    fs::write(world.path("words"), format!("one\n\ttwo {}\nthree\n", HOSTILE.replace('\n', "")))
        .unwrap();
    let (error, words) = (world.path("error"), world.path("words"));
    let script =
        format!("cat >/dev/null; cat '{}' >&2; cat '{}'; exit 1", words.display(), error.display());
    world.program("ipam-da-evil", &format!("#!/bin/sh\n{script}\n"));
    let outcome = world.typed(&["lint", "net"]);
    assert_visible(&outcome.stdout, "lint");
    let outcome = wait(start(world.command("ADD", "c1"), &network));
    assert!(outcome.stderr.contains("one\n\ttwo \\u{1b}[2J"), "{outcome:?}");
    assert_visible(&outcome.stderr.replace('\t', ""), "stderr");
    let (_, text) = outcome.failure();
    assert_visible(&text, "the error");
}
