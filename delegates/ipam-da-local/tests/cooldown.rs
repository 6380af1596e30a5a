//! Freed addresses rest, whoever frees them, and never at the cost of an ADD or a DEL.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use ipam_testkit::world::{names, wait};
use serde_json::{Value, json};

use common::{C1, LONG, Place, Program};

/// A place of six addresses where the lowest is given, unless it rests.
fn place(cooldown: &str) -> Place {
    let mut place = Place::new(&["10.5.0.0/29"]);
    place.ipam = json!({"strategy": "lowest", "cooldown": cooldown});
    place
}

/// The file with the times of releases, which may not exist.
fn freed_file(place: &Place) -> PathBuf {
    let root = place.world.path("state/local/net");
    root.join(&names(&root)[0]).join("freed")
}

/// Lets the addresses rest that much longer.
fn pass(place: &Place, seconds: u64) {
    let text = fs::read_to_string(freed_file(place)).unwrap();
    let last = text.lines().rfind(|line| !line.is_empty()).unwrap();
    let times: BTreeMap<String, u64> = serde_json::from_str(last).unwrap();
    let times: BTreeMap<_, _> =
        times.into_iter().map(|(address, time)| (address, time - seconds * 1_000_000)).collect();
    fs::write(freed_file(place), serde_json::to_string(&times).unwrap() + "\n").unwrap();
}

#[test]
fn a_freed_address_rests_while_others_are_free() {
    for program in Program::OURS {
        let place = place("30s");
        assert_eq!(place.add(program, C1), ["10.5.0.2"], "{program:?}");
        place.del(program, C1);
        assert_eq!(place.add(program, C1), ["10.5.0.3"], "{program:?}");
        pass(&place, 31);
        assert_eq!(place.add(program, "c2"), ["10.5.0.2"], "{program:?}");
    }
}

#[test]
fn a_full_pool_gives_what_was_freed_first() {
    let place = place("1h");
    let containers = ["a", "b", "c", "d", "e"];
    for container in containers {
        place.add(Program::Allocator, container);
    }
    for container in ["d", "b", "e"] {
        place.del(Program::Allocator, container);
    }
    for (container, address) in [("f", "10.5.0.5"), ("g", "10.5.0.3"), ("h", "10.5.0.6")] {
        assert_eq!(place.add(Program::Allocator, container), [address]);
    }
    assert_eq!(place.call(Program::Allocator, "ADD", "i").json()["code"], 100);
}

#[test]
fn what_gc_and_a_person_release_rests_too() {
    let place = place("1h");
    place.add(Program::Allocator, C1);
    place.age(LONG);
    place.gc(Program::Allocator, &[]).success();
    assert_eq!(place.add(Program::Allocator, "c2"), ["10.5.0.3"]);
    let config = place.world.path("network.json");
    fs::write(&config, place.network(Program::Alone).to_string()).unwrap();
    let mut command = place.command(Program::Alone, "", "");
    command.env_remove("CNI_COMMAND").args(["release", "10.5.0.3", "--yes", "--config"]);
    let output = wait(command.arg(config).spawn().unwrap());
    assert_eq!(output.exit, Some(0), "{output:?}");
    assert_eq!(place.add(Program::Allocator, "c3"), ["10.5.0.4"]);
}

#[test]
fn without_a_cooldown_nothing_is_written() {
    for ipam in [json!({"strategy": "lowest"}), json!({"strategy": "lowest", "cooldown": "0s"})] {
        let place = Place { ipam, ..place("0s") };
        for _ in 0..2 {
            assert_eq!(place.add(Program::Chain, C1), ["10.5.0.2"]);
            place.del(Program::Chain, C1);
        }
        assert!(!freed_file(&place).exists());
    }
}

#[test]
fn without_the_file_nothing_rests_and_nothing_fails() {
    let place = place("1h");
    place.add(Program::Chain, C1);
    fs::create_dir(freed_file(&place)).unwrap();
    place.del(Program::Chain, C1);
    assert_eq!(place.add(Program::Chain, C1), ["10.5.0.2"]);
    fs::remove_dir(freed_file(&place)).unwrap();
    for content in ["", "{\"10.5.0.2\": 1", "[]", "\u{0}"] {
        fs::write(freed_file(&place), content).unwrap();
        assert_eq!(place.call(Program::Chain, "DEL", C1).success(), Value::Null);
        assert_eq!(place.add(Program::Chain, C1), ["10.5.0.3"], "{content:?}");
        fs::write(freed_file(&place), content).unwrap();
        assert_eq!(place.add(Program::Chain, "c2"), ["10.5.0.2"], "{content:?}");
        place.del(Program::Chain, "c2");
        place.del(Program::Chain, C1);
        fs::remove_file(freed_file(&place)).unwrap();
        assert_eq!(place.add(Program::Chain, C1), ["10.5.0.2"], "{content:?}");
    }
}
