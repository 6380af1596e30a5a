//! The node's memory of a network's objects between two calls, in its state folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, is_refusal_recent, untrusted};
use ipam_kit::cni::NetworkName;
use ipam_kit::host::StateDir;
use ipam_kit::{Error, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::objects::{Metadata, PoolEntry};

/// The memory of a network: the state of its pools, which reveals an API server that was restored
/// or replaced; and, as hints, the members that the CRD keeps.
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
    /// The namespaces in which a pool was in an earlier state than before: which pool, and what was
    /// seen. A login of a wrong namespace sees no pool, and does not stop calls in the right one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    restored: BTreeMap<String, String>,
    /// Whether the CRD keeps the interface of an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    ifname: Option<bool>,
    /// Whether the CRD keeps this delegate's member of an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<bool>,
    /// Whether this node has claimed a sticky name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    sticky: bool,
    /// The uids of the clusters in which ADDs may claim: that of the first claim, and those that
    /// were accepted, the latest one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clusters: Vec<String>,
    /// When the server last refused to tell it, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_refused: Option<u64>,
}

/// The note of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolNote {
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    /// The uid of the cluster, if an ADD has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
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

/// For how long a list of pools counts, in milliseconds.
const LIST: u64 = 600_000;

impl PoolNote {
    /// Returns whether this node has seen the pool before.
    pub(crate) fn is_known(&self) -> bool {
        !self.uid.is_empty()
    }

    /// Returns whether a pool is the noted one, in the noted state or a later one.
    pub(crate) fn is_of(&self, seen: &Metadata) -> bool {
        self.is_known()
            && self.uid == seen.uid
            && seen.version().is_none_or(|version| version >= self.version)
    }

    /// Returns the cluster of a pool, if the pool is the noted one.
    pub(crate) fn cluster_of(&self, seen: Option<&Metadata>) -> Option<&String> {
        self.cluster.as_ref().filter(|_| seen.is_some_and(|seen| self.is_of(seen)))
    }

    /// Returns whether a pool shows that the server is of the cluster of a lease: the pool is the
    /// noted one, and in that cluster. A lease of an earlier release names no cluster.
    pub(crate) fn proves(&self, seen: Option<&Metadata>, lease: &Lease) -> bool {
        match &lease.store {
            Some(own) => self.cluster_of(seen) == Some(own),
            None => seen.is_some_and(|seen| self.is_of(seen)),
        }
    }

    /// Notes a state of the pool, and the cluster, if that is known.
    fn note(&mut self, seen: &Metadata, cluster: Option<&String>) {
        let version = seen.version().unwrap_or_default();
        if self.uid == seen.uid {
            self.version = self.version.max(version);
        } else {
            (self.uid, self.version, self.cluster) = (seen.uid.clone(), version, None);
        }
        if let Some(cluster) = cluster {
            self.cluster = Some(cluster.clone());
        }
    }

    /// Says how a pool differs from the noted one.
    fn difference(&self, seen: Option<&Metadata>) -> String {
        match seen {
            None => "is missing".to_owned(),
            Some(seen) if seen.uid != self.uid => {
                "was made anew, or is of another cluster".to_owned()
            }
            Some(seen) => {
                let (now, noted) = (&seen.resource_version, self.version);
                format!("has resourceVersion {now}, and this node has seen {noted}")
            }
        }
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

    /// Returns whether this node has claimed a sticky name.
    pub(crate) fn has_sticky(&self) -> bool {
        self.network.record().sticky
    }

    /// Remembers that this node has claimed a sticky name.
    pub(crate) fn remember_sticky(&mut self) {
        if !self.has_sticky() {
            self.network.remember_hint(|note| note.sticky = true);
        }
    }

    /// Forgets what the CRD keeps of an entry if the entries of a pool contradict it: another CRD was
    /// applied, or other programs have written them all.
    pub(crate) fn compare_schema<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a PoolEntry>,
        overlap_check: bool,
    ) {
        let (mut is_empty, mut ifname, mut mark) = (true, false, false);
        for entry in entries {
            is_empty = false;
            ifname |= entry.ifname.is_some();
            mark |= entry.mark.is_some();
        }
        let has_ifname = self.keeps_ifname().is_none_or(|noted| noted == ifname);
        let has_mark = overlap_check || self.keeps_mark().is_none_or(|noted| noted == mark);
        if !(is_empty || (has_ifname && has_mark)) {
            self.network.remember(|note| (note.ifname, note.mark) = (None, None));
        }
    }

    /// Fails if the pools of a namespace were seen to be restored, until a person accepts them.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_not_restored(&self, namespace: &str) -> Result<()> {
        let sight = self.network.record().restored.get(namespace);
        sight.filter(|_| !self.trusting).map_or(Ok(()), |sight| Err(restored(sight)))
    }

    /// Returns what was seen of a pool before. A call reads it before it asks the server: another
    /// call of this node may see a later state meanwhile.
    pub(crate) fn pool(&self, name: &str) -> PoolNote {
        self.pool_memory(name).record().clone()
    }

    /// Compares a pool, missing or not, with what was seen before the server was asked. `place` is
    /// its namespace and its name.
    ///
    /// # Errors
    /// Code 11: it is missing, another one, or in an earlier state.
    pub(crate) fn check_pool(
        &mut self,
        place: [&str; 2],
        before: &PoolNote,
        seen: Option<&Metadata>,
    ) -> Result<()> {
        let is_same = !before.is_known() || seen.is_some_and(|seen| before.is_of(seen));
        if is_same || self.trusting {
            return Ok(());
        }
        let [namespace, name] = place;
        let sight = format!("the IPPool {namespace}/{name} {}", before.difference(seen));
        self.remember_restored(namespace, &sight);
        Err(restored(&sight))
    }

    fn remember_restored(&mut self, namespace: &str, sight: &str) {
        self.network.remember(|note| {
            note.restored.insert(namespace.to_owned(), sight.to_owned());
        });
    }

    /// Returns whether the call uses any store that it finds, also one of another cluster.
    pub(crate) fn is_trusting(&self) -> bool {
        self.trusting
    }

    /// Returns the uids of the clusters in which ADDs may claim, the latest one last; none if no ADD
    /// has claimed yet, or could read it.
    pub(crate) fn clusters(&self) -> &[String] {
        &self.network.record().clusters
    }

    /// Remembers the cluster of the first claim, unless another call has done so.
    pub(crate) fn remember_cluster(&mut self, uid: &str) {
        if !self.clusters().is_empty() {
            return;
        }
        self.network.remember_hint(|note| {
            if note.clusters.is_empty() {
                note.clusters.push(uid.to_owned());
            }
        });
    }

    /// Returns whether the server refused lately to tell its cluster.
    pub(crate) fn is_cluster_refused(&self) -> bool {
        self.network.record().cluster_refused.is_some_and(is_refusal_recent)
    }

    /// Remembers that the server refused to tell its cluster.
    pub(crate) fn remember_cluster_refusal(&mut self) {
        self.network.remember_hint(|note| note.cluster_refused = Some(now()));
    }

    /// Remembers the state of a pool, and its cluster, if that is known.
    pub(crate) fn remember_pool(&mut self, name: &str, seen: &Metadata, cluster: Option<&String>) {
        self.pool_memory(name).remember(|note| note.note(seen, cluster));
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

    /// Lists the pools again at the next view of this one.
    pub(crate) fn forget_overlapping(&mut self, name: &str) {
        self.pool_memory(name).remember_hint(|note| note.listed = 0);
    }

    /// Returns the address of a pool that this node gave last.
    pub(crate) fn cursor(&self, name: &str) -> Option<IpAddr> {
        self.pool(name).cursor
    }

    /// Remembers the address of a pool that this node gave last.
    pub(crate) fn remember_cursor(&self, name: &str, address: IpAddr) {
        self.pool_memory(name).remember_hint(|note| note.cursor = Some(address));
    }

    /// Accepts the pools as they are, and the cluster, if it is known. The earlier clusters stay: a
    /// network may use several.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(&mut self, cluster: Option<String>) -> Result<()> {
        let pools = self.folder.join(POOLS);
        match fs::remove_dir_all(&pools) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("cannot remove {}", pools.display()), error)
                    .advise("check rights and mount of the state folder, and call again"))
            }
            _ => self.network.accept(|note| {
                note.restored.clear();
                note.clusters.retain(|uid| cluster.as_ref().is_some_and(|own| own != uid));
                note.clusters.extend(cluster);
            }),
        }
    }

    fn pool_memory(&self, name: &str) -> StoreMemory<PoolNote> {
        StoreMemory::read(self.folder.join(POOLS).join(format!("{name}.json")))
    }
}

const POOLS: &str = "pools";

fn restored(sight: &str) -> Error {
    untrusted(format!(
        "{sight}: the API server was restored from a backup, the definition of IPPools was deleted, or it is another cluster"
    ))
    .advise("if a person deleted the pool while no lease was in it, run `ipam-da-kube accept --config FILE` on this node")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_pool_proves_the_cluster_of_a_lease_only_if_it_is_the_noted_one_of_that_cluster() {
        let noted = json!({"uid": "u1", "cluster": "a", "version": 7});
        let of_before = json!({"uid": "u1", "version": 7});
        let seen = |uid: &str, version: &str| json!({"uid": uid, "resourceVersion": version});
        let [own, later] = [seen("u1", "7"), seen("u1", "8")];
        let [other, older] = [seen("u2", "8"), seen("u1", "6")];
        let cases = [
            (&noted, Some(&own), Some("a"), true),
            (&noted, Some(&later), Some("a"), true),
            (&noted, Some(&own), Some("b"), false),
            (&noted, Some(&other), Some("a"), false),
            (&noted, Some(&older), Some("a"), false),
            (&noted, None, Some("a"), false),
            // What an earlier release has written names no cluster.
            (&of_before, Some(&own), Some("a"), false),
            (&of_before, Some(&own), None, true),
            (&noted, Some(&own), None, true),
            (&noted, Some(&other), None, false),
            (&noted, None, None, false),
        ];
        for (note, seen, cluster, expected) in cases {
            let of_note: PoolNote = from_value(note.clone()).unwrap();
            let metadata = seen.map(|seen: &Value| from_value::<Metadata>(seen.clone()).unwrap());
            let lease = Lease::bare("10.1.2.2/24".parse().unwrap(), Value::Null);
            let lease = Lease { store: cluster.map(str::to_owned), ..lease };
            let proves = of_note.proves(metadata.as_ref(), &lease);
            assert_eq!(proves, expected, "{note} {seen:?} {cluster:?}");
        }
    }

    #[test]
    fn a_pool_that_was_made_anew_is_of_no_noted_cluster() {
        let cluster = "a".to_owned();
        let seen = |uid: &str| from_value(json!({"uid": uid, "resourceVersion": "7"})).unwrap();
        let mut note = PoolNote::default();
        note.note(&seen("u1"), Some(&cluster));
        // A DEL does not ask for it.
        note.note(&seen("u1"), None);
        assert_eq!(note.cluster, Some(cluster));
        note.note(&seen("u2"), None);
        assert_eq!(note.cluster, None);
    }
}
