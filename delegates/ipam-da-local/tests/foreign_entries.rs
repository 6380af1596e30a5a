//! What others leave in the folder of leases: host-local, operators, killed plugins.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use ipam_testkit::kills::strace;
use ipam_testkit::world::{start, wait};
use serde_json::{Value, json};

use common::{C1, LONG, Place, Program, owned_by, set_age};

/// Two addresses can be given: 10.5.0.1 is the gateway.
const SMALL: &str = "10.5.0.0/29";

/// ADD of new containers until the pool is full.
fn fill(place: &Place, program: Program) -> Vec<String> {
    let mut given = Vec::new();
    for number in 0..300 {
        let outcome = place.call(program, "ADD", &format!("fill{number}"));
        if outcome.exit != Some(0) {
            assert_eq!(outcome.failure().0, 100);
            return given;
        }
        given.extend(common::plain(outcome.ips()));
    }
    panic!("{} addresses given, and still not full", given.len());
}

#[test]
fn what_is_no_lease_file_keeps_its_address_taken() {
    for program in Program::OURS {
        let place = Place::new(&[SMALL]);
        fs::create_dir_all(place.folder().join("10.5.0.2")).unwrap();
        symlink("/nowhere", place.folder().join("10.5.0.3")).unwrap();
        let pipe = place.folder().join("10.5.0.4");
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        place.put("10.5.0.5", b"\xff\xfe");
        assert_eq!(fill(&place, program), ["10.5.0.6"], "{program:?}");
        place.gc(program, &[]).success();
        place.del(program, "fill0");
        assert_eq!(ipam_testkit::world::names(&place.folder()).len(), 6, "{program:?}");
    }
}

#[test]
fn a_pipe_in_place_of_a_cursor_holds_nobody_up() {
    let place = Place::new(&[SMALL]);
    fs::create_dir_all(place.folder()).unwrap();
    let pipe = place.folder().join("last_reserved_ip.0");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    assert_eq!(place.add(Program::Allocator, C1), ["10.5.0.2"]);
    assert_eq!(place.add(Program::Allocator, "c2"), ["10.5.0.3"]);
}

#[test]
fn a_cursor_that_is_no_address_starts_at_the_first() {
    for text in ["", "x", "10.5.0.4\n", "10.5.0.400", "192.168.0.1", "fd00::1"] {
        let place = Place::new(&[SMALL]);
        place.put("last_reserved_ip.0", text);
        assert_eq!(place.add(Program::Allocator, C1), ["10.5.0.2"], "{text:?}");
        let cursor = fs::read_to_string(place.folder().join("last_reserved_ip.0")).unwrap();
        assert_eq!(cursor, "10.5.0.2", "{text:?}");
        assert_eq!(place.add(Program::HostLocal, "c2"), ["10.5.0.3"], "{text:?}");
    }
}

#[test]
fn a_lease_file_that_was_spoilt_fails_del_and_names_the_file() {
    // Without a chain nobody tells which leases it gave.
    for program in Program::OURS.into_iter().filter(|program| *program != Program::Alone) {
        let place = Place::new(&[SMALL]);
        let result = place.call(program, "ADD", C1).success();
        let path = place.put("10.5.0.2", b"\x00\x01");
        let before = place.everything();
        for verb in ["DEL", "CHECK"] {
            let mut network = place.network(program);
            if program == Program::Allocator {
                network["prevResult"] = result.clone();
            } else {
                network["prevResult"]["ips"] = result["ips"].clone();
            }
            let (code, text) = place.call_with(program, verb, C1, &network).failure();
            assert_eq!(code, 5, "{program:?} {verb}: {text}");
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert_eq!(place.everything(), before, "{program:?} {verb}");
        }
        fs::remove_file(path).unwrap();
        place.del(program, C1);
    }
}

#[test]
fn files_that_are_not_named_like_an_address_are_left_alone() {
    let place = Place::new(&[SMALL]);
    let strange = ["10.5.0.2.bak", "10.5.0.02", "README", ".10.5.0.3", "10.5.0.4_"];
    for name in strange {
        set_age(&place.put(name, owned_by(C1)), LONG);
    }
    let mut command = place.command(Program::Allocator, "ADD", C1);
    command.env("IPAM_DELEGATED_LOG", "debug");
    let outcome = wait(start(command, &place.network(Program::Allocator)));
    for name in strange {
        let line =
            format!("ignores {}: its name is not an address", place.folder().join(name).display());
        assert!(outcome.stderr.contains(&line), "{outcome:?}");
    }
    assert_eq!(outcome.ips(), ["10.5.0.2/29"]);
    place.del(Program::Allocator, C1);
    place.gc(Program::Allocator, &[]).success();
    let left: Vec<_> = place.leases().into_keys().collect();
    assert_eq!(left.len(), strange.len(), "{left:?}");
}

/// How one address may be written.
const ODD: [&str; 2] = ["FD05::2", "fd05:0::0003"];

#[test]
fn addresses_in_another_form_count_as_held() {
    for with_index in [true, false] {
        for program in Program::OURS {
            if !with_index && program != Program::Allocator {
                // A chain without a state folder gives nothing.
                continue;
            }
            let mut place = Place::new(&["fd05::/125"]);
            if !with_index {
                place.put("../state-file", "");
                place.ipam = json!({"stateDir": place.world.path("data/state-file")});
            }
            for (name, owner) in ODD.iter().zip(["other2", "other3"]) {
                place.put(name, owned_by(owner));
            }
            let expected = ["fd05::4", "fd05::5", "fd05::6", "fd05::7"];
            assert_eq!(fill(&place, program), expected, "{program:?}, index: {with_index}");
            let mut network = place.network(Program::Allocator);
            network["prevResult"]["pools"][0]["requested-ip"] = "fd05::2".into();
            let outcome = place.call_with(Program::Allocator, "ADD", C1, &network);
            let (code, text) = outcome.failure();
            assert_eq!(code, 102, "{text}");
            assert!(text.contains("other2/eth0"), "{text}");
        }
    }
}

#[test]
fn an_address_in_another_form_is_released_and_can_be_given_again() {
    for with_index in [true, false] {
        for by_gc in [false, true] {
            let mut place = Place::new(&["fd05::/126"]);
            if !with_index {
                place.put("../state-file", "");
                place.ipam = json!({"stateDir": place.world.path("data/state-file")});
            }
            set_age(&place.put("FD05::2", owned_by("other2")), LONG);
            set_age(&place.put("fd05:0::0003", owned_by("other3")), LONG);
            let (code, _) = place.call(Program::Allocator, "ADD", C1).failure();
            assert_eq!(code, 100);
            if by_gc {
                place.gc(Program::Allocator, &["other3"]).success();
            } else {
                place.del(Program::Allocator, "other2");
            }
            let add = place.add(Program::Allocator, C1);
            assert_eq!(add, ["fd05::2"], "index: {with_index}, GC: {by_gc}");
        }
    }
}

#[test]
fn a_young_empty_file_is_somebody_elses_who_is_writing_it() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/30"]);
        place.put("10.5.0.2", "");
        let (code, _) = place.call(program, "ADD", C1).failure();
        assert_eq!(code, 100, "{program:?}");
        place.gc(program, &[]).success();
        assert_eq!(place.leases().len(), 1, "{program:?}");
    }
}

#[test]
fn the_address_that_a_killed_host_local_left_is_given_again_after_a_while() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/30"]);
        let leftover = place.folder().join("10.5.0.2");
        // It makes the file first, then writes its owner into it.
        let mut command = place.world.command_of(&strace(), "ADD", C1);
        command.args(["-f", "-o"]).arg(place.world.path("log")).arg("-P").arg(&leftover);
        command.args(["-e", "trace=write,pwrite64", "-e", "inject=write,pwrite64:signal=SIGKILL"]);
        command.arg(place.file(Program::HostLocal));
        let killed = wait(start(command, &place.network(Program::HostLocal)));
        assert_eq!(killed.exit, None, "{killed:?}");
        assert_eq!(place.leases(), [("10.5.0.2".to_owned(), String::new())].into());
        assert_eq!(place.call(program, "ADD", C1).failure().0, 100);
        set_age(&leftover, LONG);
        assert_eq!(place.call(Program::HostLocal, "ADD", C1).exit, Some(1));
        assert_eq!(place.add(program, C1), ["10.5.0.2"], "{program:?}");
    }
}

#[test]
fn an_old_empty_file_is_found_in_a_full_pool_however_large() {
    let place = Place::new(&["10.5.0.0/24"]);
    for last in 2..=254 {
        place.put(&format!("10.5.0.{last}"), owned_by(&format!("other{last}")));
    }
    place.put("last_reserved_ip.0", "10.5.0.2");
    let leftover = place.put("10.5.0.200", "");
    assert_eq!(place.call(Program::Allocator, "ADD", C1).failure().0, 100);
    set_age(&leftover, LONG);
    assert_eq!(place.add(Program::Allocator, C1), ["10.5.0.200"]);
    assert_eq!(place.leases()["10.5.0.200"], owned_by(C1));
    assert_eq!(place.call(Program::Allocator, "ADD", "c2").failure().0, 100);
}

#[test]
fn an_old_empty_file_that_is_asked_for_is_given() {
    let place = Place::new(&["10.5.0.0/24"]);
    set_age(&place.put("10.5.0.200", ""), LONG);
    let mut network = place.network(Program::Allocator);
    network["prevResult"]["pools"][0]["requested-ip"] = "10.5.0.200".into();
    let outcome = place.call_with(Program::Allocator, "ADD", C1, &network);
    assert_eq!(outcome.ips(), ["10.5.0.200/24"]);
}

#[test]
fn files_that_name_no_interface_are_released_by_their_container() {
    for program in Program::OURS {
        for content in ["c1", "c1\n", " c1 "] {
            let place = Place::new(&[SMALL]);
            place.put("10.5.0.3", content);
            place.put("10.5.0.4", "c10");
            let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.5.0.3/29"}]});
            assert_eq!(place.check(program, C1, &result).success(), Value::Null);
            let (code, text) = place.call(program, "ADD", C1).failure();
            assert_eq!(code, 102, "{program:?}: {text}");
            assert!(text.contains("10.5.0.3"), "{text}");
            place.del(program, C1);
            assert_eq!(place.leases().into_keys().collect::<Vec<_>>(), ["10.5.0.4"]);
        }
    }
}

#[test]
fn what_a_container_holds_by_interface_is_released_before_what_names_none() {
    for program in Program::ALL {
        let place = Place::new(&["10.5.0.0/24"]);
        place.put("10.6.0.9", C1);
        place.put("10.5.0.9", owned_by(C1));
        place.call(program, "DEL", C1).success();
        assert_eq!(place.leases().into_keys().collect::<Vec<_>>(), ["10.6.0.9"], "{program:?}");
        place.call(program, "DEL", C1).success();
        assert!(place.leases().is_empty(), "{program:?}");
    }
}
