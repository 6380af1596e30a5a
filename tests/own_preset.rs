//! The example of a preset of one's own, `examples/own-preset.rs`, works as it says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ipam_testkit::world::{World, binary, start, wait};
use serde_json::{Value, json};

/// A world with the parts of the example's preset `rack-local`, in shell.
fn world_of_preset() -> World {
    let world = World::new();
    world.selector("ipam-ds-static", &json!([{"name": "a"}]));
    world.selector("ipam-ds-rack", &json!([{"name": "blue"}]));
    world.allocator("host-local", "10.0.0.2/24").allocator("ipam-da-site", "10.0.1.2/24");
    world
}

fn own_preset() -> PathBuf {
    binary("examples/own-preset")
}

/// Copies a program. A file that this process had open for writing could not be run at once.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn a_preset_is_the_name_the_program_was_started_under() {
    let world = world_of_preset();
    world.install_as(&own_preset(), "rack-local");
    let mut network = world.network(json!(["ignored: the preset says which"]));
    network["ipam"]["type"] = json!("rack-local");
    let program = world.path("bin").join("rack-local");
    let call = |verb| {
        let command = world.command_of(&program, verb, "c1");
        wait(start(command, &network))
    };
    assert_eq!(call("ADD").ips(), ["10.0.0.2/24"]);
    let seen = world.calls();
    assert_eq!(seen[1]["stdin"]["ipam"]["dataDir"], "/var/lib/cni/rack-local", "a fixed setting");
    assert_eq!(seen[1]["stdin"]["ipam"]["type"], "host-local");
    call("CHECK").success();
    call("DEL").success();
    assert_eq!(
        world.take_calls(),
        ["ipam-ds-static ADD", "host-local ADD", "host-local CHECK", "host-local DEL"]
    );
    assert!(world.held().is_empty());

    network["ipam"]["scope"] = json!("site");
    let add = wait(start(world.command_of(&program, "ADD", "c2"), &network));
    assert_eq!(add.ips(), ["10.0.1.2/24"]);
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["rackFile"], "/etc/rack");
    assert_eq!(world.take_calls(), ["ipam-ds-rack ADD", "ipam-da-site ADD"]);
}

#[test]
fn a_preset_among_delegates_is_replaced_by_its_parts() {
    let world = world_of_preset();
    world.install_as(&own_preset(), "rack-local");
    world.selector("ipam-ds-first", &json!([{"name": "first"}]));
    let preset = json!({"type": "rack-local", "scope": "site", "mark": 7, "timeout": "4s"});
    let network = world.network(json!(["ipam-ds-first", preset]));
    let call = |verb| wait(start(world.command_of(&own_preset(), verb, "c1"), &network));
    assert_eq!(call("ADD").ips(), ["10.0.1.2/24"]);
    let seen = world.calls();
    assert_eq!(seen[0]["stdin"]["ipam"].get("mark"), None, "it is the preset's own");
    for part in &seen[1..] {
        assert_eq!(part["stdin"]["ipam"]["mark"], 7);
        assert_eq!(part["stdin"]["ipam"]["rackFile"], "/etc/rack");
    }
    assert_eq!(world.take_calls(), ["ipam-ds-first ADD", "ipam-ds-rack ADD", "ipam-da-site ADD"]);
    let record = fs::read_to_string(world.record("c1")).unwrap();
    let attempt: Value = serde_json::from_str(record.lines().next().unwrap()).unwrap();
    assert_eq!(attempt["chain"], json!(["ipam-ds-first", "ipam-ds-rack", "ipam-da-site"]));
    call("DEL").success();
    assert_eq!(world.take_calls(), ["ipam-da-site DEL"]);
}

#[test]
fn a_copy_of_the_program_is_the_preset_too() {
    let world = world_of_preset();
    copy(&own_preset(), &world.path("bin").join("rack-local"));
    let network = world.network(json!(["rack-local"]));
    let add = wait(start(world.command_of(&own_preset(), "ADD", "c1"), &network));
    assert_eq!(add.ips(), ["10.0.0.2/24"]);
}

#[test]
fn a_foreign_program_of_a_presets_name_runs_as_itself() {
    let world = world_of_preset();
    world.allocator("rack-local", "10.0.9.2/24");
    let network = world.network(json!(["rack-local"]));
    let add = wait(start(world.command_of(&own_preset(), "ADD", "c1"), &network));
    assert_eq!(add.ips(), ["10.0.9.2/24"]);
    assert_eq!(world.take_calls(), ["rack-local ADD"]);
}

#[test]
fn what_was_held_before_a_preset_took_over_is_released_by_the_program_kept_aside() {
    let world = world_of_preset();
    world.allocator("rack-local", "10.0.9.2/24");
    let network = world.network(json!(["ipam-ds-static", "rack-local"]));
    let call = |verb| wait(start(world.command_of(&own_preset(), verb, "c1"), &network));
    call("ADD").success();
    let bin = world.path("bin");
    fs::rename(bin.join("rack-local"), bin.join("rack-local.orig")).unwrap();
    world.install_as(&own_preset(), "rack-local");
    call("CHECK").success();
    call("DEL").success();
    assert!(world.held().is_empty());
    let calls = world.take_calls();
    assert_eq!(calls[2..], ["rack-local CHECK", "rack-local DEL"]);
}

#[test]
fn a_preset_is_known_after_an_upgrade_by_rename() {
    let world = world_of_preset();
    let program = world.path("bin").join("ipam-delegated");
    copy(&own_preset(), &program);
    symlink("ipam-delegated", world.path("bin").join("rack-local")).unwrap();
    let network = world.network(json!(["rack-local"]));
    // It waits for its stdin while the next version takes its place.
    let mut child = world.command_of(&program, "ADD", "c1").spawn().unwrap();
    let next = world.path("next");
    copy(&own_preset(), &next);
    let grow = Command::new("sh").args(["-c", "echo newer >>\"$0\""]).arg(&next).status();
    assert!(grow.unwrap().success());
    fs::rename(&next, &program).unwrap();
    child.stdin.take().unwrap().write_all(network.to_string().as_bytes()).unwrap();
    assert_eq!(wait(child).ips(), ["10.0.0.2/24"]);
    assert_eq!(world.take_calls(), ["ipam-ds-static ADD", "host-local ADD"]);
}

#[test]
fn a_chain_does_not_run_inside_a_chain() {
    let world = world_of_preset();
    // Another build of the meta-plugin: not our own file, so it runs, and refuses.
    world.install(&binary("ipam-delegated"));
    let network = world.network(json!(["ipam-delegated"]));
    let (code, text) =
        wait(start(world.command_of(&own_preset(), "ADD", "c1"), &network)).failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("ipam-delegated was run by the chain of ipam-delegated"), "{text}");

    // Our own file, under a name that is no preset: refused before anything runs.
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 7);
    assert!(text.contains("is ipam-delegated itself"), "{text}");
    assert!(world.take_calls().is_empty());
}

#[test]
fn secrets_of_the_object_form_rotate() {
    let world = world_of_preset();
    world.install_as(&own_preset(), "rack-local");
    let tokens = |delegates: fn(&str) -> Value| {
        let call = |verb, token| {
            let command = world.command_of(&own_preset(), verb, "c1");
            wait(start(command, &world.network(delegates(token)))).success()
        };
        call("ADD", "1");
        call("CHECK", "2");
        call("DEL", "3");
        let calls = world.calls().into_iter();
        world.take_calls();
        calls
            .filter(|call| call["delegate"] == "ipam-da-site")
            .map(|call| call["stdin"]["ipam"]["apiToken"].clone())
            .collect::<Vec<_>>()
    };
    let own = |t: &str| json!(["ipam-ds-rack", {"type": "ipam-da-site", "apiToken": t}]);
    assert_eq!(tokens(own), ["1", "2", "3"]);
    let of_preset = |t: &str| json!([{"type": "rack-local", "scope": "site", "apiToken": t}]);
    assert_eq!(tokens(of_preset), ["1", "2", "3"]);
    let of_one_among_two = |t: &str| {
        let other =
            json!({"type": "ipam-da-site", "serves": ["red"], "site": "a", "apiToken": "x"});
        let ours = json!({"type": "ipam-da-site", "serves": ["blue"], "site": "b", "apiToken": t});
        json!(["ipam-ds-rack", other, ours])
    };
    assert_eq!(tokens(of_one_among_two), ["1", "2", "3"]);
}
