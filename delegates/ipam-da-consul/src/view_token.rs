//! What one view showed, for the commit on it and for the next view.

use std::collections::BTreeMap;

use ipam_kit::allocate::owner_index::OwnerGuard;
use ipam_kit::allocate::{Lease, PoolRequest};

use crate::owner_view::OwnerView;
use crate::pools::ShownPool;

/// What a commit on a view is guarded with, and what the next view need not read again.
#[derive(Clone, Debug)]
pub struct ViewToken {
    /// The owner's key.
    pub(crate) seen: OwnerGuard,
    /// What the owner holds; none where that was guessed.
    held: Option<Vec<Lease>>,
    /// The index of the ranges of each pool that stand in Consul, by the pool's name.
    pub(crate) ranges: BTreeMap<String, u64>,
}

impl ViewToken {
    /// That of a guess.
    pub(crate) fn guessed(seen: OwnerGuard) -> Self {
        Self { seen, held: None, ranges: BTreeMap::new() }
    }

    /// That of what was read of the owner.
    pub(crate) fn read(OwnerView { held, seen }: OwnerView) -> Self {
        Self { seen, held: Some(held), ranges: BTreeMap::new() }
    }

    /// What was read of the owner.
    pub(crate) fn into_state(self) -> Option<OwnerView> {
        let Self { seen, held, .. } = self;
        held.map(|held| OwnerView { held, seen })
    }

    /// Relies on the ranges of a pool that is shown.
    pub(crate) fn guard_definition(&mut self, request: &PoolRequest, shown: &ShownPool) {
        if let (Some(pool), Some(index)) = (&request.pool, shown.index) {
            self.ranges.insert(pool.clone(), index);
        }
    }
}
