//! The leases of an owner, by the lease files.

use ipam_kit::allocate::ledger::ViewQuery;
use ipam_kit::allocate::{Lease, Owner, PoolRequest};
use ipam_kit::presence::Presence;
use ipam_kit::{Error, ErrorCode, Result};
use log::{debug, warn};

use crate::folder::LockedFolder;
use crate::index::{CompleteIndex, IndexKey};
use crate::lease_file::{LeaseContent, LeaseFile};

/// The search for the lease files of an owner.
pub(crate) struct OwnerLookup<'a> {
    pub(crate) folder: &'a LockedFolder,
    /// Without it, every lease is read. One that lacks a lease is given up, so the next call
    /// rebuilds it.
    pub(crate) index: &'a mut Option<CompleteIndex>,
}

impl OwnerLookup<'_> {
    /// Returns the owner's lease files, and whether these are all: an unreadable file may be the
    /// owner's as well. Then only a release that finds all leases of its record continues.
    ///
    /// If nothing is held under container and interface, a DEL or CHECK finds the leases that an
    /// old host-local wrote for the container alone, as host-local does.
    pub(crate) fn find_held(&mut self, query: &ViewQuery<'_>) -> Result<(Vec<LeaseFile>, bool)> {
        let folder = self.folder;
        let owner = query.owner;
        let key = IndexKey::of(&owner.container, &owner.ifname);
        let (mut held, unread) = self.files_of(&key, |file| file.is_of(owner))?;
        for lease in query.known {
            let address = lease.address.addr();
            if !held.iter().any(|file| file.address == address)
                && let Some(file) = find_known(folder, &address.to_string(), owner)?
            {
                warn!("the index lacks the lease {}", folder.path.join(&file.name).display());
                *self.index = None;
                held.push(file);
            }
        }
        let shows_known = !query.known.is_empty() && all_are_among(query.known, &held);
        match unread {
            Some(error) if !shows_known => return Err(error),
            unread if !held.is_empty() => return Ok((held, unread.is_none())),
            _ => {}
        }
        let key = IndexKey::of_container(&owner.container);
        let (old, unread) = self.files_of(&key, |file| file.is_of_container(owner))?;
        if let Some(error) = unread {
            return Err(error);
        }
        if query.requests.is_empty() {
            return Ok((old, true));
        }
        match old.iter().find(|file| is_in_a_pool(file, query.requests)) {
            None => Ok((Vec::new(), true)),
            Some(file) => Err(Error::new(
                ErrorCode::TAKEN,
                format!(
                    "container {} already holds {}: its lease file {} names no interface",
                    owner.container,
                    file.address,
                    folder.path.join(&file.name).display()
                ),
            )
            .advise(
                "host-local before 0.8 wrote it: send one DEL for the container, which releases it",
            )),
        }
    }

    /// Returns the lease files of a key that are the owner's, and the error of an unreadable one.
    fn files_of(
        &self,
        key: &IndexKey,
        is_its: impl Fn(&LeaseFile) -> bool,
    ) -> Result<(Vec<LeaseFile>, Option<Error>)> {
        let indexed = self.index.as_ref().and_then(|index| {
            let names = index.names(key);
            names
                .inspect_err(|error| {
                    debug!("reads every lease file: cannot read the index: {error}")
                })
                .ok()
        });
        let mut files = Vec::new();
        let mut unread = None;
        for name in indexed.map_or_else(|| self.folder.all_names(), Ok)? {
            match self.folder.read(&name) {
                Presence::Held(file) if is_its(&file) => {
                    files.push(file.with_age(&self.folder.path)?)
                }
                Presence::Held(_) | Presence::Absent => {}
                Presence::Unreadable(error) => unread = Some(error),
            }
        }
        Ok((files, unread))
    }
}

fn all_are_among(leases: &[Lease], files: &[LeaseFile]) -> bool {
    leases.iter().all(|lease| files.iter().any(|file| file.address == lease.address.addr()))
}

fn is_in_a_pool(file: &LeaseFile, pools: &[PoolRequest]) -> bool {
    let mut sets = pools.iter().filter_map(|pool| pool.set.as_ref());
    sets.any(|set| set.find(file.address).is_some())
}

/// Returns the file of a recorded lease, if it is the owner's.
///
/// # Errors
/// It cannot be read: its owner is unknown.
fn find_known(folder: &LockedFolder, name: &str, owner: &Owner) -> Result<Option<LeaseFile>> {
    match folder.read(name).known()? {
        Some(LeaseFile { content: LeaseContent::Unreadable(reason), .. }) => Err(Error::new(
            ErrorCode::IO,
            format!("cannot read the lease file {}: {reason}", folder.path.join(name).display()),
        )
        .advise("check the file, and remove it when no container uses the address")),
        Some(file) if file.is_of(owner) => file.with_age(&folder.path).map(Some),
        _ => Ok(None),
    }
}
