//! The view before a commit: the owner's keys and the values of pools, in one transaction.

use std::collections::BTreeSet;
use std::iter::repeat;
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{PoolView, Scan, Used, View, ViewQuery};
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::owner_index::LeaseRevision;
use ipam_kit::allocate::search::Search;
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Strategy};
use ipam_kit::cni::Verb;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, Result};
use ipnet::IpNet;

use super::WhereaboutsLedger;
use super::owner_lines::{BareLines, leases_of, pools_of_index};
use super::pools::{pool_of, pools_of, taken};
use crate::owner_leases::{OwnerKeys, OwnerLeases};
use crate::pool_value::SeenPools;
use crate::removal::take_off_lost;
use crate::session::EtcdSession;
use crate::view_reads::{addresses_in_query, pools_by_cursor};
use crate::view_token::EtcdViewToken;

/// Returns the owner's leases and the state of the pools.
pub(super) fn view(
    ledger: &mut WhereaboutsLedger,
    query: &ViewQuery<'_>,
) -> Result<View<EtcdViewToken>> {
    if ledger.verb != Verb::Check {
        // Processes of one node would only compete for the value.
        ledger.node_turn.take();
    }
    if let Some(guess) = guess(ledger, query)? {
        return Ok(guess);
    }
    let own = ledger.session.keys.read_owner(query.owner);
    let subnets = subnets_of(ledger, query);
    let (owners, mut pools) = ledger.read(vec![own], subnets)?;
    let keys = &ledger.session.keys;
    let found = OwnerKeys::new(keys, query.owner, owners, Vec::new(), BTreeSet::new());
    let mut unread = pools_of_index(&found)?;
    unread.retain(|subnet| !pools.contains_key(subnet));
    if !unread.is_empty() {
        pools.extend(ledger.read(Vec::new(), unread)?.1);
    }
    let held = owner_leases(ledger, query, &found, &mut pools)?;
    let guard = match ledger.verb {
        Verb::Del => take_off_lost(&mut ledger.session, found.own.as_ref(), held.guard)?,
        _ => held.guard,
    };
    let views = pool_views(&ledger.session, query.requests, query.scans, &pools);
    let token = EtcdViewToken { guard, pools, ..EtcdViewToken::default() };
    // Every read of ours is linearizable: what it does not show is not there.
    Ok(View { held: held.leases, sure: true, pools: views, token })
}

/// Guesses a view by the values that this node wrote last: the owner of an ADD holds nothing, and
/// that of a DEL the leases of the record. `None` if something must be read.
fn guess(
    ledger: &mut WhereaboutsLedger,
    query: &ViewQuery<'_>,
) -> Result<Option<View<EtcdViewToken>>> {
    let WhereaboutsLedger { session, hints, written, .. } = ledger;
    // A store that was set back will be refused, so nothing is written to it.
    if !query.may_guess || (!session.accepts_any_store && session.memory.is_set_back()) {
        return Ok(None);
    }
    let mut guard = OwnerGuard::default();
    if query.requests.is_empty() {
        let Some(seen) = LeaseRevision::of_all(query.known) else { return Ok(None) };
        guard.revision = Some(seen.revision);
    } else if query.requests.iter().any(|request| request.requested.is_some())
        || !hints.of(query.owner)?.is_empty()
    {
        return Ok(None);
    }
    let sets = query.requests.iter().filter_map(|request| request.set.as_ref());
    let subnets = sets.flat_map(pools_of).chain(query.known.iter().map(pool_of)).collect();
    let Some((pools, mark)) = written.read(&subnets) else { return Ok(None) };
    let mut views = pool_views(session, query.requests, query.scans, &pools);
    for (view, request) in views.iter_mut().zip(query.requests) {
        // That all addresses are taken has to be read.
        if let Used::All(taken) = &mut view.used {
            let taken = std::mem::take(taken);
            let ranges = request.set.iter().flat_map(|set| set.ranges());
            let windows = ranges.map(|range| (range.start(), range.end())).collect();
            view.used = Used::Windows(windows, taken);
        }
    }
    let guessed_by = Some(mark);
    let token = EtcdViewToken { guard, pools, guessed_by, ..EtcdViewToken::default() };
    Ok(Some(View { held: query.known.to_vec(), sure: false, pools: views, token }))
}

/// Returns the pools to read: those of the request or of the record, else those of the network.
fn subnets_of(ledger: &WhereaboutsLedger, query: &ViewQuery<'_>) -> BTreeSet<IpNet> {
    let sets = query.requests.iter().filter_map(|request| request.set.as_ref());
    let mut subnets: BTreeSet<IpNet> = sets.flat_map(pools_of).collect();
    subnets.extend(query.known.iter().map(pool_of));
    // On CHECK without a record, the prefix lengths of pools are unknown.
    let is_recorded = |lease: &Lease| LeaseRevision::read(&lease.revision).is_some();
    if query.known.is_empty() || !query.known.iter().all(is_recorded) {
        subnets.extend(&ledger.network_pools);
    }
    subnets
}

/// Returns the owner's leases. A DEL that knows of nothing else counts every line of the container
/// that is not known to be another owner's.
fn owner_leases(
    ledger: &mut WhereaboutsLedger,
    query: &ViewQuery<'_>,
    found: &OwnerKeys,
    pools: &mut SeenPools,
) -> Result<OwnerLeases> {
    let mut named: BTreeSet<IpAddr> = addresses_in_query(query);
    if query.known.is_empty() {
        named.extend(ledger.hints.of(query.owner)?);
        named.extend(ledger.runtime_result.iter().flatten());
    }
    let held = leases_of(ledger, query.owner, found, pools, BareLines::Of(&named))?;
    // No record lists every lease of the owner: whereabouts gives an address for each ADD.
    let may_have_more = held.leases.is_empty() || (query.known.is_empty() && found.own.is_none());
    if ledger.verb != Verb::Del || !may_have_more {
        return Ok(held);
    }
    if ledger.network_pools.is_empty() {
        pools.extend(read_unknown_pools(ledger, query.owner, found, &named)?);
    }
    leases_of(ledger, query.owner, found, pools, BareLines::All)
}

/// Reads the pools in which an owner has lines that no key lists, for a DEL without ranges: those
/// with an address that the runtime remembers. If it remembers none, the only one that names the
/// container.
///
/// # Errors
/// Several name it, or the runtime's result is malformed: only the ranges could tell which are of
/// this network.
fn read_unknown_pools(
    ledger: &mut WhereaboutsLedger,
    owner: &Owner,
    found: &OwnerKeys,
    remembered: &BTreeSet<IpAddr>,
) -> Result<SeenPools> {
    let mut pools = SeenPools::new();
    for subnet in all_pools(ledger)? {
        pools.extend(ledger.read(Vec::new(), [subnet])?.1);
        pools.retain(|_, pool| pool.value.lines_of(owner.container.as_str()).next().is_some());
    }
    let mut left = leases_of(ledger, owner, found, &pools, BareLines::All)?.leases;
    let is_known = ledger.runtime_result.is_some();
    if !remembered.is_empty() {
        left.retain(|lease| remembered.contains(&lease.address.addr()));
    } else if left.iter().any(|lease| !is_known || pool_of(lease) != pool_of(&left[0])) {
        let message = match is_known {
            true => {
                "missing or invalid: several pools name the container, and only the ranges tell \
                 which addresses belong to this network"
            }
            false => "missing or invalid, and so is prevResult: a pool names the container",
        };
        return Err(Error::config("ipam.ranges", message).advise(
            "correct the ranges and call again, or run `ipam-delegated release NETWORK ADDRESS --yes`",
        ));
    }
    let subnets: BTreeSet<IpNet> = left.iter().map(pool_of).collect();
    pools.retain(|subnet, _| subnets.contains(subnet));
    Ok(pools)
}

/// Returns every pool that the store has, without what it holds.
fn all_pools(ledger: &mut WhereaboutsLedger) -> Result<BTreeSet<IpNet>> {
    let mut subnets = BTreeSet::new();
    ledger.each_key(|keys, key| subnets.extend(keys.subnet(key)))?;
    Ok(subnets)
}

/// Returns the views of some pools that were read in full.
pub(super) fn pool_views<'a>(
    session: &EtcdSession,
    requests: impl IntoIterator<Item = &'a PoolRequest> + Clone,
    scans: &[Scan],
    pools: &SeenPools,
) -> Vec<PoolView> {
    let mut views = pools_by_cursor(session, requests.clone(), &EtcdViewToken::default());
    let scans = scans.iter().copied().chain(repeat(Scan::None));
    for ((view, request), scan) in views.iter_mut().zip(requests).zip(scans) {
        let Some(set) = &request.set else { continue };
        view.used = match scan {
            Scan::None => used(request, &request.leasable(set), pools, view.cursor),
            _ => Used::All(taken(pools, &pools_of(set), &|_| true)),
        };
    }
    views
}

/// Returns the taken addresses of the first window of a pool with a free one. To sort those of the
/// whole pool would cost more than all else of a view.
fn used(request: &PoolRequest, set: &RangeSet, pools: &SeenPools, cursor: Option<IpAddr>) -> Used {
    let subnets = pools_of(set);
    let avoid = &BTreeSet::new();
    let search = Search { set, strategy: request.strategy, random: 0, avoid };
    let mut scan = match request.strategy {
        Strategy::Random => None,
        _ => search.next_scan(Scan::None, cursor),
    };
    while let Some(Scan::Range(from, to)) = scan {
        let taken = taken(pools, &subnets, &|address| (from..=to).contains(&address));
        let used = Used::Windows(vec![(from, to)], taken);
        let view = PoolView { used, cursor, ..PoolView::default() };
        if !search.candidates(&view, 1).is_empty() {
            return view.used;
        }
        scan = search.next_scan(Scan::Range(from, to), cursor);
    }
    Used::All(taken(pools, &subnets, &|_| true))
}
