//! Fills a pool with leases of a network, as if `ipam-da-consul` had given them to containers of 50
//! nodes. `benches/consul.rs` runs it:
//!
//! ```text
//! fill SERVER NETWORK POOL SUBNET < ADDRESSES
//! ```
//!
//! SERVER is `ADDRESS:PORT`. The pool is made, too.

#![allow(dead_code, missing_docs, reason = "the rooms of a program, which is no library")]

#[path = "../src/allocation.rs"]
mod allocation;
#[path = "../src/keys.rs"]
mod keys;
mod plain;
#[path = "../src/txn.rs"]
mod txn;

use std::error::Error;
use std::io::BufRead;
use std::net::IpAddr;

use allocation::Allocation;
use ipam_delegated::allocate::document::{Item, OwnerDocument, now, to_text};
use ipam_delegated::cni::NetworkName;
use ipnet::IpNet;
use keys::{Keys, ROOT};
use serde_json::json;
use txn::{LARGEST, Op};

const NODES: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, network, pool, subnet] = &arguments[..] else {
        return Err("expected: SERVER NETWORK POOL SUBNET < ADDRESSES".into());
    };
    let subnet: IpNet = subnet.parse()?;
    let gateway = subnet.hosts().next();
    let keys = Keys::new(&NetworkName::parse(network)?, false);
    let ranges = json!([{"subnet": subnet, "gateway": gateway}]);
    let made = [
        Op::Set(ROOT.to_owned(), String::new()),
        Op::Set(Keys::definition(pool), ranges.to_string()),
        Op::Set(keys.folder(Some(pool)), String::new()),
    ];
    plain::transaction(server, &txn::to_body(&made))?;
    let mut ops = Vec::new();
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        let address = IpNet::new(line?.parse::<IpAddr>()?, subnet.prefix_len())?;
        let pool = Some(pool.clone());
        let key = keys.lease(pool.as_deref(), address.addr());
        let item = Item { address, gateway, pool, taken: now(), since: None };
        let owner = OwnerDocument {
            network: network.clone(),
            node: format!("00000000-0000-4000-8000-{:012}", n % NODES),
            container: format!("{n:064x}"),
            ifname: "eth0".to_owned(),
            generation: 1,
            confirmed: now(),
            leases: vec![item],
        };
        let its = Keys::owner_in(network, &owner.node, &owner.container, &owner.ifname);
        ops.push(Op::Set(key, to_text(&Allocation::of(&owner))));
        ops.push(Op::Set(its, owner.to_value()));
    }
    // An owner's two are written at once.
    for ops in ops.chunks(LARGEST) {
        plain::transaction(server, &txn::to_body(ops))?;
    }
    Ok(())
}
