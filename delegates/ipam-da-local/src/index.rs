//! The index of owners and their leases, so that a call does not read all lease files.
//!
//! One symbolic link per owner in the state folder, its target the names of the lease files. It is
//! a hint: a lease file is read before it is used. Whether the index is
//! complete shows in the time of change of the folder of leases. After each change of our own it
//! is set to a second long past, which the stamp keeps. A change by another program, or one of ours
//! that was killed half way, sets it to the present.

use std::ffi::CStr;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ipam_kit::cni::{ContainerId, IfName, NetworkName};
use ipam_kit::host::{StateDir, make_private_folder, open_own, read_own};
use ipam_kit::presence::Presence;
use log::debug;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, open, readlinkat, statat};
use rustix::io::{Errno, retry_on_intr};

use crate::folder::LockedFolder;
use crate::lease_file::{LeaseContent, LeaseFile};

/// The index of one folder of leases.
#[derive(Debug)]
pub(crate) struct LeaseIndex {
    root: PathBuf,
}

/// The state in which the index was last complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The folder's time of change, in seconds since 1970.
    folder: i64,
    /// When the stamp was written, in seconds since 1970.
    written: i64,
    /// How far the clock was from the machine's own count of seconds: whether it was set since.
    clock: i64,
    /// Lease files whose names are not what we would write: an address in another form.
    pub(crate) odd: Vec<String>,
}

/// An owner as a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexKey(String);

/// Lease files changed this many seconds before the stamp are read again: clocks are coarse.
const SLACK: i64 = 2;

/// The longest target of a symbolic link.
const TARGET: usize = 4095;

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

    /// Makes a key. Neither a container id nor an interface name has a `:`. If an id is too long
    /// for a file name, owners may share an entry: the lease files differ.
    fn new(container: &str, ifname: &str) -> Self {
        let start = container.get(..230).unwrap_or(container);
        Self(format!("{start}:{ifname}"))
    }
}

impl LeaseIndex {
    pub(crate) fn new(state: &StateDir, network: &NetworkName, data_dir: &Path) -> Self {
        let folder: String = data_dir.to_string_lossy().replace('%', "%25").replace('/', "%2F");
        // A path too long for a file name shares its index: the stamp tells them apart.
        let folder = folder.get(..240).unwrap_or(&folder);
        Self { root: state.root().join("local").join(network.as_str()).join(folder) }
    }

    /// Returns the stamp, if the index is complete.
    fn stamp(&self, folder: &LockedFolder) -> Option<Stamp> {
        let stamp = self.read_stamp()?;
        (folder.changed().ok()? == (stamp.folder, 0)).then_some(stamp)
    }

    /// Returns the stamp of the index, and first completes the index if need be; `None` if that
    /// fails.
    pub(crate) fn stamp_or_rebuild(&self, folder: &LockedFolder) -> Option<Stamp> {
        if let Some(stamp) = self.stamp(folder) {
            return Some(stamp);
        }
        match self.rebuild(folder) {
            Ok(stamp) => Some(stamp),
            Err(error) => {
                debug!("reads every lease file: cannot write the index: {error}");
                None
            }
        }
    }

    /// Stamps the index as complete.
    pub(crate) fn write_stamp(&self, folder: &LockedFolder, odd: Vec<String>) -> io::Result<Stamp> {
        let random = RandomState::new().build_hasher().finish();
        let past = 100_000_000 + i64::try_from(random % 700_000_000).unwrap_or(0);
        let stamp = Stamp { folder: past, written: now(), clock: clock(), odd };
        let text =
            format!("{} {} {} {}\n", stamp.folder, stamp.written, stamp.clock, stamp.odd.join(" "));
        let file = open_own(&self.stamp_path(), OFlags::WRONLY | OFlags::CREATE, 0o600)?;
        // What is left of a longer line comes after the newline.
        file.write_all_at(text.as_bytes(), 0)?;
        folder.set_changed(past)?;
        Ok(stamp)
    }

    /// Returns the names under a key; none if it has no entry.
    ///
    /// # Errors
    /// The entry cannot be read, or another program made it.
    pub(crate) fn names(&self, key: &IndexKey) -> io::Result<Vec<String>> {
        match retry_on_intr(|| readlinkat(CWD, self.entry(key), Vec::new())) {
            Ok(target) => split(&target),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the names under a key.
    pub(crate) fn set(&self, key: &IndexKey, names: &[String]) -> io::Result<()> {
        write(&self.entry(key), names)
    }

    /// Adds names to those under a key.
    fn add(&self, key: &IndexKey, name: String) -> io::Result<()> {
        let mut names = self.names(key)?;
        if !names.contains(&name) {
            names.push(name);
            self.set(key, &names)?;
        }
        Ok(())
    }

    /// Takes a name off a key.
    pub(crate) fn remove(&self, key: &IndexKey, name: &str) -> io::Result<()> {
        let mut names = self.names(key)?;
        names.retain(|other| other != name);
        self.set(key, &names)
    }

    /// Completes the index from the lease files, and stamps it.
    ///
    /// Lease files that the index knows and that have not changed since the last stamp are not
    /// read, unless the clock was set since.
    fn rebuild(&self, folder: &LockedFolder) -> io::Result<Stamp> {
        make_private_folder(&self.owners())?;
        let stamp = self.read_stamp().filter(|stamp| (stamp.clock - clock()).abs() <= SLACK);
        let mut known = self.prune(folder, stamp.map(|stamp| stamp.written))?;
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
                    (_, Some(key)) => {
                        let added = self.add(&key, name.clone());
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
        self.write_stamp(folder, odd)
    }

    /// Removes outdated entries, and returns the addresses that the index knows.
    fn prune(&self, folder: &LockedFolder, stamped: Option<i64>) -> io::Result<Vec<IpAddr>> {
        let mut known = Vec::new();
        // By descriptor: each path would be walked once for every lease.
        let owners = open_folder(&self.owners())?;
        let leases = open_folder(&folder.path)?;
        for entry in fs::read_dir(self.owners())? {
            let file = entry?.file_name();
            let Some(key) = file.to_str() else { continue };
            if key.starts_with('.') {
                fs::remove_file(self.owners().join(key))?;
                continue;
            }
            let names = match retry_on_intr(|| readlinkat(&owners, key, Vec::new())) {
                Ok(target) => split(&target).unwrap_or_default(),
                // Another program's entry is removed.
                Err(Errno::INVAL) => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            let mut standing = Vec::new();
            for name in &names {
                if still_lists(folder, &leases, key, name, stamped)? {
                    standing.push(name.clone());
                }
            }
            if standing.is_empty() || standing.len() < names.len() {
                write(&self.owners().join(key), &standing)?;
            }
            // Under a name in another form, the file of the plain name may be another owner's.
            standing.retain(|name| is_plain(name));
            known.extend(standing.iter().filter_map(|name| LeaseFile::address_of(name)));
        }
        Ok(known)
    }

    fn read_stamp(&self) -> Option<Stamp> {
        let text = String::from_utf8(read_own(&self.stamp_path()).ok()?).ok()?;
        let (line, _) = text.split_once('\n')?;
        let mut words = line.split(' ');
        Some(Stamp {
            folder: words.next()?.parse().ok()?,
            written: words.next()?.parse().ok()?,
            clock: words.next()?.parse().ok()?,
            odd: words.filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        })
    }

    fn owners(&self) -> PathBuf {
        self.root.join("owners")
    }

    fn stamp_path(&self) -> PathBuf {
        self.root.join("stamp")
    }

    fn entry(&self, key: &IndexKey) -> PathBuf {
        self.owners().join(&key.0)
    }
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
    if stamped.is_some_and(|stamped| changed < stamped - SLACK) {
        return Ok(true);
    }
    let file = folder.read(name).known();
    let file = file.map_err(|error| io::Error::other(error.in_full()))?;
    let file_key = file.and_then(|file| IndexKey::of_file(&file));
    Ok(file_key.is_some_and(|file_key| file_key.0 == key))
}

fn split(target: &CStr) -> io::Result<Vec<String>> {
    let text = target.to_str().map_err(io::Error::other)?;
    Ok(text.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn write(path: &Path, names: &[String]) -> io::Result<()> {
    if names.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let target = names.join(" ");
    if target.len() > TARGET {
        return Err(ErrorKind::InvalidFilename.into());
    }
    match std::os::unix::fs::symlink(&target, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        other => return other,
    }
    // No owner's name begins with a dot, and the lock is ours.
    let new = path.with_file_name(".new");
    let _ = fs::remove_file(&new);
    std::os::unix::fs::symlink(&target, &new)?;
    fs::rename(new, path)
}

/// Returns the clock less the seconds since the machine was started.
fn clock() -> i64 {
    now() - rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}
