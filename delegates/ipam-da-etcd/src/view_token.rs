//! What one view showed, for the commit on it and for the next view.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::allocate::owner_index::OwnerGuard;

/// What a view showed, for the next view and for the commit.
#[derive(Clone, Debug, Default)]
pub struct EtcdViewToken {
    /// What the owner holds.
    pub(crate) guard: OwnerGuard,
    /// Used in the layout of a replaced plugin only.
    pub(crate) compat_writes: CompatWrites,
}

impl EtcdViewToken {
    /// The same with another state of the owner.
    pub(crate) fn with(&self, guard: OwnerGuard) -> Self {
        Self { guard, compat_writes: self.compat_writes.clone() }
    }
}

/// What is written along with a claim for a replaced plugin that reads the same keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompatWrites {
    /// The ranges as it writes them.
    pub(crate) ranges: Option<String>,
    /// Where its cursors were seen. Where it takes what comes next unseen, a claim goes on from the very
    /// cursor and moves it: what is given ahead of it would be given again.
    pub(crate) cursors: BTreeMap<u32, Vec<u8>>,
}

impl CompatWrites {
    /// Where a cursor was seen, as far as that is an address.
    pub(crate) fn cursor(&self, index: u32) -> Option<IpAddr> {
        std::str::from_utf8(self.cursors.get(&index)?).ok()?.parse().ok()
    }
}
