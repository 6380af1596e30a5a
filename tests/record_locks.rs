//! Calls at once on one attachment, and chains that are killed.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use ipam_testkit::world::{World, binary, kill_now, start, until, wait, with};
use serde_json::{Value, json};

#[test]
fn two_adds_of_one_attachment_run_one_after_the_other() {
    let world = World::new();
    let log = world.path("log");
    world.delegate("a", &format!(
        "echo begin >>'{log}'; {gate}; printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}'; echo end >>'{log}'",
        log = log.display(), gate = world.gate("a")
    ));
    let network = world.network(json!(["a"]));
    let one = start(world.command("ADD", "c1"), &network);
    world.at_gate("a");
    let two = start(world.command("ADD", "c1"), &network);
    assert!(world.waits_for_lock(&two, "c1"));
    assert_eq!(world.calls().len(), 1);
    world.open_gate("a");
    assert_eq!(wait(one).ips(), ["10.0.0.2/24"]);
    assert_eq!(wait(two).ips(), ["10.0.0.2/24"]);
    assert_eq!(std::fs::read_to_string(log).unwrap(), "begin\nend\nbegin\nend\n");
    let add = ["attempt", "running", "held"];
    assert_eq!(world.events("c1"), [add, add].concat());
}

#[test]
fn del_during_add_waits_and_then_releases_all() {
    let world = World::new();
    world.gated_allocator("a", "10.0.0.2/24").allocator("b", "10.0.1.2/24");
    let network = world.network(json!(["a", "b"]));
    let adding = start(world.command("ADD", "c1"), &network);
    world.at_gate("a");
    let deleting = start(world.command("DEL", "c1"), &network);
    assert!(world.waits_for_lock(&deleting, "c1"));
    world.open_gate("a");
    wait(adding).success();
    wait(deleting).success();
    assert_eq!(world.take_calls(), ["a ADD", "b ADD", "a DEL", "b DEL"]);
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn an_add_that_waited_for_a_del_begins_a_record_of_its_own() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let answer = json!({"ips": [{"address": "10.0.0.3/24"}]});
    let gate = world.gate("a");
    world.delegate("a", &format!("case $CNI_COMMAND in DEL) {gate};; ADD) echo '{answer}';; esac"));
    let deleting = start(world.command("DEL", "c1"), &network);
    world.at_gate("a");
    let adding = start(world.command("ADD", "c1"), &network);
    assert!(world.waits_for_lock(&adding, "c1"));
    world.open_gate("a");
    wait(deleting).success();
    // The record whose lock it waited for was removed: a lock on it excludes no other call.
    assert_eq!(wait(adding).ips(), ["10.0.0.3/24"]);
    assert_eq!(world.events("c1"), ["attempt", "running", "held"]);
}

#[test]
fn a_lock_is_waited_for_ten_seconds_and_then_error_11() {
    let world = World::new();
    world.gated_allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    let adding = start(world.command("ADD", "c1"), &network);
    world.at_gate("a");
    let began = Instant::now();
    let calls = ["ADD", "DEL", "CHECK"].map(|verb| start(world.command(verb, "c1"), &network));
    for call in calls {
        let (code, text) = wait(call).failure();
        assert_eq!(code, 11, "{text}");
        assert!(text.contains("another call holds the attachment record"), "{text}");
    }
    let waited = began.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(14)).contains(&waited), "{waited:?}");
    world.open_gate("a");
    wait(adding).success();
    assert_eq!(world.take_calls(), ["a ADD"]);
}

/// Kills the chain of an ADD of `c1` while its delegate `a` is at the gate.
fn kill_an_add(world: &World, network: &Value) {
    let mut adding = start(world.command("ADD", "c1"), network);
    world.at_gate("a");
    kill_now(&mut adding);
}

#[test]
fn the_delegate_of_a_killed_chain_still_excludes_others() {
    let world = World::new();
    world.gated_allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    kill_an_add(&world, &network);
    assert_eq!(world.state_of("c1"), "busy");
    let deleting = start(world.command("DEL", "c1"), &network);
    assert!(world.waits_for_lock(&deleting, "c1"));
    assert_eq!(world.take_calls(), ["a ADD"]);
    world.open_gate("a");
    wait(deleting).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert!(world.held().is_empty(), "the claim of the survivor is released");
    assert_eq!(world.state_of("c1"), "unsure");
}

/// An unsure record: killed in the middle of its ADD, then deleted.
fn unsure(world: &World, network: &Value) {
    world.gated_allocator("a", "10.0.0.2/24");
    kill_an_add(world, network);
    world.open_gate("a");
    wait(start(world.command("DEL", "c1"), network)).success();
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("unsure", 1));
    world.take_calls();
}

#[test]
fn an_unsure_del_is_repeated_by_another_add_when_due() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    let now = || u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let began = now();
    unsure(&world, &network);
    let ended = now();
    world.call("ADD", "c2", &network).success();
    assert_eq!(world.take_calls(), ["a ADD"], "not before it is due");
    world.make_due();
    // The claim of the killed ADD lands now.
    std::fs::write(world.path("held/a-c1-eth0"), "").unwrap();
    world.call("ADD", "c3", &network).success();
    let calls = world.calls();
    assert_eq!((&calls[0]["verb"], &calls[0]["container"]), (&json!("DEL"), &json!("c1")));
    // It is about what was taken from the begin of the ADD to the end of the record.
    let fence = &calls[0]["stdin"]["prevResult"]["fence"];
    let [after, before] = ["after", "before"].map(|end| fence[end].as_u64().unwrap());
    assert!(began <= after && after <= before && before <= ended, "{fence}: {began} to {ended}");
    assert_eq!(world.take_calls(), ["a DEL", "a ADD"]);
    assert_eq!(world.held(), ["a-c2-eth0", "a-c3-eth0"]);
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("none", 0));
}

#[test]
fn a_second_del_within_the_minute_releases_again_and_keeps_the_repetition() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    unsure(&world, &network);
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("unsure", 1));
}

#[test]
fn a_del_that_releases_an_unsure_record_for_good_takes_it_off_the_list() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    unsure(&world, &network);
    world.make_due();
    world.call("DEL", "c1", &network).success();
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("none", 0));
}

#[test]
fn a_re_add_cancels_the_repetition() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    unsure(&world, &network);
    world.make_due();
    world.call("ADD", "c1", &network).success();
    world.call("ADD", "c2", &network).success();
    assert_eq!(world.take_calls(), ["a ADD", "a ADD"]);
    assert_eq!(world.held(), ["a-c1-eth0", "a-c2-eth0"], "the live lease stays");
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("held", 0));
}

#[test]
fn a_stale_entry_does_not_bring_a_later_repetition_forward() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    unsure(&world, &network);
    // The entry is due, the record is not: it was deleted anew since.
    let folder = world.path("state/unsure");
    let link = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::os::unix::fs::symlink(
        std::fs::read_link(&link).unwrap(),
        folder.join("000000000000001.1.0"),
    )
    .unwrap();
    world.call("ADD", "c2", &network).success();
    assert_eq!(world.take_calls(), ["a ADD"]);
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("unsure", 1));
}

#[test]
fn a_repetition_that_fails_is_repeated_later() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    unsure(&world, &network);
    world.make_due();
    world.delegate("a", "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}]}';; DEL) printf '{\"code\":103,\"msg\":\"away\"}'; exit 1;; esac");
    let outcome = world.call("ADD", "c2", &network);
    assert!(outcome.stderr.contains("failed and will be repeated"), "{outcome:?}");
    outcome.success();
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("unsure", 1));
}

#[test]
fn a_repeated_del_gets_no_secrets_and_no_arguments_of_the_add_that_repeats_it() {
    let world = World::new();
    let network = with(&world.network(json!(["a"])), "password", "of net");
    unsure(&world, &network);
    world.make_due();
    let note = world.path("arguments");
    world.delegate("a", &format!(
        "case $CNI_COMMAND in DEL) printf '%s' \"$CNI_ARGS\" >'{}';; ADD) printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}';; esac",
        note.display()
    ));
    let mut other = with(&network, "password", "of other");
    other["name"] = json!("other");
    let mut command = world.command("ADD", "c2");
    command.env("CNI_ARGS", "K8S_POD_NAME=c2;IP=10.0.0.9");
    wait(start(command, &other)).success();
    let calls = world.calls();
    assert_eq!((&calls[0]["verb"], &calls[0]["container"]), (&json!("DEL"), &json!("c1")));
    assert_eq!(calls[0]["stdin"]["name"], "net");
    assert_eq!(calls[0]["stdin"]["ipam"]["password"], "of net");
    assert_eq!(std::fs::read_to_string(note).unwrap(), "");
}

#[test]
fn a_claim_that_lands_after_the_del_is_released_by_its_repetition() {
    let world = World::new();
    // The delegate only asks a store; the store is elsewhere and answers late.
    let held = world.path("held");
    std::fs::create_dir(&held).unwrap();
    let pid = world.path("pid");
    world.delegate("a", &format!(
        "f='{held}'/a-$CNI_CONTAINERID-$CNI_IFNAME\ncase $CNI_COMMAND in\n\
         ADD) if [ $CNI_CONTAINERID = c1 ]; then echo $$ >'{pid}'; {gate}; fi; : >\"$f\"; printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}';;\n\
         DEL) rm -f \"$f\";; esac",
        held = held.display(), pid = pid.display(), gate = world.gate("a")
    ));
    let network = world.network(json!(["a"]));
    kill_an_add(&world, &network);
    let delegate = std::fs::read_to_string(&pid).unwrap();
    assert!(Command::new("kill").args(["-9", delegate.trim()]).status().unwrap().success());
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "unsure");
    std::fs::write(held.join("a-c1-eth0"), "").unwrap();
    world.make_due();
    world.call("ADD", "c2", &network).success();
    assert_eq!(world.held(), ["a-c2-eth0"]);
    assert_eq!(world.state_of("c1"), "none");
}

#[test]
fn a_re_add_between_does_not_make_a_killed_add_forgotten() {
    let world = World::new();
    let network = world.network(json!(["a"]));
    unsure(&world, &network);
    world.full("a");
    world.call("ADD", "c1", &network).failure();
    world.call("DEL", "c1", &network).success();
    world.allocator("a", "10.0.0.2/24");
    // The claim of the ADD that was killed first.
    std::fs::write(world.path("held/a-c1-eth0"), "").unwrap();
    world.make_due();
    world.call("ADD", "c2", &network).success();
    assert_eq!(world.held(), ["a-c2-eth0"]);
}

/// Shell that leaves a daemon behind, as daemon(3) does; it keeps every descriptor but the three.
fn daemonise(world: &World, before_second_fork: &str) -> String {
    format!(
        "cat >'{script}' <<'END'\n{before_second_fork}\nsh -c 'echo $$ >\"{pid}.new\"; mv \"{pid}.new\" \"{pid}\"; exec sleep 30' &\nEND\n\
         setsid sh '{script}' &\n",
        script = world.path("daemon.sh").display(),
        pid = world.path("daemon.pid").display(),
    )
}

/// A process that is ended with the test.
struct Daemon(u32);

impl Daemon {
    fn of(world: &World) -> Self {
        let path = world.path("daemon.pid");
        until("the daemon", || path.exists());
        Self(std::fs::read_to_string(path).unwrap().trim().parse().unwrap())
    }

    fn lives(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0.to_string()]).status();
    }
}

#[test]
fn a_delegate_that_leaves_a_daemon_keeps_neither_the_add_nor_its_lock() {
    let world = World::new();
    let body = daemonise(&world, "");
    world.delegate("a", &format!("case $CNI_COMMAND in ADD) {body} printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}';; esac"));
    let network = world.network(json!(["a"]));
    let began = Instant::now();
    world.call("ADD", "c1", &network).success();
    let daemon = Daemon::of(&world);
    assert_eq!(world.state_of("c1"), "held", "not busy");
    world.call("DEL", "c1", &network).success();
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(daemon.lives());
}

fn daemon_beside_a_timeout(before_second_fork: &str) {
    let world = World::new();
    let body = daemonise(&world, before_second_fork);
    world.delegate("a", &format!("case $CNI_COMMAND in ADD) {body} printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}';; esac"));
    world.delegate("b", "case $CNI_COMMAND in ADD) sleep 20;; esac");
    let network = world.network(json!(["a", {"type": "b", "timeout": "1500ms"}]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 111, "{text}");
    let daemon = Daemon::of(&world);
    assert!(daemon.lives());
}

#[test]
fn the_timeout_of_a_later_delegate_spares_the_daemon_of_an_earlier_one() {
    daemon_beside_a_timeout("");
}

#[test]
fn a_daemon_that_forks_once_more_after_its_delegate_has_ended_is_spared_too() {
    daemon_beside_a_timeout("sleep 0.4");
}

#[test]
fn a_daemon_that_carries_no_mark_of_its_call_is_spared_too() {
    let world = World::new();
    let pid = world.path("daemon.pid");
    // It is there, with an empty environment, before its delegate has ended.
    let body = format!(
        "setsid env -i /bin/sh -c 'echo $$ >\"{pid}.new\"; mv \"{pid}.new\" \"{pid}\"; exec sleep 30' &\n\
         until [ -e '{pid}' ]; do sleep 0.01; done",
        pid = pid.display()
    );
    world.delegate("a", &format!("case $CNI_COMMAND in ADD) {body}; printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}';; esac"));
    world.delegate("b", "case $CNI_COMMAND in ADD) sleep 20;; esac");
    let network = world.network(json!(["a", {"type": "b", "timeout": "500ms"}]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 111, "{text}");
    assert!(Daemon::of(&world).lives());
}

/// Copies by another process: a file that this one has open for writing cannot be run.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn an_upgrade_by_rename_while_a_chain_runs_disturbs_neither() {
    let world = World::new();
    let installed = world.path("bin/ipam-delegated");
    copy(&binary("ipam-delegated"), &installed);
    world.gated_allocator("a", "10.0.0.2/24").allocator("b", "10.0.1.2/24");
    let network = world.network(json!(["a", "b"]));
    let adding = start(world.command_of(&installed, "ADD", "c1"), &network);
    world.at_gate("a");
    copy(&binary("ipam-delegated"), &world.path("new"));
    std::fs::rename(world.path("new"), &installed).unwrap();
    world.open_gate("a");
    assert_eq!(wait(adding).ips(), ["10.0.0.2/24", "10.0.1.2/24"]);
    wait(start(world.command_of(&installed, "DEL", "c1"), &network)).success();
    assert!(world.held().is_empty() && !world.record("c1").exists());
}

#[test]
fn after_an_upgrade_by_rename_the_chain_still_refuses_to_run_itself() {
    let world = World::new();
    let installed = world.path("bin/ipam-delegated");
    copy(&binary("ipam-delegated"), &installed);
    std::os::unix::fs::symlink(&installed, world.path("bin/no-preset")).unwrap();
    let mut command = world.command_of(&installed, "ADD", "c1");
    let mut running = command.spawn().unwrap();
    until("the process to run its own file", || {
        std::fs::read_link(format!("/proc/{}/exe", running.id())).is_ok_and(|exe| exe == installed)
    });
    // A new version, which neither is the same file nor has the same bytes.
    copy(&binary("ipam-delegated"), &world.path("new"));
    let mut new = std::fs::OpenOptions::new().append(true).open(world.path("new")).unwrap();
    std::io::Write::write_all(&mut new, b"2").unwrap();
    drop(new);
    std::fs::rename(world.path("new"), &installed).unwrap();
    let network = world.network(json!(["no-preset"]));
    std::io::Write::write_all(&mut running.stdin.take().unwrap(), network.to_string().as_bytes())
        .unwrap();
    let (code, text) = wait(running).failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("is ipam-delegated itself"), "{text}");
    assert!(!world.record("c1").exists());
}

#[test]
fn a_chain_inside_a_chain_is_refused_with_the_name_the_replaced_plugin_was_kept_under() {
    let world = World::new();
    copy(&binary("ipam-delegated"), &world.path("bin/host-local"));
    let append = format!("printf x >>'{}'", world.path("bin/host-local").display());
    assert!(Command::new("sh").args(["-c", &append]).status().unwrap().success());
    let (code, text) = world.call("ADD", "c1", &world.network(json!(["host-local"]))).failure();
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("host-local.orig"), "{text}");
}
