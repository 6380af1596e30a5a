//! Leases as a scan shows them.

use std::ops::ControlFlow;

use etcd_client::KeyValue;
use ipam_kit::Result;
use ipam_kit::allocate::ledger::Entry;
use log::warn;

use crate::keys::EtcdKeys;
use crate::session::EtcdSession;
use crate::values::{OwnerIndex, OwnerState, parse_holding};

/// Reads the leases of owners whose keys have this prefix.
///
/// # Errors
/// As [`EtcdSession::read`].
pub(crate) fn read_holdings(session: &mut EtcdSession, prefix: String) -> Result<Vec<OwnerState>> {
    let mut holdings = Vec::new();
    session.each_below(prefix, &mut |_, found| {
        match parse_holding(found) {
            Ok(holding) => holdings.push(holding),
            Err(_) => warn_of_foreign_key(found),
        }
        ControlFlow::Continue(())
    })?;
    Ok(holdings)
}

/// Returns the leases of a node's owners in this network. A layout may keep the keys of several
/// networks together.
pub(crate) fn entries_of_node<'a>(
    holdings: &'a [OwnerState],
    node: &'a str,
    network: &'a str,
) -> impl Iterator<Item = Entry> + 'a {
    holdings
        .iter()
        .filter(move |holding| is_of(&holding.owner_index, node, network))
        .flat_map(OwnerState::entries)
}

/// Reads the entry from the key of an address; `None` for a key of another kind.
pub(crate) fn entry_of_key(keys: &EtcdKeys, found: &KeyValue) -> Option<Entry> {
    let entry = keys.address(found.key()).map(|address| keys.key_format().entry(address, found));
    if entry.as_ref().is_none_or(|entry| entry.holder.is_none()) {
        warn_of_foreign_key(found);
    }
    entry
}

/// Tells whether an owner is of this node and this network.
fn is_of(owner_index: &OwnerIndex, node: &str, network: &str) -> bool {
    owner_index.node == node && owner_index.network == network
}

fn warn_of_foreign_key(found: &KeyValue) {
    let key = String::from_utf8_lossy(found.key());
    warn!("foreign key {}: it counts as taken and is kept", key.escape_debug());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_of_one_node_and_one_network() {
        let owner_index = serde_json::json!({
            "network": "net", "node": "n", "container": "c", "ifname": "eth0",
            "generation": 1, "confirmed": 1, "leases": [],
        });
        let owner_index: OwnerIndex = serde_json::from_value(owner_index).unwrap();
        for (node, network, expected) in
            [("n", "net", true), ("n", "other", false), ("other", "net", false)]
        {
            assert_eq!(is_of(&owner_index, node, network), expected, "{node} {network}");
        }
    }
}
