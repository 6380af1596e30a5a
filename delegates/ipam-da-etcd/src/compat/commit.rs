//! A commit beside the plugin: in its turn, with what the node remembers about the owner.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Taken};
use ipam_kit::allocate::owner_commit::OwnerGuard;

use super::CompatLedger;
use super::additions::PluginAdditions;
use super::owner_leases::{forget_unless, leases_of};
use crate::commit_txn::{CommitTxn, CommitTxnOutcome};
use crate::outcome::{
    finish_commit, owner_keys_after_refusal, report_taken, unchanged_view, view_after_refusal,
};
use crate::owner_leases::read_previous_holders;
use crate::view_token::EtcdViewToken;

/// Makes a change. When the store takes no index, it also remembers on this node what the owner
/// holds.
pub(super) fn commit(
    ledger: &mut CompatLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
) -> Result<Commit<EtcdViewToken>> {
    let claims = !change.claim.is_empty();
    if claims && !ledger.session.indexed {
        // After a kill, or without an answer, the next call finds by this what was taken.
        let candidates = change.claim.iter().flat_map(|claim| &claim.candidates);
        remember_held(ledger, owner, change, candidates.copied());
    }
    let done = commit_in_turn(ledger, owner, token, change);
    match &done {
        Ok(Commit::Done { claimed, .. }) => {
            let taken = claimed.iter().map(|lease| lease.address.addr());
            remember_held(ledger, owner, change, taken);
        }
        Ok(Commit::Lost { .. } | Commit::Full { .. } | Commit::Outdated) | Err(_) if claims => {
            let stays = change.drop.iter().map(|lease| lease.address.addr());
            remember_held(ledger, owner, change, stays);
        }
        Ok(_) | Err(_) => {}
    }
    done
}

/// Makes a change; repeats it while the plugin has its lock.
fn commit_in_turn(
    ledger: &mut CompatLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
) -> Result<Commit<EtcdViewToken>> {
    let CompatLedger { session, keys, queue, node_turn, .. } = ledger;
    let previous_holders = read_previous_holders(session, change)?;
    let found = loop {
        let commit = CommitTxn {
            keys: &session.keys,
            owner,
            guard: &token.guard,
            change,
            latest: session.latest(),
            previous_holders: &previous_holders,
            indexed: session.indexed,
            additions: &PluginAdditions {
                keys,
                compat_writes: &token.compat_writes,
                ticket: queue.ticket(),
            },
        };
        let answer = session.client.write(&commit.transaction());
        let answer = answer.map_err(|error| queue.explain_timeout(keys.lock(), error))?;
        let Some(answer) = answer else { return Ok(Commit::Unknown) };
        match commit.outcome(&answer.response) {
            CommitTxnOutcome::Done(chosen) => {
                let done = finish_commit(session, owner, &token.guard, change, &answer, &chosen)?;
                node_turn.end();
                queue.end(&mut session.client);
                return Ok(done);
            }
            CommitTxnOutcome::Taken(claim, found) => {
                session.check_answer(&answer)?;
                let found = found.as_deref();
                if let Some(compat_writes) =
                    keys.with_moved_cursor(&change.claim[claim], &token.compat_writes, found)
                {
                    queue.count_refusal(&mut session.client, keys.lock());
                    let token = EtcdViewToken { compat_writes, ..token.clone() };
                    let view = unchanged_view(session, change, &token);
                    return Ok(Commit::Lost { taken: Vec::new(), view });
                }
                let lost = report_taken(session, owner, token, change, claim, found);
                return Ok(unless_own(owner, &token.guard, lost));
            }
            CommitTxnOutcome::Stale(found) => {
                session.check_answer(&answer)?;
                if !queue.wait_for_lock(&mut session.client, keys.lock(), &found)? {
                    break found;
                }
            }
        }
    };
    lost_by_stale_view(ledger, owner, token, change, found)
}

/// Returns a lost claim without its holders if the owner itself may hold a candidate and no other
/// key was read so far: the next view finds out.
fn unless_own(
    owner: &Owner,
    seen: &OwnerGuard,
    lost: Commit<EtcdViewToken>,
) -> Commit<EtcdViewToken> {
    match lost {
        Commit::Lost { taken, .. }
            if seen.owner_index.is_none() && taken.iter().any(|taken| may_be_of(owner, taken)) =>
        {
            Commit::Lost { taken: Vec::new(), view: None }
        }
        lost => lost,
    }
}

/// Tells whether a candidate is taken by the container of an owner, as far as its key tells.
fn may_be_of(owner: &Owner, taken: &Taken) -> bool {
    let holder = taken.holder.as_ref().and_then(|entry| entry.holder.as_ref());
    holder.is_some_and(|holder| {
        holder.ifname.is_none() && holder.container == owner.container.as_str()
    })
}

/// Returns the outcome of a commit whose transaction found another state of the owner than the
/// view.
fn lost_by_stale_view(
    ledger: &mut CompatLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
    found: Vec<KeyValue>,
) -> Result<Commit<EtcdViewToken>> {
    let keys = owner_keys_after_refusal(&mut ledger.session, owner, change, found)?;
    let held = leases_of(ledger, owner, &keys)?;
    let nothing = held.leases.is_empty() && change.claim.is_empty();
    forget_unless(ledger, owner, !nothing);
    let view = view_after_refusal(&mut ledger.session, token, change, &keys, held)?;
    // What the plugin has given instead of all that was known is not shown.
    Ok(Commit::Lost { taken: Vec::new(), view: view.filter(|_| !nothing) })
}

/// Remembers on this node what a change leaves to an owner, and some `more` addresses: those that it
/// takes, or may have taken. Only a store that takes no index needs it.
fn remember_held(
    ledger: &CompatLedger,
    owner: &Owner,
    change: &Change<'_>,
    more: impl Iterator<Item = IpAddr>,
) {
    let stays = change.keep.iter().chain(&change.leave).map(|lease| lease.address.addr());
    let held: BTreeSet<IpAddr> = stays.chain(more).collect();
    if ledger.session.indexed || held.is_empty() {
        ledger.hints.forget(owner);
    } else {
        ledger.hints.remember(owner, &held);
    }
}
