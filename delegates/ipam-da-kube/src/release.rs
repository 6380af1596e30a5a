//! The release of leases: the reservation first, then the entry of the pool.
//!
//! The reservation guards the release by its state. A call that is killed between both leaves an
//! entry without a reservation, which a later call of its owner finds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::lease_mark::ReservationMark;
use crate::objects::{Allocation, IpPool};
use crate::patch::{ExpectedEntry, Patch};
use crate::session::Session;
use crate::store::Outcome;
use crate::view_token::HeldLease;

/// How often a release is sent again at most: after an unknown outcome, or after a change of
/// another entry that it removes together with this one.
const TRIES: usize = 8;

impl Session {
    /// Releases leases, each if it is in the state that was seen. Returns the addresses of those
    /// that are not: another call has confirmed or taken them.
    ///
    /// # Errors
    /// The outcome of a change is unknown.
    pub(crate) fn release(&mut self, leases: &[HeldLease]) -> Result<BTreeSet<IpAddr>> {
        let mut changed = BTreeSet::new();
        for lease in leases {
            if let Some(seen) = &lease.mark.reservation
                && !self.delete_reservation(lease.address(), seen)?
            {
                changed.insert(lease.address());
            }
        }
        let mut pools: BTreeMap<IpNet, Vec<&HeldLease>> = BTreeMap::new();
        for lease in leases {
            if lease.in_pool && !changed.contains(&lease.address()) {
                pools.entry(lease.subnet).or_default().push(lease);
            }
        }
        for (subnet, leases) in pools {
            changed.extend(self.remove_entries(subnet, leases)?);
        }
        Ok(changed)
    }

    /// Deletes a reservation; false if it has changed.
    pub(crate) fn delete_reservation(&mut self, address: IpAddr, seen: &ReservationMark) -> Result<bool> {
        let name = self.names.reservation(address);
        for _ in 0..TRIES {
            match self.store.delete_reservation(&name, seen)? {
                Outcome::Done(_) | Outcome::Missing => return Ok(true),
                Outcome::Lost | Outcome::Unknown => {}
            }
            match self.store.read_reservation(&name)? {
                None => return Ok(true),
                Some(present) if ReservationMark::of(&present) == *seen => {}
                Some(_) => return Ok(false),
            }
        }
        Err(unreleased([address]))
    }

    /// Removes entries of a pool, and returns the addresses of those that have changed.
    fn remove_entries(
        &mut self,
        subnet: IpNet,
        leases: Vec<&HeldLease>,
    ) -> Result<BTreeSet<IpAddr>> {
        let name = self.pool_of(subnet);
        let turns = self.locks.take(&BTreeSet::from([name.clone()]));
        let mut left: Vec<HeldLease> = leases.into_iter().cloned().collect();
        let mut changed = BTreeSet::new();
        for _ in 0..TRIES {
            let mut patch = Patch::default();
            for lease in &left {
                patch.remove_entry(&lease.key(), &expected(lease));
            }
            match self.store.patch_pool_quietly(&name, &patch)? {
                Outcome::Done(head) => {
                    self.memory.remember_pool(&name, &head.metadata);
                    drop(turns);
                    return Ok(changed);
                }
                Outcome::Missing => return Ok(changed),
                Outcome::Lost | Outcome::Unknown => {}
            }
            let Some(pool) = self.store.read_pool(&name)? else { return Ok(changed) };
            left.retain_mut(|lease| match compare(&pool, lease) {
                Present::Same => true,
                Present::Gone => false,
                Present::Changed => {
                    changed.insert(lease.address());
                    false
                }
            });
            if left.is_empty() {
                return Ok(changed);
            }
        }
        Err(unreleased(left.iter().map(HeldLease::address)))
    }
}

/// What became of an entry.
enum Present {
    Same,
    /// Released, or another owner's.
    Gone,
    /// Confirmed by another call.
    Changed,
}

/// Compares the entry of a lease with that of the pool, and takes over what the CRD keeps of it.
fn compare(pool: &IpPool, lease: &mut HeldLease) -> Present {
    let Some(Allocation { id, ifname, mark, .. }) = pool.allocation(&lease.key()) else {
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

/// The error of a release whose outcome the server does not confirm.
pub(crate) fn unreleased(addresses: impl IntoIterator<Item = IpAddr>) -> Error {
    let addresses = addresses.into_iter().map(|address| address.to_string());
    let message = format!(
        "outcome unknown: these addresses may still be held: {}",
        Error::listed(addresses, ", ")
    );
    Error::new(ErrorCode::TRY_AGAIN, message).advise("call again")
}
