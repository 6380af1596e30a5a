//! Sticky leases as views and scans show them, and those that an ADD may end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::{Entry, Fault, Holder, ViewQuery};
use ipam_kit::allocate::{Lease, Owner, PoolRequest};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, Result};
use ipam_kube::is_unserved;
use ipnet::IpNet;
use log::warn;

use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::names::readable_part;
use crate::objects::Reservation;
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::release::EndedHold;
use crate::session::LeaseSession;
use crate::sticky_claim::{sound, sticky_of_node};
use crate::sticky_lease::{StickyHolder, StickyId, StickyLease, StickyMark, StickySpec};

/// An entry of a sticky lease.
#[derive(Clone, Debug)]
struct StickyEntry {
    id: StickyId,
    range: IpNet,
    address: IpAddr,
}

impl LeaseSession {
    /// Fails for sticky names that cannot be kept as the requests say, and notes how long they are.
    ///
    /// # Errors
    /// Addresses have no reservations; or two pools of one call have the same name in one IPPool.
    pub(crate) fn check_names(&mut self, requests: &[PoolRequest]) -> Result<()> {
        let mut objects = BTreeSet::new();
        for request in requests {
            let Some((pool, object)) = self.sticky_object(request) else { continue };
            let keep = request.sticky.as_ref().map(|sticky| sticky.keep.as_secs());
            self.keep.extend(keep.map(|keep| (object.clone(), keep)));
            if !self.overlap_check {
                let message = "false: an address stays with a name only where it is reserved";
                return Err(Error::config("ipam.kube.overlapCheck", message)
                    .advise("set it to true, or set no sticky names"));
            }
            if !objects.insert(object) {
                let message = format!("another pool has the same name in the IPPool {pool}");
                return Err(Error::config(format_args!("{}.sticky", request.path), message)
                    .advise("give each interface a name of its own"));
            }
        }
        Ok(())
    }

    /// Returns the address that is kept for the sticky name of a request: by an entry of its object
    /// or, if this call has read the object, by that.
    ///
    /// # Errors
    /// The object was edited by hand.
    pub(crate) fn kept(
        &self,
        request: &PoolRequest,
        pools: &BTreeMap<String, ReadPool>,
        taken: &BTreeSet<IpAddr>,
    ) -> Result<Option<IpAddr>> {
        let Some((pool, object)) = self.sticky_object(request) else { return Ok(None) };
        let entries = entries(pools.values())
            .filter(|entry| entry.id.object == object && self.may_exist(&entry.id));
        let entered = entries.map(|entry| entry.address).next();
        let Some(known) = self.sticky.get(&object).and_then(Option::as_ref) else {
            return Ok(entered);
        };
        let Some(sticky) = &request.sticky else { return Ok(None) };
        let StickySpec { address, .. } = sound(known, &pool, &sticky.name)?;
        if let Some(entered) = entered.filter(|entered| entered != address) {
            return Err(moved_by_hand(known, *address, entered));
        }
        Ok(Some(*address).filter(|address| entered.is_some() || !taken.contains(address)))
    }

    /// Ends sticky leases whose time is over, for requests that find no other free address, and
    /// removes what is left of objects that are gone. `pools` loses their entries. `held` are the
    /// leases of the owner.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn end_expired(
        &mut self,
        query: &ViewQuery<'_>,
        held: &[HeldLease],
        pools: &mut BTreeMap<String, ReadPool>,
        others: &BTreeMap<String, ReadPool>,
    ) -> Result<()> {
        for request in query.requests {
            let Some(set) = &request.set else { continue };
            let readable = readable_part(set, &request.path);
            let set = request.leasable(readable.as_ref().unwrap_or(set));
            let serves = |address| match request.requested {
                Some(requested) => requested == address,
                None => set.refusal(address).is_none(),
            };
            let own = self.sticky_object(request).map(|(_, object)| object);
            let is_own = |id: &StickyId| own.as_ref() == Some(&id.object) && self.may_exist(id);
            let candidates: BTreeMap<StickyId, StickyEntry> = entries(pools.values())
                .filter(|entry| serves(entry.address) && !is_own(&entry.id))
                .map(|entry| (entry.id.clone(), entry))
                .collect();
            if candidates.is_empty()
                || held.iter().any(|held| request.is_served_by(&held.lease, &set))
                || self.kept(request, pools, &BTreeSet::new())?.is_some_and(serves)
                || has_free(&set, request.requested, pools.values().chain(others.values()))
            {
                continue;
            }
            for (entry, mark) in self.over(candidates)? {
                if self.end_lease(query.owner, &entry, mark)? {
                    forget_entry(pools, &entry);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the leases that may be ended: first those without an object, then those with one, from
    /// the one that is over for longest. Of all other objects nothing is kept in memory. The address of
    /// one that a person has edited stays taken.
    fn over(
        &mut self,
        candidates: BTreeMap<StickyId, StickyEntry>,
    ) -> Result<Vec<(StickyEntry, Option<StickyMark>)>> {
        let mut rest = candidates;
        let mut over = Vec::new();
        self.store.list_sticky("", &mut |lease| {
            let entry = rest.remove(&lease.id());
            let entry = entry.filter(|entry| !warn_of_edit(&lease, Some(entry.address)));
            over.extend(lease.expired().zip(entry).map(|(since, it)| (since, it, lease.mark())));
        })?;
        over.sort_by_key(|(since, ..)| *since);
        let over = over.into_iter().map(|(_, entry, mark)| (entry, Some(mark)));
        Ok(rest.into_values().map(|entry| (entry, None)).chain(over).collect())
    }

    /// Ends a lease whose object has no holder, and removes its entry; false if another call has
    /// taken the name. The holder of an object that a person has deleted may be alive.
    fn end_lease(
        &mut self,
        owner: &Owner,
        entry: &StickyEntry,
        mark: Option<StickyMark>,
    ) -> Result<bool> {
        let StickyEntry { id, range, address } = entry;
        let is_over = match mark {
            Some(mark) => {
                let whole = StickyMark { keep_seconds: 0, ..mark };
                self.end_hold(*address, &whole)? == EndedHold::Over
            }
            None => !self.is_rest_in_use(owner, id, *address)?,
        };
        if is_over {
            self.remove_rest(id, *range, *address)?;
        }
        Ok(is_over)
    }

    /// Shows the sticky leases whose holders are on a node. `reserved` are the reservations of sticky
    /// leases that name the node: one whose object is gone is shown, too.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn scan_sticky(
        &mut self,
        node: &str,
        mut reserved: BTreeMap<StickyId, (IpNet, IpAddr, Reservation)>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        if reserved.is_empty() && !self.memory.has_sticky() {
            return Ok(());
        }
        for lease in self.sticky_with(&sticky_of_node(node))?.into_values() {
            let reservation = reserved.remove(&lease.id()).map(|(.., reservation)| reservation);
            let Some((spec, holder)) = lease.held() else { continue };
            if holder.node != node || holder.network != self.network.as_str() {
                continue;
            }
            let reservation = match reservation {
                Some(reservation) => Some(reservation),
                None => self.read_reservation(spec.address)?,
            };
            if each(self.sticky_entry(&lease, spec, reservation.as_ref())).is_break() {
                return Ok(());
            }
        }
        for (id, (range, address, reservation)) in reserved {
            // The name may have moved to another node, whose call is about to reserve.
            let present = self.store.read_sticky(&id.object)?;
            if present.is_none_or(|present| present.metadata.uid != id.uid)
                && each(self.reserved_entry(range, address, &reservation)).is_break()
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lists the objects of the sticky leases among the entries of pools, and warns of those that a
    /// person has edited.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn sticky_of<'p>(
        &mut self,
        pools: impl Iterator<Item = &'p ReadPool> + Clone,
    ) -> Result<BTreeMap<StickyId, StickyLease>> {
        if entries(pools.clone()).next().is_none() {
            return Ok(BTreeMap::new());
        }
        let leases = self.sticky_with("")?;
        for entry in entries(pools) {
            if let Some(lease) = leases.get(&entry.id).filter(|lease| lease.sound().is_ok()) {
                warn_of_edit(lease, Some(entry.address));
            }
        }
        Ok(leases)
    }

    /// Lists the objects with these labels, and warns of those that a person has edited. Where the kind
    /// is missing, nothing has a name.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn sticky_with(&mut self, labels: &str) -> Result<BTreeMap<StickyId, StickyLease>> {
        let mut leases = BTreeMap::new();
        let listed = self.store.list_sticky(labels, &mut |lease| {
            warn_of_edit(&lease, None);
            // If the list was interrupted, a lease is shown again, in its later state.
            leases.insert(lease.id(), lease);
        });
        match listed {
            Err(error) if !is_unserved(&error) => Err(error),
            _ => Ok(leases),
        }
    }

    /// Shows a sticky lease: its holder, or for how long it is kept.
    pub(crate) fn sticky_entry(
        &self,
        lease: &StickyLease,
        spec: &StickySpec,
        reservation: Option<&Reservation>,
    ) -> Entry {
        let id = lease.id().to_string();
        let own = reservation.filter(|it| it.has_id(&id));
        let mark = LeaseMark {
            namespace: self.store.namespace().to_owned(),
            reservation: own.map(ReservationMark::of),
            sticky: Some(lease.mark()),
            ..LeaseMark::default()
        };
        let shown = mark.lease(spec.range, spec.address);
        let shown = Lease { sticky: Some(spec.name.clone()), ..shown };
        let Some(StickyHolder { node, network, container, ifname, pod, since, .. }) = &spec.holder
        else {
            let until = spec.kept_until.map_or_else(String::new, |until| format!(" until {until}"));
            let fault = Some(Fault::Kept(format!("the sticky name {}{until}", spec.name)));
            return Entry { lease: shown, holder: None, since: None, fault };
        };
        let holder = Holder {
            node: Some(node.clone()),
            container: container.clone(),
            ifname: Some(ifname.clone()),
            network: (network != self.network.as_str()).then(|| network.clone()),
            pod: (!pod.is_empty()).then(|| pod.clone()),
        };
        Entry { lease: shown, holder: Some(holder), since: Some(since.time()), fault: None }
    }
}

fn entries<'p>(pools: impl Iterator<Item = &'p ReadPool>) -> impl Iterator<Item = StickyEntry> {
    pools.flat_map(|pool| {
        pool.entries().filter_map(|(_, address, entry)| {
            let id = StickyId::parse(entry.id.as_deref()?)?;
            Some(StickyEntry { id, range: pool.subnet, address: address? })
        })
    })
}

/// Returns whether the requested address or, without one, any address is free.
fn has_free<'p>(
    set: &RangeSet,
    requested: Option<IpAddr>,
    pools: impl Iterator<Item = &'p ReadPool>,
) -> bool {
    let mut taken = BTreeSet::new();
    pools.for_each(|pool| pool.add_taken(set, &mut taken));
    if let Some(requested) = requested {
        return !taken.contains(&requested);
    }
    let used = taken.iter().filter(|address| set.refusal(**address).is_none()).count();
    set.size() > used as u128
}

fn forget_entry(pools: &mut BTreeMap<String, ReadPool>, gone: &StickyEntry) {
    for pool in pools.values_mut().filter(|pool| pool.subnet == gone.range) {
        let spec = pool.object.as_mut().map(|object| &mut object.spec);
        if let Some(allocations) = spec.and_then(|spec| spec.allocations.as_mut()) {
            allocations.retain(|_, entry| entry.id.as_ref() != Some(&gone.id.to_string()));
        }
    }
}

/// Warns of an object that a person has edited. Returns whether it is one. `entered` is the address of
/// its entry, if that is known.
fn warn_of_edit(lease: &StickyLease, entered: Option<IpAddr>) -> bool {
    let fault = match lease.sound() {
        Ok(spec) => match entered.filter(|entered| *entered != spec.address) {
            Some(entered) => moved(spec.address, entered),
            None => return false,
        },
        Err(fault) => fault,
    };
    warn!("the StickyLease {}: {fault}; it stays as it is", lease.metadata.name);
    true
}

pub(crate) fn moved_by_hand(lease: &StickyLease, address: IpAddr, entered: IpAddr) -> Error {
    let message = format!("the StickyLease {}: {}", lease.metadata.name, moved(address, entered));
    Error::new(ipam_kit::ErrorCode::BACKEND, message)
        .advise("correct spec.address; to move the name, release the address instead")
}

fn moved(address: IpAddr, entered: IpAddr) -> String {
    format!("spec.address is {address}, but its entry in the pool is of {entered}")
}
