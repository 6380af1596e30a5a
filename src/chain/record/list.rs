use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use log::warn;

use crate::cni::{Attachment, ContainerId, IfName, NetworkName};
use crate::error::{Error, Result};
use crate::host::StateDir;

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
        for ifname in names(&folder)?.into_iter().filter(|name| is_record_name(name)) {
            match (ContainerId::parse(&container), IfName::parse(&ifname)) {
                (Ok(container), Ok(ifname)) => {
                    found.push(Attachment { container, ifname, netns: String::new() });
                }
                _ => warn!("{} is no attachment record", folder.join(&ifname).display()),
            }
        }
    }
    Ok(found)
}

/// Whether a file name in a container's folder is an interface name: what is set aside or half
/// made carries a `:`, which no interface name has.
pub(super) fn is_record_name(name: &str) -> bool {
    !name.contains(':')
}

/// The entries of a folder, sorted; none where there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io(format!("cannot list {}", folder.display()), error);
    let mut names = Vec::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries {
                names.extend(entry.map_err(failed)?.file_name().into_string());
            }
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
        Err(error) => return Err(failed(error)),
    }
    names.sort_unstable();
    Ok(names)
}
