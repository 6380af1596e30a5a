//! The attachment record: what is undone, what stays owed, and what is released, with real
//! processes.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use ipam_testkit::world::{World, binary, start, until, wait, with, without};
use serde_json::{Value, json};

/// A chain of two allocators; the second is full.
fn one_then_full(world: &World) -> Value {
    world.allocator("one", "10.0.0.2/24").full("two");
    world.network(json!(["one", "two"]))
}

#[test]
fn a_failed_re_add_undoes_nothing_while_an_address_is_held() {
    let world = World::new();
    let failing = one_then_full(&world);
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    world.call("ADD", "c1", &failing).failure();
    assert_eq!(world.take_calls(), ["one ADD", "two ADD"]);
    assert_eq!(world.held(), ["one-c1-eth0"]);
    assert_eq!(world.state_of("c1"), "held");
    assert_eq!(world.events("c1").last().unwrap(), "failed");
}

#[test]
fn del_after_a_failed_re_add_runs_the_delegates_of_both_adds() {
    let world = World::new();
    let failing = one_then_full(&world);
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    world.call("ADD", "c1", &failing).failure();
    world.take_calls();
    world.call("DEL", "c1", &network).success();
    let calls = world.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == "two DEL").count(), 1, "{calls:?}");
    assert!(calls.contains(&"one DEL".to_owned()), "{calls:?}");
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn an_allocator_edited_out_of_the_chain_stays_owed_a_del() {
    let world = World::new();
    world.allocator("old", "10.0.0.2/24").allocator("new", "10.0.1.2/24");
    let before = with(&world.network(json!(["old"])), "store", "http://old");
    let after = with(&world.network(json!(["new"])), "store", "http://new");
    world.call("ADD", "c1", &before).success();
    assert_eq!(world.call("ADD", "c1", &after).ips(), ["10.0.1.2/24"]);
    world.take_calls();
    world.call("DEL", "c1", &after).success();
    assert!(world.held().is_empty(), "{:?}", world.held());
    let stores: Vec<Value> =
        world.calls().iter().map(|call| call["stdin"]["ipam"]["store"].clone()).collect();
    assert_eq!(stores, ["http://old", "http://new"]);
}

#[test]
fn an_edited_store_gets_a_del_with_each_of_its_recorded_settings() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let plain = world.network(json!(["a"]));
    for store in ["http://old", "http://new"] {
        world.call("ADD", "c1", &with(&plain, "store", store)).success();
    }
    world.take_calls();
    world.call("DEL", "c1", &with(&plain, "store", "http://newest")).success();
    let stores: Vec<Value> =
        world.calls().iter().map(|call| call["stdin"]["ipam"]["store"].clone()).collect();
    assert_eq!(stores, ["http://old", "http://new"]);
}

#[test]
fn del_uses_the_recorded_chain_whatever_the_configuration_names_now() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("other", "10.0.1.2/24");
    let network = world.network(json!(["a"]));
    for edited in [
        world.network(json!(["other"])),
        world.network(json!(["not-installed"])),
        world.network(json!([])),
        without(&network, &["delegates"]),
    ] {
        world.call("ADD", "c1", &network).success();
        world.take_calls();
        world.call("DEL", "c1", &edited).success();
        assert_eq!(world.take_calls(), ["a DEL"], "{edited}");
        assert!(world.held().is_empty() && !world.record("c1").exists());
    }
}

#[test]
fn del_without_cni_path_runs_the_recorded_program() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let mut command = world.command("DEL", "c1");
    command.env_remove("CNI_PATH").env_remove("CNI_NETNS");
    wait(start(command, &network)).success();
    assert!(world.held().is_empty());
}

#[test]
fn del_takes_secrets_from_stdin_and_all_else_from_the_record() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = |password: &str, user: &str| {
        let deep = json!({"user": user, "apiToken": password});
        let plain = world.network(json!([{"type": "a", "own_secret": password, "path": user}]));
        with(&with(&with(&plain, "dbPassword", password), "user", user), "server", deep)
    };
    world.call("ADD", "c1", &network("old", "before")).success();
    world.take_calls();
    world.call("DEL", "c1", &network("rotated", "after")).success();
    let ipam = &world.calls()[0]["stdin"]["ipam"];
    assert_eq!(ipam["dbPassword"], "rotated");
    assert_eq!(ipam["server"], json!({"user": "before", "apiToken": "rotated"}));
    assert_eq!(ipam["own_secret"], "rotated");
    assert_eq!((&ipam["user"], &ipam["path"]), (&json!("before"), &json!("before")));
}

#[test]
fn check_takes_a_rotated_secret_of_the_object_form_too() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = |secret: &str| world.network(json!([{"type": "a", "password": secret}]));
    world.call("ADD", "c1", &network("old")).success();
    world.take_calls();
    world.call("CHECK", "c1", &network("rotated")).success();
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["password"], "rotated");
}

/// The last line of a record.
fn last_event(world: &World, container: &str) -> Value {
    let text = fs::read_to_string(world.record(container)).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_failed_add_is_recorded_with_code_and_message_but_no_secret() {
    let world = World::new();
    let said = r#"{"code":102,"msg":"10.0.0.9 is held; asked with s3cret","details":"by c0"}"#;
    world.delegate("a", &format!("echo '{said}'; exit 1"));
    let network = with(&world.network(json!(["a"])), "token", "s3cret");
    world.call("ADD", "c1", &network).failure();
    let failed = last_event(&world, "c1");
    assert_eq!(failed["code"], 102);
    assert_eq!(failed["message"], "a: 10.0.0.9 is held; asked with …");

    // A delegate that is missing is the reason, too.
    world.call("ADD", "c2", &world.network(json!(["a", "missing"]))).failure();
    let failed = last_event(&world, "c2");
    assert_eq!((&failed["event"], &failed["code"]), (&json!("failed"), &json!(7)));
    assert!(failed["message"].as_str().unwrap().contains("missing"), "{failed}");
}

#[test]
fn the_record_names_pod_and_allocation_and_no_other_cni_args() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let mut command = world.command("ADD", "c1");
    command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web;NOMAD_ALLOC_ID=a1;PASSWORD=s3cret");
    wait(start(command, &network)).success();
    let text = fs::read_to_string(world.record("c1")).unwrap();
    let attempt: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(attempt["cniArgs"], json!({"K8S_POD_NAME": "web", "NOMAD_ALLOC_ID": "a1"}));
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn an_add_whose_reader_has_gone_is_undone() {
    let world = World::new();
    world.gated_allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let mut child = start(world.command("ADD", "c1"), &network);
    world.at_gate("a");
    drop(child.stdout.take());
    world.open_gate("a");
    let outcome = wait(child);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("cannot deliver"), "{outcome:?}");
    assert_eq!(world.take_calls(), ["a ADD", "a DEL"]);
    assert!(world.held().is_empty());
    assert_eq!(world.events("c1").last().unwrap(), "failed");
    assert_eq!(world.state_of("c1"), "failed");
}

#[test]
fn an_add_whose_result_finds_no_room_is_undone() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let mut command = world.command("ADD", "c1");
    command.stdout(Stdio::from(File::options().write(true).open("/dev/full").unwrap()));
    assert_eq!(wait(start(command, &network)).exit, Some(1));
    assert_eq!(world.take_calls(), ["a ADD", "a DEL"]);
    assert!(world.held().is_empty());
    assert_eq!(world.state_of("c1"), "failed");
}

#[test]
fn an_undelivered_re_add_undoes_nothing_and_is_recorded_as_failed() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("b", "10.0.1.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    let mut command = world.command("ADD", "c1");
    command.stdout(Stdio::from(File::options().write(true).open("/dev/full").unwrap()));
    assert_eq!(wait(start(command, &world.network(json!(["b"])))).exit, Some(1));
    assert_eq!(world.take_calls(), ["b ADD"], "the first ADD's address may be in use");
    assert_eq!(world.held(), ["a-c1-eth0", "b-c1-eth0"]);
    assert_eq!(world.events("c1").last().unwrap(), "failed");

    // What is held is still what the first ADD gave.
    let mut checked = network.clone();
    checked["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    world.call("CHECK", "c1", &checked).success();
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty());
}

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
fn without_a_record_a_failing_selector_is_a_warning_when_the_allocator_released() {
    let world = World::new();
    world.delegate("ipam-ds-x", "printf '{\"code\":103,\"msg\":\"api is away\"}'; exit 1");
    world.allocator("a", "10.0.0.2/24");
    let outcome = world.call("DEL", "c1", &world.network(json!(["ipam-ds-x", "a"])));
    assert!(outcome.stderr.contains("ipam-ds-x: api is away"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.take_calls(), ["ipam-ds-x DEL", "a DEL"]);
}

#[test]
fn without_a_record_a_selector_that_is_not_installed_any_more_is_a_warning() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["ipam-ds-gone", "a"]));
    let outcome = world.call("DEL", "c1", &network);
    assert!(outcome.stderr.contains("ipam-ds-gone: cannot start"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 7, "{text}");
}

#[test]
fn without_a_record_a_failing_allocator_is_an_error_and_every_later_one_runs() {
    let world = World::new();
    world.delegate("ipam-ds-x", "printf '{\"code\":103,\"msg\":\"api is away\"}'; exit 1");
    world.delegate("a", "printf '{\"code\":103,\"msg\":\"store is away\"}'; exit 1");
    world.allocator("b", "10.0.0.2/24").allocator("c", "10.0.1.2/24");
    let network = world.network(json!(["ipam-ds-x", "a", "b", "c"]));
    let (code, text) = world.call("DEL", "c1", &network).failure();
    assert_eq!(code, 103);
    assert!(text.contains("a: store is away") && text.contains("api is away"), "{text}");
    assert_eq!(world.take_calls(), ["ipam-ds-x DEL", "a DEL", "b DEL", "c DEL"]);
}

#[test]
fn with_a_record_a_failing_allocator_is_an_error_that_names_forget_and_the_record_stays() {
    let world = World::new();
    world.delegate("a", "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.0.1.2/24\"}]}';; DEL) printf '{\"code\":103,\"msg\":\"store is away\"}'; exit 1;; esac");
    world.allocator("b", "10.0.0.2/24");
    let network = world.network(json!(["a", "b"]));
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    let (code, text) = world.call("DEL", "c1", &network).failure();
    assert_eq!(code, 103);
    assert!(text.contains("a: store is away"), "{text}");
    assert!(text.contains("ipam-delegated forget net c1 eth0 --yes"), "{text}");
    assert_eq!(world.take_calls(), ["a DEL", "b DEL"]);
    assert!(world.held().is_empty() && world.record("c1").exists());
    world.allocator("a", "10.0.1.2/24");
    world.call("DEL", "c1", &network).success();
    assert!(!world.record("c1").exists());
}

#[test]
fn two_hundred_failed_adds_stay_below_64_kib_and_one_attempt() {
    let world = World::new();
    world.full("a");
    let fat = with(&world.network(json!(["a"])), "fat", "x".repeat(4000));
    let mut largest = 0;
    for _ in 0..200 {
        world.call("ADD", "c1", &fat).failure();
        largest = largest.max(fs::metadata(world.record("c1")).unwrap().len());
    }
    assert!(largest < 64 * 1024 + 5000, "{largest}");
    world.take_calls();
    world.call("DEL", "c1", &fat).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn a_hundred_failed_re_adds_keep_what_is_held_and_a_stranger_s_debt() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("earlier", "10.0.1.2/24").full("b");
    world.call("ADD", "c1", &world.network(json!(["earlier"]))).success();
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let failing = with(&world.network(json!(["a", "b"])), "fat", "x".repeat(4000));
    for _ in 0..100 {
        world.call("ADD", "c1", &failing).failure();
    }
    assert!(fs::metadata(world.record("c1")).unwrap().len() < 64 * 1024 + 12_000);
    assert_eq!(world.held(), ["a-c1-eth0", "earlier-c1-eth0"]);
    assert_eq!(world.state_of("c1"), "held");
    let mut checked = network.clone();
    checked["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    world.call("CHECK", "c1", &checked).success();
    world.take_calls();
    world.call("DEL", "c1", &network).success();
    let calls = world.take_calls();
    for delegate in ["earlier DEL", "a DEL", "b DEL"] {
        assert!(calls.iter().any(|call| call == delegate), "{delegate}: {calls:?}");
    }
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn interfaces_of_one_container_have_records_of_their_own() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let call = |verb: &str, ifname: &str| {
        let mut command = world.command(verb, "c1");
        command.env("CNI_IFNAME", ifname);
        wait(start(command, &network)).success();
    };
    call("ADD", "eth0");
    call("ADD", "net1");
    call("DEL", "eth0");
    assert_eq!(world.held(), ["a-c1-net1"]);
    assert_eq!(world.records(), ["c1:net1"]);
    call("DEL", "net1");
    assert!(world.held().is_empty() && world.records().is_empty());
}

#[test]
fn an_undo_that_fails_alike_does_not_say_it_again() {
    let world = World::new();
    world.delegate("a", "printf '{\"code\":103,\"msg\":\"away\"}'; exit 1");
    let (code, text) = world.call("ADD", "c1", &world.network(json!(["a"]))).failure();
    assert_eq!(code, 103, "{text}");
    assert!(text.starts_with("a: away; the undo failed with the same error"), "{text}");
}

#[test]
fn an_undo_that_fails_otherwise_does_not_repeat_the_advice() {
    let world = World::new();
    world.delegate("a", "case $CNI_COMMAND in ADD) msg=away;; *) msg=gone;; esac; printf '{\"code\":103,\"msg\":\"%s\",\"details\":\"look there\"}' $msg; exit 1");
    let (_, text) = world.call("ADD", "c1", &world.network(json!(["a"]))).failure();
    assert!(text.starts_with("a: away: look there; the undo failed: a: gone"), "{text}");
    assert_eq!(text.matches("look there").count(), 1, "{text}");
}

#[test]
fn an_undo_that_fails_leaves_the_record_for_del() {
    let world = World::new();
    world.delegate("a", "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}]}';; DEL) printf '{\"code\":103,\"msg\":\"away\"}'; exit 1;; esac");
    world.full("b");
    let network = world.network(json!(["a", "b"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 100, "the first error's code");
    assert!(text.contains("the undo failed: a: away"), "{text}");
    world.allocator("a", "10.0.0.2/24").take_calls();
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["a DEL", "b DEL"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn records_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    world.call("ADD", "c1", &with(&world.network(json!(["a"])), "password", "x")).success();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let record = world.record("c1");
    assert_eq!(mode(&record), 0o600);
    let folders: Vec<u32> = record.ancestors().skip(1).take(2).map(mode).collect();
    assert_eq!(folders, [0o700; 2]);
}

#[test]
fn attachments_and_forget_work_on_what_adds_left() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    world.call("ADD", "c2", &network).success();
    let typed = |words: &[&str]| {
        let mut command = std::process::Command::new(binary("ipam-delegated"));
        command.env_clear().args(words).arg("--state-dir").arg(world.path("state"));
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (exit, text) = typed(&["attachments", "net", "--json"]);
    let rows: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((exit, rows.as_array().unwrap().len()), (Some(0), 2));
    assert_eq!(rows[0]["addresses"], json!(["10.0.0.2/24"]));
    assert_eq!(rows[0]["state"], "held");

    let (exit, text) = typed(&["forget", "net", "c1"]);
    assert!(exit == Some(0) && text.contains("would forget c1/eth0 on net"), "{text}");
    assert!(world.record("c1").exists());
    let (exit, text) = typed(&["forget", "net", "c1", "eth0", "--yes"]);
    assert!(exit == Some(0) && text.contains("a may still hold 10.0.0.2/24"), "{text}");
    assert!(!world.record("c1").exists() && world.record("c2").exists());
    assert_eq!(world.held().len(), 2, "forget releases nothing");
    assert_eq!(typed(&["forget", "net", "c1", "--yes"]).0, Some(1));
    let (exit, text) = typed(&["forget", "net", "c2", "eth1"]);
    assert!(exit == Some(1) && text.contains("no record of c2/eth1 on net"), "{text}");
}

#[test]
fn a_del_of_a_lost_store_succeeds_once_its_attachment_is_forgotten_twice() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    world.delegate("a", "printf '{\"code\":105,\"msg\":\"store is away\"}'; exit 1");
    let forget = || world.typed(&["forget", "net", "c1", "eth0", "--yes"]).ended_well();
    forget();
    // The configuration still names the store.
    assert_eq!(world.call("DEL", "c1", &network).failure().0, 105);
    forget();
    world.take_calls();
    world.call("DEL", "c1", &network).ended_well();
    assert_eq!(world.take_calls(), [""; 0]);
}

#[test]
fn forget_does_not_touch_a_record_that_a_call_works_on() {
    let world = World::new();
    world.gated_allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let adding = start(world.command("ADD", "c1"), &network);
    world.at_gate("a");
    assert_eq!(world.state_of("c1"), "busy");
    let output = std::process::Command::new(binary("ipam-delegated"))
        .args(["forget", "net", "c1", "--yes", "--state-dir"])
        .arg(world.path("state"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("another call holds the attachment record"), "{text}");
    world.open_gate("a");
    wait(adding).success();
    until("the record to be free", || world.state_of("c1") == "held");
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

#[test]
fn a_link_in_the_place_of_a_record_is_an_error_and_del_goes_on() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    fs::create_dir_all(world.record("c1").parent().unwrap()).unwrap();
    fs::write(world.path("elsewhere"), "").unwrap();
    std::os::unix::fs::symlink(world.path("elsewhere"), world.record("c1")).unwrap();
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 113, "{text}");
    assert!(world.take_calls().is_empty());
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["one DEL"]);
    assert_eq!(fs::read(world.path("elsewhere")).unwrap(), b"");
}

#[test]
fn a_delegate_that_could_not_be_started_is_owed_no_del() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24").program("broken", "#!/no/such/interpreter\n");
    let network = world.network(json!(["one", "broken"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 5, "{text}");
    assert_eq!(world.take_calls(), ["one ADD", "one DEL"]);
    assert_eq!(world.state_of("c1"), "failed");
    world.call("DEL", "c1", &network).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
    // One that ran before stays owed its DEL, whatever becomes of its program.
    let network = world.network(json!(["one"]));
    world.call("ADD", "c1", &network).success();
    fs::remove_file(world.path("bin/one")).unwrap();
    world.program("one", "#!/no/such/interpreter\n");
    world.call("ADD", "c1", &network).failure();
    world.call("DEL", "c1", &network).failure();
    assert_eq!(world.state_of("c1"), "held");
}

#[test]
fn an_answer_that_gives_an_address_twice_is_an_error_and_undone() {
    let world = World::new();
    let twice = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}, {"address": "10.0.0.2/24"}]});
    world.delegate("twice", &format!("[ $CNI_COMMAND != ADD ] || printf '%s' '{twice}'"));
    let (code, text) = world.call("ADD", "c1", &world.network(json!(["twice"]))).failure();
    assert_eq!(code, 110, "{text}");
    assert!(text.contains("twice: its answer gives 10.0.0.2 twice"), "{text}");
    assert_eq!(world.take_calls(), ["twice ADD", "twice DEL"]);
}

#[test]
fn a_delegate_found_by_a_relative_path_is_found_from_another_folder() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    let mut add = world.command("ADD", "c1");
    add.env("CNI_PATH", "bin").current_dir(world.path(""));
    assert_eq!(wait(start(add, &network)).ips(), ["10.0.0.2/24"]);
    let mut del = world.command("DEL", "c1");
    del.env_remove("CNI_PATH").current_dir("/");
    wait(start(del, &network)).success();
    assert!(world.held().is_empty());
}

#[test]
fn an_add_whose_record_is_removed_meanwhile_is_undone() {
    let world = World::new();
    world.gated_allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    let add = start(world.command("ADD", "c1"), &network);
    world.at_gate("one");
    fs::remove_dir_all(world.path("state")).unwrap();
    world.open_gate("one");
    let (code, text) = wait(add).failure();
    assert_eq!(code, 113, "{text}");
    assert!(text.contains("the file was removed"), "{text}");
    assert!(world.held().is_empty());
}

#[test]
fn an_unsure_del_is_repeated_though_the_clock_was_set_back() {
    let world = World::new();
    world.delegate("dies", "[ $CNI_COMMAND != ADD ] || kill -9 $$");
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["dies"]));
    world.call("ADD", "c1", &network).failure();
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "unsure");
    world.take_calls();
    // In the year 2100, by a clock that was wrong.
    world.make_due_at(4_102_444_800_000);
    world.call("ADD", "c2", &world.network(json!(["one"]))).success();
    assert_eq!(world.take_calls(), ["dies DEL", "one ADD"]);
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("none", 0));
}
