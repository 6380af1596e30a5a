//! One change of the folder: all of it, or none.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Change, Claim};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::host::open_own;
use ipam_kit::{Error, Result};
use log::warn;
use rustix::fs::OFlags;

use crate::claim::{claim, confirm, replace};
use crate::folder_view::FolderView;
use crate::lease_file::{FileRevision, LeaseFile};

/// A change that is about to be made.
pub(crate) struct DiskCommit<'a> {
    pub(crate) view: &'a FolderView,
    pub(crate) owner: &'a Owner,
    pub(crate) change: &'a Change<'a>,
}

/// What became of it.
pub(crate) enum DiskOutcome {
    Done(WrittenLeases),
    /// A lease is not as it was seen.
    Stale,
    /// All candidates of a claim are taken; what was claimed before it has been given back
    /// (`undone`).
    Taken {
        claim: usize,
        undone: bool,
    },
}

/// What was taken and confirmed, in the order of the change.
#[derive(Default)]
pub(crate) struct WrittenLeases {
    pub(crate) kept: Vec<FileRevision>,
    pub(crate) claimed: Vec<(IpAddr, FileRevision)>,
    /// The lease files of others that were taken over.
    pub(crate) replaced: Vec<LeaseFile>,
}

impl DiskCommit<'_> {
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
                return Err(folder.failed("cannot take an address in", error));
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
                    return Err(folder.failed("cannot confirm a lease in", error));
                }
            }
        }
        for lease in &self.change.drop {
            let Some(file) = self.file(lease) else { continue };
            if let Err(error) = folder.remove(&file.name) {
                self.undo_claims(&written);
                return Err(folder.failed("cannot remove a lease from", error));
            }
        }
        Ok(DiskOutcome::Done(written))
    }

    /// Whether the change is about exactly what the owner holds.
    fn covers_what_is_held(&self) -> bool {
        let named = || self.change.keep.iter().chain(&self.change.leave).chain(&self.change.drop);
        named().all(|lease| self.file(lease).is_some()) && named().count() == self.view.held.len()
    }

    fn file(&self, lease: &Lease) -> Option<&LeaseFile> {
        let is_it = |file: &&LeaseFile| {
            file.address == lease.address.addr() && file.lease().revision == lease.revision
        };
        self.view.held.iter().find(is_it)
    }

    fn confirm(&self, lease: &Lease) -> io::Result<Option<FileRevision>> {
        let Some(file) = self.file(lease) else { return Ok(None) };
        match open_own(&self.view.folder.path.join(&file.name), OFlags::RDONLY, 0) {
            Ok(file) => confirm(&file).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells the claim for which nothing was free.
    fn claim_all(&self, written: &mut WrittenLeases) -> io::Result<Option<usize>> {
        // In order, but what is taken over last: it cannot be given back.
        let order = |replacing: bool| {
            let numbered = self.change.claim.iter().enumerate();
            numbered.filter(move |(_, claim)| claim.replaces.is_some() == replacing)
        };
        let mut claimed = vec![None; self.change.claim.len()];
        for (number, claim) in order(false).chain(order(true)) {
            claimed[number] = self.claim(claim, written)?;
            written.claimed = claimed.iter().flatten().copied().collect();
            if claimed[number].is_none() {
                return Ok(Some(number));
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
                let error = Error::io(format!("cannot give {address} back"), error);
                warn!("{}: the next ADD or DEL of {} finds it", error.in_full(), self.owner);
            }
        }
    }
}
