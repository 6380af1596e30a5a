//! Fills a pool with leases of a network, as if `ipam-da-consul` had given them to containers of 50
//! nodes. `benches/consul.rs` runs it:
//!
//! ```text
//! fill SERVER NETWORK POOL SUBNET < ADDRESSES
//! ```
//!
//! SERVER is `ADDRESS:PORT`. The pool is made, too.

mod plain;

use std::error::Error;
use std::io::BufRead;
use std::net::IpAddr;

use ipam_da_consul::fill;
use ipam_kit::cni::NetworkName;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, network, pool, subnet] = &arguments[..] else {
        return Err("expected: SERVER NETWORK POOL SUBNET < ADDRESSES".into());
    };
    let lines = std::io::stdin().lock().lines();
    let addresses = lines.map(|line| Ok(line?.parse()?));
    let addresses = addresses.collect::<Result<Vec<IpAddr>, Box<dyn Error>>>()?;
    let network = NetworkName::parse(network)?;
    for body in fill::transactions(&network, pool, subnet.parse()?, addresses) {
        plain::transaction(server, &body)?;
    }
    Ok(())
}
