//! Our own keys and values.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etcd_client::KeyValue;
use ipam_kit::allocate::ledger::{Entry, Holder};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::NetworkName;
use serde::{Deserialize, Serialize};

use crate::keys::{KeyFormat, KeyPaths, after};
use crate::values::{IndexedLease, LeaseRevision, OwnerIndex, bare_entry, time, to_text};

/// One key per address and one per owner, and one for the latest claim:
///
/// ```text
/// <prefix>/networks/<network>/leases/4/0a010007                        10.1.0.7
/// <prefix>/networks/<network>/leases/6/fd000000000000000000000000000007  fd00::7
/// <prefix>/networks/<network>/owners/<node>/<container>/<ifname>
/// <prefix>/networks/<network>/latest                                   written by every claim
/// ```
pub(crate) const KEY_PATHS: KeyPaths = KeyPaths {
    leases: "/networks/NETWORK/leases/",
    owners: "/networks/NETWORK/owners/",
    latest: "/networks/NETWORK/latest",
    format: &FixedWidth,
};

/// Addresses in hex of fixed width: keys and addresses have one order, and a window of addresses
/// has an end key, since a server walks all keys of a range, even with a limit. The values contain
/// all of the lease.
#[derive(Debug)]
struct FixedWidth;

/// The value of an address's key.
#[derive(Debug, Serialize, Deserialize)]
struct LeaseDocument<'a> {
    network: Cow<'a, str>,
    node: Cow<'a, str>,
    container: Cow<'a, str>,
    ifname: Cow<'a, str>,
    generation: u64,
    confirmed: u64,
    /// [`LeaseRevision::leases`].
    leases: usize,
    #[serde(flatten)]
    item: Cow<'a, IndexedLease>,
}

impl KeyFormat for FixedWidth {
    fn lease(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(v4) => format!("4/{:08x}", v4.to_bits()),
            IpAddr::V6(v6) => format!("6/{:032x}", v6.to_bits()),
        }
    }

    fn address(&self, rest: &str) -> Option<IpAddr> {
        let (family, hex) = rest.split_once('/')?;
        let canonical = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match (family, hex.len()) {
            _ if !canonical => None,
            ("4", 8) => u32::from_str_radix(hex, 16).ok().map(|n| Ipv4Addr::from_bits(n).into()),
            ("6", 32) => u128::from_str_radix(hex, 16).ok().map(|n| Ipv6Addr::from_bits(n).into()),
            _ => None,
        }
    }

    fn window(&self, leases: &str, from: IpAddr, to: IpAddr) -> Vec<(String, String)> {
        let first = format!("{leases}{}", self.lease(from));
        let last = format!("{leases}{}", self.lease(to));
        vec![(first, after(last))]
    }

    fn owner(&self, _: &NetworkName, node: &str, container: &str, ifname: &str) -> String {
        format!("{node}/{container}/{ifname}")
    }

    fn of_container(&self, _: &str) -> Option<String> {
        None
    }

    fn of_node(&self, node: &str) -> String {
        format!("{node}/")
    }

    fn value(&self, owner_index: &OwnerIndex, item: &IndexedLease) -> String {
        to_text(&LeaseDocument {
            network: (&owner_index.network).into(),
            node: (&owner_index.node).into(),
            container: (&owner_index.container).into(),
            ifname: (&owner_index.ifname).into(),
            generation: owner_index.generation,
            confirmed: owner_index.confirmed,
            leases: owner_index.together(),
            item: Cow::Borrowed(item),
        })
    }

    fn left_to(
        &self,
        owner: &Owner,
        address: IpAddr,
        found: &KeyValue,
    ) -> Option<(Lease, IndexedLease)> {
        let document: LeaseDocument<'_> = serde_json::from_slice(found.value()).ok()?;
        let its = document.node == owner.scope.node
            && document.container == owner.container.as_str()
            && document.ifname == owner.ifname.as_str()
            && document.item.address.addr() == address;
        let since = LeaseRevision { revision: found.mod_revision(), leases: document.leases };
        let item = IndexedLease { since: Some(since), ..document.item.into_owned() };
        its.then(|| (item.lease(since), item))
    }

    fn entry(&self, address: IpAddr, found: &KeyValue) -> Entry {
        let why = match serde_json::from_slice::<LeaseDocument<'_>>(found.value()) {
            Ok(document) if document.item.address.addr() == address => {
                let revision =
                    LeaseRevision { revision: found.mod_revision(), leases: document.leases };
                return Entry {
                    lease: document.item.lease(revision),
                    holder: Some(Holder {
                        node: Some(document.node.into_owned()),
                        container: document.container.into_owned(),
                        ifname: Some(document.ifname.into_owned()),
                        ..Holder::default()
                    }),
                    since: Some(time(document.confirmed)),
                    fault: None,
                };
            }
            Ok(_) => "it names another address".to_owned(),
            Err(error) => error.to_string(),
        };
        bare_entry(address, found, Err(&why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{EtcdKeys, end_of};

    fn keys() -> EtcdKeys {
        EtcdKeys::new(&KEY_PATHS, "/p", &NetworkName::parse("net").unwrap())
    }

    #[test]
    fn addresses_are_found_again_by_their_keys() {
        for (address, key) in [
            ("10.1.0.7", "/p/networks/net/leases/4/0a010007"),
            ("fd00::7", "/p/networks/net/leases/6/fd000000000000000000000000000007"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(keys().lease(address), key);
            assert_eq!(keys().address(key.as_bytes()), Some(address));
        }
        for foreign in [
            "/p/networks/net/leases/4/0A010007",
            "/p/networks/net/leases/4/10.1.0.7",
            "/p/networks/net/leases/4/0a0100070",
            "/p/networks/net/leases/6/0a010007",
            "/p/networks/net/leases/0a010007",
            "/p/networks/net/owners/n/c/eth0",
            "/p/networks/nets/leases/4/0a010007",
        ] {
            assert_eq!(keys().address(foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn a_window_ends_after_its_last_address() {
        let (ninth, next) = ("10.0.0.9".parse().unwrap(), "10.0.0.10".parse().unwrap());
        let [(first, end)] = &keys().window(ninth, ninth)[..] else { panic!("one stretch") };
        assert!(first < end && *end < keys().lease(next));
    }

    #[test]
    fn names_cannot_reach_into_other_keys() {
        assert_eq!(
            keys().owner_of("a/b%", "c1", "eth0:1"),
            "/p/networks/net/owners/a%2fb%25/c1/eth0%3a1"
        );
        let node = keys().of_node("n");
        assert!(node.as_str() < "/p/networks/net/owners/n/c" && end_of(&node) > node);
        assert!(end_of(&node).as_str() < "/p/networks/net/owners/n1/c");
    }
}
