//! Subnets that something else on this host has too, and gateways outside of theirs: `lint` warns.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::process::Command;

use ipam_testkit::bridge::Namespace;
use ipam_testkit::world::{Host, World, binary, with};
use serde_json::{Value, json};

/// A node with the selector and the allocator of the disk.
fn world() -> World {
    let world = World::new();
    for name in ["ipam-ds-static", "ipam-da-local"] {
        world.install(&binary(name));
    }
    world
}

/// A network on a bridge of its own, with these ranges.
fn network(world: &World, ranges: Value) -> Value {
    let network = world.network(json!(["ipam-ds-static", "ipam-da-local"]));
    let mut network = with(&network, "ranges", ranges);
    network["bridge"] = json!("net0");
    network
}

/// Another network in the folder: these plugins.
fn other(world: &World, file: &str, name: &str, plugins: Value) {
    world.config(file, &json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins}));
}

/// The warnings and notes of `lint` about subnets and gateways, as `level: message`.
#[track_caller]
fn told(world: &World, command: Option<Command>) -> Vec<String> {
    let typed = world.typing(&["lint", "net"]);
    // Routes of the machine that runs the tests are not theirs.
    let mut command = command.unwrap_or_else(|| {
        let mut command = Command::new("unshare");
        command.arg("--net");
        command
    });
    command.arg(typed.get_program()).args(typed.get_args()).env_remove("CNI_COMMAND");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let about = |line: &&str| {
        ["overlaps", "compared", "gateway"].iter().any(|word| line.contains(word))
            && ["warning: ", "note: "].iter().any(|level| line.starts_with(level))
    };
    // Paths of a test's own are of no interest here.
    text.lines()
        .filter(about)
        .map(|it| it.replace(world.path("net.d").to_str().unwrap(), "DIR"))
        .collect()
}

const NONE: [&str; 0] = [];

/// Enters a host, without the routes of this machine.
fn alone(host: &Host) -> Command {
    let mut command = host.enter("unshare");
    command.arg("--net");
    command
}

#[test]
fn a_subnet_of_another_network_of_the_folder_is_a_warning() {
    let world = world();
    let ranges = json!([[{"subnet": "10.211.0.0/16"}], [{"subnet": "fd00:211::/64"}]]);
    world.conflist("10-net.conflist", &network(&world, ranges));
    let of = |ipam: Value| json!([{"type": "bridge", "bridge": "other0", "ipam": ipam}]);
    let start = "warning: 10.211.0.0/16 overlaps ";
    for (ipam, theirs) in [
        (json!({"type": "host-local", "ranges": [[{"subnet": "10.211.0.0/16"}]]}), "10.211.0.0/16"),
        (json!({"type": "host-local", "subnet": "10.211.7.0/24"}), "10.211.7.0/24"),
        (
            json!({"type": "x", "pools": [{"ranges": [{"subnet": "10.208.0.0/14"}]}]}),
            "10.208.0.0/14",
        ),
        (
            json!({"type": "ipam-delegated", "delegates": ["a", {"type": "b", "ranges": [[{"subnet": "10.211.9.0/24"}]]}]}),
            "10.211.9.0/24",
        ),
    ] {
        other(&world, "20-blue.conflist", "blue", of(ipam));
        let expected = format!(
            "{start}{theirs} of the network blue (DIR/20-blue.conflist): give one of them another subnet"
        );
        assert_eq!(told(&world, None), [expected]);
    }
    let plain = json!({"type": "host-local", "ranges": [[{"subnet": "fd00:211::/48"}]]});
    let plain = json!({"name": "plain", "type": "bridge", "bridge": "p0", "ipam": plain});
    fs::remove_file(world.path("net.d/20-blue.conflist")).unwrap();
    world.config("30-plain.conf", &plain);
    has(&told(&world, None), "warning: fd00:211::/64 overlaps fd00:211::/48 of the network plain");
    for ipam in
        [json!({"type": "host-local", "subnet": "10.212.0.0/16"}), json!({"subnet": 7}), json!({})]
    {
        other(&world, "30-plain.conf", "plain", of(ipam));
        assert_eq!(told(&world, None), NONE);
    }
}

#[track_caller]
fn has(told: &[String], start: &str) {
    assert!(told.len() == 1 && told[0].starts_with(start), "{start} is not {told:#?}");
}

#[test]
fn what_a_selector_answers_is_compared_too() {
    let world = World::new();
    world.selector(
        "ipam-ds-x",
        &json!([{"name": "q", "ranges": [{"subnet": "10.211.0.0/24", "gateway": "10.9.0.1"}]}]),
    );
    world.answering("ipam-da-x", "10.211.0.2/24");
    world.conflist("10-net.conflist", &world.network(json!(["ipam-ds-x", "ipam-da-x"])));
    let theirs = json!([{"type": "bridge", "bridge": "b", "ipam": {"subnet": "10.211.0.0/25"}}]);
    other(&world, "20-blue.conflist", "blue", theirs);
    let told = told(&world, None);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(
        told[0].starts_with("warning: 10.211.0.0/24 overlaps 10.211.0.0/25 of the network blue")
    );
    assert_eq!(
        told[1],
        "warning: the gateway 10.9.0.1 is outside its subnet 10.211.0.0/24: correct one of them"
    );
}

#[test]
fn networks_of_one_link_may_share_a_subnet_with_ranges_of_their_own() {
    let world = world();
    let half = |start: u8, end: u8| json!([[{"subnet": "10.211.0.0/24", "rangeStart": format!("10.211.0.{start}"), "rangeEnd": format!("10.211.0.{end}")}]]);
    let lower = network(&world, half(10, 99));
    for (kind, key, name, theirs, shares) in [
        ("bridge", "bridge", "net0", "net0", true),
        ("bridge", "bridge", "net0", "net1", false),
        ("macvlan", "master", "eth0", "eth0", true),
        ("macvlan", "master", "eth0", "eth1", false),
    ] {
        let mut mine = lower.clone();
        mine.as_object_mut().unwrap().remove("bridge");
        (mine["type"], mine[key]) = (json!(kind), json!(name));
        world.conflist("10-net.conflist", &mine);
        let plugin = |ranges: Value| json!([{"type": kind, key: theirs, "ipam": {"type": "host-local", "ranges": ranges}}]);
        other(&world, "20-blue.conflist", "blue", plugin(half(100, 199)));
        assert_eq!(told(&world, None).is_empty(), shares, "{kind} {theirs}");
        other(&world, "20-blue.conflist", "blue", plugin(half(99, 199)));
        let remedy = if shares { "give one of them other ranges" } else { "another subnet" };
        let told = told(&world, None);
        assert!(told.len() == 1 && told[0].ends_with(remedy), "{told:#?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_note() {
    let world = world();
    world.conflist("10-net.conflist", &network(&world, json!([[{"subnet": "10.211.0.0/24"}]])));
    fs::write(world.path("net.d/20-broken.conflist"), "{").unwrap();
    has(
        &told(&world, None),
        "note: subnets are not compared with one network: DIR/20-broken.conflist is not one JSON object",
    );
}

#[test]
fn routes_that_cannot_be_read_are_a_note() {
    let (world, host) = (world(), Host::new());
    world.conflist("10-net.conflist", &network(&world, json!([[{"subnet": "10.211.0.0/24"}]])));
    host.shell("mount -t tmpfs tmpfs /proc");
    let start =
        "note: subnets are not compared with the host's routes: cannot read /proc/net/route";
    has(&told(&world, Some(alone(&host))), start);
}

#[test]
fn the_networks_of_podman_are_compared() {
    let (world, host) = (world(), Host::new());
    world.conflist("10-net.conflist", &network(&world, json!([[{"subnet": "10.88.0.0/16"}]])));
    host.shell(
        "mkdir -p /etc/containers/networks && mount -t tmpfs tmpfs /etc/containers/networks",
    );
    assert_eq!(told(&world, Some(alone(&host))), NONE);
    let podman = json!({"name": "podman", "driver": "bridge", "network_interface": "podman0",
        "subnets": [{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}]});
    fs::write(host.path("/etc/containers/networks/podman.json"), podman.to_string()).unwrap();
    has(
        &told(&world, Some(alone(&host))),
        "warning: 10.88.0.0/16 overlaps 10.88.0.0/16 of the network podman (/etc/containers/networks/podman.json)",
    );
}

#[test]
fn a_route_of_the_host_is_a_warning_unless_it_is_the_networks_own() {
    let world = world();
    let ranges = json!([[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]);
    let mine = network(&world, ranges);
    world.conflist("10-net.conflist", &mine);
    let host = Namespace::new("routes");
    let told = |host: &Namespace| {
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--net={}", host.path().display()));
        told(&world, Some(enter))
    };
    let ip = |words: &str| drop(host.run("ip", &words.split(' ').collect::<Vec<_>>()));
    let add = |name: &str| {
        ip(&format!("link add {name} type bridge"));
        ip(&format!("link set {name} up"));
    };
    add("net0");
    ip("addr add 10.88.0.1/16 dev net0");
    ip("addr add fd00:88::1/64 dev net0 nodad");
    ip("route add default dev net0");
    ip("-6 route add default dev net0");
    assert_eq!(told(&host), NONE, "its own bridge, and the default route");
    add("podman0");
    ip("addr add 10.88.0.1/16 dev podman0");
    ip("route add 10.88.3.4/32 dev podman0");
    ip("-6 route add fd00:88::/48 dev podman0");
    let route = |mine: &str, theirs: &str| {
        format!(
            "warning: {mine} overlaps the host's route to {theirs} via podman0: choose another subnet, or remove the route"
        )
    };
    let both = [route("10.88.0.0/16", "10.88.0.0/16"), route("fd00:88::/64", "fd00:88::/48")];
    assert_eq!(told(&host), both);
    // There the subnet is the host's.
    let mut part = mine.clone();
    part["type"] = json!("macvlan");
    part.as_object_mut().unwrap().remove("bridge");
    world.conflist("10-net.conflist", &part);
    assert_eq!(told(&host), NONE);
    let mut default = part;
    default["type"] = json!("bridge");
    world.conflist("10-net.conflist", &default);
    assert_eq!(told(&host).len(), 4, "its bridge is cni0");
}

#[test]
fn a_gateway_outside_of_its_subnet_is_a_warning() {
    let world = world();
    for (ranges, gateway) in [
        (json!([[{"subnet": "10.211.0.0/24", "gateway": "10.211.1.1"}]]), Some("10.211.1.1")),
        (json!([[{"subnet": "fd00:211::/64", "gateway": "fd00:212::1"}]]), Some("fd00:212::1")),
        (json!([[{"subnet": "10.211.0.0/24", "gateway": "10.211.0.254"}]]), None),
        (json!([[{"subnet": "fd00:211::/64", "gateway": "fe80::1"}]]), None),
        (json!([[{"subnet": "10.211.0.0/24", "gateway": "169.254.1.1"}]]), None),
    ] {
        world.conflist("10-net.conflist", &network(&world, ranges.clone()));
        let subnet = ranges[0][0]["subnet"].as_str().unwrap();
        let expected = gateway.map(|gateway| {
            format!(
                "warning: the gateway {gateway} is outside its subnet {subnet}: correct one of them"
            )
        });
        assert_eq!(told(&world, None), Vec::from_iter(expected));
    }
    // Rules by which it is an error say so alone.
    let ranges = json!([[{"subnet": "10.211.0.0/24", "gateway": "10.211.1.1"}]]);
    let strict = with(&network(&world, ranges), "rangeRules", "etcd");
    world.conflist("10-net.conflist", &strict);
    let outcome = world.typed(&["lint", "net"]);
    assert_eq!(outcome.exit, Some(1));
    assert!(!outcome.stdout.contains("is outside its subnet"), "{outcome:?}");
}
