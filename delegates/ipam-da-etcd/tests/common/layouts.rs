//! The layouts of the two replaced plugins: their keys, nodes that use them, and what these plugins leave.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use ipam_testkit::etcd::Etcd;
use ipam_testkit::node::{addresses, given};
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use super::Node;
use super::store::put_all;

/// A layout of a replaced plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    CniIpamEtcd,
    HostEtcd,
}

pub const BOTH: [Old; 2] = [Old::CniIpamEtcd, Old::HostEtcd];

impl Old {
    /// `ipam.etcd.layout`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CniIpamEtcd => "cni-ipam-etcd",
            Self::HostEtcd => "host-etcd",
        }
    }

    /// What every key of the layout begins with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::CniIpamEtcd => "/etcd-cni/",
            Self::HostEtcd => "/ipam/",
        }
    }

    /// What the keys of addresses on `net` begin with.
    pub fn leases(self) -> &'static str {
        match self {
            Self::CniIpamEtcd => "/etcd-cni/networks/net/used/",
            Self::HostEtcd => "/ipam/ips/",
        }
    }

    /// The key of an address on `net`.
    pub fn lease(self, address: impl std::fmt::Display) -> String {
        format!("{}{address}", self.leases())
    }

    /// What our own keys begin with.
    pub fn ours(self) -> &'static str {
        match self {
            Self::CniIpamEtcd => "/etcd-cni/networks/net/ipam-delegated/",
            Self::HostEtcd => "/ipam/ipam-delegated/",
        }
    }

    /// Our key of `eth0` on `net`.
    pub fn owner(self, node: &str, container: &str) -> String {
        match self {
            Self::CniIpamEtcd => format!("{}owners/{container}/{node}/eth0", self.ours()),
            Self::HostEtcd => format!("{}owners/{container}/{node}/net/eth0", self.ours()),
        }
    }

    /// Our key of the latest claim on `net`.
    pub fn latest(self) -> String {
        match self {
            Self::CniIpamEtcd => format!("{}latest", self.ours()),
            Self::HostEtcd => format!("{}latest/net", self.ours()),
        }
    }

    /// The key of a cursor of `net`.
    pub fn cursor(self, index: u32) -> String {
        match self {
            Self::CniIpamEtcd => format!("/etcd-cni/networks/net/lastReserved/{index}"),
            Self::HostEtcd => format!("/ipam/last_reserved_ip{index}"),
        }
    }

    /// `node-1` on this layout, with the pool 10.1.0.0/24 and an empty cache of results.
    pub fn node(self, etcd: &Etcd) -> Node {
        self.node_at(&etcd.endpoint())
    }

    pub fn node_at(self, endpoint: &str) -> Node {
        let node = Node::at(&[endpoint.to_owned()]).with_subnets(&["10.1.0.0/24"]);
        let cache = node.world.path("results").to_str().unwrap().to_owned();
        node.with("layout", self.name()).with("resultCache", cache)
    }

    /// Two nodes of one cluster.
    pub fn nodes(self, etcd: &Etcd) -> [Node; 2] {
        ["node-1", "node-2"].map(|name| self.node(etcd).named(name))
    }

    /// Gives a container an address as the replaced plugin does.
    pub fn give(self, etcd: &Etcd, address: &str, container: &str) {
        etcd.put(&self.lease(address), container);
    }

    /// The same of many at once.
    #[track_caller]
    pub fn give_all(self, etcd: &Etcd, all: &[IpAddr]) {
        for batch in all.chunks(4000) {
            let pair = |address: &IpAddr| (self.lease(address), "other".to_owned());
            put_all(etcd, batch.iter().map(pair));
        }
    }

    /// Who holds which address of the layout: the container where its key tells no more, and
    /// `NODE/NETWORK/CONTAINER/IFNAME` where our index does. Fails where the index speaks of what is not there.
    #[track_caller]
    pub fn books(self, etcd: &Etcd) -> BTreeMap<IpAddr, String> {
        let all = all(etcd);
        let (leases, index) = (self.bare(&all), self.index(&all));
        let mut books: BTreeMap<IpAddr, String> =
            leases.iter().map(|(address, key)| (*address, key.value.clone())).collect();
        for (address, (revision, container, owner)) in index {
            let lease = leases.get(&address).unwrap_or_else(|| panic!("{owner}: no {address}"));
            assert_eq!((lease.revision, &lease.value), (revision, &container), "{owner} {address}");
            books.insert(address, owner);
        }
        books
    }

    /// The keys of addresses.
    fn bare(self, all: &BTreeMap<String, Key>) -> BTreeMap<IpAddr, Key> {
        let address = |name: &str| {
            let (before, last) = name.rsplit_once('/')?;
            (before.ends_with("/used") || before.ends_with("/ips")).then(|| last.parse().ok())?
        };
        let its = all.iter().filter(|(name, _)| name.starts_with(self.prefix()));
        its.filter_map(|(name, key)| Some((address(name)?, key.clone()))).collect()
    }

    /// What our index says: each address with its revision, its container and its owner.
    #[track_caller]
    fn index(self, all: &BTreeMap<String, Key>) -> BTreeMap<IpAddr, (u64, String, String)> {
        let mut index = BTreeMap::new();
        for (name, key) in all {
            if !name.starts_with(self.prefix()) || !name.contains("/ipam-delegated/owners/") {
                continue;
            }
            let document: Value = serde_json::from_str(&key.value).unwrap();
            let text = |key: &str| document[key].as_str().unwrap().to_owned();
            let names = ["node", "network", "container", "ifname"].map(text);
            for item in document["leases"].as_array().unwrap() {
                let address = item["address"].as_str().unwrap().split('/').next().unwrap();
                let revision = item["since"]["revision"].as_u64().unwrap_or(key.revision);
                let entry = (revision, text("container"), names.join("/"));
                let other = index.insert(address.parse().unwrap(), entry);
                assert_eq!(other, None, "{address} is in two owners' keys");
            }
        }
        index
    }

    /// Makes what our index knows look older.
    #[track_caller]
    pub fn age(self, etcd: &Etcd, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap();
        for (name, key) in all(etcd) {
            if !name.contains("/ipam-delegated/owners/") {
                continue;
            }
            let mut document: Value = serde_json::from_str(&key.value).unwrap();
            document["confirmed"] = (document["confirmed"].as_u64().unwrap() - by).into();
            let container = document["container"].as_str().unwrap().to_owned();
            let leases = document["leases"].as_array().unwrap().iter().map(|item| {
                let address = item["address"].as_str().unwrap().split('/').next().unwrap();
                (self.lease(address), container.clone())
            });
            put_all(
                etcd,
                leases.collect::<Vec<_>>().into_iter().chain([(name, document.to_string())]),
            );
        }
    }
}

/// Runs something on an empty store for each layout.
pub fn each(act: impl Fn(Old, &Etcd)) {
    let etcd = Etcd::start();
    for old in BOTH {
        act(old, &etcd);
        etcd.etcdctl(&["del", "--prefix", "/"]);
    }
}

/// Who holds what is this: `ADDRESS CONTAINER`, or `ADDRESS NODE/NETWORK/CONTAINER/IFNAME` where the index tells.
#[track_caller]
pub fn assert_books(old: Old, etcd: &Etcd, expected: &[&str]) {
    assert_eq!(told(&old.books(etcd)), expected, "{old:?}");
}

/// Nothing of any container is left, and no key of an owner.
#[track_caller]
pub fn assert_empty(old: Old, etcd: &Etcd) {
    assert_books(old, etcd, &[]);
    let owners = format!("{}owners/", old.ours());
    assert_eq!(etcd.keys(&owners), [""; 0], "{old:?}");
}

pub const HOUR: Duration = Duration::from_secs(3600);

/// The files of what a node has noted itself.
pub fn notes(node: &Node) -> Vec<PathBuf> {
    let mut folders = vec![node.world.path("state/etcd/owners")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// Makes them look older.
#[track_caller]
pub fn age_notes(node: &Node, by: Duration) {
    for path in notes(node) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - by).unwrap();
    }
}

/// What a store has under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub value: String,
    /// Of its latest change.
    pub revision: u64,
}

/// Every key of a store.
#[track_caller]
pub fn all(etcd: &Etcd) -> BTreeMap<String, Key> {
    let text = etcd.etcdctl(&["get", "--prefix", "", "--write-out=fields"]);
    let mut found = BTreeMap::new();
    let (mut name, mut revision) = (String::new(), 0);
    for line in text.lines() {
        let Some((field, value)) = line.split_once(" : ") else { continue };
        let text =
            || serde_json::from_str::<String>(value).unwrap_or_else(|e| panic!("{e}: {line}"));
        match field {
            "\"Key\"" => name = text(),
            "\"ModRevision\"" => revision = value.parse().unwrap(),
            "\"Value\"" => {
                found.insert(std::mem::take(&mut name), Key { value: text(), revision });
            }
            _ => {}
        }
    }
    found
}

/// `node-1` in the layout of whereabouts, which gives the lowest address as that does.
pub fn whereabouts_node(etcd: &Etcd) -> Node {
    whereabouts_at(&etcd.endpoint())
}

pub fn whereabouts_at(endpoint: &str) -> Node {
    let node = Node::at(&[endpoint.to_owned()]).with_subnets(&["10.1.0.0/24"]);
    let node = node.with_in_pools("strategy", "lowest");
    let cache = node.world.path("results").to_str().unwrap().to_owned();
    node.with("layout", "whereabouts").with("resultCache", cache)
}

/// The names and values of all keys, but for those of ours whose values tell a time.
#[track_caller]
pub fn shown(etcd: &Etcd) -> BTreeMap<String, String> {
    let short = |(name, key): (String, Key)| {
        let ours = name.contains("/ipam-delegated/");
        (name, if ours { String::new() } else { key.value })
    };
    all(etcd).into_iter().map(short).collect()
}

/// An interface of a network, on a node.
#[derive(Clone, Copy)]
pub struct On<'a> {
    pub node: &'a Node,
    pub network: &'a str,
    pub ifname: &'a str,
}

/// `eth0` on `net`.
pub fn on(node: &Node) -> On<'_> {
    On { node, network: "net", ifname: "eth0" }
}

impl<'a> On<'a> {
    pub fn network(self, network: &'a str) -> Self {
        Self { network, ..self }
    }

    pub fn ifname(self, ifname: &'a str) -> Self {
        Self { ifname, ..self }
    }

    /// A call, ready to be started, with what it gets on stdin.
    pub fn command(self, verb: &str, container: &str, prev_result: &Value) -> (Command, Value) {
        let mut network = self.node.network();
        network["name"] = self.network.into();
        for (key, value) in prev_result.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        let mut command = self.node.command(verb, container);
        if !matches!(verb, "GC" | "STATUS") {
            command.env("CNI_IFNAME", self.ifname);
        }
        (command, network)
    }

    pub fn call(self, verb: &str, container: &str, prev_result: &Value) -> Outcome {
        let (command, network) = self.command(verb, container, prev_result);
        wait(start(command, &network))
    }

    #[track_caller]
    pub fn add(self, container: &str) -> Value {
        self.call("ADD", container, &json!({})).success()
    }

    /// An ADD that succeeds: the address of the first pool.
    #[track_caller]
    pub fn address(self, container: &str) -> String {
        addresses(&self.add(container)).swap_remove(0)
    }

    /// DEL with nothing but the configuration.
    #[track_caller]
    pub fn del(self, container: &str) {
        assert_eq!(self.call("DEL", container, &json!({})).success(), Value::Null);
    }

    /// DEL with the leases of an ADD.
    #[track_caller]
    pub fn del_known(self, container: &str, result: &Value) {
        assert_eq!(self.call("DEL", container, &given(result)).success(), Value::Null);
    }

    /// CHECK of addresses that nobody but the runtime remembers.
    pub fn check_of(self, container: &str, list: &[&str]) -> Outcome {
        let ips: Value = list.iter().map(|a| json!({"address": format!("{a}/24")})).collect();
        self.call("CHECK", container, &json!({"ips": ips}))
    }

    /// What the runtime remembers of an attachment.
    pub fn cache_file(self, container: &str) -> PathBuf {
        self.node
            .world
            .path("results")
            .join(format!("{}-{container}-{}", self.network, self.ifname))
    }

    /// Makes the runtime remember that the attachment was given these addresses.
    pub fn remember(self, container: &str, list: &[&str]) {
        let ips: Value = list.iter().map(|a| json!({"address": format!("{a}/24")})).collect();
        let cached = json!({
            "kind": "cniCacheV1", "containerId": container, "ifName": self.ifname,
            "networkName": self.network, "result": {"cniVersion": "1.0.0", "ips": ips},
        });
        let file = self.cache_file(container);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, cached.to_string()).unwrap();
    }
}

/// The books as text, for comparisons.
pub fn told(books: &BTreeMap<IpAddr, String>) -> Vec<String> {
    books.iter().map(|(address, owner)| format!("{address} {owner}")).collect()
}
