//! The sticky leases of an owner among the entries of pools.

use std::collections::{BTreeMap, BTreeSet};

use ipam_kit::Result;
use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::Need;
use ipam_kit::cni::Verb;
use ipam_kube::is_unserved;

use crate::lease_mark::LeaseMark;
use crate::objects::PoolEntry;
use crate::owner_search::{OwnerSearch, Seen};
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::stamp::OwnerStamp;
use crate::sticky_claim::{edited, sticky_of_container};
use crate::sticky_lease::{StickyId, StickyLease, StickyMark};
use crate::sticky_view::moved_by_hand;

impl OwnerSearch<'_> {
    /// Returns the objects of sticky names that the owner may have: for a claim those that it has
    /// read, else those of the record and of the note, which is written before an object. Without
    /// both, those of the container are listed if the pool has any.
    pub(crate) fn names(
        &mut self,
        pools: &BTreeMap<String, ReadPool>,
    ) -> Result<BTreeMap<StickyId, StickyLease>> {
        if self.need == Need::Claim {
            let read = self.session.sticky.values().flatten().cloned();
            return Ok(read.map(|lease| (lease.id(), lease)).collect());
        }
        let noted = self.note.iter().flat_map(|note| &note.leases);
        let marks = self.known.iter().chain(noted).filter_map(LeaseMark::of);
        let named: BTreeSet<String> = marks.filter_map(|mark| Some(mark.sticky?.object)).collect();
        if self.known.is_empty() && self.note.is_none() {
            let mut entries = pools.values().flat_map(ReadPool::entries);
            let is_shown = entries.any(|(_, _, entry)| {
                entry.id.as_deref().is_some_and(|id| StickyId::parse(id).is_some())
            });
            let labels = sticky_of_container(self.owner.container.as_str());
            return if is_shown { self.session.sticky_with(&labels) } else { Ok(BTreeMap::new()) };
        }
        let mut names = BTreeMap::new();
        for object in named {
            match self.session.store.read_sticky(&object) {
                Ok(lease) => names.extend(lease.map(|lease| (lease.id(), lease))),
                Err(error) if is_unserved(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Judges the entry of a sticky lease by its object, or before a claim by the owner's note.
    pub(crate) fn judge_sticky(
        &mut self,
        seen: &Seen<'_>,
        lease: Option<&StickyLease>,
        id: &StickyId,
    ) -> Result<Option<HeldLease>> {
        if let Some(lease) = lease {
            return self.own_sticky(lease, Some(seen));
        }
        if self.need == Need::Proof {
            return self.rest(seen, id);
        }
        let is_unread = !self.session.sticky.contains_key(&id.object);
        let Some(note) = self.note.as_ref().filter(|_| is_unread) else { return Ok(None) };
        let mut leases = note.leases.iter();
        let lease = leases.find(|lease| lease.address.addr() == seen.address);
        let mark = lease.and_then(LeaseMark::of).filter(|mark| {
            mark.sticky.as_ref().is_some_and(|sticky| sticky.id() == *id)
                && mark.namespace == self.session.store.namespace()
                && note.node == self.owner.scope.node
                && !note.unsure
        });
        Ok(lease.zip(mark).map(|(lease, mark)| {
            let held = self.held(seen, mark, Some(note.taken));
            HeldLease { lease: Lease { sticky: lease.sticky.clone(), ..held.lease }, ..held }
        }))
    }

    /// Returns the lease of a sticky name that the owner holds.
    ///
    /// # Errors
    /// A person has edited the object, so that it does not tell; the server does not answer, or refuses.
    pub(crate) fn own_sticky(
        &mut self,
        lease: &StickyLease,
        seen: Option<&Seen<'_>>,
    ) -> Result<Option<HeldLease>> {
        if self.need == Need::Proof && self.may_be_own(lease) {
            lease.readable().map_err(|fault| edited(lease, &fault))?;
        }
        let Some((spec, holder)) = lease.held() else { return Ok(None) };
        let is_bare = self.session.verb == Verb::Del && self.known.is_empty();
        // A node that lost its state folder has another name now: the pod proves the container.
        let is_of_pod = !holder.pod.is_empty() && holder.pod == self.session.pod.podref;
        let is_here = holder.node == self.owner.scope.node || (is_bare && is_of_pod);
        if !holder.is_on_any_node(self.owner) || !is_here {
            return Ok(None);
        }
        if let Some(seen) = seen.filter(|seen| seen.address != spec.address) {
            return match self.need {
                Need::Proof => Err(moved_by_hand(lease, spec.address, seen.address)),
                Need::Claim => Ok(None),
            };
        }
        let reservation = match self.reads_reservations() {
            true => self.session.read_reservation(spec.address)?,
            false => None,
        };
        let id = lease.id().to_string();
        let reservation = reservation.filter(|it| it.has_id(&id));
        let stamp = reservation.as_ref().and_then(OwnerStamp::of_reservation);
        let nothing = PoolEntry::default();
        let allocation = seen.map_or(&nothing, |seen| seen.allocation);
        let shown = Seen { subnet: spec.range, address: spec.address, id: &id, allocation };
        let mark = self.mark(&shown, reservation.as_ref());
        let mark = LeaseMark { sticky: Some(lease.mark()), ..mark };
        let held = self.held(&shown, mark, stamp.as_ref().map(|stamp| stamp.taken));
        let held = held.confirmed_by(stamp.as_ref());
        let lease = Lease { sticky: Some(spec.name.clone()), ..held.lease };
        Ok(Some(HeldLease { lease, in_pool: seen.is_some(), ..held }))
    }

    /// Returns whether record or note name this very object; without both it was found by the owner's
    /// container. A claim that was killed knows no uid.
    fn may_be_own(&self, lease: &StickyLease) -> bool {
        let noted = self.note.iter().flat_map(|note| &note.leases);
        let mut marks = self.known.iter().chain(noted).filter_map(LeaseMark::of);
        let is_of = |mark: StickyMark| {
            mark.object == lease.metadata.name
                && (mark.uid.is_empty() || mark.uid == lease.metadata.uid)
        };
        (self.known.is_empty() && self.note.is_none())
            || marks.any(|mark| mark.sticky.is_some_and(is_of))
    }

    /// Returns what is left of a sticky lease of the owner whose object is gone: a DEL was
    /// interrupted.
    fn rest(&mut self, seen: &Seen<'_>, id: &StickyId) -> Result<Option<HeldLease>> {
        // The uid of the object proves it, also by a note whose other words are not trusted.
        let note = self.session.notes.of(self.owner);
        let noted = note.iter().flat_map(|note| &note.leases);
        let mut marks = self.known.iter().chain(noted).filter_map(LeaseMark::of);
        let is_own = marks.any(|mark| mark.sticky.is_some_and(|sticky| sticky.id() == *id));
        if !is_own || !self.reads_reservations() {
            return Ok(None);
        }
        let present = self.session.store.read_sticky(&id.object)?;
        if present.is_some_and(|present| present.metadata.uid == id.uid) {
            return Ok(None);
        }
        let reservation = self.session.read_reservation(seen.address)?;
        let own = reservation.filter(|it| it.has_id(seen.id));
        let mark = self.mark(seen, own.as_ref());
        let stamp = own.as_ref().and_then(OwnerStamp::of_reservation);
        Ok(Some(self.held(seen, mark, None).confirmed_by(stamp.as_ref())))
    }
}
