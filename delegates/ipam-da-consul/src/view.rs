//! What is looked at before a change, or instead of one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Need, Scan, View, ViewQuery};
use ipam_kit::allocate::owner_index::{LeaseRevision, OwnerGuard};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::Verb;

use crate::call::Call;
use crate::held::{State, bare, search};
use crate::keys::judge_name;
use crate::memory::Mark;
use crate::room;
use crate::session::Session;
use crate::token::Token;
use crate::txn::Pair;

/// Answers a query, by what the view before has shown where that is told.
///
/// # Errors
/// No server answers in time; a pool is missing or wrong; the token may not read something.
pub(crate) fn view(
    call: &Call,
    session: &mut Session,
    query: &ViewQuery<'_>,
    earlier: Option<Token>,
) -> Result<View<Token>> {
    for want in query.requests {
        want.pool.as_deref().map_or(Ok(()), |name| judge_name(name, &want.path))?;
    }
    // What was read before the store insists is no proof.
    let earlier = earlier.filter(|_| query.need == Need::Claim || session.store.insists());
    if query.need == Need::Proof {
        session.store.insist();
    }
    if query.may_guess
        && let Some(view) = guess(call, session, query)
    {
        return Ok(view);
    }
    let read = earlier.and_then(Token::into_state);
    let unknown = session.pools.unknown(query.requests, read.is_none());
    let state = match read {
        Some(state) if unknown.is_empty() => state,
        _ => look(call, session, query, &unknown)?,
    };
    let held = state.held.clone();
    let mut token = Token::read(state);
    let mut pools = Vec::new();
    for (want, look) in query.requests.iter().zip(query.scans) {
        let shown = room::show(&call.keys, session, want, *look)?;
        token.rely_on(want, &shown);
        pools.push(shown.view);
    }
    if call.verb == Verb::Del && held.is_empty() {
        let Owner { container, ifname, .. } = query.owner;
        session.memory.forget_taken(container.as_str(), ifname.as_str());
    }
    Ok(View { held, sure: session.store.insists(), pools, token })
}

/// What needs no request: leases that the record knows all of, or that an owner of whom nobody here
/// has heard holds nothing, with addresses that were free not long ago.
fn guess(call: &Call, session: &mut Session, query: &ViewQuery<'_>) -> Option<View<Token>> {
    let ViewQuery { owner, known, requests, scans: looks, .. } = *query;
    let indexed = session.memory.is_indexed();
    if requests.is_empty() {
        let of = LeaseRevision::of_all(known)?;
        let mut seen = OwnerGuard { revision: Some(of.revision), document: None };
        if !indexed {
            seen = State::nothing(owner).seen;
            known.iter().for_each(|lease| seen.add(bare(lease)));
        }
        let token = Token::guessed(seen);
        return Some(View { held: known.to_vec(), sure: false, pools: Vec::new(), token });
    }
    let blind = looks.iter().all(|look| *look == Scan::None);
    if !blind || !indexed || session.memory.has_taken(owner) || is_cached(call, owner) {
        return None;
    }
    let mut token = Token::guessed(OwnerGuard::default());
    let mut pools = Vec::new();
    for want in requests {
        let known = session.pools.known_of(want)?;
        let usable = want.set.is_some() || known.definition.is_some();
        let shown = session.pools.remembered(want, known).ok()?;
        if !usable || (!shown.view.is_known() && want.requested.is_none()) {
            return None;
        }
        token.rely_on(want, &shown);
        pools.push(shown.view);
    }
    Some(View { held: Vec::new(), sure: false, pools, token })
}

/// Reads what an owner holds and the ranges of pools, in one request where the owner has a key.
fn look(
    call: &Call,
    session: &mut Session,
    query: &ViewQuery<'_>,
    unknown: &BTreeSet<String>,
) -> Result<State> {
    let Session { store, memory, pools, lessons } = session;
    let (owner, keys) = (query.owner, &call.keys);
    let (checks, releases) = (call.verb == Verb::Check, call.verb == Verb::Del);
    let own = keys.owner(owner);
    let mark = keys.mark(&owner.scope.node);
    let hinted = hinted(call, query)?;
    let mut asked: Vec<String> = hinted.iter().cloned().collect();
    if memory.is_indexed() {
        asked.push(own.clone());
        asked.extend(checks.then(|| mark.clone()));
    }
    let read = pools.read(store, &asked, unknown)?;
    let found = read.iter().find(|pair| pair.key == own);
    let leases: Vec<Pair> = read.iter().filter(|p| hinted.contains(&p.key)).cloned().collect();
    let mut state = State::read(keys, owner, found, &leases)?;
    if (checks || lessons.doubtful) && !state.held.is_empty() {
        state = state.verified(keys, store, owner, &hinted, &leases)?;
    }
    // An owner without a key may hold what the ancestor gave, or what we did where we may have none.
    let unsure = !memory.is_indexed() || (found.is_none() && memory.has_taken(owner));
    let may_hold = releases || (!query.requests.is_empty() && unsure);
    if state.held.is_empty() && (may_hold || (checks && leases.is_empty())) {
        let folders = pools_of(call, query);
        let found = search(store, &call.results, owner, &folders)?;
        state.adopt(keys, owner, &found);
    }
    if releases {
        state.tidy(keys, store, owner)?;
    }
    let shown: BTreeSet<IpAddr> = state.held.iter().map(|lease| lease.address.addr()).collect();
    let lacks = |lease: &Lease| !shown.contains(&lease.address.addr());
    if checks && (shown.is_empty() || query.known.iter().any(lacks)) {
        let mark = read.iter().find(|pair| pair.key == mark);
        memory.judge_absence(&owner.scope.node, mark.map(Mark::of))?;
    }
    Ok(state)
}

/// Keys of addresses that an owner is said to hold: by the record, or by the runtime's cache, which knows
/// what the ancestor gave.
fn hinted(call: &Call, query: &ViewQuery<'_>) -> Result<BTreeSet<String>> {
    let ViewQuery { owner, known, requests, .. } = *query;
    let keys = &call.keys;
    let told = known.iter().filter(|lease| lease.pool.is_some() || !lease.revision.is_null());
    let mut hinted: BTreeSet<String> =
        told.map(|lease| keys.lease(lease.pool.as_deref(), lease.address.addr())).collect();
    let mut addresses: BTreeSet<IpAddr> =
        known.iter().filter(|l| l.revision.is_null()).map(|l| l.address.addr()).collect();
    if !requests.is_empty() {
        let cached = call.results.of(&owner.scope.network, &owner.container, &owner.ifname)?;
        addresses.extend(cached.into_iter().flat_map(|cached| cached.addresses));
    }
    let pools = pools_of(call, query);
    for address in addresses.iter().take(8) {
        hinted.extend(pools.iter().take(4).map(|pool| keys.lease(Some(pool), *address)));
    }
    Ok(hinted)
}

/// The folders of the pools that a query is about; none where nobody says.
fn pools_of(call: &Call, query: &ViewQuery<'_>) -> Vec<String> {
    let network = || call.keys.network().to_string();
    let of = |pool: &Option<String>| pool.clone().unwrap_or_else(network);
    let wanted = query.requests.iter().map(|want| of(&want.pool));
    let known = query.known.iter().filter(|lease| !lease.revision.is_null());
    let known = known.map(|lease| of(&lease.pool));
    let asked = call.asked.iter().cloned();
    wanted.chain(known).chain(asked).collect::<BTreeSet<_>>().into_iter().collect()
}

fn is_cached(call: &Call, owner: &Owner) -> bool {
    // What cannot be read may say so; then there is a look, which fails if it stays so.
    let cached = call.results.of(&owner.scope.network, &owner.container, &owner.ifname);
    cached.map_or(true, |cached| cached.is_some())
}
