//! Leases on the local disk, in host-local's own layout, as a ledger.
//!
//! An ADD takes host-local's lock and looks at the folder (`folder`, `folder_view`): the owner's
//! lease files (`owner_lookup`, with `index`) and the cursors. Its commit makes a lease file for
//! each claim (`disk_commit`, `claim`) and then moves cursors and index along. A DEL does the same
//! with fewer steps: its commit removes the files. The lock is held from a view to the commit on
//! it.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use ipam_kit::allocate::ledger::{Change, Commit, Entry, Ledger, Scan, Taken, View, ViewQuery};
use ipam_kit::allocate::removal::removed_unless_failed;
use ipam_kit::allocate::{Owner, Profile, Reach, cooldown};
use ipam_kit::host::{StateDir, can_write};
use ipam_kit::presence::Presence;
use ipam_kit::{Error, Request, Result, keys};
use log::{debug, warn};

use crate::config::{KEYS, LocalConfig};
use crate::disk_commit::{DiskCommit, DiskOutcome, WrittenLeases};
use crate::folder::{LeaseFolder, LockedFolder};
use crate::folder_view::{FolderView, ListedPool, odd_names};
use crate::freed::FreedAddresses;
use crate::index::{CompleteIndex, IndexKey, LeaseIndex};
use crate::lease_file::LeaseFile;

/// The leases of one network on this node's disk.
#[derive(Debug)]
pub struct Local {
    folder: LeaseFolder,
    index: LeaseIndex,
    freed: FreedAddresses,
    state: StateDir,
    /// The end of the wait for host-local's lock.
    give_up: Instant,
}

/// The longest wait for host-local's lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many entries are removed under one lock.
const BATCH: usize = 256;

impl Ledger for Local {
    type Config = LocalConfig;
    /// The folder as the view saw it, locked. `None` if the folder does not exist, and nothing can
    /// be released.
    type Token = Option<FolderView>;

    const KEYS: Option<&'static [keys::Key]> = Some(KEYS);
    const REACH: Reach = Reach::Node;

    fn open(config: LocalConfig, request: &Request) -> Result<Self> {
        let data_dir = config.data_dir()?;
        let state = request.state_dir()?;
        let network = request.network.name();
        let index = LeaseIndex::new(&state, network, &data_dir);
        Ok(Self {
            folder: LeaseFolder::new(&data_dir, network),
            freed: FreedAddresses::new(index.beside("freed"), cooldown(request)?),
            index,
            state,
            give_up: Instant::now() + PATIENCE.min(request.deadline.left() * 9 / 10),
        })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Option<FolderView>>,
    ) -> Result<View<Option<FolderView>>> {
        // An earlier view holds the lock, which this one takes anew.
        drop(earlier);
        let folder = if query.requests.is_empty() {
            self.folder.lock(self.give_up)?
        } else {
            Some(self.folder.lock_or_make(self.give_up)?)
        };
        let Some(folder) = folder else {
            return Ok(View { held: Vec::new(), sure: true, pools: Vec::new(), token: None });
        };
        let mut listed = Vec::new();
        for (pool, scan) in query.requests.iter().zip(query.scans) {
            if let (Some(set), Scan::Range(..) | Scan::Full) = (&pool.set, scan) {
                listed.push(ListedPool { path: &pool.path, set });
            }
        }
        let mut view = FolderView::read(folder, &self.index, query)?;
        if !query.requests.is_empty() {
            view.resting = self.freed.resting();
        }
        view.into_view(&listed)
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
                move_cursors(&view, change, &written);
                self.update_index(&mut view, owner, change, &written);
                self.freed.note(change.drop.iter().map(|lease| lease.address.addr()));
                Ok(written.into_commit(change))
            }
            DiskOutcome::Stale => Ok(Commit::Lost { taken: Vec::new(), view: None }),
            DiskOutcome::Taken { claim, undone } => {
                if undone {
                    self.restamp(&mut view);
                }
                lost_claim(view, change, claim)
            }
        }
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let mut removed = Vec::new();
        let mut failed = Vec::new();
        for batch in entries.chunks(BATCH) {
            let Some(folder) = self.folder.lock(self.give_up)? else { break };
            self.remove_batch(&folder, batch, &mut removed, &mut failed)?;
        }
        removed_unless_failed(removed, failed)
    }

    fn scan(
        &mut self,
        node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut flow = ControlFlow::Continue(());
        let mut unread = None;
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
        match unread {
            // GC cannot decide about this file. A person is shown it.
            Some(error) if node.is_some() => Err(error),
            _ => Ok(()),
        }
    }

    fn ready(&mut self) -> Result<()> {
        self.folder.is_reachable()?;
        let data = self.folder.path();
        can_write(data).map_err(|error| not_writable("data folder", data, error))?;
        self.state
            .writable()
            .map_err(|error| not_writable("state folder", self.state.root(), error))
    }

    fn profile(&self) -> Profile {
        Profile { knows_freed: true, ..Profile::default() }
    }
}

impl Local {
    /// Writes the claimed and dropped leases into the index, or makes a new one. An index that
    /// cannot be written is incomplete by its stamp, and the next call completes it.
    fn update_index(
        &self,
        view: &mut FolderView,
        owner: &Owner,
        change: &Change<'_>,
        written: &WrittenLeases,
    ) {
        if written.claimed.is_empty() && change.drop.is_empty() {
            return;
        }
        let Some(index) = view.index.take() else { return };
        let changed = change_index(&index, view, owner, change, written);
        if let Err(error) = changed.and_then(|()| index.stamp(&view.folder))
            && self.index.complete(&view.folder).is_none()
        {
            warn!("cannot write the index of {}: {error}", self.folder.path().display());
        }
    }

    /// Stamps the index again after claims were undone: the folder has another time of change, but
    /// holds the same leases as before.
    fn restamp(&self, view: &mut FolderView) {
        view.index = view.index.take().filter(|index| index.stamp(&view.folder).is_ok());
    }

    /// Removes entries under one lock, each only if its file has not changed.
    fn remove_batch(
        &self,
        folder: &LockedFolder,
        entries: &[Entry],
        removed: &mut Vec<Entry>,
        failed: &mut Vec<Error>,
    ) -> Result<()> {
        let before = removed.len();
        let mut index = self.index.complete(folder);
        let odd = odd_names(folder, index.as_ref())?;
        for entry in entries {
            let file = match find_unchanged(folder, &odd, entry) {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                Err(error) => {
                    failed.push(error);
                    continue;
                }
            };
            if let Err(error) = folder.remove(&file.name) {
                let path = folder.path.join(&file.name);
                let error = Error::io(format!("cannot remove {}", path.display()), error);
                failed.push(error.advise("remove the file when no container uses the address"));
                continue;
            }
            if let (Some(known), Some(key)) = (&index, IndexKey::of_file(&file))
                && let Err(error) = known.remove(&key, &file.name)
            {
                debug!("cannot write the index of {}: {error}", folder.path.display());
                index = None;
            }
            removed.push(entry.clone());
        }
        self.freed.note(removed[before..].iter().map(|entry| entry.lease.address.addr()));
        if let Some(Err(error)) = index.map(|index| index.stamp(folder)) {
            warn!("cannot write the index of {}: {error}", folder.path.display());
        }
        Ok(())
    }
}

/// Writes the claimed and dropped leases into the index.
fn change_index(
    index: &CompleteIndex,
    view: &FolderView,
    owner: &Owner,
    change: &Change<'_>,
    written: &WrittenLeases,
) -> io::Result<()> {
    let is_dropped =
        |file: &&LeaseFile| change.drop.iter().any(|lease| lease.address.addr() == file.address);
    for file in view.held.iter().filter(is_dropped).chain(&written.replaced) {
        if let Some(key) = IndexKey::of_file(file) {
            index.remove(&key, &file.name)?;
        }
    }
    let key = IndexKey::of(&owner.container, &owner.ifname);
    written.claimed.iter().try_for_each(|(address, _)| index.add(&key, *address))
}

fn move_cursors(view: &FolderView, change: &Change<'_>, written: &WrittenLeases) {
    for (claim, (address, _)) in change.claim.iter().zip(&written.claimed) {
        let index = claim.request.index;
        let pool = view.pools.iter().find(|pool| pool.path == claim.request.path);
        let before = pool.map(|pool| pool.cursor).unwrap_or_default();
        if let Err(error) = view.folder.set_cursor(index, before, *address) {
            debug!("cannot move the cursor of range set {index}: {error}");
        }
    }
}

/// Makes the answer to a claim whose candidates are all taken: the holder of the only candidate,
/// or, after several, a view of all addresses that are taken.
fn lost_claim(
    view: FolderView,
    change: &Change<'_>,
    claim: usize,
) -> Result<Commit<Option<FolderView>>> {
    if let [address] = change.claim[claim].candidates[..] {
        let holder = view.find(address).map(|file| file.entry());
        return Ok(Commit::Lost { taken: vec![Taken { claim, address, holder }], view: None });
    }
    let claims = change.claim.iter();
    let listed: Vec<ListedPool<'_>> =
        claims.map(|claim| ListedPool { path: &claim.request.path, set: &claim.set }).collect();
    Ok(Commit::Lost { taken: Vec::new(), view: Some(view.into_view(&listed)?) })
}

/// Returns the lease file of an entry, if it is still the one that the scan showed.
fn find_unchanged(
    folder: &LockedFolder,
    odd: &[String],
    entry: &Entry,
) -> Result<Option<LeaseFile>> {
    let address = entry.lease.address.addr();
    let file = match folder.read(&address.to_string()) {
        Presence::Held(file) => Some(file),
        Presence::Unreadable(error) if entry.fault.is_none() => return Err(error),
        Presence::Absent | Presence::Unreadable(_) => folder.find(address, odd),
    };
    Ok(file.filter(|file| file.lease().revision == entry.lease.revision))
}

fn not_writable(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format_args!("the {what} {} is not writable", path.display()), error)
        .advise("check rights, space and mount of the path")
}
