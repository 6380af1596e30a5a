use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::io::Errno;

/// The state of a network namespace, by its path. For `reap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Netns {
    /// A namespace is mounted there.
    Stands,
    /// Nothing, or a plain file that an unmounted namespace left.
    Gone,
    /// It cannot be read.
    Unknown,
}

/// The file system of namespaces (`NSFS_MAGIC`).
const NSFS: u64 = 0x6e73_6673;

impl Netns {
    /// Looks at the path that a runtime gave in `CNI_NETNS`.
    pub fn at(path: &str) -> Self {
        if path.is_empty() {
            return Self::Unknown;
        }
        match fs::metadata(path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Self::Gone
            }
            Err(_) => Self::Unknown,
            // A process' own entry is there as long as the process is.
            Ok(_) if Path::new(path).starts_with("/proc") => Self::Stands,
            Ok(_) => match statfs(path) {
                Ok(found) if u64::try_from(found.f_type) == Ok(NSFS) => Self::Stands,
                Ok(_) => Self::Gone,
                Err(_) => Self::Unknown,
            },
        }
    }
}

/// The network namespaces that processes live in, by device and inode. For `reap`.
#[derive(Debug)]
pub struct InhabitedNamespaces(BTreeSet<(u64, u64)>);

impl InhabitedNamespaces {
    /// Looks at every thread of every process that `/proc` shows.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn look() -> io::Result<Self> {
        let mut found = BTreeSet::new();
        for process in numbered(Path::new("/proc"))? {
            for thread in numbered(&process.join("task"))? {
                let path = thread.join("ns/net");
                let seen = unless_ended(fs::metadata(&path)).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                });
                found.extend(seen?.map(|it| (it.dev(), it.ino())));
            }
        }
        Ok(Self(found))
    }

    /// Whether a process lives in the namespace at this path; true if that is unknown.
    pub fn has(&self, path: &str) -> bool {
        fs::metadata(path).map_or(true, |found| self.0.contains(&(found.dev(), found.ino())))
    }
}

/// The entries of a folder of `/proc` that are numbers.
fn numbered(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in unless_ended(fs::read_dir(folder))?.into_iter().flatten() {
        found.extend(unless_ended(entry)?.map(|entry| entry.path()).filter(|path| is_number(path)));
    }
    Ok(found)
}

fn is_number(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `None` for a process that has ended.
fn unless_ended<T>(seen: io::Result<T>) -> io::Result<Option<T>> {
    match seen {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_told_from_what_an_unmounted_one_leaves() {
        let temp = tempfile::TempDir::new().unwrap();
        let file = temp.path().join("left");
        fs::write(&file, "").unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("/proc/self/ns/net", &link).unwrap();
        let at = |path: &Path| Netns::at(path.to_str().unwrap());
        assert_eq!(at(&file), Netns::Gone);
        assert_eq!(at(&temp.path().join("none")), Netns::Gone);
        assert_eq!(at(&link), Netns::Stands);
        assert_eq!(at(Path::new("/proc/self/ns/net")), Netns::Stands);
        assert_eq!(at(Path::new("/proc/4294967295/ns/net")), Netns::Gone);
        assert_eq!(Netns::at(""), Netns::Unknown);
    }
}
