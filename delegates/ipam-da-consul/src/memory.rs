use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;

use ipam_kit::allocate::Owner;
use ipam_kit::allocate::owner_index::{is_refusal_recent, now};
use ipam_kit::cni::NetworkName;
use ipam_kit::host::{StateDir, StateFile, make_private_folder, open_own};
use ipam_kit::{Error, ErrorCode, Result};
use log::{debug, warn};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::txn::Pair;

/// What this node remembers of a network's store between two calls, in its state folder: how far its own
/// claims had come, so that a store restored from a backup or swapped for another is noticed; and, as
/// hints, which owners hold something and the server that answered.
#[derive(Debug)]
pub(crate) struct ConsulMemory {
    note: StateFile,
    /// A file for each owner that took something.
    owners: PathBuf,
    known: StoreRecord,
    /// The marks when this call began: others go on meanwhile.
    marks: BTreeMap<String, ClaimMark>,
    /// Whether the store lets us have keys of owners.
    indexed: bool,
    /// Whether a store that does not know of this node's latest claim is used all the same.
    trusting: bool,
}

/// A node's key of its latest claim: another one was made by another store, or by an import into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimMark {
    /// The index that made it.
    pub(crate) created: u64,
    /// That of the latest claim.
    pub(crate) index: u64,
}

impl ClaimMark {
    /// As its key shows it.
    pub(crate) fn of(pair: &Pair) -> Self {
        Self { created: pair.created, index: pair.index }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoreRecord {
    /// By the node's identity, which may change.
    marks: BTreeMap<String, ClaimMark>,
    /// Servers at which this store was met, without their schemes.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    met: BTreeSet<String>,
    /// Whether the store was seen without it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    set_back: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// When the store refused us keys beside the pools, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    unindexed: Option<u64>,
}

/// How many servers are remembered.
const MET: usize = 64;

impl ConsulMemory {
    /// The memory of a network; `trusting` is a call that uses a store which was set back, too.
    pub(crate) fn open(state: &StateDir, network: &NetworkName, trusting: bool) -> Self {
        let folder = folder(state);
        let note = StateFile::at(folder.join(format!("{network}.json")));
        let known: StoreRecord = note.read();
        let owners = folder.join("owners").join(network.as_str());
        let indexed = !known.unindexed.is_some_and(is_refusal_recent);
        Self { note, owners, marks: known.marks.clone(), known, indexed, trusting }
    }

    /// The server that answered last, where it is not the first.
    pub(crate) fn server(&self) -> Option<String> {
        self.known.server.clone()
    }

    /// Fails where the store was seen to have gone back, and nobody has accepted it.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_not_restored(&self) -> Result<()> {
        if self.known.set_back && !self.trusting { Err(set_back()) } else { Ok(()) }
    }

    /// Whether a claim is made whatever the store knows of the node's latest one.
    pub(crate) fn is_trusting(&self) -> bool {
        self.trusting
    }

    /// Whether what the store shows of a node's latest claim goes with what was known of it before this call.
    pub(crate) fn matches_latest_claim(&self, node: &str, shown: Option<ClaimMark>) -> bool {
        let same = |known: &ClaimMark| {
            shown.is_some_and(|shown| shown.created == known.created && shown.index >= known.index)
        };
        self.marks.get(node).is_none_or(same)
    }

    /// Whether what today's servers show of a node's latest claim proves that they lead to the store that a
    /// record names by other servers: it goes with what was known, and there is `evidence`, or this store
    /// was met at a recorded server. Where no claim is known, the evidence is enough.
    pub(crate) fn proves(
        &self,
        node: &str,
        shown: Option<ClaimMark>,
        recorded: &[String],
        evidence: bool,
    ) -> bool {
        let known = &self.known;
        let met = recorded.iter().any(|server| known.met.contains(server));
        let is_claimed = self.marks.contains_key(node);
        !known.set_back
            && self.matches_latest_claim(node, shown)
            && (evidence || (is_claimed && met))
    }

    /// Fails where the store, which shows this of the node's latest claim, was set back: what it
    /// does not show of an owner may have been given all the same.
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

    /// Notes that it does not.
    pub(crate) fn remember_restored(&mut self) -> Error {
        self.write_or_warn(|known| known.set_back = true);
        set_back()
    }

    /// Notes a claim, and the server that carried it out.
    pub(crate) fn remember_claim(&mut self, node: &str, mark: ClaimMark, server: &str) {
        self.write_or_warn(|known| {
            if known.met.len() < MET {
                known.met.insert(server.to_owned());
            }
            let before = known.marks.get(node).filter(|before| before.created == mark.created);
            let index = before.map_or(0, |before| before.index).max(mark.index);
            known.marks.insert(node.to_owned(), ClaimMark { index, ..mark });
        });
    }

    /// Takes the store as it is for the one in use; `shown` are the marks in it.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(&mut self, shown: &dyn Fn(&str) -> Option<ClaimMark>) -> Result<()> {
        let is_same = self.marks.keys().all(|node| self.matches_latest_claim(node, shown(node)));
        let accept = |known: &mut StoreRecord| {
            if !is_same {
                known.met.clear();
            }
            known.marks.clear();
            known.set_back = false;
        };
        self.write(accept).map_err(|error| {
            Error::io(format!("{} cannot be written", self.note.path().display()), error)
                .advise("mend the state folder and call again")
        })
    }

    /// Whether the store lets us have keys of owners: it has not refused them not long ago.
    pub(crate) fn is_indexed(&self) -> bool {
        self.indexed
    }

    /// Notes that it refuses them.
    pub(crate) fn remember_unindexed(&mut self) {
        self.indexed = false;
        self.write_or_warn(|known| known.unindexed = Some(now()));
    }

    /// Notes the server that has answered, where it is another one than before.
    pub(crate) fn remember_server(&mut self, server: Option<String>) {
        if self.known.server == server {
            return;
        }
        if let Err(error) = self.write(|known| known.server.clone_from(&server)) {
            debug!("{} cannot be written: {error}", self.note.path().display());
        }
    }

    /// Whether an owner has taken something from here that it was not seen to give back.
    pub(crate) fn knows_owner(&self, owner: &Owner) -> bool {
        self.owner(owner.container.as_str(), owner.ifname.as_str()).exists()
    }

    /// Notes that it has.
    pub(crate) fn remember_owner(&self, owner: &Owner) {
        let path = self.owner(owner.container.as_str(), owner.ifname.as_str());
        let make = || open_own(&path, OFlags::WRONLY | OFlags::CREATE, 0o600);
        let made = match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private_folder(&self.owners).and_then(|()| make())
            }
            other => other,
        };
        if let Err(error) = made {
            debug!("{} cannot be made: {error}", path.display());
        }
    }

    /// Notes that an owner holds nothing.
    pub(crate) fn forget_owner(&self, container: &str, ifname: &str) {
        // What stands in the store need not be a name that can be a file's.
        if !container.contains('/') && !ifname.contains('/') {
            let _ = fs::remove_file(self.owner(container, ifname));
        }
    }

    /// Neither of both names can have a colon.
    fn owner(&self, container: &str, ifname: &str) -> PathBuf {
        self.owners.join(format!("{container}:{ifname}"))
    }

    fn write_or_warn(&mut self, change: impl FnOnce(&mut StoreRecord)) {
        if let Err(error) = self.write(change) {
            let path = self.note.path().display();
            warn!(
                "{path} cannot be written, so that a restored store would not be noticed: {error}"
            );
        }
    }

    fn write(&mut self, change: impl FnOnce(&mut StoreRecord)) -> io::Result<()> {
        self.known = self.note.change(change)?;
        Ok(())
    }
}

/// The folder of what this delegate remembers.
pub(crate) fn folder(state: &StateDir) -> PathBuf {
    state.root().join("consul")
}

fn set_back() -> Error {
    let message = "the store does not know of this node's latest claim: it was restored from a backup, or is another one";
    Error::new(ErrorCode::TRY_AGAIN, message).advise(
        "addresses that containers use may be free in it: on every node run `ipam-delegated reassert --claim-only --yes`, then `ipam-delegated reassert --yes`",
    )
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
        next_call().write(|known| known.unindexed = Some(before)).unwrap();
        assert!(next_call().is_indexed());
    }
}
