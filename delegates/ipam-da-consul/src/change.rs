//! A change as it is carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Change, Claim, Commit};
use ipam_kit::allocate::owner_index::{OwnerGuard, OwnerState, done};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};

use crate::change_txn::{ChangeTxn, OpRole};
use crate::errors::{too_many, unwritable};
use crate::keys::ConsulKeys;
use crate::owner_view::OwnerView;
use crate::pools::Pools;
use crate::refusal::{AfterRefusal, RefusedTxn};
use crate::session::ConsulSession;
use crate::txn::{LARGEST, Op, Pair, TxnOutcome};
use crate::values::{holding, revision};
use crate::view_token::ViewToken;

/// How many addresses go at once where a container has more than a transaction can take: only passcod
///  gives one so many.
const BATCH: usize = 60;

/// Makes a change; one by which a container loses more than a transaction can take in several.
///
/// # Errors
/// It was not and will not be made.
pub(crate) fn change_in_parts(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    owner: &Owner,
    token: ViewToken,
    change: &Change<'_>,
) -> Result<Commit<ViewToken>> {
    let only_drops = change.claim.is_empty() && change.keep.is_empty() && change.leave.is_empty();
    if change.drop.len() <= BATCH || !only_drops {
        return make(keys, session, owner, &token, change);
    }
    let mut token = token;
    for part in change.drop.chunks(BATCH) {
        let part = Change { drop: part.to_vec(), ..Change::default() };
        match make(keys, session, owner, &token, &part)? {
            // The owner's key has gone with the first.
            Commit::Done { .. } => token = ViewToken::read(OwnerView::nothing(owner)),
            Commit::Unknown => return Ok(Commit::Unknown),
            // What it shows is of this part alone.
            Commit::Lost { .. } | Commit::Outdated => return Ok(Commit::Outdated),
        }
    }
    Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() })
}

fn make(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    owner: &Owner,
    token: &ViewToken,
    change: &Change<'_>,
) -> Result<Commit<ViewToken>> {
    let takes = !change.claim.is_empty();
    if takes {
        session.memory.check_not_restored()?;
    }
    let victims = victims(keys, session, change)?;
    let definitions = relied_on(token, change);
    let choose = |claim| choose(&session.pools, claim);
    let chosen: Vec<IpAddr> = change.claim.iter().filter_map(choose).collect();
    let mut indexes = BTreeMap::new();
    loop {
        let folders = if takes { session.pools.missing().clone() } else { BTreeSet::new() };
        let step = ChangeTxn {
            keys,
            owner,
            seen: &token.seen,
            change,
            chosen: &chosen,
            definitions: &definitions,
            folders: &folders,
            indexes: &indexes,
            victims: &victims,
            indexed: session.memory.is_indexed(),
            marked: !session.memory.is_trusting(),
        };
        let (roles, ops): (Vec<OpRole>, Vec<Op>) = step.ops().into_iter().unzip();
        if ops.len() > LARGEST && !folders.is_empty() {
            // The next ADD of fewer pools makes them.
            session.pools.forget_missing();
            continue;
        }
        if ops.len() > LARGEST {
            return Err(too_many(ops.len()));
        }
        let failures = match session.store.write(&ops)? {
            None => return Ok(Commit::Unknown),
            Some(TxnOutcome::Done(written)) => {
                let index = step.index_in(&written);
                remember_done(session, &step, index, &written)?;
                return Ok(done(change, &chosen, revision(index)));
            }
            Some(TxnOutcome::Failed(failures)) => failures,
        };
        let refused = RefusedTxn { step: &step, roles: &roles, ops: &ops, failures: &failures };
        match refused.decide(session)? {
            AfterRefusal::Again => {}
            AfterRefusal::Meet(met) => indexes.extend(met),
            AfterRefusal::End(commit) => {
                put_back(&session.pools, &step, &commit);
                return Ok(*commit);
            }
            AfterRefusal::Denied(op) => return Err(unwritable(op)),
        }
    }
}

/// The owners that lose an address by this change, as they are.
fn victims(
    keys: &ConsulKeys,
    session: &mut ConsulSession,
    change: &Change<'_>,
) -> Result<BTreeMap<String, Option<OwnerState>>> {
    let holders = change.claim.iter().filter_map(|claim| claim.replaces.as_ref()?.holder.as_ref());
    let owners: BTreeSet<String> = holders.filter_map(|holder| keys.owner_of(holder)).collect();
    if owners.is_empty() || !session.memory.is_indexed() {
        return Ok(BTreeMap::new());
    }
    let owners: Vec<String> = owners.into_iter().collect();
    let read = session.store.read_keys(&owners)?;
    let victim = |key: String| {
        let found = read.iter().find(|pair| pair.key == key);
        Ok((key, found.map(holding).transpose()?))
    };
    owners.into_iter().map(victim).collect()
}

/// The ranges that a change relies on, by their pools' names.
fn relied_on(token: &ViewToken, change: &Change<'_>) -> BTreeMap<String, u64> {
    let named = change.claim.iter().filter(|claim| claim.request.set.is_none());
    let of = |claim: &Claim<'_>| {
        let pool = claim.request.pool.clone()?;
        // Nothing can be relied on that was not shown.
        let index = token.ranges.get(&pool).copied().unwrap_or(0);
        Some((pool, index))
    };
    named.filter_map(of).collect()
}

/// An address for a claim: one that no other process of this node is about to take.
fn choose(pools: &Pools, claim: &Claim<'_>) -> Option<IpAddr> {
    if claim.request.requested.is_some() {
        return claim.candidates.first().copied();
    }
    pools.cache_of(claim.request).take(&claim.candidates)
}

/// Lets other processes of this node take what was chosen and is not another's.
fn put_back(pools: &Pools, step: &ChangeTxn<'_>, commit: &Commit<ViewToken>) {
    let lost: Vec<IpAddr> = match commit {
        Commit::Lost { taken, .. } => taken.iter().map(|taken| taken.address).collect(),
        _ => Vec::new(),
    };
    let chosen = step.change.claim.iter().zip(step.chosen);
    for (claim, address) in chosen.filter(|(_, address)| !lost.contains(address)) {
        pools.cache_of(claim.request).give_back(*address);
    }
}

/// Takes in that a change was carried out.
fn remember_done(
    session: &mut ConsulSession,
    step: &ChangeTxn<'_>,
    index: u64,
    written: &[Pair],
) -> Result<()> {
    let takes = !step.change.claim.is_empty();
    session.memory.remember_server(session.store.preferred());
    if takes && step.indexed && step.marked {
        let node = &step.owner.scope.node;
        let (before, now) = step.marks_in(written);
        if !session.memory.matches_latest_claim(node, before) {
            session.pools.forget_all();
            let error = session.memory.remember_restored();
            return Err(withdraw(session, step, index, error));
        }
        let server = session.store.answering();
        now.into_iter().for_each(|mark| session.memory.remember_claim(node, mark, &server));
    }
    session.pools.forget_missing();
    for (claim, address) in step.change.claim.iter().zip(step.chosen) {
        if claim.request.requested.is_some() {
            session.pools.cache_of(claim.request).remember_taken(*address);
        }
    }
    for lease in &step.change.drop {
        session.pools.remember_released(lease);
    }
    let (container, ifname) = (step.owner.container.as_str(), step.owner.ifname.as_str());
    if takes || !step.change.keep.is_empty() {
        session.memory.remember_owner(step.owner);
    } else if step.change.leave.is_empty() {
        session.memory.forget_owner(container, ifname);
    }
    Ok(())
}

/// Takes back claims that were made in a store which is not the known one; the error says that it is
/// not.
fn withdraw(session: &mut ConsulSession, step: &ChangeTxn<'_>, index: u64, error: Error) -> Error {
    let made = done::<ViewToken>(step.change, step.chosen, revision(index));
    let Commit::Done { kept, claimed } = made else { return error };
    let seen = OwnerGuard { revision: Some(revision(index)), document: Some(step.document()) };
    let leave: Vec<Lease> = kept.into_iter().chain(step.change.leave.iter().cloned()).collect();
    let change = Change { drop: claimed, leave, ..Change::default() };
    let back = ChangeTxn {
        seen: &seen,
        change: &change,
        chosen: &[],
        definitions: &BTreeMap::new(),
        folders: &BTreeSet::new(),
        // All of it is at the index of this very claim by now.
        indexes: &BTreeMap::new(),
        victims: &BTreeMap::new(),
        ..*step
    };
    let ops: Vec<Op> = back.ops().into_iter().map(|(_, op)| op).collect();
    change.drop.iter().for_each(|lease| session.pools.remember_released(lease));
    match session.store.write(&ops) {
        Ok(Some(TxnOutcome::Done(_))) => error,
        Ok(_) => error.and([Error::new(
            ErrorCode::TRY_AGAIN,
            "it is not known whether what was taken there was given back",
        )]),
        Err(withdrawing) => error.and([withdrawing]),
    }
}
