//! The view of a call: the requested pools, those that overlap with them, and the owner's leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Need, PoolView, Used, View, ViewQuery};
use ipam_kit::allocate::{Owner, PoolRequest};
use ipam_kit::{Error, Result};
use ipnet::IpNet;

use crate::lease_mark::LeaseMark;
use crate::memory::PoolNote;
use crate::names::{ObjectNames, readable_part};
use crate::overlap::overlapping_pools;
use crate::owner_notes::OwnerNote;
use crate::owner_search::OwnerSearch;
use crate::pools_token::{HeldLease, PoolsToken};
use crate::read_pool::ReadPool;
use crate::session::{LeaseSession, subnets, subnets_requested};

/// Shows the owner's leases and the requested pools.
///
/// # Errors
/// The server does not answer; on an ADD, a pool was restored from a backup.
pub(crate) fn view(session: &mut LeaseSession, query: &ViewQuery<'_>) -> Result<View<PoolsToken>> {
    let note = session.notes.of(query.owner);
    if let Some(guess) = guess(session, query, note.as_ref()) {
        return Ok(guess);
    }
    let is_claim = !query.requests.is_empty();
    session.check_names(query.requests)?;
    if is_claim {
        session.memory.check_not_restored(session.store.namespace())?;
    }
    let requested: BTreeMap<String, IpNet> = subnets_requested(query.requests)
        .into_iter()
        .map(|subnet| (session.pool_of(subnet), subnet))
        .collect();
    let overlapping = match is_claim && session.overlap_check {
        true => overlapping_pools(session, &requested)?,
        false => BTreeMap::new(),
    };
    let turns = session.locks.take(&requested.keys().cloned().collect());
    let mut pools = BTreeMap::new();
    for (name, subnet) in pools_to_read(session, query, note.as_ref(), requested.clone()) {
        let shown = ReadPool::read(session, &name, subnet)?;
        if requested.contains_key(&name) {
            let place = [session.store.namespace(), &name];
            session.memory.check_pool(place, &shown.noted, shown.metadata())?;
            let entries = shown.entries().map(|(_, _, entry)| entry);
            session.memory.compare_schema(entries, session.overlap_check);
        }
        pools.insert(name, shown);
    }
    if is_claim {
        let is_first_view = session.cluster.is_none();
        session.meet_cluster(pools.values())?;
        if let (true, Some(cluster), Some(note)) = (is_first_view, &session.cluster, &note) {
            let (container, ifname) = (query.owner.container.as_str(), query.owner.ifname.as_str());
            note.warn_of_leases_elsewhere(cluster, container, ifname);
        }
    }
    if pools.is_empty() && query.need == Need::Proof {
        pools = pools_of_owner(session, query.owner)?;
    }
    let mut others = BTreeMap::new();
    for (name, subnet) in overlapping {
        if !pools.contains_key(&name) {
            others.insert(name.clone(), ReadPool::read(session, &name, subnet)?);
        }
    }
    let held = OwnerSearch::new(session, query, note.clone()).leases(&pools)?;
    session.prove_lost(query, note.as_ref(), &held, &pools)?;
    session.end_expired(query, &held, &mut pools, &others)?;
    let shown: Vec<&ReadPool> = pools.values().chain(others.values()).collect();
    let mut taken = BTreeSet::new();
    let mut views = Vec::new();
    for request in query.requests {
        let view = pool_view(session, request, &shown, &mut taken);
        views.push(PoolView { kept: session.kept(request, &pools, &taken)?, ..view });
    }
    let leases = held.iter().map(|held| held.lease.clone()).collect();
    let (pools, more): (BTreeMap<_, _>, BTreeMap<_, _>) =
        pools.into_iter().partition(|(name, _)| requested.contains_key(name));
    others.extend(more);
    let token = PoolsToken { held, pools, others, taken, turns };
    Ok(View { held: leases, sure: true, pools: views, token })
}

/// Shows the leases of the record without a request, if this node has noted that the owner holds no
/// others. The release that follows is guarded.
fn guess(
    session: &LeaseSession,
    query: &ViewQuery<'_>,
    note: Option<&OwnerNote>,
) -> Option<View<PoolsToken>> {
    if !query.may_guess || query.need != Need::Proof || query.known.is_empty() {
        return None;
    }
    let note = note?;
    let has_all = note.node == query.owner.scope.node
        && !note.unsure
        && note.leases.len() == query.known.len()
        && note.leases.iter().all(|noted| {
            let mut known = query.known.iter();
            known.any(|lease| lease.address == noted.address && lease.revision == noted.revision)
        });
    if !has_all {
        return None;
    }
    let held = query.known.iter().map(|lease| {
        let mark = LeaseMark::of(lease)?;
        let is_guarded = mark.reservation.is_some() || mark.kept;
        (is_guarded && mark.namespace == session.store.namespace()).then(|| HeldLease {
            lease: lease.clone(),
            subnet: lease.address.trunc(),
            id: mark.id(query.owner.container.as_str()),
            ifname: mark.ifname(query.owner.ifname.as_str()),
            mark,
            in_pool: true,
        })
    });
    let held: Vec<HeldLease> = held.collect::<Option<_>>()?;
    let token = PoolsToken { held, ..PoolsToken::default() };
    Some(View { held: query.known.to_vec(), sure: false, pools: Vec::new(), token })
}

/// Returns the pools that may hold leases of the owner: the requested ones, else those of the
/// configuration; those of the record; and those of this node's note.
fn pools_to_read(
    session: &LeaseSession,
    query: &ViewQuery<'_>,
    note: Option<&OwnerNote>,
    requested: BTreeMap<String, IpNet>,
) -> BTreeMap<String, IpNet> {
    let mut pools = requested;
    let noted = note.iter().flat_map(|note| &note.leases);
    let leases = query.known.iter().chain(noted).filter(|lease| LeaseMark::of(lease).is_some());
    let mut more: Vec<IpNet> = leases.map(|lease| lease.address.trunc()).collect();
    if query.requests.is_empty() {
        more.extend(&session.subnets);
    }
    pools.extend(more.into_iter().map(|subnet| (session.pool_of(subnet), subnet)));
    pools
}

/// Reads all pools of the network: nothing says which may hold leases of the owner.
pub(crate) fn all_pools(session: &mut LeaseSession) -> Result<BTreeMap<String, ReadPool>> {
    let LeaseSession { store, names, .. } = session;
    let mut pools = BTreeMap::new();
    store.list_pools(&mut |pool| {
        let is_own =
            |range: &IpNet| names.has(&pool.metadata.name, *range) && pool.counts_from(*range);
        if let Some(subnet) = pool.range().filter(is_own) {
            let name = pool.metadata.name.clone();
            pools.insert(name, ReadPool { subnet, object: Some(pool), noted: PoolNote::default() });
        }
    })?;
    Ok(pools)
}

/// Reads all pools of the network: nothing says which may hold leases of the owner. If none does, and
/// nothing names the network, it is the one whose pools do.
///
/// # Errors
/// Pools of several networks do.
fn pools_of_owner(session: &mut LeaseSession, owner: &Owner) -> Result<BTreeMap<String, ReadPool>> {
    let LeaseSession { store, names, .. } = session;
    let (mut pools, mut others, mut other_names) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    store.list_pools(&mut |pool| {
        let Some(subnet) = pool.range().filter(|range| pool.counts_from(*range)) else { return };
        let name = pool.metadata.name.clone();
        let pool = ReadPool { subnet, object: Some(pool), noted: PoolNote::default() };
        if names.has(&name, subnet) {
            pools.insert(name, pool);
        } else if names.is_unnamed() && pool.may_hold(owner) {
            other_names.extend(ObjectNames::of_pool(&name, subnet));
            others.insert(name, pool);
        }
    })?;
    if others.is_empty() || pools.values().any(|pool| pool.may_hold(owner)) {
        return Ok(pools);
    }
    other_names.dedup();
    match &other_names[..] {
        [names] => session.names = names.clone(),
        _ => return Err(unclear_network(owner, others.keys())),
    }
    Ok(others)
}

fn unclear_network<'a>(owner: &Owner, pools: impl Iterator<Item = &'a String>) -> Error {
    let pools: Vec<&str> = pools.map(String::as_str).collect();
    let (container, pools) = (&owner.container, pools.join(", "));
    let message =
        format!("missing: pools of several networks name the container {container}: {pools}");
    Error::config("ipam.kube.networkName", message).advise(
        "repeat the DEL with the whole configuration of the network, or release the address: \
         ipam-da-kube release ADDRESS --config FILE --yes",
    )
}

/// Shows which addresses of a request are taken, and adds them to `all`.
fn pool_view(
    session: &LeaseSession,
    request: &PoolRequest,
    shown: &[&ReadPool],
    all: &mut BTreeSet<IpAddr>,
) -> PoolView {
    let Some(set) = &request.set else { return PoolView::default() };
    let own = subnets(set);
    let mut taken = BTreeSet::new();
    let mut resting = BTreeMap::new();
    for pool in shown {
        if own.iter().any(|own| own.contains(&pool.subnet) || pool.subnet.contains(own)) {
            pool.add_taken(set, &mut taken);
            resting.extend(pool.resting(session.cooldown));
        }
    }
    all.extend(&taken);
    let cursor = session.cursor(request);
    let set = readable_part(set, &request.path);
    PoolView { used: Used::All(taken), cursor, set, resting, ..PoolView::default() }
}
