//! The records of all owners of the node, by their notes.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipam_kit::{Error, Result};
use log::{debug, warn};

use crate::mark::NotedOwner;
use crate::owner_file::{Attempt, NotedRecord, OwnerFile, OwnerRecords, peek, place};
use crate::server::AddressRecord;

/// A record of an owner of this node, by its note.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    pub(crate) owner: NotedOwner,
    pub(crate) record: NotedRecord,
}

impl NodeRecord {
    /// Whether it is this record. A restored server, or another one, may give an id again.
    pub(crate) fn is(&self, record: &AddressRecord) -> bool {
        self.record.id == record.id
            && self.record.address == record.address
            && self.owner.has_mark(&record.text)
    }
}

/// How long another call may have the turn of an owner at another site.
const PATIENCE: Duration = Duration::from_millis(500);

/// The records of all owners of the node, by their notes in this folder.
pub(crate) fn node_records(owners: &Path) -> Vec<NodeRecord> {
    let mut records = Vec::new();
    for (owner, note) in notes(owners) {
        let of_owner = |record| NodeRecord { owner: owner.clone(), record };
        records.extend(note.records.into_iter().map(of_owner));
    }
    records
}

/// The requests of all owners of the node that may still be carried out, by their notes in this
/// folder.
pub(crate) fn open_attempts(owners: &Path) -> Vec<Attempt> {
    let notes = notes(owners);
    notes.iter().flat_map(|(_, note)| note.open()).cloned().collect()
}

fn notes(owners: &Path) -> Vec<(NotedOwner, OwnerRecords)> {
    let mut notes = Vec::new();
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
                notes.push((owner, note));
            }
        }
    }
    notes
}

/// The turns of the owners that have a record by their notes at the node's other sites: the
/// configuration may have named the server otherwise when the record was noted. The notes say from now
/// on that the record may be gone. An error names a turn that another call has.
pub(crate) fn turns_in_other_sites(
    owners: &Path,
    record: &AddressRecord,
) -> Vec<Result<OwnerFile>> {
    let Some((site, sites)) = owners.parent().and_then(|site| Some((site, site.parent()?))) else {
        return Vec::new();
    };
    let mut turns = Vec::new();
    for (_, other) in entries(sites).into_iter().filter(|(_, other)| other != site) {
        let owners = other.join("owners");
        if !owners.is_dir() {
            continue;
        }
        for noted in node_records(&owners).into_iter().filter(|noted| noted.is(record)) {
            let turn = OwnerFile::take(&owners, &noted.owner, Instant::now() + PATIENCE, false);
            turns.push(turn.map(|mut turn| {
                turn.begin_release(&record.id, &noted.record.subnet);
                turn
            }));
        }
    }
    turns
}

/// The addresses that an owner has by its notes at the node's other sites.
///
/// # Errors
/// A note cannot be read.
pub(crate) fn addresses_at_other_sites(owners: &Path, owner: &NotedOwner) -> Result<Vec<IpAddr>> {
    let Some((site, sites)) = owners.parent().and_then(|site| Some((site, site.parent()?))) else {
        return Ok(Vec::new());
    };
    let mut addresses = Vec::new();
    for (_, other) in entries(sites).into_iter().filter(|(_, other)| other != site) {
        let owners = other.join("owners");
        if !owners.is_dir() {
            continue;
        }
        let (_, path) = place(&owners, owner);
        let note = peek(&path).map_err(|error| {
            Error::io(format!("cannot read {}", path.display()), error)
                .advise("call again; if the error persists, remove this file after its container")
        })?;
        let Some(note) = note else { continue };
        let attempts = note.attempts.iter().filter(|it| it.target.is_none() && !it.is_settled());
        addresses.extend(attempts.filter_map(|attempt| attempt.address));
        addresses.extend(note.records.iter().map(|record| record.address));
    }
    Ok(addresses)
}

/// Forgets an owner whose last attempt is over.
fn forget(owners: &Path, owner: &NotedOwner) {
    if let Ok(mut turn) = OwnerFile::take(owners, owner, Instant::now(), false)
        && turn.note().is_some_and(OwnerRecords::is_over)
    {
        turn.forget();
    }
}

/// The names and paths in a folder; empty if it is missing.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(container: &str) -> NotedOwner {
        let node = crate::mark::short_hash("n");
        let [network, container, ifname] = ["lan", container, "eth0"].map(str::to_owned);
        NotedOwner { network, node, container, ifname }
    }

    fn note(owners: &Path, container: &str) {
        let record = NotedRecord {
            id: "17".into(),
            subnet: "7".into(),
            address: [10, 0, 0, 2].into(),
            taken: 1,
            sticky: None,
            ending: false,
        };
        let note = OwnerRecords { sure: true, records: vec![record], ..OwnerRecords::default() };
        let mut turn = OwnerFile::take(owners, &owner(container), Instant::now(), true).unwrap();
        turn.write(note);
    }

    #[test]
    fn the_other_sites_notes_of_a_deleted_record_say_so_before_and_after() {
        let folder = tempfile::tempdir().unwrap();
        let owners = |site: &str| folder.path().join(site).join("owners");
        ["here", "there"].iter().for_each(|site| note(&owners(site), "c1"));
        // Another server has a record with this id.
        note(&owners("elsewhere"), "c2");
        let record = AddressRecord {
            id: "17".into(),
            address: [10, 0, 0, 2].into(),
            text: "ipd:n/lan/c1/eth0".into(),
            stamp: String::new(),
            written: None,
        };
        let noted = |site: &str, container: &str| {
            let note = peek(&place(&owners(site), &owner(container)).1).unwrap();
            note.map(|note| note.records.iter().map(|it| it.ending).collect::<Vec<_>>())
        };
        let mut turns = turns_in_other_sites(&owners("here"), &record);
        assert_eq!(turns.len(), 1);
        assert_eq!(noted("there", "c1"), Some(vec![true]));
        // Another call of the owner ends it in time.
        let refused = turns_in_other_sites(&owners("here"), &record);
        assert!(matches!(&refused[..], [Err(error)] if error.code().number() == 11));
        turns.iter_mut().flatten().for_each(|turn| turn.forget_record("17"));
        drop(turns);
        assert_eq!(noted("there", "c1"), None);
        assert_eq!(
            (noted("here", "c1"), noted("elsewhere", "c2")),
            (Some(vec![false]), Some(vec![false]))
        );
        let moved = AddressRecord { address: [10, 0, 0, 3].into(), ..record };
        note(&owners("there"), "c1");
        assert!(turns_in_other_sites(&owners("here"), &moved).is_empty());
    }

    #[test]
    fn drafts_and_notes_that_cannot_be_read_show_no_records() {
        let folder = tempfile::tempdir().unwrap();
        note(folder.path(), "c1");
        let (folder_of_owner, path) = place(folder.path(), &owner("c1"));
        fs::copy(&path, folder_of_owner.join("c2:eth0#new")).unwrap();
        fs::write(folder_of_owner.join("c3:eth0"), "{").unwrap();
        let shown: Vec<_> = node_records(folder.path()).into_iter().map(|it| it.owner).collect();
        assert_eq!(shown, [owner("c1")]);
    }
}
