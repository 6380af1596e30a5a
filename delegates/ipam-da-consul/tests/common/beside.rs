//! Our programs where passcod has been, and may still be.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use ipam_testkit::consul::Consul;
use ipam_testkit::node::addresses;
use ipam_testkit::old::passcod::{Call, Passcod};
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use super::PROGRAM;

/// A node with one of our programs and the network `net`.
pub struct Ours {
    pub world: World,
    program: PathBuf,
    pub network: Value,
    pub kind: &'static str,
}

impl Ours {
    /// The chain that passcod's own configuration names, with one pool.
    pub fn chain(url: &str, pool: &str) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        let ipam = json!({
            "type": "ipam-delegated",
            "delegates": ["ipam-ds-static", "ipam-da-consul"],
            "pools": [{"name": pool}],
        });
        Self::with("chain", world, binary("ipam-delegated"), ipam, url)
    }

    /// `ipam-da-consul` alone, as a chain calls it.
    pub fn alone(url: &str, pool: &str) -> Self {
        let ipam = json!({"type": "ipam-da-consul"});
        let mut ours = Self::with("alone", World::new(), PROGRAM.into(), ipam, url);
        ours.network["prevResult"] =
            json!({"cniVersion": "1.0.0", "ips": [], "pools": [{"name": pool}]});
        ours
    }

    /// Both, each on a node of its own.
    pub fn kinds(url: &str, pool: &str) -> [Self; 2] {
        [Self::chain(url, pool), Self::alone(url, pool)]
    }

    fn with(
        kind: &'static str,
        world: World,
        program: PathBuf,
        mut ipam: Value,
        url: &str,
    ) -> Self {
        ipam["consul_servers"] = json!([url]);
        ipam["stateDir"] = json!(world.path("state"));
        // The machine's own tells nothing of these containers.
        ipam["consul"] = json!({"resultCache": world.path("results")});
        let network = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam});
        Self { world, program, network, kind }
    }

    /// The same node, told of no pool.
    pub fn without_pools(mut self) -> Self {
        self.network["ipam"].as_object_mut().unwrap().remove("pools");
        self.network.as_object_mut().unwrap().remove("prevResult");
        self
    }

    /// The same node, with a member of the pool.
    pub fn asking(mut self, member: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        for place in ["/ipam/pools/0", "/prevResult/pools/0"] {
            if let Some(pool) = self.network.pointer_mut(place) {
                pool[member] = value.clone();
            }
        }
        self
    }

    pub fn start(&self, verb: &str, container: &str) -> Child {
        start(self.world.command_of(&self.program, verb, container), &self.network)
    }

    pub fn call(&self, verb: &str, container: &str) -> Outcome {
        wait(self.start(verb, container))
    }

    /// An ADD that succeeds: the address.
    #[track_caller]
    pub fn add(&self, container: &str) -> IpAddr {
        given(self.call("ADD", container))
    }

    /// CHECK of these addresses of a container.
    pub fn check(&self, container: &str, held: &[IpAddr]) -> Outcome {
        let mut network = self.network.clone();
        let length = |address: &IpAddr| if address.is_ipv4() { 24 } else { 64 };
        let ips = held.iter().map(|ip| json!({"address": format!("{ip}/{}", length(ip))}));
        network["prevResult"]["cniVersion"] = "1.0.0".into();
        network["prevResult"]["ips"] = ips.collect();
        wait(start(self.world.command_of(&self.program, "CHECK", container), &network))
    }

    /// A DEL that succeeds.
    #[track_caller]
    pub fn del(&self, container: &str) {
        self.call("DEL", container).success();
    }
}

/// The address of an ADD that succeeds.
#[track_caller]
pub fn given(outcome: Outcome) -> IpAddr {
    addresses(&outcome.success())[0].parse().unwrap()
}

/// Writes a pool of one subnet with the folder keys that passcod needs.
#[track_caller]
pub fn define(consul: &Consul, pool: &str, subnet: &str) {
    let ranges = json!([{"subnet": subnet, "rangeStart": first(subnet)}]).to_string();
    for (key, value) in
        [("ipam/", ""), (&format!("ipam/{pool}"), &ranges), (&format!("ipam/{pool}/"), "")]
    {
        consul.put(key, value);
    }
}

/// The address after the network's own, which passcod would give out.
fn first(subnet: &str) -> String {
    let network: ipnet::IpNet = subnet.parse().unwrap();
    network.hosts().find(|address| *address != network.network()).unwrap().to_string()
}

/// Who holds which address of a pool, by what passcod reads. Fails where it could not: below a pool
/// are only the folder and addresses, each with a target.
#[track_caller]
pub fn held(consul: &Consul, pool: &str) -> BTreeMap<IpAddr, String> {
    let folder = format!("ipam/{pool}/");
    let entries = consul.list(&folder).into_iter().filter(|entry| entry.key != folder);
    let read = |key: &str, value: &str| {
        let address = key.rsplit('/').next()?.parse().ok()?;
        let value: Value = serde_json::from_str(value).ok()?;
        Some((address, value["target"].as_str()?.to_owned()))
    };
    let read = |entry: ipam_testkit::consul::Entry| {
        read(&entry.key, &entry.value).unwrap_or_else(|| panic!("{entry:?}"))
    };
    entries.map(read).collect()
}

/// The same of what some containers were given.
#[track_caller]
pub fn holdings<'a>(
    given: impl IntoIterator<Item = (&'a str, IpAddr)>,
) -> BTreeMap<IpAddr, String> {
    let mut all = BTreeMap::new();
    for (container, address) in given {
        let other = all.insert(address, container.to_owned());
        assert_eq!(other, None, "{address} has two holders");
    }
    all
}

/// The keys of ours that are not passcod's, but for the marks of nodes.
#[track_caller]
pub fn owners(consul: &Consul) -> Vec<String> {
    let keys = consul.keys("ipam/.owners/").into_iter();
    keys.filter(|key| !key.contains("/.nodes/")).collect()
}

/// An ADD of passcod, again and again as a runtime does after a lost race: the address.
#[track_caller]
pub fn add_until_given(old: &Passcod, container: &str) -> IpAddr {
    for _ in 0..100 {
        match old.add(container).run() {
            Ok(result) => return ipam_testkit::old::passcod::given(&result),
            Err(error) => assert_eq!(error["code"], 125, "{error}"),
        }
    }
    panic!("{container} has lost 100 races");
}

/// Runs one of ours once an old call has sent so many requests. That goes on when ours has ended.
#[track_caller]
pub fn amid(
    mut old: Call,
    requests: usize,
    ours: impl FnOnce() -> Child,
) -> (Result<Value, Value>, Outcome) {
    assert_eq!(old.by_ref().take(requests).count(), requests);
    let mut ours = ours();
    let give_up = Instant::now() + Duration::from_secs(10);
    while ours.try_wait().unwrap().is_none() {
        assert!(Instant::now() < give_up, "it waits for passcod, which has no lock");
        thread::sleep(Duration::from_millis(5));
    }
    (old.run(), wait(ours))
}
