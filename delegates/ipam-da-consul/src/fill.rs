//! The keys of a store that holds leases already, for benchmarks.

use std::net::IpAddr;

use ipam_kit::allocate::owner_index::{IndexedLease, OwnerIndex, now, to_text};
use ipam_kit::cni::NetworkName;
use ipnet::IpNet;
use serde_json::json;

use crate::keys::{ConsulKeys, ROOT};
use crate::txn::{self, LARGEST, Op};
use crate::values::AddressValue;

const NODES: usize = 50;

/// Returns the bodies of transactions that define a pool of this subnet and take these addresses,
/// as if `ipam-da-consul` had given each to a container of its own, on 50 nodes.
pub fn transactions(
    network: &NetworkName,
    pool: &str,
    subnet: IpNet,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Vec<String> {
    let gateway = subnet.hosts().next();
    let keys = ConsulKeys::new(network, false);
    let ranges = json!([{"subnet": subnet, "gateway": gateway}]);
    let made = [
        Op::Set(ROOT.to_owned(), String::new()),
        Op::Set(ConsulKeys::definition(pool), ranges.to_string()),
        Op::Set(keys.folder(Some(pool)), String::new()),
    ];
    let mut ops = Vec::new();
    for (n, address) in addresses.into_iter().enumerate() {
        let address = IpNet::new_assert(address, subnet.prefix_len());
        let pool = Some(pool.to_owned());
        let key = keys.lease(pool.as_deref(), address.addr());
        let item = IndexedLease { address, gateway, pool, taken: now(), since: None };
        let owner = OwnerIndex {
            network: network.to_string(),
            node: format!("00000000-0000-4000-8000-{:012}", n % NODES),
            container: format!("{n:064x}"),
            ifname: "eth0".to_owned(),
            generation: 1,
            confirmed: now(),
            leases: vec![item],
        };
        let owner_key =
            ConsulKeys::owner_in(&owner.network, &owner.node, &owner.container, &owner.ifname);
        ops.push(Op::Set(key, to_text(&AddressValue::of(&owner))));
        ops.push(Op::Set(owner_key, owner.to_value()));
    }
    // Both keys of an owner are written in one transaction.
    let parts = std::iter::once(&made[..]).chain(ops.chunks(LARGEST));
    parts.map(txn::to_body).collect()
}
