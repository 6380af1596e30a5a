//! What a record says, and who may read it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ipam_testkit::world::{World, start, wait, with};
use serde_json::{Value, json};

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
fn records_are_private() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    world.call("ADD", "c1", &with(&world.network(json!(["a"])), "password", "x")).success();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let record = world.record("c1");
    assert_eq!(mode(&record), 0o600);
    let folders: Vec<u32> = record.ancestors().skip(1).take(2).map(mode).collect();
    assert_eq!(folders, [0o700; 2]);
}
