//! A commit: claims, then leases that stay, then leases to release.

use std::collections::BTreeMap;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Change, Commit};
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::removal::may_be_held;
use ipam_kit::allocate::{Lease, Owner};

use crate::claim::{Claimed, Claiming};
use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::objects::PoolEntry;
use crate::patch::Patch;
use crate::pools_token::{HeldLease, PoolsToken};
use crate::read_pool::ReadPool;
use crate::release::expected;
use crate::session::LeaseSession;
use crate::stamp::OwnerStamp;
use crate::sticky_lease::StickyId;
use crate::store::Outcome;

/// Makes a change, all of it or nothing.
///
/// # Errors
/// The change was not made; or a part of it could not be taken back, which the error says.
pub(crate) fn commit(
    session: &mut LeaseSession,
    owner: &Owner,
    seen: PoolsToken,
    change: &Change<'_>,
) -> Result<Commit<PoolsToken>> {
    let PoolsToken { held, pools, others, taken, turns } = seen;
    let shown = [&pools, &others];
    let mut claiming = Claiming::new(session, owner, shown, taken);
    let claimed = match claiming.run(change, turns)? {
        Claimed::Done(claimed) => claimed,
        Claimed::Lost(taken) => return Ok(Commit::Lost { taken, view: None }),
        Claimed::Outdated => return Ok(Commit::Outdated),
        Claimed::Unknown => return Ok(Commit::Unknown),
    };
    let kept = match confirm_and_release(claiming.session, owner, shown, &held, change) {
        Ok(Outcome::Done(kept)) => kept,
        Ok(Outcome::Unknown) => return Ok(Commit::Unknown),
        failed => {
            // Leases that were to stay may have changed: the note stays unsure.
            claiming.noted = None;
            let taken_back = claiming.take_back();
            if let Err(error) = failed {
                return Err(error.and(taken_back.err()));
            }
            taken_back?;
            return Ok(Commit::Lost { taken: Vec::new(), view: None });
        }
    };
    if let Some(cluster) = session.cluster.clone().filter(|_| !claimed.is_empty()) {
        session.memory.remember_cluster(&cluster);
    }
    for (claim, lease) in change.claim.iter().zip(&claimed) {
        session.remember_cursor(claim.request, lease.address.addr());
    }
    remember(session, owner, change, &kept, &claimed);
    Ok(Commit::Done { kept, claimed })
}

/// Confirms the leases that stay, and then releases the others. Returns those that stay.
fn confirm_and_release(
    session: &mut LeaseSession,
    owner: &Owner,
    shown: [&BTreeMap<String, ReadPool>; 2],
    held: &[HeldLease],
    change: &Change<'_>,
) -> Result<Outcome<Vec<Lease>>> {
    let held_of = |lease: &Lease| {
        let address = lease.address.addr();
        held.iter().find(|held| held.address() == address)
    };
    let mut kept = Vec::new();
    let noted = match change.keep.is_empty() {
        true => None,
        false => session.notes.doubt(owner, Vec::new()),
    };
    // The note of a claim that was killed is unsure: it may have left other pools unchanged.
    let noted = noted.filter(|note| note.node == owner.scope.node && session.trusts_notes);
    for lease in &change.keep {
        let Some(mut seen) = held_of(lease).cloned() else { continue };
        // The entry comes first: what a kill leaves is the owner's by the entry.
        if session.overlap_check && !session.inherit(owner, &mut seen)? {
            return Ok(Outcome::Lost);
        }
        match session.confirm_and_hold(owner, &seen)? {
            Outcome::Done(mark) => {
                let is_complete = noted.as_ref().is_some_and(|note| note.has_complete(lease));
                // A reservation that had to be made again protected nothing meanwhile.
                if let Some(own) = mark.reservation.as_ref()
                    && !(is_complete && seen.mark.has_reservation(own))
                    && !session.is_free_elsewhere(shown, seen.place(), own)?
                {
                    // As a new claim does: the other holder's DEL deletes the reservation.
                    session.release(&[HeldLease { mark, ..seen }])?;
                    return Ok(Outcome::Lost);
                }
                let store = session.cluster.clone();
                kept.push(Lease { revision: mark.to_json(), store, ..lease.clone() });
            }
            Outcome::Lost | Outcome::Missing => return Ok(Outcome::Lost),
            Outcome::Unknown => return Ok(Outcome::Unknown),
        }
    }
    let doomed: Vec<HeldLease> = change.drop.iter().filter_map(held_of).cloned().collect();
    let unreleased = session.release(&doomed)?;
    if !unreleased.changed.is_empty() {
        session.trusts_notes = false;
        return Ok(Outcome::Lost);
    }
    session.prove_clusters(unreleased.unproved())?;
    Ok(Outcome::Done(kept))
}

impl LeaseSession {
    /// Writes an owner into a lease that was seen: its own, or one that it takes over. The
    /// reservation decides; without reservations, the entry.
    pub(crate) fn confirm(
        &mut self,
        owner: &Owner,
        seen: &HeldLease,
    ) -> Result<Outcome<LeaseMark>> {
        let confirmed = self.confirm_as_seen(owner, seen)?;
        // A note may have shown an earlier state.
        self.trusts_notes &= matches!(confirmed, Outcome::Done(_));
        Ok(confirmed)
    }

    /// Writes an owner into its own lease, and then into the object of its sticky name: a DEL that
    /// comes between has seen the object as this call has, so whichever comes second finds another
    /// version of it, and fails.
    fn confirm_and_hold(&mut self, owner: &Owner, seen: &HeldLease) -> Result<Outcome<LeaseMark>> {
        let confirmed = self.confirm(owner, seen)?;
        let (Outcome::Done(mark), Some(sticky)) = (&confirmed, &seen.mark.sticky) else {
            return Ok(confirmed);
        };
        let held = self.hold_again(owner, sticky);
        if let Ok(Outcome::Done(sticky)) = held {
            return Ok(Outcome::Done(LeaseMark { sticky: Some(sticky), ..mark.clone() }));
        }
        self.trusts_notes = false;
        // A DEL that has removed object and reservation does not see the one that was made again.
        let made = mark.reservation.as_ref().filter(|made| !seen.mark.has_reservation(made));
        let deleted = match made {
            Some(made) => self.delete_reservation(seen.address(), made).map(drop),
            None => Ok(()),
        };
        match held {
            Ok(outcome) => deleted.map(|()| outcome.map(|_| mark.clone())),
            Err(error) => Err(error.and(deleted.err())),
        }
    }

    /// Writes the id of the owner into an entry of its pod's earlier sandbox; false if the entry has
    /// changed.
    fn inherit(&mut self, owner: &Owner, seen: &mut HeldLease) -> Result<bool> {
        if seen.id == owner.container.as_str() || seen.mark.sticky.is_some() {
            return Ok(true);
        }
        let stamp = OwnerStamp::of(owner, seen.subnet, &self.pod.uid, now(), now());
        self.notes.doubt(owner, vec![seen.lease.clone()]);
        let is_replaced = self.replace_id(&stamp, seen)?;
        seen.id = stamp.container;
        Ok(is_replaced)
    }

    fn confirm_as_seen(&mut self, owner: &Owner, seen: &HeldLease) -> Result<Outcome<LeaseMark>> {
        let taken = seen.lease.taken.and_then(milliseconds).unwrap_or_else(now);
        let mut stamp = OwnerStamp::of(owner, seen.subnet, &self.pod.uid, taken, now());
        stamp.container = seen.mark.id(&stamp.container);
        if !self.overlap_check {
            return self.confirm_entry(seen, &stamp);
        }
        let name = self.names.reservation(seen.address());
        let podref = self.pod.podref.clone();
        let mut mark = seen.mark.clone();
        if seen.id != stamp.container {
            // A call that is killed between both objects leaves a reservation that only a note shows.
            self.notes.doubt(owner, vec![seen.lease.clone()]);
        }
        let outcome = match &seen.mark.reservation {
            Some(reservation) => {
                let mut patch = Patch::default();
                patch.restamp(reservation, &podref, &stamp);
                self.store.patch_reservation(&name, &patch)?
            }
            None => Outcome::Missing,
        };
        let outcome = match outcome {
            // The cleaners of old releases delete reservations, as an interrupted DEL does.
            Outcome::Missing => self.store.create_reservation(&name, &podref, &stamp)?,
            other => other,
        };
        let written = match outcome {
            Outcome::Done(head) => ReservationMark::of_metadata(&head.metadata),
            Outcome::Unknown => return Ok(Outcome::Unknown),
            Outcome::Lost | Outcome::Missing => match self.reserved_before(owner, seen)? {
                Some(written) => written,
                None => return Ok(Outcome::Lost),
            },
        };
        if seen.id != stamp.container {
            match self.replace_id(&stamp, seen) {
                Ok(true) => {}
                Ok(false) => {
                    self.delete_reservation(seen.address(), &written)?;
                    return Ok(Outcome::Lost);
                }
                Err(error) => {
                    let deleted = self.delete_reservation(seen.address(), &written);
                    return Err(error.and(deleted.err()));
                }
            }
        }
        mark.reservation = Some(written);
        Ok(Outcome::Done(mark))
    }

    /// Returns the reservation that an interrupted call of the owner has made of another's entry.
    fn reserved_before(
        &mut self,
        owner: &Owner,
        seen: &HeldLease,
    ) -> Result<Option<ReservationMark>> {
        if seen.id == owner.container.as_str() || seen.mark.reservation.is_some() {
            return Ok(None);
        }
        let present = self.read_reservation(seen.address())?;
        let own = present.filter(|present| {
            OwnerStamp::of_reservation(present).is_some_and(|stamp| stamp.is_of(owner))
        });
        Ok(own.as_ref().map(ReservationMark::of))
    }

    /// Confirms the entry of a lease without a reservation, as far as the CRD keeps the mark.
    fn confirm_entry(
        &mut self,
        seen: &HeldLease,
        stamp: &OwnerStamp,
    ) -> Result<Outcome<LeaseMark>> {
        let text = Some(self.new_text(stamp));
        let mark = LeaseMark { text: text.clone(), reservation: None, ..seen.mark.clone() };
        // Also if the CRD drops the text: the tests show that the entry is still the owner's.
        let mut patch = Patch::default();
        patch.replace_entry(&seen.key(), &expected(seen), &self.entry(stamp, text));
        let outcome = self.store.patch_pool_quietly(&self.pool_of(seen.subnet), &patch)?;
        Ok(outcome.map(|_| mark))
    }

    /// Writes the id of the present sandbox into the entry of an earlier one; false if the entry
    /// has changed.
    fn replace_id(&mut self, stamp: &OwnerStamp, seen: &HeldLease) -> Result<bool> {
        let name = self.pool_of(seen.subnet);
        let key = seen.key();
        let mut patch = Patch::default();
        patch.replace_entry(&key, &expected(seen), &self.entry(stamp, None));
        for _ in 0..TRIES {
            match self.store.patch_pool_quietly(&name, &patch)? {
                Outcome::Done(_) => return Ok(true),
                Outcome::Missing => return Ok(false),
                Outcome::Lost | Outcome::Unknown => {}
            }
            let pool = self.store.read_pool(&name)?;
            let id = pool.as_ref().and_then(|pool| pool.allocation(&key)?.id.clone());
            if id.as_ref() == Some(&stamp.container) {
                return Ok(true);
            }
            if id.as_ref() != Some(&seen.id) {
                return Ok(false);
            }
        }
        Err(may_be_held([seen.address()]))
    }

    /// Makes the entry of a lease. One without a reservation has this delegate's member.
    pub(crate) fn entry(&self, stamp: &OwnerStamp, text: Option<String>) -> PoolEntry {
        let id = Some(stamp.container.clone());
        if StickyId::parse(&stamp.container).is_some() {
            // It stays while one holder comes after the other, and no cleaner of whereabouts knows it.
            return PoolEntry {
                id,
                podref: Some(String::new()),
                ifname: Some(String::new()),
                mark: text,
            };
        }
        PoolEntry {
            id,
            podref: Some(self.pod.podref.clone()),
            ifname: Some(stamp.ifname.clone()),
            mark: text,
        }
    }
}

/// How often a change is sent again at most.
const TRIES: usize = 4;

/// Notes what the owner holds now.
fn remember(
    session: &LeaseSession,
    owner: &Owner,
    change: &Change<'_>,
    kept: &[Lease],
    claimed: &[Lease],
) {
    let leases: Vec<Lease> = kept.iter().chain(claimed).chain(&change.leave).cloned().collect();
    if leases.is_empty() || session.holds_more {
        return session.notes.forget(owner.container.as_str(), owner.ifname.as_str());
    }
    let before = change.keep.iter().chain(&change.leave).filter_map(|lease| lease.taken);
    let taken = before.filter_map(milliseconds).min().unwrap_or_else(now);
    session.notes.remember(owner, taken, leases);
}

fn milliseconds(time: std::time::SystemTime) -> Option<u64> {
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}
