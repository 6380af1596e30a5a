//! Removal of entries of a scan, and of lost leases from an owner's list.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::ledger::Entry;
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::removal::{may_be_held, removed_unless_failed};

use crate::commit_txn::write_owner;
use crate::page::{FoundKeys, READS, found_by_key};
use crate::session::EtcdSession;
use crate::values::{LeaseRevision, OwnerState, parse_holding};

/// Entries of a scan that go in one transaction.
struct OwnerEntries<'a> {
    /// The owner's key; `None` for an entry that names no owner, which goes alone.
    owner: Option<String>,
    entries: Vec<&'a Entry>,
}

/// Removes entries that a scan showed, owner by owner, each only while it is still the very one.
/// Answers those that were removed.
///
/// # Errors
/// The outcome of some removals is unknown. All others are done, and the error says so.
pub(crate) fn remove(session: &mut EtcdSession, entries: &[Entry]) -> Result<Vec<Entry>> {
    let owned = group_by_owner(session, entries);
    let mut removed = Vec::new();
    let mut failed = Vec::new();
    let mut rest = owned.as_slice();
    while !rest.is_empty() {
        let (batch, others) = rest.split_at(batch_size(rest));
        let found = read_entries(session, batch)?;
        for owned in batch {
            match remove_of_owner(session, owned, &found) {
                Ok(gone) => removed.extend(gone),
                Err(error) => failed.push(error),
            }
        }
        rest = others;
    }
    removed_unless_failed(removed, failed)
}

fn group_by_owner<'a>(session: &EtcdSession, entries: &'a [Entry]) -> Vec<OwnerEntries<'a>> {
    let mut by_owner: BTreeMap<Option<String>, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        let holder = entry.holder.as_ref().filter(|_| session.indexed);
        let key = holder.and_then(|holder| session.keys.owner_of_holder(holder));
        by_owner.entry(key).or_default().push(entry);
    }
    let without_owner = by_owner.remove(&None).unwrap_or_default();
    let mut owned: Vec<OwnerEntries<'_>> =
        by_owner.into_iter().map(|(owner, entries)| OwnerEntries { owner, entries }).collect();
    for entry in without_owner {
        owned.push(OwnerEntries { owner: None, entries: vec![entry] });
    }
    owned
}

/// Returns how many owners to read at once, at least one.
fn batch_size(owned: &[OwnerEntries<'_>]) -> usize {
    let mut keys = 0;
    let mut size = 0;
    for OwnerEntries { entries, .. } in owned {
        keys += 1 + entries.len();
        if keys > READS {
            break;
        }
        size += 1;
    }
    size.max(1)
}

/// Removes from the owner's list the addresses that it was not `seen` to hold: their keys were
/// deleted by hand, and other owners may have them. Nothing else removes them from the list.
///
/// # Errors
/// The store refuses it.
pub(crate) fn take_off_lost(
    session: &mut EtcdSession,
    owner: Option<&KeyValue>,
    seen: OwnerGuard,
) -> Result<OwnerGuard> {
    let (Some(found), Some(owner_index)) = (owner, &seen.owner_index) else {
        return Ok(seen);
    };
    let holding = parse_holding(found)?;
    if owner_index.leases.len() == holding.owner_index.leases.len() {
        return Ok(seen);
    }
    let key = String::from_utf8_lossy(found.key()).into_owned();
    let rest = holding
        .without(|address| !owner_index.leases.iter().any(|item| item.address.addr() == address));
    let guard = Compare::mod_revision(key.as_str(), CompareOp::Equal, holding.revision);
    let mut ops = Vec::new();
    write_owner(&session.keys, key, &rest, &mut ops);
    let ops = [TxnOp::txn(Txn::new().and_then(ops))];
    let answer = session.client.write(&Txn::new().when([guard]).and_then(ops))?;
    Ok(match answer {
        Some(answer) if answer.response.succeeded() && rest.leases.is_empty() => {
            OwnerGuard::default()
        }
        Some(answer) if answer.response.succeeded() => {
            OwnerGuard { revision: Some(answer.revision), owner_index: Some(rest) }
        }
        // The next commit finds out.
        _ => seen,
    })
}

/// Reads the keys of owners and of their entries.
fn read_entries(session: &mut EtcdSession, owned: &[OwnerEntries<'_>]) -> Result<FoundKeys> {
    let mut reads = Vec::new();
    for OwnerEntries { owner, entries } in owned {
        reads.extend(owner.iter().map(|key| TxnOp::get(key.as_str(), None)));
        for entry in entries {
            reads.push(TxnOp::get(session.keys.lease(entry.lease.address.addr()), None));
        }
    }
    let answer = session.read(&Txn::new().and_then(reads))?;
    Ok(found_by_key(&answer.response))
}

/// Removes the entries of one owner in one transaction, those that are still what they were.
fn remove_of_owner(
    session: &mut EtcdSession,
    OwnerEntries { owner, entries }: &OwnerEntries<'_>,
    found: &FoundKeys,
) -> Result<Vec<Entry>> {
    let mut guards = Vec::new();
    let mut ops = Vec::new();
    let mut gone = Vec::new();
    let own = owner.as_ref().and_then(|key| found.get(key.as_bytes()));
    // A value that is not ours lists nothing.
    let holding = own.and_then(|found| parse_holding(found).ok());
    let listed = holding.as_ref().map(OwnerState::leases).unwrap_or_default();
    for entry in entries {
        let key = session.keys.lease(entry.lease.address.addr());
        let seen = LeaseRevision::read(&entry.lease.revision).map(|seen| seen.revision);
        let current = found.get(key.as_bytes()).map(KeyValue::mod_revision);
        let unchanged = current.is_some() && current == seen;
        let is_listed = listed.iter().any(|lease| {
            lease.address == entry.lease.address && lease.revision == entry.lease.revision
        });
        if unchanged {
            let revision = seen.unwrap_or_default();
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, revision));
            ops.push(TxnOp::delete(key, None));
        }
        // An address whose key is not the owner's any more is only taken off the owner's list.
        if unchanged || is_listed {
            gone.push((*entry).clone());
        }
    }
    if gone.is_empty() {
        return Ok(gone);
    }
    match (owner, holding) {
        (None, _) => {}
        // The owner's key was deleted by hand, or its value is not ours.
        (Some(key), None) => {
            let revision = own.map_or(0, KeyValue::mod_revision);
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, revision));
        }
        (Some(key), Some(holding)) => {
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, holding.revision));
            let rest = holding
                .without(|address| gone.iter().any(|entry| entry.lease.address.addr() == address));
            if rest.leases.len() < holding.owner_index.leases.len() {
                write_owner(&session.keys, key.to_owned(), &rest, &mut ops);
            }
        }
    }
    let txn = Txn::new().when(guards).and_then([TxnOp::txn(Txn::new().and_then(ops))]);
    let answer = session
        .client
        .write(&txn)?
        .ok_or_else(|| may_be_held(gone.iter().map(|entry| entry.lease.address.addr())))?;
    session.check_answer(&answer)?;
    Ok(if answer.response.succeeded() { gone } else { Vec::new() })
}
