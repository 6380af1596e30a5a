//! Pools that overlap: an address is free only if it is free in all of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::lease_mark::ReservationMark;
use crate::names::offset_of;
use crate::patch::Patch;
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::store::Outcome;

/// Returns the pools of the network that overlap with requested ones, by a list of all pools that
/// this node made lately.
///
/// # Errors
/// The server does not answer.
pub(crate) fn overlapping_pools(
    session: &mut LeaseSession,
    requested: &BTreeMap<String, IpNet>,
) -> Result<BTreeMap<String, IpNet>> {
    let noted: Option<Vec<_>> =
        requested.keys().map(|name| session.memory.overlapping(name)).collect();
    if let Some(noted) = noted {
        return Ok(noted.into_iter().flatten().collect());
    }
    let mut ranges: Vec<(String, IpNet)> = Vec::new();
    session.store.list_pools(&mut |pool| {
        if let Some(range) = pool.range() {
            ranges.push((pool.metadata.name, range));
        }
    })?;
    let mut all = BTreeMap::new();
    for (name, subnet) in requested {
        let others = ranges.iter().filter(|(other, range)| {
            let overlaps = range.contains(subnet) || subnet.contains(range);
            other != name && overlaps && session.names.has(other, *range)
        });
        let others: BTreeMap<String, IpNet> = others.cloned().collect();
        session.memory.remember_overlapping(name, others.clone());
        all.extend(others);
    }
    Ok(all)
}

impl LeaseSession {
    /// Changes each pool that overlaps with the one of an address, as [`LeaseSession::outdate`] does;
    /// false if the address is taken in one, or if `own`, its reservation, has gone.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) fn is_free_elsewhere(
        &mut self,
        shown: [&BTreeMap<String, ReadPool>; 2],
        (subnet, address): (IpNet, IpAddr),
        own: &ReservationMark,
    ) -> Result<bool> {
        for (name, pool) in shown.into_iter().flatten() {
            let is_other = pool.subnet != subnet && pool.subnet.contains(&address);
            if is_other && !self.outdate(name, pool, address, own)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Changes a pool that overlaps, if an address is still free in it; false if it is taken, or if
    /// `own`, the reservation of the address, has gone.
    ///
    /// The reservation of an address protects it from a program that reads reservations after it.
    /// whereabouts reads the pool and the reservation, writes its entry, and makes its own
    /// reservation last. If that fails, its DEL deletes the reservation of the address, which is
    /// then ours. It writes an entry only into a pool that is as it was read: so a change of that
    /// pool, after our reservation, makes it read again. If entries of the pool have changed
    /// meanwhile, that DEL may have come before.
    ///
    /// # Errors
    /// The server does not answer.
    fn outdate(
        &mut self,
        name: &str,
        seen: &ReadPool,
        address: IpAddr,
        own: &ReservationMark,
    ) -> Result<bool> {
        let generation = seen.object.as_ref().map(|pool| pool.metadata.generation);
        let key = offset_of(seen.subnet, address).map(|key| key.to_string());
        let Some(key) = key else { return Ok(true) };
        let mut again;
        let mut seen = seen;
        for _ in 0..TRIES {
            let Some(pool) = &seen.object else { return Ok(true) };
            if pool.allocation(&key).is_some() {
                return Ok(false);
            }
            let mut patch = Patch::default();
            patch.expect_free(pool, &key);
            patch.annotate(&pool.metadata, OUTDATED, &self.new_nonce());
            if let Outcome::Done(head) = self.store.patch_pool_quietly(name, &patch)? {
                let is_same = generation == Some(head.metadata.generation);
                return Ok(is_same || self.has_reservation(address, own)?);
            }
            again = ReadPool::read(self, name, seen.subnet)?;
            seen = &again;
        }
        let message = format!("the pool {name}, which overlaps, changes all the time");
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("try again"))
    }

    fn has_reservation(&mut self, address: IpAddr, own: &ReservationMark) -> Result<bool> {
        let present = self.read_reservation(address)?;
        Ok(present.is_some_and(|present| ReservationMark::of(&present) == *own))
    }
}

/// The annotation that a change of a pool without an entry writes.
const OUTDATED: &str = "ipam-delegated/outdated";

/// How often a pool is changed at most, while others change it or the answer is lost.
const TRIES: usize = 8;
