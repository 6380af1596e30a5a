use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::opening::is_absent;
use ipam_kit::cni::{Attachment, NetworkName};
use ipam_kit::host::{StateDir, beside};

/// Where the record of an attachment is: `CONTAINER:IFNAME` in the network's folder, or
/// `CONTAINER/IFNAME`, as earlier programs made it.
///
/// The folder of a container costs an inode, which on some disks is a third of an ADD. It is made
/// for what is rare: a record whose name is too long for a file, and records that were set aside.
#[derive(Clone, Debug)]
pub(crate) struct RecordPlace {
    /// The record; `None` if its name is too long.
    file: Option<PathBuf>,
    /// The record in the container's folder.
    in_folder: PathBuf,
}

/// The longest name of a file, in bytes.
const NAME_MAX: usize = 255;

/// The part of the name of a record set aside, between the interface and a time.
pub(super) const SET_ASIDE: &str = ":unreadable-";

/// The mark of a record that is being compacted.
const DRAFT: &str = ":new";

impl RecordPlace {
    /// The place of an attachment's record in this state folder.
    pub(crate) fn of(state: &StateDir, network: &NetworkName, attachment: &Attachment) -> Self {
        Self::below(&state.network(network), attachment)
    }

    /// The place in a network's folder.
    pub(crate) fn below(network: &Path, attachment: &Attachment) -> Self {
        let Attachment { container, ifname, .. } = attachment;
        let name = format!("{container}:{ifname}");
        Self {
            file: (name.len() + DRAFT.len() <= NAME_MAX).then(|| network.join(name)),
            in_folder: network.join(container.as_str()).join(ifname.as_str()),
        }
    }

    /// The record's path. If an earlier program has made the record, or that is unknown, it is in
    /// the container's folder.
    pub(crate) fn path(&self) -> &Path {
        match &self.file {
            Some(file) if is_surely_absent(&self.in_folder) => file,
            _ => &self.in_folder,
        }
    }

    /// Whether records are made at this path. At another one, an absent file proves nothing: an
    /// earlier program made the record there, or the place could not be looked at.
    pub(super) fn is_own(&self, path: &Path) -> bool {
        self.file.as_deref().is_none_or(|file| file == path)
    }

    /// The container's folder, which need not exist.
    pub(crate) fn folder(&self) -> &Path {
        self.in_folder.parent().unwrap_or(Path::new("/"))
    }

    /// The path of a record that was set aside at this time.
    pub(super) fn aside(&self, time: u64) -> PathBuf {
        beside(&self.in_folder, &format!("{SET_ASIDE}{time}"))
    }

    /// The part of the names of this record's files set aside before their times.
    pub(super) fn aside_prefix(&self) -> String {
        let ifname = self.in_folder.file_name().unwrap_or_default().to_string_lossy();
        format!("{ifname}{SET_ASIDE}")
    }

    /// The path of the compacted record, until it replaces the long one.
    pub(super) fn draft(path: &Path) -> PathBuf {
        beside(path, DRAFT)
    }

    /// Removes a file of the attachment, and the container's folder with the last one in it.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        // What a kill left of a compaction. It goes first: no list shows it alone.
        let _ = fs::remove_file(Self::draft(path));
        fs::remove_file(path)?;
        let _ = fs::remove_dir(self.folder());
        Ok(())
    }
}

fn is_surely_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| is_absent(&error))
}
