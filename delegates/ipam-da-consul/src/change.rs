//! A commit, from the choice of addresses until Consul has carried it out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Claim, Commit};
use ipam_kit::allocate::owner_commit::{OwnerGuard, done, withdrawal, withdrawn};
use ipam_kit::allocate::owner_index::OwnerState;
use ipam_kit::{Error, Result};

use crate::change_txn::{ChangeTxn, OpRole};
use crate::errors::{too_many, unwritable};
use crate::keys::ConsulKeys;
use crate::pools::Pools;
use crate::refusal::{AfterRefusal, RefusedTxn};
use crate::session::ConsulSession;
use crate::txn::{LARGEST, Op, Pair, TxnOutcome, find};
use crate::values::{read_owner_state, revision};
use crate::view_token::ViewToken;

/// Sends the transaction of a change, again after a refusal that allows it.
///
/// # Errors
/// The change was not made, and will not be.
pub(crate) fn make_change(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    owner: &Owner,
    token: &ViewToken,
    change: &Change<'_>,
) -> Result<Commit<ViewToken>> {
    let is_claim = !change.claim.is_empty();
    if is_claim {
        session.memory.check_not_restored()?;
    }
    let losers = read_losers(keys, session, change)?;
    let definitions = definitions_of(change, token);
    let chosen: Vec<IpAddr> =
        change.claim.iter().filter_map(|claim| choose(&session.pools, claim)).collect();
    let mut changed_indexes = BTreeMap::new();
    loop {
        let folders =
            if is_claim { session.pools.missing_folders().clone() } else { BTreeSet::new() };
        let txn = ChangeTxn {
            keys,
            owner,
            guard: &token.guard,
            change,
            chosen: &chosen,
            definitions: &definitions,
            folders: &folders,
            changed_indexes: &changed_indexes,
            losers: &losers,
            indexed: session.memory.is_indexed(),
            marked: !session.memory.is_trusting(),
        };
        let (roles, ops): (Vec<OpRole>, Vec<Op>) = txn.ops().into_iter().unzip();
        if ops.len() > LARGEST && !folders.is_empty() {
            // A later ADD with fewer pools makes the folders.
            session.pools.skip_missing_folders();
            continue;
        }
        if ops.len() > LARGEST {
            return Err(too_many(ops.len()));
        }
        let failures = match session.store.write(&ops)? {
            None => return Ok(Commit::Unknown),
            Some(TxnOutcome::Done(written)) => {
                let index = txn.index_in(&written);
                check_mark(session, &txn, index, &written)?;
                remember_change(session, &txn);
                return Ok(done(change, &chosen, revision(index)));
            }
            Some(TxnOutcome::Failed(failures)) => failures,
        };
        let refused = RefusedTxn { txn: &txn, roles: &roles, ops: &ops, failures: &failures };
        match refused.decide(session)? {
            AfterRefusal::Retry => {}
            AfterRefusal::RetryAt(indexes) => changed_indexes.extend(indexes),
            AfterRefusal::End(commit) => {
                put_back(&session.pools, &txn, &commit);
                return Ok(*commit);
            }
            AfterRefusal::Denied(op) => return Err(unwritable(op)),
        }
    }
}

/// Returns the owners that lose an address by a change, as their keys show them.
fn read_losers(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    change: &Change<'_>,
) -> Result<BTreeMap<String, Option<OwnerState>>> {
    let holders = change.claim.iter().filter_map(|claim| claim.replaces.as_ref()?.holder.as_ref());
    let owner_keys: BTreeSet<String> = holders.filter_map(|holder| keys.owner_of(holder)).collect();
    if owner_keys.is_empty() || !session.memory.is_indexed() {
        return Ok(BTreeMap::new());
    }
    let owner_keys: Vec<String> = owner_keys.into_iter().collect();
    let pairs = session.store.read_keys(&owner_keys)?;
    let mut losers = BTreeMap::new();
    for key in owner_keys {
        let state = find(&pairs, &key).map(read_owner_state).transpose()?;
        losers.insert(key, state);
    }
    Ok(losers)
}

/// Returns the indexes of the definitions that guard a change, by their pools' names.
fn definitions_of(change: &Change<'_>, token: &ViewToken) -> BTreeMap<String, u64> {
    let mut definitions = BTreeMap::new();
    for claim in change.claim.iter().filter(|claim| claim.request.set.is_none()) {
        if let Some(pool) = &claim.request.pool {
            // A definition that was not shown guards with an index that none has.
            let index = token.definitions.get(pool).copied().unwrap_or(0);
            definitions.insert(pool.clone(), index);
        }
    }
    definitions
}

/// Chooses the address for a claim: a candidate that no other process of this node has chosen.
fn choose(pools: &Pools, claim: &Claim<'_>) -> Option<IpAddr> {
    if claim.request.requested.is_some() {
        return claim.candidates.first().copied();
    }
    pools.cache_of(claim.request).take(&claim.candidates)
}

/// Lets other processes of this node choose the chosen addresses that were not lost to others.
fn put_back(pools: &Pools, txn: &ChangeTxn<'_>, commit: &Commit<ViewToken>) {
    let lost: BTreeSet<IpAddr> = match commit {
        Commit::Lost { taken, .. } => taken.iter().map(|taken| taken.address).collect(),
        _ => BTreeSet::new(),
    };
    for (claim, address) in txn.change.claim.iter().zip(txn.chosen) {
        if !lost.contains(address) {
            pools.cache_of(claim.request).put_back(*address);
        }
    }
}

/// Remembers a claim's mark. If the mark before it proves that the store was restored, this
/// releases the claim and fails.
///
/// # Errors
/// The store was restored.
fn check_mark(
    session: &mut ConsulSession,
    txn: &ChangeTxn<'_>,
    index: u64,
    written: &[Pair],
) -> Result<()> {
    session.memory.remember_server(session.store.preferred());
    if txn.change.claim.is_empty() || !txn.indexed || !txn.marked {
        return Ok(());
    }
    let node = &txn.owner.scope.node;
    if !session.memory.matches_latest_claim(node, txn.mark_before(written)) {
        session.pools.forget_all();
        let error = session.memory.remember_restored();
        return Err(take_back(session, txn, index, error));
    }
    if let Some(mark) = txn.mark_after(written) {
        session.memory.remember_claim(node, mark, &session.store.answering());
    }
    Ok(())
}

/// Releases the addresses claimed in a store that was restored; `error` says that it was.
fn take_back(session: &mut ConsulSession, txn: &ChangeTxn<'_>, index: u64, error: Error) -> Error {
    let revision = revision(index);
    let guard = OwnerGuard { revision: Some(revision), owner_index: Some(txn.owner_index()) };
    let change = withdrawal(txn.change, txn.chosen, revision);
    let release = ChangeTxn {
        guard: &guard,
        change: &change,
        chosen: &[],
        definitions: &BTreeMap::new(),
        folders: &BTreeSet::new(),
        // The claim has set all of them.
        changed_indexes: &BTreeMap::new(),
        losers: &BTreeMap::new(),
        ..*txn
    };
    let ops: Vec<Op> = release.ops().into_iter().map(|(_, op)| op).collect();
    for lease in &change.drop {
        session.pools.remember_released(lease);
    }
    let answer = session.store.write(&ops);
    withdrawn(error, &change, answer.map(|answer| matches!(answer, Some(TxnOutcome::Done(_)))))
}

/// Remembers the effect of a change for the next call of this node.
fn remember_change(session: &mut ConsulSession, txn: &ChangeTxn<'_>) {
    let Change { keep, claim, leave, drop } = txn.change;
    session.pools.skip_missing_folders();
    for (claim, address) in claim.iter().zip(txn.chosen) {
        if claim.request.requested.is_some() {
            session.pools.cache_of(claim.request).remember_taken(*address);
        }
    }
    for lease in drop {
        session.pools.remember_released(lease);
    }
    let Owner { container, ifname, .. } = txn.owner;
    if !claim.is_empty() || !keep.is_empty() {
        session.memory.remember_owner(txn.owner);
    } else if leave.is_empty() {
        session.memory.forget_owner(container.as_str(), ifname.as_str());
    }
}
