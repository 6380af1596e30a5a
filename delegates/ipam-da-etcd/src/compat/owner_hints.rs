//! This node's knowledge of attachments whose owners the store does not name.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipam_kit::allocate::Owner;
use ipam_kit::cni::{ContainerId, IfName, NetworkName};
use ipam_kit::host::{ResultCache, StateDir, beside, read_own, replace_own};
use ipam_kit::{Error, Result};
use log::warn;

use crate::memory;

/// Addresses that attachments of this node were given, for a store that names only the container.
///
/// They come from the runtime's cache of results and, if the store takes no index, from files of our
/// own. They are hints: the store says whether the container still has them.
#[derive(Debug)]
pub(super) struct OwnerHints {
    /// `<container>/<network>/<ifname>` below it, each with the addresses as JSON.
    folder: PathBuf,
    cache: ResultCache,
}

/// A file of ours about one attachment.
#[derive(Debug)]
pub(super) struct HintFile {
    pub(super) container: String,
    pub(super) ifname: String,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// When it was written last.
    pub(super) confirmed: Option<SystemTime>,
}

impl OwnerHints {
    /// Returns the hints of a node.
    pub(super) fn open(state: &StateDir, cache: &Path) -> Self {
        Self { folder: memory::folder(state).join("owners"), cache: ResultCache::new(cache) }
    }

    /// Returns the addresses that an attachment was given.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn of(&self, owner: &Owner) -> Result<BTreeSet<IpAddr>> {
        let cached = self.cache.of(&owner.scope.network, &owner.container, &owner.ifname)?;
        let mut known = read(&self.file(owner))?.unwrap_or_default();
        known.extend(cached.into_iter().flat_map(|cached| cached.addresses));
        Ok(known)
    }

    /// Removes the file of an attachment.
    pub(super) fn forget(&self, owner: &Owner) {
        self.forget_named(&owner.container, &owner.scope.network, &owner.ifname);
    }

    /// Removes the file of the attachment with these names.
    pub(super) fn forget_named(
        &self,
        container: &ContainerId,
        network: &NetworkName,
        ifname: &IfName,
    ) {
        let container = self.folder.join(container.as_str());
        let folder = container.join(network.as_str());
        // Without a file there are no folders to remove.
        if fs::remove_file(folder.join(ifname.as_str())).is_ok() {
            let _ = fs::remove_dir(folder).and_then(|()| fs::remove_dir(container));
        }
    }

    /// Returns the addresses that other attachments of the same container were given, on any
    /// network.
    ///
    /// # Errors
    /// A file cannot be read: an address of another attachment might be taken for this one's.
    pub(super) fn of_others(&self, owner: &Owner) -> Result<BTreeSet<IpAddr>> {
        let own = self.file(owner);
        let mut of_others = BTreeSet::new();
        for network in files(&self.of_container(owner))? {
            for file in files(&network)?.iter().filter(|file| **file != own) {
                of_others.extend(read(file)?.into_iter().flatten());
            }
        }
        let cached = self.cache.of_container(&owner.container)?.into_iter().filter(|cached| {
            cached.network != owner.scope.network || cached.ifname != owner.ifname
        });
        of_others.extend(cached.flat_map(|cached| cached.addresses));
        Ok(of_others)
    }

    /// Writes the file of an attachment: what it holds.
    pub(super) fn remember(&self, owner: &Owner, addresses: &BTreeSet<IpAddr>) {
        let file = self.file(owner);
        if let Err(error) = self.write(&file, addresses) {
            warn!(
                "{} cannot be written, so a repeated ADD takes another address: {error}",
                file.display()
            );
        }
    }

    /// Returns the addresses of containers of this node on a network, from the runtime's cache.
    pub(super) fn given(&self, network: &NetworkName) -> Vec<(IpAddr, String)> {
        let mut given = Vec::new();
        for cached in self.cache.of_network(network) {
            for address in cached.addresses {
                given.push((address, cached.container.to_string()));
            }
        }
        given
    }

    /// Returns every file of a network.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn all(&self, network: &NetworkName) -> Result<Vec<HintFile>> {
        let mut all = Vec::new();
        for container in files(&self.folder)? {
            for file in files(&container.join(network.as_str()))? {
                let names = name(&container).zip(name(&file));
                let (Some((container, ifname)), Some(addresses)) = (names, read(&file)?) else {
                    continue;
                };
                let confirmed = fs::metadata(&file).and_then(|about| about.modified()).ok();
                all.push(HintFile { container, ifname, addresses, confirmed });
            }
        }
        Ok(all)
    }

    fn write(&self, file: &Path, addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
        // Outside of the folder: the draft of a killed process must not be read as a file of it.
        let draft = beside(&self.folder, &format!("#{}", std::process::id()));
        if let Some(folder) = self.folder.parent() {
            memory::make(folder)?;
        }
        let content = serde_json::to_vec(addresses).map_err(io::Error::other)?;
        // Another process removes the folder with the last file of the container.
        write_file(file, &draft, &content).or_else(|_| write_file(file, &draft, &content))
    }

    fn of_container(&self, owner: &Owner) -> PathBuf {
        self.folder.join(owner.container.as_str())
    }

    fn file(&self, owner: &Owner) -> PathBuf {
        let network = self.of_container(owner).join(owner.scope.network.as_str());
        network.join(owner.ifname.as_str())
    }
}

fn write_file(file: &Path, draft: &Path, content: &[u8]) -> io::Result<()> {
    file.parent().map_or(Ok(()), memory::make)?;
    replace_own(file, draft, 0o600, content)
}

/// Returns the files of a folder, none if the folder is missing.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        other => other.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    let entries = entries.map_err(|error| unreadable(folder, error))?;
    Ok(entries.into_iter().map(|entry| entry.path()).collect())
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Returns the addresses in a file. A file of another program has none.
fn read(file: &Path) -> Result<Option<BTreeSet<IpAddr>>> {
    match read_own(file) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(unreadable(file, error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    error.raw_os_error().is_none()
        || matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("{} cannot be read, which lists addresses of a container", path.display()),
        error,
    )
    .advise("call again; if the error persists, check the disk, or remove the file")
}
