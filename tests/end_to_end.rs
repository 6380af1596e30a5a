//! Debian's own bridge and host-local plugins around, under and before the chain, in network
//! namespaces.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ipam_testkit::bridge::{Namespace, PLUGINS, Pod, addresses};
use ipam_testkit::world::{Outcome, World, binary, host_local, start, wait};
use serde_json::{Value, json};

/// A host of its own: its bridge, forwarding setting and plugin folders are not this machine's.
struct Host {
    // The namespaces go before the folders.
    outside: Namespace,
    world: World,
}

impl Host {
    fn new() -> Self {
        let bridge = Path::new(PLUGINS).join("bridge");
        assert!(
            bridge.exists() && host_local().exists(),
            "{}: apt-get install containernetworking-plugins",
            bridge.display()
        );
        let world = World::new();
        for program in ["ipam-delegated", "ipam-ds-static", "ipam-da-local"] {
            world.install(&binary(program));
        }
        Self { outside: Namespace::new("host"), world }
    }

    /// Puts our program in host-local's place.
    fn move_to_preset(&self) {
        symlink("ipam-delegated", self.world.path("bin/host-local")).unwrap();
    }

    fn chain(&self, delegates: Value, ranges: &Value) -> Value {
        let mut network = self.world.network(delegates);
        network["bridge"] = json!("br-e2e");
        network["isGateway"] = json!(true);
        network["ipam"]["ranges"] = ranges.clone();
        network
    }

    /// What a network has that knows host-local alone; `stateDir`, which keeps this machine's own
    /// records out of it, is nothing to host-local.
    fn unchanged(&self, ranges: &Value) -> Value {
        let mut network = self.chain(Value::Null, ranges);
        network["ipam"]["type"] = json!("host-local");
        network["ipam"].as_object_mut().unwrap().remove("delegates");
        network
    }

    /// Calls the bridge plugin as a runtime does, on this host.
    fn bridge(&self, verb: &str, container: &Pod, network: &Value) -> Outcome {
        let mut command = self.world.command_of(Path::new("nsenter"), verb, container.id);
        command
            .arg(format!("--net={}", self.outside.path().display()))
            .arg(Path::new(PLUGINS).join("bridge"))
            .env("CNI_PATH", format!("{}:{PLUGINS}", self.world.path("bin").display()))
            .env("CNI_NETNS", container.namespace.path());
        wait(start(command, network))
    }

    /// The links of the bridge's ports.
    fn ports(&self) -> usize {
        self.outside.run("ip", &["-o", "link", "show", "master", "br-e2e"]).lines().count()
    }

    /// The addresses that are held, in host-local's files.
    fn reserved(&self) -> BTreeSet<String> {
        names(&self.world.path("data/net"))
            .into_iter()
            .filter(|name| name.parse::<IpAddr>().is_ok())
            .collect()
    }
}

/// Two containers on one bridge, from ADD to DEL; they reach each other by every address.
fn two_containers(host: &Host, network: &Value, families: usize) {
    let containers = [Pod::new("one"), Pod::new("two")];
    let results: Vec<Value> =
        containers.iter().map(|c| host.bridge("ADD", c, network).success()).collect();
    let held: Vec<Vec<IpAddr>> =
        results.iter().map(|result| addresses(result, "address")).collect();
    assert!(held.iter().all(|held| held.len() == families), "{held:?}");
    let all: BTreeSet<String> = held.iter().flatten().map(IpAddr::to_string).collect();
    assert_eq!(all.len(), 2 * families, "{held:?}");
    assert_eq!(host.reserved(), all);
    assert_eq!(host.ports(), 2);
    for (container, others) in containers.iter().zip(held.iter().rev()) {
        others.iter().for_each(|address| container.namespace.ping(*address));
    }
    for (container, result) in containers.iter().zip(&results) {
        let mut checked = network.clone();
        checked["prevResult"] = result.clone();
        host.bridge("CHECK", container, &checked).success();
    }
    for container in &containers {
        assert!(host.world.record(container.id).exists());
        // A runtime may call twice.
        for _ in 0..2 {
            host.bridge("DEL", container, network).success();
        }
        assert!(!host.world.record(container.id).exists());
    }
    assert_eq!(host.reserved(), BTreeSet::new());
    assert_eq!(host.ports(), 0);
}

fn one_family() -> Value {
    json!([[{"subnet": "10.91.0.0/24"}]])
}

fn both_families() -> Value {
    json!([[{"subnet": "10.92.0.0/24"}], [{"subnet": "fd92::/64"}]])
}

#[test]
fn containers_on_a_bridge_ping_each_other() {
    let host = Host::new();
    two_containers(&host, &host.chain(json!(["ipam-ds-static", "host-local"]), &one_family()), 1);
}

#[test]
fn containers_on_a_bridge_ping_each_other_over_both_families() {
    let host = Host::new();
    two_containers(
        &host,
        &host.chain(json!(["ipam-ds-static", "host-local"]), &both_families()),
        2,
    );
}

#[test]
fn our_own_allocator_serves_a_bridge() {
    let host = Host::new();
    let chain = host.chain(json!(["ipam-ds-static", "ipam-da-local"]), &both_families());
    two_containers(&host, &chain, 2);
}

#[test]
fn the_preset_serves_a_bridge_that_knows_host_local_alone() {
    let host = Host::new();
    host.move_to_preset();
    two_containers(&host, &host.unchanged(&both_families()), 2);
}

#[test]
fn containers_of_host_local_stay_connected_while_the_preset_takes_over() {
    let host = Host::new();
    let network = host.unchanged(&both_families());
    let [before, after] = [Pod::new("one"), Pod::new("two")];
    let held = host.bridge("ADD", &before, &network).success();
    assert!(!host.world.record(before.id).exists());

    host.move_to_preset();
    let given = host.bridge("ADD", &after, &network).success();
    assert!(host.world.record(after.id).exists());
    addresses(&held, "address").into_iter().for_each(|address| after.namespace.ping(address));
    addresses(&given, "address").into_iter().for_each(|address| before.namespace.ping(address));
    for (container, result) in [(&before, held), (&after, given)] {
        let mut checked = network.clone();
        checked["prevResult"] = result;
        host.bridge("CHECK", container, &checked).success();
    }
    host.bridge("DEL", &before, &network).success();

    fs::remove_file(host.world.path("bin/host-local")).unwrap();
    host.bridge("DEL", &after, &network).success();
    assert_eq!((host.ports(), host.reserved()), (0, BTreeSet::new()));
}

#[test]
fn a_failed_add_leaves_nothing() {
    let host = Host::new();
    let ranges = json!([[{"subnet": "10.93.0.0/30"}]]);
    let network = host.chain(json!(["ipam-ds-static", "host-local"]), &ranges);
    let containers = [Pod::new("one"), Pod::new("two")];
    host.bridge("ADD", &containers[0], &network).success();
    let (_, text) = host.bridge("ADD", &containers[1], &network).failure();
    assert!(text.contains("host-local"), "the error names the delegate: {text}");
    assert_eq!(host.reserved().len(), 1);
    // The bridge plugin leaves its link to the DEL that runtimes send after a failed ADD.
    host.bridge("DEL", &containers[1], &network).success();
    assert_eq!((host.ports(), host.reserved().len()), (1, 1));
}

#[test]
fn many_workers_at_once_get_addresses_of_their_own() {
    many_workers(&host_local());
}

#[test]
fn many_workers_at_once_get_addresses_of_their_own_from_our_allocator() {
    many_workers(&binary("ipam-da-local"));
}

fn many_workers(allocator: &Path) {
    const ATTACHMENTS: usize = 200;
    const WORKERS: usize = 20;
    let world = World::new();
    world.install(&binary("ipam-delegated")).install(&binary("ipam-ds-static")).install(allocator);
    let name = allocator.file_name().unwrap().to_str();
    let mut network = world.network(json!(["ipam-ds-static", name]));
    network["ipam"]["ranges"] = json!([[{"subnet": "10.94.0.0/22"}]]);
    let all = |verb: &str| -> Vec<Outcome> {
        let numbers = Mutex::new(0..ATTACHMENTS);
        let outcomes = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    loop {
                        let Some(number) = numbers.lock().unwrap().next() else { break };
                        let outcome = world.call(verb, &format!("container-{number}"), &network);
                        outcomes.lock().unwrap().push(outcome);
                    }
                });
            }
        });
        outcomes.into_inner().unwrap()
    };
    let given: Vec<String> = all("ADD").into_iter().flat_map(Outcome::ips).collect();
    assert_eq!(given.len(), ATTACHMENTS);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), ATTACHMENTS, "{given:?}");
    assert_eq!(files(&world.path("state/attachments")).len(), ATTACHMENTS);

    all("DEL").into_iter().for_each(|outcome| drop(outcome.success()));
    let left = names(&world.path("data/net"));
    let own: BTreeSet<String> = ["last_reserved_ip.0", "lock"].map(str::to_owned).into();
    assert_eq!(left, own);
    assert_eq!(files(&world.path("state/attachments")), Vec::<PathBuf>::new());
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The files under a folder, at any depth.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}
