//! Records that say less than they should: of newer programs, on a disk that fails, and set aside.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use ipam_testkit::kills::strace;
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait, with, without};
use serde_json::{Value, json};

const STATE: &str = "/var/lib/cni/ipam-delegated";

/// A network whose state lies where a stripped DEL finds it.
fn network(world: &World, delegates: Value) -> Value {
    without(&world.network(delegates), &["stateDir"])
}

/// What some runtimes make of a configuration before they call DEL.
fn stripped() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
}

fn record(host: &Host, container: &str) -> PathBuf {
    host.path(&format!("{STATE}/attachments/net/{container}:eth0"))
}

fn records(host: &Host) -> Vec<String> {
    ipam_testkit::world::names(&host.path(&format!("{STATE}/attachments/net")))
}

fn append(path: PathBuf, text: &str) {
    File::options().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// The names of the files of an attachment.
fn files(host: &Host, container: &str) -> Vec<String> {
    let folder = host.path(&format!("{STATE}/attachments/net"));
    let mut files = ipam_testkit::world::names(&folder);
    files.retain(|name| name.starts_with(&format!("{container}:")));
    files.extend(ipam_testkit::world::names(&folder.join(container)));
    files
}

/// An attachment of `a` whose record was spoiled.
fn spoiled(world: &World, host: &Host) -> Value {
    world.allocator("a", "10.0.0.2/24");
    let network = network(world, json!(["a"]));
    host.call(world, "ADD", "c1", &network).success();
    append(record(host, "c1"), "rubbish\n");
    world.take_calls();
    network
}

#[test]
fn an_empty_line_in_a_record_is_skipped() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.call(&world, "ADD", "c1", &network(&world, json!(["a"]))).success();
    append(record(&host, "c1"), "\n\n{\"event\":\"failed\",\"time\":1}\n");
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert!(world.held().is_empty());
    assert_eq!(records(&host), [""; 0]);
}

#[test]
fn an_event_of_a_newer_program_is_skipped_and_outlives_a_compaction() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").full("b");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let later = "{ \"event\":\"moved\", \"to\":[1.50] }\n";
    append(world.record("c1"), later);
    let failing = with(&world.network(json!(["a", "b"])), "fat", "x".repeat(4000));
    let mut longest = 0;
    for _ in 0..20 {
        let outcome = world.call("ADD", "c1", &failing);
        assert!(!outcome.stderr.contains("cannot be read"), "{outcome:?}");
        outcome.failure();
        longest = longest.max(fs::metadata(world.record("c1")).unwrap().len());
    }
    let text = fs::read_to_string(world.record("c1")).unwrap();
    assert!((text.len() as u64) < longest, "it was compacted");
    assert_eq!(text.matches(later).count(), 1, "{text}");
    assert_eq!(world.state_of("c1"), "held");
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

/// A call whose reads of the record fail with an I/O error.
fn on_a_failing_disk(world: &World, verb: &str, network: &Value) -> Outcome {
    let mut command = world.command_of(&strace(), verb, "c1");
    command.arg("-o").arg(world.path("log")).arg("-P").arg(world.record("c1"));
    command.args(["-e", "inject=read:error=EIO"]).arg(binary("ipam-delegated"));
    wait(start(command, network))
}

#[test]
fn a_record_that_the_disk_does_not_give_is_error_113_and_stays() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("b", "10.0.1.2/24");
    world.call("ADD", "c1", &world.network(json!(["a"]))).success();
    world.take_calls();
    let now = world.network(json!(["b"]));
    for verb in ["DEL", "ADD", "CHECK"] {
        let (code, text) = on_a_failing_disk(&world, verb, &now).failure();
        assert_eq!(code, 113, "{verb}: {text}");
        assert!(text.contains("cannot read the attachment record"), "{text}");
        assert_eq!(world.take_calls(), [""; 0], "{verb}");
        assert_eq!(world.records(), ["c1:eth0"], "{verb}");
    }
    world.call("DEL", "c1", &now).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn a_stripped_del_fails_for_as_long_as_a_record_that_was_set_aside_lies_there() {
    let (world, host) = (World::new(), Host::new());
    let network = spoiled(&world, &host);
    for _ in 0..2 {
        let (code, text) = host.call(&world, "DEL", "c1", &stripped()).failure();
        assert_eq!(code, 113, "{text}");
        let aside = files(&host, "c1");
        assert!(aside.len() == 1 && aside[0].starts_with("eth0:unreadable-"), "{aside:?}");
        assert!(text.contains(&format!("{STATE}/attachments/net/c1/{}", aside[0])), "{text}");
        for advised in ["release net --owner c1/eth0 --yes", "forget net c1 eth0 --yes"] {
            assert!(text.contains(&format!("ipam-delegated {advised}")), "{text}");
        }
    }
    assert_eq!(world.held(), ["a-c1-eth0"]);
    // The chain as configured releases what the record may have named.
    host.call(&world, "DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(world.held().is_empty());
    assert_eq!(records(&host), [""; 0]);
    host.call(&world, "DEL", "c1", &stripped()).success();
}

#[test]
fn a_stripped_del_by_a_later_record_releases_it_and_still_names_the_one_that_was_set_aside() {
    let (world, host) = (World::new(), Host::new());
    spoiled(&world, &host);
    world.allocator("b", "10.0.1.2/24");
    host.call(&world, "ADD", "c1", &network(&world, json!(["b"]))).success();
    world.take_calls();
    let (code, text) = host.call(&world, "DEL", "c1", &stripped()).failure();
    assert_eq!(code, 113, "{text}");
    assert_eq!(world.take_calls(), ["b DEL"]);
    assert_eq!(world.held(), ["a-c1-eth0"]);
    let (code, text) = host.call(&world, "DEL", "c1", &stripped()).failure();
    assert_eq!(code, 113, "{text}");
}

#[test]
fn a_record_that_was_set_aside_stays_when_the_configured_chain_fails() {
    let (world, host) = (World::new(), Host::new());
    spoiled(&world, &host);
    world.delegate("a", "printf '{\"code\":103,\"msg\":\"away\"}'; exit 1");
    let network = network(&world, json!(["a"]));
    assert_eq!(host.call(&world, "DEL", "c1", &network).failure().0, 103);
    assert_eq!(host.call(&world, "DEL", "c1", &stripped()).failure().0, 113);
    assert_eq!(files(&host, "c1").len(), 1);
}

#[test]
fn an_add_after_a_record_was_set_aside_by_a_del_undoes_nothing_of_it() {
    let (world, host) = (World::new(), Host::new());
    spoiled(&world, &host);
    host.call(&world, "DEL", "c1", &stripped()).failure();
    world.full("b");
    for _ in 0..2 {
        host.call(&world, "ADD", "c1", &network(&world, json!(["a", "b"]))).failure();
        assert_eq!(world.take_calls(), ["a ADD", "b ADD"], "no undo");
    }
    assert_eq!(world.held(), ["a-c1-eth0"]);
}

#[test]
fn gc_keeps_what_an_unreadable_record_may_hold_and_leaves_the_record() {
    for is_set_aside in [false, true] {
        let (world, host) = (World::new(), Host::new());
        host.settings(&json!({"gcGrace": "0s"}));
        let mut network = spoiled(&world, &host);
        if is_set_aside {
            host.call(&world, "DEL", "c1", &stripped()).failure();
        }
        let before = files(&host, "c1");
        network["cniVersion"] = json!("1.1.0");
        network["cni.dev/valid-attachments"] = json!([]);
        let mut command = host.command(&world, "GC", "");
        for variable in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
            command.env_remove(variable);
        }
        wait(start(command, &network)).success();
        let calls = world.calls();
        assert_eq!(world.take_calls(), ["a GC"]);
        let kept = json!([{"containerID": "c1", "ifname": "eth0"}]);
        assert_eq!(calls[0]["stdin"]["cni.dev/valid-attachments"], kept, "{is_set_aside}");
        assert_eq!(files(&host, "c1"), before);
    }
}

#[test]
fn check_leaves_an_unreadable_record_in_its_place() {
    let (world, host) = (World::new(), Host::new());
    let network = spoiled(&world, &host);
    let outcome = host.call(&world, "CHECK", "c1", &network);
    assert!(outcome.stderr.contains("cannot be read"), "{outcome:?}");
    outcome.success();
    assert_eq!(files(&host, "c1"), ["c1:eth0"]);
}
