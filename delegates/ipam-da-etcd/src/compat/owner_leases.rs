//! An owner's leases where the values of addresses name its container alone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::KeyValue;
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, Result};
use log::warn;

use super::CompatLedger;
use crate::owner_leases::{OwnerKeys, OwnerLeases};
use crate::values::{IndexedLease, LeaseRevision, OwnerIndex, parse_holding};

/// Returns the owner's leases from its own key and, for addresses of the plugin, from the keys of
/// the addresses.
pub(super) fn leases_of(
    ledger: &CompatLedger,
    owner: &Owner,
    found_keys: &OwnerKeys,
) -> Result<OwnerLeases> {
    let keys = &ledger.session.keys;
    let mut held = found_keys.by_own_key(keys, owner)?;
    for lost in &held.lost {
        if let Some(found) = found_keys.found(keys, address_of(lost)) {
            warn_of_overwritten(owner, found);
        }
    }
    let others = held_by_siblings(&found_keys.siblings);
    let indexed = held.leases.len();
    let mut left: Vec<(Lease, IndexedLease)> = Vec::new();
    for (found, lease, item) in found_keys.by_addresses(keys, owner) {
        let address = address_of(&lease);
        if !held.has(address) && !others.contains(&(address, found.mod_revision())) {
            left.push((lease, item));
        }
    }
    if !left.is_empty() {
        let of_others = ledger.hints.of_others(owner)?;
        left.retain(|(lease, _)| !of_others.contains(&address_of(lease)));
    }
    for (lease, item) in left {
        held.add(lease, item);
    }
    count_together(&mut held, indexed);
    Ok(held)
}

/// Adds to `held` what the plugin gave the owner, or this delegate without an index. It reads every
/// address, and skips those that are known to be another attachment's.
pub(super) fn with_unlisted_leases(
    ledger: &mut CompatLedger,
    owner: &Owner,
    siblings: &[KeyValue],
    mut held: OwnerLeases,
) -> Result<OwnerLeases> {
    let others = held_by_siblings(siblings);
    let of_others = ledger.hints.of_others(owner)?;
    let known: BTreeSet<IpAddr> = held.leases.iter().map(address_of).collect();
    let ranges_unknown = ledger.network_ranges.as_ref().is_some_and(Vec::is_empty);
    let network_ranges = ledger.network_ranges.as_deref();
    let session = &mut ledger.session;
    session.each_below(session.keys.leases().to_owned(), &mut |keys, found| {
        let address = keys.address(found.key()).filter(|address| {
            (ranges_unknown || is_in_ranges(network_ranges, *address))
                && !known.contains(address)
                && !others.contains(&(*address, found.mod_revision()))
                && !of_others.contains(address)
        });
        let left = address.and_then(|address| keys.key_format().left_to(owner, address, found));
        if let Some((lease, item)) = left {
            held.add(lease, item);
        }
        ControlFlow::Continue(())
    })?;
    if ranges_unknown && held.leases.len() > known.len() {
        return Err(Error::config(
            "ipam.ranges",
            "missing or invalid: only the ranges tell which addresses of the container belong to this network",
        )
        .advise(
            "correct the ranges and call again, or run `ipam-delegated release NETWORK ADDRESS --yes`",
        ));
    }
    count_together(&mut held, 0);
    Ok(held)
}

/// Forgets what is remembered of an owner unless it holds something, or is about to.
pub(super) fn forget_unless(ledger: &CompatLedger, owner: &Owner, holds: bool) {
    if !holds {
        ledger.hints.forget(owner);
    }
}

/// Tells whether an address can be of this network. In a layout with one folder for all networks,
/// the ranges decide.
fn is_in_ranges(network_ranges: Option<&[RangeSet]>, address: IpAddr) -> bool {
    network_ranges
        .is_none_or(|network_ranges| network_ranges.iter().any(|set| set.find(address).is_some()))
}

/// Returns the addresses of other owners by their keys, with the revisions of those of the
/// addresses.
fn held_by_siblings(siblings: &[KeyValue]) -> BTreeSet<(IpAddr, i64)> {
    let mut held = BTreeSet::new();
    for state in siblings.iter().filter_map(|found| parse_holding(found).ok()) {
        for item in &state.owner_index.leases {
            held.insert((item.address.addr(), state.revision_of(item).revision));
        }
    }
    held
}

/// Counts the leases that were written at once, in an owner's index from this one on, by the
/// revision of their keys. So they are recognised like those that a claim gave.
fn count_together(held: &mut OwnerLeases, from: usize) {
    let owner_index: Option<&mut OwnerIndex> = held.guard.owner_index.as_mut();
    let Some(items) = owner_index.and_then(|owner_index| owner_index.leases.get_mut(from..)) else {
        return;
    };
    let all: Vec<i64> = items.iter().map(revision_of_key).collect();
    for (lease, item) in held.leases[from..].iter_mut().zip(items) {
        let revision = revision_of_key(item);
        let leases = all.iter().filter(|other| **other == revision).count();
        let since = LeaseRevision { revision, leases };
        lease.revision = since.to_json();
        item.since = Some(since);
    }
}

fn revision_of_key(item: &IndexedLease) -> i64 {
    item.since.map_or(0, |since| since.revision)
}

fn address_of(lease: &Lease) -> IpAddr {
    lease.address.addr()
}

fn warn_of_overwritten(owner: &Owner, found: &KeyValue) {
    let key = String::from_utf8_lossy(found.key());
    let value = String::from_utf8_lossy(found.value());
    warn!(
        "{owner} had the address of {}, which now names {}: the replaced plugin gave the address again, or the key was written by hand",
        key.escape_debug(),
        value.escape_debug()
    );
}
