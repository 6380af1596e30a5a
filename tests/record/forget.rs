//! The verbs `attachments` and `forget`.

use std::process::Command;

use ipam_testkit::world::{World, binary, start, until, wait};
use serde_json::{Value, json};

#[test]
fn attachments_and_forget_work_on_what_adds_left() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    world.call("ADD", "c2", &network).success();
    let typed = |words: &[&str]| {
        let mut command = Command::new(binary("ipam-delegated"));
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
    let output = Command::new(binary("ipam-delegated"))
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
