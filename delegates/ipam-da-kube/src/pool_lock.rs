//! Turns among the calls of a node that change the same pool.
//!
//! The server carries out changes of one object one after the other, and tries each again that
//! meets another: twenty at once cost it far more than one after the other. Uniqueness comes from
//! the server, so a call whose turn does not come in time goes on without it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipam_kit::host::{StateDir, lock, make_private_folder, open_own};
use log::debug;
use rustix::fs::OFlags;

/// The turns of this node at pools.
#[derive(Debug)]
pub(crate) struct PoolLocks {
    folder: PathBuf,
    patience: Duration,
}

impl PoolLocks {
    /// Makes the locks of a namespace. A call waits no longer than `patience`.
    pub(crate) fn new(state: &StateDir, namespace: &str, patience: Duration) -> Self {
        let folder = state.root().join("kube").join(FOLDER).join(namespace);
        Self { folder, patience }
    }

    /// Waits for the turn at each of these pools, in the order of their names. The turns last until
    /// the files are dropped.
    pub(crate) fn take(&self, pools: &BTreeSet<String>) -> Vec<File> {
        let give_up = Instant::now() + self.patience;
        let mut taken = Vec::new();
        for pool in pools {
            let path = self.folder.join(pool);
            match self.open(&path).and_then(|file| Ok(lock(&file, give_up)?.then_some(file))) {
                Ok(Some(file)) => taken.push(file),
                Ok(None) => debug!("{} is locked: goes on without it", path.display()),
                Err(error) => debug!("cannot lock {}: {error}", path.display()),
            }
        }
        taken
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
