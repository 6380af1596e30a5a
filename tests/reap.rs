//! `reap`: what it releases, and what its fences keep.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

mod support;

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use support::{Outcome, World, start, wait, with};

/// How old the records of these tests are: beyond `gcGrace`.
const OLD: u64 = 600_000;

/// A network namespace of a test's own.
struct Netns(String);

impl Netns {
    fn new(test: &str) -> Self {
        let name = format!("reap-{test}-{}", std::process::id());
        run(&["ip", "netns", "add", &name]);
        Self(name)
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[track_caller]
fn run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?} (these tests need root): {output:?}");
}

fn world() -> World {
    let world = World::new();
    world.allocator("ipam-da-x", "10.0.0.2/24");
    world
}

fn add(world: &World, container: &str, netns: &str) {
    let network = world.network(json!(["ipam-da-x"]));
    let mut command = world.command("ADD", container);
    command.env("CNI_NETNS", netns);
    wait(start(command, &network)).success();
    grow_old(world, container);
}

fn grow_old(world: &World, container: &str) {
    world.edit_record(container, |line| {
        if line["event"] == "attempt" {
            line["time"] = (line["time"].as_u64().unwrap() - OLD).into();
        }
    });
}

fn of_an_earlier_boot(world: &World, container: &str) {
    world.edit_record(container, |line| {
        if line["event"] == "attempt" {
            line["boot"] = "00000000-0000-4000-8000-000000000000".into();
        }
    });
}

/// Reaps with the world's own result cache.
fn reap(world: &World, words: &[&str]) -> Outcome {
    let cache = format!("--cache-dir={}", world.path("results").display());
    world.typed(&[&["reap", "--json", &cache], words].concat())
}

/// What became of a container's record, and why.
fn fate(told: &Value, container: &str) -> (String, String) {
    let row = told.as_array().unwrap().iter().find(|row| row["containerID"] == container);
    let row = row.unwrap_or_else(|| panic!("no row of {container}: {told}"));
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    (text("outcome"), text("why"))
}

#[test]
fn what_lost_its_namespace_is_released_and_what_has_one_is_kept() {
    let world = world();
    let (stands, goes) = (Netns::new("stands"), Netns::new("goes"));
    add(&world, "c1", &stands.path());
    add(&world, "c2", &goes.path());
    // An unmounted namespace whose file somebody left.
    let left = world.path("left");
    fs::write(&left, "").unwrap();
    add(&world, "c3", left.to_str().unwrap());
    add(&world, "c4", &format!("/proc/{}/ns/net", std::process::id()));
    drop(goes);
    world.take_calls();

    let dry = reap(&world, &[]);
    assert!(dry.stderr.contains("nothing was released; add --yes"), "{dry:?}");
    let told = dry.success();
    let gone = ("would release".to_owned(), "its network namespace is gone".to_owned());
    let kept = ("kept".to_owned(), "its network namespace stands".to_owned());
    assert_eq!([fate(&told, "c1"), fate(&told, "c4")], [kept.clone(), kept.clone()]);
    assert_eq!([fate(&told, "c2"), fate(&told, "c3")], [gone.clone(), gone]);
    assert_eq!(told[1]["addresses"], json!(["10.0.0.2/24"]));
    assert_eq!((world.held().len(), world.calls().len()), (4, 0), "a dry run does nothing");

    let told = reap(&world, &["--yes"]).success();
    assert_eq!(
        [fate(&told, "c1").0, fate(&told, "c2").0, fate(&told, "c3").0],
        ["kept", "released", "released"]
    );
    assert_eq!(world.held(), ["ipam-da-x-c1-eth0", "ipam-da-x-c4-eth0"]);
    assert!(!world.record("c2").exists() && world.record("c1").exists());
    assert_eq!(world.take_calls(), ["ipam-da-x DEL", "ipam-da-x DEL"]);
    let told = reap(&world, &["net", "--yes"]).success();
    assert_eq!(told.as_array().unwrap().len(), 2, "what was released is gone for good");
    assert_eq!(reap(&world, &["other"]).success(), json!([]));
}

#[test]
fn an_earlier_boot_is_released_whatever_stands_at_its_namespace() {
    let world = world();
    let netns = Netns::new("boot");
    add(&world, "c1", &netns.path());
    of_an_earlier_boot(&world, "c1");
    fs::create_dir(world.path("results")).unwrap();
    fs::write(world.path("results/net-c1-eth0"), "{}").unwrap();
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1"), ("released".to_owned(), "it is of an earlier boot".to_owned()));
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn an_add_of_this_boot_after_one_of_an_earlier_boot_is_kept() {
    let world = world();
    let netns = Netns::new("again");
    add(&world, "c1", "/run/netns/none");
    of_an_earlier_boot(&world, "c1");
    add(&world, "c1", &netns.path());
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1").0, "kept");
}

#[test]
fn a_namespace_of_a_held_add_counts_after_a_failed_one() {
    let world = world();
    let netns = Netns::new("failed");
    add(&world, "c1", &netns.path());
    world.full("ipam-da-x");
    let mut command = world.command("ADD", "c1");
    command.env("CNI_NETNS", "/run/netns/none");
    wait(start(command, &world.network(json!(["ipam-da-x"])))).failure();
    grow_old(&world, "c1");
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1").1, "its network namespace stands");
}

#[test]
fn young_records_and_those_the_runtime_still_names_are_kept() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    fs::create_dir(world.path("results")).unwrap();
    fs::write(world.path("results/net-c1-eth0"), "{}").unwrap();
    world.call("ADD", "young", &world.network(json!(["ipam-da-x"]))).success();
    of_an_earlier_boot(&world, "young");
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "young").1, "it is younger than gcGrace");
    let (outcome, why) = fate(&told, "c1");
    assert!(outcome == "kept" && why.contains("result cache names it"), "{why}");
    assert_eq!(world.held().len(), 2);
    fs::remove_file(world.path("results/net-c1-eth0")).unwrap();
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1").0, "released");
}

#[test]
fn a_record_that_a_call_works_on_is_not_waited_for() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    world.gated_allocator("ipam-da-x", "10.0.0.2/24");
    let adding = start(world.command("ADD", "c1"), &world.network(json!(["ipam-da-x"])));
    world.at_gate("ipam-da-x");
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1"), ("kept".to_owned(), "a call works on it".to_owned()));
    world.open_gate("ipam-da-x");
    wait(adding).success();
}

#[test]
fn one_that_fails_does_not_stop_the_others() {
    let world = world();
    for container in ["c1", "c2", "c3"] {
        add(&world, container, "/run/netns/none");
    }
    let held = world.path("held");
    let body = format!(
        "[ \"$CNI_CONTAINERID\" != c2 ] || {{ printf '{{\"code\":103,\"msg\":\"no leader\"}}'; exit 1; }}\n\
         rm -f '{}'/ipam-da-x-$CNI_CONTAINERID-$CNI_IFNAME",
        held.display()
    );
    world.delegate("ipam-da-x", &body);
    let outcome = reap(&world, &["--yes"]);
    assert_eq!(outcome.exit, Some(1));
    let told = outcome.json();
    let (fated, why) = fate(&told, "c2");
    assert!(fated == "failed" && why.contains("ipam-da-x: no leader"), "{why}");
    assert_eq!([fate(&told, "c1").0, fate(&told, "c3").0], ["released", "released"]);
    assert_eq!(world.held(), ["ipam-da-x-c2-eth0"]);
    assert!(world.record("c2").exists());
}

#[test]
fn an_unsure_record_that_is_due_is_repeated() {
    let world = world();
    let network = world.network(json!(["ipam-da-x"]));
    world.delegate("ipam-da-x", "case $CNI_COMMAND in ADD) kill -9 $$;; esac");
    wait(start(world.command("ADD", "c1"), &network)).failure();
    world.call("DEL", "c1", &network).success();
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(
        fate(&told, "c1"),
        ("kept".to_owned(), "its DEL is to be repeated later".to_owned())
    );
    world.make_due();
    world.take_calls();
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1"), ("released".to_owned(), "its DEL is to be repeated".to_owned()));
    assert_eq!(world.take_calls(), ["ipam-da-x DEL"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn the_recorded_program_is_run_where_the_plugin_path_lacks_it() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    let empty = format!("--cni-path={}", world.path("data").display());
    reap(&world, &["--yes", &empty]).success();
    assert!(world.held().is_empty());
}

#[test]
fn secrets_come_from_the_network_as_it_is_configured_now() {
    let world = world();
    let network = with(&world.network(json!(["ipam-da-x"])), "dbPassword", "old");
    world.call("ADD", "c1", &network).success();
    grow_old(&world, "c1");
    world.conflist("10-net.conflist", &with(&network, "dbPassword", "new"));
    reap(&world, &["--yes"]).success();
    let del = world.calls().into_iter().find(|call| call["verb"] == "DEL").unwrap();
    assert_eq!(del["stdin"]["ipam"]["dbPassword"], "new");
    assert_eq!(del["container"], "c1");
}

#[test]
fn a_record_that_tells_nothing_is_kept_for_its_lease_may_stand() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    for (content, state) in [("not json\n", "unreadable"), ("", "empty")] {
        fs::write(world.record("c1"), content).unwrap();
        for words in [&[][..], &["--yes"]] {
            let told = reap(&world, words).success();
            let (outcome, why) = fate(&told, "c1");
            assert_eq!((told[0]["state"].as_str(), &*outcome), (Some(state), "kept"));
            assert!(why.contains("the runtime's DEL clears it"), "{why}");
            assert_eq!(fs::read_to_string(world.record("c1")).unwrap(), content);
        }
    }
    assert_eq!(world.held(), ["ipam-da-x-c1-eth0"]);
}

#[test]
fn the_table_has_a_line_a_record() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    let text = world.typed(&["reap"]).stdout;
    assert_eq!(
        text,
        "NETWORK  CONTAINER  IFNAME  ADDRESSES    STATE  OUTCOME        WHY\n\
         net      c1         eth0    10.0.0.2/24  held   would release  its network namespace is gone\n"
    );
    assert_eq!(world.typed(&["reap", "a", "b"]).exit, Some(1));
}
