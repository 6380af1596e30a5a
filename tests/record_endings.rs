//! How a delegate ended, or why it could not be started, and what its DEL then owes.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use ipam_testkit::kills::strace;
use ipam_testkit::world::{World, binary, start, wait, without};
use serde_json::json;

/// A delegate that takes its address and then ends with an error of this code.
fn failing_after_its_claim(world: &World, code: u32) {
    let held = world.path("held");
    fs::create_dir_all(&held).unwrap();
    world.delegate(
        "a",
        &format!(
            "f='{}'/a-$CNI_CONTAINERID\ncase $CNI_COMMAND in\n\
             ADD) : >\"$f\"; printf '{{\"code\":{code},\"msg\":\"x\"}}'; exit 1;;\nDEL) rm -f \"$f\";; esac",
            held.display()
        ),
    );
}

#[test]
fn a_claim_may_follow_an_answer_that_does_not_say_what_became_of_it() {
    // A defect, no answer in time, and a store that did not answer; against a refusal.
    for (code, state) in [(199, "unsure"), (111, "unsure"), (11, "unsure"), (100, "none")] {
        let world = World::new();
        failing_after_its_claim(&world, code);
        let network = world.network(json!(["a"]));
        assert_eq!(world.call("ADD", "c1", &network).failure().0, u64::from(code));
        let undo = &world.calls()[1]["stdin"]["prevResult"];
        assert_eq!(undo["undo"], if code == 100 { json!(true) } else { json!(null) }, "{code}");
        assert_eq!(undo["fence"].is_object(), code != 100, "{code}: {undo}");
        world.call("DEL", "c1", &network).success();
        assert_eq!(world.state_of("c1"), state, "{code}");
        assert!(world.held().is_empty());
    }
}

#[test]
fn a_delegate_that_reached_no_server_is_owed_no_del() {
    let world = World::new();
    failing_after_its_claim(&world, 105);
    let network = world.network(json!(["a"]));
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 105);
    assert_eq!(world.take_calls(), ["a ADD"]);
    let failed = world.lines("c1").pop().unwrap();
    assert_eq!((&failed["event"], &failed["notRun"]), (&json!("failed"), &json!(true)));
}

#[test]
fn a_program_that_cannot_be_started_is_advised_by_the_reason() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").program("no-interpreter", "#!/no/such/interpreter -e\n");
    world.program("no-program", "\u{7f}ELF of another machine");
    let with_error = |name: &str, inject: &str| {
        let mut command = world.command_of(&strace(), "ADD", "c1");
        command.arg("-o").arg(world.path("log")).arg("-e").arg(format!("inject={inject}"));
        command.arg(binary("ipam-delegated"));
        wait(start(command, &world.network(json!([name])))).failure().1
    };
    let starts = "?clone,?clone3,?vfork,?fork";
    for (name, inject, advice) in [
        ("a", "pipe2:error=EMFILE".to_owned(), "the limit of open files is reached"),
        ("a", format!("{starts}:error=EAGAIN"), "the limit of processes is reached"),
        ("a", format!("{starts}:error=ENOMEM"), "out of memory"),
        (
            "no-interpreter",
            "?uselib:error=EIO".to_owned(),
            "its interpreter \"/no/such/interpreter\"",
        ),
        ("no-program", "?uselib:error=EIO".to_owned(), "for this machine's architecture"),
    ] {
        let text = with_error(name, &inject);
        assert!(text.contains(advice), "{inject}: {text}");
        assert!(!text.contains("reinstall it") || name == "no-program", "{text}");
    }
}

#[test]
fn a_program_without_the_x_bit_is_named_with_the_command_that_mends_it() {
    let world = World::new();
    fs::write(world.path("bin/a"), "#!/bin/sh\n").unwrap();
    let (code, text) = world.call("ADD", "c1", &world.network(json!(["a"]))).failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains(&format!("chmod +x {}", world.path("bin/a").display())), "{text}");
}

#[test]
fn an_add_without_stdout_fails_before_anything_is_taken() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let mut command = world.command_of(Path::new("/bin/sh"), "ADD", "c1");
    command.args(["-c", "exec \"$0\" >&-"]).arg(binary("ipam-delegated"));
    let outcome = wait(start(command, &network));
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("stdout is closed"), "{outcome:?}");
    assert_eq!(world.take_calls(), [""; 0]);
    // A DEL has nothing to say.
    let mut command = world.command_of(Path::new("/bin/sh"), "DEL", "c1");
    command.args(["-c", "exec \"$0\" >&-"]).arg(binary("ipam-delegated"));
    assert_eq!(wait(start(command, &network)).exit, Some(0));
}

#[test]
fn an_add_whose_stdout_is_dev_null_on_purpose_goes_on() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let mut command = world.command("ADD", "c1");
    command.stdout(Stdio::null());
    let outcome = wait(start(command, &world.network(json!(["a"]))));
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    assert_eq!(world.held(), ["a-c1-eth0"]);
}

#[test]
fn a_delegate_whose_time_is_over_says_what_to_do() {
    let world = World::new();
    let mut command = world.command_of(&binary("examples/ipam-ds-rack"), "ADD", "c1");
    command.env("IPAM_DELEGATED_DEADLINE_MS", "200");
    let mut child = command.spawn().unwrap();
    // A configuration that never ends.
    let stdin = child.stdin.take();
    let (code, text) = wait(child).failure();
    drop(stdin);
    assert_eq!(code, 111, "{text}");
    assert!(text.contains("check what it waits for, or raise ipam.timeout"), "{text}");
}

#[test]
fn a_configuration_that_is_no_object_is_told_what_it_must_be() {
    let world = World::new();
    let (code, text) = world.call("ADD", "c1", &json!([1])).failure();
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("expected one JSON object, in braces"), "{text}");
}

#[test]
fn a_network_name_that_no_file_can_have_holds_up_neither_gc_nor_del() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let mut network = world.network(json!(["a"]));
    network["name"] = json!("n".repeat(256));
    network["cniVersion"] = json!("1.1.0");
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 113);
    world.call("DEL", "c1", &network).success();
    network["cni.dev/valid-attachments"] = json!([]);
    let without_attachment = |verb: &str| {
        let mut command = world.command(verb, "");
        for variable in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
            command.env_remove(variable);
        }
        wait(start(command, &network))
    };
    without_attachment("GC").success();
    assert_eq!(world.take_calls(), ["a DEL", "a GC"]);
    let (code, text) = without_attachment("STATUS").failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("expected at most 255"), "{text}");
}

#[test]
fn a_del_does_not_need_a_delegate_that_was_not_there_for_its_add() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a", "gone"]));
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 7);
    assert_eq!(world.events("c1"), ["attempt", "failed"]);
    // The runtime knows of an address that it got before there were records.
    let mut known = network.clone();
    known["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.9/24"}]});
    assert_eq!(world.call("DEL", "c1", &known).failure().0, 7);
    assert_eq!(world.take_calls(), [""; 0]);
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert_eq!(world.records(), [""; 0]);
    // Of an attachment that was never added, nothing is known.
    assert_eq!(world.call("DEL", "c1", &network).failure().0, 7);
}

#[test]
fn a_del_that_is_refused_for_its_settings_fails_where_an_add_gave_something_by_them() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let refuses = "printf '{\"code\":7,\"msg\":\"no such range\"}'; exit 1";
    world.delegate("a", refuses);
    let (code, text) = world.call("DEL", "c1", &network).failure();
    assert!(code == 7 && text.contains("no such range"), "{code}: {text}");
    assert_eq!(world.state_of("c1"), "held");
    // By settings that gave nothing, nothing is held.
    assert_eq!(world.call("ADD", "c2", &network).failure().0, 7);
    let outcome = world.call("DEL", "c2", &network);
    assert!(outcome.stderr.contains("no such range"), "{outcome:?}");
    outcome.success();
}

#[test]
fn an_add_for_want_of_a_delegate_leaves_what_is_recorded_as_it_is() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    world.call("ADD", "c1", &world.network(json!(["a"]))).success();
    let before = fs::read(world.record("c1")).unwrap();
    let network = world.network(json!(["a", "gone"]));
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 7);
    assert_eq!(fs::read(world.record("c1")).unwrap(), before);
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn an_allocator_whose_claim_may_still_commit_stays_owed_a_del_when_a_later_selector_fails() {
    let world = World::new();
    let answer = json!({
        "cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}], "pools": [], "unsure": true,
    });
    world.delegate("ipam-da-a", &format!("[ $CNI_COMMAND = DEL ] || printf '%s' '{answer}'"));
    world.delegate("ipam-ds-b", "printf '{\"code\":100,\"msg\":\"no\"}'; exit 1");
    let network = world.network(json!(["ipam-da-a", "ipam-ds-b"]));
    assert_eq!(world.call("ADD", "c1", &network).failure().0, 100);
    assert_eq!(world.take_calls(), ["ipam-da-a ADD", "ipam-ds-b ADD", "ipam-da-a DEL"]);
    world.call("DEL", "c1", &without(&network, &["delegates"])).success();
    assert_eq!(world.take_calls(), ["ipam-da-a DEL"]);
    assert_eq!(world.state_of("c1"), "unsure", "the DEL is repeated");
}
