//! The keys of a store that holds leases already, for benchmarks.

use std::net::IpAddr;

use ipam_kit::cni::NetworkName;
use ipnet::IpNet;

use crate::compat::whereabouts;
use crate::keys::EtcdKeys;
use crate::layout::{Layout, LayoutOrigin};
use crate::values::{IndexedLease, OwnerIndex, now};

const NODES: usize = 50;

/// Returns the keys, with their values, by which these addresses of a network are held as if
/// `ipam-da-etcd` had given each to a container of its own, on 50 nodes.
///
/// In the layout of a replaced plugin it is what that one would have written: no keys of owners.
pub fn pairs(
    layout: &'static Layout,
    prefix: &str,
    network: &NetworkName,
    subnet: IpNet,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Vec<(String, String)> {
    if let LayoutOrigin::Whereabouts = layout.origin {
        return vec![whereabouts::filled(prefix, subnet, addresses)];
    }
    let keys = EtcdKeys::new(layout.key_paths(), prefix, network);
    let mut pairs = Vec::new();
    for (n, address) in addresses.into_iter().enumerate() {
        let address = IpNet::new_assert(address, subnet.prefix_len());
        let item = IndexedLease {
            address,
            gateway: subnet.hosts().next(),
            pool: None,
            taken: now(),
            since: None,
        };
        let owner = OwnerIndex {
            network: network.to_string(),
            node: format!("00000000-0000-4000-8000-{:012}", n % NODES),
            container: format!("{n:064x}"),
            ifname: "eth0".to_owned(),
            generation: 1,
            confirmed: now(),
            leases: vec![item.clone()],
        };
        pairs.push((keys.lease(address.addr()), keys.key_format().value(&owner, &item)));
        if layout.is_native() {
            let key = keys.owner_of(&owner.node, &owner.container, &owner.ifname);
            pairs.push((key, owner.to_value()));
        }
    }
    pairs
}
