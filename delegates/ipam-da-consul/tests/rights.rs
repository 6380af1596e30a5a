//! Tokens: where they come from, that nobody sees them, and what becomes of calls with fewer rights.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::consul::{Consul, Relay, Token};
use common::store::{books, everything, holdings, targets};
use common::support::{Host, Outcome, World, binary, start, wait};
use common::{Node, POOL, PROGRAM, SUBNET, VERBS, addresses, define, given};
use serde_json::{Value, json};

const ALL: &str = r#"key_prefix "ipam/" { policy = "write" }"#;

/// What the ancestor needs for one pool.
const POOL_ALONE: &str = r#"
    key "ipam/" { policy = "read" }
    key "ipam/blue" { policy = "read" }
    key_prefix "ipam/blue/" { policy = "write" }
"#;

const OWNERS: &str = "ipam/.owners/";

/// A server with ACLs by which nothing is allowed, and a pool with its folders.
fn guarded() -> Consul {
    let consul = Consul::builder().acl().start();
    define(&consul, POOL, SUBNET);
    consul.put("ipam/", "");
    consul.put("ipam/blue/", "");
    consul
}

/// A node with a token for these rules.
fn with_rules(consul: &Consul, rules: &str) -> Node {
    with_token(consul, &consul.create_token(rules))
}

fn with_token(consul: &Consul, token: &Token) -> Node {
    Node::of(consul).with("token", token.secret.as_str())
}

/// An attachment's life: every verb succeeds and nothing is left.
#[track_caller]
fn assert_works(node: &Node) {
    let result = node.add("c1");
    assert_eq!(addresses(&node.add("c1")), addresses(&result));
    node.check("c1", &result).success();
    node.call("STATUS", "").success();
    node.del_known("c1", &result).success();
    node.add("c1");
    node.del("c1");
    assert!(node.listed().is_empty());
}

/// Fails with a code (of STATUS 50), and these words.
#[track_caller]
fn assert_failed(outcome: Outcome, verb: &str, code: u64, words: &[&str]) {
    let (told, text) = outcome.failure();
    assert_eq!(told, if verb == "STATUS" && code != 7 { 50 } else { code }, "{verb}: {text}");
    for word in words {
        assert!(text.contains(word), "{verb}: {word:?} is not in {text}");
    }
}

fn started(mut command: Command, node: &Node) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start(command, &node.network()))
}

#[test]
fn a_token_comes_from_the_configuration_a_file_or_the_environment() {
    let consul = guarded();
    let token = consul.create_token(ALL).secret;
    assert_works(&Node::of(&consul).with("token", token.as_str()));
    let folder = World::new();
    let file = folder.path("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    let file = file.to_str().unwrap().to_owned();
    assert_works(&Node::of(&consul).with("tokenFile", file.as_str()));
    let node = Node::of(&consul);
    for (name, value) in [("CONSUL_HTTP_TOKEN", &token), ("CONSUL_HTTP_TOKEN_FILE", &file)] {
        for verb in ["ADD", "STATUS", "DEL"] {
            let mut command = node.command(verb, "c1");
            command.env(name, value);
            started(command, &node).success();
        }
        // The configuration goes before the environment.
        let own = Node::of(&consul).with("token", token.as_str());
        let mut command = own.command("STATUS", "");
        command.env("CONSUL_HTTP_TOKEN", "another").env("CONSUL_HTTP_TOKEN_FILE", "/nowhere");
        started(command, &own).success();
        assert_eq!(holdings(&consul), [""; 0], "{name}");
    }
    for verb in VERBS {
        assert_failed(node.call(verb, "c1"), verb, 103, &[]);
    }
}

#[test]
fn a_token_that_cannot_be_used_is_an_error_that_names_its_place() {
    let consul = guarded();
    let node = || Node::of(&consul);
    let folder = World::new();
    let file = |name: &str, content: &str| {
        fs::write(folder.path(name), content).unwrap();
        folder.path(name).to_str().unwrap().to_owned()
    };
    let (empty, lines) = (file("empty", "\n"), file("lines", "one\ntwo\n"));
    for (node, words) in [
        (
            node().with("tokenFile", "/nowhere/token"),
            "ipam.consul.tokenFile: /nowhere/token cannot be read".to_owned(),
        ),
        (
            node().with("tokenFile", empty.as_str()),
            format!("ipam.consul.tokenFile: {empty}: empty"),
        ),
        (
            node().with("tokenFile", lines.as_str()),
            format!("ipam.consul.tokenFile: {lines}: holds a line break"),
        ),
        (node().with("token", "a\nb"), "ipam.consul.token: holds a line break".to_owned()),
        (
            node().with("token", "x").with("tokenFile", lines.as_str()),
            "ipam.consul.token: given together with tokenFile".to_owned(),
        ),
        (node().with("namespace", "blue"), "ipam.consul.namespace".to_owned()),
        (node().with("partition", "blue"), "ipam.consul.partition".to_owned()),
        (node().with("nameSpace", "blue"), "nameSpace".to_owned()),
        (node().with("timeout", "soon"), "ipam.consul.timeout".to_owned()),
    ] {
        for verb in VERBS {
            assert_failed(node.call(verb, "c1"), verb, 7, &[&words]);
        }
    }
    let token = consul.create_token(ALL).secret;
    for (key, value) in [("namespace", ""), ("namespace", "default"), ("partition", "default")] {
        assert_works(&Node::of(&consul).with("token", token.as_str()).with(key, value));
    }
}

#[test]
fn a_datacenter_is_named_and_an_unknown_one_told() {
    let consul = guarded();
    let token = consul.create_token(ALL).secret;
    assert_works(&Node::of(&consul).with("token", token.as_str()).with("datacenter", "dc1"));
    let node = Node::of(&consul).with("token", token.as_str()).with("timeout", "1s");
    let node = node.with("datacenter", "dc9");
    for verb in VERBS {
        let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
        let words = [consul.url(), "No path to datacenter".into(), "ipam.consul.datacenter".into()];
        let words = words.each_ref().map(String::as_str);
        assert_failed(node.call_with(verb, "c1", &known), verb, 11, &words);
    }
    // What could be more of the query is none.
    let node = Node::of(&consul).with("token", token.as_str()).with("datacenter", "dc1&stale");
    assert_ne!(node.with("timeout", "1s").call("STATUS", "").exit, Some(0));
}

#[test]
fn an_unknown_token_is_told_by_every_verb() {
    let consul = guarded();
    let before = everything(&consul);
    let ended = consul.create_token(ALL);
    consul.revoke(&ended);
    for secret in ["no-such-token", ended.secret.as_str()] {
        let node = Node::of(&consul).with("token", secret);
        let all = VERBS.map(|verb| (verb, node.call(verb, "c1")));
        for (verb, outcome) in all.into_iter().chain([("GC", node.gc(&[]))]) {
            assert!(!outcome.stdout.contains(secret) && !outcome.stderr.contains(secret));
            let words = [consul.url(), "ACL not found".into(), "look at token or tokenFile".into()];
            assert_failed(outcome, verb, 103, &words.each_ref().map(String::as_str));
        }
        let typed = node.typed(&["list", "--json"]);
        assert_ne!(typed.exit, Some(0), "{typed:?}");
    }
    assert_eq!(everything(&consul), before);
}

#[test]
fn without_any_right_no_verb_finds_an_empty_pool() {
    let consul = guarded();
    let owner = with_rules(&consul, ALL);
    let result = owner.add("c1");
    let elsewhere = consul.create_token(r#"key_prefix "other/" { policy = "write" }"#);
    let mut found: Vec<String> = Vec::new();
    for folders in [true, false] {
        if !folders {
            consul.delete("ipam/");
            consul.delete("ipam/blue/");
        }
        let before = everything(&consul);
        // As nobody, too.
        for token in [Some(&elsewhere), None] {
            let node =
                || token.map_or_else(|| Node::of(&consul), |token| with_token(&consul, token));
            let mut calls: Vec<(String, Outcome)> = Vec::new();
            for verb in VERBS {
                calls.push((verb.to_owned(), node().call(verb, "c1")));
            }
            // With and without any hint at what there is.
            let no_pools = json!({"pools": null});
            for known in [given(&result), json!({"ips": result["ips"]}), no_pools] {
                calls.push((format!("DEL {known}"), node().call_with("DEL", "c1", &known)));
            }
            calls.push(("CHECK of a result".to_owned(), node().check("c1", &result)));
            calls.push(("GC".to_owned(), node().gc(&[])));
            for words in ["list --json", "pools --json", "who 10.1.0.1 --json"] {
                let typed = node().typed(&words.split(' ').collect::<Vec<_>>());
                calls.push((words.to_owned(), typed));
            }
            // No answer is "there is nothing".
            for (call, outcome) in calls {
                if outcome.exit == Some(0) || outcome.stdout.contains("\"code\":104") {
                    let who = token.map_or("nobody", |_| "a token for elsewhere");
                    found.push(format!("{who}, folders: {folders}: {call}: {outcome:?}"));
                }
            }
            assert_eq!(everything(&consul), before);
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_pool_that_cannot_be_read_in_part_gives_nothing_that_is_held() {
    let consul = guarded();
    let owner = with_rules(&consul, ALL);
    let held: Vec<String> = (0..4).map(|n| owner.address(&format!("c{n}"))).collect();
    let before = everything(&consul);
    let definition = r#"key_prefix "ipam/blue/" { policy = "write" } key_prefix "ipam/.owners/" { policy = "write" }"#;
    let folder =
        r#"key "ipam/blue" { policy = "read" } key_prefix "ipam/.owners/" { policy = "write" }"#;
    for (rules, key) in [(definition, "ipam/blue"), (folder, "ipam/blue/")] {
        for _ in 0..2 {
            let node = with_rules(&consul, rules);
            let words = format!("read {key}");
            assert_failed(node.call("ADD", "new"), "ADD", 103, &[&words]);
            assert_eq!(everything(&consul), before, "{rules}");
        }
    }
    // Single addresses.
    let some = format!("{ALL} key \"ipam/blue/{}\" {{ policy = \"deny\" }}", held[1]);
    let block = format!("{ALL} key_prefix \"ipam/blue/10.1.0.\" {{ policy = \"deny\" }}");
    for rules in [some, block] {
        let node = with_rules(&consul, &rules);
        for number in 0..6 {
            let container = format!("new{number}");
            let outcome = node.call("ADD", &container);
            if outcome.exit == Some(0) {
                let given = addresses(&outcome.success());
                assert!(!held.contains(&given[0]), "{given:?} is held");
            } else {
                assert_failed(outcome, "ADD", 103, &["ipam/blue/10.1.0."]);
            }
            owner.del(&container);
        }
        let target = targets(&consul);
        for (number, address) in held.iter().enumerate() {
            assert_eq!(target[&address.parse().unwrap()], format!("c{number}"));
        }
    }
}

#[test]
fn a_token_that_may_only_read_changes_nothing() {
    let consul = guarded();
    let owner = with_rules(&consul, ALL);
    let result = owner.add("c1");
    let before = everything(&consul);
    let reader = || with_rules(&consul, r#"key_prefix "ipam/" { policy = "read" }"#);
    for (verb, container, known) in [
        ("ADD", "new", json!({})),
        ("ADD", "c1", json!({})),
        ("DEL", "c1", json!({})),
        ("DEL", "c1", given(&result)),
        ("STATUS", "", json!({})),
    ] {
        let outcome = reader().call_with(verb, container, &known);
        assert_failed(outcome, verb, 103, &["does not let this token write ipam/"]);
        assert_eq!(everything(&consul), before, "{verb} {container}");
    }
    reader().check("c1", &result).success();
    assert_eq!(reader().listed().len(), 1);
    let typed = reader().typed(&["release", "--owner", "c1", "--yes"]);
    assert_ne!(typed.exit, Some(0), "{typed:?}");
    assert_eq!(everything(&consul), before);
}

/// No key of ours stands beside the pool.
#[track_caller]
fn assert_no_index(consul: &Consul) {
    assert_eq!(consul.keys(OWNERS), [""; 0]);
}

#[test]
fn a_token_for_the_pool_alone_gives_checks_and_releases() {
    let consul = guarded();
    let token = consul.create_token(POOL_ALONE);
    let node = with_token(&consul, &token);
    assert_works(&node);
    // One that remembers nothing.
    assert_works(&with_token(&consul, &token));
    let result = node.add("c1");
    let other = with_token(&consul, &token).named("node-2");
    let others = other.add("c2");
    assert_ne!(addresses(&result), addresses(&others));
    // A process that knows nothing of the owner.
    let fresh = || with_token(&consul, &token);
    for _ in 0..2 {
        assert_eq!(addresses(&fresh().add("c1")), addresses(&result));
        assert_eq!(addresses(&node.add("c1")), addresses(&result));
    }
    let result = node.add("c1");
    fresh().check("c1", &result).success();
    fresh().check("c1", &json!({"ips": result["ips"]})).success();
    assert_failed(fresh().check("c1", &others), "CHECK", 104, &[]);
    let rows = fresh().listed();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let who = fresh().typed(&["who", &addresses(&others)[0], "--json"]).success();
    assert_eq!((&who[0]["node"], &who[0]["containerID"]), (&json!("node-2"), &json!("c2")));
    assert_no_index(&consul);
    // By the record, by the result, with the pools alone, and with nothing at all.
    let nothing = json!({"pools": null});
    for known in [given(&result), json!({"ips": result["ips"]}), json!({}), nothing] {
        node.add("c1");
        let known = if known["leases"].is_null() { known } else { given(&node.add("c1")) };
        for node in [&fresh(), &node] {
            node.call_with("DEL", "c1", &known).success();
            let left: Vec<String> = targets(&consul).into_values().collect();
            assert_eq!(left, ["c2"], "{known}");
        }
    }
    other.check("c2", &others).success();
    other.del_known("c2", &others).success();
    assert_no_index(&consul);
    assert_eq!(holdings(&consul), [""; 0]);
}

/// Makes all allocations older than any grace.
fn age(consul: &Consul) {
    for entry in consul.list("ipam/blue/").iter().filter(|entry| !entry.key.ends_with('/')) {
        let mut value: Value = serde_json::from_str(&entry.value).unwrap();
        value["time"] = (value["time"].as_u64().unwrap() - 3_600_000).into();
        consul.put(&entry.key, &value.to_string());
    }
}

#[test]
fn gc_without_the_index_releases_what_is_stale_of_its_own_node() {
    let consul = guarded();
    let token = consul.create_token(POOL_ALONE);
    let node = with_token(&consul, &token);
    let other = with_token(&consul, &token).named("node-2");
    for container in ["kept", "stale-1", "stale-2"] {
        node.add(container);
        other.add(&format!("other-{container}"));
    }
    consul.put("ipam/blue/10.1.0.77", r#"{"target":"of-the-ancestor"}"#);
    node.gc(&["kept"]).success();
    assert_eq!(targets(&consul).len(), 7, "they are too young");
    let bare = consul.entry("ipam/blue/10.1.0.77").unwrap();
    consul.delete("ipam/blue/10.1.0.77");
    age(&consul);
    consul.put(&bare.key, &bare.value);
    // As one that has not learned yet that it may have no index.
    with_token(&consul, &token).gc(&["kept"]).success();
    let mut left: Vec<String> = targets(&consul).into_values().collect();
    left.sort();
    let expected = ["kept", "of-the-ancestor", "other-kept", "other-stale-1", "other-stale-2"];
    assert_eq!(left, expected);
    node.gc(&["kept"]).success();
    assert_eq!(targets(&consul).len(), 5);
    assert_no_index(&consul);
}

#[test]
fn rights_granted_later_bring_the_index_and_rights_taken_away_cost_no_address() {
    let consul = guarded();
    let (few, all) = (consul.create_token(POOL_ALONE), consul.create_token(ALL));
    let mut node = with_token(&consul, &few);
    let results = ["c1", "c2", "c3"].map(|container| node.add(container));
    assert_no_index(&consul);
    let forget = |node: &Node| {
        // Ten minutes later it is tried again.
        let text = fs::read_to_string(node.memory()).unwrap();
        let mut known: Value = serde_json::from_str(text.trim().lines().last().unwrap()).unwrap();
        assert!(known["unindexed"].is_u64(), "{text}");
        known["unindexed"] = 1.into();
        fs::write(node.memory(), format!("{known}\n")).unwrap();
    };
    node.consul["token"] = all.secret.as_str().into();
    forget(&node);
    let again = node.add("c1");
    assert_eq!(addresses(&again), addresses(&results[0]));
    node.check("c1", &again).success();
    let more = node.add("c4");
    assert!(results.iter().all(|result| addresses(result) != addresses(&more)));
    assert_eq!(consul.keys(OWNERS).len(), 3, "two owners and the node's latest claim");
    node.check("c2", &results[1]).success();
    node.del_known("c2", &results[1]).success();
    node.del("c3");
    assert_eq!(books(&consul).len(), 2);
    // And taken away again.
    node.consul["token"] = few.secret.as_str().into();
    assert_eq!(addresses(&node.add("c1")), addresses(&again));
    let new = node.add("c5");
    assert!(addresses(&new) != addresses(&again) && addresses(&new) != addresses(&more));
    node.check("c4", &more).success();
    for (container, result) in [("c4", &more), ("c5", &new)] {
        node.del_known(container, result).success();
    }
    node.del("c1");
    assert_eq!(targets(&consul).len(), 0);
    // What the index still says of them is not believed.
    node.consul["token"] = all.secret.as_str().into();
    forget(&node);
    let fresh = with_token(&consul, &all);
    let taken = ["x1", "x2", "x3"].map(|container| fresh.address(container));
    for container in ["c1", "c4"] {
        let result = node.add(container);
        assert!(!taken.contains(&addresses(&result)[0]), "{result}");
        node.check(container, &result).success();
        node.del(container);
    }
    assert_eq!(targets(&consul).len(), 3);
}

#[test]
fn nodes_with_and_without_the_index_respect_each_other() {
    let consul = guarded();
    let (few, all) = (consul.create_token(POOL_ALONE), consul.create_token(ALL));
    let nodes: Vec<Node> = (0..4)
        .map(|n| with_token(&consul, [&few, &all][n % 2]).named(&format!("node-{n}")))
        .collect();
    common::at_once(nodes.len(), |number| {
        let node = &nodes[number];
        for round in 0..6 {
            let container = format!("c{round}");
            let result = node.add(&container);
            assert_eq!(addresses(&node.add(&container)), addresses(&result));
            if round % 2 == 0 {
                node.del(&container);
            }
        }
    });
    let targets = targets(&consul);
    assert_eq!(targets.len(), 12, "{targets:?}");
    for node in &nodes {
        ["c1", "c3", "c5"].iter().for_each(|container| node.del(container));
    }
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn folders_that_cannot_be_made_hinder_nothing() {
    let consul = guarded();
    let addresses_alone = r#"
        key "ipam/blue" { policy = "read" }
        key_prefix "ipam/blue/1" { policy = "write" }
    "#;
    let with_index = format!("{addresses_alone} key_prefix \"{OWNERS}\" {{ policy = \"write\" }}");
    for rules in [addresses_alone, &with_index] {
        consul.delete("ipam/");
        consul.delete("ipam/blue/");
        let node = with_rules(&consul, rules);
        let result = node.add("c1");
        assert_eq!(addresses(&node.add("c1")), addresses(&result), "{rules}");
        node.check("c1", &result).success();
        node.del_known("c1", &result).success();
        node.add("c1");
        node.del("c1");
        assert_eq!(holdings(&consul), [""; 0], "{rules}");
        let folders = ["ipam/", "ipam/blue/"].map(|key| consul.entry(key));
        assert_eq!(folders, [None, None]);
    }
    // A token that may make them does.
    with_rules(&consul, ALL).add("c1");
    assert!(["ipam/", "ipam/blue/"].iter().all(|key| consul.entry(key).is_some()));
}

/// Every file below a folder that holds a text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            found.extend(files_with(&path, text));
        } else if let Ok(content) = fs::read(&path)
            && content.windows(text.len()).any(|piece| piece == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_token_is_shown_to_nobody_and_stands_in_no_record() {
    let host = Host::new();
    host.settings(&json!({"verbose": true}));
    let consul = guarded();
    let (first, second) = (consul.create_token(ALL), consul.create_token(ALL));
    let weak = consul.create_token(r#"key_prefix "ipam/" { policy = "read" }"#);
    // A server that says again what it was told.
    let parrot = Relay::deciding(&consul.endpoint(), |request| {
        let token = request.header("x-consul-token").unwrap_or_default().to_owned();
        common::consul::Fate::Answer(400, format!("what is {token}?"))
    });
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-consul"]));
    network["ipam"]["consul_servers"] = json!([consul.url()]);
    network["ipam"]["pools"] = json!([{"name": POOL}]);
    let file = host.path("/etc/cni/token");
    fs::write(file, &first.secret).unwrap();
    let secrets = [&first.secret, &second.secret, &weak.secret];
    let mut told = String::new();
    let mut call = |verb: &str, container: &str, network: &Value, environment: Option<&str>| {
        let mut command = host.command(&world, verb, container);
        command.env("IPAM_DELEGATED_LOG", "debug");
        command.envs(environment.map(|token| ("CONSUL_HTTP_TOKEN", token)));
        let outcome = wait(start(command, network));
        told.push_str(&outcome.stdout);
        told.push_str(&outcome.stderr);
        outcome
    };
    let with = |consul_section: Value, servers: &[String]| {
        let mut network = network.clone();
        network["ipam"]["consul"] = consul_section;
        network["ipam"]["consul_servers"] = json!(servers);
        network
    };
    let good = [consul.url()];
    let by_token = with(json!({"token": first.secret}), &good);
    let by_file = with(json!({"tokenFile": "/etc/cni/token"}), &good);
    let plain = with(json!({}), &good);
    call("ADD", "c1", &by_token, None).success();
    call("ADD", "c2", &by_file, None).success();
    call("ADD", "c3", &plain, Some(&first.secret)).success();
    // The record has the section of the ADD, with what it was given; nothing else has it.
    let recorded = world.record("c1").display().to_string();
    let mode = fs::metadata(&recorded).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(files_with(&world.path(""), &first.secret), [recorded]);
    // Where something goes wrong, more is told.
    let readable = with(json!({"token": weak.secret}), &good);
    assert_eq!(call("ADD", "c4", &readable, None).failure().0, 103);
    let parroted = with(
        json!({"token": weak.secret, "timeout": "1s"}),
        &[format!("http://{}", parrot.endpoint())],
    );
    assert_ne!(call("ADD", "c5", &parroted, None).exit, Some(0));
    consul.revoke(&first);
    assert_eq!(call("ADD", "c6", &by_token, None).failure().0, 103);
    assert_eq!(call("DEL", "c1", &by_token, None).failure().0, 103);
    // The token of the call goes before the record's, which has none.
    let rotated = with(json!({"token": second.secret}), &good);
    for container in ["c1", "c4", "c6"] {
        call("DEL", container, &rotated, None).success();
    }
    fs::write(host.path("/etc/cni/token"), &second.secret).unwrap();
    call("DEL", "c2", &by_file, None).success();
    call("DEL", "c3", &plain, Some(&second.secret)).success();
    assert_eq!(holdings(&consul), [""; 0]);
    call("DEL", "c5", &parroted, None);
    for secret in secrets {
        assert!(!told.contains(secret), "{told}");
        let files = files_with(&world.path(""), secret);
        assert!(files.iter().all(|file| file.contains("/attachments/")), "{files:?}");
        assert_eq!(files_with(&host.path("/var/log/cni"), secret), [""; 0]);
        assert_eq!(files_with(&host.path("/var/lib/cni"), secret), [""; 0]);
    }
    let log = fs::read_to_string(host.path("/var/log/cni/ipam-da-consul.log")).unwrap();
    assert!(log.contains("v1/txn") && log.contains("what is …?"), "{log}");
}
