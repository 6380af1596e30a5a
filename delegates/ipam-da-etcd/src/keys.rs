//! The keys of one network, in any layout.

use std::fmt::{Debug, Write};
use std::net::IpAddr;

use etcd_client::{GetOptions, KeyValue, TxnOp};
use ipam_kit::allocate::ledger::{Entry, Holder};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::NetworkName;

use crate::values::{IndexedLease, OwnerIndex};

/// The paths of a layout's keys below the prefix. `NETWORK` is replaced by the network's name.
#[derive(Debug)]
pub(crate) struct KeyPaths {
    /// The beginning of the key of an address.
    pub(crate) leases: &'static str,
    /// The beginning of our own keys of owners.
    pub(crate) owners: &'static str,
    /// Our own key of the latest claim.
    pub(crate) latest: &'static str,
    /// How the rest of the keys, and the values, are written.
    pub(crate) format: &'static dyn KeyFormat,
}

/// How the keys and values of a layout are written.
pub(crate) trait KeyFormat: Debug + Sync {
    /// Returns the key of an address, after what all begin with.
    fn lease(&self, address: IpAddr) -> String;

    /// Returns the address of a key, by its rest; `None` for a key that is not of this layout.
    fn address(&self, rest: &str) -> Option<IpAddr>;

    /// Returns the keys from one address to another, both included, as stretches: the first key of
    /// each, and the one after its last. There may be others among them. All begin with `leases`.
    fn window(&self, leases: &str, from: IpAddr, to: IpAddr) -> Vec<(String, String)>;

    /// Returns the key of an owner after the common prefix, from names that are parts of keys.
    fn owner(&self, network: &NetworkName, node: &str, container: &str, ifname: &str) -> String;

    /// Returns the beginning of the keys of a container's owners, after the common prefix, where
    /// the values of addresses name the container alone.
    fn of_container(&self, container: &str) -> Option<String>;

    /// Returns the beginning of the keys of a node's owners, after the common prefix; others may
    /// share it.
    fn of_node(&self, node: &str) -> String;

    /// Returns the value of the key of one of an owner's addresses.
    fn value(&self, owner_index: &OwnerIndex, item: &IndexedLease) -> String;

    /// Returns a lease that is this owner's, or its container's where the value does not tell more,
    /// by the answer about the key of its address alone.
    fn left_to(
        &self,
        owner: &Owner,
        address: IpAddr,
        found: &KeyValue,
    ) -> Option<(Lease, IndexedLease)>;

    /// Reads the answer about the key of an address.
    fn entry(&self, address: IpAddr, found: &KeyValue) -> Entry;
}

/// The keys of one network: one per address and one per owner, and one for the latest claim.
#[derive(Debug)]
pub(crate) struct EtcdKeys {
    network: NetworkName,
    leases: String,
    owners: String,
    latest: String,
    format: &'static dyn KeyFormat,
}

impl EtcdKeys {
    /// Returns the keys of a network below a prefix.
    pub(crate) fn new(key_paths: &KeyPaths, prefix: &str, network: &NetworkName) -> Self {
        Self {
            leases: full_key(prefix, key_paths.leases, network),
            owners: full_key(prefix, key_paths.owners, network),
            latest: full_key(prefix, key_paths.latest, network),
            network: network.clone(),
            format: key_paths.format,
        }
    }

    /// Returns the key of an address.
    pub(crate) fn lease(&self, address: IpAddr) -> String {
        format!("{}{}", self.leases, self.format.lease(address))
    }

    /// Returns the address of a key; `None` for a key that is not of this layout.
    pub(crate) fn address(&self, key: &[u8]) -> Option<IpAddr> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.leases)?;
        self.format.address(rest)
    }

    /// Returns the keys from one address to another, both included, as stretches: the first key of
    /// each, and the one after its last. There may be others among them.
    pub(crate) fn window(&self, from: IpAddr, to: IpAddr) -> Vec<(String, String)> {
        self.format.window(&self.leases, from, to)
    }

    /// Returns the key of an owner.
    pub(crate) fn owner(&self, owner: &Owner) -> String {
        self.owner_of(&owner.scope.node, owner.container.as_str(), owner.ifname.as_str())
    }

    /// Returns the key of the owner with these names.
    pub(crate) fn owner_of(&self, node: &str, container: &str, ifname: &str) -> String {
        let rest =
            self.format.owner(&self.network, &plain(node), &plain(container), &plain(ifname));
        format!("{}{rest}", self.owners)
    }

    /// Returns the key of the owner that an entry names; none where the entry does not tell the
    /// owner in full.
    pub(crate) fn owner_of_holder(&self, holder: &Holder) -> Option<String> {
        let node = holder.node.as_deref()?;
        let ifname = holder.ifname.as_deref()?;
        Some(self.owner_of(node, &holder.container, ifname))
    }

    /// Returns the beginning of the keys of a container's owners, where the values of addresses
    /// name the container alone.
    pub(crate) fn of_container(&self, owner: &Owner) -> Option<String> {
        let rest = self.format.of_container(&plain(owner.container.as_str()))?;
        Some(format!("{}{rest}", self.owners))
    }

    /// Reads the key of an owner; with those of the container's other owners where addresses name it alone.
    pub(crate) fn read_owner(&self, owner: &Owner) -> TxnOp {
        let Some(first) = self.of_container(owner) else {
            return TxnOp::get(self.owner(owner), None);
        };
        let all = GetOptions::new().with_range(end_of(&first));
        TxnOp::get(first, Some(all))
    }

    /// Returns the beginning of the keys of a node's owners; others may share it.
    pub(crate) fn of_node(&self, node: &str) -> String {
        format!("{}{}", self.owners, self.format.of_node(&plain(node)))
    }

    /// Returns the beginning of the keys of all owners.
    pub(crate) fn owners(&self) -> &str {
        &self.owners
    }

    /// Returns the key that every claim writes: its modification revision names the latest claim.
    pub(crate) fn latest(&self) -> &str {
        &self.latest
    }

    /// Returns the beginning of the keys of all addresses.
    pub(crate) fn leases(&self) -> &str {
        &self.leases
    }

    /// Returns the network's name.
    pub(crate) fn network(&self) -> &NetworkName {
        &self.network
    }

    /// How the rest of the keys, and the values, are written.
    pub(crate) fn key_format(&self) -> &'static dyn KeyFormat {
        self.format
    }
}

/// Returns the key at a path of a layout.
pub(crate) fn full_key(prefix: &str, path: &str, network: &NetworkName) -> String {
    format!("{prefix}{}", path.replace("NETWORK", network.as_str()))
}

/// Returns the first key after this one.
pub(crate) fn after(mut key: String) -> String {
    key.push('\0');
    key
}

/// Returns the first key that does not begin with this prefix, which ends in a slash.
pub(crate) fn end_of(prefix: &str) -> String {
    let mut end = prefix.trim_end_matches('/').to_owned();
    // What comes after the slash among the characters.
    end.push('0');
    end
}

/// Returns a name as a part of a key: bytes that may mean something to people or tools become `%`
/// and two hex digits.
pub(crate) fn plain(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'.' | b'_' | b'-' => text.push(byte.into()),
            _ => {
                let _ = write!(text, "%{byte:02x}");
            }
        }
    }
    text
}
