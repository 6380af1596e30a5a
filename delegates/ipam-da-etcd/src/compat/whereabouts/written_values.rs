//! This node's memory of the values that it wrote last, which saves a call the read.
//!
//! A revision alone proves no value: a store that was restored from a backup reaches it again, with
//! another value. So each change of pools also writes a mark into a key of ours: a random number
//! and a hash of the values. A guess requires the mark, and that the keys of the pools still have
//! the revision of that change. The mark of a damaged file is in no store.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};

use etcd_client::{Compare, CompareOp, TxnOp};
use ipam_kit::cni::NetworkName;
use ipam_kit::host::{StateDir, StateFile};
use ipnet::IpNet;
use log::debug;
use serde::{Deserialize, Serialize};

use crate::keys::full_key;
use crate::memory;
use crate::pool_value::{PoolValue, PoolValues, SeenPool, SeenPools};
use crate::view_token::ChangeMark;

/// How many bytes of values are remembered at most. To send more by a wrong guess costs more than
/// the request that a right one saves.
const LARGEST: usize = 32 * 1024;

/// The values of a network's pools, as this node wrote them last.
#[derive(Debug)]
pub(super) struct WrittenValues {
    /// The key of the mark.
    key: String,
    file: StateFile,
    /// The content of the file, once it was read.
    latest: Option<LatestChange>,
}

/// The latest change of a network's pools by this node.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LatestChange {
    random: u64,
    revision: i64,
    /// The values that it wrote; none if a wrong guess is likely.
    values: BTreeMap<IpNet, String>,
}

impl WrittenValues {
    pub(super) fn new(state: &StateDir, prefix: &str, network: &NetworkName) -> Self {
        let folder = memory::folder(state).join("values");
        Self {
            key: full_key(prefix, "/ipam-delegated/written/NETWORK", network),
            file: StateFile::at(folder.join(format!("{network}.json"))),
            latest: None,
        }
    }

    /// Returns the key of the mark.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Returns pools as this node wrote them last, with the mark of that change; `None` if it does
    /// not know all of them.
    pub(super) fn read(&mut self, subnets: &BTreeSet<IpNet>) -> Option<(SeenPools, ChangeMark)> {
        let LatestChange { random, revision, values } = self.latest();
        let mut pools = SeenPools::new();
        for subnet in subnets {
            let value = PoolValue::parse(values.get(subnet)?.as_str().into()).ok()?;
            pools.insert(*subnet, SeenPool { value, revision: Some(*revision) });
        }
        let texts = values.iter().map(|(subnet, text)| (subnet, text.as_str()));
        let mark = ChangeMark { random: *random, hash: hash(texts) };
        (!pools.is_empty()).then_some((pools, mark))
    }

    /// Guards a change by the mark of the one that wrote its values.
    pub(super) fn guard(&self, mark: &ChangeMark) -> Compare {
        Compare::value(&*self.key, CompareOp::Equal, mark.to_string())
    }

    /// Returns the mark of a new change.
    pub(super) fn new_mark(values: &PoolValues) -> ChangeMark {
        // That of values that are not remembered is not read.
        let texts = values.iter().map(|(subnet, value)| (subnet, value.as_str()));
        let hash = if size(values) > LARGEST { 0 } else { hash(texts) };
        ChangeMark { random: RandomState::new().build_hasher().finish(), hash }
    }

    /// Writes a mark.
    pub(super) fn write(&self, mark: &ChangeMark) -> TxnOp {
        TxnOp::put(&*self.key, mark.to_string(), None)
    }

    /// Remembers a change that was made at a revision. A wrong guess sends a value once more: after
    /// another node's change, only the second change of this node in a row is remembered.
    pub(super) fn remember(
        &mut self,
        mark: &ChangeMark,
        revision: i64,
        seen: &SeenPools,
        values: &PoolValues,
    ) {
        let before = self.latest().revision;
        let is_own = |subnet: &IpNet| {
            seen.get(subnet).and_then(|pool| pool.revision).is_none_or(|seen| seen == before)
        };
        let is_likely = size(values) <= LARGEST && values.keys().all(is_own);
        let texts = values.iter().map(|(subnet, value)| (*subnet, value.as_str().to_owned()));
        let values = if is_likely { texts.collect() } else { BTreeMap::new() };
        let latest = LatestChange { random: mark.random, revision, values };
        if let Err(error) = self.file.write(&latest) {
            debug!("cannot write {}: {error}", self.file.path().display());
        }
        self.latest = Some(latest);
    }

    fn latest(&mut self) -> &LatestChange {
        self.latest.get_or_insert_with(|| self.file.read())
    }
}

fn size(values: &PoolValues) -> usize {
    values.values().map(|value| value.as_str().len()).sum()
}

/// Hashes the texts of pools, by their subnets in order.
fn hash<'a>(texts: impl Iterator<Item = (&'a IpNet, &'a str)>) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.for_each(|text| text.hash(&mut hasher));
    hasher.finish()
}
