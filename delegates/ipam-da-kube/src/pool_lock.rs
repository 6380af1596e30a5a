//! Turns among the calls of a node that change the same pool.
//!
//! The server carries out changes of one object one after the other, and tries each again that
//! meets another: twenty at once cost it far more than one after the other. Uniqueness comes from
//! the server, so a call whose turn does not come in time goes on without it. It waits longer while
//! turns change hands: a hundred calls that lose patience together meet at the server.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ipam_kit::host::{StateDir, lock, make_private_folder, open_own};
use log::debug;
use rustix::fs::OFlags;

/// The turns of this node at pools.
#[derive(Debug)]
pub(crate) struct PoolLocks {
    folder: PathBuf,
    /// How long to wait while the turn does not change hands, and altogether.
    patience: Duration,
    longest: Duration,
}

impl PoolLocks {
    /// Makes the locks of a namespace. A call waits for `patience` while the turn does not change
    /// hands, and altogether for a random part of what it has `left`, from half to four fifths:
    /// calls that began together do not give up together.
    pub(crate) fn new(
        state: &StateDir,
        namespace: &str,
        patience: Duration,
        left: Duration,
    ) -> Self {
        let folder = state.root().join("kube").join(FOLDER).join(namespace);
        let [random, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
        let longest = left / 2 + left * u32::from(random) / 850;
        Self { folder, patience: patience.min(longest), longest }
    }

    /// Waits for the turn at each of these pools, in the order of their names. The turns last until
    /// the files are dropped.
    pub(crate) fn take(&self, pools: &BTreeSet<String>) -> Vec<File> {
        let give_up = Instant::now() + self.longest;
        let mut taken = Vec::new();
        for pool in pools {
            let path = self.folder.join(pool);
            match self.open(&path).and_then(|file| Ok(self.wait(&file, give_up)?.then_some(file))) {
                Ok(Some(file)) => taken.push(file),
                Ok(None) => debug!("{} is locked: goes on without it", path.display()),
                Err(error) => debug!("cannot lock {}: {error}", path.display()),
            }
        }
        taken
    }

    /// Waits for one turn. The file's time of modification shows when the turn last began.
    fn wait(&self, file: &File, give_up: Instant) -> io::Result<bool> {
        let mut seen = file.metadata()?.modified()?;
        while !lock(file, give_up.min(Instant::now() + self.patience))? {
            let now = file.metadata()?.modified()?;
            if now == seen || Instant::now() >= give_up {
                return Ok(false);
            }
            seen = now;
        }
        file.set_modified(SystemTime::now())?;
        Ok(true)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        let open = || open_own(path, OFlags::WRONLY | OFlags::CREATE, 0o600);
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private_folder(&self.folder)?;
                open()
            }
            other => other,
        }
    }
}

/// Beside the folders of networks, whose names cannot have the sign.
const FOLDER: &str = "#locks";

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(folder: &Path) -> PoolLocks {
        let patience = Duration::from_secs(1);
        PoolLocks { folder: folder.to_owned(), patience, longest: Duration::from_secs(60) }
    }

    #[test]
    fn a_call_waits_while_turns_change_hands() {
        let folder = tempfile::tempdir().unwrap();
        let (locks, pools) = (locks(folder.path()), BTreeSet::from(["pool".to_owned()]));
        let turn = locks.take(&pools);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| locks.take(&pools).len());
            let begun = Instant::now();
            while begun.elapsed() < 2 * locks.patience {
                turn[0].set_modified(SystemTime::now()).unwrap();
            }
            drop(turn);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_call_goes_on_without_a_turn_that_does_not_end() {
        let folder = tempfile::tempdir().unwrap();
        let (locks, pools) = (locks(folder.path()), BTreeSet::from(["pool".to_owned()]));
        let _turn = locks.take(&pools);
        assert!(locks.take(&pools).is_empty());
    }
}
