//! What the machine brings: the default state folder, host-wide settings, node identity, full and
//! read-only disks, and GC under its grace. Each test has a mount namespace of its own.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::path::PathBuf;

use ipam_testkit::world::{Host, World, start, wait, with, without};
use serde_json::{Value, json};

const STATE: &str = "/var/lib/cni/ipam-delegated";

/// A network whose state lies where the host-wide settings say.
fn network(world: &World, delegates: Value) -> Value {
    without(&world.network(delegates), &["stateDir"])
}

fn record(host: &Host, container: &str) -> PathBuf {
    host.path(&format!("{STATE}/attachments/net/{container}:eth0"))
}

/// What some runtimes make of a configuration before they call DEL.
fn stripped() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
}

/// An ADD whose chain is killed while its allocator runs, which then takes its address. The network.
fn killed_add(world: &World, host: &Host) -> Value {
    world.gated_allocator("a", "10.0.0.2/24");
    let network = network(world, json!(["a"]));
    let mut adding = start(host.command(world, "ADD", "c1"), &network);
    world.at_gate("a");
    ipam_testkit::world::kill_now(&mut adding);
    world.open_gate("a");
    network
}

#[test]
fn a_stripped_del_releases_from_the_record() {
    let (world, host) = (World::new(), Host::new());
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).allocator("a", "10.0.0.2/24");
    let network = with(&network(&world, json!(["ipam-ds-x", "a"])), "prefix", "/x");
    let outcome = host.call(&world, "ADD", "c1", &network);
    assert!(!outcome.stderr.contains("stateDir"), "{outcome:?}");
    outcome.success();
    assert!(record(&host, "c1").exists());
    world.take_calls();
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["prefix"], "/x");
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(world.held().is_empty() && !record(&host, "c1").exists());
}

#[test]
fn a_stripped_del_without_a_record_succeeds_with_a_warning() {
    let (world, host) = (World::new(), Host::new());
    let outcome = host.call(&world, "DEL", "c1", &stripped());
    assert!(outcome.stderr.contains("nothing to release"), "{outcome:?}");
    assert_eq!(outcome.success(), Value::Null);
    assert!(!record(&host, "c1").exists());
}

#[test]
fn a_stripped_del_whose_record_cannot_be_read_is_an_error() {
    let (world, host) = (World::new(), Host::new());
    host.shell(&format!("mkdir -p {STATE}/attachments/net/c1/eth0"));
    let (code, text) = host.call(&world, "DEL", "c1", &stripped()).failure();
    assert_eq!(code, 113, "{text}");
    assert!(text.contains("cannot be read"), "{text}");
}

#[test]
fn a_state_folder_from_the_network_configuration_is_warned_of() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let outcome = world.call("ADD", "c1", &world.network(json!(["a"])));
    assert!(outcome.stderr.contains("ipam.stateDir is set"), "{outcome:?}");
}

#[test]
fn the_settings_choose_the_state_folder() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.settings(&json!({"stateDir": world.path("state")}));
    host.call(&world, "ADD", "c1", &network(&world, json!(["a"]))).success();
    assert!(world.record("c1").exists() && !record(&host, "c1").exists());
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert!(world.held().is_empty());
}

#[test]
fn invalid_settings_fail_every_verb_and_name_the_file() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"stateDirectory": "/x"}));
    for verb in ["ADD", "DEL", "CHECK"] {
        let (code, text) = host.call(&world, verb, "c1", &stripped()).failure();
        assert_eq!(code, 7);
        assert!(text.contains("/etc/cni/ipam-delegated.json: stateDirectory"), "{text}");
    }
}

/// A small disk as state folder.
fn small_disk(host: &Host) {
    host.shell(&format!("mkdir {STATE}; mount -t tmpfs -o size=64k,nr_inodes=40 tmpfs {STATE}"));
}

/// Leaves neither a byte nor a file.
fn fill(host: &Host) {
    host.shell(&format!(
        "cd {STATE}; cat /dev/zero >filling 2>/dev/null || true; n=0; while touch filling.$n; do n=$((n+1)); done 2>/dev/null"
    ));
    assert!(fs::write(host.path(&format!("{STATE}/one-more")), "x").is_err(), "the disk is full");
}

/// Leaves no byte, but room for files without content.
fn fill_bytes(host: &Host) {
    host.shell(&format!("cat /dev/zero >{STATE}/filling 2>/dev/null || true"));
}

#[test]
fn del_with_a_record_needs_no_room_on_the_disk() {
    for filler in [fill, fill_bytes] {
        let (world, host) = (World::new(), Host::new());
        small_disk(&host);
        world.allocator("a", "10.0.0.2/24");
        let network = network(&world, json!(["a"]));
        host.call(&world, "ADD", "c1", &network).success();
        filler(&host);
        world.take_calls();
        host.call(&world, "DEL", "c1", &stripped()).success();
        assert_eq!(world.take_calls(), ["a DEL"]);
        assert!(world.held().is_empty() && !record(&host, "c1").exists());
    }
}

#[test]
fn del_without_a_record_needs_no_room_on_the_disk() {
    for filler in [fill, fill_bytes] {
        let (world, host) = (World::new(), Host::new());
        small_disk(&host);
        filler(&host);
        world.allocator("a", "10.0.0.2/24");
        host.call(&world, "DEL", "c1", &network(&world, json!(["a"]))).success();
        assert_eq!(world.take_calls(), ["a DEL"]);
        assert!(!record(&host, "c1").exists());
    }
}

#[test]
fn an_unsure_del_on_a_full_disk_releases_and_succeeds() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    let network = killed_add(&world, &host);
    fill(&host);
    let outcome = host.call(&world, "DEL", "c1", &network);
    assert!(outcome.stderr.contains("cannot record that"), "{outcome:?}");
    outcome.success();
    assert!(world.held().is_empty());
}

/// What `c1` holds is recorded in a state folder that takes no more.
fn held_on_a_read_only_disk() -> (World, Host, Value) {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    world.allocator("a", "10.0.0.2/24");
    let network = network(&world, json!(["a"]));
    host.call(&world, "ADD", "c1", &network).success();
    host.shell(&format!("mount -o remount,ro {STATE}"));
    (world, host, network)
}

#[test]
fn del_works_on_a_read_only_state_folder() {
    let (world, host, network) = held_on_a_read_only_disk();
    world.take_calls();
    let outcome = host.call(&world, "DEL", "c1", &stripped());
    assert!(outcome.stderr.contains("cannot remove the attachment record"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(world.held().is_empty());
    // Of another attachment nothing is recorded.
    host.call(&world, "DEL", "c2", &network).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
}

#[test]
fn the_delegate_of_a_killed_del_excludes_others_on_a_read_only_state_folder_too() {
    let (world, host, network) = held_on_a_read_only_disk();
    world.delegate("a", &world.gate("a"));
    world.take_calls();
    let mut one = start(host.command(&world, "DEL", "c1"), &network);
    world.at_gate("a");
    ipam_testkit::world::kill_now(&mut one);
    let two = start(host.command(&world, "DEL", "c1"), &network);
    assert!(world.waits_for_lock(&two, "c1"));
    assert_eq!(world.calls().len(), 1);
    world.open_gate("a");
    wait(two).success();
    assert_eq!(world.take_calls(), ["a DEL", "a DEL"]);
}

#[test]
fn an_unsure_del_on_a_read_only_state_folder_releases_and_succeeds() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    let network = killed_add(&world, &host);
    // The survivor writes nothing there, but has the record open.
    ipam_testkit::world::until("the disk to be read-only", || {
        let remount = format!("mount -o remount,ro {STATE}");
        host.enter("/bin/sh").args(["-c", &remount]).output().unwrap().status.success()
    });
    host.call(&world, "DEL", "c1", &network).success();
    assert!(world.held().is_empty());
}

#[test]
fn an_add_on_a_full_disk_fails_before_any_delegate_runs_and_leaves_nothing() {
    for (filler, established) in
        [(fill as fn(&Host), true), (fill, false), (fill_bytes, true), (fill_bytes, false)]
    {
        let (world, host) = (World::new(), Host::new());
        small_disk(&host);
        world.allocator("a", "10.0.0.2/24");
        let network = network(&world, json!(["a"]));
        if established {
            host.call(&world, "ADD", "c0", &network).success();
            world.take_calls();
        }
        filler(&host);
        let files = || fs::read_dir(host.path(STATE)).unwrap().count();
        let before = files();
        let (code, text) = host.call(&world, "ADD", "c1", &network).failure();
        assert!(code == if established { 113 } else { 5 }, "{code} {text}");
        assert!(text.contains("No space left on device"), "{text}");
        assert!(world.take_calls().is_empty());
        assert!(!record(&host, "c1").exists());
        assert_eq!(files(), before);
    }
}

#[test]
fn status_says_that_a_full_disk_has_no_room_for_a_record() {
    for filler in [fill as fn(&Host), fill_bytes] {
        let (world, host) = (World::new(), Host::new());
        small_disk(&host);
        world.allocator("a", "10.0.0.2/24");
        let mut network = network(&world, json!(["a"]));
        network["cniVersion"] = "1.1.0".into();
        host.call(&world, "STATUS", "", &network).success();
        filler(&host);
        let (code, text) = host.call(&world, "STATUS", "", &network).failure();
        assert_eq!(code, 50, "{text}");
        assert!(text.contains("No space left on device"), "{text}");
    }
}

#[test]
fn an_add_that_finds_no_room_for_its_end_is_undone() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    world.gated_allocator("a", "10.0.0.2/24");
    // An attempt and a running delegate find room, what is held does not.
    let network = with(&network(&world, json!(["a"])), "fat", "x".repeat(3500));
    let adding = start(host.command(&world, "ADD", "c1"), &network);
    world.at_gate("a");
    fill(&host);
    // The rest of the record's last page.
    let mut path = fs::OpenOptions::new().append(true).open(record(&host, "c1")).unwrap();
    let size = usize::try_from(path.metadata().unwrap().len()).unwrap();
    let rest = (4096 - size % 4096) % 4096;
    std::io::Write::write_all(&mut path, &vec![b' '; rest.saturating_sub(1)]).unwrap();
    std::io::Write::write_all(&mut path, if rest > 0 { b"\n" } else { b"" }).unwrap();
    world.open_gate("a");
    let (code, text) = wait(adding).failure();
    assert_eq!(code, 113, "{text}");
    assert_eq!(world.take_calls(), ["a ADD", "a DEL"]);
    assert!(world.held().is_empty());
}

#[test]
fn an_add_on_a_read_only_state_folder_fails_before_any_delegate_runs() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    host.shell(&format!("mount -o remount,ro {STATE}"));
    world.allocator("a", "10.0.0.2/24");
    host.call(&world, "ADD", "c1", &network(&world, json!(["a"]))).failure();
    assert!(world.take_calls().is_empty());
}

/// What the machine calls itself in its state folder.
fn identity(host: &Host) -> Value {
    serde_json::from_slice(&fs::read(host.path(&format!("{STATE}/node"))).unwrap()).unwrap()
}

fn node_of_add(world: &World, host: &Host, container: &str) -> Value {
    world.take_calls();
    host.call(world, "ADD", container, &network(world, json!(["a"]))).success();
    world.calls()[0]["stdin"]["ipam"]["node"].clone()
}

/// A machine that was cloned from another one, which held `c1`.
fn cloned(world: &World, host: &Host) -> String {
    host.shell("echo 0123456789abcdef0123456789abcdef >/var/log/cni/id; mount --bind /var/log/cni/id /etc/machine-id");
    world.allocator("a", "10.0.0.2/24");
    let original = node_of_add(world, host, "c1");
    assert_eq!(identity(host)["machineId"], "0123456789abcdef0123456789abcdef");
    host.shell("echo fedcba9876543210fedcba9876543210 >/var/log/cni/id");
    world.take_calls();
    original.as_str().unwrap().to_owned()
}

#[test]
fn a_cloned_machine_gets_a_node_of_its_own_and_sets_the_records_aside() {
    let (world, host) = (World::new(), Host::new());
    let original = cloned(&world, &host);
    let outcome = host.call(&world, "ADD", "c2", &network(&world, json!(["a"])));
    assert!(outcome.stderr.contains("came from another machine"), "{outcome:?}");
    outcome.success();
    let node = identity(&host)["uuid"].clone();
    assert_ne!(node, original.as_str());
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["node"], node);
    assert!(host.path(&format!("{STATE}/attachments.{original}/net/c1:eth0")).exists());
    assert!(!record(&host, "c1").exists());
    assert_eq!(node_of_add(&world, &host, "c3"), node, "it is kept");
}

#[test]
fn del_on_a_clone_does_not_act_on_the_records_of_the_original() {
    let (world, host) = (World::new(), Host::new());
    let original = cloned(&world, &host);
    let outcome = host.call(&world, "DEL", "c1", &stripped());
    assert!(outcome.stderr.contains("nothing to release"), "{outcome:?}");
    outcome.success();
    assert!(world.take_calls().is_empty());
    assert!(host.path(&format!("{STATE}/attachments.{original}/net/c1:eth0")).exists());
}

#[test]
fn del_on_a_clone_whose_state_folder_is_read_only_fails_rather_than_release() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    cloned(&world, &host);
    host.shell(&format!("mount -o remount,ro {STATE}"));
    let (code, text) = host.call(&world, "DEL", "c1", &stripped()).failure();
    assert_eq!(code, 113, "{text}");
    assert!(text.contains("records of another machine"), "{text}");
    assert_eq!(world.held(), ["a-c1-eth0"]);
    // Where there is nothing to set aside, DEL goes on.
    host.shell(&format!(
        "mount -o remount,rw {STATE}; rm -r {STATE}/attachments; mount -o remount,ro {STATE}"
    ));
    host.call(&world, "DEL", "c1", &stripped()).success();
}

#[test]
fn del_on_a_clone_whose_disk_is_full_sets_the_records_aside() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    let original = cloned(&world, &host);
    fill(&host);
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert!(host.path(&format!("{STATE}/attachments.{original}/net/c1:eth0")).exists());
    assert_eq!(world.held(), ["a-c1-eth0"]);
}

#[test]
fn a_clone_whose_disk_was_full_adds_again_once_there_is_room() {
    let (world, host) = (World::new(), Host::new());
    small_disk(&host);
    let original = cloned(&world, &host);
    fill_bytes(&host);
    for container in ["c1", "c2"] {
        host.call(&world, "DEL", container, &stripped()).success();
    }
    fs::remove_file(host.path(&format!("{STATE}/filling"))).unwrap();
    assert_ne!(node_of_add(&world, &host, "c3"), original.as_str());
    assert!(host.path(&format!("{STATE}/attachments.{original}/net/c1:eth0")).exists());
}

#[test]
fn gc_on_a_clone_does_not_act_on_the_records_of_the_original() {
    let (world, host) = (World::new(), Host::new());
    cloned(&world, &host);
    host.settings(&json!({"gcGrace": "0s"}));
    gc(&world, &host, &["a"], &json!([])).success();
    assert_eq!(world.take_calls(), ["a GC"], "no DEL");
    assert_eq!(world.held(), ["a-c1-eth0"]);
}

#[test]
fn a_repetition_is_not_due_on_a_clone() {
    let (world, host) = (World::new(), Host::new());
    cloned(&world, &host);
    host.shell(&format!(
        "mkdir {STATE}/unsure; ln -s net/c1/eth0 {STATE}/unsure/000000000000001.1.0"
    ));
    host.call(&world, "ADD", "c2", &network(&world, json!(["a"]))).success();
    assert_eq!(world.take_calls(), ["a ADD"]);
    assert!(!host.path(&format!("{STATE}/unsure")).exists());
}

#[test]
fn first_adds_at_once_agree_on_one_node() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    let network = network(&world, json!(["a"]));
    let calls: Vec<_> =
        (0..6).map(|i| start(host.command(&world, "ADD", &format!("c{i}")), &network)).collect();
    calls.into_iter().for_each(|call| {
        wait(call).success();
    });
    let node = identity(&host)["uuid"].clone();
    let seen: Vec<Value> =
        world.calls().iter().map(|call| call["stdin"]["ipam"]["node"].clone()).collect();
    assert_eq!(seen, vec![node; 6]);
}

#[test]
fn the_node_of_the_settings_overrides_the_identity() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.settings(&json!({"node": "rack1-7"}));
    assert_eq!(node_of_add(&world, &host, "c1"), "rack1-7");
    assert!(!host.path(&format!("{STATE}/node")).exists());
    // DEL uses the node that the record names.
    host.settings(&json!({"node": "rack1-8"}));
    world.take_calls();
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["node"], "rack1-7");
}

/// GC of `net` with a list of valid attachments.
fn gc(
    world: &World,
    host: &Host,
    delegates: &[&str],
    valid: &Value,
) -> ipam_testkit::world::Outcome {
    let mut network = network(world, json!(delegates));
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = valid.clone();
    gc_of(world, host, &network)
}

fn gc_of(world: &World, host: &Host, network: &Value) -> ipam_testkit::world::Outcome {
    let mut command = host.command(world, "GC", "");
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
        command.env_remove(variable);
    }
    wait(start(command, network))
}

fn entry(container: &str) -> Value {
    json!({"containerID": container, "ifname": "eth0"})
}

#[test]
fn gc_releases_stale_records_with_their_recorded_chain() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"gcGrace": "0s"}));
    world.allocator("old", "10.0.0.2/24").allocator("new", "10.0.1.2/24");
    for container in ["c1", "c2"] {
        host.call(&world, "ADD", container, &network(&world, json!(["old"]))).success();
    }
    world.take_calls();
    gc(&world, &host, &["new"], &json!([entry("c2")])).success();
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["old DEL", "new GC"]);
    assert_eq!(calls[0]["container"], "c1");
    assert_eq!(world.held(), ["old-c2-eth0"]);
    assert!(!record(&host, "c1").exists() && record(&host, "c2").exists());
    assert_eq!(calls[1]["stdin"]["cni.dev/valid-attachments"], json!([entry("c2")]));
}

#[test]
fn gc_keeps_what_is_younger_than_its_grace_and_tells_the_delegates() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.call(&world, "ADD", "c1", &network(&world, json!(["a"]))).success();
    world.take_calls();
    gc(&world, &host, &["a"], &json!([])).success();
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["a GC"]);
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(calls[0]["stdin"][key], json!([entry("c1")]), "{key}");
    }
    // Six minutes later.
    let text = fs::read_to_string(record(&host, "c1")).unwrap();
    let attempt: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let time = attempt["time"].as_u64().unwrap();
    let aged = text.replacen(&time.to_string(), &(time - 360_000).to_string(), 1);
    fs::write(record(&host, "c1"), aged).unwrap();
    gc(&world, &host, &["a"], &json!([])).success();
    assert_eq!(world.take_calls(), ["a DEL", "a GC"]);
    assert!(world.held().is_empty());
}

#[test]
fn gc_adds_what_a_call_works_on_to_the_list_of_the_delegates() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"gcGrace": "0s"}));
    world.gated_allocator("a", "10.0.0.2/24").allocator("b", "10.0.1.2/24");
    let adding = start(host.command(&world, "ADD", "c1"), &network(&world, json!(["a"])));
    world.at_gate("a");
    world.take_calls();
    gc(&world, &host, &["b"], &json!([entry("c2")])).success();
    let calls = world.calls();
    assert_eq!(world.take_calls(), ["b GC"]);
    let list = json!([entry("c1"), entry("c2")]);
    assert_eq!(calls[0]["stdin"]["cni.dev/valid-attachments"], list);
    assert_eq!(calls[0]["stdin"]["cni.dev/attachments"], list);
    world.open_gate("a");
    wait(adding).success();
}

#[test]
fn gc_keeps_the_union_of_both_keys() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"gcGrace": "0s"}));
    world.allocator("a", "10.0.0.2/24");
    let mut network = network(&world, json!(["a"]));
    for container in ["c1", "c2", "c3"] {
        host.call(&world, "ADD", container, &network).success();
    }
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = json!([entry("c1")]);
    network["cni.dev/attachments"] = json!([entry("c2")]);
    gc_of(&world, &host, &network).success();
    assert_eq!(world.held(), ["a-c1-eth0", "a-c2-eth0"]);
}

#[test]
fn gc_without_a_list_is_error_7_and_nothing_runs() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"gcGrace": "0s"}));
    world.allocator("a", "10.0.0.2/24");
    let mut network = network(&world, json!(["a"]));
    host.call(&world, "ADD", "c1", &network).success();
    world.take_calls();
    network["cniVersion"] = json!("1.1.0");
    let (code, text) = gc_of(&world, &host, &network).failure();
    assert_eq!(code, 7, "{text}");
    assert!(world.take_calls().is_empty());
    assert_eq!(world.held(), ["a-c1-eth0"]);
}

#[test]
fn gc_passes_over_plugins_that_do_not_know_it() {
    let (world, host) = (World::new(), Host::new());
    let answer =
        |code: u32, text: &str| format!("printf '{{\"code\":{code},\"msg\":\"{text}\"}}'; exit 1");
    world.delegate("four", &answer(4, "unknown"));
    world.delegate("three", &answer(3, "empty container id"));
    world.delegate("hundred", &answer(100, "unknown CNI_COMMAND: GC"));
    gc(&world, &host, &["four", "three", "hundred"], &json!([])).success();
    assert_eq!(world.take_calls(), ["four GC", "three GC", "hundred GC"]);
}

#[test]
fn gc_goes_on_past_a_delegate_that_fails_and_reports_it() {
    let (world, host) = (World::new(), Host::new());
    world.delegate("a", "printf '{\"code\":103,\"msg\":\"away\"}'; exit 1").delegate("b", "");
    let (code, text) = gc(&world, &host, &["a", "b"], &json!([])).failure();
    assert_eq!(code, 103);
    assert!(text.contains("a: away"), "{text}");
    assert_eq!(world.take_calls(), ["a GC", "b GC"]);
}

#[test]
fn gc_repeats_an_unsure_del_only_when_due() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"stateDir": world.path("state"), "gcGrace": "0s"}));
    let network = killed_add(&world, &host);
    host.call(&world, "DEL", "c1", &network).success();
    world.take_calls();
    gc(&world, &host, &["a"], &json!([])).success();
    assert_eq!(world.calls()[0]["stdin"]["cni.dev/valid-attachments"], json!([entry("c1")]));
    assert_eq!(world.take_calls(), ["a GC"]);
    world.make_due();
    gc(&world, &host, &["a"], &json!([])).success();
    assert_eq!(world.take_calls(), ["a DEL", "a GC"]);
    assert!(!world.record("c1").exists());
}
