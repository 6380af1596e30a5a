//! Host-wide settings that cannot be read: what takes addresses fails, what releases them goes on by the
//! record. Each test has a mount namespace of its own.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::process::Stdio;

use ipam_testkit::world::{Host, Outcome, World, binary, start, wait, with, without};
use serde_json::{Value, json};

const FILE: &str = "/etc/cni/ipam-delegated.json";
const STATE: &str = "/var/lib/cni/ipam-delegated";

/// A network on the state folder of the host.
fn network(world: &World, delegates: Value) -> Value {
    without(&world.network(delegates), &["stateDir"])
}

/// What some runtimes make of a configuration before they call DEL.
fn stripped() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
}

fn without_attachment(world: &World, host: &Host, verb: &str, network: &Value) -> Outcome {
    let mut network = network.clone();
    network["cniVersion"] = json!("1.1.0");
    network["cni.dev/valid-attachments"] = json!([]);
    let mut command = host.command(world, verb, "");
    command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
    wait(start(command, &network))
}

fn records(host: &Host) -> Vec<String> {
    ipam_testkit::world::names(&host.path(&format!("{STATE}/attachments/net")))
}

/// Breaks the settings, and tells the fault that is to be named.
fn broken(host: &Host) -> &'static str {
    host.settings(&json!({"stateDirectory": "/x"}));
    "/etc/cni/ipam-delegated.json: stateDirectory: unknown"
}

/// A node with real programs, whose containers have addresses of 10.60.0.0/24 on the disk.
fn local() -> (World, Host, Value) {
    let (world, host) = (World::new(), Host::new());
    for name in ["ipam-ds-static", "ipam-da-local"] {
        world.install(&binary(name));
    }
    let network = network(&world, json!(["ipam-ds-static", "ipam-da-local"]));
    let network = with(&network, "ranges", json!([[{"subnet": "10.60.0.0/24"}]]));
    host.call(&world, "ADD", "c1", &network).success();
    host.call(&world, "ADD", "c2", &network).success();
    (world, host, network)
}

#[test]
fn a_broken_file_fails_what_takes_and_not_what_releases_by_a_record() {
    let (world, host, network) = local();
    let fault = broken(&host);
    for outcome in [
        host.call(&world, "ADD", "c3", &network),
        without_attachment(&world, &host, "STATUS", &network),
        without_attachment(&world, &host, "GC", &network),
    ] {
        let (code, text) = outcome.failure();
        assert!(code == 7 && text.contains(fault), "{code} {text}");
    }
    for (verb, container, network) in
        [("CHECK", "c1", &network), ("DEL", "c1", &network), ("DEL", "c2", &stripped())]
    {
        let outcome = host.call(&world, verb, container, network);
        let told = outcome.stderr.matches(fault).count();
        let goes_on = format!("{verb} continues with the records in {STATE}");
        assert!(told == 1 && outcome.stderr.contains(&goes_on), "{outcome:?}");
        outcome.success();
    }
    let mut left = ipam_testkit::world::names(&world.path("data/net"));
    left.retain(|name| name.starts_with("10."));
    assert!(left.is_empty() && records(&host).is_empty(), "{left:?}");
}

#[test]
fn without_a_record_a_del_fails_until_the_file_is_mended() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    let network = network(&world, json!(["a"]));
    let elsewhere = json!({"stateDir": "/var/log/cni/state"});
    host.settings(&elsewhere);
    host.call(&world, "ADD", "c1", &network).success();
    world.take_calls();
    let fault = broken(&host);
    for (verb, network) in [("DEL", &network), ("DEL", &stripped()), ("CHECK", &network)] {
        let (code, text) = host.call(&world, verb, "c1", network).failure();
        assert!(code == 7 && text.contains(fault), "{code} {text}");
        let absent =
            format!("the only known state folder is {STATE}, which has no record of c1/eth0");
        assert!(text.contains(&absent) && text.contains(&format!("correct {FILE}")), "{text}");
    }
    assert!(world.take_calls().is_empty(), "no delegate runs");
    assert!(!host.path(&format!("{STATE}/node")).exists() && records(&host).is_empty());
    host.settings(&elsewhere);
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert!(world.held().is_empty());
}

#[test]
fn invalid_json_is_told_with_its_line() {
    let (world, host, network) = local();
    fs::write(host.path(FILE), "{\"node\": \"n1\",\n \"verbose\": yes}").unwrap();
    let (_, text) = host.call(&world, "ADD", "c3", &network).failure();
    assert!(text.contains(FILE) && text.contains("line 2"), "{text}");
    let outcome = host.call(&world, "DEL", "c1", &network);
    assert!(outcome.stderr.contains("line 2"), "{outcome:?}");
    outcome.success();
}

#[test]
fn a_link_that_leads_nowhere_is_not_a_missing_file() {
    let (world, host, network) = local();
    std::os::unix::fs::symlink("/nowhere/at/all", host.path(FILE)).unwrap();
    let (code, text) = host.call(&world, "ADD", "c3", &network).failure();
    assert!(
        code == 5 && text.contains(FILE) && text.contains("dangling symbolic link"),
        "{code} {text}"
    );
    let outcome = host.call(&world, "DEL", "c1", &network);
    assert!(outcome.stderr.contains("dangling symbolic link"), "{outcome:?}");
    outcome.success();
}

#[test]
fn the_node_of_a_del_is_that_of_the_record() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.settings(&json!({"node": "rack1-7"}));
    host.call(&world, "ADD", "c1", &network(&world, json!(["a"]))).success();
    broken(&host);
    world.take_calls();
    host.call(&world, "DEL", "c1", &stripped()).success();
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["node"], "rack1-7");
}

#[test]
fn records_that_may_be_another_machines_are_not_gone_by() {
    let (world, host) = (World::new(), Host::new());
    world.allocator("a", "10.0.0.2/24");
    host.shell("echo 0123456789abcdef0123456789abcdef >/var/log/cni/id; mount --bind /var/log/cni/id /etc/machine-id");
    host.call(&world, "ADD", "c1", &network(&world, json!(["a"]))).success();
    host.shell("echo fedcba9876543210fedcba9876543210 >/var/log/cni/id");
    let fault = broken(&host);
    let (code, text) = host.call(&world, "DEL", "c1", &stripped()).failure();
    assert!(code == 113 && text.contains(fault), "{code} {text}");
    assert!(text.contains("may belong to another machine"), "{text}");
    assert_eq!(world.held(), ["a-c1-eth0"]);
    assert_eq!(records(&host), ["c1:eth0"]);
}

#[test]
fn an_allocator_whose_leases_name_a_node_does_not_guess_it() {
    let (world, host) = (World::new(), Host::new());
    let network = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {
        "type": "ipam-da-etcd", "etcd": {"endpoints": ["127.0.0.1:1"]},
        "ranges": [[{"subnet": "10.60.0.0/24"}]]}});
    let fault = broken(&host);
    let chain = host.command(&world, "DEL", "c1");
    let mut command = host.enter(binary("ipam-da-etcd"));
    command.envs(chain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (code, text) = wait(start(command, &network)).failure();
    assert!(code == 7 && text.contains(fault), "{code} {text}");
    assert!(text.contains("this node's name is unknown"), "{text}");
}

#[test]
fn lint_reads_the_file_before_the_network() {
    let (world, host) = (World::new(), Host::new());
    let fault = broken(&host);
    let typed = world.typing(&["lint", "no-such-network"]);
    let mut command = host.enter(typed.get_program());
    let output = command.args(typed.get_args()).env_remove("CNI_COMMAND").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with("ipam-delegated: ") && stderr.contains(fault), "{stderr}");
    assert!(!stderr.contains("no-such-network"), "{stderr}");
}
