//! The token of a view, for the commit on it and for the next view.

use std::collections::BTreeMap;

use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::{Lease, PoolRequest};

use crate::owner_view::OwnerView;
use crate::pool_scan::ShownPool;

/// The guard of a commit on a view, and the reads that the next view need not repeat.
#[derive(Clone, Debug)]
pub struct ViewToken {
    /// The state of the owner's key.
    pub(crate) guard: OwnerGuard,
    /// The owner's leases; `None` for a guess.
    held: Option<Vec<Lease>>,
    /// The index of each pool's definition, by the pool's name.
    pub(crate) definitions: BTreeMap<String, u64>,
}

impl ViewToken {
    /// Makes the token of a guess.
    pub(crate) fn of_guess(guard: OwnerGuard) -> Self {
        Self { guard, held: None, definitions: BTreeMap::new() }
    }

    /// Makes the token of a read of an owner.
    pub(crate) fn of_owner(OwnerView { held, guard }: OwnerView) -> Self {
        Self { guard, held: Some(held), definitions: BTreeMap::new() }
    }

    /// Returns the read of the owner; `None` for a guess.
    pub(crate) fn into_owner(self) -> Option<OwnerView> {
        let Self { guard, held, .. } = self;
        held.map(|held| OwnerView { held, guard })
    }

    /// Guards the commit with the definition of a pool that was shown.
    pub(crate) fn guard_definition(&mut self, request: &PoolRequest, shown: &ShownPool) {
        if let (Some(pool), Some(index)) = (&request.pool, shown.definition_index) {
            self.definitions.insert(pool.clone(), index);
        }
    }
}
