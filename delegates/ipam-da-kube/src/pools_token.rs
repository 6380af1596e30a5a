//! The token of a view, for the commit on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Change, Entry};
use ipam_kit::allocate::owner_index::time;
use ipnet::IpNet;

use crate::lease_mark::LeaseMark;
use crate::names::offset_of;
use crate::read_pool::ReadPool;
use crate::stamp::OwnerStamp;
use crate::sticky_lease::StickyId;

/// The objects that a view has read, and the owner's leases in them.
#[derive(Debug, Default)]
pub struct PoolsToken {
    pub(crate) held: Vec<HeldLease>,
    /// The requested pools, by name.
    pub(crate) pools: BTreeMap<String, ReadPool>,
    /// Other pools that were read, by name: those that overlap with the requested ones.
    pub(crate) others: BTreeMap<String, ReadPool>,
    /// All addresses that are taken, also in pools that overlap with the requested ones.
    pub(crate) taken: BTreeSet<IpAddr>,
    /// The turns at the requested pools, until the view is used.
    pub(crate) turns: Vec<File>,
}

/// A lease of the owner, with the entry that shows it.
#[derive(Clone, Debug)]
pub(crate) struct HeldLease {
    pub(crate) lease: Lease,
    pub(crate) mark: LeaseMark,
    pub(crate) subnet: IpNet,
    /// The id of the entry; that of an earlier sandbox of the same pod, which is replaced.
    pub(crate) id: String,
    /// The interface of the entry, if it has one.
    pub(crate) ifname: Option<String>,
    /// Whether the pool has the entry: a reservation alone may be left.
    pub(crate) in_pool: bool,
}

impl HeldLease {
    /// Sets when an ADD confirmed it, by the stamp of its reservation.
    pub(crate) fn confirmed_by(mut self, stamp: Option<&OwnerStamp>) -> Self {
        self.lease.confirmed = stamp.map(|stamp| time(stamp.confirmed));
        self
    }

    /// Returns the lease of a scanned entry; `None` without a holder, unless it is kept for a name.
    pub(crate) fn of_entry(entry: &Entry) -> Option<Self> {
        let mark = LeaseMark::of(&entry.lease)?;
        let holder = entry.holder.as_ref();
        let id = match (&mark.sticky, holder) {
            (Some(sticky), _) => sticky.id().to_string(),
            (None, holder) => holder?.container.clone(),
        };
        let ifname = holder.and_then(|holder| mark.ifname(holder.ifname.as_ref()?));
        // What is left of a sticky lease names no interface, either.
        let ifname = ifname.filter(|_| StickyId::parse(&id).is_none());
        Some(Self {
            lease: entry.lease.clone(),
            subnet: entry.lease.address.trunc(),
            id,
            ifname,
            mark,
            in_pool: true,
        })
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.lease.address.addr()
    }

    /// Returns the pool and the address. Pools that overlap may both have an entry of an address.
    pub(crate) fn place(&self) -> (IpNet, IpAddr) {
        (self.subnet, self.address())
    }

    /// Returns the key of the entry.
    pub(crate) fn key(&self) -> String {
        offset_of(self.subnet, self.address()).map(|key| key.to_string()).unwrap_or_default()
    }
}

impl PoolsToken {
    /// Returns whether a change names each held lease, in the state that was shown, and nothing
    /// else.
    pub(crate) fn is_all_of(&self, change: &Change<'_>) -> bool {
        let named = [&change.keep, &change.leave, &change.drop];
        let named: Vec<&Lease> = named.into_iter().flatten().collect();
        let is_held = |lease: &&Lease| {
            let held = self.find(lease.address.addr());
            held.is_some_and(|held| held.lease.revision == lease.revision)
        };
        named.len() == self.held.len() && named.iter().all(is_held)
    }

    pub(crate) fn find(&self, address: IpAddr) -> Option<&HeldLease> {
        self.held.iter().find(|held| held.address() == address)
    }
}
