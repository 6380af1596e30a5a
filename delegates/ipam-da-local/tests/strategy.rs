//! Where `strategy` may stand: in `ipam`, in a pool, and nowhere else.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::{Command, Stdio};

use ipam_testkit::world::{Outcome, binary, start, wait};
use serde_json::{Value, json};

use common::{C1, Place, Program};

/// Programs that read the pools of `ipam`, each by itself or through a selector.
const PROGRAMS: [Program; 3] = [Program::Alone, Program::Chain, Program::Preset];

/// A place whose ranges are what these members of `ipam` say.
fn place(ipam: Value) -> Place {
    let mut place = Place::new(&["10.5.0.0/24"]);
    if ipam.get("pools").is_some() {
        place.subnets.clear();
    }
    place.ipam = ipam;
    place
}

/// The address of a second container, after the first has gone.
fn next_after_release(place: &Place, program: Program) -> Vec<String> {
    place.add(program, C1);
    place.del(program, C1);
    place.add(program, "c2")
}

#[test]
fn strategy_of_ipam_counts_where_a_pool_does_not_say() {
    let pool = |strategy: Value| {
        let ranges = json!([{"subnet": "10.5.0.0/24"}]);
        let mut pool = json!({"name": "blue", "ranges": ranges});
        if !strategy.is_null() {
            pool["strategy"] = strategy;
        }
        json!([pool])
    };
    for program in PROGRAMS {
        for (ipam, next) in [
            (json!({}), "10.5.0.3"),
            (json!({"strategy": null}), "10.5.0.3"),
            (json!({"strategy": "round-robin"}), "10.5.0.3"),
            (json!({"strategy": "lowest"}), "10.5.0.2"),
            (json!({"strategy": "lowest", "pools": pool(json!(null))}), "10.5.0.2"),
            (json!({"strategy": "lowest", "pools": pool(json!("round-robin"))}), "10.5.0.3"),
            (json!({"strategy": "round-robin", "pools": pool(json!("lowest"))}), "10.5.0.2"),
        ] {
            let place = place(ipam);
            assert_eq!(next_after_release(&place, program), [next], "{program:?} {:?}", place.ipam);
        }
    }
}

#[test]
fn strategy_of_ipam_that_is_unknown_is_an_error_of_add_and_status_alone() {
    for program in PROGRAMS {
        for (strategy, words) in [
            (json!("best"), r#"ipam.strategy: unknown strategy "best""#),
            (json!(7), "ipam.strategy: expected a string, found a number"),
        ] {
            refused(program, json!({"strategy": strategy}), words);
        }
    }
}

#[test]
fn strategy_in_a_range_is_an_error_that_names_where_it_counts() {
    let range = json!({"subnet": "10.5.0.0/24", "strategy": "lowest"});
    // A preset reads ranges as the system that it replaces, which ignores it.
    for program in [Program::Alone, Program::Chain] {
        let sets = json!({"ranges": [[range]]});
        let error = refused(program, sets, "ipam.ranges[0][0].strategy: ");
        assert_eq!(
            error["details"],
            "set strategy in ipam, for all pools, or in one of ipam.pools"
        );
        let pools = json!({"pools": [{"name": "blue", "ranges": [range]}]});
        refused(program, pools, "ipam.pools[0].ranges[0].strategy: ");
    }
    // What another program's selector chose.
    let mut place = Place::new(&[]);
    place.more =
        json!({"prevResult": {"cniVersion": "1.0.0", "ips": [], "pools": [{"ranges": [range]}]}});
    for verb in ["ADD", "STATUS"] {
        let (code, text) = called(&place, Program::Allocator, verb).failure();
        assert!(code == 7, "{verb}: {text}");
        assert!(text.contains("prevResult.pools[0].ranges[0].strategy: "), "{verb}: {text}");
    }
}

fn called(place: &Place, program: Program, verb: &str) -> Outcome {
    match verb {
        "STATUS" => place.status(program),
        verb => place.call(program, verb, "c2"),
    }
}

/// A record as an earlier release wrote it, which ignored the key.
fn ask_in_record(place: &Place) {
    let record = place.world.record("c1");
    if let Ok(text) = fs::read_to_string(&record) {
        let asking = text.replace(r#""dataDir":"#, r#""strategy":"best","dataDir":"#);
        assert_ne!(asking, text);
        fs::write(&record, asking).unwrap();
    }
}

/// What is held can be read and released by hand.
#[track_caller]
fn list_by_hand(place: &Place, program: Program) {
    let mut command = Command::new(binary("ipam-da-local"));
    command.env_clear().args(["list", "--json", "--config", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let rows = wait(start(command, &place.network(program))).success();
    assert_eq!(rows[0]["address"], "10.5.0.2", "{rows}");
}

/// Checks that ADD and STATUS refuse these members of `ipam`, and that DEL, CHECK and GC do not.
/// The error of ADD.
#[track_caller]
fn refused(program: Program, ipam: Value, words: &str) -> Value {
    let mut place = place(json!({}));
    let result = place.call(program, "ADD", C1).success();
    if ipam.get("pools").is_some() {
        place.subnets.clear();
    }
    place.ipam = ipam;
    for verb in ["STATUS", "ADD"] {
        let (code, text) = called(&place, program, verb).failure();
        assert!(code == 7 && text.contains(words), "{program:?} {verb}: {code} {text}");
    }
    let error = place.call(program, "ADD", "c2").json();
    list_by_hand(&place, program);
    ask_in_record(&place);
    place.check(program, C1, &result).success();
    place.gc(program, &[C1]).success();
    place.del(program, C1);
    assert!(place.leases().is_empty(), "{program:?}: {:?}", place.leases());
    error
}
