//! What is in a store, and filling one fast.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, UNIX_EPOCH};

use ipam_testkit::etcd::Etcd;
use serde_json::Value;

use super::PREFIX;

/// Everything in a store: each key with its value and its revisions.
#[track_caller]
pub fn everything(etcd: &Etcd) -> Value {
    let text = etcd.etcdctl(&["get", "--prefix", "", "--write-out=json"]);
    let mut answer: Value = serde_json::from_str(&text).unwrap();
    answer["kvs"].take()
}

/// The key that every claim writes.
fn is_latest(key: &str) -> bool {
    key.ends_with("/latest")
}

/// Every key but that of the latest claim, which stays when nothing is held.
#[track_caller]
pub fn holdings(etcd: &Etcd) -> Vec<String> {
    let mut keys = etcd.keys("");
    keys.retain(|key| !is_latest(key));
    keys
}

/// What is held: every key of ours with its value.
#[track_caller]
pub fn ours(etcd: &Etcd) -> BTreeMap<String, String> {
    let text = etcd.etcdctl(&["get", "--prefix", PREFIX]);
    let mut lines = text.lines().map(str::to_owned);
    let mut found = BTreeMap::new();
    while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
        found.insert(key, value);
    }
    found.retain(|key, _| !is_latest(key));
    found
}

/// Who holds which address, by `NODE/CONTAINER/IFNAME`: fails where a lease's key and its owner's
/// key do not say the same.
#[track_caller]
pub fn books(etcd: &Etcd) -> BTreeMap<IpAddr, String> {
    let (mut leases, mut owners) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in ours(etcd) {
        let value: Value = serde_json::from_str(&value).unwrap_or_else(|e| panic!("{key}: {e}"));
        let text = |key: &str| value[key].as_str().unwrap().to_owned();
        let owner = format!("{}/{}/{}", text("node"), text("container"), text("ifname"));
        let address = |item: &Value| -> IpAddr {
            item["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
        };
        if key.contains("/owners/") {
            for item in value["leases"].as_array().unwrap() {
                let other = owners.insert(address(item), owner.clone());
                assert_eq!(other, None, "{} has two owners", address(item));
            }
        } else {
            assert_eq!(key, lease_key(&text("network"), address(&value)));
            leases.insert(address(&value), owner);
        }
    }
    assert_eq!(leases, owners, "leases (left) and owners (right) differ");
    leases
}

/// The key of an address.
pub fn lease_key(network: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            format!("{PREFIX}networks/{network}/leases/4/{:08x}", address.to_bits())
        }
        IpAddr::V6(address) => {
            format!("{PREFIX}networks/{network}/leases/6/{:032x}", address.to_bits())
        }
    }
}

pub fn owner_key(network: &str, node: &str, container: &str) -> String {
    format!("{PREFIX}networks/{network}/owners/{node}/{container}/eth0")
}

/// Writes many keys in one transaction.
#[track_caller]
pub fn put_all(etcd: &Etcd, pairs: impl IntoIterator<Item = (String, String)>) {
    let pairs: Vec<_> = pairs.into_iter().collect();
    etcd.requests().put_all(&pairs).unwrap();
}

/// Makes a server that takes large transactions, for [`fill`] and [`occupy`].
pub fn roomy() -> Etcd {
    Etcd::builder().flag(format!("--max-txn-ops={}", 2 * BATCH)).start()
}

/// How many leases are written at once: with their owners some 1 MiB.
const BATCH: usize = 2000;

/// Writes leases of another node, each with an owner of its own, as the program writes them.
#[track_caller]
pub fn fill(etcd: &Etcd, network: &str, addresses: &[IpAddr]) {
    for batch in addresses.chunks(BATCH) {
        let pairs = batch.iter().flat_map(|address| {
            let [(owner, document), lease] = filling(network, *address);
            [(owner_key(network, "filler", &owner), document), lease]
        });
        put_all(etcd, pairs);
    }
}

/// The same without their owners, which is quicker: the addresses count as taken.
#[track_caller]
pub fn occupy(etcd: &Etcd, network: &str, addresses: &[IpAddr]) {
    for batch in addresses.chunks(2 * BATCH) {
        put_all(etcd, batch.iter().map(|address| filling(network, *address)[1].clone()));
    }
}

/// An owner with its document, and the key of its lease with its own.
fn filling(network: &str, address: IpAddr) -> [(String, String); 2] {
    let now = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let container = format!("fill-{address}").replace(':', "_");
    let length = if address.is_ipv4() { 16 } else { 64 };
    let item = format!(r#""address":"{address}/{length}","taken":{now}"#);
    let owner = format!(
        r#""network":"{network}","node":"filler","container":"{container}","ifname":"eth0","generation":1,"confirmed":{now}"#
    );
    let lease = (lease_key(network, address), format!(r#"{{{owner},"leases":1,{item}}}"#));
    [(container, format!(r#"{{{owner},"leases":[{{{item}}}]}}"#)), lease]
}

/// Makes every lease look older.
#[track_caller]
pub fn age(etcd: &Etcd, by: Duration) {
    let by = u64::try_from(by.as_millis()).unwrap();
    let mut pairs = ours(etcd);
    for value in pairs.values_mut() {
        let mut document: Value = serde_json::from_str(value).unwrap();
        document["confirmed"] = (document["confirmed"].as_u64().unwrap() - by).into();
        *value = document.to_string();
    }
    put_all(etcd, pairs);
}

/// The addresses of a network from the first that can be given to the last.
pub fn usable(network: &str, count: u32) -> Vec<IpAddr> {
    let first = match network.parse::<IpAddr>().unwrap() {
        IpAddr::V4(address) => {
            let first = address.to_bits() + 2;
            return (0..count).map(|n| Ipv4Addr::from_bits(first + n).into()).collect();
        }
        IpAddr::V6(address) => address.to_bits() + 2,
    };
    (0..count).map(|n| Ipv6Addr::from_bits(first + u128::from(n)).into()).collect()
}
