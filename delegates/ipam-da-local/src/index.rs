//! The index of owners and their leases, so that a call does not read all lease files.
//!
//! It is a file in the state folder (`owner_table`). An entry is a hint: a lease file is read before
//! it is used. That an owner has no entry is proof only while the index is complete, which shows in
//! the time of change of the folder of leases. After each change of our own it is set to a second
//! long past, which the stamp keeps. A change by another program, or one of ours that was killed
//! half way, sets it to the present.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ipam_kit::cni::{ContainerId, IfName, NetworkName};
use ipam_kit::host::{StateDir, boot_id, make_private_folder};
use ipam_kit::presence::Presence;
use ipam_kit::text::stable_hash;
use log::debug;
use rustix::fs::{AtFlags, Mode, OFlags, open, statat};
use rustix::io::{Errno, retry_on_intr};

use crate::folder::LockedFolder;
use crate::lease_file::{LeaseContent, LeaseFile};
use crate::owner_table::OwnerTable;

/// The index of one folder of leases.
#[derive(Debug)]
pub(crate) struct LeaseIndex {
    root: PathBuf,
}

/// The index while it has every lease: until the lock on the folder is released.
#[derive(Debug)]
pub(crate) struct CompleteIndex {
    table: OwnerTable,
    /// Lease files whose names are not what we would write: an address in another form.
    pub(crate) odd: Vec<String>,
    /// The boot of this machine.
    boot: String,
}

/// The state in which the index was last complete.
#[derive(Debug)]
struct Stamp {
    /// The folder's time of change, in seconds since 1970.
    folder: i64,
    /// When the stamp was written, in seconds since 1970.
    written: i64,
    /// How far the clock was from the machine's own count of seconds: whether it was set since.
    clock: i64,
    /// The boot in which the stamp was written. A loss of power may keep the stamp and lose a slot.
    boot: String,
    /// The number of slots. With another number, searches look elsewhere.
    slots: u64,
    odd: Vec<String>,
}

/// An owner as a key of the table.
#[derive(Debug)]
pub(crate) struct IndexKey(String);

/// Lease files changed this many seconds before the stamp are read again: clocks are coarse.
const SLACK: u64 = 2;

/// The longest key.
const KEY: usize = 80;

/// The longest folder name that is written out, in bytes.
const FOLDER_NAME: usize = 240;

impl IndexKey {
    pub(crate) fn of(container: &ContainerId, ifname: &IfName) -> Self {
        Self::new(container.as_str(), ifname.as_str())
    }

    /// Makes the key of leases that name no interface.
    pub(crate) fn of_container(container: &ContainerId) -> Self {
        Self::new(container.as_str(), "")
    }

    /// Returns the key of a lease file; `None` if no call can name its owner.
    pub(crate) fn of_file(file: &LeaseFile) -> Option<Self> {
        let LeaseContent::Holder { container, ifname } = &file.content else { return None };
        ContainerId::parse(container).ok()?;
        match ifname {
            Some(ifname) => IfName::parse(ifname).ok()?,
            None => return Some(Self::new(container, "")),
        };
        Some(Self::new(container, ifname.as_deref().unwrap_or_default()))
    }

    /// Makes a key. Neither a container id nor an interface name has a `:` or a space. A longer key
    /// has a hash of the container; if owners share it, the lease files differ.
    fn new(container: &str, ifname: &str) -> Self {
        let whole = format!("{container}:{ifname}");
        if whole.len() <= KEY {
            return Self(whole);
        }
        Self(format!("{}:{:016x}:{ifname}", &container[..40], stable_hash(container)))
    }
}

impl LeaseIndex {
    pub(crate) fn new(state: &StateDir, network: &NetworkName, data_dir: &Path) -> Self {
        let mut folder = data_dir.to_string_lossy().replace('%', "%25").replace('/', "%2F");
        if folder.len() > FOLDER_NAME {
            let start: String = folder.chars().take(FOLDER_NAME / 4).collect();
            folder = format!("{start}:{:016x}", stable_hash(&folder));
        }
        Self { root: state.root().join("local").join(network.as_str()).join(folder) }
    }

    /// Returns the index, and first completes it if need be; `None` if that fails.
    pub(crate) fn complete(&self, folder: &LockedFolder) -> Option<CompleteIndex> {
        let boot = boot_id();
        let completed = match self.open() {
            Ok(Some((table, Some(stamp)))) if stamp.is_of(folder, &table, &boot) => {
                Ok(CompleteIndex { table, odd: stamp.odd, boot })
            }
            Ok(found) => self.rebuild(folder, found, boot),
            Err(error) => Err(error),
        };
        completed
            .inspect_err(|error| {
                debug!("reads every lease file: cannot write the index: {error}");
            })
            .ok()
    }

    fn open(&self) -> io::Result<Option<(OwnerTable, Option<Stamp>)>> {
        let Some(table) = OwnerTable::open(&self.path())? else { return Ok(None) };
        let stamp = table.header()?.as_deref().and_then(Stamp::parse);
        Ok(Some((table, stamp)))
    }

    /// Completes the index from the lease files, and stamps it.
    ///
    /// Lease files that the index knows and that have not changed since the last stamp are not
    /// read, unless the clock was set since or the machine started.
    fn rebuild(
        &self,
        folder: &LockedFolder,
        found: Option<(OwnerTable, Option<Stamp>)>,
        boot: String,
    ) -> io::Result<CompleteIndex> {
        let (table, stamp) = match found {
            Some(found) => found,
            None => {
                make_private_folder(&self.root)?;
                let mut leases = 0;
                folder.names(|_, _| leases += 1)?;
                (OwnerTable::create(&self.path(), leases)?, None)
            }
        };
        self.remove_links();
        let stamped = stamp.filter(|it| it.is_of_this_clock(&boot)).map(|stamp| stamp.written);
        let mut known = prune(&table, folder, stamped)?;
        known.sort_unstable();
        let mut odd = Vec::new();
        let mut failed = Ok(());
        folder.names(|name, address| {
            let plain = is_plain(&name);
            if plain && known.binary_search(&address).is_ok() {
                return;
            }
            match folder.read(&name) {
                Presence::Held(file) => match (&file.content, IndexKey::of_file(&file)) {
                    (_, Some(key)) if plain => {
                        let added = table.add(&key.0, &name);
                        failed = std::mem::replace(&mut failed, Ok(())).and(added);
                    }
                    (LeaseContent::Unreadable(reason), None) => log::warn!(
                        "unreadable lease file {} ({reason}): its address counts as taken",
                        folder.path.join(&name).display()
                    ),
                    _ => {}
                },
                Presence::Absent => {}
                // An index without it would be taken for complete.
                Presence::Unreadable(error) => failed = Err(io::Error::other(error.in_full())),
            }
            if !plain {
                odd.push(name);
            }
        })?;
        failed?;
        debug!(
            "rebuilt the index of {}: another plugin changed the folder, or the index was missing",
            folder.path.display()
        );
        let index = CompleteIndex { table, odd, boot };
        index.stamp(folder)?;
        Ok(index)
    }

    /// Removes the index of earlier releases: a link for each owner, and a stamp. After a
    /// downgrade they make it anew.
    fn remove_links(&self) {
        let _ = fs::remove_file(self.root.join("stamp"));
        let _ = fs::remove_dir_all(self.root.join("owners"));
    }

    /// Returns the path of another file about the same leases.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn path(&self) -> PathBuf {
        self.root.join("index")
    }
}

impl CompleteIndex {
    /// Returns the lease files that may be of a key.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(crate) fn names(&self, key: &IndexKey) -> io::Result<Vec<String>> {
        let mut names = self.table.addresses(&key.0)?;
        names.extend_from_slice(&self.odd);
        Ok(names)
    }

    /// Adds the lease file of an address, under the name that we write.
    pub(crate) fn add(&self, key: &IndexKey, address: IpAddr) -> io::Result<()> {
        self.table.add(&key.0, &address.to_string())
    }

    /// Takes the name of a lease file off a key.
    pub(crate) fn remove(&self, key: &IndexKey, name: &str) -> io::Result<()> {
        self.table.remove(&key.0, name)
    }

    /// Stamps the index as complete.
    pub(crate) fn stamp(&self, folder: &LockedFolder) -> io::Result<()> {
        let random = RandomState::new().build_hasher().finish();
        let past = 100_000_000 + i64::try_from(random % 700_000_000).unwrap_or(0);
        let (now, clock, boot) = (now(), clock(), &self.boot);
        let (slots, odd) = (self.table.slots(), self.odd.join(" "));
        self.table.set_header(&format!("{past} {now} {clock} {boot} {slots} {odd}"))?;
        folder.set_changed(past)
    }
}

impl Stamp {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            folder: words.next()?.parse().ok()?,
            written: words.next()?.parse().ok()?,
            clock: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
            slots: words.next()?.parse().ok()?,
            odd: words.filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        })
    }

    /// Returns whether the index is complete.
    fn is_of(&self, folder: &LockedFolder, table: &OwnerTable, boot: &str) -> bool {
        self.is_of_boot(boot)
            && self.slots == table.slots()
            && folder.changed().is_ok_and(|changed| changed == (self.folder, 0))
    }

    /// Returns whether times since the stamp can be compared with it.
    fn is_of_this_clock(&self, boot: &str) -> bool {
        self.is_of_boot(boot) && self.clock.abs_diff(clock()) <= SLACK
    }

    /// Returns whether this boot wrote the stamp: no, if the kernel does not say which one it is.
    fn is_of_boot(&self, boot: &str) -> bool {
        !boot.is_empty() && self.boot == boot
    }
}

/// Removes outdated entries, and returns the addresses that the index knows. `stamped` is the time
/// when it was last complete.
fn prune(
    table: &OwnerTable,
    folder: &LockedFolder,
    stamped: Option<i64>,
) -> io::Result<Vec<IpAddr>> {
    let mut known = Vec::new();
    // By descriptor: the path would be walked once for every lease.
    let leases: OwnedFd = open(&folder.path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    table.retain(|key, name| {
        let kept = still_lists(folder, &leases, key, name, stamped)?;
        if kept {
            known.extend(LeaseFile::address_of(name));
        }
        Ok(kept)
    })?;
    Ok(known)
}

/// Returns whether a lease file has the name that we and host-local give it.
pub(crate) fn is_plain(name: &str) -> bool {
    LeaseFile::address_of(name).is_some_and(|address| address.to_string() == name)
}

/// Returns whether the lease file of this name is still one of a key. `leases` is the folder of
/// leases, and `stamped` the time when the index was last complete.
fn still_lists(
    folder: &LockedFolder,
    leases: &OwnedFd,
    key: &str,
    name: &str,
    stamped: Option<i64>,
) -> io::Result<bool> {
    let changed = match retry_on_intr(|| statat(leases, name, AtFlags::SYMLINK_NOFOLLOW)) {
        Ok(stat) => stat.st_ctime,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if stamped.is_some_and(|stamped| changed < stamped.saturating_sub_unsigned(SLACK)) {
        return Ok(true);
    }
    let file = folder.read(name).known();
    let file = file.map_err(|error| io::Error::other(error.in_full()))?;
    let file_key = file.and_then(|file| IndexKey::of_file(&file));
    Ok(file_key.is_some_and(|file_key| file_key.0 == key))
}

/// Returns the clock less the seconds since the machine was started.
fn clock() -> i64 {
    now() - rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::host::Settings;

    #[test]
    fn every_folder_of_leases_has_an_index_of_its_own() {
        let state = StateDir::of_host(&Settings::default());
        let network = NetworkName::parse("net").unwrap();
        let root = |data: &str| LeaseIndex::new(&state, &network, Path::new(data)).root;
        assert_ne!(root("/a%2Fb"), root("/a/b"));
        for long in ["/x".repeat(400), format!("/{}", "ü".repeat(200))] {
            let [one, other] = ["1", "2"].map(|end| root(&format!("{long}{end}")));
            assert_ne!(one, other);
            assert!(one.file_name().unwrap().len() <= 255, "{}", one.display());
        }
    }
}
