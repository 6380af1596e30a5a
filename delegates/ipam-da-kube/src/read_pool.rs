//! A pool as a view has read it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_kit::allocate::Owner;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::memory::PoolNote;
use crate::names::address_at;
use crate::objects::{GROUP, IpPool, Metadata, POOLS, PoolEntry};
use crate::session::LeaseSession;

/// A pool as it was read.
#[derive(Debug)]
pub(crate) struct ReadPool {
    pub(crate) subnet: IpNet,
    /// `None` if the pool does not exist.
    pub(crate) object: Option<IpPool>,
    /// The note of the pool, read before the server was asked.
    pub(crate) noted: PoolNote,
}

impl ReadPool {
    /// Reads a pool.
    ///
    /// # Errors
    /// The server does not answer; the pool is of another range than its name says.
    pub(crate) fn read(session: &mut LeaseSession, name: &str, subnet: IpNet) -> Result<Self> {
        // Another call of this node may see a later state meanwhile.
        let noted = session.memory.pool(name);
        let object = session.store.read_pool(name)?;
        if let Some(pool) = &object {
            check_range(session, pool, subnet)?;
        }
        Ok(Self { subnet, object, noted })
    }

    /// Returns the pool's metadata; `None` if it does not exist.
    pub(crate) fn metadata(&self) -> Option<&Metadata> {
        self.object.as_ref().map(|object| &object.metadata)
    }

    /// Returns the entries with the addresses that their keys name; `None` for a key that names no
    /// address of the pool.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, Option<IpAddr>, &PoolEntry)> {
        let entries = self.object.iter().flat_map(IpPool::allocations);
        entries.map(|(key, allocation)| (key, address_at(self.subnet, key), allocation))
    }

    /// Returns whether the pool has an entry of an address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.entries().any(|(_, shown, _)| shown == Some(address))
    }

    /// Returns whether an entry may be of an owner: of its container, and not of another interface.
    pub(crate) fn may_hold(&self, owner: &Owner) -> bool {
        self.entries().any(|(_, _, PoolEntry { id, ifname, .. })| {
            id.as_deref() == Some(owner.container.as_str())
                && ifname.as_deref().is_none_or(|ifname| ifname == owner.ifname.as_str())
        })
    }

    /// Adds the addresses that are taken in this pool, as far as one of `set` may be.
    pub(crate) fn add_taken(&self, set: &RangeSet, taken: &mut BTreeSet<IpAddr>) {
        for (key, address, _) in self.entries() {
            taken.extend(address);
            if key == "0" {
                // The fork of whereabouts writes this key for the first address that it gives.
                taken.extend(address_at(self.subnet, "1"));
                taken.extend(set.ranges().iter().map(ipam_kit::pool::Range::start));
            }
        }
    }
}

/// Compares the range of a pool with the one that its name says.
fn check_range(session: &LeaseSession, pool: &IpPool, subnet: IpNet) -> Result<()> {
    if pool.counts_from(subnet) {
        return Ok(());
    }
    let (name, namespace) = (&pool.metadata.name, session.store.namespace());
    let message = format!(
        "{POOLS}.{GROUP}/{name} in the namespace {namespace}: spec.range is {:?}: expected {subnet}",
        pool.spec.range
    );
    Err(Error::new(ErrorCode::BACKEND, message)
        .advise("correct spec.range: the keys of spec.allocations count from its network address"))
}
