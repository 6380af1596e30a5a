//! The verbs, of the delegate alone, in a chain, and under the name host-local.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use ipam_kit::cni::address::{next, previous};
use ipam_testkit::world::{start, wait, with};
use serde_json::{Value, json};

use common::{C1, LONG, Place, Program, owned_by, plain, set_age};

const SUBNET: &str = "10.5.0.0/24";
const BOTH: [&str; 2] = ["10.5.0.0/24", "fd05::/64"];

#[test]
fn an_add_writes_what_host_local_would_write_and_nothing_else() {
    let theirs = Place::new(&BOTH);
    theirs.add(Program::HostLocal, C1);
    for program in Program::OURS {
        let ours = Place::new(&BOTH);
        assert_eq!(ours.add(program, C1), ["10.5.0.2", "fd05::2"]);
        assert_eq!(ours.everything(), theirs.everything(), "{program:?}");
        for name in ours.leases().into_keys() {
            let mode = fs::metadata(ours.folder().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{program:?}");
        }
    }
}

/// host-local's documents name `.2` and `.254`, and `.255` for IPv6.
#[test]
fn ranges_begin_and_end_where_the_subnet_and_the_gateway_leave_room() {
    for (range, first, last) in [
        (json!({"subnet": "10.5.7.0/24"}), "10.5.7.2", "10.5.7.254"),
        (json!({"subnet": "10.5.7.0/24", "gateway": "10.5.7.254"}), "10.5.7.1", "10.5.7.253"),
        (json!({"subnet": "10.5.0.0/16"}), "10.5.0.2", "10.5.255.254"),
        (json!({"subnet": "fd05::/120"}), "fd05::2", "fd05::ff"),
    ] {
        for program in [Program::Allocator, Program::Chain, Program::Preset, Program::HostLocal] {
            let place = Place::new(&[range["subnet"].as_str().unwrap()]);
            let mut network = place.network(program);
            let pools = network.pointer_mut("/prevResult/pools/0/ranges");
            *pools.unwrap_or(&mut Value::Null) = json!([range]);
            let ranges = network.pointer_mut("/ipam/ranges/0");
            *ranges.unwrap_or(&mut Value::Null) = json!([range]);
            let add =
                |container: &str| plain(place.call_with(program, "ADD", container, &network).ips());
            assert_eq!(add(C1), [first], "{program:?} {range}");
            let [first, last] = [first, last].map(|address| address.parse::<IpAddr>().unwrap());
            place.put("last_reserved_ip.0", previous(last).unwrap().to_string());
            let after = next(first).unwrap().to_string();
            assert_eq!([add("c2"), add("c3")].concat(), [last.to_string(), after], "{program:?}");
        }
    }
}

#[test]
fn a_release_is_logged_as_an_address() {
    let place = Place::new(&["10.5.0.0/22"]);
    place.add(Program::Chain, C1);
    let mut command = place.command(Program::Chain, "DEL", C1);
    command.env("IPAM_DELEGATED_LOG", "debug");
    let outcome = wait(start(command, &place.network(Program::Chain)));
    assert!(outcome.stderr.contains("released 10.5.0.2\n"), "{outcome:?}");
}

#[test]
fn add_gives_in_host_locals_order() {
    let places = [Program::Allocator, Program::Chain, Program::Preset, Program::HostLocal]
        .map(|program| (program, Place::new(&["10.5.0.0/29"])));
    for (verb, container) in [
        ("ADD", "a"),
        ("ADD", "b"),
        ("ADD", "c"),
        ("DEL", "a"),
        ("DEL", "b"),
        ("ADD", "d"),
        ("ADD", "e"),
        ("ADD", "f"),
        ("ADD", "g"),
    ] {
        let answers: Vec<String> = places
            .iter()
            .map(|(program, place)| {
                place.call(*program, verb, container).success()["ips"].to_string()
            })
            .collect();
        assert!(
            answers.iter().all(|answer| answer == &answers[3]),
            "{verb} {container}: {answers:?}"
        );
    }
}

#[test]
fn the_same_owner_gets_its_addresses_again() {
    for program in Program::OURS {
        let place = Place::new(&BOTH);
        let first = place.add(program, C1);
        let before = place.everything();
        assert_eq!(place.add(program, C1), first, "{program:?}");
        assert_eq!(place.everything(), before, "{program:?}");
    }
}

#[test]
fn two_interfaces_of_a_container_are_two_owners() {
    for program in Program::OURS {
        let place = Place::new(&[SUBNET]);
        let call = |verb: &str, ifname: &str| {
            let mut command = place.command(program, verb, C1);
            command.env("CNI_IFNAME", ifname);
            wait(start(command, &place.network(program)))
        };
        assert_eq!(call("ADD", "eth0").ips(), ["10.5.0.2/24"]);
        assert_eq!(call("ADD", "eth01").ips(), ["10.5.0.3/24"]);
        call("DEL", "eth0").success();
        assert_eq!(place.leases().into_keys().collect::<Vec<_>>(), ["10.5.0.3"], "{program:?}");
        call("DEL", "eth01").success();
        assert!(place.leases().is_empty(), "{program:?}");
    }
}

#[test]
fn long_container_ids_that_begin_alike_are_different_owners() {
    let place = Place::new(&[SUBNET]);
    let ids = ["x", "y"].map(|end| format!("{}{end}", "c".repeat(249)));
    let addresses = ids.each_ref().map(|id| place.add(Program::Allocator, id));
    assert_ne!(addresses[0], addresses[1]);
    for (id, addresses) in ids.iter().zip(&addresses) {
        assert_eq!(&place.add(Program::Allocator, id), addresses);
    }
    for id in &ids {
        place.del(Program::Allocator, id);
        place.del(Program::Allocator, id);
    }
    assert!(place.leases().is_empty(), "{:?}", place.leases());
}

#[test]
fn del_needs_nothing_of_the_configuration_and_may_be_repeated() {
    for program in Program::OURS {
        let place = Place::new(&BOTH);
        place.add(program, C1);
        place.add(program, "other");
        let mut network = place.network(program);
        network["prevResult"] = Value::Null;
        network["ipam"].as_object_mut().unwrap().remove("ranges");
        for _ in 0..2 {
            let mut command = place.command(program, "DEL", C1);
            command.env_remove("CNI_NETNS");
            assert_eq!(wait(start(command, &network)).success(), Value::Null, "{program:?}");
            assert_eq!(place.leases().len(), 2, "{program:?}");
        }
        assert!(place.leases().values().all(|text| *text == owned_by("other")));
    }
}

#[test]
fn del_goes_to_the_folder_of_the_add() {
    for program in [Program::Chain, Program::Preset] {
        let place = Place::new(&[SUBNET]);
        place.add(program, C1);
        let network = with(
            &place.network(program),
            "dataDir",
            place.world.path("elsewhere").to_str().unwrap(),
        );
        place.call_with(program, "DEL", C1, &network).success();
        assert!(place.leases().is_empty(), "{program:?}");
        assert!(!place.world.path("elsewhere").exists());
    }
}

#[test]
fn calls_that_take_nothing_make_no_folder() {
    let place = Place::new(&[SUBNET]);
    place.del(Program::Allocator, C1);
    place.gc(Program::Allocator, &[]).success();
    place.status(Program::Allocator).success();
    assert!(!place.folder().exists());
}

#[test]
fn check_passes_while_every_address_is_held_and_named() {
    for program in Program::OURS {
        let place = Place::new(&BOTH);
        let result = place.call(program, "ADD", C1).success();
        assert_eq!(place.check(program, C1, &result).success(), Value::Null);
        let mut more = result.clone();
        more["ips"].as_array_mut().unwrap().insert(0, json!({"address": "192.168.0.1/24"}));
        assert_eq!(place.check(program, C1, &more).success(), Value::Null, "{program:?}");
    }
}

#[test]
fn check_fails_when_an_address_is_not_held_or_not_named() {
    for program in Program::OURS {
        let place = Place::new(&BOTH);
        let result = place.call(program, "ADD", C1).success();
        let fails = |result: &Value, address: &str| {
            let (code, text) = place.check(program, C1, result).failure();
            assert_eq!(code, 104, "{program:?}: {text}");
            assert!(text.contains(address), "{text}");
        };
        let lease = place.folder().join("fd05::2");
        fs::write(&lease, owned_by("other")).unwrap();
        fails(&result, "fd05::2");
        fs::write(&lease, owned_by(C1)).unwrap();
        place.check(program, C1, &result).success();
        fs::remove_file(&lease).unwrap();
        fails(&result, "fd05::2");
    }
    // What was given is known from the record, in a chain.
    for program in [Program::Chain, Program::Preset] {
        let place = Place::new(&BOTH);
        let mut result = place.call(program, "ADD", C1).success();
        result["ips"].as_array_mut().unwrap().remove(0);
        let (code, text) = place.check(program, C1, &result).failure();
        assert!(code == 104 && text.contains("10.5.0.2"), "{program:?}: {code} {text}");
    }
}

#[test]
fn check_knows_addresses_of_subnets_with_host_bits() {
    let place = Place::new(&["10.5.0.9/24"]);
    let result = place.call(Program::Allocator, "ADD", C1).success();
    place.put("10.6.0.2", owned_by(C1));
    let [address] = &plain(vec![result["ips"][0]["address"].as_str().unwrap().to_owned()])[..]
    else {
        panic!("{result}")
    };
    place.put(address, owned_by("other"));
    let mut network = place.network(Program::Allocator);
    network["prevResult"]["ips"] = result["ips"].clone();
    let (code, text) = place.call_with(Program::Allocator, "CHECK", C1, &network).failure();
    assert_eq!(code, 104, "{text}");
}

#[test]
fn gc_keeps_what_is_listed_young_or_not_readable() {
    for program in Program::OURS {
        let place = Place::new(&[SUBNET]);
        place.put("10.5.0.100", owned_by("stale"));
        place.put("10.5.0.101", owned_by("kept"));
        place.put("10.5.0.102", "stale\r\neth1");
        place.put("10.5.0.103", "kept");
        place.put("10.5.0.104", "stale");
        place.put("10.5.0.105", "");
        place.put("10.5.0.106", b"\xff");
        place.age(LONG);
        place.put("10.5.0.107", owned_by("young"));
        place.put("10.5.0.108", "");
        place.gc(program, &["kept"]).success();
        let left: Vec<_> = place.leases().into_keys().collect();
        let expected = ["10.5.0.101", "10.5.0.103", "10.5.0.106", "10.5.0.107", "10.5.0.108"];
        assert_eq!(left, expected, "{program:?}");
    }
}

#[test]
fn an_add_makes_a_lease_young_again() {
    let place = Place::new(&[SUBNET]);
    place.add(Program::Allocator, C1);
    place.age(LONG);
    place.add(Program::Allocator, C1);
    place.gc(Program::Allocator, &[]).success();
    assert_eq!(place.leases().len(), 1);
    place.age(LONG);
    place.gc(Program::Allocator, &[]).success();
    assert!(place.leases().is_empty());
}

#[test]
fn gc_takes_a_lease_far_ahead_of_the_clock_for_old_and_one_a_little_ahead_for_young() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/29"]);
        let minute = Duration::from_secs(60);
        for (name, content, ahead) in [
            ("10.5.0.2", owned_by("far"), LONG),
            ("10.5.0.3", owned_by("near"), minute),
            ("10.5.0.4", String::new(), LONG),
            ("10.5.0.5", String::new(), minute),
            ("10.5.0.6", owned_by("kept"), LONG),
        ] {
            let file = fs::File::open(place.put(name, content)).unwrap();
            file.set_modified(SystemTime::now() + ahead).unwrap();
        }
        place.gc(program, &["kept"]).success();
        let left: Vec<_> = place.leases().into_keys().collect();
        assert_eq!(left, ["10.5.0.3", "10.5.0.5", "10.5.0.6"], "{program:?}");
    }
}

#[test]
fn a_full_pool_fails_status_only_when_asked_to() {
    for program in Program::OURS {
        let mut place = Place::new(&["10.5.0.0/30", "10.6.0.0/24"]);
        place.ipam = json!({"statusExhaustion": true});
        place.status(program).success();
        assert_eq!(place.add(program, C1), ["10.5.0.2", "10.6.0.2"]);
        let (code, text) = place.status(program).failure();
        assert_eq!(code, 50, "{program:?}: {text}");
        place.ipam = json!({});
        place.status(program).success();
    }
}

#[test]
fn a_full_second_pool_leaves_everything_as_it_was() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/24", "10.6.0.0/30"]);
        place.add(program, "other");
        let before = place.everything();
        let (code, text) = place.call(program, "ADD", C1).failure();
        assert_eq!(code, 100, "{program:?}: {text}");
        assert!(text.contains("10.6.0.1-10.6.0.2"), "{text}");
        assert_eq!(place.everything(), before, "{program:?}");
        place.del(program, "other");
        assert_eq!(place.add(program, C1).len(), 2);
    }
}

#[test]
fn other_pools_give_other_addresses_and_take_the_old_ones_back() {
    for program in Program::OURS {
        let mut place = Place::new(&["10.5.0.0/24", "fd05::/64"]);
        place.add(program, C1);
        place.subnets = vec!["10.5.0.0/24".to_owned(), "10.7.0.0/24".to_owned()];
        assert_eq!(place.add(program, C1), ["10.5.0.2", "10.7.0.2"], "{program:?}");
        let held: Vec<_> = place.leases().into_keys().collect();
        assert_eq!(held, ["10.5.0.2", "10.7.0.2"], "{program:?}");
    }
}

#[test]
fn a_requested_address_is_given_to_one_owner_only() {
    for program in [Program::Alone, Program::Chain, Program::Preset] {
        let place = Place::new(&[SUBNET]);
        let asks = |container: &str| {
            let mut command = place.command(program, "ADD", container);
            command.env("CNI_ARGS", "IP=10.5.0.50");
            wait(start(command, &place.network(program)))
        };
        assert_eq!(asks(C1).ips(), ["10.5.0.50/24"]);
        assert_eq!(asks(C1).ips(), ["10.5.0.50/24"]);
        let (code, text) = asks("other").failure();
        assert_eq!(code, 102, "{text}");
        assert!(text.contains("c1/eth0"), "the holder is not named: {text}");
        assert_eq!(place.leases().len(), 1);
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for program in Program::OURS {
        let place = Place::new(&[SUBNET]);
        for name in ["..", ".", "../escape", "a/b", "", "/etc", ".hidden"] {
            let mut network = place.network(program);
            network["name"] = name.into();
            let (code, text) = place.call_with(program, "ADD", C1, &network).failure();
            assert_eq!(code, 7, "{program:?} {name:?}: {text}");
        }
        assert!(ipam_testkit::world::names(&place.world.path("data")).is_empty(), "{program:?}");
    }
}

#[test]
fn a_leftover_that_is_old_enough_is_reused() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/30"]);
        let path = place.put("10.5.0.2", "");
        let (code, _) = place.call(program, "ADD", C1).failure();
        assert_eq!(code, 100);
        set_age(&path, LONG);
        assert_eq!(place.add(program, C1), ["10.5.0.2"], "{program:?}");
    }
}

#[test]
fn gc_keeps_the_lease_of_a_record_that_cannot_be_read_until_it_is_forgotten() {
    for program in [Program::Chain, Program::Preset] {
        let place = Place::new(&[SUBNET]);
        place.add(program, C1);
        fs::write(place.world.record(C1), "no event\n").unwrap();
        place.age(LONG);
        for _ in 0..2 {
            place.gc(program, &[]).success();
            assert_eq!(place.leases().len(), 1, "{program:?}");
        }
        place.world.typed(&["forget", "net", C1, "--yes"]);
        place.gc(program, &[]).success();
        assert!(place.leases().is_empty(), "{program:?}");
    }
}

#[test]
fn a_del_of_the_chains_own_that_cannot_be_read_is_about_nothing() {
    let place = Place::new(&[SUBNET]);
    let result = place.call(Program::Allocator, "ADD", C1).success();
    let mut network = place.network(Program::Allocator);
    for (prev_result, path) in [
        (json!({"fence": {"after": "soon"}}), "prevResult.fence.after"),
        (json!({"fence": {"before": 7}}), "prevResult.fence"),
        (json!({"fence": []}), "prevResult.fence"),
        (json!({"undo": "yes"}), "prevResult.undo"),
        (json!({"undo": true, "leases": [{"address": 7}]}), "prevResult.leases[0].address"),
        (json!({"fence": {"after": 0}, "leases": 7}), "prevResult.leases"),
    ] {
        network["prevResult"] = prev_result.clone();
        let (code, text) = place.call_with(Program::Allocator, "DEL", C1, &network).failure();
        assert!(code == 7 && text.contains(path), "{prev_result}: {code}: {text}");
        assert_eq!(place.leases().len(), 1, "{prev_result}");
    }
    // What stands beside is not its affair, and without either it is the runtime's own.
    network["prevResult"] = json!({"undo": true, "ips": 7, "leases": []});
    place.call_with(Program::Allocator, "DEL", C1, &network).success();
    network["prevResult"] = json!({"fence": {"after": 7, "before": 8}, "leases": []});
    place.call_with(Program::Allocator, "DEL", C1, &network).success();
    assert_eq!(place.leases().len(), 1);
    network["prevResult"] = json!({"ips": 7, "leases": "none", "routes": result["ips"]});
    place.call_with(Program::Allocator, "DEL", C1, &network).success();
    assert!(place.leases().is_empty());
}
