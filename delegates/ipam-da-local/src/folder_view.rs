//! The folder as a call has seen it, and the view of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::{PoolView, Used, View, ViewQuery};
use ipam_kit::pool::RangeSet;

use crate::folder::{Cursor, LockedFolder};
use crate::index::{CompleteIndex, LeaseIndex, is_plain};
use crate::lease_file::LeaseFile;
use crate::owner_lookup::OwnerLookup;

/// The folder as it was seen, still under its lock.
#[derive(Debug)]
pub struct FolderView {
    pub(crate) folder: LockedFolder,
    /// The index; `None` if it is incomplete and cannot be rebuilt.
    pub(crate) index: Option<CompleteIndex>,
    /// Lease files whose names are not what we would write.
    pub(crate) odd: Vec<String>,
    /// The owner's leases.
    pub(crate) held: Vec<LeaseFile>,
    /// Whether every file could be read that may be the owner's.
    pub(crate) sure: bool,
    pub(crate) pools: Vec<PoolCursor>,
    /// Addresses that were freed lately, which the view shows.
    pub(crate) resting: BTreeMap<IpAddr, SystemTime>,
}

/// The cursor of a pool of the query.
#[derive(Debug)]
pub(crate) struct PoolCursor {
    pub(crate) path: String,
    pub(crate) cursor: Cursor,
}

/// A pool of which a view lists the addresses taken.
#[derive(Debug)]
pub(crate) struct ListedPool<'a> {
    pub(crate) path: &'a str,
    pub(crate) set: &'a RangeSet,
}

impl FolderView {
    /// Reads the owner's lease files, and the cursors of the query's pools.
    pub(crate) fn read(
        folder: LockedFolder,
        index: &LeaseIndex,
        query: &ViewQuery<'_>,
    ) -> Result<Self> {
        let mut index = index.complete(&folder);
        let (held, sure) = OwnerLookup { folder: &folder, index: &mut index }.find_held(query)?;
        let mut pools = Vec::new();
        for pool in query.requests {
            pools.push(PoolCursor { path: pool.path.clone(), cursor: folder.cursor(pool.index) });
        }
        let odd = odd_names(&folder, index.as_ref())?;
        Ok(Self { folder, index, odd, held, sure, pools, resting: BTreeMap::new() })
    }

    /// Returns whether the address has a lease file under a name that we would not write.
    pub(crate) fn hides(&self, address: IpAddr) -> bool {
        self.folder.find_among(&self.odd, address).is_some()
    }

    /// Returns the lease file of an address, under any name.
    pub(crate) fn find(&self, address: IpAddr) -> Option<LeaseFile> {
        self.folder.find(address, &self.odd)
    }

    /// Makes the view, with all addresses that are taken in the listed pools.
    pub(crate) fn into_view(self, listed: &[ListedPool<'_>]) -> Result<View<Option<Self>>> {
        let mut taken: Vec<BTreeSet<IpAddr>> = vec![BTreeSet::new(); listed.len()];
        if !listed.is_empty() {
            let names = self.folder.names(|_, address| {
                for (pool, taken) in listed.iter().zip(&mut taken) {
                    if pool.set.find(address).is_some() {
                        taken.insert(address);
                    }
                }
            });
            names.map_err(|error| self.folder.failed("cannot list the lease folder", error))?;
        }
        for (pool, taken) in listed.iter().zip(&mut taken) {
            self.free_leftovers(pool.set, taken);
        }
        let mut pools = Vec::new();
        for pool in &self.pools {
            let used = match listed.iter().position(|listed| listed.path == pool.path) {
                Some(index) => Used::All(std::mem::take(&mut taken[index])),
                None => Used::Unknown,
            };
            let (cursor, resting) = (pool.cursor.address, self.resting.clone());
            pools.push(PoolView { cursor, used, resting, ..PoolView::default() });
        }
        Ok(View {
            held: self.held.iter().map(LeaseFile::lease).collect(),
            sure: self.sure,
            pools,
            token: Some(self),
        })
    }

    /// Takes leftovers of killed plugins out of the addresses taken, if nothing else is free.
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
pub(crate) fn odd_names(
    folder: &LockedFolder,
    index: Option<&CompleteIndex>,
) -> Result<Vec<String>> {
    match index {
        Some(index) => Ok(index.odd.clone()),
        None => Ok(folder.all_names()?.into_iter().filter(|name| !is_plain(name)).collect()),
    }
}
