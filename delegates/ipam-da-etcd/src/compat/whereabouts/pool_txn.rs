//! A change of pools and of owners' keys, as one transaction.

use etcd_client::{Compare, Txn, TxnOp};
use ipam_kit::allocate::owner_index::OwnerIndex;
use ipnet::IpNet;

use super::pool_locks::PoolQueues;
use super::pools::ValueKeys;
use crate::pool_value::{PoolValues, SeenPools};

/// A change, made while pools and owners are as they were seen, and no process of whereabouts has
/// the mutex of a pool.
#[derive(Debug)]
pub(super) struct PoolTxn<'a> {
    /// The pools that the change relies on.
    pub(super) subnets: &'a [IpNet],
    pub(super) seen: &'a SeenPools,
    /// The values that it writes.
    pub(super) values: &'a PoolValues,
    /// Guards of other keys.
    pub(super) guards: Vec<Compare>,
    /// Writes of other keys.
    pub(super) writes: Vec<TxnOp>,
    /// Reads of other keys, for when a guard fails.
    pub(super) reads: Vec<TxnOp>,
    /// Whether nothing is taken or confirmed.
    pub(super) only_releases: bool,
}

impl PoolTxn<'_> {
    /// Returns the transaction. A refused one reads everything that it relies on.
    pub(super) fn transaction(&self, keys: &ValueKeys, locks: &PoolQueues) -> Txn {
        let mut guards = self.guards.clone();
        let mut writes = self.writes.clone();
        let mut reads = self.reads.clone();
        guards.extend(locks.guards(keys, self.subnets));
        reads.extend(locks.reads(keys, self.subnets));
        for subnet in self.subnets {
            let Some(seen) = self.seen.get(subnet) else { continue };
            guards.push(keys.unchanged(*subnet, seen));
            reads.push(keys.read(*subnet));
            if let Some(value) = self.values.get(subnet) {
                writes.push(TxnOp::put(keys.pool(*subnet), value.as_str(), None));
            }
        }
        // A server that is out of space refuses writes, but not those of an inner transaction.
        if self.only_releases {
            writes = vec![TxnOp::txn(Txn::new().and_then(writes))];
        }
        Txn::new().when(guards).and_then(writes).or_else(reads)
    }
}

/// Writes an owner's key, or deletes that of an owner without leases.
pub(super) fn write_owner(key: &str, owner_index: &OwnerIndex) -> TxnOp {
    match owner_index.leases.is_empty() {
        true => TxnOp::delete(key, None),
        false => TxnOp::put(key, owner_index.to_value(), None),
    }
}
