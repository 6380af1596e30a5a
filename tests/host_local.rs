//! host-local's behaviour, case by case: `tests/vectors/host-local.json` says what it did and where
//! the preset `host-local` differs, with the reason. All else is equal.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::vectors::{Fixture, Stage, Vector};
use ipam_testkit::world::{Outcome, World, binary, host_local, names, wait};
use serde_json::{Map, Value, json};

fn fixture() -> Fixture {
    Fixture::parse(include_str!("vectors/host-local.json"))
}

/// Plays a vector with the program that stands as `host-local` in the plugin folder.
fn play(vector: &Vector, world: &World) -> (Vec<Outcome>, Value) {
    let leases = world.path("data/mynet");
    if !vector.before.is_empty() {
        fs::create_dir(&leases).unwrap();
    }
    for (name, content) in &vector.before {
        fs::write(leases.join(name), content).unwrap();
    }
    let outcomes = vector.play(&Stage { world, program: "host-local", places: &[] });
    (outcomes, content(&leases))
}

/// The preset: our program under the name `host-local`.
fn preset() -> World {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-local"));
    symlink(binary("ipam-delegated"), world.path("bin/host-local")).unwrap();
    world
}

/// host-local itself.
fn original() -> World {
    let world = World::new();
    world.install(&host_local());
    world
}

/// The files of a folder, by name and content; none where there is no folder.
fn content(folder: &Path) -> Value {
    let file = |name: String| {
        let text = fs::read_to_string(folder.join(&name)).unwrap();
        (name, Value::String(text))
    };
    Value::Object(names(folder).into_iter().map(file).collect::<Map<_, _>>())
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_with_host_local() {
    let fixture = fixture();
    fixture.differs_only_as_listed(|vector| play(vector, &preset()));
    assert_eq!(fixture.vectors.len(), 41);
}

#[test]
fn host_local_itself_does_what_was_recorded() {
    let fixture = fixture();
    let played = fixture.vectors.iter().filter(|vector| !vector.newer);
    let mut count = 0;
    for vector in played {
        count += 1;
        let (outcomes, after) = play(vector, &original());
        for (step, outcome) in vector.steps.iter().zip(outcomes) {
            let place = format!("{} {}: {outcome:?}", vector.id, step.command);
            assert_eq!(outcome.exit, step.exit, "{place}");
            let mut json = outcome.json();
            if let Some(error) = &step.error {
                assert_eq!(
                    (&json["code"], &json["msg"]),
                    (&error.code.into(), &error.msg.as_str().into()),
                    "{place}"
                );
                continue;
            }
            if let Some(result) = json.as_object_mut() {
                // The older one prints an empty one.
                result.retain(|key, value| key != "dns" || *value != json!({}));
            }
            assert_eq!(json, step.stdout, "{place}");
        }
        assert_eq!(after, json!(vector.after), "{}", vector.id);
    }
    assert_eq!(count, 38);
}

#[test]
fn every_reason_is_a_difference_that_the_preset_lists() {
    fixture().every_reason_is_in(ipam_delegated::presets::HOST_LOCAL_DIFFERENCES);
}

fn network(world: &World, ranges: Value) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "mynet",
        "type": "bridge",
        "ipam": {
            "type": "host-local",
            "ranges": ranges,
            "dataDir": world.path("data"),
            "stateDir": world.path("state"),
        },
    })
}

fn call(world: &World, verb: &str, container: &str, network: &Value) -> Outcome {
    let command = world.command_of(&world.path("bin/host-local"), verb, container);
    wait(ipam_testkit::world::start(command, network))
}

/// The addresses held in `mynet`.
fn leases(world: &World) -> Vec<String> {
    let mut leases = names(&world.path("data/mynet"));
    leases.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
    leases
}

/// The same call with the preset and with host-local itself.
fn both(then: impl Fn(&World) -> Outcome) -> [(World, Outcome); 2] {
    [preset(), original()].map(|world| {
        let outcome = then(&world);
        (world, outcome)
    })
}

#[test]
fn an_add_again_gives_the_same_address() {
    let [(_, ours), (_, theirs)] = both(|world| {
        let network =
            network(world, json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]));
        call(world, "ADD", "c1", &network).success();
        call(world, "ADD", "c1", &network)
    });
    assert_eq!(ours.ips(), ["10.1.2.2/24", "fd00::2/64"]);
    assert!(theirs.failure().1.contains("duplicate allocation is not allowed"));
}

#[test]
fn another_requested_address_takes_the_place_of_the_one_held() {
    let [(our_world, ours), (their_world, theirs)] = both(|world| {
        let mut network = network(world, json!([[{"subnet": "10.1.2.0/24"}]]));
        for address in ["10.1.2.8", "10.1.2.9"] {
            network["args"] = json!({"cni": {"ips": [address]}});
            call(world, "ADD", "c1", &network).success();
        }
        call(world, "DEL", "c2", &network)
    });
    ours.success();
    theirs.success();
    assert_eq!(leases(&our_world), ["10.1.2.9"]);
    assert_eq!(leases(&their_world), ["10.1.2.8", "10.1.2.9"]);
}

#[test]
fn a_failed_add_takes_nothing_from_an_earlier_one() {
    let [(our_world, ours), (their_world, theirs)] = both(|world| {
        let full = json!([{"subnet": "10.9.0.0/30"}]);
        call(world, "ADD", "other", &network(world, json!([full]))).success();
        call(world, "ADD", "c1", &network(world, json!([[{"subnet": "10.1.2.0/24"}]]))).success();
        call(world, "ADD", "c1", &network(world, json!([[{"subnet": "10.3.0.0/24"}], full])))
    });
    assert_eq!(ours.failure().0, 100);
    assert_eq!(theirs.failure().0, 999);
    assert_eq!(leases(&our_world), ["10.1.2.2", "10.9.0.2"]);
    assert_eq!(leases(&their_world), ["10.9.0.2"]);
}

#[test]
fn a_del_does_not_need_a_configuration_that_is_valid_now() {
    let [(our_world, ours), (their_world, theirs)] = both(|world| {
        call(world, "ADD", "c1", &network(world, json!([[{"subnet": "10.1.2.0/24"}]]))).success();
        call(world, "DEL", "c1", &network(world, json!([[{"subnet": "10.1.2.0/33"}]])))
    });
    ours.success();
    assert_eq!(theirs.exit, Some(1));
    assert!(leases(&our_world).is_empty());
    assert_eq!(leases(&their_world), ["10.1.2.2"]);
}

#[test]
fn a_check_looks_for_the_addresses_of_the_result() {
    let [(_, ours), (_, theirs)] = both(|world| {
        let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.3.0.0/24"}]]);
        let mut network = network(world, ranges);
        network["prevResult"] = call(world, "ADD", "c1", &network).success();
        call(world, "CHECK", "c1", &network).success();
        fs::remove_file(world.path("data/mynet/10.3.0.2")).unwrap();
        call(world, "CHECK", "c1", &network)
    });
    let (code, text) = ours.failure();
    assert_eq!(code, 104, "{text}");
    theirs.success();
}

/// Makes a file look as if it had last been written an hour ago.
fn age(file: &Path) {
    let file = fs::File::options().write(true).open(file).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    file.set_modified(std::time::SystemTime::now() - hour).unwrap();
}

/// A lease file as host-local, or one that was killed, has left it an hour ago.
fn old_lease(world: &World, address: &str, content: &str) {
    fs::create_dir_all(world.path("data/mynet")).unwrap();
    let file = world.path("data/mynet").join(address);
    fs::write(&file, content).unwrap();
    age(&file);
}

#[test]
fn an_empty_lease_file_does_not_block_its_address_for_ever() {
    let [(_, ours), (_, theirs)] = both(|world| {
        old_lease(world, "10.1.2.2", "");
        call(world, "ADD", "c1", &network(world, json!([[{"subnet": "10.1.2.0/30"}]])))
    });
    assert_eq!(ours.ips(), ["10.1.2.2/30"]);
    assert!(theirs.failure().1.contains("no IP addresses available"));
}

#[test]
fn gc_releases_what_nobody_lists() {
    let [(our_world, ours), (their_world, theirs)] = both(|world| {
        old_lease(world, "10.1.2.2", "gone\r\neth0");
        old_lease(world, "10.1.2.3", "there\r\neth0");
        let mut network = network(world, json!([[{"subnet": "10.1.2.0/24"}]]));
        network["cniVersion"] = json!("1.1.0");
        network["cni.dev/valid-attachments"] = json!([{"containerID": "there", "ifname": "eth0"}]);
        let mut command = world.command_of(&world.path("bin/host-local"), "GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        wait(ipam_testkit::world::start(command, &network))
    });
    ours.success();
    assert_eq!(leases(&our_world), ["10.1.2.3"]);
    assert_eq!(theirs.exit, Some(1), "1.1.1 does not know the verb");
    assert_eq!(leases(&their_world), ["10.1.2.2", "10.1.2.3"]);
}

#[test]
fn status_tells_that_leases_cannot_be_written() {
    let world = preset();
    fs::write(world.path("data/mynet"), "a file in the place of the folder").unwrap();
    let mut network = network(&world, json!([[{"subnet": "10.1.2.0/24"}]]));
    network["cniVersion"] = json!("1.1.0");
    let mut command = world.command_of(&world.path("bin/host-local"), "STATUS", "");
    command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
    let (code, text) = wait(ipam_testkit::world::start(command, &network)).failure();
    assert_eq!(code, 50, "{text}");
}

#[test]
fn a_lock_that_somebody_holds_is_error_11() {
    let world = preset();
    let mut network = network(&world, json!([[{"subnet": "10.1.2.0/24"}]]));
    network["ipam"]["timeout"] = json!("2s");
    call(&world, "ADD", "c1", &network).success();
    let lock = fs::File::open(world.path("data/mynet/lock")).unwrap();
    lock.lock().unwrap();
    for (verb, container) in [("ADD", "c2"), ("CHECK", "c1"), ("DEL", "c1")] {
        let (code, text) = call(&world, verb, container, &network).failure();
        assert!(code == 11 && text.contains("mynet/lock"), "{verb}: {code}: {text}");
    }
    lock.unlock().unwrap();
    call(&world, "DEL", "c1", &network).success();
}

#[test]
fn subfolders_are_left_alone() {
    let [(our_world, ours), (their_world, theirs)] = both(|world| {
        fs::create_dir_all(world.path("data/mynet/kept")).unwrap();
        fs::write(world.path("data/mynet/kept/10.1.2.2"), "c1\r\neth0").unwrap();
        call(world, "DEL", "c1", &network(world, json!([[{"subnet": "10.1.2.0/24"}]])))
    });
    ours.success();
    theirs.success();
    assert_eq!(names(&our_world.path("data/mynet/kept")), ["10.1.2.2"]);
    assert!(names(&their_world.path("data/mynet/kept")).is_empty());
}

#[test]
fn keys_in_other_letters_are_not_passed_over() {
    let [(our_world, ours), (_, theirs)] = both(|world| {
        let ranges = json!([[{"subnet": "10.1.2.0/24", "RANGESTART": "10.1.2.9"}]]);
        call(world, "ADD", "c1", &network(world, ranges))
    });
    let (code, text) = ours.failure();
    assert!(
        code == 7
            && text
                .contains("ipam.ranges[0][0].RANGESTART: unknown key (did you mean rangeStart?)"),
        "{text}"
    );
    assert!(leases(&our_world).is_empty());
    assert_eq!(theirs.success()["ips"][0]["address"], "10.1.2.9/24");
}

#[test]
fn a_folder_of_leases_may_lie_in_the_working_folder() {
    let [(our_world, ours), (their_world, theirs)] = both(|world| {
        let mut network = network(world, json!([[{"subnet": "10.1.2.0/24"}]]));
        network["ipam"]["dataDir"] = json!("leases");
        let mut command = world.command_of(&world.path("bin/host-local"), "ADD", "c1");
        command.current_dir(world.path(""));
        wait(ipam_testkit::world::start(command, &network))
    });
    assert_eq!(ours.ips(), theirs.ips());
    for world in [our_world, their_world] {
        assert!(world.path("leases/mynet/10.1.2.2").exists());
    }
}

#[test]
fn an_add_needs_the_state_folder() {
    let [(our_world, ours), (_, theirs)] = both(|world| {
        fs::remove_dir(world.path("state")).unwrap();
        fs::write(world.path("state"), "a file in the place of the folder").unwrap();
        call(world, "ADD", "c1", &network(world, json!([[{"subnet": "10.1.2.0/24"}]])))
    });
    let (code, text) = ours.failure();
    assert!([5, 113].contains(&code), "{code}: {text}");
    assert!(leases(&our_world).is_empty());
    theirs.success();
}

#[test]
fn a_date_long_past_on_the_folder_shows_that_nobody_else_changed_it() {
    let world = preset();
    let network = network(&world, json!([[{"subnet": "10.1.2.0/24"}]]));
    call(&world, "ADD", "c1", &network).success();
    let changed = || fs::metadata(world.path("data/mynet")).unwrap().modified().unwrap();
    let year = std::time::Duration::from_secs(365 * 24 * 3600);
    assert!(changed().elapsed().unwrap() > year);
    wait(ipam_testkit::world::start(world.command_of(&host_local(), "ADD", "c2"), &network))
        .success();
    assert!(changed().elapsed().unwrap() < year);
    assert_eq!(call(&world, "ADD", "c3", &network).ips(), ["10.1.2.4/24"]);
}
