//! What is looked at before a change, or instead of one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Need, Scan, View, ViewQuery};
use ipam_kit::allocate::owner_index::{LeaseRevision, OwnerGuard};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::Verb;

use crate::call::CallScope;
use crate::keys::check_name;
use crate::memory::ClaimMark;
use crate::owner_view::{OwnerView, bare, search};
use crate::pool_scan::scan_pool;
use crate::session::ConsulSession;
use crate::txn::Pair;
use crate::view_token::ViewToken;

/// Answers a query, by what the view before has shown where that is told.
///
/// # Errors
/// No server answers in time; a pool is missing or wrong; the token may not read something.
pub(crate) fn view(
    call: &CallScope,
    session: &mut ConsulSession,
    query: &ViewQuery<'_>,
    earlier: Option<ViewToken>,
) -> Result<View<ViewToken>> {
    for request in query.requests {
        request.pool.as_deref().map_or(Ok(()), |name| check_name(name, &request.path))?;
    }
    // What was read before a proof was required proves nothing.
    let earlier = earlier.filter(|_| query.need == Need::Claim || session.store.requires_proof());
    if query.need == Need::Proof {
        session.store.require_proof();
    }
    if query.may_guess
        && let Some(view) = guess(call, session, query)
    {
        return Ok(view);
    }
    let read = earlier.and_then(ViewToken::into_state);
    let unknown = session.pools.unknown(query.requests, read.is_none());
    let state = match read {
        Some(state) if unknown.is_empty() => state,
        _ => look(call, session, query, &unknown)?,
    };
    let held = state.held.clone();
    let mut token = ViewToken::read(state);
    let mut pools = Vec::new();
    for (request, look) in query.requests.iter().zip(query.scans) {
        let shown = scan_pool(&call.keys, session, request, *look)?;
        token.guard_definition(request, &shown);
        pools.push(shown.view);
    }
    if call.verb == Verb::Del && held.is_empty() {
        let Owner { container, ifname, .. } = query.owner;
        session.memory.forget_owner(container.as_str(), ifname.as_str());
    }
    Ok(View { held, sure: session.store.requires_proof(), pools, token })
}

/// What needs no request: leases that the record knows all of, or that an owner of whom nobody here
/// has heard holds nothing, with addresses that were free not long ago.
fn guess(
    call: &CallScope,
    session: &mut ConsulSession,
    query: &ViewQuery<'_>,
) -> Option<View<ViewToken>> {
    let ViewQuery { owner, known, requests, scans, .. } = *query;
    let indexed = session.memory.is_indexed();
    if requests.is_empty() {
        let of = LeaseRevision::of_all(known)?;
        let mut seen = OwnerGuard { revision: Some(of.revision), document: None };
        if !indexed {
            seen = OwnerView::nothing(owner).seen;
            known.iter().for_each(|lease| seen.add(bare(lease)));
        }
        let token = ViewToken::guessed(seen);
        return Some(View { held: known.to_vec(), sure: false, pools: Vec::new(), token });
    }
    let blind = scans.iter().all(|look| *look == Scan::None);
    if !blind || !indexed || session.memory.knows_owner(owner) || is_cached(call, owner) {
        return None;
    }
    let mut token = ViewToken::guessed(OwnerGuard::default());
    let mut pools = Vec::new();
    for request in requests {
        let known = session.pools.cached(request)?;
        let usable = request.set.is_some() || known.definition.is_some();
        let shown = session.pools.remembered(request, known).ok()?;
        if !usable || (!shown.view.is_known() && request.requested.is_none()) {
            return None;
        }
        token.guard_definition(request, &shown);
        pools.push(shown.view);
    }
    Some(View { held: Vec::new(), sure: false, pools, token })
}

/// Reads what an owner holds and the ranges of pools, in one request where the owner has a key.
fn look(
    call: &CallScope,
    session: &mut ConsulSession,
    query: &ViewQuery<'_>,
    unknown: &BTreeSet<String>,
) -> Result<OwnerView> {
    let ConsulSession { store, memory, pools, refusals } = session;
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
    let mut state = OwnerView::read(keys, owner, found, &leases)?;
    if (checks || refusals.doubtful) && !state.held.is_empty() {
        state = state.verified(keys, store, owner, &hinted, &leases)?;
    }
    // An owner without a key may hold what passcod gave, or what we did where we may have none.
    let unsure = !memory.is_indexed() || (found.is_none() && memory.knows_owner(owner));
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
        memory.check_latest_claim(&owner.scope.node, mark.map(ClaimMark::of))?;
    }
    Ok(state)
}

/// Keys of addresses that an owner is said to hold: by the record, or by the runtime's cache, which knows
/// what passcod gave.
fn hinted(call: &CallScope, query: &ViewQuery<'_>) -> Result<BTreeSet<String>> {
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
fn pools_of(call: &CallScope, query: &ViewQuery<'_>) -> Vec<String> {
    let network = || call.keys.network().to_string();
    let of = |pool: &Option<String>| pool.clone().unwrap_or_else(network);
    let wanted = query.requests.iter().map(|request| of(&request.pool));
    let known = query.known.iter().filter(|lease| !lease.revision.is_null());
    let known = known.map(|lease| of(&lease.pool));
    let asked = call.asked.iter().cloned();
    wanted.chain(known).chain(asked).collect::<BTreeSet<_>>().into_iter().collect()
}

fn is_cached(call: &CallScope, owner: &Owner) -> bool {
    // What cannot be read may say so; then there is a look, which fails if it stays so.
    let cached = call.results.of(&owner.scope.network, &owner.container, &owner.ifname);
    cached.map_or(true, |cached| cached.is_some())
}
