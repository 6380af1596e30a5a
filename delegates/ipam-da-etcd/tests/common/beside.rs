//! Our programs where an old plugin has been, and may still be.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::addresses;
use ipam_testkit::old::Call;
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use super::PROGRAM;

/// A node with one of our programs and the network `net`.
pub struct Ours {
    pub world: World,
    program: PathBuf,
    pub network: Value,
}

impl Ours {
    /// `ipam-delegated` under the name of an old plugin, with its configuration but for the ranges.
    pub fn preset(name: &str, ipam: &Value, ranges: &Value) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        let program = world.path("bin").join(name);
        symlink(binary("ipam-delegated"), &program).unwrap();
        Self::with(world, program, name, ipam, ranges)
    }

    /// `ipam-da-etcd` without a chain, in the layout of an old plugin.
    pub fn alone(endpoint: &str, layout: &str, ranges: &Value) -> Self {
        let ipam = json!({"etcd": {"endpoints": [endpoint], "layout": layout}});
        Self::with(World::new(), PROGRAM.into(), "ipam-da-etcd", &ipam, ranges)
    }

    fn with(world: World, program: PathBuf, name: &str, ipam: &Value, ranges: &Value) -> Self {
        let mut network = json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "bridge",
            "ipam": ipam,
        });
        network["ipam"]["type"] = name.into();
        network["ipam"]["ranges"] = ranges.clone();
        network["ipam"]["stateDir"] = json!(world.path("state"));
        // The machine's own tells nothing of these containers.
        network["ipam"]["etcd"]["resultCache"] = json!(world.path("results"));
        Self { world, program, network }
    }

    /// Another network.
    pub fn named(mut self, network: &str) -> Self {
        self.network["name"] = network.into();
        self
    }

    pub fn start(&self, verb: &str, container: &str) -> Child {
        self.start_with(verb, container, &self.network)
    }

    fn start_with(&self, verb: &str, container: &str, network: &Value) -> Child {
        let mut command = self.world.command_of(&self.program, verb, container);
        if verb == "STATUS" {
            command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        start(command, network)
    }

    /// A call for another interface than `eth0`.
    pub fn call_on(&self, verb: &str, container: &str, ifname: &str) -> Outcome {
        let mut command = self.world.command_of(&self.program, verb, container);
        command.env("CNI_IFNAME", ifname);
        wait(start(command, &self.network))
    }

    pub fn call(&self, verb: &str, container: &str) -> Outcome {
        wait(self.start(verb, container))
    }

    /// An ADD that succeeds.
    #[track_caller]
    pub fn add(&self, container: &str) -> Vec<IpAddr> {
        given(self.call("ADD", container))
    }

    /// STATUS that succeeds: what it warns of.
    #[track_caller]
    pub fn warnings(&self) -> String {
        let outcome = self.call("STATUS", "");
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        outcome.stderr
    }

    /// CHECK of these addresses of a container.
    pub fn check(&self, container: &str, held: &[IpAddr]) -> Outcome {
        let mut network = self.network.clone();
        let length = |address: &IpAddr| if address.is_ipv4() { 24 } else { 64 };
        let ips = held.iter().map(|ip| json!({"address": format!("{ip}/{}", length(ip))}));
        network["prevResult"] = json!({"cniVersion": "1.1.0", "ips": ips.collect::<Vec<_>>()});
        wait(self.start_with("CHECK", container, &network))
    }

    /// A DEL that succeeds.
    #[track_caller]
    pub fn del(&self, container: &str) {
        self.call("DEL", container).success();
    }
}

/// The addresses of an ADD that succeeds.
#[track_caller]
pub fn given(outcome: Outcome) -> Vec<IpAddr> {
    addresses(&outcome.success()).iter().map(|text| text.parse().unwrap()).collect()
}

/// Who holds which address, by keys that end in addresses.
#[track_caller]
pub fn held(etcd: &Etcd, prefix: &str) -> BTreeMap<IpAddr, String> {
    let entries = etcd.requests().list(prefix).unwrap();
    let address = |key: &str| key.strip_prefix(prefix).unwrap().parse().unwrap();
    entries.into_iter().map(|entry| (address(&entry.key), entry.value)).collect()
}

/// The same of what some containers were given.
pub fn holdings<'a>(
    given: impl IntoIterator<Item = (&'a str, &'a [IpAddr])>,
) -> BTreeMap<IpAddr, String> {
    let mut all = BTreeMap::new();
    for (container, addresses) in given {
        for address in addresses {
            let other = all.insert(*address, container.to_owned());
            assert_eq!(other, None, "{address} has two holders");
        }
    }
    all
}

/// Runs one of ours once an old call has sent so many requests. That goes on when ours has ended, or
/// waits for it.
#[track_caller]
pub fn amid(
    mut old: Call,
    requests: usize,
    ours: impl FnOnce() -> Child,
) -> (Result<Vec<IpAddr>, String>, Outcome) {
    assert_eq!(old.by_ref().take(requests).count(), requests);
    let mut ours = ours();
    let give_up = Instant::now() + Duration::from_millis(500);
    while ours.try_wait().unwrap().is_none() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(5));
    }
    (old.run(), wait(ours))
}
