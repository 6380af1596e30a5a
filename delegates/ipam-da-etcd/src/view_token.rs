//! The knowledge of one view, for the commit on it and for the next view.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipam_kit::allocate::owner_commit::OwnerGuard;

use crate::pool_value::SeenPools;

/// The knowledge of a view, for the next view and for the commit.
#[derive(Clone, Debug, Default)]
pub struct EtcdViewToken {
    /// The owner's state.
    pub(crate) guard: OwnerGuard,
    /// Used in the layout of a replaced plugin only.
    pub(crate) compat_writes: CompatWrites,
    /// The pools, in the layout of whereabouts only.
    pub(crate) pools: SeenPools,
    /// The change that wrote the pools, where they are a guess.
    pub(crate) guessed_by: Option<ChangeMark>,
}

impl EtcdViewToken {
    /// Returns the same with another state of the owner.
    pub(crate) fn with(&self, guard: OwnerGuard) -> Self {
        Self { guard, ..self.clone() }
    }
}

/// The mark of one change of pools, which no other change has, in any store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeMark {
    pub(crate) random: u64,
    /// Of the values that it wrote.
    pub(crate) hash: u64,
}

impl fmt::Display for ChangeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.random, self.hash)
    }
}

/// The writes beside a claim for a replaced plugin that reads the same keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompatWrites {
    /// The ranges as it writes them.
    pub(crate) ranges: Option<String>,
    /// The positions of its cursors. If the plugin takes the next address without a look, a claim
    /// continues from the very cursor and moves it: an address ahead of it would be given again.
    pub(crate) cursors: BTreeMap<u32, Vec<u8>>,
}

impl CompatWrites {
    /// Returns the position of a cursor, if it is an address.
    pub(crate) fn cursor(&self, index: u32) -> Option<IpAddr> {
        std::str::from_utf8(self.cursors.get(&index)?).ok()?.parse().ok()
    }
}
