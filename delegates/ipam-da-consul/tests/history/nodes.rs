//! Nodes that share a store: each a state folder with an identity of its own, on which the whole
//! chain runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::checker::site::Site;
use crate::checker::workload::Workload;
use crate::checker::{Call, Outcome};
use crate::consul::Consul;
use crate::faults::Window;
use crate::support::{World, binary, start, wait};

const NODES: usize = 3;

/// How long a request may be on its way in a cluster that is whole, in nanoseconds.
const LATE: u64 = 10_000_000_000;

/// The pools, with fewer addresses than there are owners.
const POOLS: [(&str, &str); 2] = [("blue", "10.5.0.0/26"), ("six", "fd05::/120")];

/// What the keys of owners begin with.
const OWNERS: &str = "ipam/.owners/net/";

pub struct Nodes<'a> {
    worlds: Vec<World>,
    servers: Vec<String>,
    /// Whom the store is looked at by, while all is well.
    member: &'a Consul,
    windows: Mutex<Vec<Window>>,
}

impl<'a> Nodes<'a> {
    pub fn new(servers: Vec<String>, member: &'a Consul) -> Self {
        let world = || {
            let world = World::new();
            ["ipam-ds-static", "ipam-da-consul"].iter().for_each(|name| {
                world.install(&binary(name));
            });
            world
        };
        for (pool, subnet) in POOLS {
            member.put(&format!("ipam/{pool}"), &json!([{"subnet": subnet}]).to_string());
        }
        let worlds = (0..NODES).map(|_| world()).collect();
        Self { worlds, servers, member, windows: Mutex::default() }
    }

    /// Says what happened to the store.
    pub fn remember(&self, windows: &[Window]) {
        self.windows.lock().unwrap().extend(windows);
    }

    /// DEL of every owner of a workload; all must succeed.
    #[track_caller]
    pub fn release_all(&self, workload: &Workload) {
        let release = |worker| {
            for place in 0..workload.owners_per_worker {
                let owner = format!("w{worker}-{place}");
                let (command, network) = self.call("DEL", worker, &owner, &Value::Null);
                wait(start(command, &network)).success();
            }
        };
        std::thread::scope(|scope| {
            (0..workload.workers).for_each(|worker| drop(scope.spawn(move || release(worker))));
        });
    }

    /// Deletes the keys of all addresses, and leaves their owners'.
    #[track_caller]
    pub fn forget_leases(&self) {
        POOLS.iter().for_each(|(pool, _)| self.member.delete_all(&format!("ipam/{pool}/")));
    }

    /// The keys that say that something is held.
    #[track_caller]
    pub fn holdings(&self) -> Vec<String> {
        let mut keys = self.member.keys("ipam/");
        keys.retain(|key| {
            is_of_owner(key) || POOLS.iter().any(|(pool, _)| address(key, pool).is_some())
        });
        keys
    }

    /// The owner of the workload that a key's value names.
    fn owner(&self, value: &Value, container: &str) -> String {
        let text = |key: &str| value[key].as_str().unwrap();
        let identity =
            |world: &World| fs::read_to_string(world.path("state/node")).unwrap_or_default();
        let is_its = |world: &World| identity(world).contains(text("node"));
        let node = self.worlds.iter().position(is_its).expect("a node of ours");
        let (turn, place) = text(container).strip_prefix('c').unwrap().split_once('-').unwrap();
        format!("w{}-{place}", turn.parse::<usize>().unwrap() * NODES + node)
    }

    /// The node and the container of an owner.
    fn place(owner: &str) -> (usize, String) {
        let (worker, place) = owner.strip_prefix('w').unwrap().split_once('-').unwrap();
        let worker: usize = worker.parse().unwrap();
        (worker % NODES, format!("c{}-{place}", worker / NODES))
    }

    /// The documents of owners.
    #[track_caller]
    fn documents(&self) -> Vec<Value> {
        let entries = self.member.list(OWNERS).into_iter();
        let owners = entries.filter(|entry| is_of_owner(&entry.key));
        owners.map(|entry| serde_json::from_str(&entry.value).unwrap()).collect()
    }
}

fn is_of_owner(key: &str) -> bool {
    key.starts_with(OWNERS) && !key.contains("/.nodes/")
}

/// The address of a pool that a key is of.
fn address(key: &str, pool: &str) -> Option<IpAddr> {
    key.strip_prefix("ipam/")?.strip_prefix(pool)?.strip_prefix('/')?.parse().ok()
}

impl Site for Nodes<'_> {
    /// Containers have the same names on all nodes.
    fn call(&self, verb: &str, worker: usize, owner: &str, answer: &Value) -> (Command, Value) {
        let (node, container) = match owner {
            "" => (worker % NODES, String::new()),
            owner => Self::place(owner),
        };
        let world = &self.worlds[node];
        let mut network = world.network(json!(["ipam-ds-static", "ipam-da-consul"]));
        network["cniVersion"] = "1.1.0".into();
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.remove("dataDir");
        let pools = POOLS.iter().map(|(name, _)| json!({"name": name})).collect();
        ipam.insert("pools".to_owned(), pools);
        // Each node prefers another member. The first rides out what happens to them, the second is
        // cut short by the chain, and the third gives up.
        let (timeout, store_timeout) = [("30s", "20s"), ("6s", "20s"), ("30s", "2s")][node];
        ipam.insert("timeout".to_owned(), timeout.into());
        let mut servers = self.servers.clone();
        servers.rotate_left(node % self.servers.len());
        ipam.insert("consul_servers".to_owned(), json!(servers));
        ipam.insert("consul".to_owned(), json!({"timeout": store_timeout}));
        if verb == "CHECK" {
            network["prevResult"] = answer.clone();
        }
        (world.command_of(&binary("ipam-delegated"), verb, &container), network)
    }

    /// The keys of addresses and those of owners must say the same.
    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let mut leases: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for (pool, _) in POOLS {
            for entry in self.member.list(&format!("ipam/{pool}/")) {
                if let Some(address) = address(&entry.key, pool) {
                    let value: Value = serde_json::from_str(&entry.value).unwrap();
                    leases.entry(self.owner(&value, "target")).or_default().insert(address);
                }
            }
        }
        let address = |item: &Value| {
            item["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
        };
        let of_owner = |document: &Value| {
            let items = document["leases"].as_array().unwrap();
            (self.owner(document, "container"), items.iter().map(address).collect())
        };
        let owners: BTreeMap<_, _> = self.documents().iter().map(of_owner).collect();
        assert_eq!(leases, owners, "the keys of addresses, and those of owners");
        leases
    }

    fn collectors(&self) -> Vec<usize> {
        (0..NODES).collect()
    }

    fn about(&self, owner: &str) -> String {
        let (node, container) = Self::place(owner);
        let its = |value: &&Value| self.owner(value, "container") == owner;
        let documents = self.documents();
        let record = self.worlds[node].record(&container);
        let record = fs::read_to_string(&record).unwrap_or_else(|error| error.to_string());
        format!("store: {:?}\nrecord: {record}", documents.iter().filter(its).collect::<Vec<_>>())
    }

    fn is_quiet_within(&self, time: Duration) -> bool {
        self.worlds.iter().all(|world| world.is_quiet_within(time))
    }

    /// A request may lie in a member that is stopped, or in a connection that is cut, and is carried
    /// out once these go on.
    fn settled(&self, add: &Call) -> u64 {
        let windows = self.windows.lock().unwrap();
        let whole = windows.iter().filter(|window| window.meets(add.began, add.ended));
        let whole = whole.map(|window| window.until).max().unwrap_or_default();
        match add.outcome {
            Outcome::Unknown => add.ended.max(whole) + LATE,
            _ if whole > 0 => add.ended.max(whole + LATE),
            _ => add.ended,
        }
    }
}
