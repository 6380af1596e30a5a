use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use log::warn;

use super::place::{RecordPlace, SET_ASIDE};
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
    let mut found = BTreeMap::new();
    let mut add = |container: &str, ifname: &str, path: &Path| match parse(container, ifname) {
        Some(attachment) => {
            found.insert((container.to_owned(), ifname.to_owned()), attachment);
        }
        None => warn!("ignores {}: expected an attachment record", path.display()),
    };
    for name in names(folder)? {
        let path = folder.join(&name);
        match name.split_once(':') {
            Some((container, ifname)) if is_record_name(ifname) => add(container, ifname, &path),
            Some(_) => {}
            None => {
                for ifname in names_in(&path)?.iter().filter(|name| is_record_name(name)) {
                    add(&name, ifname, &path.join(ifname));
                }
            }
        }
    }
    Ok(found.into_values().collect())
}

fn parse(container: &str, ifname: &str) -> Option<Attachment> {
    let container = ContainerId::parse(container).ok()?;
    let ifname = IfName::parse(ifname).ok()?;
    Some(Attachment { container, ifname, netns: String::new() })
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
    for container in names(folder)?.into_iter().filter(|name| is_record_name(name)) {
        let folder = folder.join(&container);
        for name in names_in(&folder)? {
            let Some((ifname, _)) = name.split_once(SET_ASIDE) else { continue };
            if let Some(attachment) = parse(&container, ifname) {
                found.push(SetAside { attachment, path: folder.join(&name) });
            }
        }
    }
    Ok(found)
}

/// The unreadable records of an attachment, the oldest first.
///
/// # Errors
/// The container's folder could not be listed.
pub(crate) fn set_aside_of(place: &RecordPlace) -> Result<Vec<PathBuf>> {
    let prefix = place.aside_prefix();
    let mut names = names_in(place.folder())?;
    names.retain(|name| name.starts_with(&prefix));
    Ok(names.into_iter().map(|name| place.folder().join(name)).collect())
}

/// Whether a name may be a container or an interface. Records that are unreadable or half-made have
/// one more `:`.
fn is_record_name(name: &str) -> bool {
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
    use super::super::tests::attachment;
    use super::*;

    #[test]
    fn a_record_that_was_set_aside_is_listed_with_its_attachment() {
        let temp = tempfile::TempDir::new().unwrap();
        let place = RecordPlace::below(temp.path(), &attachment("c1", "eth0"));
        fs::write(place.path(), "no event\n").unwrap();
        drop(RecordFile::open(&place).unwrap());
        fs::write(temp.path().join("c1:eth0:new"), "").unwrap();
        let found = set_aside(temp.path()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].attachment.to_string(), "c1/eth0");
        assert_eq!(fs::read(&found[0].path).unwrap(), b"no event\n");
        // The record that was begun since is another one.
        assert_eq!(attachments(temp.path()).unwrap().len(), 1);
        assert_eq!(set_aside(&temp.path().join("none")).unwrap(), []);
    }
}
