//! Tokens: where they come from, and that nobody sees them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ipam_testkit::consul::{Fate, Relay};
use ipam_testkit::node::VERBS;
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use common::rights::{ALL, assert_failed, assert_works, guarded};
use common::store::{everything, holdings};
use common::{Node, POOL, PROGRAM};

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
            format!("ipam.consul.tokenFile: {lines}: contains a line break"),
        ),
        (node().with("token", "a\nb"), "ipam.consul.token: contains a line break".to_owned()),
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
fn a_blank_token_is_ignored_with_a_warning() {
    let consul = guarded();
    let token = consul.create_token(ALL).secret;
    for blank in ["", " \n"] {
        let node = Node::of(&consul).with("token", blank);
        let mut command = node.command("STATUS", "");
        command.env("CONSUL_HTTP_TOKEN", &token);
        let outcome = started(command, &node);
        assert!(
            outcome.stderr.contains("ipam.consul.token: a blank value is ignored"),
            "{outcome:?}"
        );
        outcome.success();
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
            let words = [consul.url(), "ACL not found".into(), "correct token or tokenFile".into()];
            assert_failed(outcome, verb, 103, &words.each_ref().map(String::as_str));
        }
        let typed = node.typed(&["list", "--json"]);
        assert_ne!(typed.exit, Some(0), "{typed:?}");
    }
    assert_eq!(everything(&consul), before);
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
fn a_token_is_in_no_output_and_only_in_the_record() {
    let host = Host::new();
    host.settings(&json!({"verbose": true}));
    let consul = guarded();
    let (first, second) = (consul.create_token(ALL), consul.create_token(ALL));
    let weak = consul.create_token(r#"key_prefix "ipam/" { policy = "read" }"#);
    // A server that says again what it was told.
    let parrot = Relay::deciding(&consul.endpoint(), |request| {
        let token = request.header("x-consul-token").unwrap_or_default().to_owned();
        Fate::Answer(400, format!("what is {token}?"))
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
