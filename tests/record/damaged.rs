//! Records that were cut, overwritten or replaced, and calls that can hardly open one.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::world::{World, binary, start, wait};
use serde_json::json;

use crate::one_then_full;

#[test]
fn a_record_cut_anywhere_in_its_last_line_still_releases() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    // From the last line's first byte to its last.
    for cut in 0..=5 {
        world.call("ADD", "c1", &network).success();
        let text = fs::read_to_string(world.record("c1")).unwrap();
        let start = text.trim_end().rfind('\n').unwrap() + 1;
        fs::write(world.record("c1"), &text[..start + (text.len() - 1 - start) * cut / 5]).unwrap();
        world.take_calls();
        let outcome = world.call("DEL", "c1", &network);
        assert!(!outcome.stderr.contains("cannot be read"), "{outcome:?}");
        outcome.success();
        // A `held` that is cut off makes the ADD one of unknown outcome.
        assert_eq!(world.take_calls(), ["a DEL"], "cut at {cut} fifths");
        assert_eq!(world.state_of("c1"), "unsure");
        assert!(world.held().is_empty());
        fs::remove_file(world.record("c1")).unwrap();
    }
}

#[test]
fn a_cut_record_is_added_to_and_read_again() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let mut file = File::options().append(true).open(world.record("c1")).unwrap();
    file.write_all(b"{\"event\":\"failed\",\"ti").unwrap();
    let outcome = world.call("ADD", "c1", &network);
    assert!(!outcome.stderr.contains("cannot be read"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.state_of("c1"), "held");
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn after_an_unreadable_record_a_failed_add_undoes_nothing() {
    let world = World::new();
    let failing = one_then_full(&world);
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    spoil(&world);
    world.take_calls();
    let outcome = world.call("ADD", "c1", &failing);
    assert!(outcome.stderr.contains("cannot be read"), "{outcome:?}");
    outcome.failure();
    assert_eq!(world.take_calls(), ["one ADD", "two ADD"], "no undo");
    assert_eq!(world.held(), ["one-c1-eth0"]);
    // Nor does the next one, which reads the new record well.
    world.call("ADD", "c1", &failing).failure();
    assert_eq!(world.take_calls(), ["one ADD", "two ADD"], "no undo");
}

#[test]
fn an_unreadable_record_is_set_aside_with_a_warning_and_del_runs_the_chain_as_configured() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["ipam-ds-x", "a"]));
    world.call("ADD", "c1", &network).success();
    spoil(&world);
    world.take_calls();
    let outcome = world.call("DEL", "c1", &network);
    assert!(outcome.stderr.contains("cannot be read"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.take_calls(), ["ipam-ds-x DEL", "a DEL"]);
    assert!(world.held().is_empty() && !world.record("c1").exists());
    assert_eq!(world.records(), [""; 0], "what it may have named is released");
}

/// Puts garbage into the middle of the record of `c1`.
fn spoil(world: &World) {
    let text = fs::read_to_string(world.record("c1")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    fs::write(world.record("c1"), format!("{}\n\0\0rubbish\n{}\n", lines[0], lines[1])).unwrap();
}

#[test]
fn a_link_in_the_place_of_a_record_is_an_error_and_del_goes_on() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    fs::create_dir_all(world.record("c1").parent().unwrap()).unwrap();
    fs::write(world.path("elsewhere"), "").unwrap();
    symlink(world.path("elsewhere"), world.record("c1")).unwrap();
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 113, "{text}");
    assert!(world.take_calls().is_empty());
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["one DEL"]);
    assert_eq!(fs::read(world.path("elsewhere")).unwrap(), b"");
}

#[test]
fn a_low_limit_of_descriptors_keeps_nobody_from_the_record() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    let limited = |verb: &str| {
        let mut command = world.command_of(Path::new("prlimit"), verb, "c1");
        command.arg("--nofile=32").arg(binary("ipam-delegated"));
        wait(start(command, &network))
    };
    assert_eq!(limited("ADD").ips(), ["10.0.0.2/24"]);
    assert_eq!(world.events("c1"), ["attempt", "running", "held"]);
    limited("DEL").success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}
