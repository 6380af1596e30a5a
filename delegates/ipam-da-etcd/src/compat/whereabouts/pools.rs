//! The pools of a call, each with its key, its mutex and what a view saw of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use ipam_kit::allocate::Lease;
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::compat::plugin_lock::PluginLock;
use crate::pool_value::{PoolValue, SeenPool, SeenPools};

/// The keys of pools below a prefix.
#[derive(Debug)]
pub(super) struct ValueKeys {
    prefix: String,
}

impl ValueKeys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/") }
    }

    /// Returns what every key begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of a pool.
    pub(super) fn pool(&self, subnet: IpNet) -> String {
        format!("{}{subnet}", self.prefix)
    }

    /// Returns the subnet of a pool's key; `None` for another key.
    pub(super) fn subnet(&self, key: &[u8]) -> Option<IpNet> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        parse_cidr(text).ok().filter(|subnet| subnet.trunc().to_string() == text)
    }

    /// Tells whether a key below the prefix is neither a pool's, nor of its mutex, nor ours.
    pub(super) fn is_foreign(&self, key: &[u8]) -> bool {
        let of_mutex = key.iter().rposition(|byte| *byte == b'/').map(|end| &key[..end]);
        let ours = format!("{}ipam-delegated/", self.prefix);
        !(key.starts_with(ours.as_bytes())
            || self.subnet(key).is_some()
            || of_mutex.is_some_and(|pool| self.subnet(pool).is_some()))
    }

    /// Returns the mutex of a pool, which an old process holds while it reads and writes the value.
    pub(super) fn mutex(&self, subnet: IpNet) -> PluginLock {
        PluginLock::Queue(format!("{}/", self.pool(subnet)))
    }

    /// Reads the value of a pool.
    pub(super) fn read(&self, subnet: IpNet) -> TxnOp {
        TxnOp::get(self.pool(subnet), None)
    }

    /// Guards a pool by the revision that was seen; that of a missing key is 0.
    pub(super) fn unchanged(&self, subnet: IpNet, seen: &SeenPool) -> Compare {
        let revision = seen.revision.unwrap_or_default();
        Compare::mod_revision(self.pool(subnet), CompareOp::Equal, revision)
    }

    /// Takes these pools out of the keys that were found.
    ///
    /// # Errors
    /// A value is malformed, and nothing may be written over it.
    pub(super) fn take(
        &self,
        subnets: impl IntoIterator<Item = IpNet>,
        found: &mut Vec<KeyValue>,
    ) -> Result<SeenPools> {
        let mut pools = SeenPools::new();
        for subnet in subnets {
            let key = self.pool(subnet);
            let place = found.iter().position(|found| found.key() == key.as_bytes());
            let pool = place.map(|place| Self::parse(found.remove(place)));
            pools.insert(subnet, pool.transpose()?.unwrap_or_default());
        }
        Ok(pools)
    }

    /// Reads the answer about a pool's key.
    fn parse(found: KeyValue) -> Result<SeenPool> {
        let revision = found.mod_revision();
        let (key, value) = found.into_key_value();
        let value = PoolValue::parse(value).map_err(|malformed| {
            let key = String::from_utf8_lossy(&key);
            let by_whereabouts = match malformed.empties_pool() {
                true => "at once: whereabouts takes such a pool for empty, and overwrites it",
                false => "by hand: whereabouts keeps it, and no program releases it",
            };
            Error::new(ErrorCode::BACKEND, format!("invalid value of the key {key}: {malformed}"))
                .advise(format!("correct the line (etcdctl get '{key}') {by_whereabouts}"))
        })?;
        Ok(SeenPool { value, revision: Some(revision) })
    }
}

/// Returns the pool that a lease is in.
pub(super) fn pool_of(lease: &Lease) -> IpNet {
    lease.address.trunc()
}

/// Returns the pools of a range set: one for each subnet.
pub(super) fn pools_of(set: &RangeSet) -> BTreeSet<IpNet> {
    set.ranges().iter().map(|range| range.subnet().trunc()).collect()
}

/// Tells whether a container holds an address of a pool.
pub(super) fn holds(pools: &SeenPools, lease: &Lease, id: &str) -> bool {
    pools.get(&pool_of(lease)).is_some_and(|pool| pool.value.has(lease.address.addr(), id))
}

/// Returns the addresses that are taken in some pools, as far as they count.
pub(super) fn taken(
    pools: &SeenPools,
    subnets: &BTreeSet<IpNet>,
    counts: &dyn Fn(IpAddr) -> bool,
) -> BTreeSet<IpAddr> {
    let pools = subnets.iter().filter_map(|subnet| pools.get(subnet));
    pools.flat_map(|pool| pool.value.addresses()).filter(|address| counts(*address)).collect()
}
