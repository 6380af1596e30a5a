//! Records of a newer program, after a downgrade: what is skipped and kept, and what needs an upgrade.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use ipam_testkit::world::{Host, World, binary, start, wait, with, without};
use serde_json::{Value, json};

const STATE: &str = "/var/lib/cni/ipam-delegated";

/// A network whose state lies where a stripped DEL finds it.
fn network(world: &World) -> Value {
    without(&world.network(json!(["a"])), &["stateDir"])
}

/// What some runtimes make of a configuration before they call DEL.
fn stripped() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
}

/// A host with an attachment of `a`, and its record.
fn added() -> (World, Host, PathBuf) {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.call(&world, "ADD", "c1", &network(&world)).success();
    world.take_calls();
    let record = host.path(&format!("{STATE}/attachments/net/c1:eth0"));
    (world, host, record)
}

/// Rewrites each line of a record.
fn edit(record: &PathBuf, mut change: impl FnMut(&mut Value)) {
    let mut text = String::new();
    for line in fs::read_to_string(record).unwrap().lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        change(&mut line);
        text.push_str(&format!("{line}\n"));
    }
    fs::write(record, text).unwrap();
}

/// A record as a newer program may write it in the same format: a member in each event and in each
/// grant, and an event between all others.
fn newer(record: &PathBuf) {
    edit(record, |line| {
        line["later"] = json!({"of": line["event"]});
        for granted in line["gave"].as_array_mut().into_iter().flatten() {
            granted["later"] = json!("grant");
        }
    });
    let text = fs::read_to_string(record).unwrap();
    let between = "{\"event\":\"moved\",\"to\":[1.50]}\n";
    fs::write(record, text.replace('\n', &format!("\n{between}"))).unwrap();
}

#[test]
fn a_stripped_del_releases_what_a_newer_programs_record_holds() {
    let (world, host, record) = added();
    newer(&record);
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(world.held().is_empty() && !record.exists());
}

#[test]
fn members_and_events_of_newer_programs_outlive_a_compaction() {
    let (world, host, record) = added();
    newer(&record);
    world.full("b");
    let failing = without(&world.network(json!(["a", "b"])), &["stateDir"]);
    let failing = with(&failing, "fat", "x".repeat(4000));
    let mut longest = 0;
    for _ in 0..20 {
        host.call(&world, "ADD", "c1", &failing).failure();
        longest = longest.max(fs::metadata(&record).unwrap().len());
    }
    let text = fs::read_to_string(&record).unwrap();
    assert!((text.len() as u64) < longest, "it was compacted");
    for kept in [
        r#""later":{"of":"attempt"}"#,
        r#""later":{"of":"running"}"#,
        r#""later":{"of":"held"}"#,
        r#""later":"grant""#,
    ] {
        assert_eq!(text.matches(kept).count(), 1, "{kept}: {text}");
    }
    assert_eq!(text.matches(r#"{"event":"moved","to":[1.50]}"#).count(), 3, "{text}");
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert!(world.held().is_empty() && !record.exists());
}

/// A known event in a form that this program does not know.
const ONLY_NEWER: &str = "{\"event\":\"running\",\"delegates\":[{\"type\":\"b\"}]}\n";

/// Raises the format of a record, and adds an event whose meaning only the newer program knows.
fn raise_format(record: &PathBuf) {
    edit(record, |line| {
        if line["event"] == "attempt" {
            line["format"] = json!(2);
        }
    });
    let mut file = File::options().append(true).open(record).unwrap();
    file.write_all(ONLY_NEWER.as_bytes()).unwrap();
}

#[track_caller]
fn asks_for_an_upgrade(text: &str) {
    let record = format!("{STATE}/attachments/net/c1:eth0");
    let version = env!("CARGO_PKG_VERSION");
    for part in [
        format!("{record} has format 2, and ipam-delegated {version} reads formats up to 1"),
        "upgrade ipam-delegated".to_owned(),
    ] {
        assert!(text.contains(&part), "{text}");
    }
}

#[test]
fn a_record_of_a_higher_format_fails_every_verb_with_113_and_changes_nothing() {
    let (world, host, record) = added();
    raise_format(&record);
    let before = fs::read(&record).unwrap();
    let configured = network(&world);
    for (verb, network) in
        [("ADD", &configured), ("CHECK", &configured), ("DEL", &configured), ("DEL", &stripped())]
    {
        let (code, text) = host.call(&world, verb, "c1", network).failure();
        assert_eq!(code, 113, "{verb}: {text}");
        asks_for_an_upgrade(&text);
        assert_eq!(world.take_calls(), [""; 0], "{verb}");
    }
    assert_eq!(fs::read(&record).unwrap(), before);
    assert_eq!(ipam_testkit::world::names(record.parent().unwrap()), ["c1:eth0"]);
    // What the upgraded program makes of it.
    let text = String::from_utf8(before).unwrap();
    fs::write(&record, text.replace(ONLY_NEWER, "").replace("\"format\":2", "\"format\":1"))
        .unwrap();
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert!(world.held().is_empty() && !record.exists());
}

#[test]
fn gc_keeps_what_a_record_of_a_higher_format_may_hold() {
    let (world, host, record) = added();
    host.settings(&json!({"gcGrace": "0s"}));
    raise_format(&record);
    let before = fs::read(&record).unwrap();
    let mut network = network(&world);
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = json!([]);
    let mut command = host.command(&world, "GC", "");
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
        command.env_remove(variable);
    }
    let (code, text) = wait(start(command, &network)).failure();
    assert_eq!(code, 113, "{text}");
    asks_for_an_upgrade(&text);
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["a GC"]);
    let kept = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert_eq!(calls[0]["stdin"]["cni.dev/valid-attachments"], kept);
    assert_eq!(fs::read(&record).unwrap(), before);
}

/// What a verb for people prints, on stdout and stderr.
fn printed(host: &Host, words: &[&str]) -> String {
    let output = host.enter(binary("ipam-delegated")).args(words).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn the_verbs_for_people_leave_a_record_of_a_higher_format_and_ask_for_an_upgrade() {
    let (_world, host, record) = added();
    host.settings(&json!({"gcGrace": "0s"}));
    raise_format(&record);
    let before = fs::read(&record).unwrap();
    let attachments = printed(&host, &["attachments"]);
    asks_for_an_upgrade(&attachments);
    assert!(!attachments.contains("forget"), "{attachments}");
    let reap = printed(&host, &["reap", "--no-cache", "--yes"]);
    asks_for_an_upgrade(&reap);
    assert!(reap.contains("kept") && !reap.contains("forget"), "{reap}");
    asks_for_an_upgrade(&printed(&host, &["forget", "net", "c1", "--yes"]));
    assert_eq!(fs::read(&record).unwrap(), before);
}
