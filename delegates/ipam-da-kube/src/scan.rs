//! Entries as scans show them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipam_kit::allocate::owner_index::time;
use ipnet::IpNet;

use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::objects::{GROUP, POOLS, PoolEntry, Reservation};
use crate::owner_notes::NotedLeases;
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::stamp::{OwnerStamp, selector};
use crate::sticky_lease::StickyId;
use crate::view::all_pools;

impl LeaseSession {
    /// Shows the entries of the pools and, if one is named, those of a node alone.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        match node {
            Some(node) if self.overlap_check => self.scan_reservations(node, each),
            Some(node) => self.scan_pools(&mut |entry: Entry| {
                let holder = entry.holder.as_ref().and_then(|holder| holder.node.as_deref());
                if holder == Some(node) { each(entry) } else { ControlFlow::Continue(()) }
            }),
            None => self.scan_pools(each),
        }
    }

    /// Finds foreign entries in the pools, each with its place.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) fn foreign_entries(&mut self) -> Result<Vec<String>> {
        let mut foreign = Vec::new();
        for (name, pool) in self.configured_pools()? {
            let place = |key: &str| format!("{POOLS}.{GROUP}/{name} spec.allocations[{key:?}]");
            for (key, address, allocation) in pool.entries() {
                let fault = match (address, &allocation.id) {
                    (None, _) => "the key is not an offset inside the range",
                    (Some(_), None) => "id is missing",
                    (Some(_), Some(_)) if key == "0" => {
                        "the key of the network address: the fork of whereabouts writes it for the first address"
                    }
                    _ => continue,
                };
                foreign.push(format!("{}: {fault}", place(key)));
            }
        }
        Ok(foreign)
    }

    /// Shows an address that an entry and perhaps a reservation hold.
    pub(crate) fn entry_of(
        &mut self,
        subnet: IpNet,
        address: IpAddr,
        allocation: &PoolEntry,
        noted: &NotedLeases,
    ) -> Result<Entry> {
        let reservation = match self.overlap_check {
            true => self.read_reservation(address)?,
            false => None,
        };
        Ok(self.shown_entry(subnet, address, allocation, reservation.as_ref(), noted))
    }

    /// Shows an address that a reservation holds.
    pub(crate) fn reserved_entry(
        &self,
        subnet: IpNet,
        address: IpAddr,
        reservation: &Reservation,
    ) -> Entry {
        let stamp = OwnerStamp::of_reservation(reservation);
        let spec = &reservation.spec;
        let container = stamp.as_ref().map(|stamp| stamp.container.clone());
        let container = container.or_else(|| spec.containerid.clone());
        // Releases since 0.8 name the pod alone.
        let container = container.or_else(|| spec.podref.clone()).unwrap_or_default();
        let ifname = spec.ifname.clone().or_else(|| stamp.map(|stamp| stamp.ifname));
        let allocation = PoolEntry { id: Some(container), ifname, ..PoolEntry::default() };
        self.shown_entry(subnet, address, &allocation, Some(reservation), &NotedLeases::new())
    }

    /// Shows the leases of a node, by the labels of their reservations.
    fn scan_reservations(
        &mut self,
        node: &str,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let labels = selector(self.network.as_str(), Some(node));
        let (mut reserved, mut sticky) = (BTreeSet::new(), BTreeMap::new());
        for (address, reservation) in self.reservations(&labels)? {
            let Some(stamp) = OwnerStamp::of_reservation(&reservation) else { continue };
            // A label may be a shortened text.
            if stamp.node != node || stamp.network != self.network.as_str() {
                continue;
            }
            reserved.insert(address);
            if let Some(id) = StickyId::parse(&stamp.container) {
                sticky.insert(id, (stamp.range, address, reservation));
                continue;
            }
            if each(self.reserved_entry(stamp.range, address, &reservation)).is_break() {
                return Ok(());
            }
        }
        let mut flow = ControlFlow::Continue(());
        self.scan_noted(node, &reserved, &mut |entry| {
            flow = each(entry);
            flow
        })?;
        if flow.is_break() { Ok(()) } else { self.scan_sticky(node, sticky, each) }
    }

    /// Shows the entries of a node without a reservation of its own, as a release leaves them that is
    /// killed. The entry shows the container, and a note the node.
    fn scan_noted(
        &mut self,
        node: &str,
        reserved: &BTreeSet<IpAddr>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut noted = self.notes.leases();
        noted.retain(|(_, address), noted| noted.node == node && !reserved.contains(address));
        let subnets: BTreeSet<IpNet> =
            noted.values().map(|noted| noted.lease.address.trunc()).collect();
        for subnet in subnets {
            let name = self.pool_of(subnet);
            let pool = ReadPool::read(self, &name, subnet)?;
            for (_, address, allocation) in pool.entries() {
                let Some((address, id)) = address.zip(allocation.id.clone()) else { continue };
                if !noted.contains_key(&(id, address)) {
                    continue;
                }
                let entry = self.entry_of(subnet, address, allocation, &noted)?;
                let holder = entry.holder.as_ref().and_then(|holder| holder.node.as_deref());
                if holder == Some(node) && each(entry).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn scan_pools(&mut self, each: &mut dyn FnMut(Entry) -> ControlFlow<()>) -> Result<()> {
        let pools = self.configured_pools()?;
        // An entry without a reservation may have no stamp.
        let noted = self.notes.leases();
        let reservations = match self.overlap_check {
            true => self.reservations("")?,
            false => BTreeMap::new(),
        };
        let sticky = self.sticky_of(pools.values())?;
        let mut entered = BTreeSet::new();
        for pool in pools.values() {
            for (_, address, allocation) in pool.entries() {
                let Some(address) = address else { continue };
                entered.insert(address);
                // Pools that overlap may both have an entry of it.
                let reservation = reservations.get(&address);
                let id = allocation.id.as_deref().and_then(StickyId::parse);
                let lease = id.and_then(|id| sticky.get(&id));
                let entry = match lease.and_then(|lease| Some((lease, lease.spec.as_ref().ok()?))) {
                    Some((lease, spec)) if spec.address == address => {
                        self.sticky_entry(lease, spec, reservation)
                    }
                    _ => self.shown_entry(pool.subnet, address, allocation, reservation, &noted),
                };
                if each(entry).is_break() {
                    return Ok(());
                }
            }
        }
        // A reservation whose entry is gone still holds its address.
        for (address, reservation) in reservations.iter().filter(|(ip, _)| !entered.contains(ip)) {
            let Some(stamp) = OwnerStamp::of_reservation(reservation) else { continue };
            if stamp.network == self.network.as_str()
                && each(self.reserved_entry(stamp.range, *address, reservation)).is_break()
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lists the reservations of the network with these labels, by their addresses.
    pub(crate) fn reservations(&mut self, labels: &str) -> Result<BTreeMap<IpAddr, Reservation>> {
        let Self { store, names, .. } = self;
        let mut reservations = BTreeMap::new();
        store.list_reservations(labels, &mut |reservation| {
            if let Some(address) = names.address_of(&reservation.metadata.name) {
                reservations.insert(address, reservation);
            }
        })?;
        Ok(reservations)
    }

    /// Reads the pools of the configuration or, if it names none, all pools of the network.
    fn configured_pools(&mut self) -> Result<BTreeMap<String, ReadPool>> {
        if self.subnets.is_empty() {
            return all_pools(self);
        }
        let mut pools = BTreeMap::new();
        for subnet in self.subnets.clone() {
            let name = self.pool_of(subnet);
            pools.insert(name.clone(), ReadPool::read(self, &name, subnet)?);
        }
        Ok(pools)
    }

    fn shown_entry(
        &self,
        subnet: IpNet,
        address: IpAddr,
        allocation: &PoolEntry,
        reservation: Option<&Reservation>,
        noted: &NotedLeases,
    ) -> Entry {
        let reserved = reservation.and_then(OwnerStamp::of_reservation);
        let is_of = |stamp: &OwnerStamp| allocation.id.as_ref() == Some(&stamp.container);
        // An old release may have given the entry to the next sandbox of a pod.
        let reservation = reservation.filter(|reservation| {
            reserved.as_ref().map_or_else(|| reservation.is_of(allocation), is_of)
        });
        let in_entry = OwnerStamp::of_allocation(allocation);
        let kept = in_entry.is_some();
        let stamp = reserved.filter(is_of).or(in_entry);
        let noted = allocation.id.clone().and_then(|id| noted.get(&(id, address)));
        let noted = noted.filter(|noted| stamp.is_none() && noted.may_be_of(allocation));
        // Where the CRD drops this delegate's member, the note has it.
        let text = match kept {
            true => allocation.mark.clone(),
            false => noted.and_then(|noted| noted.mark.as_ref()?.text.clone()),
        };
        let pod = allocation.podref.clone().filter(|podref| !podref.is_empty());
        let holder = allocation.id.clone().map(|container| match (&stamp, noted) {
            (Some(stamp), _) => Holder { pod, ..stamp.holder(self.network.as_str()) },
            (None, Some(noted)) => {
                let (node, ifname) = (Some(noted.node.clone()), Some(noted.ifname.clone()));
                Holder { node, container, ifname, pod, ..Holder::default() }
            }
            (None, None) => {
                Holder { container, ifname: allocation.ifname.clone(), pod, ..Holder::default() }
            }
        });
        let confirmed = stamp.as_ref().map(|stamp| stamp.confirmed);
        let confirmed = confirmed.or_else(|| noted.map(|noted| noted.confirmed));
        let mark = LeaseMark {
            namespace: self.store.namespace().to_owned(),
            ifname: allocation.ifname.is_some(),
            reservation: reservation.map(ReservationMark::of),
            sticky: None,
            text,
            kept,
        };
        let fault = allocation.id.is_none().then(|| Fault::Unreadable("id is missing".to_owned()));
        Entry {
            lease: Lease {
                taken: stamp.as_ref().map(|stamp| time(stamp.taken)),
                ..mark.lease(subnet, address)
            },
            holder,
            since: confirmed.map(time),
            fault,
        }
    }
}
