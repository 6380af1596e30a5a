//! What is in a store.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_testkit::consul::{Client, Entry};
use serde_json::Value;

const OWNERS: &str = "ipam/.owners/";

/// Every key that stands for something held, with its value: pools and their folders are left out, and
/// the latest claims of nodes, which stay when nothing is held.
#[track_caller]
pub fn ours(client: &Client) -> BTreeMap<String, String> {
    let stays = |entry: &Entry| {
        let rest = entry.key.trim_start_matches("ipam/");
        !rest.contains('/') || rest.ends_with('/') || is_mark(&entry.key)
    };
    let held = client.list("ipam/").into_iter().filter(|entry| !stays(entry));
    held.map(|entry| (entry.key, entry.value)).collect()
}

/// The keys of it.
#[track_caller]
pub fn holdings(client: &Client) -> Vec<String> {
    ours(client).into_keys().collect()
}

/// Everything in a store, with the indexes.
#[track_caller]
pub fn everything(client: &Client) -> Vec<Entry> {
    client.list("")
}

/// Who holds which address, by `NODE/CONTAINER/IFNAME`: fails where an address's key and its owner's key
/// do not say the same.
#[track_caller]
pub fn books(client: &Client) -> BTreeMap<IpAddr, String> {
    let (mut leases, mut owners) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in ours(client) {
        let value: Value = serde_json::from_str(&value).unwrap_or_else(|e| panic!("{key}: {e}"));
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        if key.starts_with(OWNERS) {
            let owner = format!("{}/{}/{}", text("node"), text("container"), text("ifname"));
            for item in value["leases"].as_array().unwrap() {
                let address = item["address"].as_str().unwrap().split('/').next().unwrap();
                let address: IpAddr = address.parse().unwrap();
                let other = owners.insert(address, owner.clone());
                assert_eq!(other, None, "{address} has two owners");
            }
        } else {
            let address: IpAddr = key.rsplit('/').next().unwrap().parse().unwrap();
            let owner = format!("{}/{}/{}", text("node"), text("target"), text("ifname"));
            let other = leases.insert(address, owner);
            assert_eq!(other, None, "{address} is held in two pools");
        }
    }
    assert_eq!(leases, owners, "addresses (left) and owners (right) differ");
    leases
}

/// Who holds which address by the keys of the addresses alone, by `CONTAINER`.
#[track_caller]
pub fn targets(client: &Client) -> BTreeMap<IpAddr, String> {
    let leases = ours(client).into_iter().filter(|(key, _)| !key.starts_with(OWNERS));
    let target = |(key, value): (String, String)| {
        let value: Value = serde_json::from_str(&value).unwrap_or_else(|e| panic!("{key}: {e}"));
        let address = key.rsplit('/').next().unwrap().parse().unwrap();
        (address, value["target"].as_str().unwrap().to_owned())
    };
    leases.map(target).collect()
}

fn is_mark(key: &str) -> bool {
    key.starts_with(OWNERS) && key.contains("/.nodes/")
}
