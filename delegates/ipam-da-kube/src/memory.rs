//! The node's memory of a network's objects between two calls, in its state folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, untrusted};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::NetworkName;
use ipam_kit::host::{StateDir, beside, make_private_folder, read_own, replace_own};
use ipam_kit::{Error, Result};
use ipnet::IpNet;
use log::warn;
use serde::{Deserialize, Serialize};

use crate::objects::Metadata;

/// The memory of a network: the state of its pools, which reveals an API server that was restored
/// or replaced; and, as hints, the leases of owners, and the members that the CRD keeps.
#[derive(Debug)]
pub(crate) struct KubeMemory {
    folder: PathBuf,
    network: StoreMemory<NetworkNote>,
    /// Whether objects in an earlier state are used.
    trusting: bool,
}

/// The note of a network.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NetworkNote {
    /// Whether a pool was seen in an earlier state than before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    restored: bool,
    /// Whether the CRD keeps the interface of an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    ifname: Option<bool>,
    /// Whether the CRD keeps this delegate's member of an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<bool>,
}

/// The note of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolNote {
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    /// The highest that was seen.
    version: u64,
    /// The pools of the network that overlap with it, and when they were listed, in milliseconds
    /// since 1970.
    overlapping: BTreeMap<String, IpNet>,
    listed: u64,
    /// The address that this node gave last.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<IpAddr>,
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

/// The notes of owners with their interfaces, by container and address.
pub(crate) type NotedOwners = BTreeMap<(String, IpAddr), (String, OwnerNote)>;

/// For how long a list of pools counts, in milliseconds.
const LIST: u64 = 600_000;

impl PoolNote {
    /// Returns whether a pool is the noted one, in the noted state or a later one.
    pub(crate) fn is_of(&self, seen: &Metadata) -> bool {
        !self.uid.is_empty()
            && self.uid == seen.uid
            && seen.version().is_none_or(|version| version >= self.version)
    }
}

impl KubeMemory {
    /// Opens the memory of a network. A `trusting` call also uses objects that were restored.
    pub(crate) fn open(state: &StateDir, network: &NetworkName, trusting: bool) -> Self {
        let folder = state.root().join("kube").join(network.as_str());
        let network = StoreMemory::read(folder.join("network.json"));
        Self { folder, network, trusting }
    }

    /// Returns whether the CRD keeps the interface of an entry; `None` if no answer has shown it.
    pub(crate) fn keeps_ifname(&self) -> Option<bool> {
        self.network.record().ifname
    }

    /// Returns whether the CRD keeps this delegate's member of an entry, likewise.
    pub(crate) fn keeps_mark(&self) -> Option<bool> {
        self.network.record().mark
    }

    /// Remembers what the CRD keeps of an entry.
    pub(crate) fn remember_schema(&mut self, ifname: bool, mark: Option<bool>) {
        let mark = mark.or(self.keeps_mark());
        if (self.keeps_ifname(), self.keeps_mark()) != (Some(ifname), mark) {
            self.network.remember(|note| (note.ifname, note.mark) = (Some(ifname), mark));
        }
    }

    /// Fails if the pools were seen to be restored, until a person accepts them.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_not_restored(&self) -> Result<()> {
        if self.network.record().restored && !self.trusting { Err(restored()) } else { Ok(()) }
    }

    /// Returns what was seen of a pool before. A call reads it before it asks the server: another
    /// call of this node may see a later state meanwhile.
    pub(crate) fn pool(&self, name: &str) -> PoolNote {
        self.pool_memory(name).record().clone()
    }

    /// Compares a pool, missing or not, with what was seen before the server was asked.
    ///
    /// # Errors
    /// Code 11: it is missing, another one, or in an earlier state.
    pub(crate) fn check_pool(&mut self, before: &PoolNote, seen: Option<&Metadata>) -> Result<()> {
        let is_same = before.uid.is_empty() || seen.is_some_and(|seen| before.is_of(seen));
        if is_same || self.trusting {
            return Ok(());
        }
        self.network.remember(|note| note.restored = true);
        Err(restored())
    }

    /// Remembers the state of a pool.
    pub(crate) fn remember_pool(&mut self, name: &str, seen: &Metadata) {
        let version = seen.version().unwrap_or_default();
        self.pool_memory(name).remember(|note| {
            note.version = if note.uid == seen.uid { note.version.max(version) } else { version };
            note.uid.clone_from(&seen.uid);
        });
    }

    /// Returns the pools that overlap with this one; `None` if they were not listed lately.
    pub(crate) fn overlapping(&self, name: &str) -> Option<BTreeMap<String, IpNet>> {
        let note = self.pool(name);
        (note.listed > 0 && now().abs_diff(note.listed) < LIST).then_some(note.overlapping)
    }

    /// Remembers the pools that overlap with this one.
    pub(crate) fn remember_overlapping(
        &mut self,
        name: &str,
        overlapping: BTreeMap<String, IpNet>,
    ) {
        self.pool_memory(name).remember_hint(|note| {
            note.overlapping.clone_from(&overlapping);
            note.listed = now();
        });
    }

    /// Returns the address of a pool that this node gave last.
    pub(crate) fn cursor(&self, name: &str) -> Option<IpAddr> {
        self.pool(name).cursor
    }

    /// Remembers the address of a pool that this node gave last.
    pub(crate) fn remember_cursor(&self, name: &str, address: IpAddr) {
        self.pool_memory(name).remember_hint(|note| note.cursor = Some(address));
    }

    /// Accepts the pools as they are.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(&mut self) -> Result<()> {
        let pools = self.folder.join(POOLS);
        match fs::remove_dir_all(&pools) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("cannot remove {}", pools.display()), error)
                    .advise("check rights and mount of the state folder, and call again"))
            }
            _ => self.network.accept(|note| note.restored = false),
        }
    }

    /// Returns the leases that a container's interface took last.
    pub(crate) fn owner(&self, owner: &Owner) -> Option<OwnerNote> {
        let text =
            read_own(&self.owner_file(owner.container.as_str(), owner.ifname.as_str())).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Remembers the leases of an owner.
    pub(crate) fn remember_owner(&self, owner: &Owner, taken: u64, leases: Vec<Lease>) {
        let node = owner.scope.node.clone();
        let note = OwnerNote { node, taken, confirmed: now(), leases, unsure: false };
        self.write_owner(owner, &note);
    }

    /// Makes the note of an owner unsure before its leases change, and adds these to it: a call that
    /// is killed leaves no note of an earlier state. Returns the note as it was, which may be of
    /// another node with the same state folder.
    pub(crate) fn doubt_owner(&self, owner: &Owner, more: Vec<Lease>) -> Option<OwnerNote> {
        let before = self.owner(owner);
        let own = before.clone().filter(|note| note.node == owner.scope.node);
        let note = own.unwrap_or_else(|| OwnerNote {
            node: owner.scope.node.clone(),
            taken: now(),
            confirmed: now(),
            leases: Vec::new(),
            unsure: true,
        });
        let leases = note.leases.iter().cloned().chain(more).collect();
        self.write_owner(owner, &OwnerNote { leases, unsure: true, ..note });
        before
    }

    /// Writes the note of an owner as it was before a change that was not made.
    pub(crate) fn restore_owner(&self, owner: &Owner, before: Option<OwnerNote>) {
        match before {
            Some(note) => self.write_owner(owner, &note),
            None => self.forget_owner(owner.container.as_str(), owner.ifname.as_str()),
        }
    }

    fn write_owner(&self, owner: &Owner, note: &OwnerNote) {
        let path = self.owner_file(owner.container.as_str(), owner.ifname.as_str());
        let text = serde_json::to_vec(note).unwrap_or_default();
        let write = || replace_own(&path, &beside(&path, "#new"), 0o600, &text);
        let written = match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private_folder(&self.folder.join(OWNERS)).and_then(|()| write())
            }
            other => other,
        };
        if let Err(error) = written {
            warn!("{} cannot be written: {error}", path.display());
        }
    }

    /// Remembers a lease of another that an owner is about to take, beside those that it has.
    pub(crate) fn remember_claim(&self, owner: &Owner, taken: u64, lease: &Lease) {
        let note = self.owner(owner).filter(|note| note.node == owner.scope.node);
        let mut leases = note.map(|note| note.leases).unwrap_or_default();
        leases.retain(|noted| noted.address.addr() != lease.address.addr());
        leases.push(lease.clone());
        self.remember_owner(owner, taken, leases);
    }

    /// Remembers that an owner holds nothing.
    pub(crate) fn forget_owner(&self, container: &str, ifname: &str) {
        // Names out of an object need not be file names.
        if !container.contains('/') && !ifname.contains('/') {
            let _ = fs::remove_file(self.owner_file(container, ifname));
        }
    }

    /// Returns the file of an owner. Neither name can have a colon.
    fn owner_file(&self, container: &str, ifname: &str) -> PathBuf {
        self.folder.join(OWNERS).join(format!("{container}:{ifname}"))
    }

    /// Returns all owners that this node has noted, by container and address.
    pub(crate) fn owners(&self) -> NotedOwners {
        let mut owners = NotedOwners::new();
        for (container, ifname, note) in noted_owners(&self.folder, |_| true) {
            for lease in &note.leases {
                let key = (container.clone(), lease.address.addr());
                owners.insert(key, (ifname.clone(), note.clone()));
            }
        }
        owners
    }

    /// Returns whether this node has noted an address as that of another attachment of the owner's
    /// container, on any network.
    pub(crate) fn is_of_other_attachment(&self, owner: &Owner, address: IpAddr) -> bool {
        let begin = format!("{}:", owner.container);
        let folders = self.folder.parent().map(fs::read_dir).into_iter().flatten().flatten();
        folders.flatten().map(|folder| folder.path()).any(|folder| {
            let is_own = folder == self.folder;
            let of_container = |name: &str| name.starts_with(&begin);
            let mut noted = noted_owners(&folder, of_container).into_iter();
            noted.any(|(_, ifname, note)| {
                (!is_own || ifname != owner.ifname.as_str())
                    && note.leases.iter().any(|lease| lease.address.addr() == address)
            })
        })
    }

    fn pool_memory(&self, name: &str) -> StoreMemory<PoolNote> {
        StoreMemory::read(self.folder.join(POOLS).join(format!("{name}.json")))
    }
}

/// Reads the notes of owners in the folder of a network whose names match: container, interface and
/// note. Files that cannot be read are skipped.
fn noted_owners(
    network: &Path,
    matches: impl Fn(&str) -> bool,
) -> Vec<(String, String, OwnerNote)> {
    let mut owners = Vec::new();
    for file in fs::read_dir(network.join(OWNERS)).into_iter().flatten().flatten() {
        let name = file.file_name().into_string().unwrap_or_default();
        let Some((container, ifname)) = name.split_once(':').filter(|_| matches(&name)) else {
            continue;
        };
        let text = read_own(&file.path()).unwrap_or_default();
        if let Ok(note) = serde_json::from_slice::<OwnerNote>(&text) {
            owners.push((container.to_owned(), ifname.to_owned(), note));
        }
    }
    owners
}

const POOLS: &str = "pools";
const OWNERS: &str = "owners";

fn restored() -> Error {
    let message = "an IPPool is missing, another one, or older than this node has seen: the API server was restored from a backup, or it is another cluster";
    untrusted(message)
}
