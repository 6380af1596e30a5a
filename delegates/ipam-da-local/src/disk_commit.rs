//! One change of the folder: all of it, or none.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Change, Claim, Commit};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::host::open_own;
use ipam_kit::{Error, Result};
use log::warn;
use rustix::fs::OFlags;

use crate::claim::{claim, confirm, replace};
use crate::folder_view::FolderView;
use crate::lease_file::{FileRevision, LeaseFile};

/// A change of the leases in a folder.
pub(crate) struct DiskCommit<'a> {
    pub(crate) view: &'a FolderView,
    pub(crate) owner: &'a Owner,
    pub(crate) change: &'a Change<'a>,
}

/// The outcome of a change.
pub(crate) enum DiskOutcome {
    Done(WrittenLeases),
    /// A lease is not as it was seen.
    Stale,
    /// All candidates of a claim are taken; the claims before it were released (`undone`).
    Taken {
        claim: usize,
        undone: bool,
    },
}

/// The claimed and confirmed leases, in the order of the change.
#[derive(Default)]
pub(crate) struct WrittenLeases {
    pub(crate) kept: Vec<FileRevision>,
    pub(crate) claimed: Vec<(IpAddr, FileRevision)>,
    /// The lease files of others that were taken over.
    pub(crate) replaced: Vec<LeaseFile>,
}

impl WrittenLeases {
    /// Makes the ledger's answer to a change that was made.
    pub(crate) fn into_commit<T>(self, change: &Change<'_>) -> Commit<T> {
        let mut kept = change.keep.clone();
        for (lease, revision) in kept.iter_mut().zip(self.kept) {
            lease.revision = revision.to_json();
        }
        let claims = change.claim.iter().zip(self.claimed);
        let claimed =
            claims.map(|(claim, (address, revision))| claim.lease(address, revision.to_json()));
        Commit::Done { kept, claimed: claimed.collect() }
    }
}

impl DiskCommit<'_> {
    /// Makes the change. After an error, the addresses that it claimed are free again.
    pub(crate) fn carry_out(&self) -> Result<DiskOutcome> {
        let folder = &self.view.folder;
        if !self.covers_what_is_held() {
            return Ok(DiskOutcome::Stale);
        }
        let mut written = WrittenLeases::default();
        let taken = match self.claim_all(&mut written) {
            Ok(taken) => taken,
            Err(error) => {
                self.undo_claims(&written);
                return Err(folder.failed("cannot create a lease file in", error));
            }
        };
        if let Some(claim) = taken {
            self.undo_claims(&written);
            return Ok(DiskOutcome::Taken { claim, undone: !written.claimed.is_empty() });
        }
        // After the claims: when one is lost, no revision has changed.
        for lease in &self.change.keep {
            match self.confirm(lease) {
                Ok(Some(revision)) => written.kept.push(revision),
                Ok(None) => {
                    self.undo_claims(&written);
                    return Ok(DiskOutcome::Stale);
                }
                Err(error) => {
                    self.undo_claims(&written);
                    return Err(folder.failed("cannot update a lease file in", error));
                }
            }
        }
        for lease in &self.change.drop {
            let Some(file) = self.file(lease) else { continue };
            if let Err(error) = folder.remove(&file.name) {
                self.undo_claims(&written);
                return Err(folder.failed("cannot remove a lease file from", error));
            }
        }
        Ok(DiskOutcome::Done(written))
    }

    /// Returns whether the change is about exactly what the owner holds.
    fn covers_what_is_held(&self) -> bool {
        let Change { keep, leave, drop, .. } = self.change;
        let named: Vec<&Lease> = keep.iter().chain(leave).chain(drop).collect();
        named.len() == self.view.held.len() && named.iter().all(|lease| self.file(lease).is_some())
    }

    fn file(&self, lease: &Lease) -> Option<&LeaseFile> {
        self.view.held.iter().find(|file| {
            file.address == lease.address.addr() && file.lease().revision == lease.revision
        })
    }

    fn confirm(&self, lease: &Lease) -> io::Result<Option<FileRevision>> {
        let Some(file) = self.file(lease) else { return Ok(None) };
        match open_own(&self.view.folder.path.join(&file.name), OFlags::RDONLY, 0) {
            Ok(file) => confirm(&file).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes an address for each claim, and returns the claim for which nothing was free.
    fn claim_all(&self, written: &mut WrittenLeases) -> io::Result<Option<usize>> {
        let mut claimed = vec![None; self.change.claim.len()];
        // In order, but a takeover comes last: it cannot be undone.
        for takeover in [false, true] {
            for (number, claim) in self.change.claim.iter().enumerate() {
                if claim.replaces.is_some() != takeover {
                    continue;
                }
                claimed[number] = self.claim(claim, written)?;
                written.claimed = claimed.iter().flatten().copied().collect();
                if claimed[number].is_none() {
                    return Ok(Some(number));
                }
            }
        }
        Ok(None)
    }

    fn claim(
        &self,
        wanted: &Claim<'_>,
        written: &mut WrittenLeases,
    ) -> io::Result<Option<(IpAddr, FileRevision)>> {
        let folder = &self.view.folder;
        if let Some(entry) = &wanted.replaces {
            let file = self.view.find(entry.lease.address.addr());
            let Some(file) = file.filter(|f| f.lease().revision == entry.lease.revision) else {
                return Ok(None);
            };
            let taken = (file.address, replace(&folder.path, self.owner, &file.name)?);
            written.replaced.push(file);
            return Ok(Some(taken));
        }
        let candidates = wanted.candidates.iter().copied();
        claim(&folder.path, self.owner, candidates.filter(|address| !self.view.hides(*address)))
    }

    fn undo_claims(&self, written: &WrittenLeases) {
        for (address, _) in &written.claimed {
            if let Err(error) = self.view.folder.remove(&address.to_string()) {
                let error = Error::io(format!("cannot release {address}"), error);
                warn!(
                    "{}: the next ADD or DEL of {} uses or releases it",
                    error.in_full(),
                    self.owner
                );
            }
        }
    }
}
