//! One lease file, as host-local writes it: `CONTAINER\r\nIFNAME`, its name the address.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipam_kit::cni::address::parse_address;
use ipam_kit::host::{is_old, open_own};
use ipam_kit::presence::Presence;
use ipam_kit::{Error, Result};
use ipnet::IpNet;
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};
use rustix::io::{Errno, retry_on_intr};
use serde_json::Value;

/// A lease file that was read.
#[derive(Clone, Debug)]
pub(crate) struct LeaseFile {
    /// The file's name: the address, perhaps not in the form that we would write.
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) content: LeaseContent,
    /// Inode and mtime, which change with every lease and every confirmation of it.
    pub(crate) revision: FileRevision,
    pub(crate) modified: Option<SystemTime>,
    /// When the file was made: see [`Self::with_age`].
    pub(crate) made: Option<SystemTime>,
}

/// The content of a lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseContent {
    /// The holder of the lease; host-local before 0.8 wrote no interface.
    Holder { container: String, ifname: Option<String> },
    /// Nothing, as after a plugin was killed between two system calls.
    Empty,
    /// Invalid, for this reason.
    Unreadable(String),
}

/// The identity of a lease: inode and mtime of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileRevision {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

/// An empty lease file younger than this may be one that is just being written.
const LEFTOVER_AFTER: Duration = Duration::from_secs(300);

/// A container id and an interface name are shorter.
const LIMIT: u64 = 4096;

impl LeaseFile {
    /// Returns the address in a file name, in whatever form; `None` for other files.
    pub(crate) fn address_of(name: &str) -> Option<IpAddr> {
        parse_address(name).ok()
    }

    /// Reads a lease file. One with invalid content is held, as [`LeaseContent::Unreadable`].
    pub(crate) fn read(folder: &Path, name: &str) -> Presence<Self> {
        match Self::try_read(folder, name) {
            Ok(Some(file)) => Presence::Held(file),
            Ok(None) => Presence::Absent,
            Err(error) => Presence::Unreadable(read_error(&folder.join(name), error)),
        }
    }

    /// Reads a lease file for a listing: a file that cannot be read is an entry, too, and counts as
    /// taken.
    pub(crate) fn shown(folder: &Path, name: &str) -> Option<Self> {
        match Self::read(folder, name) {
            Presence::Held(file) => Some(file),
            Presence::Absent => None,
            Presence::Unreadable(error) => Self::unreadable(name, &error.in_full()),
        }
    }

    fn try_read(folder: &Path, name: &str) -> io::Result<Option<Self>> {
        let Some(address) = Self::address_of(name) else { return Ok(None) };
        let file = match open_own(&folder.join(name), OFlags::RDONLY, 0) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // The system opens it, but it is not a regular file.
            Err(error) if error.raw_os_error().is_none() => {
                return Ok(Self::unreadable(name, &error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        Ok(Some(Self {
            name: name.to_owned(),
            address,
            content: read_content(file)?,
            revision: FileRevision::of(&metadata),
            modified: metadata.modified().ok(),
            made: None,
        }))
    }

    /// Makes the entry of a file with an address for a name that cannot be read, for this reason.
    pub(crate) fn unreadable(name: &str, reason: &str) -> Option<Self> {
        Some(Self {
            name: name.to_owned(),
            address: Self::address_of(name)?,
            content: LeaseContent::Unreadable(reason.to_owned()),
            revision: FileRevision::default(),
            modified: None,
            made: None,
        })
    }

    /// Adds the time when the file was made, which a confirmation does not change; or when it was
    /// last changed, if the file system has no such time.
    ///
    /// # Errors
    /// The system did not answer.
    pub(crate) fn with_age(mut self, folder: &Path) -> Result<Self> {
        let path = folder.join(&self.name);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let status = match retry_on_intr(|| statx(CWD, &path, flags, StatxFlags::BTIME)) {
            Ok(status) => Some(status),
            // An old kernel, or a filter of system calls.
            Err(Errno::NOSYS | Errno::PERM | Errno::NOENT) => None,
            Err(error) => return Err(read_error(&path, error.into())),
        };
        let status = status.filter(|status| status.stx_mask & StatxFlags::BTIME.bits() != 0);
        let made = status.and_then(|status| {
            let seconds = u64::try_from(status.stx_btime.tv_sec).ok()?;
            Some(UNIX_EPOCH + Duration::new(seconds, status.stx_btime.tv_nsec))
        });
        self.made = made.or(self.modified);
        Ok(self)
    }

    /// Returns whether the file says that this owner holds it.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        matches!(&self.content, LeaseContent::Holder { container, ifname: Some(ifname) }
            if container == owner.container.as_str() && ifname == owner.ifname.as_str())
    }

    /// Returns whether the file is of this container and names no interface.
    pub(crate) fn is_of_container(&self, owner: &Owner) -> bool {
        matches!(&self.content, LeaseContent::Holder { container, ifname: None }
            if container == owner.container.as_str())
    }

    /// Returns whether the file is empty, and so old that no process is writing it.
    pub(crate) fn is_leftover(&self) -> bool {
        let Some(modified) = self.modified else { return false };
        self.content == LeaseContent::Empty && is_old(modified, LEFTOVER_AFTER, SystemTime::now())
    }

    /// Returns the lease. Prefix length, gateway and pool are not in the file.
    pub(crate) fn lease(&self) -> Lease {
        Lease {
            taken: self.made,
            ..Lease::bare(IpNet::from(self.address), self.revision.to_json())
        }
    }

    /// Returns the file as an entry of the ledger.
    pub(crate) fn entry(&self) -> Entry {
        let holder = match &self.content {
            LeaseContent::Holder { container, ifname } => Some(Holder {
                container: container.clone(),
                ifname: ifname.clone(),
                ..Holder::default()
            }),
            _ => None,
        };
        let fault = match &self.content {
            LeaseContent::Holder { .. } => None,
            LeaseContent::Empty if self.is_leftover() => Some(Fault::Leftover),
            LeaseContent::Empty => {
                Some(Fault::Unreadable("empty: a plugin may be writing it".to_owned()))
            }
            LeaseContent::Unreadable(reason) => Some(Fault::Unreadable(reason.clone())),
        };
        Entry { lease: self.lease(), holder, since: self.modified, fault }
    }
}

impl LeaseContent {
    fn unreadable(reason: &str) -> Self {
        Self::Unreadable(reason.to_owned())
    }
}

impl FileRevision {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec(),
        }
    }

    /// Returns the revision in the form that a lease has.
    pub(crate) fn to_json(self) -> Value {
        format!("{}.{}.{:09}", self.inode, self.seconds, self.nanoseconds).into()
    }
}

/// Makes the error of a lease file whose owner is unknown.
fn read_error(path: &Path, error: io::Error) -> Error {
    let advice = match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files, and call again",
        Some(Errno::ACCESS | Errno::PERM) => {
            "run it as root; if it was, check the rights of the file and its folders; keep the file"
        }
        _ => {
            "call again; if the error persists, check the disk, and remove the file when no container uses the address"
        }
    };
    Error::io(format!("cannot read the lease file {}", path.display()), error).advise(advice)
}

fn read_content(file: File) -> io::Result<LeaseContent> {
    let mut bytes = Vec::with_capacity(128);
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    Ok(parse(&bytes))
}

/// Parses a lease file. Like host-local, it ignores white space around the content.
fn parse(bytes: &[u8]) -> LeaseContent {
    if bytes.len() as u64 > LIMIT {
        return LeaseContent::unreadable("longer than a container id");
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return LeaseContent::unreadable("not UTF-8");
    };
    let text = text.trim();
    if text.is_empty() {
        return LeaseContent::Empty;
    }
    let (container, ifname) = match text.split_once("\r\n") {
        None => (text, None),
        Some((container, ifname)) => (container, Some(ifname)),
    };
    if text.replace("\r\n", "").contains(char::is_control)
        || ifname.is_some_and(|i| i.contains("\r\n"))
    {
        return LeaseContent::unreadable("expected a container id and an interface name");
    }
    LeaseContent::Holder { container: container.to_owned(), ifname: ifname.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_host_local_reads_them() {
        let holder = |container: &str, ifname: Option<&str>| LeaseContent::Holder {
            container: container.to_owned(),
            ifname: ifname.map(str::to_owned),
        };
        for (bytes, content) in [
            ("c1\r\neth0", holder("c1", Some("eth0"))),
            (" c1\r\neth0\n", holder("c1", Some("eth0"))),
            ("c1", holder("c1", None)),
            ("c1\n", holder("c1", None)),
            ("", LeaseContent::Empty),
            (" \r\n", LeaseContent::Empty),
        ] {
            assert_eq!(parse(bytes.as_bytes()), content, "{bytes:?}");
        }
        for bytes in [&b"c1\neth0"[..], b"c1\r\neth0\r\nx", b"c\x00", b"\xff\xfe", &[b'x'; 5000]] {
            assert!(matches!(parse(bytes), LeaseContent::Unreadable(_)), "{bytes:?}");
        }
    }

    #[test]
    fn names_in_any_form_of_an_address_are_leases() {
        for name in ["10.1.2.3", "fd00::1", "fd00:0::1", "FD00::1", "::ffff:10.1.2.3"] {
            assert!(LeaseFile::address_of(name).is_some(), "{name}");
        }
        for name in ["lock", "last_reserved_ip.0", "10.1.2.3.bak", "10.1.2.03", "fd00__1", ""] {
            assert!(LeaseFile::address_of(name).is_none(), "{name}");
        }
    }

    #[test]
    fn only_an_old_empty_file_is_a_leftover() {
        let temp = tempfile::TempDir::new().unwrap();
        let path = temp.path().join("10.0.0.2");
        let file = File::create(&path).unwrap();
        let read = |name| LeaseFile::read(temp.path(), name).known().unwrap();
        let leftover = || read("10.0.0.2").is_some_and(|file| file.is_leftover());
        assert!(!leftover());
        file.set_modified(SystemTime::now() - LEFTOVER_AFTER).unwrap();
        assert!(leftover());
        std::fs::write(&path, "c1").unwrap();
        file.set_modified(SystemTime::now() - LEFTOVER_AFTER).unwrap();
        assert!(!leftover());
        std::fs::create_dir(temp.path().join("10.0.0.3")).unwrap();
        let folder = read("10.0.0.3").unwrap();
        assert_eq!(folder.content, LeaseContent::Unreadable("not a regular file".to_owned()));
        assert!(read("10.0.0.4").is_none());
    }
}
