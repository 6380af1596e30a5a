//! What one view showed, for the commit on it and for the next view.

use std::collections::BTreeMap;

use ipam_kit::allocate::owner_index::OwnerGuard;
use ipam_kit::allocate::{Lease, PoolRequest};

use crate::held::State;
use crate::pools::Shown;

/// What a commit on a view is guarded with, and what the next view need not read again.
#[derive(Clone, Debug)]
pub struct Token {
    /// The owner's key.
    pub(crate) seen: OwnerGuard,
    /// What the owner holds; none where that was guessed.
    held: Option<Vec<Lease>>,
    /// The index of the ranges of each pool that stand in Consul, by the pool's name.
    pub(crate) ranges: BTreeMap<String, u64>,
}

impl Token {
    /// That of a guess.
    pub(crate) fn guessed(seen: OwnerGuard) -> Self {
        Self { seen, held: None, ranges: BTreeMap::new() }
    }

    /// That of what was read of the owner.
    pub(crate) fn read(State { held, seen }: State) -> Self {
        Self { seen, held: Some(held), ranges: BTreeMap::new() }
    }

    /// What was read of the owner.
    pub(crate) fn into_state(self) -> Option<State> {
        let Self { seen, held, .. } = self;
        held.map(|held| State { held, seen })
    }

    /// Relies on the ranges of a pool that is shown.
    pub(crate) fn rely_on(&mut self, want: &PoolRequest, shown: &Shown) {
        if let (Some(pool), Some(index)) = (&want.pool, shown.index) {
            self.ranges.insert(pool.clone(), index);
        }
    }
}
