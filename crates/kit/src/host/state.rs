use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use rustix::io::Errno;

use super::{Node, Settings};
use crate::cni::{Network, NetworkName, shown};
use crate::error::{Error, Result};

/// The state folder: what this node knows of its attachments, and its identity.
#[derive(Clone, Debug)]
pub struct StateDir {
    root: PathBuf,
    from_network: bool,
}

impl StateDir {
    /// The state folder of the host-wide settings.
    pub fn of_host(settings: &Settings) -> Self {
        Self { root: settings.state_dir.clone(), from_network: false }
    }

    /// The state folder for calls with this network configuration: `ipam.stateDir`, else the
    /// host-wide one.
    pub(crate) fn of(network: &Network, settings: &Settings) -> Result<Self> {
        match network.ipam().get("stateDir") {
            None => Ok(Self::of_host(settings)),
            Some(value) => match value.as_str().map(PathBuf::from) {
                Some(root) if root.is_absolute() => Ok(Self { root, from_network: true }),
                _ => {
                    let message = format!("expected an absolute path, found {}", shown(value));
                    Err(Error::config("ipam.stateDir", message))
                }
            },
        }
    }

    /// Whether the network configuration chose the folder, so that a DEL whose configuration was
    /// stripped will not find it.
    pub fn is_from_network(&self) -> bool {
        self.from_network
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of attachment records.
    pub fn attachments(&self) -> PathBuf {
        self.root.join("attachments")
    }

    /// The folder of one network's attachment records.
    pub fn network(&self, network: &NetworkName) -> PathBuf {
        self.attachments().join(network.as_str())
    }

    /// The folder with the names of the records whose DEL has to be repeated.
    pub fn unsure(&self) -> PathBuf {
        self.root.join("unsure")
    }

    /// The folders of records that were renamed when the node got another identity.
    pub fn set_aside(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with("attachments.")) {
                found.push(entry.path());
            }
        }
        found.sort_unstable();
        found
    }

    /// This node's identity; the first call makes it.
    ///
    /// A state folder that came from another machine (a cloned image) gets a new identity, and
    /// its attachments are renamed: they are the original's.
    pub fn node(&self, settings: &Settings) -> Result<Node> {
        Node::establish(self, settings)
    }

    /// Fails if an ADD could not write its record: no right, or a full disk. It writes nothing.
    pub fn writable(&self) -> io::Result<()> {
        can_write(&self.attachments())
    }
}

/// Fails if no file can be made in a folder, which need not exist yet: no right, or a full disk. It
/// writes nothing.
///
/// # Errors
/// The reason.
pub fn can_write(folder: &Path) -> io::Result<()> {
    let mut folder = folder.to_owned();
    loop {
        match access(&folder, Access::WRITE_OK | Access::EXEC_OK) {
            Err(Errno::NOENT) if folder.pop() => {}
            Err(error) => return Err(error.into()),
            Ok(()) if folder.is_dir() => break,
            Ok(()) => return Err(Errno::NOTDIR.into()),
        }
    }
    let disk = statvfs(&folder)?;
    // Some file systems count no files.
    let full = disk.f_bfree == 0 || (disk.f_files > 0 && disk.f_ffree == 0);
    if full { Err(Errno::NOSPC.into()) } else { Ok(()) }
}
