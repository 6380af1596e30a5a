//! The outcome of a change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Scan, Taken, Used, View};
use ipam_kit::allocate::owner_commit::{OwnerGuard, done, withdrawal, withdrawn};
use ipam_kit::{Error, Result};

use crate::commit_txn::CommitTxn;
use crate::owner_leases::{OwnerKeys, OwnerLeases};
use crate::removal::take_off_lost;
use crate::session::EtcdSession;
use crate::transport::EtcdAnswer;
use crate::view_reads::{addresses, pools_by_cursor};
use crate::view_token::EtcdViewToken;

/// Returns the outcome of a change that was written, with the address of each claim.
///
/// # Errors
/// The store is not the known one: the claims are withdrawn.
pub(crate) fn finish_commit(
    session: &mut EtcdSession,
    owner: &Owner,
    guard: &OwnerGuard,
    change: &Change<'_>,
    answer: &EtcdAnswer,
    chosen: &[IpAddr],
) -> Result<Commit<EtcdViewToken>> {
    if let Err(error) = session.check_answer(answer) {
        let guard =
            OwnerGuard { revision: Some(answer.revision), owner_index: guard.owner_index.clone() };
        return Err(withdraw(session, owner, &guard, change, chosen, error));
    }
    if !chosen.is_empty() && !session.accepts_any_store {
        let indexes = change.claim.iter().map(|claim| claim.request.index);
        let given = indexes.zip(chosen.iter().copied()).collect();
        session.memory.remember_claims(answer, session.client.answering(), given, session.indexed);
    }
    Ok(done(change, chosen, answer.revision))
}

/// Withdraws claims that were made in another store than the known one, and returns the error that
/// says so.
fn withdraw(
    session: &mut EtcdSession,
    owner: &Owner,
    guard: &OwnerGuard,
    change: &Change<'_>,
    chosen: &[IpAddr],
    error: Error,
) -> Error {
    if chosen.is_empty() {
        return error;
    }
    let revision = guard.revision.unwrap_or_default();
    let change = withdrawal(change, chosen, revision);
    let back = CommitTxn {
        keys: &session.keys,
        owner,
        guard,
        change: &change,
        latest: None,
        previous_holders: &BTreeMap::new(),
        indexed: session.indexed,
        additions: &(),
    };
    let answer = session.client.write(&back.transaction());
    withdrawn(error, &change, answer.map(|answer| answer.is_some()))
}

/// Returns the view after a claim that was lost: as before. `None` if the change kept or dropped
/// leases.
pub(crate) fn unchanged_view(
    session: &EtcdSession,
    change: &Change<'_>,
    token: &EtcdViewToken,
) -> Option<View<EtcdViewToken>> {
    let fresh = change.keep.is_empty() && change.leave.is_empty() && change.drop.is_empty();
    let pools = pools_by_cursor(session, change.claim.iter().map(|claim| claim.request), token);
    fresh.then(|| View { held: Vec::new(), sure: false, pools, token: token.clone() })
}

/// Reports a claim whose candidates are all taken, with the reads of the pool or of the only
/// candidate.
pub(crate) fn report_taken(
    session: &EtcdSession,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
    number: usize,
    found: Option<&[KeyValue]>,
) -> Commit<EtcdViewToken> {
    let keys = &session.keys;
    let claim = &change.claim[number];
    // With a range, the keys are those of the range, without values.
    let values = found.filter(|_| !matches!(claim.next, Scan::Range(..))).unwrap_or_default();
    let mut taken = Vec::new();
    for address in &claim.candidates {
        let found = values.iter().find(|found| keys.address(found.key()) == Some(*address));
        let holder = found.map(|found| keys.key_format().entry(*address, found));
        taken.push(Taken { claim: number, address: *address, holder });
    }
    // The owner holds it, but has no key: only a view that reads the address shows that.
    let own = keys.owner(owner);
    let holders = taken.iter().filter_map(|taken| taken.holder.as_ref()?.holder.as_ref());
    let is_own = holders.filter_map(|h| keys.owner_of_holder(h)).any(|key| key == own);
    let mut view = unchanged_view(session, change, token).filter(|_| !is_own);
    if let (Some(view), Scan::Range(from, to), Some(found)) = (&mut view, claim.next, found) {
        view.pools[number].used = Used::Windows(vec![(from, to)], addresses(keys, found));
    }
    Commit::Lost { taken, view }
}

/// Returns the owner's keys that came with the answer to a refused change.
///
/// # Errors
/// The change was refused because the store was set back: its latest claim is older than the known
/// one.
pub(crate) fn owner_keys_after_refusal(
    session: &mut EtcdSession,
    owner: &Owner,
    change: &Change<'_>,
    found: Vec<KeyValue>,
) -> Result<OwnerKeys> {
    if session.latest().is_some() && !change.claim.is_empty() {
        let key = session.keys.latest().as_bytes();
        let latest = found.iter().find(|found| found.key() == key);
        session.memory.check_latest_claim(latest.map_or(0, KeyValue::mod_revision))?;
    }
    Ok(OwnerKeys::by_refusal(&session.keys, owner, change, found))
}

/// Returns the view after a refused change, by what the owner holds. `None` if the change kept
/// leases: their pools are not in it.
///
/// # Errors
/// As [`take_off_lost`].
pub(crate) fn view_after_refusal(
    session: &mut EtcdSession,
    token: &EtcdViewToken,
    change: &Change<'_>,
    keys: &OwnerKeys,
    held: OwnerLeases,
) -> Result<Option<View<EtcdViewToken>>> {
    let guard = take_off_lost(session, keys.own.as_ref(), held.guard)?;
    let pools = pools_by_cursor(session, change.claim.iter().map(|claim| claim.request), token);
    let view = View { held: held.leases, sure: true, pools, token: token.with(guard) };
    Ok(change.keep.is_empty().then_some(view))
}
