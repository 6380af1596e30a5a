//! A selector that is part of `ipam-delegated`: a chain whose selector is a link to the program
//! answers as one whose selector is a program of its own, and starts a process less.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::path::Path;
use std::process::Command;

use ipam_testkit::kills::strace;
use ipam_testkit::world::{Outcome, World, binary, start, wait, with, without};
use serde_json::{Value, json};

const SELECTOR: &str = "ipam-ds-static";

/// A world with the selector as a link to `ipam-delegated`, or as a program of its own.
fn world(is_built_in: bool) -> World {
    let world = World::new();
    let program = if is_built_in { "ipam-delegated" } else { SELECTOR };
    world.install_as(&binary(program), SELECTOR).install(&binary("ipam-da-local"));
    world
}

/// Exit code and answer, without the paths of this world.
fn answer(world: &World, outcome: &Outcome) -> (Option<i32>, String) {
    let root = world.path("").display().to_string();
    (outcome.exit, outcome.stdout.replace(root.trim_end_matches('/'), "WORLD"))
}

/// The programs that a call has started, by their paths, the first its own.
fn programs_started(world: &World, verb: &str, network: &Value) -> Vec<String> {
    let log = world.path("strace");
    let mut command = world.command_of(&strace(), verb, "c1");
    command.args(["-f", "-qq", "-e", "trace=execve", "-o"]).arg(&log).arg(binary("ipam-delegated"));
    wait(start(command, network)).success();
    let log = fs::read_to_string(log).unwrap();
    let started = log.lines().filter(|line| line.ends_with(" = 0"));
    let path = started.map(|line| line.split('"').nth(1).unwrap());
    path.map(|path| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn a_link_answers_each_verb_as_the_program_does_and_errors_are_the_same() {
    let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]);
    let answers = [true, false].map(|is_built_in| {
        let world = world(is_built_in);
        let network = world.network(json!([SELECTOR, "ipam-da-local"]));
        let good = with(&network, "ranges", ranges.clone());
        let good = with(&good, "routes", json!([{"dst": "0.0.0.0/0"}]));
        let limited = world.network(json!([{"type": SELECTOR, "timeout": "5s"}, "ipam-da-local"]));
        let networks = [
            good.clone(),
            with(&network, "ranges", json!([[{"subnet": "10.1.2.0"}]])),
            with(&network, "range", json!([])),
            with(&limited, "subnet", "10.4.0.0/24"),
            network,
        ];
        let mut answers = Vec::new();
        for network in networks {
            let mut newest = network.clone();
            newest["cniVersion"] = json!("1.1.0");
            newest["cni.dev/valid-attachments"] = json!([]);
            for (verb, network) in
                [("ADD", &network), ("CHECK", &network), ("STATUS", &newest), ("GC", &newest)]
            {
                answers.push(answer(&world, &world.call(verb, "c1", network)));
            }
            answers.push(answer(&world, &world.call("DEL", "c1", &network)));
            // Without a record, DEL asks the selector.
            answers.push(answer(&world, &world.call("DEL", "c2", &network)));
        }
        answers
    });
    assert!(answers[0].iter().filter(|(exit, _)| *exit == Some(0)).count() > 12, "{answers:?}");
    assert!(answers[0].iter().filter(|(exit, _)| *exit == Some(1)).count() > 8, "{answers:?}");
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn the_chain_starts_no_process_for_a_link_to_itself() {
    let world = world(true);
    let network = world.network(json!([SELECTOR, "ipam-da-local"]));
    let network = with(&network, "subnet", "10.1.2.0/24");
    assert_eq!(programs_started(&world, "ADD", &network), ["ipam-delegated", "ipam-da-local"]);
}

#[test]
fn a_selector_that_was_copied_into_the_file_of_the_chain_fails_each_call() {
    let world = World::new();
    let chain = world.path("bin").join("ipam-delegated");
    assert!(Command::new("cp").arg(binary(SELECTOR)).arg(&chain).status().unwrap().success());
    world.install_as(&chain, "host-local");
    let network = with(&world.network(json!([])), "subnet", "10.1.2.0/24");
    for name in ["ipam-delegated", "host-local"] {
        let command = world.command_of(&world.path("bin").join(name), "DEL", "c1");
        let (code, text) = wait(start(command, &network)).failure();
        assert!(code == 7 && text.contains("copied through a link"), "{text}");
    }
}

#[test]
fn a_person_calls_the_selector_by_its_link() {
    let world = world(true);
    let output = Command::new(world.path("bin").join(SELECTOR)).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("ipam-ds-static ") && text.contains("a CNI IPAM delegate"), "{text}");
    let network = with(&world.network(json!([])), "subnet", "10.1.2.0/24");
    let network = without(&network, &["delegates"]);
    let command = world.command_of(&world.path("bin").join(SELECTOR), "ADD", "c1");
    let answer = wait(start(command, &network)).success();
    assert_eq!(answer["pools"][0]["ranges"][0]["subnet"], "10.1.2.0/24", "{answer}");
}
