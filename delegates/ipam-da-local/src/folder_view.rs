//! The folder as a call has seen it, and what a view shows of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{PoolView, Used, View};
use ipam_kit::pool::RangeSet;

use crate::folder::{Cursor, LockedFolder};
use crate::index::{Stamp, is_plain};
use crate::lease_file::LeaseFile;

/// The folder as it was seen, still under its lock.
#[derive(Debug)]
pub struct FolderView {
    pub(crate) folder: LockedFolder,
    /// The index, when it could be made complete.
    pub(crate) stamp: Option<Stamp>,
    /// Lease files whose names are not what we would write.
    pub(crate) odd: Vec<String>,
    /// What the owner holds.
    pub(crate) held: Vec<LeaseFile>,
    /// Whether every file could be read that may be its.
    pub(crate) sure: bool,
    pub(crate) pools: Vec<PoolCursor>,
}

/// A pool that was asked for.
#[derive(Debug)]
pub(crate) struct PoolCursor {
    pub(crate) path: String,
    pub(crate) cursor: Cursor,
}

impl FolderView {
    /// Whether the address has a lease file under a name that we would not look for.
    pub(crate) fn hides(&self, address: IpAddr) -> bool {
        self.folder.find_among(&self.odd, address).is_some()
    }

    /// The lease file of an address, under whatever name.
    pub(crate) fn find(&self, address: IpAddr) -> Option<LeaseFile> {
        self.folder.find(address, &self.odd)
    }

    /// The view of this, with all that is taken in the ranges that come with a pool's path.
    pub(crate) fn into_view(
        self,
        sets: &[(&str, Option<&RangeSet>)],
    ) -> Result<View<Option<Self>>> {
        let mut taken: Vec<BTreeSet<IpAddr>> = vec![BTreeSet::new(); sets.len()];
        if sets.iter().any(|(_, set)| set.is_some()) {
            let listed = self.folder.names(|_, address| {
                for ((_, set), taken) in sets.iter().zip(&mut taken) {
                    if set.is_some_and(|set| set.find(address).is_some()) {
                        taken.insert(address);
                    }
                }
            });
            listed
                .map_err(|error| self.folder.failed("cannot list the folder of leases", error))?;
        }
        for ((_, set), taken) in sets.iter().zip(&mut taken) {
            if let Some(set) = set {
                self.free_leftovers(set, taken);
            }
        }
        let mut used = |path: &str| {
            let place = sets.iter().position(|(other, set)| *other == path && set.is_some());
            place.map(|place| std::mem::take(&mut taken[place]))
        };
        let pools = self.pools.iter().map(|pool| PoolView {
            cursor: pool.cursor.address,
            used: used(&pool.path).map_or(Used::Unknown, Used::All),
            ..PoolView::default()
        });
        let pools = pools.collect();
        Ok(View {
            held: self.held.iter().map(LeaseFile::lease).collect(),
            sure: self.sure,
            pools,
            token: Some(self),
        })
    }

    /// Takes what killed plugins left out of the addresses taken, when nothing else is free.
    fn free_leftovers(&self, set: &RangeSet, taken: &mut BTreeSet<IpAddr>) {
        let usable = taken.iter().filter(|address| set.refusal(**address).is_none()).count();
        if (usable as u128) < set.size() {
            return;
        }
        taken.retain(|address| {
            let file = LeaseFile::shown(&self.folder.path, &address.to_string());
            !file.is_some_and(|file| file.is_leftover())
        });
    }
}

/// Lease files whose names are not what we would write: an address in another form.
pub(crate) fn odd_names(folder: &LockedFolder, stamp: Option<&Stamp>) -> Result<Vec<String>> {
    match stamp {
        Some(stamp) => Ok(stamp.odd.clone()),
        None => Ok(folder.all_names()?.into_iter().filter(|name| !is_plain(name)).collect()),
    }
}
