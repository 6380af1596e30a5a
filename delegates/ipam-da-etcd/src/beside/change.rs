//! A change in its turn where the plugin keeps its processes apart, and what became of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Taken};
use ipam_kit::allocate::owner_index::OwnerGuard;

use super::additions::WithPlugin;
use super::call::Beside;
use super::held::{forget_unless, held};
use crate::claim::{Outcome, Step};
use crate::outcome::{
    conclude, read_refusal, read_victims, report_taken, view_after_refusal, view_as_seen,
};
use crate::token::Token;

/// Makes a change, and notes what the owner holds where the store has no place for it.
pub(super) fn change(
    beside: &mut Beside,
    owner: &Owner,
    token: &Token,
    change: &Change<'_>,
) -> Result<Commit<Token>> {
    let claims = !change.claim.is_empty();
    if claims && !beside.session.indexed {
        // Whoever is killed, or gets no answer, finds by this what it has taken.
        let tried = change.claim.iter().flat_map(|claim| &claim.candidates);
        note_held(beside, owner, change, tried.copied());
    }
    let done = carry_out(beside, owner, token, change);
    match &done {
        Ok(Commit::Done { claimed, .. }) => {
            let taken = claimed.iter().map(|lease| lease.address.addr());
            note_held(beside, owner, change, taken);
        }
        Ok(Commit::Lost { .. } | Commit::Outdated) | Err(_) if claims => {
            let stays = change.drop.iter().map(|lease| lease.address.addr());
            note_held(beside, owner, change, stays);
        }
        Ok(Commit::Lost { .. } | Commit::Outdated | Commit::Unknown) | Err(_) => {}
    }
    done
}

/// Notes on this node what an owner holds, or perhaps does, where the store does not let us: what a change
/// leaves it, and this.
fn note_held(
    beside: &Beside,
    owner: &Owner,
    change: &Change<'_>,
    more: impl Iterator<Item = IpAddr>,
) {
    let stays = change.keep.iter().chain(&change.leave).map(|lease| lease.address.addr());
    let held: BTreeSet<IpAddr> = stays.chain(more).collect();
    if beside.session.indexed || held.is_empty() {
        beside.hints.forget(owner);
    } else {
        beside.hints.note(owner, &held);
    }
}

/// Makes a change, again and again while the plugin has its lock.
fn carry_out(
    beside: &mut Beside,
    owner: &Owner,
    token: &Token,
    change: &Change<'_>,
) -> Result<Commit<Token>> {
    let Beside { session, keys, queue, node_turn, .. } = beside;
    let victims = read_victims(session, change)?;
    let found = loop {
        let step = Step {
            keys: &session.keys,
            owner,
            seen: &token.seen,
            change,
            latest: session.latest(),
            victims: &victims,
            indexed: session.indexed,
            additions: &WithPlugin { keys, along: &token.along, turn: queue.turn() },
        };
        let answer = session.client.write(&step.transaction());
        let answer = answer.map_err(|error| queue.explain(keys.lock(), error))?;
        let Some(answer) = answer else { return Ok(Commit::Unknown) };
        match step.outcome(&answer.response) {
            Outcome::Done(chosen) => {
                let done = conclude(session, owner, &token.seen, change, &answer, &chosen)?;
                node_turn.end();
                queue.end(&mut session.client);
                return Ok(done);
            }
            Outcome::Taken(place, shown) => {
                session.judge(&answer)?;
                let shown = shown.as_deref();
                if let Some(along) = keys.passed(&change.claim[place], &token.along, shown) {
                    queue.count_refusal(&mut session.client, keys.lock());
                    let token = Token { along, ..token.clone() };
                    let view = view_as_seen(session, change, &token);
                    return Ok(Commit::Lost { taken: Vec::new(), view });
                }
                let lost = report_taken(session, owner, token, change, (place, shown));
                return Ok(unless_own(owner, &token.seen, lost));
            }
            Outcome::Stale(found) => {
                session.judge(&answer)?;
                if !queue.is_kept_out(&mut session.client, keys.lock(), &found)? {
                    break found;
                }
            }
        }
    };
    of_stale(beside, owner, token, change, found)
}

/// A claim that was lost, unless it may be to the owner itself: a candidate is of the same
/// container as far as its key tells, and nothing else was looked at so far.
fn unless_own(owner: &Owner, seen: &OwnerGuard, lost: Commit<Token>) -> Commit<Token> {
    let may_be_own = |taken: &Taken| {
        let holder = taken.holder.as_ref().and_then(|entry| entry.holder.as_ref());
        holder.is_some_and(|its| its.ifname.is_none() && its.container == owner.container.as_str())
    };
    match lost {
        Commit::Lost { taken, .. } if seen.document.is_none() && taken.iter().any(may_be_own) => {
            Commit::Lost { taken: Vec::new(), view: None }
        }
        lost => lost,
    }
}

/// A commit that found something else than was seen.
fn of_stale(
    beside: &mut Beside,
    owner: &Owner,
    token: &Token,
    change: &Change<'_>,
    found: Vec<KeyValue>,
) -> Result<Commit<Token>> {
    let shown = read_refusal(&mut beside.session, owner, change, found)?;
    let held = held(beside, owner, &shown)?;
    let nothing = held.leases.is_empty() && change.claim.is_empty();
    forget_unless(beside, owner, !nothing);
    let view = view_after_refusal(&mut beside.session, token, change, &shown, held)?;
    // What the plugin has given instead of all that was known is not shown.
    Ok(Commit::Lost { taken: Vec::new(), view: view.filter(|_| !nothing) })
}
