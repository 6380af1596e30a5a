//! The verbs that an allocator over a ledger answers to people, on real leases.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use ipam_testkit::world::{World, binary};
use serde_json::{Value, json};

/// A world with a network of two pools, and an attachment that holds an address of each.
struct Office {
    world: World,
    network: Value,
}

impl Office {
    fn new() -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-local"));
        let mut network = world.network(json!(["ipam-ds-static", "ipam-da-local"]));
        network["ipam"]["pools"] = json!([
            {"name": "blue", "ranges": [{"subnet": "10.9.0.0/29", "exclude": ["10.9.0.5"]}]},
            {"name": "six", "ranges": [{"subnet": "fd00:9::/64"}]},
        ]);
        let office = Self { world, network };
        office.world.call("ADD", "c1", &office.network).success();
        office
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let file = self.world.path("net.json");
        std::fs::write(&file, self.network.to_string()).unwrap();
        let (verb, rest) = arguments.split_first().unwrap();
        Command::new(binary("ipam-delegated"))
            .env_clear()
            .args([verb, file.to_str().unwrap()])
            .args(rest)
            .args([Path::new("--cni-path"), &self.world.path("bin")])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn rows(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.ask(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn lease(&self, address: &str) -> std::path::PathBuf {
        self.world.path("data/net").join(address)
    }
}

fn column(rows: &[Value], key: &str) -> Vec<String> {
    rows.iter().map(|row| row[key].as_str().unwrap_or("-").to_owned()).collect()
}

#[test]
fn leases_are_listed_with_pool_owner_node_and_state() {
    let office = Office::new();
    std::fs::write(office.lease("10.9.0.4"), "foreign").unwrap();
    std::fs::create_dir(office.lease("10.9.0.5")).unwrap();
    let rows = office.rows(&["list"]);
    assert_eq!(column(&rows, "address"), ["10.9.0.2", "10.9.0.4", "10.9.0.5", "fd00:9::2"]);
    assert_eq!(column(&rows, "pool"), ["blue", "blue", "blue", "six"]);
    assert_eq!(column(&rows, "containerID"), ["c1", "foreign", "-", "c1"]);
    assert_eq!(column(&rows, "ifname"), ["eth0", "-", "-", "eth0"]);
    assert_eq!(column(&rows, "state"), ["held", "held", "unreadable", "held"]);
    let identity = std::fs::read(office.world.path("state/node")).unwrap();
    let identity: Value = serde_json::from_slice(&identity).unwrap();
    assert_eq!(rows[0]["node"], identity["uuid"]);
    assert!(rows[0]["ageSeconds"].as_u64().unwrap() < 60);
}

#[test]
fn an_address_names_its_holder() {
    let office = Office::new();
    let rows = office.rows(&["who", "fd00:9:0::2"]);
    assert_eq!(column(&rows, "containerID"), ["c1"]);
    for (address, why) in [
        ("10.9.0.3", "10.9.0.3 is free on net"),
        ("10.9.0.1", "10.9.0.1 is the gateway of 10.9.0."),
        ("10.9.0.5", "10.9.0.5 is excluded from 10.9.0.1-10.9.0.6 by 10.9.0.5"),
        ("10.10.0.3", "10.10.0.3 is in no pool of net"),
    ] {
        let file = office.world.path("net.json");
        std::fs::write(&file, office.network.to_string()).unwrap();
        let mut who = Command::new(binary("ipam-da-local"));
        who.args(["who", address, "--config", file.to_str().unwrap()]).env_clear();
        let told = String::from_utf8(who.output().unwrap().stderr).unwrap();
        assert!(told.contains(why), "{told}");
    }
    let pool = "pool blue (10.9.0.1-10.9.0.6)";
    for (address, why) in [
        ("10.9.0.3", format!("10.9.0.3 is free, in {pool}")),
        ("10.9.0.1", format!("10.9.0.1 is the gateway of {pool}, and never given")),
        ("10.9.0.5", format!("10.9.0.5 is excluded from {pool}, and never given")),
        ("10.9.0.7", "10.9.0.7 is in no pool of net: its pools are 10.9.0.1-10.9.0.6, fd0".into()),
        ("fd00:9::1", "fd00:9::1 is the gateway of pool six (fd00:9::1-".into()),
        ("fd00:9::3", "fd00:9::3 is free, in pool six (".into()),
    ] {
        for more in [&[][..], &["--json"]] {
            let not_held = office.ask(&[&["who", address], more].concat());
            assert_eq!((not_held.status.code(), not_held.stdout.len()), (Some(1), 0));
            let told = String::from_utf8(not_held.stderr).unwrap();
            assert!(told.contains(&why), "{told}");
        }
    }
}

#[test]
fn pools_are_counted_and_drawn() {
    let office = Office::new();
    let rows = office.rows(&["pools"]);
    assert_eq!(rows[0]["pool"], "blue");
    assert_eq!([&rows[0]["size"], &rows[0]["held"], &rows[0]["free"]], [4, 1, 3]);
    assert_eq!(rows[0]["gateways"], json!(["10.9.0.1"]));
    let output = office.ask(&["pools", "--ascii"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  10.9.0.1  x#..."), "{text}");
}

#[test]
fn nothing_is_released_before_it_is_meant() {
    let office = Office::new();
    let dry = office.rows(&["release", "--owner", "c1/eth0"]);
    assert_eq!(column(&dry, "address"), ["10.9.0.2", "fd00:9::2"]);
    assert!(office.lease("10.9.0.2").exists());
    let none = office.ask(&["release", "--owner", "c1/eth1", "--yes"]);
    let told = String::from_utf8_lossy(&none.stderr);
    assert!(!none.status.success() && told.contains("c1/eth1 holds no address"), "{none:?}");
    assert!(office.lease("10.9.0.2").exists());
    let done = office.rows(&["release", "10.9.0.2", "--yes"]);
    assert_eq!(column(&done, "address"), ["10.9.0.2"]);
    assert!(!office.lease("10.9.0.2").exists() && office.lease("fd00:9::2").exists());
    let node = office.rows(&["list"])[0]["node"].as_str().unwrap().to_owned();
    assert!(office.rows(&["release", "--node", "another", "--yes"]).is_empty());
    assert_eq!(office.rows(&["release", "--node", &node, "--yes"]).len(), 1);
    // The owner is found to hold nothing, not to hold what was released.
    office.world.call("CHECK", "c1", &office.network).failure();
    let again = office.world.call("ADD", "c1", &office.network).ips();
    assert_eq!(again, ["10.9.0.3/29", "fd00:9::3/64"]);
}

#[test]
fn the_allocator_answers_by_itself() {
    let office = Office::new();
    let ask = |arguments: &[&str]| {
        Command::new(binary("ipam-da-local")).env_clear().args(arguments).output().unwrap()
    };
    let about: Value = serde_json::from_slice(&ask(&["about", "--json"]).stdout).unwrap();
    assert_eq!([&about["role"], &about["reach"]], ["allocator", "node"]);
    let file = office.world.path("plugins.conflist");
    let ipam = office.network["ipam"].clone();
    let plugins = json!([{"type": "tuning"}, {"type": "bridge", "ipam": ipam}]);
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
    std::fs::write(&file, list.to_string()).unwrap();
    let listed = ask(&["list", "--config", file.to_str().unwrap()]);
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.lines().nth(1).unwrap().starts_with("10.9.0.2   blue  c1"), "{text}");
    let released = ask(&["release", "10.9.0.4", "--yes", "--config", file.to_str().unwrap()]);
    assert_eq!((released.status.code(), released.stdout.len()), (Some(1), 0));
    let told = String::from_utf8_lossy(&released.stderr).into_owned();
    assert!(told.contains("10.9.0.4 is free on net"), "{told}");
    let reap = ask(&["reap", "--cache-dir", "/"]);
    let told = String::from_utf8_lossy(&reap.stderr).into_owned();
    assert_eq!(reap.status.code(), Some(1));
    assert!(
        told.contains("unknown verb \"reap\"") && told.contains("ipam-delegated reap does it"),
        "{told}"
    );
    for (typed, message) in
        [(&["list", "net"][..], "unexpected word \"net\""), (&["list"], "list needs --config FILE")]
    {
        let told = String::from_utf8(ask(typed).stderr).unwrap();
        assert!(told.contains(message), "{told}");
        let advice = "ipam-delegated list finds the file by the network's name";
        assert!(told.contains(advice), "{told}");
    }
    let null = ask(&["list", "--config", "/dev/zero"]);
    assert!(String::from_utf8_lossy(&null.stderr).contains("/dev/zero: not a regular file"));
    for wrong in [&["list"][..], &["frob"], &["list", "--yes"], &["who", "x", "--config", "f"]] {
        let output = ask(wrong);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    }
    let refused = ask(&["list", "--json", "--config", "/nowhere"]);
    let error: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!((refused.status.code(), &error["code"]), (Some(1), &json!(5)));
}
