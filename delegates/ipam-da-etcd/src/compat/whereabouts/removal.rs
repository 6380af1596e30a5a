//! Removal of entries of a scan.

use std::collections::BTreeSet;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::Entry;
use ipam_kit::allocate::removal::{may_be_held, removed_unless_failed};
use ipnet::IpNet;

use super::WhereaboutsLedger;
use super::commit::id_of;
use super::found_owners::{FoundOwners, read_owners_of};
use super::owner_lines::is_bare;
use super::pool_txn::PoolTxn;
use super::pools::pool_of;
use crate::page::flatten;
use crate::pool_value::changed_values;

/// How many entries go in one transaction, which may have 128 operations: each entry may be of
/// another container and another pool.
const BATCH: usize = 18;

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
        let owners = &ledger.session.keys;
        let reads = containers.iter().map(|id| read_owners_of(owners, id)).collect();
        let (found, seen) = ledger.read(reads, subnets.clone())?;
        let mut next = seen.clone();
        let mut owners = FoundOwners::new(&ledger.session.keys, &containers, &found);
        let mut gone = Vec::new();
        for entry in batch {
            let (id, lease) = (id_of(entry), &entry.lease);
            if let Some(pool) = next.get_mut(&pool_of(lease))
                && owners.give_up(id, lease)
            {
                let is_there = pool.value.remove(lease.address.addr(), id);
                // An address without a line is only taken off the owner's list.
                gone.extend((is_there || !is_bare(lease)).then(|| entry.clone()));
            }
        }
        if gone.is_empty() {
            return Ok(gone);
        }
        let (guards, writes) = owners.guards_and_writes();
        let WhereaboutsLedger { session, keys, locks, node_turn, .. } = ledger;
        let (seen, values, subnets) = (&seen, &changed_values(&seen, &next), &subnets[..]);
        let (reads, only_releases) = (Vec::new(), true);
        let txn = PoolTxn { subnets, seen, values, guards, writes, reads, only_releases };
        let Some(answer) = session.client.write_made(&|| txn.transaction(keys, locks))? else {
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
