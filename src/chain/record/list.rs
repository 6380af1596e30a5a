use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use log::warn;

use ipam_kit::cni::{Attachment, ContainerId, IfName, NetworkName};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::StateDir;

/// The networks that have a folder of records, by name.
pub(crate) fn networks(state: &StateDir) -> Result<Vec<NetworkName>> {
    let names = names(&state.attachments())?;
    Ok(names.iter().filter_map(|name| NetworkName::parse(name).ok()).collect())
}

/// The attachments that have a record in a network's folder, by name.
pub(crate) fn attachments(folder: &Path) -> Result<Vec<Attachment>> {
    let mut found = Vec::new();
    for container in names(folder)? {
        let folder = folder.join(&container);
        for ifname in names_in(&folder)?.into_iter().filter(|name| is_record_name(name)) {
            match (ContainerId::parse(&container), IfName::parse(&ifname)) {
                (Ok(container), Ok(ifname)) => {
                    found.push(Attachment { container, ifname, netns: String::new() });
                }
                _ => warn!(
                    "ignores {}: expected an attachment record",
                    folder.join(&ifname).display()
                ),
            }
        }
    }
    Ok(found)
}

/// An unreadable record: what its attachment held is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetAside {
    /// The attachment of the record, without a network namespace.
    pub attachment: Attachment,
    /// The file that keeps it.
    pub path: PathBuf,
}

/// The records of a network's folder that were set aside, by attachment, the oldest first.
///
/// # Errors
/// A folder could not be listed.
pub(crate) fn set_aside(folder: &Path) -> Result<Vec<SetAside>> {
    let mut found = Vec::new();
    for container in names(folder)? {
        let folder = folder.join(&container);
        for name in names_in(&folder)? {
            let Some((ifname, _)) = name.split_once(SET_ASIDE) else { continue };
            if let (Ok(container), Ok(ifname)) =
                (ContainerId::parse(&container), IfName::parse(ifname))
            {
                let attachment = Attachment { container, ifname, netns: String::new() };
                found.push(SetAside { attachment, path: folder.join(&name) });
            }
        }
    }
    Ok(found)
}

/// The unreadable records of the attachment whose record is at `path`, the oldest first.
///
/// # Errors
/// Its folder could not be listed.
pub(crate) fn set_aside_of(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(folder) = path.parent() else { return Ok(Vec::new()) };
    let ifname = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let prefix = format!("{ifname}{SET_ASIDE}");
    let mut names = names_in(folder)?;
    names.retain(|name| name.starts_with(&prefix));
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// The part of the name of a record set aside, between the interface and a time.
pub(crate) const SET_ASIDE: &str = ":unreadable-";

/// Whether a file name in a container's folder is an interface name. Unreadable and half-made records
/// have a `:`, which no interface name has.
pub(crate) fn is_record_name(name: &str) -> bool {
    !name.contains(':')
}

/// The entries of a container's folder; none if a file has its name.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    match entries(folder) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            warn!("ignores {}: expected a folder of attachment records", folder.display());
            Ok(Vec::new())
        }
        found => empty_if_absent(folder, found),
    }
}

/// The entries of a folder, sorted; none if the folder does not exist.
fn names(folder: &Path) -> Result<Vec<String>> {
    empty_if_absent(folder, entries(folder))
}

fn empty_if_absent(folder: &Path, found: io::Result<Vec<String>>) -> Result<Vec<String>> {
    match found {
        // A folder whose name is too long was never made.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) => {
            Ok(Vec::new())
        }
        found => found.map_err(|error| {
            let message = format!("cannot list {}", folder.display());
            let error = Error::new(ErrorCode::RECORD, message).caused_by(error);
            error.advise("check the permissions and the mount of the state folder")
        }),
    }
}

fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        match entry?.file_name().into_string() {
            Ok(name) => names.push(name),
            // The names of networks, containers and interfaces are ASCII.
            Err(name) => warn!("ignores {}: expected an ASCII name", folder.join(name).display()),
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::RecordFile;
    use super::*;

    #[test]
    fn a_record_that_was_set_aside_is_listed_with_its_attachment() {
        let temp = tempfile::TempDir::new().unwrap();
        let record = temp.path().join("c1/eth0");
        fs::create_dir_all(record.parent().unwrap()).unwrap();
        fs::write(&record, "no event\n").unwrap();
        drop(RecordFile::open(&record).unwrap());
        fs::write(record.with_file_name("eth0:new"), "").unwrap();
        let found = set_aside(temp.path()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].attachment.to_string(), "c1/eth0");
        assert_eq!(fs::read(&found[0].path).unwrap(), b"no event\n");
        // The record that was begun since is another one.
        assert_eq!(attachments(temp.path()).unwrap().len(), 1);
        assert_eq!(set_aside(&temp.path().join("none")).unwrap(), []);
    }
}
