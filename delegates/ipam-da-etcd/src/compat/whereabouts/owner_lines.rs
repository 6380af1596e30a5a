//! An owner's leases: what its key lists and a line confirms, and lines that no key lists.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::Result;
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::{Lease, Owner};
use ipnet::IpNet;
use log::warn;

use super::WhereaboutsLedger;
use super::pools::{holds, pool_of};
use crate::owner_leases::{OwnerKeys, OwnerLeases};
use crate::pool_value::SeenPools;
use crate::values::{IndexedLease, LeaseRevision, OwnerState, now, parse_holding};

/// The revision of a line that no key of ours lists: the line itself is all that identifies it.
pub(super) const BARE: LeaseRevision = LeaseRevision { revision: 0, leases: 0 };

/// Tells whether no key of ours lists a lease.
pub(super) fn is_bare(lease: &Lease) -> bool {
    LeaseRevision::read(&lease.revision) == Some(BARE)
}

/// The lines that no key lists and that count as the owner's.
#[derive(Clone, Copy, Debug)]
pub(super) enum BareLines<'a> {
    /// Those with these addresses.
    Of(&'a BTreeSet<IpAddr>),
    /// Every one of the container.
    All,
}

/// Returns the owner's leases, without those whose lines are missing.
///
/// # Errors
/// The value of its key is not ours, or a file with leases of the container cannot be read.
pub(super) fn leases_of(
    ledger: &WhereaboutsLedger,
    owner: &Owner,
    found: &OwnerKeys,
    pools: &SeenPools,
    bare: BareLines<'_>,
) -> Result<OwnerLeases> {
    let mut held = by_own_key(owner, found, pools)?;
    let of_siblings = held_by_siblings(&found.siblings);
    let mut left = lines_of(owner, pools);
    left.retain(|line| {
        let address = line.addr();
        let counts = match bare {
            BareLines::Of(addresses) => addresses.contains(&address),
            BareLines::All => true,
        };
        counts && !held.has(address) && !of_siblings.contains(&address)
    });
    if !left.is_empty() {
        let of_others = ledger.hints.of_others(owner)?;
        left.retain(|line| !of_others.contains(&line.addr()));
    }
    for address in left {
        let item =
            IndexedLease { address, gateway: None, pool: None, taken: now(), since: Some(BARE) };
        held.add(Lease { taken: None, ..item.lease(BARE) }, item);
    }
    Ok(held)
}

fn by_own_key(owner: &Owner, found: &OwnerKeys, pools: &SeenPools) -> Result<OwnerLeases> {
    let Some(own) = &found.own else {
        let guard = OwnerGuard::without_key(owner);
        return Ok(OwnerLeases { leases: Vec::new(), guard, lost: Vec::new() });
    };
    let holding = parse_holding(own)?;
    let leases = holding.leases().into_iter();
    let (leases, lost): (Vec<_>, Vec<_>) =
        leases.partition(|lease| holds(pools, lease, owner.container.as_str()));
    lost.iter().for_each(|lease| warn_of_overwritten(owner, pools, lease));
    let OwnerState { revision, mut owner_index } = holding;
    owner_index.leases.retain(|item| leases.iter().any(|lease| lease.address == item.address));
    let guard = OwnerGuard { revision: Some(revision), owner_index: Some(owner_index) };
    Ok(OwnerLeases { leases, guard, lost })
}

/// Returns the pools of the leases that the owner's key lists.
pub(super) fn pools_of_index(found: &OwnerKeys) -> Result<BTreeSet<IpNet>> {
    let holding = found.own.as_ref().map(parse_holding).transpose()?;
    Ok(holding.iter().flat_map(OwnerState::leases).map(|lease| pool_of(&lease)).collect())
}

/// Returns the addresses of the lines of a container, with the prefix lengths of their pools.
fn lines_of(owner: &Owner, pools: &SeenPools) -> Vec<IpNet> {
    let mut lines = Vec::new();
    for (subnet, pool) in pools {
        let its = pool.value.lines_of(owner.container.as_str());
        lines.extend(its.map(|line| line.in_pool(*subnet)));
    }
    lines
}

/// Returns the addresses that other owners of the container hold by their keys.
fn held_by_siblings(siblings: &[KeyValue]) -> BTreeSet<IpAddr> {
    let states = siblings.iter().filter_map(|found| parse_holding(found).ok());
    states.flat_map(|state| state.owner_index.leases).map(|item| item.address.addr()).collect()
}

fn warn_of_overwritten(owner: &Owner, pools: &SeenPools, lease: &Lease) {
    let address = lease.address.addr();
    let pool = pools.get(&pool_of(lease));
    if let Some(holder) = pool.and_then(|pool| pool.value.holder(address)) {
        warn!(
            "{owner} had {address}, whose line now names {}: whereabouts gave the address again, or \
             the line was written by hand",
            holder.escape_debug()
        );
    }
}
