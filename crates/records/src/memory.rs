//! The node's memory of a server, which all calls of the node share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ipam_kit::Result;
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, untrusted};
use serde::{Deserialize, Serialize};

use crate::mark::NotedOwner;
use crate::server::Subnet;

/// The memory of a server: pools by name, the subnets that networks have used, and this node's
/// latest records, which reveal a server that was restored from a backup.
#[derive(Debug)]
pub(crate) struct SiteMemory {
    store: StoreMemory<SiteRecord>,
    /// Whether a restored server is used.
    is_trusting: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SiteRecord {
    pools: BTreeMap<String, SubnetNote>,
    /// The subnets that each network has used, by their ids.
    used: BTreeMap<String, BTreeMap<String, Subnet>>,
    /// The latest records of this node in each subnet, the oldest first.
    latest: BTreeMap<String, Vec<RecordNote>>,
    /// The address that this node gave last, of pools that are given out round robin.
    cursors: BTreeMap<String, IpAddr>,
    /// When the server last showed the rights of a claim, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    rights: Option<u64>,
    /// When a call met another one at an address, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<u64>,
    /// The sight that proved a restored server.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SubnetNote {
    subnet: Subnet,
    /// When it was read, in milliseconds since 1970.
    read: u64,
}

/// A record of this node that was confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordNote {
    pub(crate) id: String,
    pub(crate) address: IpAddr,
    pub(crate) owner: NotedOwner,
}

/// For how long a pool's subnet counts, and the rights of a claim, in milliseconds.
const POOL: u64 = 300_000;

/// For how long others are expected to take addresses at the same time, in milliseconds.
const MET: u64 = 600_000;

/// How many records of a subnet are remembered.
const LATEST: usize = 8;

impl SiteMemory {
    pub(crate) fn read(path: PathBuf, is_trusting: bool) -> Self {
        Self { store: StoreMemory::read(path), is_trusting }
    }

    /// The subnet of a pool, if it was read lately.
    pub(crate) fn pool(&self, name: &str) -> Option<Subnet> {
        let note = self.store.record().pools.get(name)?;
        (now().abs_diff(note.read) < POOL).then(|| note.subnet.clone())
    }

    pub(crate) fn remember_pool(&mut self, name: &str, subnet: &Subnet) {
        self.store.remember_hint(|record| {
            record.pools.retain(|_, note| now().abs_diff(note.read) < POOL);
            record
                .pools
                .insert(name.to_owned(), SubnetNote { subnet: subnet.clone(), read: now() });
        });
    }

    /// Whether the server has lately shown the rights of a claim.
    pub(crate) fn has_rights(&self) -> bool {
        self.store.record().rights.is_some_and(|shown| now().abs_diff(shown) < POOL)
    }

    /// Whether the server has ever shown the rights of a claim.
    pub(crate) fn had_rights(&self) -> bool {
        self.store.record().rights.is_some()
    }

    pub(crate) fn remember_rights(&mut self) {
        self.store.remember_hint(|record| record.rights = Some(now()));
    }

    /// Forgets the pools of a subnet that is not as it was.
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
            record.latest.remove(id);
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

    /// Whether a record is still this node's latest in a subnet. A release of another call forgets
    /// its record before it deletes it.
    pub(crate) fn is_latest_still(&mut self, subnet: &str, note: &RecordNote) -> bool {
        self.store.refresh();
        self.latest(subnet) == Some(note)
    }

    /// This node's latest record in a subnet.
    pub(crate) fn latest(&self, subnet: &str) -> Option<&RecordNote> {
        self.store.record().latest.get(subnet)?.last()
    }

    /// The latest records of this node in a subnet.
    pub(crate) fn latest_in(&self, subnet: &str) -> Vec<RecordNote> {
        self.store.record().latest.get(subnet).cloned().unwrap_or_default()
    }

    pub(crate) fn remember_records(&mut self, records: &[(String, RecordNote)]) {
        self.store.remember(|record| {
            for (subnet, note) in records {
                let latest = record.latest.entry(subnet.clone()).or_default();
                latest.retain(|known| known.id != note.id);
                latest.push(note.clone());
                let surplus = latest.len().saturating_sub(LATEST);
                latest.drain(..surplus);
            }
        });
    }

    /// Forgets a record that was deleted, or whose address went to another owner.
    pub(crate) fn forget_record(&mut self, id: &str) {
        let mut latest = self.store.record().latest.values();
        if latest.any(|notes| notes.iter().any(|note| note.id == id)) {
            self.store.remember(|record| {
                record.latest.values_mut().for_each(|notes| notes.retain(|note| note.id != id));
            });
        }
    }

    /// Fails if the server was seen to be restored, until a person accepts it.
    ///
    /// # Errors
    /// Code 11, with what to do.
    pub(crate) fn check_not_restored(&self, server: &str) -> Result<()> {
        let sight = self.store.record().restored.as_ref().filter(|_| !self.is_trusting);
        sight.map_or(Ok(()), |sight| Err(restored(server, sight)))
    }

    /// Remembers that this node's latest record is missing.
    ///
    /// # Errors
    /// Code 11, unless the call trusts any server.
    pub(crate) fn miss(&mut self, server: &str, missing: &RecordNote) -> Result<()> {
        if self.is_trusting {
            return Ok(());
        }
        let sight = format!(
            "the record {} of {}, the latest of this node in its subnet ({}), is missing",
            missing.id, missing.address, missing.owner
        );
        self.store.remember(|record| record.restored = Some(sight.clone()));
        Err(restored(server, &sight))
    }

    /// Accepts the server as it is.
    ///
    /// # Errors
    /// The state folder cannot be written.
    pub(crate) fn accept(&mut self) -> Result<()> {
        self.store.accept(|record| {
            record.restored = None;
            record.latest.clear();
            record.pools.clear();
        })
    }
}

fn restored(server: &str, sight: &str) -> ipam_kit::Error {
    untrusted(format!(
        "{sight}: {server} was restored from a backup, or a person deleted the record"
    ))
    .advise("if a person deleted it after its container had ended, run `accept --config FILE` of the allocator on this node")
}

#[cfg(test)]
mod tests {
    use ipam_kit::allocate::{Owner, Scope};
    use ipam_kit::cni::{ContainerId, IfName, NetworkName};

    use super::*;

    fn memory(folder: &tempfile::TempDir, is_trusting: bool) -> SiteMemory {
        SiteMemory::read(folder.path().join("site.json"), is_trusting)
    }

    #[test]
    fn a_pool_counts_for_five_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let subnet = Subnet {
            id: "7".into(),
            name: "blue".into(),
            cidr: "10.0.0.0/24".parse().unwrap(),
            gateway: None,
            parent: None,
            refusal: None,
        };
        memory(&folder, false).remember_pool("blue", &subnet);
        assert_eq!(memory(&folder, false).pool("blue"), Some(subnet));
        memory(&folder, false).store.remember(|record| {
            record.pools.values_mut().for_each(|note| note.read -= POOL);
        });
        assert_eq!(memory(&folder, false).pool("blue"), None);
    }

    #[test]
    fn a_restored_server_is_refused_until_it_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let owner = Owner {
            scope: Scope { node: "n".into(), network: NetworkName::parse("lan").unwrap() },
            container: ContainerId::parse("c1").unwrap(),
            ifname: IfName::parse("eth0").unwrap(),
        };
        let owner = NotedOwner::of(&owner);
        let note = |id: &str| RecordNote {
            id: id.into(),
            address: [10, 0, 0, 2].into(),
            owner: owner.clone(),
        };
        let records = ["1", "2"].map(|id| ("7".to_owned(), note(id)));
        memory(&folder, false).remember_records(&records);
        assert_eq!(memory(&folder, false).latest("7"), Some(&note("2")));
        memory(&folder, false).forget_record("2");
        assert_eq!(memory(&folder, false).latest("7"), Some(&note("1")));
        assert!(memory(&folder, true).miss("Test", &note("1")).is_ok());
        let error = memory(&folder, false).miss("Test", &note("1")).unwrap_err();
        assert_eq!(error.code().number(), 11);
        assert!(memory(&folder, false).check_not_restored("Test").is_err());
        assert!(memory(&folder, true).check_not_restored("Test").is_ok());
        memory(&folder, false).accept().unwrap();
        assert!(memory(&folder, false).check_not_restored("Test").is_ok());
        assert_eq!(memory(&folder, false).latest("7"), None);
    }
}
