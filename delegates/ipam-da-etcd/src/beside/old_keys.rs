//! The keys that a replaced plugin reads beside its leases.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::allocate::ledger::Claim;
use ipam_kit::allocate::{PoolRequest, Strategy};
use ipam_kit::cni::NetworkName;

use super::layouts::Old;
use super::lock::Lock;
use crate::keys::place_of;
use crate::token::Along;

/// Its ranges, its cursors and its lock.
#[derive(Debug)]
pub(super) struct OldKeys {
    ranges: Option<String>,
    /// What the keys of its cursors begin with.
    cursors: String,
    lock: Lock,
    /// Whether it takes the address after its cursor whoever holds it.
    pub(super) overwrites: bool,
}

impl OldKeys {
    /// Those of a network below a prefix.
    pub(super) fn new(old: &Old, prefix: &str, network: &NetworkName) -> Self {
        let at = |place: &str| place_of(prefix, place, network);
        Self {
            ranges: old.ranges.map(at),
            cursors: at(old.cursor),
            lock: Lock::at(old.lock, at),
            overwrites: old.overwrites,
        }
    }

    /// The key of the address last given out of a range set.
    pub(super) fn cursor(&self, index: u32) -> String {
        format!("{}{index}", self.cursors)
    }

    /// The key of the ranges.
    pub(super) fn ranges(&self) -> Option<&str> {
        self.ranges.as_deref()
    }

    /// What it holds while it looks for an address.
    pub(super) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The cursors to read, by their range sets: where this node has none of its own; all of a
    /// plugin that takes what comes next unseen.
    pub(super) fn cursors_to_read(
        &self,
        wants: &[PoolRequest],
        along: &Along,
    ) -> BTreeMap<u32, String> {
        let to_read = |want: &&PoolRequest| {
            let strange =
                want.strategy == Strategy::RoundRobin && !along.cursors.contains_key(&want.index);
            self.overwrites || strange
        };
        wants.iter().filter(to_read).map(|want| (want.index, self.cursor(want.index))).collect()
    }

    /// The values of the cursors among some keys, by their range sets.
    pub(super) fn cursors_in(&self, found: &[KeyValue]) -> BTreeMap<u32, Vec<u8>> {
        let index =
            |found: &KeyValue| found.key_str().ok()?.strip_prefix(&self.cursors)?.parse().ok();
        found.iter().filter_map(|found| Some((index(found)?, found.value().to_vec()))).collect()
    }

    /// Whether a claim goes on from the cursor of a plugin that takes what comes next unseen, and moves it.
    /// Not where another strategy looks, or what was asked for lies behind it: back there others hold what
    /// comes next.
    pub(super) fn goes_on(&self, claim: &Claim<'_>, along: &Along) -> bool {
        self.overwrites
            && match claim.request.requested {
                Some(address) => along.is_ahead(claim, address),
                None => claim.request.strategy == Strategy::RoundRobin,
            }
    }

    /// What is to be written along with a claim that somebody else's has passed by: the cursor that
    /// it goes on from is not where it was seen. None where nobody has, and its candidates are
    /// taken.
    pub(super) fn passed(
        &self,
        claim: &Claim<'_>,
        along: &Along,
        found: Option<&[KeyValue]>,
    ) -> Option<Along> {
        let index = claim.request.index;
        let now = self.cursors_in(found.unwrap_or_default()).remove(&index);
        if !self.goes_on(claim, along) || now.as_ref() == along.cursors.get(&index) {
            return None;
        }
        let mut along = along.clone();
        along.cursors.remove(&index);
        along.cursors.extend(now.map(|now| (index, now)));
        Some(along)
    }
}

impl Along {
    /// Whether an address lies ahead of a cursor, on the way to the end of the ranges.
    fn is_ahead(&self, claim: &Claim<'_>, address: IpAddr) -> bool {
        let place = |address: IpAddr| {
            let range = claim.set.ranges().iter().position(|range| range.spans(address));
            range.map(|range| (range, address))
        };
        let cursor = self.cursor(claim.request.index).and_then(place);
        place(address) > cursor
    }
}
