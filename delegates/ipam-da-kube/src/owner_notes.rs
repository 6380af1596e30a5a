//! The notes of owners in the node's state folder: the leases that each took last, as a hint.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam_kit::allocate::ledger::Holder;
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::NetworkName;
use ipam_kit::host::{StateDir, beside, make_private_folder, read_own, replace_own};
use log::warn;
use serde::{Deserialize, Serialize};

use crate::lease_mark::LeaseMark;
use crate::objects::PoolEntry;

/// The notes of a network's owners, a file each.
#[derive(Debug)]
pub(crate) struct OwnerNotes {
    folder: PathBuf,
}

/// The note of an owner: the leases that it took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OwnerNote {
    pub(crate) node: String,
    /// In milliseconds since 1970, as all times.
    pub(crate) taken: u64,
    pub(crate) confirmed: u64,
    pub(crate) leases: Vec<Lease>,
    /// Whether a call was about to change the leases: the note says which addresses may be the
    /// owner's, and nothing about their state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unsure: bool,
}

/// A lease in a note.
#[derive(Clone, Debug)]
pub(crate) struct NotedLease {
    pub(crate) node: String,
    pub(crate) ifname: String,
    pub(crate) confirmed: u64,
    pub(crate) lease: Lease,
    /// The state of the lease; `None` in an unsure note.
    pub(crate) mark: Option<LeaseMark>,
}

impl OwnerNote {
    fn unsure(node: &str) -> Self {
        let (taken, confirmed) = (now(), now());
        Self { node: node.to_owned(), taken, confirmed, leases: Vec::new(), unsure: true }
    }

    /// Returns whether the note shows a lease whose claim was complete.
    pub(crate) fn has_complete(&self, lease: &Lease) -> bool {
        let mut noted = self.leases.iter();
        !self.unsure && noted.any(|noted| noted.address.addr() == lease.address.addr())
    }

    /// Warns of the leases of an owner in another cluster than this one, in which no later call looks
    /// for them. Returns whether there are any.
    pub(crate) fn warn_of_leases_elsewhere(
        &self,
        cluster: &str,
        container: &str,
        ifname: &str,
    ) -> bool {
        let mut is_any = false;
        for lease in &self.leases {
            let Some(other) = lease.store.as_ref().filter(|its| *its != cluster) else { continue };
            is_any = true;
            let (verb, address) =
                (if self.unsure { "may hold" } else { "holds" }, lease.address.addr());
            warn!(
                "{container}/{ifname} {verb} {address} in the cluster whose namespace kube-system has \
                 the uid {other}: after the container has ended, release it there: ipam-da-kube release \
                 {address} --config FILE --yes, where FILE names a kubeconfig of that cluster"
            );
        }
        is_any
    }

    /// Adds a lease, in place of an earlier state of it.
    fn add(&mut self, lease: Lease) {
        self.leases.retain(|noted| noted.address.addr() != lease.address.addr());
        self.leases.push(lease);
    }
}

impl NotedLease {
    /// Returns whether an entry of its container and address may be of its interface, too.
    pub(crate) fn may_be_of(&self, entry: &PoolEntry) -> bool {
        entry.ifname.as_ref().is_none_or(|ifname| *ifname == self.ifname)
    }
}

/// Leases in notes, by container and address.
pub(crate) type NotedLeases = BTreeMap<(String, IpAddr), NotedLease>;

impl OwnerNotes {
    /// Opens the notes of a network.
    pub(crate) fn open(state: &StateDir, network: &NetworkName) -> Self {
        Self { folder: state.root().join("kube").join(network.as_str()).join(OWNERS) }
    }

    /// Returns the note of an owner. It may be of another node with the same state folder.
    pub(crate) fn of(&self, owner: &Owner) -> Option<OwnerNote> {
        self.read(owner.container.as_str(), owner.ifname.as_str())
    }

    /// Remembers the leases of an owner.
    pub(crate) fn remember(&self, owner: &Owner, taken: u64, leases: Vec<Lease>) {
        let node = owner.scope.node.clone();
        let note = OwnerNote { node, taken, confirmed: now(), leases, unsure: false };
        self.write(owner.container.as_str(), owner.ifname.as_str(), &note);
    }

    /// Makes the note of an owner unsure before its leases change, and adds these to it: a call that
    /// is killed leaves no note of an earlier state. Returns the note as it was.
    pub(crate) fn doubt(&self, owner: &Owner, more: Vec<Lease>) -> Option<OwnerNote> {
        let before = self.of(owner);
        let mut note = own_note(before.clone(), &owner.scope.node);
        note.unsure = true;
        for lease in more {
            note.confirmed = now();
            note.add(lease);
        }
        self.write(owner.container.as_str(), owner.ifname.as_str(), &note);
        before
    }

    /// Writes the note of an owner as it was before a change that was not made.
    pub(crate) fn restore(&self, owner: &Owner, before: Option<OwnerNote>) {
        let (container, ifname) = (owner.container.as_str(), owner.ifname.as_str());
        match before {
            Some(note) => self.write(container, ifname, &note),
            None => self.forget(container, ifname),
        }
    }

    /// Notes a lease before it is released, as the note of a claim does: a call that is killed may
    /// leave an entry without a reservation, which does not show the node.
    pub(crate) fn remember_release(&self, holder: &Holder, lease: &Lease) {
        let Holder { node: Some(node), container, ifname: Some(ifname), network: None, .. } =
            holder
        else {
            return;
        };
        let note = self.read(container, ifname);
        let mut note = note.unwrap_or_else(|| OwnerNote::unsure(node));
        let is_noted = note.leases.iter().any(|noted| noted.address == lease.address);
        if note.node == *node && !is_noted {
            note.add(lease.clone());
            self.write(container, ifname, &note);
        }
    }

    /// Remembers that an owner holds nothing.
    pub(crate) fn forget(&self, container: &str, ifname: &str) {
        if let Some(path) = self.file(container, ifname) {
            let _ = fs::remove_file(path);
        }
    }

    /// Forgets each owner with a lease in another cluster, and warns of the lease, which stays there.
    pub(crate) fn forget_other_clusters(&self, cluster: &str) {
        for (container, ifname, note) in read_notes(&self.folder, |_| true) {
            if note.warn_of_leases_elsewhere(cluster, &container, &ifname) {
                self.forget(&container, &ifname);
            }
        }
    }

    /// Returns all leases that this node has noted.
    pub(crate) fn leases(&self) -> NotedLeases {
        self.leases_of(|_| true)
    }

    /// Returns whether a lease without a reservation was confirmed after it was seen, as its owner's
    /// note shows where the CRD drops this delegate's member of the entry.
    pub(crate) fn is_confirmed_since(
        &self,
        container: &str,
        address: IpAddr,
        seen: &LeaseMark,
    ) -> bool {
        if seen.kept || seen.text.is_none() {
            return false;
        }
        let noted = self.leases_of(|its| its == container).remove(&(container.to_owned(), address));
        let mark = noted.and_then(|noted| noted.mark);
        mark.is_some_and(|mark| mark.text.is_some() && mark.text != seen.text)
    }

    fn leases_of(&self, is_wanted: impl Fn(&str) -> bool) -> NotedLeases {
        let mut leases = NotedLeases::new();
        for (container, ifname, note) in read_notes(&self.folder, is_wanted) {
            for lease in note.leases {
                let mark = LeaseMark::of(&lease).filter(|_| !note.unsure);
                let (node, ifname) = (note.node.clone(), ifname.clone());
                let key = (container.clone(), lease.address.addr());
                let confirmed = note.confirmed;
                leases.insert(key, NotedLease { node, ifname, confirmed, lease, mark });
            }
        }
        leases
    }

    /// Returns whether this node has noted an address as that of another attachment of the owner's
    /// container, on any network.
    pub(crate) fn is_of_other_attachment(&self, owner: &Owner, address: IpAddr) -> bool {
        let networks = self.folder.parent().and_then(Path::parent).map(fs::read_dir);
        let networks = networks.into_iter().flatten().flatten().flatten();
        networks.map(|network| network.path().join(OWNERS)).any(|folder| {
            let is_own = folder == self.folder;
            let its = |container: &str| container == owner.container.as_str();
            let mut notes = read_notes(&folder, its).into_iter();
            notes.any(|(_, ifname, note)| {
                (!is_own || ifname != owner.ifname.as_str())
                    && note.leases.iter().any(|lease| lease.address.addr() == address)
            })
        })
    }

    fn read(&self, container: &str, ifname: &str) -> Option<OwnerNote> {
        serde_json::from_slice(&read_own(&self.file(container, ifname)?).ok()?).ok()
    }

    fn write(&self, container: &str, ifname: &str, note: &OwnerNote) {
        let Some(path) = self.file(container, ifname) else { return };
        let text = serde_json::to_vec(note).unwrap_or_default();
        let write = || replace_own(&path, &beside(&path, "#new"), 0o600, &text);
        let written = match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private_folder(&self.folder).and_then(|()| write())
            }
            other => other,
        };
        if let Err(error) = written {
            warn!("{} cannot be written: {error}", path.display());
        }
    }

    /// Returns the file of an owner, whose names cannot have a colon; `None` for names out of an
    /// object that cannot be a file's.
    fn file(&self, container: &str, ifname: &str) -> Option<PathBuf> {
        let name = format!("{container}:{ifname}");
        (!name.contains('/')).then(|| self.folder.join(name))
    }
}

/// Returns a note if it is of this node, else a new one: nodes with one state folder share the file.
fn own_note(note: Option<OwnerNote>, node: &str) -> OwnerNote {
    note.filter(|note| note.node == node).unwrap_or_else(|| OwnerNote::unsure(node))
}

/// Reads the notes of the containers that are wanted: container, interface and note. Files that
/// cannot be read are skipped.
fn read_notes(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<(String, String, OwnerNote)> {
    let mut notes = Vec::new();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name().into_string().unwrap_or_default();
        let Some((container, ifname)) = name.split_once(':') else { continue };
        if !is_wanted(container) {
            continue;
        }
        let text = read_own(&file.path()).unwrap_or_default();
        if let Ok(note) = serde_json::from_slice::<OwnerNote>(&text) {
            notes.push((container.to_owned(), ifname.to_owned(), note));
        }
    }
    notes
}

/// Beside the notes of pools.
const OWNERS: &str = "owners";

#[cfg(test)]
mod tests {
    use ipam_kit::allocate::Scope;
    use ipam_kit::cni::{ContainerId, IfName};

    use super::*;

    fn owner(node: &str) -> Owner {
        Owner {
            scope: Scope { node: node.to_owned(), network: NetworkName::parse("net").unwrap() },
            container: ContainerId::parse("c1").unwrap(),
            ifname: IfName::parse("eth0").unwrap(),
        }
    }

    #[test]
    fn a_claim_of_an_address_that_is_noted_has_the_time_and_the_state_of_the_claim() {
        let folder = tempfile::tempdir().unwrap();
        let notes = OwnerNotes { folder: folder.path().join(OWNERS) };
        let owner = owner("node-1");
        let lease = |revision: &str| Lease::bare("10.1.2.2/24".parse().unwrap(), revision.into());
        let note = OwnerNote {
            node: "node-1".to_owned(),
            leases: vec![lease("r1")],
            ..Default::default()
        };
        notes.write("c1", "eth0", &note);
        notes.doubt(&owner, Vec::new());
        assert_eq!(notes.of(&owner).unwrap().confirmed, 0);
        notes.doubt(&owner, vec![lease("r2")]);
        let doubted = notes.of(&owner).unwrap();
        assert!(doubted.confirmed > 0);
        assert_eq!(doubted.leases, [lease("r2")]);
    }

    #[test]
    fn a_change_that_was_not_made_leaves_the_note_of_another_node() {
        let folder = tempfile::tempdir().unwrap();
        let notes = OwnerNotes { folder: folder.path().join(OWNERS) };
        let [one, other] = ["node-1", "node-2"].map(owner);
        let lease = |address: &str| Lease::bare(address.parse().unwrap(), "r1".into());
        notes.remember(&one, 1, vec![lease("10.1.2.2/24")]);
        let before = notes.doubt(&other, vec![lease("10.1.2.3/24")]);
        let doubted = notes.of(&other).unwrap();
        assert!(doubted.unsure && doubted.node == "node-2");
        assert_eq!(doubted.leases, [lease("10.1.2.3/24")]);
        notes.restore(&other, before);
        let restored = notes.of(&one).unwrap();
        assert!(!restored.unsure && restored.node == "node-1");
        assert_eq!(restored.leases, [lease("10.1.2.2/24")]);
    }
}
