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

use crate::config::{Config, KEYS};
use crate::folder::{Folder, Locked};
use crate::held::Lookup;
use crate::index::{Index, Key, Stamp};
use crate::lease_file::LeaseFile;
use crate::seen::{Seen, SeenPool, odd_names};
use crate::step::{Outcome, Step, Took};

/// The leases of one network on this node's disk.
#[derive(Debug)]
pub struct Local {
    folder: Folder,
    index: Index,
    state: StateDir,
    /// When waiting for host-local's lock ends.
    give_up: Instant,
}

/// How long host-local may hold its lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many entries are removed under one lock.
const BATCH: usize = 256;

impl Ledger for Local {
    type Config = Config;
    /// None where there is no folder, and so nothing to change.
    type Token = Option<Seen>;

    const KEYS: Option<&'static [keys::Key]> = Some(KEYS);
    const REACH: Reach = Reach::Node;

    fn open(config: Config, request: &Request) -> Result<Self> {
        let data_dir = config.data_dir()?;
        let state = request.state_dir()?;
        let network = request.network.name();
        Ok(Self {
            folder: Folder::new(&data_dir, network),
            index: Index::new(&state, network, &data_dir),
            state,
            give_up: Instant::now() + PATIENCE.min(request.deadline.left() * 9 / 10),
        })
    }

    fn view(
        &mut self,
        query: &ViewQuery<'_>,
        earlier: Option<Option<Seen>>,
    ) -> Result<View<Option<Seen>>> {
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
        let (held, sure) = Lookup { folder: &folder, index }.held(query)?;
        let see = |want: &PoolRequest| SeenPool {
            path: want.path.clone(),
            cursor: folder.cursor(want.index),
        };
        let pools = query.requests.iter().map(see).collect();
        let odd = odd_names(&folder, stamp.as_ref())?;
        let seen = Seen { folder, stamp, odd, held, sure, pools };
        let looked = query.requests.iter().zip(query.scans);
        let sets: Vec<(&str, Option<&RangeSet>)> = looked
            .map(|(want, look)| {
                (want.path.as_str(), want.set.as_ref().filter(|_| *look != Scan::None))
            })
            .collect();
        seen.into_view(&sets)
    }

    fn commit(
        &mut self,
        owner: &Owner,
        seen: Option<Seen>,
        change: &Change<'_>,
    ) -> Result<Commit<Option<Seen>>> {
        let Some(mut seen) = seen else {
            return Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() });
        };
        let step = Step { seen: &seen, owner, change };
        match step.take()? {
            Outcome::Done(took) => {
                self.note(&mut seen, owner, change, &took);
                let kept = change.keep.iter().zip(&took.kept).map(|(lease, revision)| Lease {
                    revision: revision.to_json(),
                    ..lease.clone()
                });
                let claimed = change.claim.iter().zip(&took.claimed);
                let claimed = claimed
                    .map(|(claim, (address, revision))| claim.lease(*address, revision.to_json()));
                Ok(Commit::Done { kept: kept.collect(), claimed: claimed.collect() })
            }
            Outcome::Stale => Ok(Commit::Lost { taken: Vec::new(), view: None }),
            Outcome::Taken { claim, undone } => {
                let claimed = &change.claim[claim];
                if undone {
                    self.note_again(&mut seen);
                }
                if let [address] = claimed.candidates[..] {
                    let holder = seen.find(address).map(|file| file.entry());
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
                Ok(Commit::Lost { taken: Vec::new(), view: Some(seen.into_view(&sets)?) })
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
                if let Some(key) = Key::of_file(&file)
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
                    let file = LeaseFile::strange(&name, &error.in_full());
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
    fn stamp(&self, folder: &Locked) -> Option<Stamp> {
        let rebuild = || {
            let rebuilt = self.index.rebuild(folder);
            rebuilt.inspect_err(|error| debug!("no index, every lease is read: {error}")).ok()
        };
        self.index.stamp(folder).or_else(rebuild)
    }

    /// Brings the index up to what was taken and dropped, and the cursors.
    fn note(&self, seen: &mut Seen, owner: &Owner, change: &Change<'_>, took: &Took) {
        for (claim, (address, _)) in change.claim.iter().zip(&took.claimed) {
            let pool = seen.pools.iter().find(|pool| pool.path == claim.request.path);
            let before = pool.map(|pool| pool.cursor).unwrap_or_default();
            if let Err(error) = seen.folder.set_cursor(claim.request.index, before, *address) {
                debug!("the cursor of range set {} stays: {error}", claim.request.index);
            }
        }
        if took.claimed.is_empty() && change.drop.is_empty() {
            return;
        }
        let Some(stamp) = seen.stamp.take() else { return };
        match self.write_index(seen, owner, change, took) {
            Ok(()) => self.write_stamp(&seen.folder, stamp),
            // The stamp does not fit any more, so the next call reads the folder.
            Err(error) => warn!("the index of leases cannot be written: {error}"),
        }
    }

    fn write_index(
        &self,
        seen: &Seen,
        owner: &Owner,
        change: &Change<'_>,
        took: &Took,
    ) -> io::Result<()> {
        let key = Key::of(&owner.container, &owner.ifname);
        // What another owner has under the same key stays.
        let mut names = self.index.names(&key)?;
        let dropped =
            |file: &&LeaseFile| change.drop.iter().any(|l| l.address.addr() == file.address);
        for file in seen.held.iter().filter(dropped) {
            match Key::of_file(file) {
                Some(other) if other != key => self.index.remove(&other, &file.name)?,
                _ => names.retain(|name| *name != file.name),
            }
        }
        names.extend(took.claimed.iter().map(|(address, _)| address.to_string()));
        for replaced in &took.replaced {
            if let Some(other) = Key::of_file(replaced) {
                self.index.remove(&other, &replaced.name)?;
            }
        }
        self.index.set(&key, &names)
    }

    /// Notes that the folder was changed, but not what the index says of it.
    fn note_again(&self, seen: &mut Seen) {
        if let Some(stamp) = seen.stamp.take() {
            seen.stamp = self.index.note(&seen.folder, stamp.odd).ok();
        }
    }

    fn write_stamp(&self, folder: &Locked, stamp: Stamp) {
        if let Err(error) = self.index.note(folder, stamp.odd) {
            warn!("the index of leases cannot be written: {error}");
        }
    }
}
