//! GC of many records: whose turn it is, how long it takes, and what it tells.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs::{self, File};
use std::time::{Duration, Instant, SystemTime};

use ipam_testkit::world::{Host, Outcome, World, start, wait, with};
use serde_json::{Value, json};

/// How old the records of these tests are: beyond `gcGrace`.
const OLD: u64 = 600_000;

/// A world whose allocator `a` does this on DEL, before it releases.
fn world(on_del: &str) -> World {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    on_del_of(&world, "a", on_del);
    world
}

fn on_del_of(world: &World, name: &str, on_del: &str) {
    let held = world.path("held");
    let answer = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}], "pools": []});
    let body = format!(
        "f='{}'/{name}-$CNI_CONTAINERID-$CNI_IFNAME\ncase $CNI_COMMAND in\n\
         ADD) echo >\"$f\"; printf '%s' '{answer}';;\n\
         DEL) {on_del}\nrm -f \"$f\";;\n\
         GC) echo $IPAM_DELEGATED_DEADLINE_MS >'{}';;\nesac",
        held.display(),
        world.path("time-of-gc").display()
    );
    fs::create_dir_all(held).unwrap();
    world.delegate(name, &body);
}

/// An attachment of this allocator whose record is old; the first added has the oldest file.
fn add(world: &World, name: &str, container: &str) {
    world.call("ADD", container, &world.network(json!([name]))).success();
    set_time(world, container, now() - OLD);
    let count = fs::read_dir(world.path("state/attachments/net")).unwrap().count();
    let modified = SystemTime::now() - Duration::from_secs(100_000 - count as u64);
    File::open(world.record(container)).unwrap().set_modified(modified).unwrap();
}

fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn set_time(world: &World, container: &str, time: u64) {
    world.edit_record(container, |line| {
        if line["event"] == "attempt" {
            line["time"] = time.into();
        }
    });
}

/// GC of the allocator `a` with a list that names nothing.
fn gc(world: &World, timeout: &str) -> Outcome {
    gc_of(world, "a", timeout)
}

/// GC of an allocator with a list that names nothing.
fn gc_of(world: &World, name: &str, timeout: &str) -> Outcome {
    let mut network = with(&world.network(json!([name])), "timeout", timeout);
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = json!([]);
    let mut command = world.command("GC", "");
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
        command.env_remove(variable);
    }
    wait(start(command, &network))
}

/// The containers whose records are there, by name.
fn records(world: &World) -> Vec<String> {
    let names = world.records().into_iter();
    names.map(|name| name.trim_end_matches(":eth0").to_owned()).collect()
}

/// The containers that a DEL was given to, in order.
fn released(world: &World) -> Vec<String> {
    let calls = world.calls().into_iter().filter(|call| call["verb"] == "DEL");
    calls.map(|call| call["container"].as_str().unwrap().to_owned()).collect()
}

/// The list that the last GC of a delegate got.
fn kept(world: &World) -> Value {
    let calls = world.calls();
    let call = calls.iter().rfind(|call| call["verb"] == "GC").expect("a GC of the delegate");
    call["stdin"]["cni.dev/valid-attachments"].clone()
}

#[test]
fn gc_whose_time_is_over_has_released_the_oldest_and_tells_how_many_are_left() {
    let world = world("sleep 0.2");
    // By name the oldest is the last.
    let names: Vec<String> = (10..34).rev().map(|i| format!("c{i}")).collect();
    names.iter().for_each(|name| add(&world, "a", name));
    world.take_calls();
    let began = Instant::now();
    let told = gc(&world, "4s");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let gone = released(&world);
    assert!(!gone.is_empty() && gone.len() < 24, "{gone:?}");
    assert_eq!(gone, names[..gone.len()], "the oldest first");
    let left = format!("{} of 24 stale records are left", 24 - gone.len());
    assert!(told.stderr.contains(&left), "{told:?}");
    told.success();
    assert_eq!(world.take_calls().pop().unwrap(), "a GC");
    for _ in 0..24 {
        gc(&world, "4s").success();
    }
    assert_eq!((records(&world).len(), world.held().len()), (0, 0));
}

#[test]
fn gc_that_released_nothing_in_its_time_is_error_11_and_has_called_the_delegates() {
    let world = world("exec sleep 100");
    for name in ["c1", "c2", "c3"] {
        add(&world, "a", name);
    }
    let (code, text) = gc(&world, "4s").failure();
    assert_eq!(code, 11, "{text}");
    assert!(text.starts_with("3 of 3 stale records are left"), "{text}");
    assert!(text.contains("a: timed out after"), "{text}");
    let time: u64 = fs::read_to_string(world.path("time-of-gc")).unwrap().trim().parse().unwrap();
    assert!(time > 500, "{time} ms for the delegate's own GC");
}

#[test]
fn gc_waits_once_for_a_store_that_is_away_and_begins_elsewhere_the_next_time() {
    let world = world("");
    for code in [11, 105, 111] {
        on_del_of(
            &world,
            "away",
            &format!("printf '{{\"code\":{code},\"msg\":\"away\"}}'; exit 1"),
        );
        for i in 1..5 {
            add(&world, "away", &format!("b{i}"));
        }
        add(&world, "a", "c1");
        add(&world, "a", "c2");
        world.take_calls();
        let (failed, text) = gc(&world, "60s").failure();
        assert_eq!(failed, code, "{text}");
        assert!(text.contains("4 of 6 stale records are left"), "{text}");
        assert_eq!(released(&world), ["b1", "c1", "c2"]);
        assert_eq!(records(&world), ["b1", "b2", "b3", "b4"]);
        world.take_calls();
        gc(&world, "60s").failure();
        assert_eq!(released(&world), ["b2"]);
        on_del_of(&world, "away", "");
        gc(&world, "60s").success();
        assert_eq!((records(&world).len(), world.held().len()), (0, 0));
    }
}

#[test]
fn a_store_that_did_not_answer_a_del_is_not_waited_for_by_the_delegates_own_gc() {
    for code in [11, 105, 111] {
        let world = world("");
        let refuse = format!("printf '{{\"code\":{code},\"msg\":\"away\"}}'; exit 1");
        on_del_of(&world, "away", &refuse);
        add(&world, "away", "b1");
        let (failed, text) = gc_of(&world, "away", "60s").failure();
        assert_eq!(failed, code, "{text}");
        // A delegate that was out of time may have hung on one record alone.
        let is_left = text.contains("away: GC was skipped");
        assert_eq!(is_left, code != 111, "{text}");
        assert_eq!(world.path("time-of-gc").exists(), code == 111);
    }
}

#[test]
fn gc_goes_on_where_a_store_answers_that_it_refuses() {
    let world = world("printf '{\"code\":103,\"msg\":\"no right\"}'; exit 1");
    for i in 10..40 {
        add(&world, "a", &format!("c{i}"));
    }
    world.take_calls();
    let told = gc(&world, "60s");
    assert_eq!(released(&world).len(), 30);
    assert!(told.stdout.len() < 10_000, "{} bytes", told.stdout.len());
    let (code, text) = told.failure();
    assert_eq!((code, text.matches("a: no right").count()), (103, 10), "{text}");
    assert!(text.contains("; and 20 more: "), "{text}");
    assert_eq!(records(&world).len(), 30);
}

#[test]
fn gc_runs_no_configured_chain_in_place_of_a_delegate_that_refuses_its_del() {
    let world = World::new();
    world.delegate("refusing", "printf '{\"code\":100,\"msg\":\"no file\"}'; exit 1");
    world.allocator("a", "10.0.0.2/24");
    world.call("ADD", "c1", &world.network(json!(["refusing"]))).failure();
    set_time(&world, "c1", now() - OLD);
    world.take_calls();
    let told = gc(&world, "60s");
    let dels = world.calls().into_iter().filter(|call| call["verb"] == "DEL");
    let dels: Vec<_> =
        dels.map(|call| (call["delegate"].clone(), call["container"].clone())).collect();
    assert_eq!(dels, [(json!("refusing"), json!("c1"))]);
    let (code, text) = told.failure();
    assert!(code == 100 && text.contains("refusing: no file"), "{text}");
    assert_eq!(records(&world).len(), 1);
}

#[test]
fn a_record_that_cannot_be_judged_is_in_the_list_of_the_delegates() {
    let world = world("");
    add(&world, "a", "c1");
    fs::remove_file(world.record("c1")).unwrap();
    fs::create_dir(world.record("c1")).unwrap();
    let told = gc(&world, "60s");
    assert!(told.stderr.contains("cannot be read"), "{told:?}");
    told.success();
    assert_eq!(kept(&world), json!([{"containerID": "c1", "ifname": "eth0"}]));
}

#[test]
fn what_is_added_while_gc_releases_is_in_the_list_however_long_that_takes() {
    let (world, host) = (World::new(), Host::new());
    host.settings(&json!({"gcGrace": "1s"}));
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    for container in ["c1", "c2"] {
        host.call(&world, "ADD", container, &network).success();
        set_time(&world, container, now() - OLD);
    }
    let gate = world.gate("c1");
    let del = format!("case $CNI_COMMAND$CNI_CONTAINERID in DELc1) {gate};; esac");
    world.delegate("a", &del);
    let mut collected = network.clone();
    collected["cniVersion"] = json!("1.1.0");
    collected["cni.dev/valid-attachments"] = json!([]);
    let mut command = host.command(&world, "GC", "");
    command.env_remove("CNI_CONTAINERID").env_remove("CNI_IFNAME").env_remove("CNI_NETNS");
    let collecting = start(command, &collected);
    world.at_gate("c1");
    world.delegate(
        "a",
        "[ $CNI_COMMAND != ADD ] || echo '{\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'",
    );
    // One that GC judged stale before, and one that it never saw.
    for container in ["c2", "c3"] {
        host.call(&world, "ADD", container, &network).success();
    }
    std::thread::sleep(Duration::from_millis(1500));
    world.open_gate("c1");
    wait(collecting).success();
    let listed = |name: &str| json!({"containerID": name, "ifname": "eth0"});
    assert_eq!(kept(&world), json!([listed("c2"), listed("c3")]));
    assert_eq!(released(&world), ["c1"]);
}

#[test]
fn a_record_far_ahead_of_the_clock_is_old_and_one_a_little_ahead_is_young() {
    let world = world("");
    add(&world, "a", "far");
    set_time(&world, "far", now() + 3_600_000);
    add(&world, "a", "near");
    set_time(&world, "near", now() + 60_000);
    gc(&world, "60s").success();
    assert_eq!(records(&world), ["near"]);
    assert_eq!(kept(&world), json!([{"containerID": "near", "ifname": "eth0"}]));
}

#[test]
fn an_attachment_whose_record_cannot_be_read_is_shown_and_kept_until_it_is_forgotten() {
    let world = world("");
    add(&world, "a", "c1");
    let folder = world.path("state/attachments/net/c1");
    fs::create_dir(&folder).unwrap();
    fs::rename(world.record("c1"), folder.join("eth0:unreadable-1700000000000")).unwrap();
    world.take_calls();
    let listed = json!([{"containerID": "c1", "ifname": "eth0"}]);
    for _ in 0..2 {
        let told = gc(&world, "60s");
        assert!(
            told.stderr.contains("GC keeps the leases of 1 unreadable records of net"),
            "{told:?}"
        );
        told.success();
        assert_eq!(kept(&world), listed);
        assert_eq!(world.take_calls(), ["a GC"]);
    }
    let files = ipam_testkit::world::names(&folder);
    assert_eq!(files, ["eth0:unreadable-1700000000000"]);

    let end = "ipam-delegated forget net c1 eth0 --yes";
    let state = format!("--cache-dir={}", world.path("state").display());
    for (words, key) in [(&["attachments"][..], "why"), (&["reap", "--yes", &state], "why")] {
        let told = world.typed(&[words, &["--json"]].concat()).success();
        assert_eq!(
            (&told[0]["containerID"], &told[0]["state"]),
            (&json!("c1"), &json!("unreadable"))
        );
        let text = told[0][key].as_str().unwrap();
        assert!(text.contains(&files[0]) && text.contains(end), "{text}");
        let table = world.typed(words).stdout;
        assert!(table.contains(&files[0]) && table.contains(end), "{table}");
    }
    assert_eq!(world.held(), ["a-c1-eth0"]);

    let dry = world.typed(&["forget", "net", "c1"]);
    assert!(dry.stdout.contains("would forget c1/eth0 on net, unreadable in"), "{dry:?}");
    assert_eq!(ipam_testkit::world::names(&folder), files, "a dry run");
    let other = world.typed(&["forget", "net", "c1", "eth1", "--yes"]);
    assert!(other.exit == Some(1) && other.stderr.contains("no record of c1"), "{other:?}");
    let done = world.typed(&["forget", "net", "c1", "eth0", "--yes"]);
    assert!(done.stdout.contains("forgot c1/eth0 on net, unreadable in"), "{done:?}");
    assert_eq!(records(&world), [""; 0]);
    gc(&world, "60s").success();
    assert_eq!(kept(&world), json!([]));
}

#[test]
fn a_container_that_is_forgotten_without_a_record_has_one_del_that_releases_nothing() {
    let world = world("");
    let forget = |words: &[&str]| world.typed(&[&["forget", "net", "c1", "eth0"], words].concat());
    let call = |verb: &str| {
        world.call(verb, "c1", &world.network(json!(["a"]))).success();
        world.take_calls()
    };
    // A kill may leave a container's folder empty.
    fs::create_dir_all(world.path("state/attachments/net/c1")).unwrap();
    assert!(forget(&[]).stdout.contains("would forget c1/eth0 on net; it has no record"));
    assert_eq!(call("DEL"), ["a DEL"], "a dry run");
    for verb in ["DEL", "GC", "ADD"] {
        let done = forget(&["--yes"]);
        assert!(done.stdout.contains("forgot c1/eth0 on net; it has no record"), "{done:?}");
        let told = world.typed(&["attachments", "--json"]).success();
        assert_eq!(
            (&told[0]["containerID"], &told[0]["state"]),
            (&json!("c1"), &json!("forgotten"))
        );
        match verb {
            "DEL" => assert_eq!(call("DEL"), [""; 0]),
            "GC" => drop(gc(&world, "60s").success()),
            _ => assert_eq!(call("ADD").last().unwrap(), "a ADD"),
        }
        world.take_calls();
        // What comes after it counts.
        assert_eq!(call("DEL"), ["a DEL"], "{verb}");
        assert_eq!(records(&world), [""; 0], "{verb}");
    }
}

#[test]
fn forget_drops_a_record_that_cannot_be_read_and_a_dry_run_leaves_it_where_it_is() {
    let world = world("");
    add(&world, "a", "c1");
    fs::write(world.record("c1"), "no event\n").unwrap();
    let told = world.typed(&["attachments", "--json"]).success();
    assert_eq!(told[0]["state"], "unreadable");
    let note = told[0]["why"].as_str().unwrap();
    let parts = ["c1:eth0 cannot be read", "ipam-delegated forget net c1 eth0 --yes"];
    assert!(parts.iter().all(|part| note.contains(part)), "{note}");
    let dry = world.typed(&["forget", "net", "c1"]);
    assert!(
        dry.stdout.contains("would forget c1/eth0 on net; its addresses are unknown"),
        "{dry:?}"
    );
    assert!(world.record("c1").exists());
    let done = world.typed(&["forget", "net", "c1", "--yes"]);
    assert!(done.stdout.contains("forgot c1/eth0 on net"), "{done:?}");
    assert_eq!(records(&world), [""; 0]);
}

#[test]
fn forget_says_that_an_allocator_may_hold_what_an_empty_record_has_lost() {
    let world = world("");
    add(&world, "a", "c1");
    fs::write(world.record("c1"), "").unwrap();
    let told = "its addresses are unknown, and an allocator may still hold them";
    let dry = world.typed(&["forget", "net", "c1"]);
    assert!(dry.stdout.contains(told), "{dry:?}");
    let done = world.typed(&["forget", "net", "c1", "--yes"]);
    assert!(done.stdout.contains(told), "{done:?}");
}
