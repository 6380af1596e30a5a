//! `reap`: what it releases, and what its fences keep.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use ipam_testkit::world::{Host, Outcome, World, start, wait, with};
use serde_json::{Value, json};

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
    fs::create_dir_all(world.path("results")).unwrap();
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
    let kept = ("kept".to_owned(), "its network namespace exists".to_owned());
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
    fs::create_dir_all(world.path("results")).unwrap();
    fs::write(world.path("results/net-c1-eth0"), "{}").unwrap();
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1"), ("released".to_owned(), "it is from an earlier boot".to_owned()));
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
    assert_eq!(fate(&told, "c1").1, "its network namespace exists");
}

#[test]
fn young_records_and_those_the_runtime_still_names_are_kept() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    fs::create_dir_all(world.path("results")).unwrap();
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
    assert_eq!(fate(&told, "c1"), ("kept".to_owned(), "its DEL will be repeated later".to_owned()));
    world.make_due();
    world.take_calls();
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1"), ("released".to_owned(), "its DEL is due again".to_owned()));
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
            assert!(why.contains("the runtime's DEL removes it"), "{why}");
            assert_eq!(fs::read_to_string(world.record("c1")).unwrap(), content);
        }
    }
    assert_eq!(world.held(), ["ipam-da-x-c1-eth0"]);
}

#[test]
fn the_table_has_a_line_a_record() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    let cache = format!("--cache-dir={}", world.path("state").display());
    let text = world.typed(&["reap", &cache]).stdout;
    assert_eq!(
        text,
        "NETWORK  CONTAINER  IFNAME  ADDRESSES    STATE  OUTCOME        WHY\n\
         net      c1         eth0    10.0.0.2/24  held   would release  its network namespace is gone\n"
    );
    assert_eq!(world.typed(&["reap", "a", "b"]).exit, Some(1));
}

/// Makes a record's file older than the others', so that its turn is the first.
fn first(world: &World, container: &str) {
    let long_ago = SystemTime::now() - Duration::from_secs(100_000);
    fs::File::open(world.record(container)).unwrap().set_modified(long_ago).unwrap();
}

/// An allocator whose DEL does this first.
fn on_del(world: &World, body: &str) {
    let held = world.path("held");
    let del = format!("{body}\nrm -f '{}'/ipam-da-x-$CNI_CONTAINERID-$CNI_IFNAME", held.display());
    world.delegate("ipam-da-x", &del);
}

#[test]
fn a_store_that_is_away_is_waited_for_once_and_no_longer_than_the_recorded_timeout() {
    let world = world();
    let network = with(&world.network(json!(["ipam-da-x"])), "timeout", "1s");
    for container in ["c1", "c2", "c3", "c4"] {
        world.call("ADD", container, &network).success();
        grow_old(&world, container);
    }
    on_del(&world, "exec sleep 5");
    first(&world, "c3");
    world.take_calls();
    let began = Instant::now();
    let outcome = reap(&world, &["--yes"]);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(outcome.stderr.contains("4 of 4 stale records are left"), "{outcome:?}");
    assert_eq!(outcome.exit, Some(1));
    let told = outcome.json();
    assert_eq!(fate(&told, "c3").0, "failed");
    let away = ("left".to_owned(), "its store did not answer for an earlier record".to_owned());
    assert_eq!(
        [fate(&told, "c1"), fate(&told, "c2"), fate(&told, "c4")],
        [(); 3].map(|()| away.clone())
    );
    assert_eq!((world.held().len(), world.take_calls().len()), (4, 1));
    // Another one is the first of the next time.
    let told = reap(&world, &["--yes"]).json();
    assert_eq!(
        (fate(&told, "c1").0, fate(&told, "c3").0),
        ("failed".to_owned(), "left".to_owned())
    );
    on_del(&world, "");
    reap(&world, &["--yes"]).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn reap_whose_time_is_over_has_released_some_and_tells_how_many_are_left() {
    let world = world();
    for i in 10..30 {
        add(&world, &format!("c{i}"), "/run/netns/none");
    }
    on_del(&world, "sleep 0.3");
    let began = Instant::now();
    let outcome = reap(&world, &["--yes", "--timeout", "3s"]);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let left = world.held().len();
    assert!(left > 0 && left < 20, "{left}");
    assert!(
        outcome.stderr.contains(&format!("{left} of 20 stale records are left")),
        "{outcome:?}"
    );
    let told = outcome.success();
    let rows = told.as_array().unwrap().iter().filter(|row| row["outcome"] == "left");
    assert_eq!(rows.count(), left);
    let wrong = reap(&world, &["--timeout", "soon"]);
    assert!(
        wrong.exit == Some(1) && wrong.stderr.contains("invalid duration \"soon\""),
        "{wrong:?}"
    );
}

#[test]
fn a_record_is_judged_again_under_its_lock() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    add(&world, "c2", "/run/netns/none");
    first(&world, "c1");
    // While c1 is released, a runtime gives c2 to a container.
    let cached = world.path("results/net-c2-eth0");
    on_del(&world, &format!(": >'{}'", cached.display()));
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1").0, "released");
    let (outcome, why) = fate(&told, "c2");
    assert!(outcome == "kept" && why.contains("result cache names it"), "{outcome}: {why}");
    assert_eq!(world.held(), ["ipam-da-x-c2-eth0"]);
}

#[test]
fn a_record_without_a_boot_id_is_of_no_earlier_boot() {
    let world = world();
    let netns = Netns::new("bootless");
    add(&world, "c1", &netns.path());
    world.edit_record("c1", |line| {
        if line["event"] == "attempt" {
            line["boot"] = "".into();
        }
    });
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "c1"), ("kept".to_owned(), "its network namespace exists".to_owned()));
}

#[test]
fn a_record_far_ahead_of_the_clock_is_old_and_one_a_little_ahead_is_young() {
    let world = world();
    for (container, ahead) in [("far", 3_600_000), ("near", 60_000)] {
        add(&world, container, "/run/netns/none");
        world.edit_record(container, |line| {
            if line["event"] == "attempt" {
                line["time"] = (line["time"].as_u64().unwrap() + OLD + ahead).into();
            }
        });
    }
    let told = reap(&world, &["--yes"]).success();
    assert_eq!(fate(&told, "far").0, "released");
    assert_eq!(fate(&told, "near").1, "it is younger than gcGrace");
}

#[test]
fn without_a_result_cache_or_proc_reap_refuses_and_says_what_to_do() {
    let world = world();
    add(&world, "c1", "/run/netns/none");
    for words in [&["reap"][..], &["reap", "--yes"]] {
        let refused = world.typed(&[words, &["--cache-dir=/nowhere/results"]].concat());
        assert_eq!((refused.exit, &*refused.stdout), (Some(1), ""));
        for part in [
            "cannot read the runtimes' result cache /nowhere/results",
            "--cache-dir DIR",
            "--no-cache",
        ] {
            assert!(refused.stderr.contains(part), "{refused:?}");
        }
    }
    let host = Host::new();
    let typing = world.typing(&["reap", "--yes"]);
    let output = host.enter(typing.get_program()).args(typing.get_args()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("cannot read the runtimes' result cache /var/lib/cni/results"),
        "{output:?}"
    );
    for more in ["--pinned", "--cache-dir=/"] {
        let refused = world.typed(&["reap", "--no-cache", more]);
        assert!(
            refused.exit == Some(1) && refused.stderr.contains("--no-cache cannot be combined"),
            "{refused:?}"
        );
    }
    let boot = "mount --bind /dev/null /proc/sys/kernel/random/boot_id";
    for hide in ["mount -t tmpfs none /proc", boot] {
        let typing = world.typing(&["reap", "--yes", "--no-cache"]);
        let script = format!("{hide} && exec \"$@\"");
        let mut unshared = Command::new("unshare");
        unshared.args(["--mount", "sh", "-c", &script, "sh"]).arg(typing.get_program());
        let output = unshared.args(typing.get_args()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("in /proc: mount /proc"), "{output:?}");
    }
    assert_eq!(world.held(), ["ipam-da-x-c1-eth0"]);
    let told = world.typed(&["reap", "--json", "--yes", "--no-cache"]).success();
    assert_eq!(fate(&told, "c1").0, "released");
}

#[test]
fn a_namespace_that_no_process_lives_in_is_told_and_released_on_request() {
    let world = world();
    let (empty, cached, lived) = (Netns::new("empty"), Netns::new("cached"), Netns::new("lived"));
    add(&world, "empty", &empty.path());
    add(&world, "cached", &cached.path());
    add(&world, "lived", &lived.path());
    fs::create_dir_all(world.path("results")).unwrap();
    fs::write(world.path("results/net-cached-eth0"), "{}").unwrap();
    // Other processes of this machine may be out of a test's sight, so it has its own.
    let reap = |words: &[&str]| {
        let cache = format!("--cache-dir={}", world.path("results").display());
        let typing = world.typing(&[&["reap", "--json", &cache], words].concat());
        let script = "ip netns exec \"$1\" sleep 60 & shift; sleep 0.5; \"$@\"";
        let mut unshared = Command::new("unshare");
        unshared.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            script,
            "sh",
        ]);
        unshared.arg(&lived.0).arg(typing.get_program()).args(typing.get_args());
        let output = unshared.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let told = reap(&["--yes"]);
    let kept = |why: &str| ("kept".to_owned(), why.to_owned());
    let empty_why = "its network namespace exists, but no process is in it: --pinned releases it";
    let named = "no process is in its network namespace, but the runtime's result cache names it";
    assert_eq!(fate(&told, "empty"), kept(empty_why));
    assert_eq!(fate(&told, "cached"), kept(named));
    assert_eq!(fate(&told, "lived"), kept("its network namespace exists"));
    let told = reap(&["--yes", "--pinned"]);
    let gone = "no process is in its network namespace".to_owned();
    assert_eq!(fate(&told, "empty"), ("released".to_owned(), gone));
    assert_eq!(fate(&told, "cached"), kept(named));
    assert_eq!(fate(&told, "lived"), kept("its network namespace exists"));
    assert_eq!(world.held(), ["ipam-da-x-cached-eth0", "ipam-da-x-lived-eth0"]);
}

#[test]
fn what_reap_releases_was_taken_from_the_begin_of_the_first_add_to_the_end_of_the_last() {
    let world = world();
    let network = world.network(json!(["ipam-da-x"]));
    for _ in 0..2 {
        world.call("ADD", "c1", &network).success();
        std::thread::sleep(Duration::from_millis(20));
    }
    grow_old(&world, "c1");
    let times: Vec<u64> = world.lines("c1").iter().filter_map(|it| it["time"].as_u64()).collect();
    let [first, _, second, last] = times[..] else { panic!("{times:?}") };
    assert!(first < second);
    reap(&world, &["--yes"]).success();
    let del = world.calls().into_iter().find(|call| call["verb"] == "DEL").unwrap();
    let fence = &del["stdin"]["prevResult"]["fence"];
    assert_eq!(*fence, json!({"after": first, "before": last}));
}

#[test]
fn of_two_records_of_an_attachment_each_has_its_own_outcome() {
    let world = world();
    add(&world, "c1", "/proc/0/ns/net");
    let record = world.record("c1");
    let copy = fs::read(&record).unwrap();
    world.put_record_in_folder("c1");
    fs::write(&record, copy).unwrap();
    for left in [true, false] {
        let told = reap(&world, &["--yes"]).success();
        assert_eq!(fate(&told, "c1").0, "released");
        assert_eq!(record.exists(), left);
    }
}

#[test]
fn what_was_forgotten_without_a_record_waits_for_its_del() {
    let world = world();
    world.typed(&["forget", "net", "c1", "eth0", "--yes"]).ended_well();
    let told = reap(&world, &["--yes"]).success();
    let why = "it was forgotten: the runtime's DEL removes it, or a second ipam-delegated forget";
    assert_eq!(fate(&told, "c1"), ("kept".to_owned(), why.to_owned()));
    world.call("DEL", "c1", &world.network(json!(["ipam-da-x"]))).ended_well();
    assert!(world.calls().is_empty() && !world.record("c1").exists());
}
