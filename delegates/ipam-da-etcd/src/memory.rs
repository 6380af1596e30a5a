use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam_kit::allocate::store_memory::{REASSERT, StoreMemory, is_refusal_recent, untrusted};
use ipam_kit::host::{StateDir, make_private_folder};
use ipam_kit::{Error, ErrorCode, Request, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::EtcdStore;
use crate::endpoint::Endpoint;
use crate::transport::EtcdAnswer;
use crate::values;

/// This node's memory of a network's store between two calls, in a file of the state folder.
///
/// It remembers which cluster the store is and how far it had come, so that a call notices a store
/// that was restored from a backup, or swapped for another. It also remembers hints: the address
/// last given out, and the server that answered.
#[derive(Debug)]
pub(crate) struct EtcdMemory {
    store: StoreMemory<MemoryFile>,
    /// The part of the file that is about this delegate of the chain.
    part: String,
    /// The beginning of the keys, and their layout.
    key_space: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct DelegateMemory {
    /// The cluster that addresses are taken from.
    cluster: Option<Cluster>,
    /// Clusters that were taken from before, which may still hold leases of this node.
    former: Vec<Cluster>,
    /// Which cluster was met at an endpoint, by its host and port.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    met: BTreeMap<String, String>,
    cursors: BTreeMap<u32, IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// When the store denied us keys of our own in the layout of a replaced plugin, in seconds since
    /// 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    unindexed: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cluster {
    /// The cluster's id, hexadecimal as etcdctl prints it, and what its keys of ours begin with.
    id: String,
    /// Of the latest claim that is known, as the store's key of it has it.
    revision: i64,
    /// Of this node's latest claim that the store has no key of, for it lets us have none.
    #[serde(default)]
    unmarked: i64,
    /// Whether it was seen at a lower revision since. This is remembered because refused calls raise
    /// the revision as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    set_back: bool,
}

/// How many endpoints are remembered.
const MET: usize = 64;

type MemoryFile = BTreeMap<String, DelegateMemory>;

impl EtcdMemory {
    /// Reads this node's memory of a store for the network of a call. An entry with `serves` has a
    /// memory of its own, because it sees other pools.
    ///
    /// # Errors
    /// The state folder is missing.
    pub(crate) fn open(store: &EtcdStore, request: &Request) -> Result<Self> {
        let network = request.network.name();
        let path = folder(&request.state_dir()?).join(format!("{network}.json"));
        let serves: Vec<String> = match request.network.ipam().get("serves") {
            Some(Value::Array(pools)) => pools.iter().map(Value::to_string).collect(),
            _ => Vec::new(),
        };
        let key_space = match store.layout.is_native() {
            true => store.prefix.clone(),
            false => format!("{} in the layout {}", store.prefix, store.layout.name),
        };
        Ok(Self { store: StoreMemory::read(path), part: serves.join(","), key_space })
    }

    fn known(&self) -> Option<&DelegateMemory> {
        self.store.record().get(&self.part)
    }

    fn cluster(&self) -> Option<&Cluster> {
        self.known()?.cluster.as_ref()
    }

    /// Fails when an answer is not of the store that is known, as it was before the request: a lower
    /// revision, or another cluster. Addresses are taken from the cluster in use alone; where
    /// `releasing`, one used before will do.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_answer(&mut self, answer: &EtcdAnswer, releasing: bool) -> Result<()> {
        let (Some(known), Some(current)) = (self.known(), self.cluster()) else { return Ok(()) };
        let id = self.cluster_id(answer);
        let former = known.former.iter().find(|former| releasing && former.id == id);
        let cluster = former.unwrap_or(current).clone();
        if cluster.id == id {
            return if cluster.is_set_back(answer) {
                Err(self.set_back_error(&cluster))
            } else {
                Ok(())
            };
        }
        let elsewhere_in_it = cluster.id.strip_prefix(&format!("{:x} ", answer.cluster));
        Err(elsewhere_in_it.map_or_else(
            || {
                untrusted(format!(
                    "the store is the etcd cluster {id} (id and prefix), but this node's leases are in {}",
                    cluster.id
                ))
            },
            |known| elsewhere(known, &self.key_space),
        ))
    }

    /// Fails when the latest claim that the store knows is older than the one that was known before the
    /// request.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_latest_claim(&mut self, latest: i64) -> Result<()> {
        match self.cluster().cloned() {
            Some(cluster) if latest < cluster.revision => Err(self.set_back_error(&cluster)),
            _ => Ok(()),
        }
    }

    /// Tells whether an answer of the configured servers proves that they have the store of a
    /// record. Addresses were taken from their cluster, it was not set back, and there is
    /// `evidence`, or this very cluster was met at the `recorded` endpoints. If no cluster is
    /// known, it is enough that all recorded endpoints are `named`.
    pub(crate) fn is_recorded_store(
        &self,
        answer: &EtcdAnswer,
        latest: Option<i64>,
        recorded: &[&str],
        evidence: bool,
        named: bool,
    ) -> bool {
        let Some(known) = self.known() else { return named };
        let id = self.cluster_id(answer);
        let mut clusters = known.cluster.iter().chain(&known.former).peekable();
        if clusters.peek().is_none() {
            return named;
        }
        let Some(cluster) = clusters.find(|cluster| cluster.id == id) else { return false };
        let is_current =
            !cluster.is_set_back(answer) && latest.is_none_or(|latest| latest >= cluster.revision);
        let mut met = recorded.iter().filter_map(|endpoint| known.met.get(*endpoint)).peekable();
        is_current && (evidence || (met.peek().is_some() && met.all(|met| *met == id)))
    }

    /// Returns the revision of the latest claim that is known; 0 when none is.
    pub(crate) fn latest(&self) -> i64 {
        self.cluster().map_or(0, |cluster| cluster.revision)
    }

    fn cluster_id(&self, answer: &EtcdAnswer) -> String {
        format!("{:x} {}", answer.cluster, self.key_space)
    }

    fn set_back_error(&mut self, cluster: &Cluster) -> Error {
        if !cluster.set_back {
            self.remember_set_back(cluster);
        }
        untrusted(format!(
            "the store is older than its revision {}, which this node knows: it was restored from a backup",
            cluster.reached()
        ))
    }

    /// Tells whether the store in use was restored from a backup, and was not accepted since.
    pub(crate) fn is_set_back(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.set_back)
    }

    /// Reads again what other processes have written meanwhile.
    pub(crate) fn refresh(&mut self) {
        self.store.refresh();
    }

    /// Returns the address last given out of a range set.
    pub(crate) fn cursor(&self, index: u32) -> Option<IpAddr> {
        self.known()?.cursors.get(&index).copied()
    }

    /// Returns the endpoint that answered last, where it is not the first.
    pub(crate) fn endpoint(&self) -> Option<String> {
        self.known()?.endpoint.clone()
    }

    /// Tells whether the store denied us keys of our own not long ago.
    pub(crate) fn is_unindexed(&self) -> bool {
        let refused = self.known().and_then(|known| known.unindexed);
        refused.is_some_and(|seconds| is_refusal_recent(seconds.saturating_mul(1000)))
    }

    /// Remembers that it did.
    pub(crate) fn remember_unindexed(&mut self) {
        self.remember(|part| part.unindexed = Some(now()));
    }

    /// Remembers what an ADD has taken from the store that is known, which has `marked` it as the latest claim.
    pub(crate) fn remember_claims(
        &mut self,
        answer: &EtcdAnswer,
        endpoint: &Endpoint,
        given: BTreeMap<u32, IpAddr>,
        marked: bool,
    ) {
        let id = self.cluster_id(answer);
        self.remember(|part| {
            part.cursors.extend(&given);
            part.remember_cluster_at(endpoint.host_and_port(), &id);
            part.record_claim(&id, answer.revision, marked);
        });
    }

    /// Remembers the latest claim of all nodes: the fresher it is, the sooner a restored store is noticed.
    pub(crate) fn remember_latest_claim(&mut self, answer: &EtcdAnswer, latest: i64) {
        let id = self.cluster_id(answer);
        if self.cluster().is_none_or(|known| known.id == id && known.revision < latest) {
            self.remember_hint(|part| part.record_claim(&id, latest, true));
        }
    }

    /// Remembers that a store has gone back behind what was known of it, unless it was accepted since.
    fn remember_set_back(&mut self, known: &Cluster) {
        self.remember(|part| {
            for cluster in part.cluster.iter_mut().chain(&mut part.former) {
                if cluster.id == known.id && cluster.revision >= known.revision {
                    cluster.set_back = true;
                }
            }
        });
    }

    /// Remembers the endpoint that has answered, where it is another one than before.
    pub(crate) fn remember_endpoint(&mut self, endpoint: Option<String>) {
        if self.endpoint() != endpoint {
            self.remember_hint(|part| part.endpoint.clone_from(&endpoint));
        }
    }

    fn remember(&mut self, change: impl FnOnce(&mut DelegateMemory)) {
        self.store.remember(|parts| change(parts.entry(self.part.clone()).or_default()));
    }

    fn remember_hint(&mut self, change: impl Fn(&mut DelegateMemory)) {
        self.store.remember_hint(|parts| change(parts.entry(self.part.clone()).or_default()));
    }

    /// Takes the store as it is for the one in use, with its latest claim if it has a key of it.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(
        &mut self,
        answer: &EtcdAnswer,
        endpoint: &Endpoint,
        latest: Option<i64>,
    ) -> Result<()> {
        let id = self.cluster_id(answer);
        self.store.accept(|parts| {
            let part = parts.entry(self.part.clone()).or_default();
            part.remember_cluster_at(endpoint.host_and_port(), &id);
            part.former.retain(|former| former.id != id);
            let seen = Cluster::seen(&id, latest.unwrap_or(answer.revision), latest.is_some());
            let old = part.cluster.replace(seen);
            part.former.extend(old.filter(|old| old.id != id));
        })
    }
}

impl DelegateMemory {
    /// Remembers which cluster was met at an endpoint.
    fn remember_cluster_at(&mut self, endpoint: &str, id: &str) {
        self.met.insert(endpoint.to_owned(), id.to_owned());
        while self.met.len() > MET {
            let other = self.met.keys().find(|known| *known != endpoint).cloned();
            other.and_then(|other| self.met.remove(&other));
        }
    }

    /// Remembers a claim in a store, unless another one is in use.
    fn record_claim(&mut self, id: &str, revision: i64, marked: bool) {
        let seen = Cluster::seen(id, revision, marked);
        let known = self.cluster.get_or_insert_with(|| seen.clone());
        if known.id == id {
            known.revision = known.revision.max(seen.revision);
            known.unmarked = known.unmarked.max(seen.unmarked);
        }
    }
}

impl Cluster {
    fn seen(id: &str, revision: i64, marked: bool) -> Self {
        let (revision, unmarked) = if marked { (revision, 0) } else { (0, revision) };
        Self { id: id.to_owned(), revision, unmarked, set_back: false }
    }

    /// Returns the latest revision that it was surely at.
    fn reached(&self) -> i64 {
        self.revision.max(self.unmarked)
    }

    fn is_set_back(&self, answer: &EtcdAnswer) -> bool {
        self.set_back || answer.revision < self.reached()
    }
}

/// Makes a folder of what this delegate remembers.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    make_private_folder(folder)
}

/// Returns the folder of what this delegate remembers.
pub(crate) fn folder(state: &StateDir) -> PathBuf {
    state.root().join("etcd")
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    values::now() / 1000
}

/// Returns the error that the leases of this network are below other keys of the same cluster.
fn elsewhere(known: &str, configured: &str) -> Error {
    let what = format!(
        "this node's leases of the network are below {known}, but the configuration names \
         {configured} of the same etcd cluster"
    );
    Error::new(ErrorCode::TRY_AGAIN, what).advise(format!(
        "give the network another name, or configure the earlier layout and prefix; to move the leases, {REASSERT}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn memory(folder: &TempDir) -> EtcdMemory {
        let store = StoreMemory::read(folder.path().join("etcd/net.json"));
        EtcdMemory { store, part: String::new(), key_space: String::new() }
    }

    #[test]
    fn a_claim_that_another_process_notes_after_an_answer_is_not_held_against_it() {
        let folder = TempDir::new().unwrap();
        let claim = |mut memory: EtcdMemory, revision| {
            memory.remember(|part| part.cluster = Some(Cluster::seen("a", revision, true)));
        };
        claim(memory(&folder), 5);
        let (mut asking, other) = (memory(&folder), memory(&folder));
        claim(other, 9);
        asking.remember_endpoint(Some("http://b".to_owned()));
        assert_eq!(asking.latest(), 5);
        asking.check_latest_claim(7).unwrap();
        let next = memory(&folder);
        assert_eq!((next.latest(), next.endpoint().as_deref()), (9, Some("http://b")));
        assert!(!next.is_set_back());
    }
}
