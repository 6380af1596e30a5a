//! The names of keys in Consul.

use std::net::IpAddr;

use ipam_kit::allocate::ledger::Holder;
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::NetworkName;
use ipam_kit::cni::address::parse_address;
use ipam_kit::{Error, Result};
use ipam_servers::escape;

/// The keys of a network: pools and their folders as in passcod's ipam-da-consul, and beside them
/// our own keys, because passcod fails on foreign keys in a pool's folder.
///
/// ```text
/// ipam/                                                  a folder that passcod needs
/// ipam/<pool>                                            the ranges of a pool, a JSON array
/// ipam/<pool>/                                           its folder
/// ipam/<pool>/<address>                                  who holds an address
/// ipam/.owners/<network>/<node>/<container>/<ifname>     what an owner holds
/// ipam/.owners/<network>/.nodes/<node>                   the latest claim of a node
/// ```
#[derive(Clone, Debug)]
pub(crate) struct ConsulKeys {
    network: NetworkName,
    /// Whether the call is about pools without names; their leases are in the folder of the
    /// network.
    has_nameless: bool,
}

/// The folder of all keys.
pub(crate) const ROOT: &str = "ipam/";

/// The folder of the owners of all networks.
pub(crate) const OWNERS: &str = "ipam/.owners/";

impl ConsulKeys {
    /// Makes the keys of a network; `has_nameless` says whether the call is about pools without
    /// names.
    pub(crate) fn new(network: &NetworkName, has_nameless: bool) -> Self {
        Self { network: network.clone(), has_nameless }
    }

    /// Returns the name of the pool with this folder; `None` for a pool without a name.
    pub(crate) fn name_of(&self, folder: &str) -> Option<String> {
        let is_nameless = self.has_nameless && folder == self.network.as_str();
        (!is_nameless).then(|| folder.to_owned())
    }

    /// Returns the name of a pool's folder: the pool's name, or that of the network.
    pub(crate) fn folder_name(&self, pool: &Option<String>) -> String {
        pool.clone().unwrap_or_else(|| self.network.to_string())
    }

    /// Returns the network.
    pub(crate) fn network(&self) -> &NetworkName {
        &self.network
    }

    /// Returns the ranges of a pool.
    pub(crate) fn definition(pool: &str) -> String {
        format!("{ROOT}{pool}")
    }

    /// Returns the folder of a pool's addresses; that of a pool without a name is the network's.
    pub(crate) fn folder(&self, pool: Option<&str>) -> String {
        format!("{ROOT}{}/", pool.unwrap_or(self.network.as_str()))
    }

    /// Returns the folder keys that passcod needs for a pool.
    pub(crate) fn folders(pool: &str) -> [String; 2] {
        [ROOT.to_owned(), format!("{ROOT}{pool}/")]
    }

    /// Returns the key of an address of a pool: who holds it.
    pub(crate) fn lease(&self, pool: Option<&str>, address: IpAddr) -> String {
        format!("{}{address}", self.folder(pool))
    }

    /// Returns the key of a lease's address.
    pub(crate) fn of_lease(&self, lease: &Lease) -> String {
        self.lease(lease.pool.as_deref(), lease.address.addr())
    }

    /// Returns the key of an owner: what it holds.
    pub(crate) fn owner(&self, owner: &Owner) -> String {
        Self::owner_in(
            self.network.as_str(),
            &owner.scope.node,
            owner.container.as_str(),
            owner.ifname.as_str(),
        )
    }

    /// Returns the key of an owner in any network.
    pub(crate) fn owner_in(network: &str, node: &str, container: &str, ifname: &str) -> String {
        let [network, node, container, ifname] = [network, node, container, ifname].map(escape);
        format!("{OWNERS}{network}/{node}/{container}/{ifname}")
    }

    /// Returns the key of the owner that holds an entry, if the entry has all of the owner's names.
    pub(crate) fn owner_of(&self, holder: &Holder) -> Option<String> {
        let Holder { node: Some(node), container, ifname: Some(ifname), network, .. } = holder
        else {
            return None;
        };
        let here = self.network.as_str();
        Some(Self::owner_in(network.as_deref().unwrap_or(here), node, container, ifname))
    }

    /// Returns the folder of a node's owners.
    pub(crate) fn owners_of_node(&self, node: &str) -> String {
        format!("{OWNERS}{}/{}/", self.network, escape(node))
    }

    /// Returns the key that each claim of a node writes: it marks the node's latest claim.
    pub(crate) fn mark(&self, node: &str) -> String {
        format!("{OWNERS}{}/.nodes/{}", self.network, escape(node))
    }

    /// Returns a key of a pool's folder that never exists: it tells whether the token may write
    /// there.
    pub(crate) fn probe(pool: &str) -> String {
        format!("{ROOT}{pool}/.probe")
    }
}

/// Returns the pool and the address of an address's key; `None` for any other key.
pub(crate) fn split(key: &str) -> Option<(&str, IpAddr)> {
    let (pool, address) = key.strip_prefix(ROOT)?.rsplit_once('/')?;
    if key.starts_with(OWNERS) {
        return None;
    }
    let parsed = parse_address(address).ok()?;
    // Another spelling would be another key of the same address.
    (parsed.to_string() == address).then_some((pool, parsed))
}

/// Returns whether a key is in a pool's folder, and not a folder itself.
pub(crate) fn is_in_pool_folder(key: &str) -> bool {
    let below_root = key.strip_prefix(ROOT).unwrap_or_default();
    below_root.contains('/') && !key.ends_with('/') && !key.starts_with(OWNERS)
}

/// Fails for a name that a pool cannot have, because its keys would have another meaning.
///
/// # Errors
/// Code 7, at `path`.
pub(crate) fn check_name(name: &str, path: &str) -> Result<()> {
    let is_odd = name.chars().any(char::is_control)
        || name.starts_with('.')
        || name.split('/').any(|part| part.is_empty() || part == "." || part == "..")
        // Its key would be that of an address of another pool.
        || name.rsplit_once('/').is_some_and(|(_, last)| parse_address(last).is_ok());
    if !is_odd {
        return Ok(());
    }
    Err(Error::config(
        format_args!("{path}.name"),
        format_args!(
            "invalid pool name {name:?}: Consul cannot keep its ranges in the key ipam/{name}"
        ),
    )
    .advise(
        "expected parts separated by `/`: none empty, no leading dot, no control character, \
         and no address as the last part",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        for (key, found) in [
            ("ipam/blue/10.0.0.1", Some(("blue", "10.0.0.1"))),
            ("ipam/dc1/blue/fd00::1", Some(("dc1/blue", "fd00::1"))),
            ("ipam/blue/", None),
            ("ipam/blue", None),
            ("ipam/blue/x", None),
            ("ipam/blue/fd00:0::1", None),
            ("ipam/10.0.0.1", None),
            ("ipam/.owners/n/10.0.0.1", None),
            ("other/blue/10.0.0.1", None),
        ] {
            let expected = found.map(|(pool, address)| (pool, address.parse().unwrap()));
            assert_eq!(split(key), expected, "{key}");
        }
    }

    #[test]
    fn names_that_would_be_other_keys_are_refused() {
        for name in ["blue", "dc1/blue", "a b", "ü.x"] {
            check_name(name, "p").unwrap();
        }
        for name in [".owners", ".owners/x", "a//b", "/a", "a/", "a/../b", "a\nb", "dc1/10.0.0.1"] {
            assert!(check_name(name, "p").is_err(), "{name}");
        }
    }
}
