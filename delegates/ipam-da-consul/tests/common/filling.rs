//! Filling pools fast, and making what is held look older.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipam_testkit::consul::Client;
use serde_json::{Value, json};

use super::Node;

/// Takes addresses of a pool as passcod does, without owners.
#[track_caller]
pub fn occupy(client: &Client, pool: &str, addresses: &[IpAddr]) {
    let pair = |address: &IpAddr| {
        let value = json!({"target": format!("fill-{address}")});
        (format!("ipam/{pool}/{address}"), value.to_string())
    };
    client.put_all(addresses.iter().map(pair));
}

/// The results of ADDs, one after the other, until the pool is full.
#[track_caller]
pub fn fill(node: &Node) -> Vec<Value> {
    let mut given = Vec::new();
    loop {
        let outcome = node.call("ADD", &format!("c{}", given.len()));
        if outcome.exit == Some(1) {
            let (code, text) = outcome.failure();
            assert_eq!(code, 100, "{text}");
            return given;
        }
        given.push(outcome.success());
    }
}

/// So many addresses of a network, in order, from the first behind that of the network.
pub fn usable(network: &str, count: u32) -> Vec<IpAddr> {
    let first = network.parse::<Ipv4Addr>().unwrap().to_bits() + 1;
    (first..first + count).map(|bits| Ipv4Addr::from_bits(bits).into()).collect()
}

/// Writes what owners hold again, each owner's in one transaction as the program does, with an older
/// time.
#[track_caller]
pub fn age(client: &Client, by: Duration) {
    let by = u64::try_from(by.as_millis()).unwrap();
    let older = |value: &str, member: &str| {
        let mut document: Value = serde_json::from_str(value).unwrap();
        document[member] = (document[member].as_u64().unwrap() - by).into();
        document
    };
    let owners = client.list("ipam/.owners/");
    for owner in owners.iter().filter(|entry| !entry.key.contains("/.nodes/")) {
        let document = older(&owner.value, "confirmed");
        let mut pairs = vec![(owner.key.clone(), document.to_string())];
        for item in document["leases"].as_array().unwrap() {
            let pool = item["pool"].as_str().or(document["network"].as_str()).unwrap();
            let address = item["address"].as_str().unwrap().split('/').next().unwrap();
            let key = format!("ipam/{pool}/{address}");
            let value = client.get(&key).unwrap();
            pairs.push((key, older(&value, "time").to_string()));
        }
        client.put_all(pairs);
    }
}
