//! The node's memory of a network's store between two calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipam_kit::allocate::Owner;
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, is_refusal_recent, untrusted};
use ipam_kit::cni::NetworkName;
use ipam_kit::host::{StateDir, make_private_folder, open_own};
use ipam_kit::{Error, Result};
use log::debug;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::txn::Pair;

/// The node's memory of a network's store, in its state folder. It has the node's latest claim,
/// which reveals a store that was restored or replaced; and, as hints, the owners that hold
/// something, and the server that answered.
#[derive(Debug)]
pub(crate) struct ConsulMemory {
    store: StoreMemory<StoreRecord>,
    /// The folder with a file for each owner that took something.
    owners: PathBuf,
    /// The marks when this call began: other calls write newer ones meanwhile.
    marks: BTreeMap<String, ClaimMark>,
    /// Whether the token may write keys of owners.
    indexed: bool,
    /// Whether a store without this node's latest claim is used.
    trusting: bool,
}

/// The indexes of the key that each claim of a node writes. A key with another creation index is of
/// another store, or of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimMark {
    /// The creation index.
    pub(crate) created: u64,
    /// The modification index, set by the latest claim.
    pub(crate) index: u64,
}

impl ClaimMark {
    /// Returns the mark that a key shows.
    pub(crate) fn of(pair: &Pair) -> Self {
        Self { created: pair.created, index: pair.index }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoreRecord {
    /// The node's marks, by its identity, which may change.
    marks: BTreeMap<String, ClaimMark>,
    /// The servers that carried out a claim, without their schemes.
    #[serde(rename = "met", skip_serializing_if = "BTreeSet::is_empty")]
    servers: BTreeSet<String>,
    /// Whether the store was seen without this node's latest claim.
    #[serde(rename = "set_back", skip_serializing_if = "std::ops::Not::not")]
    restored: bool,
    /// The server that answered last, if it is not the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// When the store refused keys of owners, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    unindexed: Option<u64>,
}

/// How many servers are remembered.
const SERVERS: usize = 64;

impl ConsulMemory {
    /// Opens the memory of a network. A `trusting` call also uses a store that was restored.
    pub(crate) fn open(state: &StateDir, network: &NetworkName, trusting: bool) -> Self {
        let folder = folder(state);
        let store = StoreMemory::<StoreRecord>::read(folder.join(format!("{network}.json")));
        let owners = folder.join("owners").join(network.as_str());
        let indexed = !store.record().unindexed.is_some_and(is_refusal_recent);
        Self { owners, marks: store.record().marks.clone(), store, indexed, trusting }
    }

    /// Returns the server that answered last, if it is not the first.
    pub(crate) fn server(&self) -> Option<String> {
        self.store.record().server.clone()
    }

    /// Fails if the store was seen to be restored, until a person accepts it.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_not_restored(&self) -> Result<()> {
        if self.store.record().restored && !self.trusting { Err(restored()) } else { Ok(()) }
    }

    /// Returns whether a claim may be made in a store without the node's latest one.
    pub(crate) fn is_trusting(&self) -> bool {
        self.trusting
    }

    /// Returns whether the mark in the store can follow the one that was known before this call.
    pub(crate) fn matches_latest_claim(&self, node: &str, shown: Option<ClaimMark>) -> bool {
        match (self.marks.get(node), shown) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(known), Some(shown)) => {
                shown.created == known.created && shown.index >= known.index
            }
        }
    }

    /// Returns whether the present servers, which show this mark, prove to have the store of a
    /// record that names others. The mark has to match. Besides, there is other `evidence`, or a
    /// recorded server has carried out a remembered claim.
    pub(crate) fn proves(
        &self,
        node: &str,
        shown: Option<ClaimMark>,
        recorded: &[String],
        evidence: bool,
    ) -> bool {
        let has_claimed = self.marks.contains_key(node);
        let is_known_server =
            recorded.iter().any(|server| self.store.record().servers.contains(server));
        !self.store.record().restored
            && self.matches_latest_claim(node, shown)
            && (evidence || (has_claimed && is_known_server))
    }

    /// Fails if the mark in the store proves that it was restored: it may lack leases that were
    /// given.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_latest_claim(
        &mut self,
        node: &str,
        shown: Option<ClaimMark>,
    ) -> Result<()> {
        self.check_not_restored()?;
        if !self.indexed || self.matches_latest_claim(node, shown) {
            return Ok(());
        }
        Err(self.remember_restored())
    }

    /// Remembers that the store was restored, and answers the error that says so.
    pub(crate) fn remember_restored(&mut self) -> Error {
        self.store.remember(|record| record.restored = true);
        restored()
    }

    /// Remembers a claim, and the server that carried it out.
    pub(crate) fn remember_claim(&mut self, node: &str, mark: ClaimMark, server: &str) {
        self.store.remember(|record| {
            if record.servers.len() < SERVERS {
                record.servers.insert(server.to_owned());
            }
            let before = record.marks.get(node).filter(|before| before.created == mark.created);
            let index = before.map_or(0, |before| before.index).max(mark.index);
            record.marks.insert(node.to_owned(), ClaimMark { index, ..mark });
        });
    }

    /// Accepts the store as it is; `shown` returns the marks in it.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(&mut self, shown: &dyn Fn(&str) -> Option<ClaimMark>) -> Result<()> {
        let is_same = self.marks.keys().all(|node| self.matches_latest_claim(node, shown(node)));
        self.store.accept(|record| {
            if !is_same {
                record.servers.clear();
            }
            record.marks.clear();
            record.restored = false;
        })
    }

    /// Returns whether the token may write keys of owners, as far as the store has not refused them
    /// lately.
    pub(crate) fn is_indexed(&self) -> bool {
        self.indexed
    }

    /// Remembers that the store refuses keys of owners.
    pub(crate) fn remember_unindexed(&mut self) {
        self.indexed = false;
        self.store.remember(|record| record.unindexed = Some(now()));
    }

    /// Remembers the server to begin with.
    pub(crate) fn remember_server(&mut self, server: Option<String>) {
        if self.store.record().server != server {
            self.store.remember_hint(|record| record.server.clone_from(&server));
        }
    }

    /// Returns whether an owner has taken something on this node and was not seen to release all of
    /// it.
    pub(crate) fn knows_owner(&self, owner: &Owner) -> bool {
        self.owner_file(owner.container.as_str(), owner.ifname.as_str()).exists()
    }

    /// Remembers that an owner holds something.
    pub(crate) fn remember_owner(&self, owner: &Owner) {
        let path = self.owner_file(owner.container.as_str(), owner.ifname.as_str());
        let made = match make_empty(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private_folder(&self.owners).and_then(|()| make_empty(&path))
            }
            other => other,
        };
        if let Err(error) = made {
            debug!("cannot create {}: {error}", path.display());
        }
    }

    /// Remembers that an owner holds nothing.
    pub(crate) fn forget_owner(&self, container: &str, ifname: &str) {
        // Names out of the store need not be file names.
        if !container.contains('/') && !ifname.contains('/') {
            let _ = fs::remove_file(self.owner_file(container, ifname));
        }
    }

    /// Returns the file of an owner. Neither name can have a colon.
    fn owner_file(&self, container: &str, ifname: &str) -> PathBuf {
        self.owners.join(format!("{container}:{ifname}"))
    }
}

fn make_empty(path: &Path) -> io::Result<()> {
    open_own(path, OFlags::WRONLY | OFlags::CREATE, 0o600).map(drop)
}

/// Returns the folder of what this delegate remembers.
pub(crate) fn folder(state: &StateDir) -> PathBuf {
    state.root().join("consul")
}

fn restored() -> Error {
    let message = "the store does not have this node's latest claim: it was restored from a backup, or it is another store";
    untrusted(message)
}

#[cfg(test)]
mod tests {
    use ipam_kit::host::Settings;

    use super::*;

    #[test]
    fn a_refusal_of_keys_is_remembered_for_ten_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().to_owned();
        let state = StateDir::of_host(&Settings { state_dir, ..Settings::default() });
        let network = NetworkName::parse("lan").unwrap();
        let next_call = || ConsulMemory::open(&state, &network, false);
        assert!(next_call().is_indexed());
        next_call().remember_unindexed();
        assert!(!next_call().is_indexed());
        let before = now() - 11 * 60_000;
        next_call().store.remember(|record| record.unindexed = Some(before));
        assert!(next_call().is_indexed());
    }
}
