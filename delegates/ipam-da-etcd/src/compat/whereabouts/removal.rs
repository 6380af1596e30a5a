//! Removal of entries of a scan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::ledger::Entry;
use ipam_kit::allocate::removal::{may_be_held, removed_unless_failed};
use ipnet::IpNet;

use super::WhereaboutsLedger;
use super::commit::id_of;
use super::pool_txn::{PoolTxn, owner_unchanged, write_owner};
use super::pools::pool_of;
use super::scan::read_owners_of;
use crate::keys::{EtcdKeys, end_of, plain};
use crate::page::flatten;
use crate::pool_value::changed_values;
use crate::values::{OwnerState, parse_holding};

/// How many entries go in one transaction, which may have 128 operations.
const BATCH: usize = 30;

/// Removes entries that a scan showed, each only while it is still the very one. Answers those that
/// were removed.
///
/// # Errors
/// The outcome of some removals is unknown. All others are done, and the error says so.
pub(super) fn remove(ledger: &mut WhereaboutsLedger, entries: &[Entry]) -> Result<Vec<Entry>> {
    let mut removed = Vec::new();
    let mut failed = Vec::new();
    for batch in entries.chunks(BATCH) {
        match remove_batch(ledger, batch) {
            Ok(gone) => removed.extend(gone),
            Err(error) => failed.push(error),
        }
    }
    removed_unless_failed(removed, failed)
}

fn remove_batch(ledger: &mut WhereaboutsLedger, batch: &[Entry]) -> Result<Vec<Entry>> {
    ledger.node_turn.take();
    let subnets: BTreeSet<IpNet> = batch.iter().map(|entry| pool_of(&entry.lease)).collect();
    let subnets: Vec<IpNet> = subnets.into_iter().collect();
    let containers: BTreeSet<&str> = batch.iter().map(id_of).collect();
    loop {
        let reads = containers.iter().map(|id| read_owners_of(ledger, id)).collect();
        let (found, seen) = ledger.read(reads, subnets.clone())?;
        let mut next = seen.clone();
        let mut owners = FoundOwners::read(&found);
        let mut gone = Vec::new();
        for entry in batch {
            let is_owned = owner_of(&ledger.session.keys, entry).is_some();
            if let Some(pool) = next.get_mut(&pool_of(&entry.lease))
                && owners.give_up(&ledger.session.keys, entry)
            {
                let is_there = pool.value.remove(entry.lease.address.addr(), id_of(entry));
                // An address without a line is only taken off the owner's list.
                gone.extend((is_there || is_owned).then(|| entry.clone()));
            }
        }
        if gone.is_empty() {
            return Ok(gone);
        }
        let (mut guards, writes) = owners.guards_and_writes();
        guards.extend(containers.iter().map(|id| no_newer_owner(&ledger.session.keys, id, &found)));
        let WhereaboutsLedger { session, keys, locks, node_turn, .. } = ledger;
        let (seen, values, subnets) = (&seen, &changed_values(&seen, &next), &subnets[..]);
        let txn = PoolTxn { keys, subnets, seen, values, guards, writes, reads: Vec::new() };
        let Some(answer) = session.client.write(&txn.transaction(locks))? else {
            return Err(may_be_held(gone.iter().map(|entry| entry.lease.address.addr())));
        };
        session.check_answer(&answer)?;
        if answer.response.succeeded() {
            node_turn.end();
            locks.end(&mut session.client);
            return Ok(gone);
        }
        let found = flatten(answer.response.op_responses());
        if !locks.wait(&mut session.client, keys, subnets, &found)?
            && let Some(subnet) = subnets.first()
        {
            locks.lose_race(&mut session.client, keys, *subnet)?;
        }
    }
}

/// Returns the key of the owner that an entry names in full.
fn owner_of(keys: &EtcdKeys, entry: &Entry) -> Option<String> {
    entry.holder.as_ref().and_then(|holder| keys.owner_of_holder(holder))
}

/// Guards that no owner of a container has changed since its keys were found.
fn no_newer_owner(keys: &EtcdKeys, id: &str, found: &[KeyValue]) -> Compare {
    let first = format!("{}{}/", keys.owners(), plain(id));
    let its = found.iter().filter(|found| found.key().starts_with(first.as_bytes()));
    let newest = its.map(KeyValue::mod_revision).max().unwrap_or_default();
    let end = end_of(&first);
    Compare::mod_revision(first, CompareOp::Less, newest + 1).with_range(end)
}

/// The owners of some containers, and which of them lose something.
struct FoundOwners {
    states: BTreeMap<String, OwnerState>,
    /// The addresses that each loses.
    losing: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl FoundOwners {
    fn read(found: &[KeyValue]) -> Self {
        let mut states = BTreeMap::new();
        for found in found {
            // A value that is not ours lists nothing.
            if let Ok(state) = parse_holding(found) {
                states.insert(String::from_utf8_lossy(found.key()).into_owned(), state);
            }
        }
        Self { states, losing: BTreeMap::new() }
    }

    /// Tells whether an entry is still what the scan showed: listed at the same revision by its
    /// owner, or by none where the scan showed no owner.
    fn give_up(&mut self, keys: &EtcdKeys, entry: &Entry) -> bool {
        let address = entry.lease.address.addr();
        let Some(key) = owner_of(keys, entry) else {
            let mut of_container =
                self.states.values().filter(|state| state.owner_index.container == id_of(entry));
            return !of_container.any(|state| {
                let mut items = state.owner_index.leases.iter();
                items.any(|item| item.address.addr() == address)
            });
        };
        let leases = self.states.get(&key).map(OwnerState::leases).unwrap_or_default();
        let is_listed = leases.iter().any(|lease| {
            lease.address == entry.lease.address && lease.revision == entry.lease.revision
        });
        if is_listed {
            self.losing.entry(key).or_default().insert(address);
        }
        is_listed
    }

    fn guards_and_writes(&self) -> (Vec<Compare>, Vec<TxnOp>) {
        let mut guards = Vec::new();
        let mut writes = Vec::new();
        for (key, addresses) in &self.losing {
            let Some(state) = self.states.get(key) else { continue };
            let gone = |address| addresses.contains(&address);
            guards.push(owner_unchanged(key, state.revision));
            writes.push(write_owner(key, &state.without(gone)));
        }
        (guards, writes)
    }
}
