//! Where the record of an attachment is: one file in the network's folder, or, as earlier programs
//! made it, one in a folder of the container's own.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::path::PathBuf;

use ipam_testkit::inodes::made_by_call;
use ipam_testkit::kills::del_by_the_record;
use ipam_testkit::world::{World, binary, start, wait, with};
use serde_json::{Value, json};

/// A world with the chain of `ipam-ds-static` and `ipam-da-local`, and its network.
fn local() -> (World, Value) {
    let world = World::new();
    for name in ["ipam-ds-static", "ipam-da-local"] {
        world.install(&binary(name));
    }
    let network = world.network(json!(["ipam-ds-static", "ipam-da-local"]));
    (world, with(&network, "ranges", json!([[{"subnet": "10.88.0.0/24"}]])))
}

#[test]
fn an_add_makes_two_inodes_and_a_repeated_one_none() {
    let (world, network) = local();
    world.call("ADD", "c1", &network).success();
    let made = || made_by_call(&world, &[], &binary("ipam-delegated"), "ADD", "c2", &network);
    let expected = ["state/attachments/net/c2:eth0", "data/net"].map(|path| world.path(path));
    assert_eq!(made(), expected, "the record, and the lease without its name");
    assert_eq!(made(), [] as [PathBuf; 0]);
    world.call("DEL", "c2", &network).success();
    assert_eq!(made(), expected);
}

/// A container of `a` with the record where earlier programs made it.
fn earlier() -> (World, Value) {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    world.put_record_in_folder("c1");
    world.take_calls();
    (world, network)
}

fn in_folder(world: &World) -> PathBuf {
    world.path("state/attachments/net/c1/eth0")
}

#[test]
fn each_verb_finds_a_record_in_a_folder() {
    let (world, network) = earlier();
    assert_eq!(world.state_of("c1"), "held");
    world.call("CHECK", "c1", &network).success();
    world.call("ADD", "c1", &network).success();
    assert_eq!(world.records(), ["c1"]);
    assert_eq!(world.events("c1").len(), 6);
    del_by_the_record(&world, "c1", &network).unwrap();
    assert_eq!(world.take_calls(), ["a CHECK", "a ADD", "a DEL"]);
    assert_eq!((world.records(), world.held()), (Vec::new(), Vec::new()));
    // The next one has the present place.
    world.call("ADD", "c1", &network).success();
    assert_eq!(world.records(), ["c1:eth0"]);
}

#[test]
fn gc_reap_and_forget_find_a_record_in_a_folder() {
    let (world, mut network) = earlier();
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = json!([]);
    let gc = |grace: &str| {
        world.edit_record("c1", |line| {
            if line["event"] == "attempt" && grace == "old" {
                line["time"] = 1.into();
            }
        });
        let mut command = world.command("GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        let calls = (wait(start(command, &network)).success(), world.calls()).1;
        (world.take_calls(), calls.last().unwrap()["stdin"]["cni.dev/valid-attachments"].clone())
    };
    let kept = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert_eq!(gc("young"), (vec!["a GC".to_owned()], kept));
    assert_eq!(gc("old"), (vec!["a DEL".to_owned(), "a GC".to_owned()], json!([])));
    assert_eq!(world.records(), [""; 0]);
    let (world, _) = earlier();
    let state = format!("--state-dir={}", world.path("state").display());
    let reaped = world.typed(&["reap", "--no-cache", "--json", &state]).success();
    assert_eq!(reaped[0]["containerID"], "c1", "{reaped}");
    world.typed(&["forget", "net", "c1", "--yes", &state]);
    assert_eq!(world.records(), [""; 0]);
}

#[test]
fn a_call_of_an_earlier_program_excludes_others_by_its_record() {
    let (world, network) = earlier();
    let record = File::open(in_folder(&world)).unwrap();
    record.lock().unwrap();
    assert_eq!(world.state_of("c1"), "busy");
    let deleting = start(world.command("DEL", "c1"), &network);
    assert!(world.waits_for_lock(&deleting, "c1"));
    // Its ADD fails, and it removes its record.
    fs::remove_dir_all(world.path("state/attachments/net/c1")).unwrap();
    record.unlock().unwrap();
    wait(deleting).success();
    assert_eq!((world.records(), world.take_calls()), (Vec::new(), vec!["a DEL".to_owned()]));
}

#[test]
fn records_in_both_places_after_a_downgrade_are_released_one_by_one() {
    let (world, network) = earlier();
    // The earlier program did not find the record of `a`.
    let record = world.path("state/attachments/net/c1:eth0");
    fs::copy(in_folder(&world), &record).unwrap();
    let text = fs::read_to_string(&record).unwrap();
    fs::write(in_folder(&world), text.replace("\"a\"", "\"b\"").replace("bin/a", "bin/b")).unwrap();
    world.allocator("b", "10.0.1.2/24");
    let state = format!("--state-dir={}", world.path("state").display());
    let listed = world.typed(&["attachments", "--json", &state]).success();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    for expected in ["b DEL", "a DEL"] {
        del_by_the_record(&world, "c1", &network).unwrap();
        assert_eq!(world.take_calls(), [expected]);
    }
    assert_eq!(world.records(), [""; 0]);
}
