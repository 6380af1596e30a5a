//! Nodes that share a store: each a state folder with an identity of its own, on which the whole
//! chain runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::builds::Builds;
use super::faults::Window;
use crate::history::old_nodes::Turns;
use crate::history::site::Site;
use crate::history::workload::Workload;
use crate::history::{Call, Outcome};
use crate::world::{World, start, wait};

const NODES: usize = 3;

/// How long a request may be on its way in a cluster that is whole, in nanoseconds.
const LATE: u64 = 10_000_000_000;

/// The store, and how the allocator that is tested finds it.
pub trait Store: Sync {
    /// What people call it; its allocator is `ipam-da-NAME`.
    const NAME: &'static str;

    /// Writes into `ipam` the pools, of fewer addresses than there are owners, and the store at these
    /// endpoints, of which the first is preferred.
    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str);

    /// What the keys of addresses say.
    fn leases(&self) -> Vec<Lease>;

    /// What the keys of owners say: their documents.
    fn owners(&self) -> Vec<Value>;

    /// Deletes the keys of all addresses, and leaves their owners'.
    fn forget_leases(&self);

    /// The keys that say that something is held.
    fn holdings(&self) -> Vec<String>;
}

/// An address, and for whom its key says that it is held.
pub struct Lease {
    pub node: String,
    pub container: String,
    pub address: IpAddr,
}

pub struct Nodes<S> {
    worlds: Vec<World>,
    builds: Builds,
    endpoints: Vec<String>,
    store: S,
    windows: Mutex<Vec<Window>>,
    turns: Turns,
}

impl<S: Store> Nodes<S> {
    pub fn new(endpoints: Vec<String>, store: S) -> Self {
        let builds = Builds::new();
        let world = || {
            let world = World::new();
            builds.install(&world, &Self::delegates());
            world
        };
        let worlds = (0..NODES).map(|_| world()).collect();
        Self {
            worlds,
            builds,
            endpoints,
            store,
            windows: Mutex::default(),
            turns: Turns::default(),
        }
    }

    /// Whose turn it is, where old nodes work, too.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Tells whose programs run, for a person who reads the log.
    pub(super) fn builds(&self) -> &Builds {
        &self.builds
    }

    /// Says what happened to the store. From then on the cluster is whole.
    pub fn remember(&self, windows: &[Window]) {
        self.windows.lock().unwrap().extend(windows);
    }

    fn is_calm(&self) -> bool {
        !self.windows.lock().unwrap().is_empty()
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

    /// As [`Store::forget_leases`].
    #[track_caller]
    pub fn forget_leases(&self) {
        self.store.forget_leases();
    }

    /// As [`Store::holdings`].
    #[track_caller]
    pub fn holdings(&self) -> Vec<String> {
        self.store.holdings()
    }

    fn delegates() -> [String; 2] {
        ["ipam-ds-static".to_owned(), format!("ipam-da-{}", S::NAME)]
    }

    /// The owner of the workload that is this container of this node.
    fn owner(&self, node: &str, container: &str) -> String {
        let identity =
            |world: &World| fs::read_to_string(world.path("state/node")).unwrap_or_default();
        let is_its = |world: &World| identity(world).contains(node);
        let node = self.worlds.iter().position(is_its).expect("a node of ours");
        let (turn, place) = container.strip_prefix('c').unwrap().split_once('-').unwrap();
        format!("w{}-{place}", turn.parse::<usize>().unwrap() * NODES + node)
    }

    /// The owner that a document is of.
    fn owner_of(&self, document: &Value) -> String {
        let text = |key: &str| document[key].as_str().unwrap();
        self.owner(text("node"), text("container"))
    }

    /// The node and the container of an owner.
    fn place(owner: &str) -> (usize, String) {
        let (worker, place) = owner.strip_prefix('w').unwrap().split_once('-').unwrap();
        let worker: usize = worker.parse().unwrap();
        (worker % NODES, format!("c{}-{place}", worker / NODES))
    }
}

impl<S: Store> Site for Nodes<S> {
    /// Containers have the same names on all nodes.
    fn call(&self, verb: &str, worker: usize, owner: &str, answer: &Value) -> (Command, Value) {
        self.turns.wait();
        let (node, container) = match owner {
            "" => (worker % NODES, String::new()),
            owner => Self::place(owner),
        };
        let world = &self.worlds[node];
        let mut network = world.network(json!(Self::delegates()));
        network["cniVersion"] = "1.1.0".into();
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.remove("dataDir");
        // Each node prefers another member. The first rides out what happens to them, the second is
        // cut short by the chain, and the third gives up. On a cluster that is whole all have time: a
        // busy machine alone does not fail it.
        let timeouts = [("30s", "20s"), ("6s", "20s"), ("30s", "2s")];
        let (timeout, store_timeout) = timeouts[if self.is_calm() { 0 } else { node }];
        ipam.insert("timeout".to_owned(), timeout.into());
        let mut endpoints = self.endpoints.clone();
        endpoints.rotate_left(node % self.endpoints.len());
        self.store.configure(ipam, &endpoints, store_timeout);
        if verb == "CHECK" {
            network["prevResult"] = answer.clone();
        }
        (self.builds.command(world, verb, &container), network)
    }

    /// The keys of addresses and those of owners must say the same.
    fn leases(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let address = |item: &Value| {
            item["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
        };
        let mut leases: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for Lease { node, container, address } in self.store.leases() {
            leases.entry(self.owner(&node, &container)).or_default().insert(address);
        }
        let of_owner = |document: &Value| {
            let items = document["leases"].as_array().unwrap();
            (self.owner_of(document), items.iter().map(address).collect())
        };
        let owners: BTreeMap<_, _> = self.store.owners().iter().map(of_owner).collect();
        assert_eq!(leases, owners, "the keys of addresses, and those of owners");
        leases
    }

    fn collectors(&self) -> Vec<usize> {
        (0..NODES).collect()
    }

    fn about(&self, owner: &str) -> String {
        let (node, container) = Self::place(owner);
        let its = |value: &&Value| self.owner_of(value) == owner;
        let documents = self.store.owners();
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
