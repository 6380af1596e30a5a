//! What both plugins copied from host-local: main.go and backend/allocator, over a store.

use std::net::IpAddr;

use super::ranges::{RangeSet, Walk};
use super::{Ended, Played};

/// backend.Store: the part in which the two differ.
pub(super) trait Store {
    /// What is done before all else.
    fn open(&mut self) -> Played<()>;
    fn lock(&mut self) -> Played<()>;
    fn unlock(&mut self) -> Played<()>;
    /// Whether the address was free.
    fn reserve(&mut self, id: &str, address: IpAddr, set: usize) -> Played<bool>;
    /// Where the last search in a range set ended, as it is written.
    fn last_reserved(&mut self, set: usize) -> Played<Option<String>>;
    /// Frees all that has this id, whatever set it belongs to.
    fn release(&mut self, id: &str) -> Played<()>;
}

pub(super) fn add(
    store: &mut dyn Store,
    sets: &[RangeSet],
    id: &str,
    mut wanted: Vec<IpAddr>,
) -> Played<Vec<IpAddr>> {
    store.open()?;
    let mut given = Vec::new();
    for (index, set) in sets.iter().enumerate() {
        let place = wanted.iter().position(|address| set.contains(*address));
        match take(store, (index, set), id, place.map(|place| wanted.remove(place)))? {
            Ok(address) => given.push(address),
            Err(reason) => {
                let reason = format!("failed to allocate for range {index}: {reason}");
                return roll_back(store, given.len(), id, reason);
            }
        }
    }
    if wanted.is_empty() {
        return Ok(given);
    }
    let list: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    let reason = format!("failed to allocate all requested IPs: {}", list.join(" "));
    roll_back(store, given.len(), id, reason)
}

pub(super) fn del(store: &mut dyn Store, sets: &[RangeSet], id: &str) -> Played<()> {
    store.open()?;
    sets.iter().try_for_each(|_| release(store, id))
}

/// Releases once for each set that had given an address.
fn roll_back<T>(store: &mut dyn Store, times: usize, id: &str, reason: String) -> Played<T> {
    (0..times).try_for_each(|_| release(store, id))?;
    Err(Ended::Failed(reason))
}

fn release(store: &mut dyn Store, id: &str) -> Played<()> {
    store.lock()?;
    store.release(id)?;
    store.unlock()
}

/// IPAllocator.Get: the address, or why there is none.
fn take(
    store: &mut dyn Store,
    set: (usize, &RangeSet),
    id: &str,
    wanted: Option<IpAddr>,
) -> Played<Result<IpAddr, String>> {
    store.lock()?;
    let taken = match wanted {
        Some(address) => take_this(store, set, id, address),
        None => take_next(store, set, id),
    }?;
    store.unlock()?;
    Ok(taken)
}

fn take_this(
    store: &mut dyn Store,
    (index, set): (usize, &RangeSet),
    id: &str,
    address: IpAddr,
) -> Played<Result<IpAddr, String>> {
    if set.has_gateway(address) {
        return Ok(Err(format!("requested ip {address} is subnet's gateway")));
    }
    Ok(if store.reserve(id, address, index)? {
        Ok(address)
    } else {
        Err(format!("requested IP address {address} is not available in range set {set}"))
    })
}

fn take_next(
    store: &mut dyn Store,
    (index, set): (usize, &RangeSet),
    id: &str,
) -> Played<Result<IpAddr, String>> {
    // What is no address counts as none.
    let last = store.last_reserved(index)?.and_then(|text| text.parse().ok());
    for address in Walk::after(set, last) {
        if store.reserve(id, address, index)? {
            return Ok(Ok(address));
        }
    }
    Ok(Err(format!("no IP addresses available in range set: {set}")))
}
