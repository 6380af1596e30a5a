//! Leases in host-local's own layout, as a ledger.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, Scan, Taken, View, ViewQuery};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Reach};
use ipam_kit::host::{StateDir, can_write};
use ipam_kit::pool::RangeSet;
use ipam_kit::presence::Presence;
use ipam_kit::{Error, ErrorCode, Request, Result, keys};
use log::{debug, warn};

use crate::config::{KEYS, LocalConfig};
use crate::disk_commit::{DiskCommit, DiskOutcome, WrittenLeases};
use crate::folder::{LeaseFolder, LockedFolder};
use crate::folder_view::{FolderView, PoolCursor, odd_names};
use crate::index::{IndexKey, LeaseIndex, Stamp};
use crate::lease_file::LeaseFile;
use crate::owner_lookup::OwnerLookup;

/// The leases of one network on this node's disk.
#[derive(Debug)]
pub struct Local {
    folder: LeaseFolder,
    index: LeaseIndex,
    state: StateDir,
    /// When waiting for host-local's lock ends.
    give_up: Instant,
}

/// How long host-local may hold its lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many entries are removed under one lock.
const BATCH: usize = 256;

impl Ledger for Local {
    type Config = LocalConfig;
    /// None where there is no folder, and so nothing to change.
    type Token = Option<FolderView>;

    const KEYS: Option<&'static [keys::Key]> = Some(KEYS);
    const REACH: Reach = Reach::Node;

    fn open(config: LocalConfig, request: &Request) -> Result<Self> {
        let data_dir = config.data_dir()?;
        let state = request.state_dir()?;
        let network = request.network.name();
        Ok(Self {
            folder: LeaseFolder::new(&data_dir, network),
            index: LeaseIndex::new(&state, network, &data_dir),
            state,
            give_up: Instant::now() + PATIENCE.min(request.deadline.left() * 9 / 10),
        })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Option<FolderView>>,
    ) -> Result<View<Option<FolderView>>> {
        // It holds the lock.
        drop(earlier);
        let folder = if query.requests.is_empty() {
            self.folder.lock(self.give_up)?
        } else {
            Some(self.folder.lock_or_make(self.give_up)?)
        };
        let Some(folder) = folder else {
            return Ok(View { held: Vec::new(), sure: true, pools: Vec::new(), token: None });
        };
        let stamp = self.stamp(&folder);
        let index = stamp.as_ref().map(|_| &self.index);
        let (held, sure) = OwnerLookup { folder: &folder, index }.find_held(query)?;
        let see = |want: &PoolRequest| PoolCursor {
            path: want.path.clone(),
            cursor: folder.cursor(want.index),
        };
        let pools = query.requests.iter().map(see).collect();
        let odd = odd_names(&folder, stamp.as_ref())?;
        let view = FolderView { folder, stamp, odd, held, sure, pools };
        let looked = query.requests.iter().zip(query.scans);
        let sets: Vec<(&str, Option<&RangeSet>)> = looked
            .map(|(want, look)| {
                (want.path.as_str(), want.set.as_ref().filter(|_| *look != Scan::None))
            })
            .collect();
        view.into_view(&sets)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        view: Option<FolderView>,
        change: &Change<'_>,
    ) -> Result<Commit<Option<FolderView>>> {
        let Some(mut view) = view else {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        };
        let commit = DiskCommit { view: &view, owner, change };
        match commit.carry_out()? {
            DiskOutcome::Done(written) => {
                self.update_index(&mut view, owner, change, &written);
                let kept = change.keep.iter().zip(&written.kept).map(|(lease, revision)| Lease {
                    revision: revision.to_json(),
                    ..lease.clone()
                });
                let claimed = change.claim.iter().zip(&written.claimed);
                let claimed = claimed
                    .map(|(claim, (address, revision))| claim.lease(*address, revision.to_json()));
                Ok(Commit::Done { kept: kept.collect(), claimed: claimed.collect() })
            }
            DiskOutcome::Stale => Ok(Commit::Lost { taken: Vec::new(), view: None }),
            DiskOutcome::Taken { claim, undone } => {
                let claimed = &change.claim[claim];
                if undone {
                    self.restamp(&mut view);
                }
                if let [address] = claimed.candidates[..] {
                    let holder = view.find(address).map(|file| file.entry());
                    return Ok(Commit::Lost {
                        taken: vec![Taken { claim, address, holder }],
                        view: None,
                    });
                }
                let sets: Vec<(&str, Option<&RangeSet>)> = change
                    .claim
                    .iter()
                    .map(|claim| (claim.request.path.as_str(), Some(&claim.set)))
                    .collect();
                Ok(Commit::Lost { taken: Vec::new(), view: Some(view.into_view(&sets)?) })
            }
        }
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for batch in entries.chunks(BATCH) {
            let Some(folder) = self.folder.lock(self.give_up)? else { break };
            let mut stamp = self.stamp(&folder);
            let odd = odd_names(&folder, stamp.as_ref())?;
            for entry in batch {
                let same = |file: &LeaseFile| file.lease().revision == entry.lease.revision;
                let address = entry.lease.address.addr();
                let file = match folder.read(&address.to_string()) {
                    Presence::Held(file) => Some(file),
                    Presence::Unreadable(error) if entry.fault.is_none() => {
                        failed.push(error);
                        continue;
                    }
                    Presence::Absent | Presence::Unreadable(_) => folder.find(address, &odd),
                };
                let Some(file) = file.filter(same) else { continue };
                if let Err(error) = folder.remove(&file.name) {
                    let path = folder.path.join(&file.name);
                    let error = Error::io(format!("cannot remove {}", path.display()), error);
                    failed.push(error.advise("remove it by hand once nobody uses the address"));
                    continue;
                }
                if let Some(key) = IndexKey::of_file(&file)
                    && let Err(error) = self.index.remove(&key, &file.name)
                {
                    debug!("the index cannot be written: {error}");
                    stamp = None;
                }
                removed.push(entry.clone());
            }
            if let Some(stamp) = stamp {
                self.write_stamp(&folder, stamp);
            }
        }
        let gone = removed.iter().map(|entry| entry.lease.address.addr().to_string());
        Error::join(failed).map_err(|error| match Error::listed(gone, ", ").as_str() {
            "" => error,
            gone => error.within(format_args!("released {gone}, but not all")),
        })?;
        Ok(removed)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut flow, mut unread) = (ControlFlow::Continue(()), None);
        self.folder.names(|name, _| {
            if flow.is_break() {
                return;
            }
            let file = match LeaseFile::read(self.folder.path(), &name) {
                Presence::Held(file) => Some(file),
                Presence::Absent => None,
                Presence::Unreadable(error) => {
                    let file = LeaseFile::unreadable(&name, &error.in_full());
                    unread.get_or_insert(error);
                    file
                }
            };
            if let Some(file) = file {
                flow = each(file.entry());
            }
        })?;
        // A person is shown it; GC has not judged it.
        unread.filter(|_| node.is_some()).map_or(Ok(()), Err)
    }

    fn ready(&mut self) -> Result<()> {
        let unavailable = |what: &str, path: &std::path::Path, error: io::Error| {
            let message = format!("the {what} {} is not writable", path.display());
            Error::new(ErrorCode::UNAVAILABLE, message).caused_by(error)
        };
        self.folder.is_reachable().map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))?;
        can_write(self.folder.path())
            .map_err(|error| unavailable("data folder", self.folder.path(), error))?;
        self.state.writable().map_err(|error| unavailable("state folder", self.state.root(), error))
    }
}

impl Local {
    /// The stamp of a complete index, which is brought up to date when it is not; none where it
    /// cannot be written.
    fn stamp(&self, folder: &LockedFolder) -> Option<Stamp> {
        let rebuild = || {
            let rebuilt = self.index.rebuild(folder);
            rebuilt.inspect_err(|error| debug!("no index, every lease is read: {error}")).ok()
        };
        self.index.stamp(folder).or_else(rebuild)
    }

    /// Brings the index up to what was taken and dropped, and the cursors.
    fn update_index(
        &self,
        view: &mut FolderView,
        owner: &Owner,
        change: &Change<'_>,
        written: &WrittenLeases,
    ) {
        for (claim, (address, _)) in change.claim.iter().zip(&written.claimed) {
            let pool = view.pools.iter().find(|pool| pool.path == claim.request.path);
            let before = pool.map(|pool| pool.cursor).unwrap_or_default();
            if let Err(error) = view.folder.set_cursor(claim.request.index, before, *address) {
                debug!("the cursor of range set {} stays: {error}", claim.request.index);
            }
        }
        if written.claimed.is_empty() && change.drop.is_empty() {
            return;
        }
        let Some(stamp) = view.stamp.take() else { return };
        match self.write_index(view, owner, change, written) {
            Ok(()) => self.write_stamp(&view.folder, stamp),
            // The stamp does not fit any more, so the next call reads the folder.
            Err(error) => warn!("the index of leases cannot be written: {error}"),
        }
    }

    fn write_index(
        &self,
        view: &FolderView,
        owner: &Owner,
        change: &Change<'_>,
        written: &WrittenLeases,
    ) -> io::Result<()> {
        let key = IndexKey::of(&owner.container, &owner.ifname);
        // What another owner has under the same key stays.
        let mut names = self.index.names(&key)?;
        let dropped =
            |file: &&LeaseFile| change.drop.iter().any(|l| l.address.addr() == file.address);
        for file in view.held.iter().filter(dropped) {
            match IndexKey::of_file(file) {
                Some(other) if other != key => self.index.remove(&other, &file.name)?,
                _ => names.retain(|name| *name != file.name),
            }
        }
        names.extend(written.claimed.iter().map(|(address, _)| address.to_string()));
        for replaced in &written.replaced {
            if let Some(other) = IndexKey::of_file(replaced) {
                self.index.remove(&other, &replaced.name)?;
            }
        }
        self.index.set(&key, &names)
    }

    /// Notes that the folder was changed, but not what the index says of it.
    fn restamp(&self, view: &mut FolderView) {
        if let Some(stamp) = view.stamp.take() {
            view.stamp = self.index.write_stamp(&view.folder, stamp.odd).ok();
        }
    }

    fn write_stamp(&self, folder: &LockedFolder, stamp: Stamp) {
        if let Err(error) = self.index.write_stamp(folder, stamp.odd) {
            warn!("the index of leases cannot be written: {error}");
        }
    }
}
