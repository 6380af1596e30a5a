//! Fills a store with leases of a network, as if `ipam-da-etcd` had given them to containers of 50
//! nodes. `benches/etcd.rs` runs it:
//!
//! ```text
//! fill URL PREFIX NETWORK SUBNET [LAYOUT] < ADDRESSES
//! ```
//!
//! In the layout of a replaced plugin it writes what that one would have: no keys of owners.

use std::error::Error;
use std::io::BufRead;
use std::net::IpAddr;

use etcd_client::{Client, Txn, TxnOp};
use ipam_da_etcd::{Layout, fill};
use ipam_kit::cni::NetworkName;
use ipnet::IpNet;
use tokio::runtime::Builder;

/// An owner has two keys, and a server takes 128 changes at once.
const AT_ONCE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, prefix, network, subnet, layout @ ..] = &arguments[..] else {
        return Err("expected: URL PREFIX NETWORK SUBNET [LAYOUT] < ADDRESSES".into());
    };
    let layout = Layout::named(layout.first().map_or("native", String::as_str));
    let layout = layout.ok_or("no such layout")?;
    let subnet: IpNet = subnet.parse()?;
    let lines = std::io::stdin().lock().lines();
    let addresses = lines.map(|line| Ok(line?.parse()?));
    let addresses = addresses.collect::<Result<Vec<IpAddr>, Box<dyn Error>>>()?;
    let pairs = fill::pairs(layout, prefix, &NetworkName::parse(network)?, subnet, addresses);
    let puts: Vec<TxnOp> =
        pairs.into_iter().map(|(key, value)| TxnOp::put(key, value, None)).collect();
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut client = Client::connect([url], None).await?;
        for puts in puts.chunks(2 * AT_ONCE) {
            client.txn(Txn::new().and_then(puts)).await?;
        }
        Ok(())
    })
}
