//! The folder of a network's leases, `<dataDir>/<network>`, shared with host-local.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ipam_kit::cni::NetworkName;
use ipam_kit::cni::address::parse_address;
use ipam_kit::host::{is_at, lock, make_folder, open_own};
use ipam_kit::presence::Presence;
use ipam_kit::{Error, ErrorCode, Result};
use rustix::fs::{CWD, OFlags, Timespec, Timestamps, UTIME_OMIT, utimensat};

use crate::lease_file::LeaseFile;

/// The folder, unlocked.
#[derive(Debug)]
pub(crate) struct LeaseFolder {
    path: PathBuf,
}

/// The folder under host-local's lock.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    pub(crate) path: PathBuf,
    _lock: File,
}

/// A cursor file as it was read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) address: Option<IpAddr>,
    length: u64,
}

/// No cursor is longer than an address.
const CURSOR_LIMIT: u64 = 4096;

impl LeaseFolder {
    pub(crate) fn new(data_dir: &Path, network: &NetworkName) -> Self {
        Self { path: data_dir.join(network.as_str()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes host-local's lock, and makes the folder first.
    ///
    /// # Errors
    /// Code 11 when another process holds the lock until `give_up`; 5 when the folder cannot be
    /// made.
    pub(crate) fn lock_or_make(&self, give_up: Instant) -> Result<LockedFolder> {
        loop {
            if let Some(locked) = self.lock(give_up)? {
                return Ok(locked);
            }
            // Operators remove the folder at any time, but not all the time.
            if Instant::now() >= give_up {
                return Err(
                    self.failed("cannot create the lease folder", ErrorKind::NotFound.into())
                );
            }
            make_folder(&self.path, 0o755)
                .map_err(|error| self.failed("cannot create the lease folder", error))?;
        }
    }

    /// Takes host-local's lock; `None` if the folder does not exist, and so has no leases.
    ///
    /// # Errors
    /// Code 11 when another process holds the lock until `give_up`.
    pub(crate) fn lock(&self, give_up: Instant) -> Result<Option<LockedFolder>> {
        let path = self.path.join("lock");
        loop {
            let file = match open_own(&path, OFlags::RDONLY | OFlags::CREATE, 0o750) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return match dangling(&path) {
                        None => Ok(None),
                        Some(link) => Err(self.leads_nowhere(&link)),
                    };
                }
                Err(error) => {
                    return Err(self.failed("cannot open host-local's lock in", error));
                }
            };
            let locked = lock(&file, give_up)
                .map_err(|error| self.failed("cannot lock the lease folder", error))?;
            if !locked {
                return Err(Error::new(
                    ErrorCode::TRY_AGAIN,
                    format!("deadline exceeded: another process holds the lock {}", path.display()),
                )
                .advise(format!(
                    "call again; if the error persists, `fuser -v {}` shows the process",
                    path.display()
                )));
            }
            // Operators empty the folder, and the lock with it.
            let is_current = is_at(&file, &path)
                .map_err(|error| self.failed("cannot check host-local's lock in", error))?;
            if is_current {
                return Ok(Some(LockedFolder { path: self.path.clone(), _lock: file }));
            }
        }
    }

    /// Shows every file whose name is an address, in any order; none if the folder does not exist.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub(crate) fn names(&self, each: impl FnMut(String, IpAddr)) -> Result<()> {
        names(&self.path, each).map_err(|error| self.failed("cannot list the lease folder", error))
    }

    /// Fails if the folder is behind a link without a target, as to a disk that is not mounted: its
    /// leases are unknown.
    pub(crate) fn is_reachable(&self) -> Result<()> {
        dangling(&self.path).map_or(Ok(()), |link| Err(self.leads_nowhere(&link)))
    }

    fn leads_nowhere(&self, link: &Path) -> Error {
        let error = io::Error::new(
            ErrorKind::NotFound,
            format!("the target of the link {} does not exist", link.display()),
        );
        Error::io(format!("cannot reach the lease folder {}", self.path.display()), error)
            .advise("mount the link's target, or remove the link")
    }

    /// Makes an error about this folder.
    pub(crate) fn failed(&self, what: &str, error: io::Error) -> Error {
        failed(&self.path, what, error)
    }
}

impl LockedFolder {
    pub(crate) fn failed(&self, what: &str, error: io::Error) -> Error {
        failed(&self.path, what, error)
    }

    pub(crate) fn names(&self, each: impl FnMut(String, IpAddr)) -> io::Result<()> {
        names(&self.path, each)
    }

    /// Returns every name that [`Self::names`] shows.
    pub(crate) fn all_names(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        let listed = self.names(|name, _| all.push(name));
        listed.map_err(|error| self.failed("cannot list the lease folder", error))?;
        Ok(all)
    }

    pub(crate) fn read(&self, name: &str) -> Presence<LeaseFile> {
        LeaseFile::read(&self.path, name)
    }

    /// Returns the lease file of an address: under the name that we would write, else under an odd
    /// one.
    pub(crate) fn find(&self, address: IpAddr, odd: &[String]) -> Option<LeaseFile> {
        LeaseFile::shown(&self.path, &address.to_string()).or_else(|| self.find_among(odd, address))
    }

    /// Returns the lease file of an address under one of these names.
    pub(crate) fn find_among(&self, names: &[String], address: IpAddr) -> Option<LeaseFile> {
        names
            .iter()
            .filter(|name| LeaseFile::address_of(name) == Some(address))
            .find_map(|name| LeaseFile::shown(&self.path, name))
    }

    /// Removes a lease file; succeeds if it does not exist.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads the address last given out of a range set. Like host-local, it ignores any other
    /// content.
    pub(crate) fn cursor(&self, index: u32) -> Cursor {
        let text = self.read_cursor(index).unwrap_or_default();
        let address = std::str::from_utf8(&text).ok().and_then(|text| parse_address(text).ok());
        Cursor { address, length: text.len() as u64 }
    }

    /// Moves a cursor. If the file is torn, the next search begins with the first address.
    pub(crate) fn set_cursor(&self, index: u32, before: Cursor, address: IpAddr) -> io::Result<()> {
        if before.address == Some(address) {
            return Ok(());
        }
        let text = address.to_string();
        // In place: a new file each time costs more than the lease itself.
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let file = open_own(&self.cursor_path(index), flags, 0o600)?;
        file.write_all_at(text.as_bytes(), 0)?;
        if before.length > text.len() as u64 {
            file.set_len(text.len() as u64)?;
        }
        Ok(())
    }

    /// Returns when the folder changed last, in seconds and nanoseconds.
    pub(crate) fn changed(&self) -> io::Result<(i64, i64)> {
        let metadata = fs::metadata(&self.path)?;
        Ok((metadata.mtime(), metadata.mtime_nsec()))
    }

    /// Sets the folder's time of change to a whole second.
    pub(crate) fn set_changed(&self, seconds: i64) -> io::Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: 0 },
        };
        utimensat(CWD, &self.path, &times, rustix::fs::AtFlags::empty())?;
        Ok(())
    }

    fn read_cursor(&self, index: u32) -> io::Result<Vec<u8>> {
        let file = open_own(&self.cursor_path(index), OFlags::RDONLY, 0)?;
        let mut text = Vec::with_capacity(64);
        file.take(CURSOR_LIMIT).read_to_end(&mut text)?;
        Ok(text)
    }

    fn cursor_path(&self, index: u32) -> PathBuf {
        self.path.join(format!("last_reserved_ip.{index}"))
    }
}

fn names(path: &Path, mut each: impl FnMut(String, IpAddr)) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        match LeaseFile::address_of(&name) {
            Some(address) => each(name, address),
            None if name == "lock" || name.starts_with("last_reserved_ip.") => {}
            None => {
                log::debug!("ignores {}: its name is not an address", path.join(name).display())
            }
        }
    }
    Ok(())
}

/// Returns the link without a target on the way to a path that does not exist.
fn dangling(path: &Path) -> Option<PathBuf> {
    let standing = path.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    let is_link = standing.symlink_metadata().is_ok_and(|found| found.is_symlink());
    (is_link && !standing.exists()).then(|| standing.to_owned())
}

fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on that disk",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "ipam.dataDir must be a folder, but a file has this name"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "mount the disk writable, or set ipam.dataDir to another folder"
        }
        _ => "check that root can write the folder",
    };
    Error::io(format!("{what} {}", path.display()), error).advise(advice)
}
