//! Fills a store with leases of a network, as if `ipam-da-etcd` had given them to containers of 50
//! nodes. `benches/etcd.rs` runs it:
//!
//! ```text
//! fill URL PREFIX NETWORK SUBNET [LAYOUT] < ADDRESSES
//! ```
//!
//! In the layout of a replaced plugin it writes what that one would have: no keys of owners.

#![allow(dead_code, missing_docs, reason = "the rooms of a program, which is no library")]

#[path = "../src/codec.rs"]
mod codec;
#[path = "../src/document.rs"]
mod document;
#[path = "../src/keys.rs"]
mod keys;
#[path = "../src/layout.rs"]
mod layout;
#[path = "../src/written.rs"]
mod written;

use std::error::Error;
use std::io::BufRead;
use std::net::IpAddr;

use document::{Item, OwnerDocument, now};
use etcd_client::{Client, Txn, TxnOp};
use ipam_delegated::cni::NetworkName;
use ipnet::IpNet;
use keys::Keys;
use layout::{Layout, NATIVE};
use tokio::runtime::Builder;

const NODES: usize = 50;

/// An owner has two keys, and a server takes 128 changes at once.
const AT_ONCE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, prefix, network, subnet, layout @ ..] = &arguments[..] else {
        return Err("expected: URL PREFIX NETWORK SUBNET [LAYOUT] < ADDRESSES".into());
    };
    let layout = match layout.first() {
        Some(name) => Layout::named(name).ok_or("no such layout")?,
        None => &NATIVE,
    };
    let subnet: IpNet = subnet.parse()?;
    let keys = Keys::new(layout, prefix, &NetworkName::parse(network)?);
    let mut puts = Vec::new();
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        let address = IpNet::new(line?.parse::<IpAddr>()?, subnet.prefix_len())?;
        let item =
            Item { address, gateway: subnet.hosts().next(), pool: None, taken: now(), since: None };
        let owner = OwnerDocument {
            network: network.clone(),
            node: format!("00000000-0000-4000-8000-{:012}", n % NODES),
            container: format!("{n:064x}"),
            ifname: "eth0".to_owned(),
            generation: 1,
            confirmed: now(),
            leases: vec![item.clone()],
        };
        let key = keys.owner_of(&owner.node, &owner.container, &owner.ifname);
        let value = keys.codec().value(&owner, &item);
        puts.push(TxnOp::put(keys.lease(address.addr()), value, None));
        if keys.old().is_none() {
            puts.push(TxnOp::put(key, owner.to_value(), None));
        }
    }
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut client = Client::connect([url], None).await?;
        for puts in puts.chunks(2 * AT_ONCE) {
            client.txn(Txn::new().and_then(puts)).await?;
        }
        Ok(())
    })
}
