//! ADDs of an attachment that has a record: what they undo, and what the record keeps.

use std::fs::{self, File};
use std::process::Stdio;

use ipam_testkit::world::{World, start, wait, with};
use serde_json::json;

use crate::one_then_full;

#[test]
fn a_failed_re_add_undoes_nothing_while_an_address_is_held() {
    let world = World::new();
    let failing = one_then_full(&world);
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    world.call("ADD", "c1", &failing).failure();
    assert_eq!(world.take_calls(), ["one ADD", "two ADD"]);
    assert_eq!(world.held(), ["one-c1-eth0"]);
    assert_eq!(world.state_of("c1"), "held");
    assert_eq!(world.events("c1").last().unwrap(), "failed");
}

#[test]
fn del_after_a_failed_re_add_runs_the_delegates_of_both_adds() {
    let world = World::new();
    let failing = one_then_full(&world);
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    world.call("ADD", "c1", &failing).failure();
    world.take_calls();
    world.call("DEL", "c1", &network).success();
    let calls = world.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == "two DEL").count(), 1, "{calls:?}");
    assert!(calls.contains(&"one DEL".to_owned()), "{calls:?}");
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn an_undelivered_re_add_undoes_nothing_and_is_recorded_as_failed() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("b", "10.0.1.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    let mut command = world.command("ADD", "c1");
    command.stdout(Stdio::from(File::options().write(true).open("/dev/full").unwrap()));
    assert_eq!(wait(start(command, &world.network(json!(["b"])))).exit, Some(1));
    assert_eq!(world.take_calls(), ["b ADD"], "the first ADD's address may be in use");
    assert_eq!(world.held(), ["a-c1-eth0", "b-c1-eth0"]);
    assert_eq!(world.events("c1").last().unwrap(), "failed");

    // What is held is still what the first ADD gave.
    let mut checked = network.clone();
    checked["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    world.call("CHECK", "c1", &checked).success();
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty());
}

#[test]
fn two_hundred_failed_adds_stay_below_64_kib_and_one_attempt() {
    let world = World::new();
    world.full("a");
    let fat = with(&world.network(json!(["a"])), "fat", "x".repeat(4000));
    let mut largest = 0;
    for _ in 0..200 {
        world.call("ADD", "c1", &fat).failure();
        largest = largest.max(fs::metadata(world.record("c1")).unwrap().len());
    }
    assert!(largest < 64 * 1024 + 5000, "{largest}");
    world.take_calls();
    world.call("DEL", "c1", &fat).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn a_hundred_failed_re_adds_keep_what_is_held_and_a_stranger_s_debt() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("earlier", "10.0.1.2/24").full("b");
    world.call("ADD", "c1", &world.network(json!(["earlier"]))).success();
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let failing = with(&world.network(json!(["a", "b"])), "fat", "x".repeat(4000));
    for _ in 0..100 {
        world.call("ADD", "c1", &failing).failure();
    }
    assert!(fs::metadata(world.record("c1")).unwrap().len() < 64 * 1024 + 12_000);
    assert_eq!(world.held(), ["a-c1-eth0", "earlier-c1-eth0"]);
    assert_eq!(world.state_of("c1"), "held");
    let mut checked = network.clone();
    checked["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    world.call("CHECK", "c1", &checked).success();
    world.take_calls();
    world.call("DEL", "c1", &network).success();
    let calls = world.take_calls();
    for delegate in ["earlier DEL", "a DEL", "b DEL"] {
        assert!(calls.iter().any(|call| call == delegate), "{delegate}: {calls:?}");
    }
    assert!(world.held().is_empty() && !world.record("c1").exists());
}
