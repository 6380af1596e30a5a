//! The node's memory of a server, which all calls of the node share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use ipam_kit::Result;
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, untrusted};
use serde::{Deserialize, Serialize};

use crate::mark::NotedOwner;
use crate::server::Subnet;

/// The memory of a server: pools by name, the subnets that networks have used, and whether it was
/// seen to be restored from a backup.
#[derive(Debug)]
pub(crate) struct SiteMemory {
    store: StoreMemory<SiteRecord>,
    /// The user of this call.
    user: String,
    /// Whether a restored server is used.
    is_trusting: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SiteRecord {
    /// Pools by user and name: a server may refuse a subnet to one user alone.
    pools: BTreeMap<String, SubnetNote>,
    /// The subnets that each network has used, by their ids.
    used: BTreeMap<String, BTreeMap<String, Subnet>>,
    /// The address that this node gave last, of pools that are given out round robin.
    cursors: BTreeMap<String, IpAddr>,
    /// When the server last showed each user's rights of a claim, in milliseconds since 1970.
    proven: BTreeMap<String, u64>,
    /// When each subnet last showed this node's latest record, in milliseconds since 1970.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    seen: BTreeMap<String, u64>,
    /// When a call met another one at an address, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<u64>,
    /// The sight that proved a restored server.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<MissingRecord>,
    /// The ids of records of this node whose addresses others have, perhaps by a takeover.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    replaced: BTreeSet<String>,
    /// When a person accepted the server, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SubnetNote {
    subnet: Subnet,
    /// When it was read, in milliseconds since 1970.
    read: u64,
}

/// A record that an owner of this node has by its note, and that the server lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MissingRecord {
    pub(crate) address: IpAddr,
    pub(crate) owner: NotedOwner,
    /// The sight in words.
    pub(crate) sight: String,
    /// Whether a person has begun to claim the missing records. Then only `accept` ends the refusal.
    pub(crate) is_certain: bool,
}

/// For how long a pool's subnet counts, and the rights of a claim, in milliseconds.
const POOL: u64 = 300_000;

/// For how long a user's rights need only one request to be proven again, in milliseconds.
const PROVEN: u64 = 30 * 86_400_000;

/// For how long others are expected to take addresses at the same time, in milliseconds.
const MET: u64 = 600_000;

/// For how long a subnet that was seen is not taken for a restored one, in milliseconds.
const SEEN: u64 = 60_000;

impl SiteMemory {
    pub(crate) fn read(path: PathBuf, user: String, is_trusting: bool) -> Self {
        Self { store: StoreMemory::read(path), user, is_trusting }
    }

    /// The subnet of a pool, if it was read lately.
    pub(crate) fn pool(&self, name: &str) -> Option<Subnet> {
        let note = self.store.record().pools.get(&self.key(name))?;
        (now().abs_diff(note.read) < POOL).then(|| note.subnet.clone())
    }

    pub(crate) fn remember_pool(&mut self, name: &str, subnet: &Subnet) {
        let key = self.key(name);
        self.store.remember_hint(|record| {
            record.pools.retain(|_, note| now().abs_diff(note.read) < POOL);
            record.pools.insert(key.clone(), SubnetNote { subnet: subnet.clone(), read: now() });
        });
    }

    fn key(&self, pool: &str) -> String {
        format!("{} {pool}", self.user)
    }

    /// Whether the server has shown the user's rights of a claim in the last five minutes.
    pub(crate) fn has_rights(&self) -> bool {
        self.has_shown_rights(POOL)
    }

    /// Whether the server has shown the user's rights of a claim on this node.
    pub(crate) fn had_rights(&self) -> bool {
        self.has_shown_rights(PROVEN)
    }

    fn has_shown_rights(&self, within: u64) -> bool {
        let shown = self.store.record().proven.get(&self.user);
        shown.is_some_and(|shown| now().abs_diff(*shown) < within)
    }

    pub(crate) fn remember_rights(&mut self) {
        let Self { store, user, .. } = self;
        store.remember_hint(|record| {
            record.proven.retain(|_, shown| now().abs_diff(*shown) < PROVEN);
            record.proven.insert(user.clone(), now());
        });
    }

    /// Forgets the pools of a subnet that has changed.
    pub(crate) fn forget_pools_of(&mut self, subnet: &str) {
        self.store.remember_hint(|record| record.pools.retain(|_, note| note.subnet.id != subnet));
    }

    /// The subnets that a network has used on this node.
    pub(crate) fn used(&self, network: &str) -> Vec<Subnet> {
        let used = self.store.record().used.get(network);
        used.into_iter().flat_map(|used| used.values().cloned()).collect()
    }

    /// Remembers that a network uses a subnet, before it does.
    pub(crate) fn remember_use(&mut self, network: &str, subnet: &Subnet) {
        let known = self.store.record().used.get(network).and_then(|used| used.get(&subnet.id));
        if known != Some(subnet) {
            self.store.remember(|record| {
                let used = record.used.entry(network.to_owned()).or_default();
                used.insert(subnet.id.clone(), subnet.clone());
            });
        }
    }

    /// Forgets a subnet that does not exist.
    pub(crate) fn forget_subnet(&mut self, id: &str) {
        self.store.remember_hint(|record| {
            record.pools.retain(|_, note| note.subnet.id != id);
            record.used.values_mut().for_each(|used| drop(used.remove(id)));
            record.seen.remove(id);
        });
    }

    /// The address of a pool that this node gave last.
    pub(crate) fn cursor(&self, pool: &str) -> Option<IpAddr> {
        self.store.record().cursors.get(pool).copied()
    }

    pub(crate) fn remember_cursor(&mut self, pool: &str, address: IpAddr) {
        self.store.remember_hint(|record| {
            record.cursors.insert(pool.to_owned(), address);
        });
    }

    /// Whether others have lately taken addresses at the same time.
    pub(crate) fn has_met(&self) -> bool {
        self.store.record().met.is_some_and(|met| now().abs_diff(met) < MET)
    }

    pub(crate) fn remember_meeting(&mut self) {
        // Most calls of a crowd meet others.
        if self.store.record().met.is_none_or(|met| now().abs_diff(met) > MET / 10) {
            self.store.remember_hint(|record| record.met = Some(now()));
        }
    }

    /// The record whose absence proved a restored server, unless a restored server is used.
    pub(crate) fn missing(&self) -> Option<&MissingRecord> {
        self.store.record().missing.as_ref().filter(|_| !self.is_trusting)
    }

    /// Whether a subnet has lately shown this node's latest record.
    pub(crate) fn was_seen(&self, subnet: &str) -> bool {
        self.is_seen_within(subnet, SEEN)
    }

    pub(crate) fn remember_seen(&mut self, subnet: &str) {
        // Most calls of a busy node come soon after another one.
        if !self.is_seen_within(subnet, SEEN / 6) {
            self.store.remember_hint(|record| {
                record.seen.insert(subnet.to_owned(), now());
            });
        }
    }

    fn is_seen_within(&self, subnet: &str, time: u64) -> bool {
        self.store.record().seen.get(subnet).is_some_and(|seen| now().abs_diff(*seen) < time)
    }

    /// Fails if the server was seen to be restored. The release of the missing record ends that, and so
    /// does `accept`.
    ///
    /// # Errors
    /// Code 11, with advice.
    pub(crate) fn check_not_restored(&self, server: &str) -> Result<()> {
        self.missing().map_or(Ok(()), |missing| Err(restored(server, &missing.sight)))
    }

    /// Remembers that a record of this node is missing.
    ///
    /// # Errors
    /// Code 11, unless the call trusts any server.
    pub(crate) fn miss(&mut self, server: &str, missing: MissingRecord) -> Result<()> {
        if self.is_trusting {
            return Ok(());
        }
        let error = restored(server, &missing.sight);
        self.store.remember(|record| record.missing = Some(missing));
        Err(error)
    }

    /// Forgets that a record is missing, because its owner has released it. If a person has begun to
    /// claim the missing records, the server is refused until `accept`.
    pub(crate) fn explain_missing(&mut self) {
        self.store.remember(|record| drop(record.missing.take_if(|it| !it.is_certain)));
    }

    /// Remembers that a person has begun to claim the missing records.
    pub(crate) fn remember_recovery(&mut self) {
        if self.is_trusting && self.store.record().missing.as_ref().is_some_and(|it| !it.is_certain)
        {
            self.store
                .remember(|record| record.missing.iter_mut().for_each(|it| it.is_certain = true));
        }
    }

    /// Whether a record was seen to be replaced by one of another owner.
    pub(crate) fn is_replaced(&self, id: &str) -> bool {
        self.store.record().replaced.contains(id)
    }

    /// Remembers a record of this node that was replaced by one of another owner. Records that no note
    /// names are forgotten.
    pub(crate) fn remember_replaced(&mut self, id: &str, is_noted: impl Fn(&str) -> bool) {
        self.store.remember(|record| {
            record.replaced.retain(|id| is_noted(id));
            record.replaced.insert(id.to_owned());
        });
    }

    /// The time of the last `accept`, in milliseconds since 1970. Only later records of this node prove
    /// that the server was restored.
    pub(crate) fn accepted(&self) -> u64 {
        self.store.record().accepted.unwrap_or_default()
    }

    /// Accepts the server as it is.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(&mut self) -> Result<()> {
        self.store.accept(|record| {
            record.missing = None;
            record.replaced.clear();
            record.accepted = Some(now());
            record.seen.clear();
            record.pools.clear();
        })
    }
}

fn restored(server: &str, sight: &str) -> ipam_kit::Error {
    untrusted(format!(
        "{sight}: {server} was restored from a backup, another node took the address over and released it, or a person deleted the record"
    ))
    .advise(format!("re-create the container of that record if it runs: its DEL ends this error; if it has ended, and {server} was not restored, run `accept --config FILE` of the allocator on this node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(folder: &tempfile::TempDir, is_trusting: bool) -> SiteMemory {
        SiteMemory::read(folder.path().join("a/site.json"), "u".to_owned(), is_trusting)
    }

    fn subnet() -> Subnet {
        Subnet {
            id: "7".into(),
            name: "blue".into(),
            cidr: "10.0.0.0/24".parse().unwrap(),
            gateway: None,
            parent: None,
            refusal: None,
        }
    }

    #[test]
    fn pools_and_rights_count_for_their_user() {
        let folder = tempfile::tempdir().unwrap();
        let of = |user: &str| {
            SiteMemory::read(folder.path().join("a/site.json"), user.to_owned(), false)
        };
        of("u").remember_pool("blue", &subnet());
        of("u").remember_rights();
        assert!(of("u").pool("blue").is_some() && of("u").has_rights());
        assert!(of("v").pool("blue").is_none() && !of("v").had_rights());
    }

    #[test]
    fn a_pool_counts_for_five_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let subnet = subnet();
        memory(&folder, false).remember_pool("blue", &subnet);
        assert_eq!(memory(&folder, false).pool("blue"), Some(subnet));
        memory(&folder, false).store.remember(|record| {
            record.pools.values_mut().for_each(|note| note.read -= POOL);
        });
        assert_eq!(memory(&folder, false).pool("blue"), None);
    }

    #[test]
    fn a_subnet_that_was_seen_counts_for_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!memory(&folder, false).was_seen("7"));
        memory(&folder, false).remember_seen("7");
        assert!(memory(&folder, false).was_seen("7") && !memory(&folder, false).was_seen("8"));
        memory(&folder, false).store.remember(|record| {
            record.seen.values_mut().for_each(|seen| *seen -= SEEN);
        });
        assert!(!memory(&folder, false).was_seen("7"));
    }

    #[test]
    fn a_restored_server_is_refused_until_it_is_accepted_or_explained() {
        let folder = tempfile::tempdir().unwrap();
        let missing = || {
            let [network, node, container, ifname, sight] =
                ["lan", "n", "c1", "eth0", "it is missing"].map(str::to_owned);
            let owner = NotedOwner { network, node, container, ifname };
            MissingRecord { address: [10, 0, 0, 2].into(), owner, sight, is_certain: false }
        };
        assert!(memory(&folder, true).miss("Test", missing()).is_ok());
        type End = fn(&mut SiteMemory);
        for end in [(|memory| memory.accept().unwrap()) as End, SiteMemory::explain_missing] {
            assert_eq!(memory(&folder, false).check_not_restored("Test").ok(), Some(()));
            let error = memory(&folder, false).miss("Test", missing()).unwrap_err();
            assert_eq!(error.code().number(), 11);
            assert!(memory(&folder, false).check_not_restored("Test").is_err());
            assert!(memory(&folder, true).check_not_restored("Test").is_ok());
            end(&mut memory(&folder, false));
        }
        // After a claim that trusts the server, only `accept` ends the refusal.
        memory(&folder, false).miss("Test", missing()).unwrap_err();
        memory(&folder, true).remember_recovery();
        memory(&folder, false).explain_missing();
        assert!(memory(&folder, false).check_not_restored("Test").is_err());
    }
}
