//! The place of host-local is taken while containers run, handed back, and shared for a while.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use common::{LONG, Place, Program, plain};

const BOTH: [&str; 2] = ["10.5.0.0/24", "fd05::/64"];

/// ADDs, with their results.
fn add_all(place: &Place, program: Program, containers: &[&str]) -> BTreeMap<String, Value> {
    let add = |container: &&str| {
        let result = place.call(program, "ADD", container).success();
        ((*container).to_owned(), result)
    };
    containers.iter().map(add).collect()
}

#[track_caller]
fn check_all(place: &Place, program: Program, results: &BTreeMap<String, Value>) {
    for (container, result) in results {
        place.check(program, container, result).success();
    }
}

#[test]
fn containers_of_host_local_live_on_under_the_preset() {
    let place = Place::new(&BOTH);
    let results = add_all(&place, Program::HostLocal, &["a", "b", "c", "d"]);
    let before = place.everything();
    check_all(&place, Program::Preset, &results);
    assert_eq!(place.everything(), before);
    place.del(Program::Preset, "a");
    let held = place.leases();
    assert!(held.len() == 6 && !held.contains_key("10.5.0.2"), "{held:?}");
    // A second ADD of a container that runs gives what it has.
    assert_eq!(place.add(Program::Preset, "b"), ["10.5.0.3", "fd05::3"]);
    place.age(LONG);
    place.gc(Program::Preset, &["b", "c"]).success();
    assert!(!place.leases().contains_key("10.5.0.5"), "{:?}", place.leases());
    // host-local's order goes on.
    assert_eq!(place.add(Program::Preset, "e"), ["10.5.0.6", "fd05::6"]);
    assert_eq!(place.leases().len(), 6);
}

#[test]
fn a_first_add_that_fails_leaves_the_address_from_before() {
    let mut place = Place::new(&["10.5.0.0/24"]);
    place.add(Program::HostLocal, "c1");
    place.subnets.push("10.6.0.0/30".to_owned());
    place.put("10.6.0.2", "other\r\neth0");
    let before = place.leases();
    assert_eq!(place.call(Program::Preset, "ADD", "c1").failure().0, 100);
    assert_eq!(place.leases(), before, "the allocator itself failed");

    place.subnets.pop();
    place.world.delegate(
        "bad",
        "case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\"}'; exit 1;; esac",
    );
    place.ipam = serde_json::json!({"delegates": ["ipam-ds-static", "ipam-da-local", "bad"]});
    assert_eq!(place.call(Program::Chain, "ADD", "c1").failure().0, 100);
    assert_eq!(place.leases(), before, "a delegate after it failed");
    // What an ADD of this container takes anew is given back.
    assert_eq!(place.call(Program::Chain, "ADD", "c2").failure().0, 100);
    assert_eq!(place.leases(), before);
}

/// Puts a program in ipam-da-local's place that ends without a word on the ADD of this container.
fn kill_on_add(place: &Place, container: &str) {
    let real = ipam_testkit::world::binary("ipam-da-local");
    let script = format!(
        "#!/bin/sh\n[ $CNI_COMMAND,$CNI_CONTAINERID = ADD,{container} ] && kill -9 $$\nexec '{}'\n",
        real.display()
    );
    place.world.program("ipam-da-local", &script);
}

/// Clocks of files are coarse, and what is released for a record goes by time.
fn a_moment_later() {
    std::thread::sleep(std::time::Duration::from_millis(150));
}

#[test]
fn an_undo_after_a_kill_leaves_the_address_from_before() {
    let place = Place::new(&["10.5.0.0/24"]);
    place.add(Program::HostLocal, "c1");
    a_moment_later();
    kill_on_add(&place, "c1");
    place.call(Program::Chain, "ADD", "c1").failure();
    assert_eq!(place.leases().len(), 1, "{:?}", place.leases());
    assert_ne!(place.add(Program::HostLocal, "c2"), ["10.5.0.2"]);
}

#[test]
fn a_del_that_is_repeated_leaves_what_host_local_has_given_since() {
    let place = Place::new(&["10.5.0.0/24"]);
    kill_on_add(&place, "c1");
    place.call(Program::Chain, "ADD", "c1").failure();
    place.call(Program::Chain, "DEL", "c1").success();
    a_moment_later();
    let given = place.add(Program::HostLocal, "c1");
    place.world.make_due();
    place.add(Program::Chain, "c2");
    assert!(place.leases().contains_key(&given[0]), "{:?}", place.leases());
    assert!(!place.world.record("c1").exists(), "the repetition was not due");
}

#[test]
fn a_record_from_before_a_hand_back_releases_nothing_that_came_after() {
    let place = Place::new(&["10.5.0.0/24"]);
    place.add(Program::Chain, "c1");
    place.del(Program::HostLocal, "c1");
    a_moment_later();
    let given = place.add(Program::HostLocal, "c1");
    // The record is old, and of an earlier boot.
    let record = place.world.record("c1");
    let text = std::fs::read_to_string(&record).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let old = text.replace(boot.trim(), "another-boot").replace("\"time\":1", "\"time\":");
    assert_ne!(old, text);
    std::fs::write(&record, old).unwrap();
    let reap = Command::new(ipam_testkit::world::binary("ipam-delegated"))
        .args(["reap", "--yes", "--no-cache", "--state-dir"])
        .arg(place.world.path("state"))
        .output()
        .unwrap();
    assert!(reap.status.success(), "{reap:?}");
    assert!(!record.exists(), "{reap:?}");
    assert!(place.leases().contains_key(&given[0]), "{:?}", place.leases());
}

#[test]
fn a_stripped_del_of_a_container_from_before_releases_it() {
    let place = Place::new(&["10.5.0.0/24"]);
    let host = ipam_testkit::world::Host::new();
    let call = |program, verb: &str, container: &str, network: &Value| {
        let inside = place.command(program, verb, container);
        let mut command: Command = host.enter(inside.get_program());
        command.env_clear();
        command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        ipam_testkit::world::wait(ipam_testkit::world::start(command, network))
    };
    let network =
        ipam_testkit::world::without(&place.network(Program::HostLocal), &["dataDir", "stateDir"]);
    let address = call(Program::HostLocal, "ADD", "c1", &network).ips();
    let stripped = serde_json::json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local"},
    });
    let leases = || common::leases(&host.path("/var/lib/cni/networks/net"));
    assert!(leases().contains_key(&plain(address)[0]));
    call(Program::Preset, "DEL", "c1", &stripped).success();
    assert!(leases().is_empty(), "{:?}", leases());
}

#[test]
fn host_local_goes_on_with_containers_of_ours() {
    for program in Program::OURS {
        let place = Place::new(&BOTH);
        let results = add_all(&place, program, &["a", "b", "c"]);
        place.del(program, "a");
        let kept: BTreeMap<_, _> = results.into_iter().filter(|(name, _)| name != "a").collect();
        check_all(&place, Program::HostLocal, &kept);
        // It goes on in the same order, and refuses who has an address.
        assert_eq!(place.add(Program::HostLocal, "d"), ["10.5.0.5", "fd05::5"]);
        let again = place.call(Program::HostLocal, "ADD", "b");
        assert_ne!(again.exit, Some(0), "{program:?}: {again:?}");
        for container in ["b", "c", "d"] {
            place.call(Program::HostLocal, "DEL", container).success();
        }
        assert!(place.leases().is_empty(), "{program:?}: {:?}", place.leases());
    }
}

#[test]
fn records_of_containers_that_host_local_released_do_no_harm() {
    let place = Place::new(&BOTH);
    place.add(Program::Preset, "a");
    place.call(Program::HostLocal, "DEL", "a").success();
    // Its addresses are others' by now.
    for n in 0..4 {
        place.add(Program::HostLocal, &format!("theirs{n}"));
    }
    place.put("10.5.0.2", "late\r\neth0");
    let before = place.leases();
    place.del(Program::Preset, "a");
    assert_eq!(place.leases(), before);
}

#[test]
fn both_work_on_the_same_leases_for_a_while() {
    let place = Place::new(&BOTH);
    let mut held: BTreeMap<String, (Program, Value)> = BTreeMap::new();
    let programs = [Program::Preset, Program::HostLocal, Program::Chain, Program::Allocator];
    for round in 0..32 {
        let program = programs[round % programs.len()];
        let container = format!("c{round}");
        let result = place.call(program, "ADD", &container).success();
        held.insert(container, (program, result));
        if round % 3 == 2 {
            // Released by another than gave it.
            let (container, (by, _)) = held.pop_first().unwrap();
            let other = programs[(round + 1) % programs.len()];
            place.call(other, "DEL", &container).success();
            // Whoever keeps a record is called once more.
            place.call(by, "DEL", &container).success();
        }
        assert_eq!(place.leases().len(), held.len() * 2, "round {round}");
    }
    for (container, (_, result)) in &held {
        for program in programs {
            place.check(program, container, result).success();
        }
    }
    let mut given: Vec<String> =
        held.values().map(|(_, result)| result["ips"].to_string()).collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), held.len());
}
