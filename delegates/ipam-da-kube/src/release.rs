//! The release of leases: the reservation first, then the entry of the pool.
//!
//! The reservation guards the release by its state. A call that is killed between both leaves an
//! entry without a reservation, which a later call of its owner finds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipam_kit::allocate::removal::{may_be_held, removed_unless_failed};
use ipam_kit::cni::Verb;
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::freed_notes::note_of;
use crate::lease_mark::ReservationMark;
use crate::memory::PoolNote;
use crate::objects::{IpPool, PoolEntry};
use crate::patch::{ExpectedEntry, Patch};
use crate::pools_token::HeldLease;
use crate::session::LeaseSession;
use crate::store::Outcome;

/// How often a release is sent again at most: after an unknown outcome, or after a change of
/// another entry that it removes together with this one.
const TRIES: usize = 8;

/// How many times a release also tries to note when it freed the addresses.
const NOTING_TRIES: usize = 2;

/// How many leases are released together: other calls of this node wait for their turn meanwhile.
/// The server refuses patches of more than 10,000 operations, of which each entry takes up to four.
const PART: usize = 100;

/// The pool and the address of a lease.
type Place = (IpNet, IpAddr);

/// The leases that a release did not release. All others are released.
#[derive(Debug, Default)]
pub(crate) struct Unreleased {
    /// Another call has confirmed or taken them.
    pub(crate) changed: BTreeSet<Place>,
    /// They were released before.
    gone: BTreeSet<Place>,
    /// Their release failed.
    failed: BTreeSet<Place>,
    /// Those whose pool does not show that the cluster is theirs.
    unproved: BTreeMap<Place, Lease>,
    errors: Vec<Error>,
}

impl Unreleased {
    /// Returns the leases that were not found, and whose pools do not show that the cluster is theirs.
    pub(crate) fn unproved(&self) -> impl Iterator<Item = &Lease> {
        let unproved = self.unproved.iter();
        unproved.filter_map(|(place, lease)| self.gone.contains(place).then_some(lease))
    }

    /// Notes which leases a pool, missing or not, does not prove.
    fn compare(&mut self, leases: &[HeldLease], noted: &PoolNote, seen: Option<&IpPool>) {
        let seen = seen.map(|pool| &pool.metadata);
        for held in leases.iter().filter(|held| !noted.proves(seen, &held.lease)) {
            self.unproved.insert(held.place(), held.lease.clone());
        }
    }

    fn fail<'l>(&mut self, leases: impl IntoIterator<Item = &'l HeldLease>, error: Error) {
        self.failed.extend(leases.into_iter().map(HeldLease::place));
        self.errors.push(error);
    }
}

/// The outcome of the removal of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    Done,
    /// It was missing.
    Gone,
    /// It is in another state.
    Changed,
}

/// The outcome of the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedHold {
    /// The address stays with the name for a time.
    Kept,
    /// The object is gone: entry and reservation can be removed.
    Over,
    /// Another call has the name, or has confirmed it.
    Changed,
}

impl LeaseSession {
    /// Releases leases, each if it is in the state that was seen.
    ///
    /// # Errors
    /// Some could not be released, or the outcome is unknown. The others are released.
    pub(crate) fn release(&mut self, leases: &[HeldLease]) -> Result<Unreleased> {
        let mut unreleased = self.try_release(leases);
        Error::join(std::mem::take(&mut unreleased.errors))?;
        Ok(unreleased)
    }

    /// Releases a lease of a pool at which this call has the turn.
    ///
    /// # Errors
    /// It could not be released, or the outcome is unknown.
    pub(crate) fn release_in_turn(&mut self, lease: HeldLease) -> Result<()> {
        let mut unreleased = Unreleased::default();
        self.release_part(&[lease], &mut unreleased);
        Error::join(unreleased.errors)
    }

    /// Removes entries that a scan showed, and returns those removed.
    ///
    /// # Errors
    /// Some could not be removed. The others are, which the error says.
    pub(crate) fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let leases: Vec<(&Entry, HeldLease)> =
            entries.iter().filter_map(|entry| Some((entry, HeldLease::of_entry(entry)?))).collect();
        for (entry, held) in &leases {
            entry.holder.iter().for_each(|holder| self.notes.remember_release(holder, &held.lease));
        }
        let mut held: Vec<HeldLease> = leases.iter().map(|(_, held)| held.clone()).collect();
        if self.verb != Verb::Gc {
            // A person wants the address free, whatever name it is kept for.
            let sticky = held.iter_mut().filter_map(|held| held.mark.sticky.as_mut());
            sticky.for_each(|sticky| sticky.keep_seconds = 0);
        }
        let Unreleased { changed, gone, failed, mut errors, .. } = self.try_release(&held);
        let is_kept = |entry: &Entry| matches!(entry.fault, Some(Fault::Kept(_)));
        let unowned = entries.iter().filter(|entry| entry.holder.is_none() && !is_kept(entry));
        errors.extend(unowned.map(|entry| self.without_id(entry.lease.address)));
        let mut removed = Vec::new();
        for (entry, held) in leases {
            let place = held.place();
            if changed.contains(&place) || failed.contains(&place) {
                continue;
            }
            if let Some(Holder { container, ifname: Some(ifname), .. }) = &entry.holder {
                self.notes.forget(container, ifname);
            }
            if !gone.contains(&place) {
                removed.push(entry.clone());
            }
        }
        removed_unless_failed(removed, errors)
    }

    /// The error of an entry that no guarded change can remove.
    fn without_id(&self, address: IpNet) -> Error {
        let pool = self.pool_of(address.trunc());
        let message = format!("the entry of {} in the IPPool {pool} has no id", address.addr());
        Error::new(ErrorCode::BACKEND, message)
            .advise("make sure that the address is free, and remove the entry with kubectl edit")
    }

    /// Releases leases. After an error the others are still tried.
    fn try_release(&mut self, leases: &[HeldLease]) -> Unreleased {
        let mut unreleased = Unreleased::default();
        for part in leases.chunks(PART) {
            let in_pools = part.iter().filter(|lease| lease.in_pool);
            let names = in_pools.map(|lease| self.pool_of(lease.subnet)).collect();
            // Hundreds of containers of a drained node would meet at the server.
            let _turns = self.locks.take(&names);
            self.release_part(part, &mut unreleased);
        }
        unreleased
    }

    fn release_part(&mut self, leases: &[HeldLease], unreleased: &mut Unreleased) {
        let mut pools: BTreeMap<IpNet, Vec<HeldLease>> = BTreeMap::new();
        for lease in leases {
            if let Some(sticky) = &lease.mark.sticky {
                match self.end_hold(lease.address(), sticky) {
                    Ok(EndedHold::Over) => {}
                    Ok(EndedHold::Kept) => continue,
                    Ok(EndedHold::Changed) => {
                        unreleased.changed.insert(lease.place());
                        continue;
                    }
                    Err(error) => {
                        unreleased.fail([lease], error);
                        continue;
                    }
                }
            }
            let removed = match &lease.mark.reservation {
                Some(seen) => self.delete_reservation(lease.address(), seen),
                None if self.is_confirmed_since(lease) => Ok(Removed::Changed),
                None => Ok(Removed::Gone),
            };
            match removed {
                Ok(Removed::Done) => {}
                Ok(Removed::Gone) => drop(unreleased.gone.insert(lease.place())),
                Ok(Removed::Changed) => {
                    unreleased.changed.insert(lease.place());
                    continue;
                }
                Err(error) => {
                    unreleased.fail([lease], error);
                    continue;
                }
            }
            if lease.in_pool {
                pools.entry(lease.subnet).or_default().push(lease.clone());
            }
        }
        for (subnet, mut leases) in pools {
            if let Err(error) = self.remove_entries(subnet, &mut leases, unreleased) {
                unreleased.fail(&leases, error);
            }
        }
    }

    /// Returns whether a note shows that a lease was confirmed since it was seen.
    pub(crate) fn is_confirmed_since(&self, seen: &HeldLease) -> bool {
        self.notes.is_confirmed_since(&seen.id, seen.address(), &seen.mark)
    }

    /// Deletes a reservation that is in a certain state.
    pub(crate) fn delete_reservation(
        &mut self,
        address: IpAddr,
        seen: &ReservationMark,
    ) -> Result<Removed> {
        let name = self.names.reservation(address);
        let mut missing = Removed::Gone;
        for _ in 0..TRIES {
            match self.store.delete_reservation(&name, seen)? {
                Outcome::Done(_) => return Ok(Removed::Done),
                Outcome::Missing => return Ok(missing),
                Outcome::Lost => {}
                Outcome::Unknown => missing = Removed::Done,
            }
            match self.read_reservation(address)? {
                None => return Ok(missing),
                Some(present) if ReservationMark::of(&present) == *seen => {}
                Some(_) => return Ok(Removed::Changed),
            }
        }
        Err(may_be_held([address]))
    }

    /// Removes entries of a pool. `unreleased` has those without a reservation as gone. After an
    /// error, `left` has those that may remain.
    fn remove_entries(
        &mut self,
        subnet: IpNet,
        left: &mut Vec<HeldLease>,
        unreleased: &mut Unreleased,
    ) -> Result<()> {
        let name = self.pool_of(subnet);
        let mut is_unknown = false;
        let mut lacks_annotations = false;
        let mut noting_tries = if self.cooldown.is_zero() { 0 } else { NOTING_TRIES };
        for _ in 0..TRIES {
            let mut patch = Patch::default();
            for lease in &*left {
                patch.remove_entry(&lease.key(), &expected(lease));
            }
            // A pool without annotations is read once; after that the release comes first.
            let is_noting = noting_tries > 0;
            if is_noting {
                noting_tries -= 1;
                let notes = left.iter().map(|lease| note_of(&lease.key())).collect();
                patch.add_annotations(&notes, lacks_annotations);
            }
            let outcome = match self.store.patch_pool_quietly(&name, &patch) {
                // Others' annotations may leave no room for notes.
                Err(error) if is_noting && is_refusal(&error) => {
                    noting_tries = 0;
                    continue;
                }
                outcome => outcome?,
            };
            match outcome {
                Outcome::Done(head) => {
                    self.remember_pool(&name, &head.metadata);
                    for lease in &*left {
                        unreleased.gone.remove(&lease.place());
                    }
                    return Ok(());
                }
                Outcome::Missing => {
                    unreleased.compare(left, &PoolNote::default(), None);
                    return Ok(());
                }
                Outcome::Lost => {}
                Outcome::Unknown => is_unknown = true,
            }
            // Another call of this node may see a later state meanwhile.
            let noted = self.memory.pool(&name);
            let pool = self.store.read_pool(&name)?;
            unreleased.compare(left, &noted, pool.as_ref());
            let Some(pool) = pool else { return Ok(()) };
            lacks_annotations = pool.metadata.annotations.is_empty();
            let mut given_on = Vec::new();
            left.retain_mut(|lease| match compare(&pool, lease) {
                Present::Same => true,
                Present::Gone => {
                    if !unreleased.gone.contains(&lease.place()) {
                        given_on.extend(next_of_pod(&pool, lease).map(|e| (lease.address(), e)));
                    }
                    if is_unknown {
                        unreleased.gone.remove(&lease.place());
                    }
                    false
                }
                Present::Changed => {
                    unreleased.changed.insert(lease.place());
                    false
                }
            });
            for (address, entry) in given_on {
                let reserved = self.reserve_again(address, &entry);
                unreleased.errors.extend(reserved.err());
            }
            if left.is_empty() {
                return Ok(());
            }
        }
        Err(may_be_held(left.iter().map(HeldLease::address)))
    }
}

impl LeaseSession {
    /// Makes the reservation of an entry that a release of whereabouts gave to the next sandbox of
    /// its pod. The reservation remained that of the earlier sandbox, and was deleted with it.
    fn reserve_again(&mut self, address: IpAddr, entry: &PoolEntry) -> Result<()> {
        let name = self.names.reservation(address);
        for _ in 0..TRIES {
            match self.store.create_plain_reservation(&name, entry)? {
                Outcome::Done(_) | Outcome::Lost | Outcome::Missing => return Ok(()),
                Outcome::Unknown => {}
            }
        }
        Ok(())
    }
}

/// Returns the present entry of an address if it is of the same pod's interface, as far as the
/// entry tells: releases since 0.8, which write the interface, replace the id alone.
fn next_of_pod(pool: &IpPool, lease: &HeldLease) -> Option<PoolEntry> {
    let entry = pool.allocation(&lease.key())?;
    let is_next = entry.ifname.is_some()
        && entry.ifname == lease.ifname
        && entry.podref.as_ref().is_some_and(|podref| !podref.is_empty());
    is_next.then(|| entry.clone())
}

/// Returns whether a server has refused a change.
fn is_refusal(error: &Error) -> bool {
    [ErrorCode::BACKEND, ErrorCode::EXHAUSTED].contains(&error.code())
}

/// The present state of an entry.
enum Present {
    Same,
    /// Released, or another owner's.
    Gone,
    /// Confirmed by another call.
    Changed,
}

/// Compares the entry of a lease with that of the pool, and takes over what the CRD keeps of it.
fn compare(pool: &IpPool, lease: &mut HeldLease) -> Present {
    let Some(PoolEntry { id, ifname, mark, .. }) = pool.allocation(&lease.key()) else {
        return Present::Gone;
    };
    let same_ifname = match (ifname, &lease.ifname) {
        (Some(present), Some(seen)) => present == seen,
        _ => true,
    };
    if id.as_ref() != Some(&lease.id) || !same_ifname {
        return Present::Gone;
    }
    if lease.mark.kept && mark != &lease.mark.text {
        return Present::Changed;
    }
    lease.ifname.clone_from(ifname);
    Present::Same
}

/// Returns the entry that a lease has in its pool.
pub(crate) fn expected(lease: &HeldLease) -> ExpectedEntry<'_> {
    ExpectedEntry {
        id: &lease.id,
        ifname: lease.ifname.as_deref(),
        mark: lease.mark.text.as_deref().filter(|_| lease.mark.kept),
    }
}
