//! The values of keys: who holds an address, and what an owner holds.

use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipam_kit::allocate::owner_index::{LeaseRevision, OwnerIndex, OwnerState, time};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::keys::{ConsulKeys, split};
use crate::txn::Pair;

/// The value of an address's key: the member that passcod reads, and more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AddressValue {
    /// The container id; passcod writes nothing else.
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
    /// When the address was taken or last confirmed, in milliseconds since 1970 by the owner's
    /// clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<u64>,
    /// How often the owner's leases were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u64>,
    /// How many leases the owner held, all written together: see [`LeaseRevision::leases`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leases: Option<usize>,
}

impl AddressValue {
    /// Makes the value for an address of this owner.
    pub(crate) fn of(owner_index: &OwnerIndex) -> Self {
        Self {
            target: owner_index.container.clone(),
            ifname: Some(owner_index.ifname.clone()),
            node: Some(owner_index.node.clone()),
            network: Some(owner_index.network.clone()),
            time: Some(owner_index.confirmed),
            generation: Some(owner_index.generation),
            leases: Some(owner_index.together()),
        }
    }

    /// Returns whether this owner has the address. A member that is missing, as in passcod's
    /// values, fits every owner.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.target == owner.container.as_str()
            && is_same_or_missing(&self.ifname, owner.ifname.as_str())
            && is_same_or_missing(&self.node, &owner.scope.node)
            && is_same_or_missing(&self.network, owner.scope.network.as_str())
    }

    fn names_container_alone(&self) -> bool {
        self.ifname.is_none() && self.node.is_none() && self.network.is_none()
    }
}

fn is_same_or_missing(member: &Option<String>, expected: &str) -> bool {
    member.as_ref().is_none_or(|member| member == expected)
}

/// An address's key and its value, parsed.
#[derive(Debug)]
pub(crate) struct AddressPair {
    pub(crate) pool: String,
    pub(crate) address: std::net::IpAddr,
    pub(crate) index: u64,
    /// The reason if the value cannot be read.
    pub(crate) value: Result<AddressValue, String>,
}

impl AddressPair {
    /// Parses the pair of an address; `None` for any other key.
    pub(crate) fn read(pair: &Pair) -> Option<Self> {
        let (pool, address) = split(&pair.key)?;
        let parsed = match &pair.value {
            None => Err("the value is empty".to_owned()),
            Some(value) => serde_json::from_slice(value).map_err(|error| error.to_string()),
        };
        let value =
            parsed.map_err(|why| format!("invalid lease in Consul key {}: {why}", pair.key));
        Some(Self { pool: pool.to_owned(), address, index: pair.index, value })
    }

    /// Returns whether this owner has the address.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.value.as_ref().is_ok_and(|value| value.is_of(owner))
    }

    /// Returns whether the value names nothing but a container, as passcod's do.
    pub(crate) fn names_container_alone(&self) -> bool {
        self.value.as_ref().is_ok_and(AddressValue::names_container_alone)
    }

    /// Returns the address as a lease, as far as its own key tells.
    pub(crate) fn lease(&self, keys: &ConsulKeys) -> Lease {
        let leases = self.value.as_ref().ok().and_then(|value| value.leases).unwrap_or(0);
        let revision = LeaseRevision { revision: revision(self.index), leases };
        Lease {
            pool: keys.name_of(&self.pool),
            ..Lease::bare(IpNet::from(self.address), revision.to_json())
        }
    }

    /// Returns the address as an entry of a scan.
    pub(crate) fn entry(&self, keys: &ConsulKeys) -> Entry {
        let lease = self.lease(keys);
        match &self.value {
            Ok(value) => Entry {
                lease,
                holder: Some(Holder {
                    node: value.node.clone(),
                    container: value.target.clone(),
                    ifname: value.ifname.clone(),
                    network: value.network.clone().filter(|name| name != keys.network().as_str()),
                    ..Holder::default()
                }),
                since: value.time.map(time),
                fault: None,
            },
            Err(why) => Entry {
                lease,
                holder: None,
                since: None,
                fault: Some(Fault::Unreadable(why.clone())),
            },
        }
    }
}

/// Reads the value of an owner's key.
///
/// # Errors
/// The value is foreign, and must not be overwritten.
pub(crate) fn read_owner_state(pair: &Pair) -> Result<OwnerState> {
    let key = &pair.key;
    let parsed = pair.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
    let owner_index = parsed.ok_or_else(|| {
        Error::new(
            ErrorCode::BACKEND,
            format!("invalid owner in Consul key {key}: expected a value of ipam-da-consul"),
        )
        .advise(format!("read it (consul kv get '{key}'), and delete it if nothing needs it"))
    })?;
    Ok(OwnerState { revision: revision(pair.index), owner_index })
}

/// Returns the index of a lease's key, as far as the lease tells.
pub(crate) fn index_of(lease: &Lease) -> u64 {
    LeaseRevision::read(&lease.revision).map_or(u64::MAX, |seen| index(seen.revision))
}

/// Converts a revision to Consul's index: indexes are positive, and far from the end of either
/// type.
pub(crate) fn index(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Converts Consul's index to a revision.
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
    fn an_address_belongs_to_the_owner_that_its_value_names() {
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
    fn an_error_about_a_value_names_its_key() {
        for value in ["", "null", "{}", "c1", r#"{"target":7}"#] {
            let reason = found(value).value.unwrap_err();
            assert!(
                reason.starts_with("invalid lease in Consul key ipam/blue/10.0.0.1: "),
                "{reason}"
            );
        }
    }

    #[test]
    fn passcod_reads_what_is_written() {
        let mut owner_index = OwnerIndex::written(&owner(), 1, Vec::new());
        owner_index.confirmed = 5;
        let text = serde_json::to_string(&AddressValue::of(&owner_index)).unwrap();
        assert_eq!(
            text,
            r#"{"target":"c1","ifname":"eth0","node":"n1","network":"lan","time":5,"generation":1,"leases":0}"#
        );
    }
}
