//! The records of all owners of the node, by their notes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use log::{debug, warn};

use crate::mark::NotedOwner;
use crate::owner_file::{NotedRecord, OwnerFile, OwnerRecords, peek};

/// A record of an owner of this node, by its note.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    pub(crate) owner: NotedOwner,
    pub(crate) record: NotedRecord,
}

/// How long another call may have the turn of an owner at another site.
const PATIENCE: Duration = Duration::from_millis(500);

/// The records of all owners of the node, by their notes in this folder.
pub(crate) fn node_records(owners: &Path) -> Vec<NodeRecord> {
    let mut records = Vec::new();
    for (network, folder) in entries(owners) {
        for (node, folder) in entries(&folder) {
            for (name, path) in entries(&folder) {
                // A `#` is in the names of drafts.
                let owner = name.split_once(':').filter(|_| !name.contains('#'));
                let Some((container, ifname)) = owner else { continue };
                let note = match peek(&path) {
                    Ok(Some(note)) => note,
                    Ok(None) => continue,
                    Err(error) => {
                        warn!(
                            "ignores {}: {error}: if the container {container} has ended, remove this file",
                            path.display()
                        );
                        continue;
                    }
                };
                let [network, node, container, ifname] =
                    [&*network, &*node, container, ifname].map(str::to_owned);
                let owner = NotedOwner { network, node, container, ifname };
                if note.is_over() {
                    forget(owners, &owner);
                }
                let of_owner = |record| NodeRecord { owner: owner.clone(), record };
                records.extend(note.records.into_iter().map(of_owner));
            }
        }
    }
    records
}

/// Forgets a record that is deleted in the notes of the node's other sites: the configuration may
/// have named the server otherwise when the record was noted.
pub(crate) fn forget_in_other_sites(owners: &Path, id: &str) {
    let Some((site, sites)) = owners.parent().and_then(|site| Some((site, site.parent()?))) else {
        return;
    };
    let others = entries(sites).into_iter().map(|(_, other)| other);
    for other in others.filter(|other| other != site && other.is_dir()) {
        let owners = other.join("owners");
        for noted in node_records(&owners).into_iter().filter(|noted| noted.record.id == id) {
            let give_up = Instant::now() + PATIENCE;
            if let Ok(mut turn) = OwnerFile::take(&owners, &noted.owner, give_up, false) {
                turn.forget_record(id);
            }
        }
    }
}

/// Forgets an owner of which no DEL comes any more.
fn forget(owners: &Path, owner: &NotedOwner) {
    if let Ok(mut turn) = OwnerFile::take(owners, owner, Instant::now(), false)
        && turn.note().is_some_and(OwnerRecords::is_over)
    {
        turn.forget();
    }
}

/// The names and paths in a folder; none if it is missing.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            debug!("cannot read {}: {error}", folder.display());
            return Vec::new();
        }
    };
    let named = entries.flatten().map(|entry| (entry.file_name().into_string(), entry.path()));
    named.filter_map(|(name, path)| Some((name.ok()?, path))).collect()
}
