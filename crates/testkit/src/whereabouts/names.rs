//! The names of objects since v0.6.3: `pkg/storage/kubernetes/ipam.go` of v0.9.4.

use std::net::IpAddr;

use ipnet::IpNet;

/// The name of the pool of a range, in a network or, without a name, outside of any.
pub fn pool_name(network: &str, range: IpNet) -> String {
    prefixed(network, &range.trunc().to_string())
}

/// The name of the reservation of an address.
pub fn reservation_name(network: &str, address: IpAddr) -> String {
    prefixed(network, &address.to_string())
}

fn prefixed(network: &str, text: &str) -> String {
    let zero = if text.ends_with(':') { "0" } else { "" };
    let name = format!("{text}{zero}").replace([':', '/'], "-");
    if network.is_empty() { name } else { format!("{network}-{name}") }
}
