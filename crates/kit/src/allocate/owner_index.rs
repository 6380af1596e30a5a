//! All that an owner holds, as the value of one key: for stores that keep an index of owners beside
//! their leases.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ledger::{Entry, Holder};
use super::{Lease, Owner};

/// The value of an owner's key: all that the owner holds.
///
/// A change of an owner writes its key and those of the addresses that it takes or confirms in one
/// transaction, so that they have one modification revision, which identifies the state of the
/// owner. Addresses that a change leaves as they are keep their own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OwnerIndex {
    /// The network.
    pub network: String,
    /// The node's identity.
    pub node: String,
    /// The container id.
    pub container: String,
    /// The interface inside it.
    pub ifname: String,
    /// How often the owner's leases were written.
    pub generation: u64,
    /// When they were written last, in milliseconds since 1970 by the owner's clock.
    pub confirmed: u64,
    /// The leases.
    pub leases: Vec<IndexedLease>,
}

/// A lease in an owner's index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexedLease {
    /// The address with the prefix length of its subnet.
    pub address: IpNet,
    /// The gateway of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The pool's name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// When it was taken, in milliseconds since 1970 by the owner's clock.
    pub taken: u64,
    /// The revision of the address's key, where it is older than that of the owner's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<LeaseRevision>,
}

/// The state of an owner: its index, with the revision of the owner's key.
#[derive(Clone, Debug)]
pub struct OwnerState {
    /// The revision of the owner's key.
    pub revision: i64,
    /// Its value.
    pub owner_index: OwnerIndex,
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl OwnerIndex {
    /// An index of this owner with other leases, written now.
    pub fn written(owner: &Owner, generation: u64, leases: Vec<IndexedLease>) -> Self {
        Self {
            network: owner.scope.network.to_string(),
            node: owner.scope.node.clone(),
            container: owner.container.to_string(),
            ifname: owner.ifname.to_string(),
            generation,
            confirmed: now(),
            leases,
        }
    }

    /// The value of the owner's key.
    pub fn to_value(&self) -> String {
        to_text(self)
    }

    /// [`LeaseRevision::leases`] of what is written with the owner's key.
    pub fn together(&self) -> usize {
        let alone = self.leases.iter().all(|item| item.since.is_none());
        if alone { self.leases.len() } else { 0 }
    }

    fn holder(&self) -> Holder {
        Holder {
            node: Some(self.node.clone()),
            container: self.container.clone(),
            ifname: Some(self.ifname.clone()),
            ..Holder::default()
        }
    }
}

impl IndexedLease {
    /// A lease as it is written.
    pub fn of(lease: &Lease, taken: u64) -> Self {
        let Lease { address, gateway, .. } = *lease;
        Self { address, gateway, pool: lease.pool.clone(), taken, since: None }
    }

    /// The lease, whose key has this revision.
    pub fn lease(&self, revision: LeaseRevision) -> Lease {
        Lease {
            pool: self.pool.clone(),
            gateway: self.gateway,
            taken: Some(time(self.taken)),
            ..Lease::bare(self.address, revision.to_json())
        }
    }
}

impl OwnerState {
    /// The owner's leases.
    pub fn leases(&self) -> Vec<Lease> {
        self.owner_index.leases.iter().map(|item| item.lease(self.revision_of(item))).collect()
    }

    /// The revision of the key of one of its addresses.
    pub fn revision_of(&self, item: &IndexedLease) -> LeaseRevision {
        let written =
            LeaseRevision { revision: self.revision, leases: self.owner_index.together() };
        item.since.unwrap_or(written)
    }

    /// The owner's next state, without some addresses and with the others as they are.
    pub fn without(&self, gone: impl Fn(IpAddr) -> bool) -> OwnerIndex {
        let mut next = self.owner_index.clone();
        next.generation = next.generation.wrapping_add(1);
        next.leases.retain(|item| !gone(item.address.addr()));
        for item in &mut next.leases {
            item.since = Some(self.revision_of(item));
        }
        next
    }

    /// The same as entries of a scan.
    pub fn entries(&self) -> Vec<Entry> {
        let entry = |lease| Entry {
            lease,
            holder: Some(self.owner_index.holder()),
            since: Some(time(self.owner_index.confirmed)),
            fault: None,
        };
        self.leases().into_iter().map(entry).collect()
    }
}

/// [`Lease::revision`]: the modification revision of the address's key, and how many leases were
/// written by it, so that a DEL knows whether it was given all; 0 when the owner held others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRevision {
    /// The modification revision.
    pub revision: i64,
    /// The number of leases.
    pub leases: usize,
}

impl LeaseRevision {
    /// As it travels with a lease.
    pub fn to_json(self) -> Value {
        json!({"revision": self.revision, "leases": self.leases})
    }

    /// Reads what came back with a lease.
    pub fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// The one revision of leases that are all that their owner held by it.
    pub fn of_all(leases: &[Lease]) -> Option<Self> {
        let first = Self::read(&leases.first()?.revision)?;
        let same = |lease: &Lease| Self::read(&lease.revision) == Some(first);
        (leases.iter().all(same) && leases.len() == first.leases).then_some(first)
    }
}

/// A time in milliseconds since 1970.
pub fn time(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}

/// A value as JSON, on one line.
pub fn to_text(value: &impl Serialize) -> String {
    // The keys are strings and the members plain, so writing cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocate::Scope;
    use crate::cni::{ContainerId, IfName, NetworkName};

    /// An owner of two addresses, which were written with its key.
    fn both() -> OwnerState {
        let scope = Scope { node: "n".into(), network: NetworkName::parse("n").unwrap() };
        let container = ContainerId::parse("c").unwrap();
        let owner = Owner { scope, container, ifname: IfName::parse("eth0").unwrap() };
        let item = |address: &str| IndexedLease {
            address: address.parse().unwrap(),
            gateway: None,
            pool: None,
            taken: 1,
            since: None,
        };
        let items = ["10.0.0.2/24", "10.0.1.2/24"].map(item).into();
        OwnerState { revision: 7, owner_index: OwnerIndex::written(&owner, 1, items) }
    }

    #[test]
    fn what_an_owner_keeps_keeps_the_revision_of_its_keys() {
        let both = both();
        let gone = both.owner_index.leases[0].address.addr();
        let rest = OwnerState { revision: 9, owner_index: both.without(|address| address == gone) };
        let written = LeaseRevision { revision: 7, leases: 2 };
        assert_eq!(rest.owner_index.generation, 2);
        assert_eq!(rest.owner_index.leases[0].since, Some(written));
        let leases = rest.leases();
        assert_eq!(leases.len(), 1);
        assert_eq!(LeaseRevision::read(&leases[0].revision), Some(written));
        // A second time likewise, whatever became of the owner's key meanwhile.
        let again = rest.without(|_| false);
        assert_eq!(again.leases[0].since, Some(written));
        // So nothing but the owner's key is written.
        assert_eq!(again.together(), 0);
    }

    #[test]
    fn some_leases_of_an_owner_are_not_all() {
        let leases = both().leases();
        assert_eq!(LeaseRevision::of_all(&leases), Some(LeaseRevision { revision: 7, leases: 2 }));
        assert_eq!(LeaseRevision::of_all(&leases[..1]), None);
        assert_eq!(LeaseRevision::of_all(&[]), None);
        let mut later = leases.clone();
        later[1].revision = LeaseRevision { revision: 8, leases: 2 }.to_json();
        assert_eq!(LeaseRevision::of_all(&later), None);
        later[1].revision = Value::Null;
        assert_eq!(LeaseRevision::of_all(&later), None);
    }
}
