//! A commit: the changed values of pools and the owner's key, in one transaction.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Claim, Commit, Entry, Taken, View};
use ipam_kit::allocate::owner_commit::{OwnerGuard, done, withdrawal, withdrawn};
use ipnet::IpNet;

use super::found_owners::{FoundOwners, read_owners_of};
use super::owner_lines::{BARE, BareLines, is_bare, leases_of, pools_of_index};
use super::pool_txn::{PoolTxn, write_owner};
use super::pools::{pool_of, pools_of};
use super::scan::entry_of_line;
use super::view::pool_views;
use super::written_values::WrittenValues;
use super::{DROPS, WhereaboutsLedger};
use crate::owner_leases::OwnerKeys;
use crate::page::flatten;
use crate::pool_value::{PoolValues, SeenPools, changed_values};
use crate::removal::take_off_lost;
use crate::transport::EtcdAnswer;
use crate::values::revision_of;
use crate::view_token::{ChangeMark, EtcdViewToken};

/// A change that is ready to be sent.
struct Planned {
    /// The pools after it.
    next: SeenPools,
    /// The owners that lose something.
    losers: FoundOwners,
    /// The values that it writes.
    values: PoolValues,
    /// Its mark, if it writes any.
    mark: Option<ChangeMark>,
    /// The address of each claim.
    chosen: Vec<IpAddr>,
}

/// Makes a change. If whereabouts has the mutex of a pool, it waits until that is free. Then the
/// change is lost, because the value has changed.
pub(super) fn commit(
    ledger: &mut WhereaboutsLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
) -> Result<Commit<EtcdViewToken>> {
    if !is_of_view(&token.guard, change) {
        return Ok(Commit::Lost { taken: Vec::new(), view: None });
    }
    let losers = read_losers(ledger, owner, change)?;
    let planned = match plan(owner, &token.pools, losers, change) {
        Ok(planned) => planned,
        Err(lost) => return report_lost(ledger, token, change, lost),
    };
    let subnets = subnets_of(change, &planned.chosen);
    let txn = change_txn(ledger, owner, token, change, &planned, &subnets);
    let WhereaboutsLedger { session, keys, locks, .. } = &mut *ledger;
    let Some(answer) = session.client.write_made(&|| txn.transaction(keys, locks))? else {
        return Ok(Commit::Unknown);
    };
    if answer.response.succeeded() {
        return finish(ledger, owner, token, change, planned, &answer);
    }
    ledger.session.check_answer(&answer)?;
    let found = flatten(answer.response.op_responses());
    let WhereaboutsLedger { session, keys, locks, .. } = ledger;
    if locks.wait(&mut session.client, keys, &subnets, &found)? {
        return Ok(Commit::Lost { taken: Vec::new(), view: None });
    }
    lost_by_stale_view(ledger, owner, token, change, &subnets, found)
}

/// Tells whether each lease of a change has the revision that the view saw: no key of an address
/// guards it.
fn is_of_view(guard: &OwnerGuard, change: &Change<'_>) -> bool {
    let mut leases = [&change.keep, &change.leave, &change.drop].into_iter().flatten();
    leases.all(|lease| {
        // Without an index, the view is a guess by a record, whose leases have one revision.
        let seen = guard.owner_index.as_ref().map_or(guard.revision, |index| {
            let mut items = index.leases.iter();
            let item = items.find(|item| item.address.addr() == lease.address.addr())?;
            item.since.map(|since| since.revision).or(guard.revision)
        });
        seen == Some(revision_of(lease))
    })
}

/// Reads the owners of which some may lose what a change takes: those of the containers that it
/// takes addresses from, and those of its own if it drops a line that no key lists.
fn read_losers(
    ledger: &mut WhereaboutsLedger,
    owner: &Owner,
    change: &Change<'_>,
) -> Result<FoundOwners> {
    let replaced = change.claim.iter().filter_map(|claim| claim.replaces.as_ref());
    let mut ids: BTreeSet<&str> = replaced.map(id_of).collect();
    if change.drop.iter().any(is_bare) {
        ids.insert(owner.container.as_str());
    }
    let reads = ids.iter().map(|id| read_owners_of(&ledger.session.keys, id)).collect();
    let (found, _) = ledger.read(reads, [])?;
    Ok(FoundOwners::new(&ledger.session.keys, &ids, &found))
}

/// A lease that is not there any more, or a claim without a free candidate.
enum LostPlan {
    Lease,
    Claim(usize),
}

fn plan(
    owner: &Owner,
    seen: &SeenPools,
    mut losers: FoundOwners,
    change: &Change<'_>,
) -> Result<Planned, LostPlan> {
    let id = owner.container.as_str();
    let mut next = seen.clone();
    for lease in &change.drop {
        let pool = next.get_mut(&pool_of(lease));
        if (is_bare(lease) && !losers.give_up(id, lease))
            || !pool.is_some_and(|pool| pool.value.remove(lease.address.addr(), id))
        {
            return Err(LostPlan::Lease);
        }
    }
    let mut chosen = Vec::new();
    for (number, claim) in change.claim.iter().enumerate() {
        if let Some(entry) = &claim.replaces
            && !losers.give_up(id_of(entry), &entry.lease)
        {
            return Err(LostPlan::Claim(number));
        }
        let mut candidates = claim.candidates.iter().copied();
        let won = candidates.find(|address| take(&mut next, claim, *address, id));
        chosen.push(won.ok_or(LostPlan::Claim(number))?);
    }
    let values = changed_values(seen, &next);
    let mark = (!values.is_empty()).then(|| WrittenValues::new_mark(&values));
    Ok(Planned { next, losers, values, mark, chosen })
}

/// Takes an address for a container, if it is free or its holder is the one that loses it.
fn take(pools: &mut SeenPools, claim: &Claim<'_>, address: IpAddr, id: &str) -> bool {
    let Some(pool) = pools.get_mut(&pool_of_claim(claim, address)) else { return false };
    let is_free = match &claim.replaces {
        None => pool.value.holder(address).is_none(),
        Some(entry) => pool.value.remove(address, id_of(entry)),
    };
    if is_free {
        pool.value.add(address, id);
    }
    is_free
}

/// Returns the id in the line of an entry. Only an empty one names no holder.
pub(super) fn id_of(entry: &Entry) -> &str {
    entry.holder.as_ref().map_or("", |holder| &holder.container)
}

fn pool_of_claim(claim: &Claim<'_>, address: IpAddr) -> IpNet {
    pool_of(&claim.lease(address, serde_json::Value::Null))
}

/// Returns the pools that a change writes or relies on.
fn subnets_of(change: &Change<'_>, chosen: &[IpAddr]) -> Vec<IpNet> {
    let leases = change.keep.iter().chain(&change.drop).map(pool_of);
    let claims = change.claim.iter().zip(chosen);
    let claimed = claims.map(|(claim, address)| pool_of_claim(claim, *address));
    leases.chain(claimed).collect::<BTreeSet<_>>().into_iter().collect()
}

fn change_txn<'a>(
    ledger: &WhereaboutsLedger,
    owner: &Owner,
    token: &'a EtcdViewToken,
    change: &Change<'_>,
    planned: &'a Planned,
    subnets: &'a [IpNet],
) -> PoolTxn<'a> {
    let session = &ledger.session;
    let own = session.keys.owner(owner);
    let mut index = token.guard.next(owner, change, &planned.chosen);
    // A line that stays unlisted can be released later: no key may list it then.
    index.leases.retain(|item| item.since != Some(BARE));
    let (mut guards, mut writes) = planned.losers.guards_and_writes();
    let seen = token.guard.revision.unwrap_or_default();
    guards.push(Compare::mod_revision(&*own, CompareOp::Equal, seen));
    writes.push(write_owner(&own, &index));
    if let Some(latest) = session.latest().filter(|_| !change.claim.is_empty()) {
        let key = session.keys.latest();
        if latest > 0 {
            guards.push(Compare::mod_revision(key, CompareOp::Greater, latest - 1));
        }
        writes.push(TxnOp::put(key, owner.scope.node.as_str(), None));
    }
    guards.extend(token.guessed_by.iter().map(|mark| ledger.written.guard(mark)));
    writes.extend(planned.mark.iter().map(|mark| ledger.written.write(mark)));
    let reads = vec![session.keys.read_owner(owner), TxnOp::get(session.keys.latest(), None)];
    let (seen, values) = (&token.pools, &planned.values);
    let only_releases = change.claim.is_empty() && change.keep.is_empty();
    PoolTxn { subnets, seen, values, guards, writes, reads, only_releases }
}

/// Returns the outcome of a change that was written.
///
/// # Errors
/// The store is not the known one: the claims are withdrawn.
fn finish(
    ledger: &mut WhereaboutsLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
    planned: Planned,
    answer: &EtcdAnswer,
) -> Result<Commit<EtcdViewToken>> {
    let Planned { next, values, mark, chosen, .. } = planned;
    if let Err(error) = ledger.session.check_answer(answer) {
        if chosen.is_empty() {
            return Err(error);
        }
        let change = withdrawal(change, &chosen, answer.revision);
        let done = withdraw(ledger, owner, token, &change, &next, answer);
        return Err(withdrawn(error, &change, done));
    }
    let session = &mut ledger.session;
    if !chosen.is_empty() && !session.accepts_any_store {
        let indexes = change.claim.iter().map(|claim| claim.request.index);
        let given = indexes.zip(chosen.iter().copied()).collect();
        session.memory.remember_claims(answer, session.client.answering(), given, true);
    }
    if let Some(mark) = mark {
        ledger.written.remember(&mark, answer.revision, &token.pools, &values);
    }
    ledger.node_turn.end();
    ledger.locks.end(&mut session.client);
    Ok(done(change, &chosen, answer.revision))
}

/// Takes claims back, in parts as a release. Answers whether the store has confirmed all of it.
fn withdraw(
    ledger: &mut WhereaboutsLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
    written: &SeenPools,
    answer: &EtcdAnswer,
) -> Result<bool> {
    let owner_index = token.guard.owner_index.clone();
    let guard = OwnerGuard { revision: Some(answer.revision), owner_index };
    let pools = written_at(answer.revision, written.clone(), &token.pools);
    let mut token = EtcdViewToken { guard, pools, ..EtcdViewToken::default() };
    let mut later = &change.drop[..];
    while !later.is_empty() {
        let (drop, rest) = later.split_at(later.len().min(DROPS));
        later = rest;
        let leave = change.leave.iter().chain(later).cloned().collect();
        let part = Change { drop: drop.to_vec(), leave, ..Change::default() };
        let losers = FoundOwners::default();
        let Ok(planned) = plan(owner, &token.pools, losers, &part) else { return Ok(false) };
        let subnets = subnets_of(&part, &planned.chosen);
        let txn = change_txn(ledger, owner, &token, &part, &planned, &subnets);
        let WhereaboutsLedger { session, keys, locks, .. } = &mut *ledger;
        let answer = session.client.write_made(&|| txn.transaction(keys, locks))?;
        let Some(answer) = answer.filter(|answer| answer.response.succeeded()) else {
            return Ok(false);
        };
        token.pools = written_at(answer.revision, planned.next, &token.pools);
        token.guard.revision = Some(answer.revision);
    }
    Ok(true)
}

/// Returns the pools after a change at a revision.
fn written_at(revision: i64, mut after: SeenPools, before: &SeenPools) -> SeenPools {
    for (subnet, pool) in &mut after {
        if before.get(subnet).is_none_or(|before| before.value != pool.value) {
            pool.revision = Some(revision);
        }
    }
    after
}

/// Returns the outcome of a change that the view itself shows to be lost.
fn report_lost(
    ledger: &mut WhereaboutsLedger,
    token: &EtcdViewToken,
    change: &Change<'_>,
    lost: LostPlan,
) -> Result<Commit<EtcdViewToken>> {
    let LostPlan::Claim(number) = lost else { return Ok(Commit::Outdated) };
    if token.guessed_by.is_some() {
        return Ok(Commit::Outdated);
    }
    let claim = &change.claim[number];
    let mut taken = Vec::new();
    for address in &claim.candidates {
        let subnet = pool_of_claim(claim, *address);
        let pool = token.pools.get(&subnet);
        let id = pool.and_then(|pool| pool.value.holder(*address));
        let holder = match (&claim.candidates[..], id) {
            ([_], Some(id)) => Some(entry_of_line(ledger, subnet, *address, id)?),
            _ => None,
        };
        taken.push(Taken { claim: number, address: *address, holder });
    }
    Ok(Commit::Lost { taken, view: None })
}

/// Returns the outcome of a change whose transaction found another state than the view, with the
/// state that it found.
fn lost_by_stale_view(
    ledger: &mut WhereaboutsLedger,
    owner: &Owner,
    token: &EtcdViewToken,
    change: &Change<'_>,
    subnets: &[IpNet],
    mut found: Vec<KeyValue>,
) -> Result<Commit<EtcdViewToken>> {
    let WhereaboutsLedger { session, keys, locks, .. } = ledger;
    if session.latest().is_some() && !change.claim.is_empty() {
        let latest = found.iter().find(|found| found.key() == session.keys.latest().as_bytes());
        session.memory.check_latest_claim(latest.map_or(0, KeyValue::mod_revision))?;
    }
    let now = keys.take(subnets.iter().copied(), &mut found)?;
    let raced = |subnet: &&IpNet| {
        now.get(*subnet).map(|pool| pool.revision)
            != token.pools.get(*subnet).map(|pool| pool.revision)
    };
    if token.guessed_by.is_none()
        && let Some(subnet) = subnets.iter().find(raced)
        && locks.lose_race(&mut session.client, keys, *subnet)?
    {
        return Ok(Commit::Lost { taken: Vec::new(), view: None });
    }
    // A guess that was wrong shows nothing of the other pools.
    let mut pools = token.pools.clone();
    pools.retain(|_, _| token.guessed_by.is_none());
    pools.extend(now);
    let held = OwnerKeys::new(&session.keys, owner, found, Vec::new(), BTreeSet::new());
    let mut shown = pools_of_index(&held)?;
    shown.extend(change.claim.iter().flat_map(|claim| pools_of(&claim.set)));
    if !shown.iter().all(|subnet| pools.contains_key(subnet)) {
        return Ok(Commit::Lost { taken: Vec::new(), view: None });
    }
    let leases = [&change.keep, &change.leave, &change.drop];
    let named = leases.into_iter().flatten().map(|lease| lease.address.addr()).collect();
    let leases = leases_of(ledger, owner, &held, &pools, BareLines::Of(&named))?;
    // A release has to look at every line where the owner's key does not show a lease.
    let shows_all = !change.claim.is_empty() || !leases.leases.is_empty();
    let session = &mut ledger.session;
    let guard = take_off_lost(session, held.own.as_ref(), leases.guard)?;
    let requests = change.claim.iter().map(|claim| claim.request);
    let views = pool_views(session, requests, &[], &pools);
    let token = EtcdViewToken { guard, pools, ..EtcdViewToken::default() };
    let view = View { held: leases.leases, sure: true, pools: views, token };
    // Pools whose leases were kept are not in it.
    let view = Some(view).filter(|_| shows_all && change.keep.is_empty());
    Ok(Commit::Lost { taken: Vec::new(), view })
}
