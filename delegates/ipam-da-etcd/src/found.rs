//! Which containers a replaced plugin has given addresses, as this node found the store.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::PathBuf;

use ipam_delegated::cni::NetworkName;
use ipam_delegated::host::StateDir;
use log::warn;

use crate::memory;

/// The containers that held addresses of a network when this program, as it is installed, first took one on
/// this node, each as a number made of its id, sorted. One that is not among them holds nothing that
/// we have not given, so that its first ADD need not look.
#[derive(Debug)]
pub struct Found {
    path: PathBuf,
}

/// How long a number is, in bytes.
const LENGTH: u64 = 8;

impl Found {
    /// What is noted of a network.
    pub fn of(state: &StateDir, network: &NetworkName) -> Self {
        Self { path: memory::folder(state).join(format!("{network}.found")) }
    }

    /// Whether a container may hold something; `None` when nobody has looked since this program was
    /// installed: the other one may have been at work until then.
    pub fn may_hold(&self, container: &str) -> Option<bool> {
        let file = File::open(&self.path).ok()?;
        let at = |place: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, place * LENGTH).ok()?;
            Some(u64::from_be_bytes(bytes))
        };
        let count = file.metadata().ok()?.len() / LENGTH;
        if at(0)? != installed() {
            return None;
        }
        let wanted = number(container);
        let (mut low, mut high) = (1, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match at(middle)?.cmp(&wanted) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(true),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Some(false)
    }

    /// Notes the containers that were found.
    pub fn note<'a>(&self, containers: impl Iterator<Item = &'a str>) {
        let mut numbers: Vec<u64> = containers.map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.insert(0, installed());
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_be_bytes).collect();
        if let Err(error) = self.write(&bytes) {
            warn!("{} cannot be written: {error}", self.path.display());
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // Two that look at once write the same, or nearly so.
        let temporary = self.path.with_extension(format!("found.{}", std::process::id()));
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, &self.path)
    }
}

/// The file that this process runs.
fn installed() -> u64 {
    fs::metadata("/proc/self/exe").map_or(0, |file| file.ino())
}

/// A number made of a name (FNV-1a): the same in every version of the program.
fn number(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_found_again() {
        let folder = tempfile::TempDir::new().unwrap();
        let found = Found { path: folder.path().join("etcd/net.found") };
        assert_eq!(found.may_hold("c1"), None);
        found.note(["c3", "c1", "c2", "c1"].into_iter());
        for (container, expected) in [("c1", true), ("c2", true), ("c3", true), ("c4", false)] {
            assert_eq!(found.may_hold(container), Some(expected), "{container}");
        }
        found.note(std::iter::empty());
        assert_eq!(found.may_hold("c1"), Some(false));
    }
}
