//! Finds host-local's leases of an attachment if the annotation cannot be read.
//!
//! The annotation names the folder (`dataDir`). Without it, a DEL and a CHECK of a container from
//! before this delegate look below all folders that the host allows.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ipam_kit::cni::address::parse_address;
use ipam_kit::host::{Settings, read_own};
use ipam_kit::{Error, ErrorCode, Request, Result};
use serde_json::{Map, Value, json};

/// The settings by which an allocator finds the leases of the request's attachment; `None` if no
/// allowed folder has one.
///
/// # Errors
/// Code 113: a folder cannot be read, or two folders have leases of the attachment.
pub(crate) fn settings(request: &Request) -> Result<Option<Map<String, Value>>> {
    let attachment = request.attachment()?;
    let network = request.network.name();
    let owner = LeaseOwner {
        network: network.as_str(),
        container: attachment.container.as_str(),
        container_and_ifname: format!("{}\r\n{}", attachment.container, attachment.ifname),
    };
    let mut found = owner.leases(&request.settings).map_err(|error| {
        let (container, ifname) = (&attachment.container, &attachment.ifname);
        error.advise(format!(
            "to abandon its leases: ipam-delegated forget {network} {container} {ifname} --yes"
        ))
    })?;
    match (found.pop(), found.pop()) {
        (None, _) => Ok(None),
        (Some((folder, leases)), None) => {
            let mut settings = ranges(leases.into_iter().map(range));
            settings.insert("dataDir".to_owned(), json!(folder));
            Ok(Some(settings))
        }
        (Some((one, _)), Some((other, _))) => {
            let (one, other) = (one.display(), other.display());
            let message = format!("{attachment} holds leases of {network} in {other} and in {one}");
            Err(Error::new(ErrorCode::RECORD, message).advise(
                "remove its files in one of these folders; the runtime's next DEL releases the others",
            ))
        }
    }
}

/// Settings for an attachment that holds nothing: host-local requires ranges on DEL, too, and
/// releases by the owner alone.
pub(crate) fn nothing() -> Map<String, Value> {
    ranges([json!([{ "subnet": "192.0.2.0/24" }])].into_iter())
}

fn ranges(sets: impl Iterator<Item = Value>) -> Map<String, Value> {
    Map::from_iter([("ranges".to_owned(), sets.collect())])
}

/// A range set of this address alone, with a subnet that host-local accepts.
fn range(address: IpAddr) -> Value {
    let prefix = if address.is_ipv4() { 24 } else { 64 };
    let subnet = ipnet::IpNet::new_assert(address, prefix).trunc();
    json!([{ "subnet": subnet, "rangeStart": address, "rangeEnd": address }])
}

/// The owner of the leases, as host-local writes it.
struct LeaseOwner<'a> {
    network: &'a str,
    /// As releases before 0.7.0 write it.
    container: &'a str,
    container_and_ifname: String,
}

/// How many folders are searched.
const MOST: usize = 10_000;

/// The longest lease file, in bytes.
const LONGEST: u64 = 4096;

impl LeaseOwner<'_> {
    /// The folders with leases of the owner, each as `dataDir` names it.
    fn leases(&self, settings: &Settings) -> Result<Vec<(PathBuf, Vec<IpAddr>)>> {
        let mut seen = BTreeSet::new();
        let mut ahead: Vec<PathBuf> = settings.data_dirs.clone();
        let mut found = Vec::new();
        while let Some(folder) = ahead.pop() {
            if folder.starts_with(&settings.state_dir) {
                continue;
            }
            let leases = self
                .leases_in(&folder, &mut seen, &mut ahead)
                .map_err(|error| unreadable(&folder, error))?;
            if seen.len() > MOST {
                let message = format!("more than {MOST} folders below those of dataDirs");
                return Err(Error::new(ErrorCode::RECORD, message)
                    .advise("list only folders with leases in dataDirs"));
            }
            // An annotation may not name a folder above those of dataDirs.
            let data_dir = folder.parent().filter(|parent| {
                settings.data_dirs.iter().any(|allowed| parent.starts_with(allowed))
            });
            if let Some(data_dir) = data_dir
                && !leases.is_empty()
            {
                found.push((data_dir.to_owned(), leases));
            }
        }
        Ok(found)
    }

    /// The leases of the owner in a folder; its subfolders are added to `ahead`.
    fn leases_in(
        &self,
        folder: &Path,
        seen: &mut BTreeSet<(u64, u64, bool)>,
        ahead: &mut Vec<PathBuf>,
    ) -> io::Result<Vec<IpAddr>> {
        let metadata = match fs::metadata(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A broken link may be a disk that is not mounted.
                return fs::symlink_metadata(folder).map_or(Ok(Vec::new()), |_| Err(error));
            }
            other => other?,
        };
        // By a link the network's folder may have another name, which host-local does not use.
        let is_networks = folder.file_name().is_some_and(|name| name == self.network);
        if !metadata.is_dir() || !seen.insert((metadata.dev(), metadata.ino(), is_networks)) {
            return Ok(Vec::new());
        }
        let mut leases = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() || kind.is_symlink() {
                ahead.push(entry.path());
                continue;
            }
            let name = entry.file_name();
            let address = name.to_str().filter(|_| is_networks && kind.is_file());
            if let Some(Ok(address)) = address.map(parse_address)
                && self.holds(&entry)?
            {
                leases.push(address);
            }
        }
        Ok(leases)
    }

    /// Whether a lease file names the owner; one that was released meanwhile does not.
    fn holds(&self, file: &DirEntry) -> io::Result<bool> {
        match read_lease(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            content => {
                let content = String::from_utf8_lossy(&content?).trim().to_owned();
                Ok(content == self.container_and_ifname || content == self.container)
            }
        }
    }
}

/// The content of a lease file; empty if the file is too long for one.
fn read_lease(file: &DirEntry) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > LONGEST {
        return Ok(Vec::new());
    }
    read_own(&file.path())
}

fn unreadable(folder: &Path, error: io::Error) -> Error {
    let message = format!("cannot look for leases in {}", folder.display());
    Error::new(ErrorCode::RECORD, message)
        .caused_by(error)
        .advise("repair the folder, which may hold leases")
}
