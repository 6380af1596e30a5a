//! The keys of a replaced plugin, other than its leases.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::allocate::ledger::Claim;
use ipam_kit::allocate::{PoolRequest, Strategy};
use ipam_kit::cni::NetworkName;

use super::layouts::ReplacedPlugin;
use super::plugin_lock::PluginLock;
use crate::keys::full_key;
use crate::view_token::CompatWrites;

/// Its ranges, its cursors and its lock.
#[derive(Debug)]
pub(super) struct PluginKeys {
    ranges: Option<String>,
    /// The beginning of the keys of its cursors.
    cursors: String,
    lock: PluginLock,
    /// Whether it takes the address after its cursor, even if a container holds it.
    pub(super) overwrites: bool,
}

impl PluginKeys {
    /// Those of a network below a prefix.
    pub(super) fn new(old: &ReplacedPlugin, prefix: &str, network: &NetworkName) -> Self {
        let at = |path: &str| full_key(prefix, path, network);
        Self {
            ranges: old.ranges.map(at),
            cursors: at(old.cursor),
            lock: PluginLock::at(old.lock, at),
            overwrites: old.overwrites,
        }
    }

    /// Returns the key of the address last given out of a range set.
    pub(super) fn cursor(&self, index: u32) -> String {
        format!("{}{index}", self.cursors)
    }

    /// Returns the key of the ranges.
    pub(super) fn ranges(&self) -> Option<&str> {
        self.ranges.as_deref()
    }

    /// Its lock, which it holds while it looks for an address.
    pub(super) fn lock(&self) -> &PluginLock {
        &self.lock
    }

    /// Returns the cursors to read, by their range sets: where this node has none of its own; all
    /// of a plugin that takes what comes next unseen.
    pub(super) fn cursors_to_read(
        &self,
        pools: &[PoolRequest],
        compat_writes: &CompatWrites,
    ) -> BTreeMap<u32, String> {
        let mut to_read = BTreeMap::new();
        for pool in pools {
            let needs_cursor = pool.strategy == Strategy::RoundRobin
                && !compat_writes.cursors.contains_key(&pool.index);
            if self.overwrites || needs_cursor {
                to_read.insert(pool.index, self.cursor(pool.index));
            }
        }
        to_read
    }

    /// Returns the values of the cursors among some keys, by their range sets.
    pub(super) fn cursors_in(&self, found: &[KeyValue]) -> BTreeMap<u32, Vec<u8>> {
        let mut cursors = BTreeMap::new();
        for found in found {
            if let Some(index) = self.index_of_cursor(found) {
                cursors.insert(index, found.value().to_vec());
            }
        }
        cursors
    }

    fn index_of_cursor(&self, found: &KeyValue) -> Option<u32> {
        found.key_str().ok()?.strip_prefix(&self.cursors)?.parse().ok()
    }

    /// Tells whether a claim takes the address after the cursor of a plugin that overwrites, and
    /// moves the cursor. A claim by another strategy does not, nor a requested address behind the
    /// cursor: back there, containers hold the addresses that come next.
    pub(super) fn continues_cursor(&self, claim: &Claim<'_>, compat_writes: &CompatWrites) -> bool {
        self.overwrites
            && match claim.request.requested {
                Some(address) => compat_writes.is_ahead(claim, address),
                None => claim.request.strategy == Strategy::RoundRobin,
            }
    }

    /// Returns the writes of a claim after another claim has moved the cursor. `None` if the cursor
    /// is where it was seen, so that the candidates are taken.
    pub(super) fn with_moved_cursor(
        &self,
        claim: &Claim<'_>,
        compat_writes: &CompatWrites,
        found: Option<&[KeyValue]>,
    ) -> Option<CompatWrites> {
        let index = claim.request.index;
        let now = self.cursors_in(found.unwrap_or_default()).remove(&index);
        if !self.continues_cursor(claim, compat_writes)
            || now.as_ref() == compat_writes.cursors.get(&index)
        {
            return None;
        }
        let mut compat_writes = compat_writes.clone();
        compat_writes.cursors.remove(&index);
        compat_writes.cursors.extend(now.map(|now| (index, now)));
        Some(compat_writes)
    }
}

impl CompatWrites {
    /// Tells whether an address is ahead of a cursor, before the end of the ranges.
    fn is_ahead(&self, claim: &Claim<'_>, address: IpAddr) -> bool {
        let cursor = self.cursor(claim.request.index);
        position(claim, address) > cursor.and_then(|cursor| position(claim, cursor))
    }
}

/// Where an address is in the ranges of a claim.
fn position(claim: &Claim<'_>, address: IpAddr) -> Option<(usize, IpAddr)> {
    let range = claim.set.ranges().iter().position(|range| range.spans(address))?;
    Some((range, address))
}
