//! Every lease of a network, or those of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipnet::IpNet;

use super::WhereaboutsLedger;
use super::found_owners::read_owners_of;
use super::owner_lines::BARE;
use super::pools::pool_of;
use crate::entries::{entries_of_node, read_holdings};
use crate::etcd_ledger::EntryVisitor;
use crate::pool_value::PoolLine;
use crate::values::parse_holding;

/// Shows every entry of the network; only those of `node` where one is named.
pub(super) fn scan(
    ledger: &mut WhereaboutsLedger,
    node: Option<&str>,
    each: EntryVisitor<'_>,
) -> Result<()> {
    let prefix = ledger.session.keys.owners().to_owned();
    let holdings = read_holdings(&mut ledger.session, prefix)?;
    let network = ledger.session.keys.network().clone();
    if let Some(node) = node {
        // A visitor that ends early has seen what it needs.
        let _ = entries_of_node(&holdings, node, network.as_str()).try_for_each(each);
        return Ok(());
    }
    let mut subnets = ledger.network_pools.clone();
    let mut listed: BTreeMap<(IpAddr, String), (Entry, bool)> = BTreeMap::new();
    for holding in &holdings {
        let here = holding.owner_index.network == network.as_str();
        for entry in holding.entries() {
            subnets.extend(here.then(|| pool_of(&entry.lease)));
            let line = (entry.lease.address.addr(), holding.owner_index.container.clone());
            listed.insert(line, (entry, here));
        }
    }
    let mut entries = Vec::new();
    ledger.read_each(&subnets, |subnet, pool| {
        for line in pool.value.lines() {
            match listed.remove(&(line.address, line.id.to_owned())) {
                Some((entry, true)) => entries.push(entry),
                Some((_, false)) => {}
                None => entries.push(bare_entry(subnet, line)),
            }
        }
    })?;
    let _ = entries.into_iter().try_for_each(each);
    Ok(())
}

/// Finds the keys below the prefix that neither whereabouts nor this program writes.
///
/// # Errors
/// The store does not answer.
pub(super) fn foreign_entries(ledger: &mut WhereaboutsLedger) -> Result<Vec<String>> {
    let mut foreign = Vec::new();
    ledger.each_key(|keys, key| {
        if keys.is_foreign(key) {
            let key = String::from_utf8_lossy(key);
            foreign.push(format!("foreign key {}: it is ignored and kept", key.escape_debug()));
        }
    })?;
    Ok(foreign)
}

/// Returns the entry of a line, with its owner if a key of ours lists it.
///
/// # Errors
/// The store does not answer.
pub(super) fn entry_of_line(
    ledger: &mut WhereaboutsLedger,
    subnet: IpNet,
    address: IpAddr,
    id: &str,
) -> Result<Entry> {
    let read = read_owners_of(&ledger.session.keys, id);
    let (owners, _) = ledger.read(vec![read], BTreeSet::new())?;
    let states = owners.iter().filter_map(|found| parse_holding(found).ok());
    let mut entries = states.flat_map(|state| state.entries());
    let listed = entries.find(|entry| entry.lease.address.addr() == address);
    Ok(listed.unwrap_or_else(|| bare_entry(subnet, PoolLine { address, id })))
}

/// Returns the entry of a line that no key of ours lists.
fn bare_entry(subnet: IpNet, line: PoolLine<'_>) -> Entry {
    let holder = Holder { container: line.id.to_owned(), ..Holder::default() };
    let nameless = line.id.is_empty();
    let fault = || Fault::Unreadable(format!("the line of {} in {subnet} has no id", line.address));
    Entry {
        lease: Lease::bare(line.in_pool(subnet), BARE.to_json()),
        holder: Some(holder).filter(|_| !nameless),
        since: None,
        fault: nameless.then(fault),
    }
}
