//! Claims: an entry in the pool of each address, then a reservation of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Change, Claim, Entry, Taken};
use ipam_kit::allocate::owner_index::{now, time};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::freed_notes::{remove_notes, tidy};
use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::names::offset_of;
use crate::objects::PoolEntry;
use crate::owner_notes::OwnerNote;
use crate::patch::Patch;
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::stamp::OwnerStamp;
use crate::sticky_lease::{StickyMark, StickySpec, WantedSticky};
use crate::store::Outcome;

/// The claims of a commit.
pub(crate) struct Claiming<'a> {
    pub(crate) session: &'a mut LeaseSession,
    pub(crate) owner: &'a Owner,
    /// The requested pools, and others that were read.
    pub(crate) pools: &'a BTreeMap<String, ReadPool>,
    pub(crate) others: &'a BTreeMap<String, ReadPool>,
    taken: BTreeSet<IpAddr>,
    /// The owner's note before the claims, if they have changed it.
    pub(crate) noted: Option<Option<OwnerNote>>,
    /// The leases taken so far, by the number of the claim: an entry, then also its reservation.
    pub(crate) held: BTreeMap<usize, HeldLease>,
    /// The sticky names taken so far that had an object before, with what that said.
    pub(crate) renewed: BTreeMap<usize, (StickyMark, StickySpec)>,
}

/// The outcome of all claims of a commit.
pub(crate) enum Claimed {
    /// The leases, in the order of the claims.
    Done(Vec<Lease>),
    Lost(Vec<Taken>),
    /// The object of a sticky name is another one than the view has shown.
    Outdated,
    Unknown,
}

/// An address that a claim takes.
pub(crate) struct ChosenAddress<'c> {
    pub(crate) claim: &'c Claim<'c>,
    pub(crate) index: usize,
    pub(crate) address: IpAddr,
    pub(crate) subnet: IpNet,
    key: u64,
    /// The owner; that of a sticky lease, as soon as its name is held.
    pub(crate) stamp: OwnerStamp,
    pub(crate) wanted: Option<WantedSticky>,
    pub(crate) sticky: Option<StickyMark>,
    /// This delegate's member of the entry, without reservations.
    text: Option<String>,
}

impl ChosenAddress<'_> {
    /// Returns whether the pool has the entry of the name's object at the address.
    fn is_entered(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.entered.is_some())
    }

    /// Returns whether the fork of whereabouts may give this address under the key of the network
    /// address, as it does with the first one of a range.
    fn may_be_first(&self) -> bool {
        let is_start = self.claim.set.ranges().iter().any(|range| range.start() == self.address);
        self.address.is_ipv4() && (self.key == 1 || is_start)
    }
}

impl<'a> Claiming<'a> {
    pub(crate) fn new(
        session: &'a mut LeaseSession,
        owner: &'a Owner,
        [pools, others]: [&'a BTreeMap<String, ReadPool>; 2],
        taken: BTreeSet<IpAddr>,
    ) -> Self {
        Self {
            session,
            owner,
            pools,
            others,
            taken,
            noted: None,
            held: BTreeMap::new(),
            renewed: BTreeMap::new(),
        }
    }

    /// Makes the claims of a change, all or none. `turns` end when the pools have the entries.
    ///
    /// # Errors
    /// No claim was made; or a part could not be taken back, which the error says.
    pub(crate) fn run(&mut self, change: &Change<'_>, turns: Vec<File>) -> Result<Claimed> {
        let mut choices = Vec::new();
        for (index, claim) in change.claim.iter().enumerate() {
            match self.choose(index, claim)? {
                Ok(choice) => choices.push(choice),
                Err(taken) => return Ok(Claimed::Lost(taken)),
            }
        }
        match self.claim(&mut choices, turns) {
            Ok(Claimed::Lost(taken)) => {
                self.take_back()?;
                Ok(Claimed::Lost(taken))
            }
            Ok(Claimed::Outdated) => {
                self.take_back()?;
                Ok(Claimed::Outdated)
            }
            Err(error) => Err(error.and(self.take_back().err())),
            other => other,
        }
    }

    fn claim(&mut self, choices: &mut [ChosenAddress<'_>], turns: Vec<File>) -> Result<Claimed> {
        if let Some(outcome) = self.hold_names(choices)? {
            return Ok(outcome);
        }
        let (entered, choices): (Vec<_>, Vec<_>) =
            choices.iter().partition(|choice| choice.is_entered());
        let (replacing, free): (Vec<_>, Vec<_>) =
            choices.into_iter().partition(|choice| choice.claim.replaces.is_some());
        for choice in replacing {
            match self.take_over(choice)? {
                Outcome::Done(()) => {}
                Outcome::Lost | Outcome::Missing => return Ok(Claimed::Lost(Vec::new())),
                Outcome::Unknown => return Ok(Claimed::Unknown),
            }
        }
        match self.enter_all(&free, turns)? {
            Outcome::Done(()) => {}
            Outcome::Lost | Outcome::Missing => return Ok(Claimed::Lost(Vec::new())),
            Outcome::Unknown => return Ok(Claimed::Unknown),
        }
        for choice in entered {
            if let Some(outcome) = self.complete(choice)? {
                return Ok(outcome);
            }
        }
        let reserved = if self.session.overlap_check { free } else { Vec::new() };
        for choice in reserved {
            match self.reserve(choice)? {
                Reserved::Own(reservation) => {
                    let mark = LeaseMark { reservation: Some(reservation), ..self.mark(choice) };
                    if !self.hold_alone(choice, mark)? {
                        return Ok(Claimed::Lost(vec![Taken {
                            claim: choice.index,
                            address: choice.address,
                            holder: None,
                        }]));
                    }
                }
                Reserved::Foreign(holder) => {
                    // A pool that was made since the list of pools may show more of them.
                    self.session.memory.forget_overlapping(&self.session.pool_of(choice.subnet));
                    let ChosenAddress { index, address, .. } = *choice;
                    let holder = Some(*holder);
                    return Ok(Claimed::Lost(vec![Taken { claim: index, address, holder }]));
                }
                Reserved::Unknown => return Ok(Claimed::Unknown),
            }
        }
        Ok(Claimed::Done(self.held.values().map(|held| held.lease.clone()).collect()))
    }

    /// Chooses the address of a claim: one of an unknown change if it is a candidate, so that only
    /// one of both changes takes effect; else the first that is free.
    fn choose<'c>(
        &mut self,
        index: usize,
        claim: &'c Claim<'c>,
    ) -> Result<Result<ChosenAddress<'c>, Vec<Taken>>> {
        let may_replace = claim.replaces.is_some();
        let object = self.session.sticky_object(claim.request);
        let entered = |address: &IpAddr| self.entry_of_name(&object.as_ref()?.1, *address);
        let is_free = |address: &&IpAddr| {
            may_replace || !self.taken.contains(*address) || entered(address).is_some()
        };
        let unknown = &self.session.unknown;
        let mut free = claim.candidates.iter().filter(is_free);
        let again = free.clone().find(|address| unknown.contains(*address));
        let Some(address) = again.or_else(|| free.next()).copied() else {
            return Ok(Err(self.taken_candidates(index, claim)?));
        };
        let entered = entered(&address);
        self.taken.insert(address);
        let range = claim.set.find(address).map(|range| range.subnet().trunc());
        let key = range.and_then(|subnet| Some((subnet, offset_of(subnet, address)?)));
        let Some((subnet, key)) = key else {
            let message = format!("{address} is too far from the beginning of its subnet");
            return Err(Error::new(ErrorCode::NOT_IN_POOL, message)
                .at(&claim.request.path)
                .advise("whereabouts counts addresses from the network address, up to 2^63: choose a range near the beginning of the subnet"));
        };
        let stamp = OwnerStamp::of(self.owner, subnet, &self.session.pod.uid, now(), now());
        let text = (!self.session.overlap_check).then(|| self.session.new_text(&stamp));
        let wanted = claim.request.sticky.clone().zip(object).map(|(sticky, (pool, object))| {
            let path = format!("{}.sticky", claim.request.path);
            WantedSticky { object, pool, sticky, path, address, range: subnet, entered }
        });
        let sticky = None;
        Ok(Ok(ChosenAddress { claim, index, address, subnet, key, stamp, wanted, sticky, text }))
    }

    /// Shows the holder of a claim's one candidate.
    fn taken_candidates(&mut self, index: usize, claim: &Claim<'_>) -> Result<Vec<Taken>> {
        let mut taken = Vec::new();
        for address in &claim.candidates {
            let holder = match claim.candidates.len() {
                1 => self.holder(*address)?,
                _ => None,
            };
            taken.push(Taken { claim: index, address: *address, holder });
        }
        Ok(taken)
    }

    /// Returns the entry of an address, with the state of its reservation.
    fn holder(&mut self, address: IpAddr) -> Result<Option<Entry>> {
        let shown = self.pools.values().chain(self.others.values()).find_map(|pool| {
            let mut entries = pool.entries();
            let (_, _, allocation) = entries.find(|(_, shown, _)| *shown == Some(address))?;
            Some((pool.subnet, allocation.clone()))
        });
        match shown {
            Some((subnet, allocation)) => {
                let noted = self.session.notes.leases();
                self.session.entry_of(subnet, address, &allocation, &noted).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Adds the entries of claims, pool by pool. The turns at the pools end with it: a release takes
    /// them again.
    fn enter_all(
        &mut self,
        choices: &[&ChosenAddress<'_>],
        _turns: Vec<File>,
    ) -> Result<Outcome<()>> {
        if !choices.is_empty() {
            self.doubt(
                choices.iter().map(|choice| self.lease(choice, &self.mark(choice))).collect(),
            );
        }
        let subnets: BTreeSet<IpNet> = choices.iter().map(|choice| choice.subnet).collect();
        for subnet in subnets {
            let of_pool: Vec<&ChosenAddress<'_>> =
                choices.iter().copied().filter(|choice| choice.subnet == subnet).collect();
            match self.enter(subnet, &of_pool)? {
                Outcome::Done(()) => {}
                Outcome::Unknown => {
                    self.session.unknown.extend(of_pool.iter().map(|choice| choice.address));
                    return Ok(Outcome::Unknown);
                }
                other => return Ok(other),
            }
            for choice in of_pool {
                self.note_held(choice, self.mark(choice));
            }
        }
        Ok(Outcome::Done(()))
    }

    /// Adds entries to a pool, which is made if it is missing.
    fn enter(&mut self, subnet: IpNet, choices: &[&ChosenAddress<'_>]) -> Result<Outcome<()>> {
        let name = self.session.pool_of(subnet);
        let entries: Vec<(u64, PoolEntry)> = choices
            .iter()
            .map(|choice| (choice.key, self.session.entry(&choice.stamp, choice.text.clone())))
            .collect();
        let object = self.pools.get(&name).and_then(|pool| pool.object.as_ref());
        let Some(object) = object else {
            return self.session.create_pool(&name, subnet, &entries);
        };
        let mut patch = Patch::default();
        if object.is_tracked() {
            patch.stop_tracking();
        }
        if choices.iter().any(|choice| choice.may_be_first()) {
            patch.expect_absent(object, "0");
        }
        patch.add_entries(object, &entries);
        let cooldown = self.session.cooldown;
        let mut tidying = patch.clone();
        let keys: Vec<u64> = entries.iter().map(|(key, _)| *key).collect();
        let is_full = |error: &Error| error.code() == ErrorCode::EXHAUSTED;
        if !cooldown.is_zero() && tidy(&mut tidying, object, &keys, cooldown) {
            match self.session.add_entries(&name, &tidying, &entries) {
                // Another call may have removed one of the notes, and left the addresses free.
                Ok(Outcome::Lost) => {}
                Err(error) if is_full(&error) => {}
                other => return other,
            }
        }
        match self.session.add_entries(&name, &patch, &entries) {
            // Addresses rest only while the object has room for notes.
            Err(error) if is_full(&error) && remove_notes(&mut patch, object) => {
                self.session.add_entries(&name, &patch, &entries)
            }
            other => other,
        }
    }

    /// Notes what a claim has taken. Returns whether no other pool has given the address, too.
    pub(crate) fn hold_alone(
        &mut self,
        choice: &ChosenAddress<'_>,
        mark: LeaseMark,
    ) -> Result<bool> {
        let reservation = mark.reservation.clone();
        self.note_held(choice, mark);
        reservation.map_or(Ok(true), |own| self.is_free_elsewhere(choice, &own))
    }

    /// Changes the pools that overlap, while `own` reserves the address. Returns whether none of
    /// them has given it.
    pub(crate) fn is_free_elsewhere(
        &mut self,
        choice: &ChosenAddress<'_>,
        own: &ReservationMark,
    ) -> Result<bool> {
        let place = (choice.subnet, choice.address);
        self.session.is_free_elsewhere([self.pools, self.others], place, own)
    }

    /// Notes what a claim has taken.
    pub(crate) fn note_held(&mut self, choice: &ChosenAddress<'_>, mark: LeaseMark) {
        let held = HeldLease {
            lease: self.lease(choice, &mark),
            subnet: choice.subnet,
            id: choice.stamp.container.clone(),
            ifname: mark.ifname(&choice.stamp.ifname),
            mark,
            in_pool: true,
        };
        self.held.insert(choice.index, held);
    }

    pub(crate) fn lease(&self, choice: &ChosenAddress<'_>, mark: &LeaseMark) -> Lease {
        let lease = choice.claim.lease(choice.address, mark.to_json());
        let store = self.session.cluster.clone();
        Lease { taken: Some(time(choice.stamp.taken)), store, ..lease }
    }

    /// Returns the mark of an entry, as an earlier answer has shown the schema.
    pub(crate) fn mark(&self, choice: &ChosenAddress<'_>) -> LeaseMark {
        let (text, sticky) = (choice.text.clone(), choice.sticky.clone());
        LeaseMark { text, sticky, ..self.session.new_mark() }
    }

    /// Makes the note of the owner unsure, and keeps what it was.
    pub(crate) fn doubt(&mut self, leases: Vec<Lease>) {
        let before = self.session.notes.doubt(self.owner, leases);
        self.noted.get_or_insert(before);
    }

    /// Takes back what the claims have taken.
    ///
    /// # Errors
    /// A part could not be taken back.
    pub(crate) fn take_back(&mut self) -> Result<()> {
        let held: Vec<HeldLease> = self.take_made().collect();
        let mut errors = Vec::from_iter(self.session.release(&held).err());
        for (taken, before) in std::mem::take(&mut self.renewed).values() {
            errors.extend(self.session.hold_as_before(taken, before).err());
        }
        Error::join(errors)?;
        if let Some(before) = self.noted.take() {
            self.session.notes.restore(self.owner, before);
        }
        Ok(())
    }
}

/// The outcome of a reservation.
pub(crate) enum Reserved {
    Own(ReservationMark),
    /// Another owner's.
    Foreign(Box<Entry>),
    Unknown,
}
