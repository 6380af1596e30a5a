//! The leases of an owner among the entries of pools.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{Need, ViewQuery};
use ipam_kit::allocate::owner_index::time;
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::Verb;
use ipnet::IpNet;
use log::warn;

use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::objects::{PoolEntry, Reservation};
use crate::owner_notes::OwnerNote;
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::stamp::OwnerStamp;
use crate::sticky_lease::StickyId;

/// The search for the leases of an owner.
pub(crate) struct OwnerSearch<'a> {
    pub(crate) session: &'a mut LeaseSession,
    pub(crate) owner: &'a Owner,
    /// The note of this node, or of another one with the same state folder.
    pub(crate) note: Option<OwnerNote>,
    /// The leases of the record.
    pub(crate) known: &'a [Lease],
    pub(crate) need: Need,
}

/// An entry of a pool.
pub(crate) struct Seen<'e> {
    pub(crate) subnet: IpNet,
    pub(crate) address: IpAddr,
    pub(crate) id: &'e str,
    pub(crate) allocation: &'e PoolEntry,
}

/// The relation of an entry to the owner.
enum Verdict {
    /// Another one's.
    Foreign,
    /// The owner's lease.
    Own(Box<HeldLease>),
    /// An entry of this container without an interface, of an old release.
    Unnamed(Box<HeldLease>),
}

impl<'a> OwnerSearch<'a> {
    /// Begins a search with the owner's note.
    pub(crate) fn new(
        session: &'a mut LeaseSession,
        query: &ViewQuery<'a>,
        note: Option<OwnerNote>,
    ) -> Self {
        let ViewQuery { owner, known, need, .. } = *query;
        let note = note.filter(|_| session.trusts_notes);
        Self { session, owner, note, known, need }
    }

    /// Returns the owner's leases in these pools.
    ///
    /// # Errors
    /// A reservation cannot be read.
    pub(crate) fn leases(mut self, pools: &BTreeMap<String, ReadPool>) -> Result<Vec<HeldLease>> {
        let (mut held, mut unnamed) = (Vec::new(), Vec::new());
        let mut names = self.names(pools)?;
        for pool in pools.values() {
            for (_, address, allocation) in pool.entries() {
                let (Some(address), Some(id)) = (address, allocation.id.as_deref()) else {
                    continue;
                };
                let seen = Seen { subnet: pool.subnet, address, id, allocation };
                if let Some(id) = StickyId::parse(id) {
                    held.extend(self.judge_sticky(&seen, names.remove(&id).as_ref(), &id)?);
                    continue;
                }
                match self.judge(&seen)? {
                    Verdict::Foreign => {}
                    Verdict::Own(lease) => held.push(*lease),
                    Verdict::Unnamed(lease) => unnamed.push(*lease),
                }
            }
        }
        if self.need == Need::Proof {
            // A call that was killed may leave an object without an entry.
            for lease in names.values() {
                held.extend(self.own_sticky(lease, None)?);
            }
        }
        // An ADD takes another address beside one that may be another interface's.
        if self.need == Need::Proof && held.is_empty() {
            held.extend(self.choose_unnamed(unnamed));
        }
        if self.need == Need::Proof && self.reads_reservations() {
            self.add_reserved(&mut held, pools)?;
        }
        Ok(held)
    }

    fn judge(&mut self, seen: &Seen<'_>) -> Result<Verdict> {
        if seen.id != self.owner.container.as_str() {
            return self.judge_other_sandbox(seen);
        }
        let ifname = seen.allocation.ifname.as_deref();
        if ifname.is_some_and(|ifname| ifname != self.owner.ifname.as_str()) {
            return Ok(Verdict::Foreign);
        }
        // A release reads the present state, which others may have changed since the note.
        if !(self.need == Need::Proof && self.reads_reservations())
            && let Some(verdict) = self.judge_by_note(seen)
        {
            return Ok(verdict);
        }
        if let Some(stamp) = OwnerStamp::of_allocation(seen.allocation) {
            return Ok(match self.is_own(&stamp, seen) {
                true => self.own_by_text(seen, &stamp),
                false => Verdict::Foreign,
            });
        }
        self.judge_by_reservation(seen)
    }

    /// Judges an entry of the owner's container by the reservation of its address, if it has one,
    /// and by the interface that the entry or a note names.
    fn judge_by_reservation(&mut self, seen: &Seen<'_>) -> Result<Verdict> {
        let reservation = match self.reads_reservations() {
            true => self.session.read_reservation(seen.address)?,
            false => None,
        };
        let stamp = reservation.as_ref().and_then(OwnerStamp::of_reservation);
        // A stamp of another container is older than the entry.
        let stamp = stamp.filter(|stamp| stamp.container == seen.id);
        if stamp.as_ref().is_some_and(|stamp| !self.is_own(stamp, seen)) {
            return Ok(Verdict::Foreign);
        }
        let is_its =
            |reservation: &Reservation| stamp.is_some() || reservation.is_of(seen.allocation);
        let is_reserved = reservation.is_some();
        let reservation = reservation.filter(is_its);
        if is_reserved && reservation.is_none() && self.need == Need::Claim {
            // Another pool may give the address to the one that has it reserved.
            self.session.holds_more = true;
            return Ok(Verdict::Foreign);
        }
        let is_named = seen.allocation.ifname.is_some() || self.is_noted(seen.address);
        let is_proved = is_named || stamp.is_some();
        if !is_proved && self.session.notes.is_of_other_attachment(self.owner, seen.address) {
            return Ok(Verdict::Foreign);
        }
        let mark = self.mark(seen, reservation.as_ref());
        let taken = stamp.as_ref().map(|stamp| stamp.taken);
        let held = self.held(seen, mark, taken.or_else(|| self.claimed(seen.address)));
        let held = held.confirmed_by(stamp.as_ref());
        Ok(match is_proved {
            true => Verdict::Own(Box::new(held)),
            false => Verdict::Unnamed(Box::new(held)),
        })
    }

    /// Returns whether an entry of the owner's container has the owner's stamp. A node that lost its
    /// state folder has another name now, and no record: the pod proves the container to its DEL.
    fn is_own(&self, stamp: &OwnerStamp, seen: &Seen<'_>) -> bool {
        if stamp.is_of(self.owner) {
            return true;
        }
        let here = OwnerStamp { node: self.owner.scope.node.clone(), ..stamp.clone() };
        let is_bare = self.session.verb == Verb::Del && self.known.is_empty();
        if !is_bare || !here.is_of(self.owner) {
            return false;
        }
        let podref = &self.session.pod.podref;
        let is_of_pod = !podref.is_empty() && seen.allocation.podref.as_ref() == Some(podref);
        if !is_of_pod {
            warn!(
                "{} stays held by {} of node {}: if this node had that name, release it: \
                 ipam-da-kube release {} --config FILE --yes",
                seen.address, self.owner.container, stamp.node, seen.address
            );
        }
        is_of_pod
    }

    /// Judges an entry by the note of its owner: the owner's, if this node has written the note.
    fn judge_by_note(&self, seen: &Seen<'_>) -> Option<Verdict> {
        let note = self.note.as_ref()?;
        let mut leases = note.leases.iter();
        let lease = leases.find(|lease| lease.address.addr() == seen.address)?;
        if note.node != self.owner.scope.node {
            return Some(Verdict::Foreign);
        }
        let mark = LeaseMark::of(lease).filter(|_| !note.unsure)?;
        let is_of_namespace = mark.namespace == self.session.store.namespace();
        let PoolEntry { ifname, mark: text, .. } = seen.allocation;
        let is_same = text.is_none() || *text == mark.text;
        // Other definitions than those of the note may be in use. An undo names the noted lease.
        let (ifname, kept) = (mark.ifname && ifname.is_some(), mark.kept && text.is_some());
        let held = self.held(seen, mark.clone(), Some(note.taken));
        let held = HeldLease { mark: LeaseMark { ifname, kept, ..mark }, ..held };
        (is_of_namespace && is_same).then(|| Verdict::Own(Box::new(held)))
    }

    /// Returns when the owner began to claim an address that a killed call has not reserved.
    fn claimed(&self, address: IpAddr) -> Option<u64> {
        let note = self.note.as_ref().filter(|note| note.unsure)?;
        let mut leases = note.leases.iter();
        let lease = leases.find(|lease| lease.address.addr() == address)?;
        let mark = LeaseMark::of(lease)?;
        mark.reservation.is_none().then_some(note.confirmed)
    }

    /// Returns whether this node has noted that an address may be the owner's.
    fn is_noted(&self, address: IpAddr) -> bool {
        self.note.as_ref().is_some_and(|note| {
            note.node == self.owner.scope.node
                && note.leases.iter().any(|lease| lease.address.addr() == address)
        })
    }

    /// Judges an entry of another container: the lease of an earlier sandbox of the same pod is the
    /// owner's, if the pod's uid proves it.
    fn judge_other_sandbox(&mut self, seen: &Seen<'_>) -> Result<Verdict> {
        let PoolEntry { podref, ifname, .. } = seen.allocation;
        let pod = self.session.pod.clone();
        let is_same = !pod.podref.is_empty()
            && podref.as_ref() == Some(&pod.podref)
            && ifname.as_deref().is_none_or(|ifname| ifname == self.owner.ifname.as_str());
        if !is_same || (self.need == Need::Proof && self.session.verb != Verb::Check) {
            return Ok(Verdict::Foreign);
        }
        if self.session.verb == Verb::Check {
            // Releases since 0.8 give a pod's address to its next sandbox.
            let mark = self.mark(seen, None);
            return Ok(Verdict::Own(Box::new(self.held(seen, mark, None))));
        }
        let began = self.session.began;
        let is_earlier = |stamp: &OwnerStamp| {
            !pod.uid.is_empty()
                && stamp.pod_uid == pod.uid
                && stamp.network == self.owner.scope.network.as_str()
                && stamp.ifname == self.owner.ifname.as_str()
                && stamp.container == seen.id
                && stamp.confirmed <= began
        };
        if let Some(stamp) = OwnerStamp::of_allocation(seen.allocation) {
            return Ok(match is_earlier(&stamp) {
                true => self.own_by_text(seen, &stamp),
                false => Verdict::Foreign,
            });
        }
        if pod.uid.is_empty() || !self.session.overlap_check {
            return Ok(Verdict::Foreign);
        }
        let reservation = self.session.read_reservation(seen.address)?;
        let stamp = reservation.as_ref().and_then(OwnerStamp::of_reservation);
        Ok(match stamp.filter(is_earlier) {
            Some(stamp) => {
                let mark = self.mark(seen, reservation.as_ref());
                Verdict::Own(Box::new(self.held(seen, mark, Some(stamp.taken))))
            }
            None => Verdict::Foreign,
        })
    }

    /// Chooses the entry that a DEL or CHECK without a record is about, among those of a container
    /// that name no interface: those in the result; the first, as old releases do, if the result has
    /// no address of their pools.
    fn choose_unnamed(&self, mut unnamed: Vec<HeldLease>) -> Vec<HeldLease> {
        let addresses = &self.session.result_addresses;
        let is_shown = |held: &HeldLease| addresses.contains(&held.address());
        let shown_of =
            |held: &HeldLease| addresses.iter().find(|address| held.subnet.contains(*address));
        if unnamed.iter().any(is_shown) {
            unnamed.retain(is_shown);
            return unnamed;
        }
        if unnamed.iter().any(|held| shown_of(held).is_some()) {
            // The fork of whereabouts writes the key of the network address for another one.
            unnamed.retain(|held| held.address() == held.subnet.network());
        }
        unnamed.truncate(1);
        if self.session.verb == Verb::Check {
            for held in &mut unnamed {
                let shown = shown_of(held)
                    .and_then(|address| IpNet::new(*address, held.subnet.prefix_len()).ok());
                held.lease.address = shown.unwrap_or(held.lease.address);
            }
        }
        unnamed
    }

    /// Adds reservations of the owner whose entries are gone: a DEL was interrupted, or an unknown
    /// change took effect late. A release since 0.8 leaves the reservation as it is where it gives
    /// the entry to the next sandbox of the pod.
    fn add_reserved(
        &mut self,
        held: &mut Vec<HeldLease>,
        pools: &BTreeMap<String, ReadPool>,
    ) -> Result<()> {
        let noted = self.note.iter().flat_map(|note| &note.leases);
        let leases = self.known.iter().chain(noted).filter(|lease| LeaseMark::of(lease).is_some());
        let leases: BTreeMap<IpAddr, IpNet> =
            leases.map(|lease| (lease.address.addr(), lease.address.trunc())).collect();
        for (address, subnet) in leases {
            if held.iter().any(|held| held.address() == address) {
                continue;
            }
            let Some(reservation) = self.session.read_reservation(address)? else { continue };
            let stamp = OwnerStamp::of_reservation(&reservation);
            let Some(stamp) = stamp.filter(|stamp| stamp.is_of(self.owner)) else { continue };
            let mut entries = pools.values().flat_map(ReadPool::entries);
            if entries.any(|(_, shown, entry)| shown == Some(address) && reservation.is_of(entry)) {
                continue;
            }
            let (id, allocation) = (self.owner.container.as_str(), &PoolEntry::default());
            let seen = Seen { subnet, address, id, allocation };
            let mark = self.mark(&seen, Some(&reservation));
            let reserved = self.held(&seen, mark, None).confirmed_by(Some(&stamp));
            held.push(HeldLease { in_pool: false, ..reserved });
        }
        Ok(())
    }

    /// Returns whether reservations are read: a CHECK needs none.
    pub(crate) fn reads_reservations(&self) -> bool {
        self.session.overlap_check && self.session.verb != Verb::Check
    }

    pub(crate) fn mark(&self, seen: &Seen<'_>, reservation: Option<&Reservation>) -> LeaseMark {
        LeaseMark {
            namespace: self.session.store.namespace().to_owned(),
            ifname: seen.allocation.ifname.is_some(),
            reservation: reservation.map(ReservationMark::of),
            sticky: None,
            text: None,
            kept: false,
        }
    }

    /// The owner's lease, whose entry has a stamp.
    fn own_by_text(&self, seen: &Seen<'_>, stamp: &OwnerStamp) -> Verdict {
        let text = seen.allocation.mark.clone();
        let mark = LeaseMark { text, kept: true, ..self.mark(seen, None) };
        Verdict::Own(Box::new(self.held(seen, mark, Some(stamp.taken))))
    }

    pub(crate) fn held(&self, seen: &Seen<'_>, mark: LeaseMark, taken: Option<u64>) -> HeldLease {
        let lease = mark.lease(seen.subnet, seen.address);
        HeldLease {
            lease: Lease { taken: taken.map(time), store: self.session.cluster.clone(), ..lease },
            mark,
            subnet: seen.subnet,
            id: seen.id.to_owned(),
            ifname: seen.allocation.ifname.clone(),
            in_pool: true,
        }
    }
}
