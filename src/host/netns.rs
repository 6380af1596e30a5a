use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::statfs;

/// What stands at the path of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Netns {
    Stands,
    /// Nothing, or a plain file that an unmounted namespace left.
    Gone,
    /// It cannot be looked at.
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
