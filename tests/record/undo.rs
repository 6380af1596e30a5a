//! Failed ADDs are undone.

use std::fs::{self, File};
use std::process::Stdio;

use ipam_testkit::world::{World, start, wait};
use serde_json::json;

#[test]
fn an_add_whose_reader_has_gone_is_undone() {
    let world = World::new();
    world.gated_allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let mut child = start(world.command("ADD", "c1"), &network);
    world.at_gate("a");
    drop(child.stdout.take());
    world.open_gate("a");
    let outcome = wait(child);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("cannot deliver"), "{outcome:?}");
    assert_eq!(world.take_calls(), ["a ADD", "a DEL"]);
    assert!(world.held().is_empty());
    assert_eq!(world.events("c1").last().unwrap(), "failed");
    assert_eq!(world.state_of("c1"), "failed");
}

#[test]
fn an_add_whose_result_finds_no_room_is_undone() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let mut command = world.command("ADD", "c1");
    command.stdout(Stdio::from(File::options().write(true).open("/dev/full").unwrap()));
    assert_eq!(wait(start(command, &network)).exit, Some(1));
    assert_eq!(world.take_calls(), ["a ADD", "a DEL"]);
    assert!(world.held().is_empty());
    assert_eq!(world.state_of("c1"), "failed");
}

#[test]
fn an_add_whose_record_is_removed_meanwhile_is_undone() {
    let world = World::new();
    world.gated_allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    let add = start(world.command("ADD", "c1"), &network);
    world.at_gate("one");
    fs::remove_dir_all(world.path("state")).unwrap();
    world.open_gate("one");
    let (code, text) = wait(add).failure();
    assert_eq!(code, 113, "{text}");
    assert!(text.contains("the file was removed"), "{text}");
    assert!(world.held().is_empty());
}

#[test]
fn an_answer_that_gives_an_address_twice_is_an_error_and_undone() {
    let world = World::new();
    let twice = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}, {"address": "10.0.0.2/24"}]});
    world.delegate("twice", &format!("[ $CNI_COMMAND != ADD ] || printf '%s' '{twice}'"));
    let (code, text) = world.call("ADD", "c1", &world.network(json!(["twice"]))).failure();
    assert_eq!(code, 110, "{text}");
    assert!(text.contains("twice: its answer gives 10.0.0.2 twice"), "{text}");
    assert_eq!(world.take_calls(), ["twice ADD", "twice DEL"]);
}

#[test]
fn an_undo_that_fails_alike_does_not_say_it_again() {
    let world = World::new();
    world.delegate("a", "printf '{\"code\":103,\"msg\":\"away\"}'; exit 1");
    let (code, text) = world.call("ADD", "c1", &world.network(json!(["a"]))).failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.starts_with("a: away; the undo failed with the same error"), "{text}");
}

#[test]
fn an_undo_that_fails_otherwise_does_not_repeat_the_advice() {
    let world = World::new();
    world.delegate("a", "case $CNI_COMMAND in ADD) msg=away;; *) msg=gone;; esac; printf '{\"code\":103,\"msg\":\"%s\",\"details\":\"look there\"}' $msg; exit 1");
    let (_, text) = world.call("ADD", "c1", &world.network(json!(["a"]))).failure();
    assert!(text.starts_with("a: away: look there; the undo failed: a: gone"), "{text}");
    assert_eq!(text.matches("look there").count(), 1, "{text}");
}

#[test]
fn an_undo_that_fails_leaves_the_record_for_del() {
    let world = World::new();
    world.delegate("a", "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}]}';; DEL) printf '{\"code\":103,\"msg\":\"away\"}'; exit 1;; esac");
    world.full("b");
    let network = world.network(json!(["a", "b"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 100, "the first error's code");
    assert!(text.contains("the undo failed: a: away"), "{text}");
    world.allocator("a", "10.0.0.2/24").take_calls();
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["a DEL", "b DEL"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn a_delegate_that_could_not_be_started_is_owed_no_del() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24").program("broken", "#!/no/such/interpreter\n");
    let network = world.network(json!(["one", "broken"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 5, "{text}");
    assert_eq!(world.take_calls(), ["one ADD", "one DEL"]);
    assert_eq!(world.state_of("c1"), "failed");
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
    // One that ran before stays owed its DEL, whatever becomes of its program.
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    fs::remove_file(world.path("bin/one")).unwrap();
    world.program("one", "#!/no/such/interpreter\n");
    world.call("ADD", "c1", &network).failure();
    world.call("DEL", "c1", &network).failure();
    assert_eq!(world.state_of("c1"), "held");
}
