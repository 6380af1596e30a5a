//! What the objects of a namespace hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{API, POOLS, RESERVATIONS, collection, pool_name, reservation_name};
use crate::kube::Client;

/// The objects of whereabouts in a namespace, read by the test's own client.
#[derive(Clone, Debug)]
pub struct Objects {
    client: Client,
    namespace: String,
}

/// An entry of `allocations`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Entry {
    pub id: String,
    pub podref: Option<String>,
    pub ifname: Option<String>,
    /// All other members.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An address of a pool that is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub address: IpAddr,
    /// The key of the entry.
    pub offset: u128,
    /// The name of the pool.
    pub pool: String,
    /// The network that the name of the pool begins with; empty without one.
    pub network: String,
    pub entry: Entry,
}

impl Objects {
    pub fn of(client: &Client, namespace: &str) -> Self {
        Self { client: client.clone(), namespace: namespace.to_owned() }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The path of an object.
    pub fn path(&self, plural: &str, name: &str) -> String {
        format!("{}/{name}", collection(&self.namespace, plural))
    }

    /// Makes a pool with these `allocations`.
    #[track_caller]
    pub fn create_pool(&self, network: &str, range: &str, allocations: &Value) -> Value {
        let name = pool_name(network, range.parse().unwrap());
        self.client.create(&json!({
            "apiVersion": API, "kind": "IPPool",
            "metadata": {"namespace": self.namespace, "name": name},
            "spec": {"range": range, "allocations": allocations},
        }))
    }

    /// The pool of this name.
    #[track_caller]
    pub fn pool(&self, name: &str) -> Option<Value> {
        self.client.get(&self.path(POOLS, name))
    }

    /// All pools by name.
    #[track_caller]
    pub fn pools(&self) -> BTreeMap<String, Value> {
        self.list(POOLS)
    }

    /// The entries of a pool by offset; none without the pool. A malformed entry fails the test.
    #[track_caller]
    pub fn allocations(&self, pool: &str) -> BTreeMap<u128, Entry> {
        self.pool(pool).as_ref().map_or_else(BTreeMap::new, entries)
    }

    /// The reservation of this name.
    #[track_caller]
    pub fn reservation(&self, name: &str) -> Option<Value> {
        self.client.get(&self.path(RESERVATIONS, name))
    }

    /// All reservations by name; none where the server does not serve them.
    #[track_caller]
    pub fn reservations(&self) -> BTreeMap<String, Value> {
        self.list(RESERVATIONS)
    }

    /// All addresses that entries of pools hold.
    #[track_caller]
    pub fn held(&self) -> Vec<Held> {
        let mut held = Vec::new();
        for (pool, object) in self.pools() {
            let range: IpNet = object["spec"]["range"].as_str().unwrap().parse().unwrap();
            let network = pool.strip_suffix(&pool_name("", range)).unwrap_or(&pool);
            let network = network.strip_suffix('-').unwrap_or(network).to_owned();
            held.extend(entries(&object).into_iter().map(|(offset, entry)| Held {
                address: address(range, offset),
                offset,
                pool: pool.clone(),
                network: network.clone(),
                entry,
            }));
        }
        held
    }

    /// Fails where two entries of a network hold one address.
    #[track_caller]
    pub fn assert_distinct(&self) {
        let faults = doubles(&self.held());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// Fails where [`Objects::faults`] finds something.
    #[track_caller]
    pub fn assert_consistent(&self) {
        let faults = self.faults();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// The addresses that two entries of a network hold, the entries without a reservation of
    /// theirs, and the reservations without an entry.
    #[track_caller]
    pub fn faults(&self) -> Vec<String> {
        let (held, reservations) = (self.held(), self.reservations());
        let mut with_entry = BTreeSet::new();
        let mut faults = doubles(&held);
        for Held { address, pool, network, entry, .. } in &held {
            let fault = |fault: &str| format!("{address} of {pool}: {fault}: {entry:?}");
            let name = reservation_name(network, *address);
            let Some(reservation) = reservations.get(&name) else {
                faults.push(fault("no reservation"));
                continue;
            };
            with_entry.insert(name);
            let spec = &reservation["spec"];
            let differs = |own: &Option<String>, key: &str| {
                let (own, reserved) = (own.as_deref().unwrap_or(""), spec[key].as_str());
                reserved.is_some_and(|reserved| !own.is_empty() && own != reserved)
            };
            // An old release replaces the id of an entry, and leaves the reservation as it is.
            for (own, key) in [(&entry.podref, "podref"), (&entry.ifname, "ifname")] {
                if differs(own, key) {
                    faults.push(fault(&format!("the reservation has another {key}: {spec}")));
                }
            }
        }
        let alone = reservations.keys().filter(|name| !with_entry.contains(*name));
        faults.extend(alone.map(|name| format!("no entry for reservation {name}")));
        faults
    }

    #[track_caller]
    fn list(&self, plural: &str) -> BTreeMap<String, Value> {
        let Some(list) = self.client.get(&collection(&self.namespace, plural)) else {
            return BTreeMap::new();
        };
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(|item| (name(item), item.clone())).collect()
    }
}

#[track_caller]
fn entries(pool: &Value) -> BTreeMap<u128, Entry> {
    let read = |(key, entry): (&String, &Value)| {
        let offset = key.parse::<u128>().unwrap_or_else(|e| panic!("{key} of {pool}: {e}"));
        let entry = Entry::deserialize(entry).unwrap_or_else(|e| panic!("{key} of {pool}: {e}"));
        (offset, entry)
    };
    pool["spec"]["allocations"].as_object().unwrap().iter().map(read).collect()
}

fn address(range: IpNet, offset: u128) -> IpAddr {
    match range.network() {
        IpAddr::V4(first) => {
            let bits = u128::from(first.to_bits()) + offset;
            Ipv4Addr::from_bits(u32::try_from(bits).unwrap()).into()
        }
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + offset).into(),
    }
}

fn doubles(held: &[Held]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let double = held.iter().filter(|held| !seen.insert((&held.network, held.address)));
    double
        .map(|held| format!("{} of {} is held twice: {held:?}", held.address, held.pool))
        .collect()
}
