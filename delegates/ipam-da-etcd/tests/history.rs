//! Three nodes, twenty workers and random kills, on a cluster whose members are killed, cut off and
//! stopped all the while: no address ever has two holders, every call ends, and nothing is left in
//! the end.
//!
//! Every day a tenth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;

use ipam_testkit::etcd::{Cluster, Etcd};
use ipam_testkit::history::cluster::{
    Lease, Nodes, Store, assert_lost_leases_are_found, assert_planted_double_is_found,
    assert_released_through_restarts, assert_sound_through_faults,
};
use serde_json::{Map, Value, json};

/// What the keys of the network begin with.
const NETWORK: &str = "/ipam-delegated/networks/net/";

/// Our keys, looked at by a member while all is well.
struct Keys<'a>(&'a Etcd);

impl Keys<'_> {
    #[track_caller]
    fn values(&self, kind: &str) -> Vec<Value> {
        let prefix = format!("{NETWORK}{kind}/");
        let text = self.0.etcdctl(&["get", "--prefix", "--print-value-only", "--", &prefix]);
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Store for Keys<'_> {
    const NAME: &'static str = "etcd";

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        let sets = json!([[{"subnet": "10.5.0.0/26"}], [{"subnet": "fd05::/120"}]]);
        ipam.insert("ranges".to_owned(), sets);
        ipam.insert("etcd".to_owned(), json!({"endpoints": endpoints, "timeout": timeout}));
    }

    fn leases(&self) -> Vec<Lease> {
        let lease = |value: &Value| {
            let text = |key: &str| value[key].as_str().unwrap().to_owned();
            let address = text("address").split('/').next().unwrap().parse().unwrap();
            Lease { node: text("node"), container: text("container"), address }
        };
        self.values("leases").iter().map(lease).collect()
    }

    fn owners(&self) -> Vec<Value> {
        self.values("owners")
    }

    fn forget_leases(&self) {
        self.0.etcdctl(&["del", "--prefix", &format!("{NETWORK}leases/")]);
    }

    /// All keys of the store but the one that every network keeps.
    fn holdings(&self) -> Vec<String> {
        let mut keys = self.0.keys("");
        keys.retain(|key| *key != format!("{NETWORK}latest"));
        keys
    }
}

#[test]
fn no_address_ever_has_two_holders_whatever_happens_to_the_cluster() {
    let cluster = Cluster::start(3);
    let endpoints = cluster.members().iter().map(Etcd::endpoint).collect();
    let nodes = Nodes::new(endpoints, Keys(cluster.member(0)));
    assert_sound_through_faults(&cluster, &nodes);
}

/// The values of whereabouts, whose lines our keys explain.
struct Pools<'a>(&'a Etcd);

impl Pools<'_> {
    #[track_caller]
    fn below(&self, prefix: &str) -> Vec<(String, String)> {
        let entries = self.0.requests().list(prefix).unwrap();
        entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
    }

    /// The address and the container of each line.
    fn lines(&self) -> Vec<(IpAddr, String)> {
        let mut lines = Vec::new();
        for (key, value) in self.below("/whereabouts/") {
            let is_pool = key.rsplit_once('/').is_some_and(|(_, length)| length.len() < 4)
                && !key.contains("ipam-delegated");
            for line in value.lines().filter(|_| is_pool) {
                let (address, id) = line.split_once(' ').unwrap();
                lines.push((address.parse().unwrap(), id.to_owned()));
            }
        }
        lines
    }
}

impl Store for Pools<'_> {
    const NAME: &'static str = "etcd";

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        Keys(self.0).configure(ipam, endpoints, timeout);
        ipam["etcd"]["layout"] = "whereabouts".into();
    }

    fn leases(&self) -> Vec<Lease> {
        let owners = self.owners();
        let lease = |(address, container): (IpAddr, String)| {
            let is_listed = |owner: &&Value| {
                let mut items = owner["leases"].as_array().unwrap().iter();
                let text = format!("{address}/");
                owner["container"] == *container
                    && items.any(|item| item["address"].as_str().unwrap().starts_with(&text))
            };
            let owner = owners.iter().find(is_listed);
            let node = owner.map_or("", |owner| owner["node"].as_str().unwrap()).to_owned();
            Lease { node, container, address }
        };
        self.lines().into_iter().map(lease).collect()
    }

    fn owners(&self) -> Vec<Value> {
        let owners = self.below("/whereabouts/ipam-delegated/owners/");
        owners.iter().map(|(_, value)| serde_json::from_str(value).unwrap()).collect()
    }

    fn forget_leases(&self) {
        self.0.etcdctl(&["del", "--prefix", "/whereabouts/10.5.0.0/26"]);
    }

    /// All lines and owners, and the keys of mutexes.
    fn holdings(&self) -> Vec<String> {
        let lines = self.lines().into_iter().map(|(address, id)| format!("{address} {id}"));
        let keys = self.below("/whereabouts/").into_iter().map(|(key, _)| key);
        let ours = keys.filter(|key| {
            key.contains("/owners/") || (key.matches('/').count() == 4 && !key.contains("/latest/"))
        });
        lines.chain(ours).collect()
    }
}

#[test]
fn no_address_of_a_value_ever_has_two_holders_whatever_happens_to_the_cluster() {
    let cluster = Cluster::start(3);
    let endpoints = cluster.members().iter().map(Etcd::endpoint).collect();
    let nodes = Nodes::new(endpoints, Pools(cluster.member(0)));
    assert_sound_through_faults(&cluster, &nodes);
}

#[test]
fn a_planted_double_in_a_real_history_is_found() {
    let server = Etcd::start();
    assert_planted_double_is_found(&Nodes::new(vec![server.endpoint()], Keys(&server)));
}

#[test]
fn an_address_that_is_given_twice_is_found() {
    let server = Etcd::start();
    assert_lost_leases_are_found(&Nodes::new(vec![server.endpoint()], Keys(&server)));
}

/// Servers that are all killed, and start with what they have written.
#[track_caller]
fn assert_released_through_restarts_of(servers: u8) {
    let cluster = Cluster::start(servers);
    let endpoints: Vec<String> = cluster.members().iter().map(Etcd::endpoint).collect();
    let member = cluster.member(0);
    assert_released_through_restarts(&cluster, &endpoints, &Keys(member));
}

#[test]
fn what_is_released_while_the_only_server_restarts_is_released() {
    assert_released_through_restarts_of(1);
}

#[test]
fn what_is_released_while_all_servers_restart_is_released() {
    assert_released_through_restarts_of(3);
}
