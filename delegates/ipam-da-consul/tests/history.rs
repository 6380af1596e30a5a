//! Three nodes, twenty workers and random kills, on a cluster whose members are killed, cut off and
//! stopped all the while: no address ever has two holders, every call ends, and nothing is left in
//! the end.
//!
//! Every day a tenth of it runs; `IPAM_DELEGATED_TESTS=full` runs all of it, `IPAM_DELEGATED_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;

use ipam_testkit::consul::{Cluster, Consul};
use ipam_testkit::history::cluster::{
    Lease, Nodes, Store, assert_lost_leases_are_found, assert_planted_double_is_found,
    assert_released_through_restarts, assert_sound_through_faults,
};
use serde_json::{Map, Value, json};

/// The pools, with fewer addresses than there are owners.
const POOLS: [(&str, &str); 2] = [("blue", "10.5.0.0/26"), ("six", "fd05::/120")];

/// What the keys of owners begin with.
const OWNERS: &str = "ipam/.owners/net/";

/// Our keys, looked at by a member while all is well.
struct Keys<'a>(&'a Consul);

impl<'a> Keys<'a> {
    /// With the pools, which it writes.
    #[track_caller]
    fn of(member: &'a Consul) -> Self {
        for (pool, subnet) in POOLS {
            member.put(&format!("ipam/{pool}"), &json!([{"subnet": subnet}]).to_string());
        }
        Self(member)
    }
}

impl Store for Keys<'_> {
    const NAME: &'static str = "consul";

    fn configure(&self, ipam: &mut Map<String, Value>, endpoints: &[String], timeout: &str) {
        let pools = POOLS.iter().map(|(name, _)| json!({"name": name})).collect();
        ipam.insert("pools".to_owned(), pools);
        ipam.insert("consul_servers".to_owned(), json!(endpoints));
        ipam.insert("consul".to_owned(), json!({"timeout": timeout}));
    }

    fn leases(&self) -> Vec<Lease> {
        let mut leases = Vec::new();
        for (pool, _) in POOLS {
            for entry in self.0.list(&format!("ipam/{pool}/")) {
                if let Some(address) = address(&entry.key, pool) {
                    let value: Value = serde_json::from_str(&entry.value).unwrap();
                    let text = |key: &str| value[key].as_str().unwrap().to_owned();
                    leases.push(Lease { node: text("node"), container: text("target"), address });
                }
            }
        }
        leases
    }

    fn owners(&self) -> Vec<Value> {
        let entries = self.0.list(OWNERS).into_iter();
        let owners = entries.filter(|entry| is_of_owner(&entry.key));
        owners.map(|entry| serde_json::from_str(&entry.value).unwrap()).collect()
    }

    fn forget_leases(&self) {
        POOLS.iter().for_each(|(pool, _)| self.0.delete_all(&format!("ipam/{pool}/")));
    }

    fn holdings(&self) -> Vec<String> {
        let mut keys = self.0.keys("ipam/");
        keys.retain(|key| {
            is_of_owner(key) || POOLS.iter().any(|(pool, _)| address(key, pool).is_some())
        });
        keys
    }
}

fn is_of_owner(key: &str) -> bool {
    key.starts_with(OWNERS) && !key.contains("/.nodes/")
}

/// The address of a pool that a key is of.
fn address(key: &str, pool: &str) -> Option<IpAddr> {
    key.strip_prefix("ipam/")?.strip_prefix(pool)?.strip_prefix('/')?.parse().ok()
}

#[test]
fn no_address_ever_has_two_holders_whatever_happens_to_the_cluster() {
    let cluster = Cluster::start(3);
    let endpoints = cluster.members().iter().map(Consul::url).collect();
    let nodes = Nodes::new(endpoints, Keys::of(cluster.member(0)));
    assert_sound_through_faults(&cluster, &nodes, &[]);
}

#[test]
fn a_planted_double_in_a_real_history_is_found() {
    let server = Consul::start();
    assert_planted_double_is_found(&Nodes::new(vec![server.url()], Keys::of(&server)));
}

#[test]
fn an_address_that_is_given_twice_is_found() {
    let server = Consul::start();
    assert_lost_leases_are_found(&Nodes::new(vec![server.url()], Keys::of(&server)));
}

/// Servers that are all killed, and start with what they have written.
#[track_caller]
fn assert_released_through_restarts_of(servers: u8) {
    let cluster = Cluster::start(servers);
    let endpoints: Vec<String> = cluster.members().iter().map(Consul::url).collect();
    let member = cluster.member(0);
    assert_released_through_restarts(&cluster, &endpoints, &Keys::of(member));
}

#[test]
fn what_is_released_while_the_only_server_restarts_is_released() {
    assert_released_through_restarts_of(1);
}

#[test]
fn what_is_released_while_all_servers_restart_is_released() {
    assert_released_through_restarts_of(3);
}
