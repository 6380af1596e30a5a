//! Who holds an address, as the value of its key.

use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipam_kit::allocate::owner_index::{LeaseRevision, OwnerIndex, OwnerState, time};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::keys::{ConsulKeys, split};
use crate::txn::Pair;

/// The value of an address's key: what passcod reads of it, and more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AddressValue {
    /// The container id, all that passcod writes.
    pub(crate) target: String,
    /// The interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ifname: Option<String>,
    /// The node's identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<String>,
    /// When it was taken or last confirmed, in milliseconds since 1970 by the owner's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<u64>,
    /// How often the owner's leases were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u64>,
    /// How many leases were written with it, all that the owner held: see [`LeaseRevision::leases`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leases: Option<usize>,
}

impl AddressValue {
    /// That of an owner with this document.
    pub(crate) fn of(document: &OwnerIndex) -> Self {
        Self {
            target: document.container.clone(),
            ifname: Some(document.ifname.clone()),
            node: Some(document.node.clone()),
            network: Some(document.network.clone()),
            time: Some(document.confirmed),
            generation: Some(document.generation),
            leases: Some(document.together()),
        }
    }

    /// Whether it is this owner's. passcod's are of the whole container.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        let same = |told: &Option<String>, its: &str| told.as_ref().is_none_or(|told| told == its);
        self.target == owner.container.as_str()
            && same(&self.ifname, owner.ifname.as_str())
            && same(&self.node, &owner.scope.node)
            && same(&self.network, owner.scope.network.as_str())
    }

    /// Whether it tells nothing but the container.
    pub(crate) fn is_bare(&self) -> bool {
        self.ifname.is_none() && self.node.is_none() && self.network.is_none()
    }
}

/// A key of a pool's folder, read.
#[derive(Debug)]
pub(crate) struct AddressPair {
    pub(crate) pool: String,
    pub(crate) address: std::net::IpAddr,
    pub(crate) index: u64,
    /// The reason where the value is none.
    pub(crate) allocation: Result<AddressValue, String>,
}

impl AddressPair {
    /// Reads a key that is about an address; none for any other.
    pub(crate) fn read(pair: &Pair) -> Option<Self> {
        let (pool, address) = split(&pair.key)?;
        let reason = match &pair.value {
            None => Err("it is empty".to_owned()),
            Some(value) => serde_json::from_slice(value).map_err(|error| error.to_string()),
        };
        let allocation = reason
            .map_err(|why| format!("the value of the key {} is no allocation: {why}", pair.key));
        Some(Self { pool: pool.to_owned(), address, index: pair.index, allocation })
    }

    /// Whether it is this owner's.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.allocation.as_ref().is_ok_and(|allocation| allocation.is_of(owner))
    }

    /// As a lease of which the owner's key may not know.
    pub(crate) fn lease(&self, keys: &ConsulKeys) -> Lease {
        let leases = self.allocation.as_ref().ok().and_then(|its| its.leases).unwrap_or(0);
        Lease {
            pool: keys.name_of(&self.pool),
            address: IpNet::from(self.address),
            gateway: None,
            revision: LeaseRevision { revision: revision(self.index), leases }.to_json(),
            preexisting: false,
            unsure: false,
            taken: None,
        }
    }

    /// As an entry of a scan.
    pub(crate) fn entry(&self, keys: &ConsulKeys) -> Entry {
        let holder = |allocation: &AddressValue| Holder {
            node: allocation.node.clone(),
            container: allocation.target.clone(),
            ifname: allocation.ifname.clone(),
            network: allocation.network.clone().filter(|name| name != keys.network().as_str()),
        };
        let allocation = self.allocation.as_ref();
        Entry {
            lease: self.lease(keys),
            holder: allocation.ok().map(holder),
            since: allocation.ok().and_then(|allocation| allocation.time).map(time),
            fault: allocation.err().map(|why| Fault::Unreadable(why.clone())),
        }
    }
}

/// Reads the value of an owner's key.
///
/// # Errors
/// It is not ours: nothing may be written over it.
pub(crate) fn holding(pair: &Pair) -> Result<OwnerState> {
    let key = &pair.key;
    let ours = pair.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
    let document = ours.ok_or_else(|| {
        Error::new(ErrorCode::BACKEND, format!("the value of the key {key} is not ours")).advise(
            format!("look at it (consul kv get '{key}') and delete the key if nobody needs it"),
        )
    })?;
    Ok(OwnerState { revision: revision(pair.index), document })
}

/// The index of a lease's key.
pub(crate) fn index_of(lease: &Lease) -> u64 {
    LeaseRevision::read(&lease.revision).map_or(u64::MAX, |seen| index(seen.revision))
}

/// Consul's indexes are positive, and far from the end of either kind of number.
pub(crate) fn index(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Consul's index as a revision.
pub(crate) fn revision(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::allocate::Scope;
    use ipam_kit::cni::{ContainerId, IfName, NetworkName};

    fn owner() -> Owner {
        let network = NetworkName::parse("lan").unwrap();
        Owner {
            scope: Scope { node: "n1".into(), network },
            container: ContainerId::parse("c1").unwrap(),
            ifname: IfName::parse("eth0").unwrap(),
        }
    }

    fn found(value: &str) -> AddressPair {
        let value = (!value.is_empty()).then(|| value.as_bytes().to_vec());
        AddressPair::read(&Pair { key: "ipam/blue/10.0.0.1".into(), value, created: 7, index: 7 })
            .unwrap()
    }

    #[test]
    fn whose_an_address_is() {
        for (value, its) in [
            (r#"{"target":"c1"}"#, true),
            (r#"{"target":"c1","more":{"x":1}}"#, true),
            (r#"{"target":"c1","ifname":"eth0","node":"n1","network":"lan"}"#, true),
            (r#"{"target":"c2"}"#, false),
            (r#"{"target":"c1","ifname":"eth1"}"#, false),
            (r#"{"target":"c1","node":"n2"}"#, false),
            (r#"{"target":"c1","network":"wan"}"#, false),
            (r#"{"tarket":"c1"}"#, false),
        ] {
            assert_eq!(found(value).is_of(&owner()), its, "{value}");
        }
    }

    #[test]
    fn what_is_no_allocation_names_its_key() {
        for value in ["", "null", "{}", "c1", r#"{"target":7}"#] {
            let reason = found(value).allocation.unwrap_err();
            assert!(
                reason.starts_with("the value of the key ipam/blue/10.0.0.1 is no "),
                "{reason}"
            );
        }
    }

    #[test]
    fn passcod_reads_what_is_written() {
        let mut document = OwnerIndex::written(&owner(), 1, Vec::new());
        document.confirmed = 5;
        let text = serde_json::to_string(&AddressValue::of(&document)).unwrap();
        assert_eq!(
            text,
            r#"{"target":"c1","ifname":"eth0","node":"n1","network":"lan","time":5,"generation":1,"leases":0}"#
        );
    }
}
