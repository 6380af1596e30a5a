//! What becomes of calls with fewer rights than all.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use ipam_testkit::consul::Consul;
use ipam_testkit::node::{VERBS, addresses, at_once, given};
use ipam_testkit::world::Outcome;
use serde_json::{Value, json};

use common::Node;
use common::rights::{ALL, assert_failed, assert_works, guarded, with_rules, with_token};
use common::store::{books, everything, holdings, targets};

/// What passcod needs for one pool.
const POOL_ALONE: &str = r#"
    key "ipam/" { policy = "read" }
    key "ipam/blue" { policy = "read" }
    key_prefix "ipam/blue/" { policy = "write" }
"#;

const OWNERS: &str = "ipam/.owners/";

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
            let words = format!("may not read the key {key}");
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
        assert_failed(outcome, verb, 103, &["the Consul token may not write the key ipam/"]);
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
    // Before the ADDs: after a lost race they choose random addresses, which may be this one.
    consul.put("ipam/blue/10.1.0.77", r#"{"target":"of-passcod"}"#);
    for container in ["kept", "stale-1", "stale-2"] {
        node.add(container);
        other.add(&format!("other-{container}"));
    }
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
    let expected = ["kept", "of-passcod", "other-kept", "other-stale-1", "other-stale-2"];
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
    node.store["consul"]["token"] = all.secret.as_str().into();
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
    node.store["consul"]["token"] = few.secret.as_str().into();
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
    node.store["consul"]["token"] = all.secret.as_str().into();
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
    at_once(nodes.len(), |number| {
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
        key_prefix "ipam/blue" { policy = "read" }
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
