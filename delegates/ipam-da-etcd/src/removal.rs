//! Removing what a scan showed, and what an owner has lost.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::Entry;
use ipam_kit::allocate::owner_index::OwnerGuard;
use ipam_kit::{Error, ErrorCode, Result};

use crate::commit_txn::write_owner;
use crate::page::{READS, found_by_key};
use crate::session::EtcdSession;
use crate::values::{LeaseRevision, parse_holding};

/// The entries of one owner, with the owner's key; none where nobody is named.
type Owned<'a> = (Option<String>, Vec<&'a Entry>);

/// What was found under some keys.
type FoundKeys = BTreeMap<Vec<u8>, KeyValue>;

/// Removes entries that a scan showed, owner by owner, each only while it is still the very one,
/// and tells which.
///
/// # Errors
/// It is not known of some whether they were removed. All others are, and the error says so.
pub(crate) fn remove(session: &mut EtcdSession, entries: &[Entry]) -> Result<Vec<Entry>> {
    let mut by_owner: BTreeMap<Option<String>, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        let holder = entry.holder.as_ref().filter(|_| session.indexed);
        let key = holder.and_then(|holder| session.keys.owner_of_holder(holder));
        by_owner.entry(key).or_default().push(entry);
    }
    // Of what nobody is named for, each entry stands for itself.
    let nobodys = by_owner.remove(&None).unwrap_or_default();
    let mut owned: Vec<Owned<'_>> = by_owner.into_iter().collect();
    owned.extend(nobodys.into_iter().map(|entry| (None, vec![entry])));
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    let mut rest = owned.as_slice();
    while !rest.is_empty() {
        let mut keys = 0;
        let fits = |(_, entries): &&Owned<'_>| {
            keys += 1 + entries.len();
            keys <= READS
        };
        let batch = rest.iter().take_while(fits).count().max(1);
        let found = read_entries(session, &rest[..batch])?;
        for (owner, entries) in &rest[..batch] {
            match remove_of(session, owner.as_deref(), entries, &found) {
                Ok(gone) => removed.extend(gone),
                Err(error) => failed.push(error),
            }
        }
        rest = &rest[batch..];
    }
    Error::join(failed).map_err(|error| match addresses(&removed).as_str() {
        "" => error,
        gone => error.within(format_args!("released {gone}, but not all")),
    })?;
    Ok(removed)
}

/// Takes off the owner's list what it was not `seen` to hold any more: keys that somebody deleted by
/// hand, which others may have by now. Nobody else would, and it would be in the way for ever.
///
/// # Errors
/// The store refuses it.
pub(crate) fn take_off_lost(
    session: &mut EtcdSession,
    owner: Option<&KeyValue>,
    seen: OwnerGuard,
) -> Result<OwnerGuard> {
    let (Some(found), Some(document)) = (owner, &seen.document) else {
        return Ok(seen);
    };
    let holding = parse_holding(found)?;
    if document.leases.len() == holding.document.leases.len() {
        return Ok(seen);
    }
    let key = String::from_utf8_lossy(found.key()).into_owned();
    let held = |address| document.leases.iter().any(|item| item.address.addr() == address);
    let rest = holding.without(|address| !held(address));
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
            OwnerGuard { revision: Some(answer.revision), document: Some(rest) }
        }
        // The next commit finds out.
        _ => seen,
    })
}

/// The keys of owners and of their entries.
fn read_entries(session: &mut EtcdSession, owned: &[Owned<'_>]) -> Result<FoundKeys> {
    let owners = owned.iter().filter_map(|(owner, _)| owner.clone());
    let entries = owned.iter().flat_map(|(_, entries)| entries);
    let leases = entries.map(|entry| session.keys.lease(entry.lease.address.addr()));
    let reads: Vec<TxnOp> = owners.chain(leases).map(|key| TxnOp::get(key, None)).collect();
    let answer = session.read(&Txn::new().and_then(reads))?;
    Ok(found_by_key(&answer.response))
}

/// Removes the entries of one owner in one transaction, those that are still what they were.
fn remove_of(
    session: &mut EtcdSession,
    owner: Option<&str>,
    entries: &[&Entry],
    found: &FoundKeys,
) -> Result<Vec<Entry>> {
    let (mut guards, mut ops, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let own = owner.and_then(|key| found.get(key.as_bytes()));
    // A value that is not ours lists nothing.
    let holding = own.and_then(|found| parse_holding(found).ok());
    for entry in entries {
        let key = session.keys.lease(entry.lease.address.addr());
        let seen = LeaseRevision::read(&entry.lease.revision).map(|seen| seen.revision);
        let standing = found.get(key.as_bytes()).map(KeyValue::mod_revision);
        let stands = standing.is_some() && standing == seen;
        let same = |lease: &Lease| {
            lease.address == entry.lease.address && lease.revision == entry.lease.revision
        };
        let listed = holding.as_ref().is_some_and(|holding| holding.leases().iter().any(same));
        if stands {
            let revision = seen.unwrap_or_default();
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, revision));
            ops.push(TxnOp::delete(key, None));
        }
        // An address whose key is not the owner's any more is only taken off the owner's list.
        if stands || listed {
            gone.push((*entry).clone());
        }
    }
    if gone.is_empty() {
        return Ok(gone);
    }
    match (owner, holding) {
        (None, _) => {}
        // Its owner's key was deleted by hand, or spoilt.
        (Some(key), None) => {
            let revision = own.map_or(0, KeyValue::mod_revision);
            guards.push(Compare::mod_revision(key, CompareOp::Equal, revision));
        }
        (Some(key), Some(holding)) => {
            guards.push(Compare::mod_revision(key, CompareOp::Equal, holding.revision));
            let goes = |address: IpAddr| gone.iter().any(|e| e.lease.address.addr() == address);
            let rest = holding.without(goes);
            if rest.leases.len() < holding.document.leases.len() {
                write_owner(&session.keys, key.to_owned(), &rest, &mut ops);
            }
        }
    }
    let txn = Txn::new().when(guards).and_then([TxnOp::txn(Txn::new().and_then(ops))]);
    let answer = session.client.write(&txn)?.ok_or_else(|| unsure(&gone))?;
    session.check_answer(&answer)?;
    Ok(if answer.response.succeeded() { gone } else { Vec::new() })
}

fn addresses(entries: &[Entry]) -> String {
    let addresses = entries.iter().map(|entry| entry.lease.address.addr().to_string());
    Error::listed(addresses, ", ")
}

fn unsure(gone: &[Entry]) -> Error {
    let message = format!("the store did not say whether {} was released", addresses(gone));
    Error::new(ErrorCode::TRY_AGAIN, message).advise("call again")
}
