//! A change in its turn where the plugin keeps its processes apart, and what became of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Taken, View};

use super::additions::WithPlugin;
use super::call::Beside;
use super::held::{forget_unless, held};
use super::view::cursor;
use crate::claim::{Outcome, Step};
use crate::house::{Along, Token};
use crate::outcome::{as_before, pools_of_claims, refused, stale, taken, victims, written};
use crate::session::Session;

/// Makes a change, and notes what the owner holds where the store has no place for it.
pub(super) fn change(
    beside: &mut Beside,
    session: &mut Session,
    owner: &Owner,
    token: Token,
    change: &Change<'_>,
) -> Result<Commit<Token>> {
    let claims = !change.claim.is_empty();
    if claims && !session.indexed {
        // Whoever is killed, or gets no answer, finds by this what it has taken.
        let tried = change.claim.iter().flat_map(|claim| &claim.candidates);
        note_held(beside, session, owner, change, tried.copied());
    }
    let done = carry_out(beside, session, owner, token, change);
    match &done {
        Ok(Commit::Done { claimed, .. }) => {
            let taken = claimed.iter().map(|lease| lease.address.addr());
            note_held(beside, session, owner, change, taken);
        }
        Ok(Commit::Lost { .. } | Commit::Outdated) | Err(_) if claims => {
            let stays = change.drop.iter().map(|lease| lease.address.addr());
            note_held(beside, session, owner, change, stays);
        }
        Ok(Commit::Lost { .. } | Commit::Outdated | Commit::Unknown) | Err(_) => {}
    }
    done
}

/// Notes on this node what an owner holds, or perhaps does, where the store does not let us: what a change
/// leaves it, and this.
fn note_held(
    beside: &Beside,
    session: &Session,
    owner: &Owner,
    change: &Change<'_>,
    more: impl Iterator<Item = IpAddr>,
) {
    let stays = change.keep.iter().chain(&change.leave).map(|lease| lease.address.addr());
    let held: BTreeSet<IpAddr> = stays.chain(more).collect();
    if session.indexed || held.is_empty() {
        beside.hints.forget(owner);
    } else {
        beside.hints.note(owner, &held);
    }
}

/// Makes a change, again and again while the plugin has its lock.
fn carry_out(
    beside: &mut Beside,
    session: &mut Session,
    owner: &Owner,
    token: Token,
    change: &Change<'_>,
) -> Result<Commit<Token>> {
    let victims = victims(session, change)?;
    let Token { seen, mut along } = token;
    loop {
        let turn = beside.queue.turn();
        let step = Step {
            keys: &session.keys,
            owner,
            seen: &seen,
            change,
            latest: session.latest(),
            victims: &victims,
            indexed: session.indexed,
            additions: &WithPlugin { keys: &beside.keys, along: &along, turn },
        };
        let answer = session.client.write(&step.transaction());
        let answer = answer.map_err(|error| beside.queue.explain(beside.keys.lock(), error))?;
        let Some(answer) = answer else { return Ok(Commit::Unknown) };
        match step.outcome(&answer.response) {
            Outcome::Done(chosen) => {
                let done = written(session, owner, &seen, change, &answer, &chosen)?;
                beside.node_turn.end();
                beside.queue.end(&mut session.client);
                return Ok(done);
            }
            Outcome::Taken(place, shown) => {
                session.judge(&answer)?;
                let shown = shown.as_deref();
                let was_passed = is_passed(beside, change, place, shown, &mut along);
                let pools = pools_of_claims(change, |want| cursor(&session.memory, &along, want));
                let view = as_before(change, Token { seen: seen.clone(), along }, pools);
                if was_passed {
                    beside.queue.count_refusal(&mut session.client, beside.keys.lock());
                    return Ok(Commit::Lost { taken: Vec::new(), view });
                }
                let lost = taken(&session.keys, owner, change, (place, shown), view);
                // Of the same container as far as its key tells, and nothing else was looked at so far.
                let is_unseen = seen.document.is_none();
                return Ok(match lost {
                    Commit::Lost { taken, .. } if is_unseen && may_be_own(owner, &taken) => {
                        Commit::Lost { taken: Vec::new(), view: None }
                    }
                    lost => lost,
                });
            }
            Outcome::Stale(found) => {
                session.judge(&answer)?;
                let lock = beside.keys.lock();
                if !beside.queue.is_kept_out(&mut session.client, lock, &found)? {
                    return of_stale(beside, session, owner, &along, change, found);
                }
            }
        }
    }
}

/// Whether somebody else's claim has passed this one by: the cursor of a plugin that takes what comes next
/// unseen is not where it was seen. Nothing is known of the candidates then.
fn is_passed(
    beside: &Beside,
    change: &Change<'_>,
    place: usize,
    shown: Option<&[KeyValue]>,
    along: &mut Along,
) -> bool {
    let claim = &change.claim[place];
    let index = claim.want.index;
    let now = || beside.keys.cursors_in(shown.unwrap_or_default()).remove(&index);
    beside.keys.goes_on(claim, along) && along.has_moved(index, now())
}

/// Whether the holder of a candidate may be the owner itself.
fn may_be_own(owner: &Owner, taken: &[Taken]) -> bool {
    let is_its = |entry: &Entry| {
        let holder = entry.holder.as_ref();
        holder.is_some_and(|its| its.ifname.is_none() && its.container == owner.container.as_str())
    };
    taken.iter().filter_map(|taken| taken.holder.as_ref()).any(is_its)
}

/// A commit that found something else than was seen.
fn of_stale(
    beside: &Beside,
    session: &mut Session,
    owner: &Owner,
    along: &Along,
    change: &Change<'_>,
    found: Vec<KeyValue>,
) -> Result<Commit<Token>> {
    let shown = refused(session, owner, change, found)?;
    let held = held(beside, &session.keys, owner, &shown)?;
    forget_unless(beside, owner, !held.leases.is_empty() || !change.claim.is_empty());
    // What the plugin has given instead of all that was known is not shown.
    let to_look = held.leases.is_empty() && change.claim.is_empty();
    let pools = pools_of_claims(change, |want| cursor(&session.memory, along, want));
    let view = stale(session, change, &shown, held, pools)?.filter(|_| !to_look);
    let with_along = |view: View<Token>| {
        let token = Token { along: along.clone(), ..view.token };
        View { token, ..view }
    };
    Ok(Commit::Lost { taken: Vec::new(), view: view.map(with_along) })
}
