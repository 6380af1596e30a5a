//! The keys and values of the replaced plugins.

use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::allocate::ledger::{Entry, Holder};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::NetworkName;
use ipnet::IpNet;

use super::stretches::{AddressStretch, parts};
use crate::keys::{KeyFormat, after, end_of};
use crate::values::{IndexedLease, LeaseRevision, OwnerIndex, bare_entry, now};

/// Addresses as people write them, and the bare container id.
#[derive(Debug)]
pub(super) struct TextAddresses {
    /// Whether white space around the id is ignored.
    pub(super) trimmed: bool,
    /// Whether one folder holds the addresses of all networks.
    pub(super) flat: bool,
}

impl KeyFormat for TextAddresses {
    fn lease(&self, address: IpAddr) -> String {
        address.to_string()
    }

    fn address(&self, rest: &str) -> Option<IpAddr> {
        let address: IpAddr = rest.parse().ok()?;
        (address.to_string() == rest).then_some(address)
    }

    fn window(&self, leases: &str, from: IpAddr, to: IpAddr) -> Vec<(String, String)> {
        let Some(parts) = parts(from, to) else {
            return vec![(leases.to_owned(), end_of(leases))];
        };
        let stretches = parts.into_iter().map(|part| match part {
            AddressStretch::Beginning(text) => {
                let first = format!("{leases}{text}");
                let end = next_character(first.clone());
                (first, end)
            }
            AddressStretch::Address(address) => {
                let key = format!("{leases}{address}");
                (key.clone(), after(key))
            }
        });
        stretches.collect()
    }

    fn owner(&self, network: &NetworkName, node: &str, container: &str, ifname: &str) -> String {
        if self.flat {
            format!("{container}/{node}/{network}/{ifname}")
        } else {
            format!("{container}/{node}/{ifname}")
        }
    }

    /// Returns the beginning for all nodes, and in a flat layout for all networks.
    fn of_container(&self, container: &str) -> Option<String> {
        Some(format!("{container}/"))
    }

    fn of_node(&self, _: &str) -> String {
        String::new()
    }

    fn value(&self, owner_index: &OwnerIndex, _: &IndexedLease) -> String {
        owner_index.container.clone()
    }

    fn left_to(
        &self,
        owner: &Owner,
        address: IpAddr,
        found: &KeyValue,
    ) -> Option<(Lease, IndexedLease)> {
        let since = LeaseRevision { revision: found.mod_revision(), leases: 0 };
        let item = IndexedLease {
            address: IpNet::from(address),
            gateway: None,
            pool: None,
            taken: now(),
            since: Some(since),
        };
        let its = self.container(found) == Some(owner.container.as_str());
        its.then(|| (Lease { taken: None, ..item.lease(since) }, item))
    }

    fn entry(&self, address: IpAddr, found: &KeyValue) -> Entry {
        let container = self.container(found);
        let holder = container
            .map(|container| Holder { container: container.to_owned(), ..Holder::default() });
        let holder = holder.ok_or("expected a container id");
        bare_entry(address, found, holder)
    }
}

impl TextAddresses {
    /// Returns the container that a bare value names.
    fn container<'a>(&self, found: &'a KeyValue) -> Option<&'a str> {
        let text = std::str::from_utf8(found.value()).ok()?;
        let text = if self.trimmed { text.trim() } else { text };
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Returns the first key that does not begin with this text, whose last character is `.` or `:`.
fn next_character(mut text: String) -> String {
    let next = match text.pop() {
        Some(last) => char::from_u32(u32::from(last) + 1).unwrap_or(last),
        None => '0',
    };
    text.push(next);
    text
}

#[cfg(test)]
mod tests {
    use super::super::layouts::{CNI_IPAM_ETCD, HOST_ETCD};
    use super::super::plugin_keys::PluginKeys;
    use crate::keys::{EtcdKeys, KeyPaths};
    use ipam_kit::cni::NetworkName;
    use std::net::IpAddr;

    fn of(key_paths: &KeyPaths) -> EtcdKeys {
        EtcdKeys::new(key_paths, "/p", &NetworkName::parse("net").unwrap())
    }

    #[test]
    fn old_keys_stand_where_the_old_plugins_look() {
        let address = "2001:db8::7".parse().unwrap();
        let network = NetworkName::parse("net").unwrap();
        let (keys, old) =
            (of(&CNI_IPAM_ETCD.key_paths), PluginKeys::new(&CNI_IPAM_ETCD, "/p", &network));
        assert_eq!(keys.lease(address), "/p/networks/net/used/2001:db8::7");
        assert_eq!(old.cursor(1), "/p/networks/net/lastReserved/1");
        assert_eq!(old.ranges().unwrap(), "/p/networks/net");
        assert_eq!(
            keys.owner_of("n", "c", "eth0"),
            "/p/networks/net/ipam-delegated/owners/c/n/eth0"
        );
        let (keys, old) = (of(&HOST_ETCD.key_paths), PluginKeys::new(&HOST_ETCD, "/p", &network));
        assert_eq!(keys.lease(address), "/p/ips/2001:db8::7");
        assert_eq!(old.cursor(0), "/p/last_reserved_ip0");
        assert_eq!(keys.owner_of("n", "c", "eth0"), "/p/ipam-delegated/owners/c/n/net/eth0");
        assert_eq!(keys.latest(), "/p/ipam-delegated/latest/net");
        assert_eq!(old.ranges(), None);
        for foreign in ["10.1.0.07", "2001:DB8::7", "2001:db8:0::7", "net/10.1.0.7", ""] {
            assert_eq!(keys.address(format!("/p/ips/{foreign}").as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn a_window_of_written_addresses_shows_all_of_them_and_few_others() {
        let host = of(&HOST_ETCD.key_paths);
        for (from, to, stretches) in [
            ("10.0.0.9", "10.0.0.9", 1),
            ("10.0.3.200", "10.0.4.199", 2),
            ("10.0.0.0", "10.0.63.255", 64),
            ("10.0.0.0", "10.0.255.255", 1),
            ("9.255.0.0", "11.2.0.0", 3),
            ("1.0.0.0", "200.0.0.0", 1),
            ("fd00::2", "fd00::101", 2),
            ("fd00::fff0", "fd00::1:f", 4),
            ("1:0:0:2:1:0:0:0", "1:0:0:2:1:0:0:ff", 2),
            ("fd00::", "fd00::ffff:ffff:ffff:ffff", 1),
        ] {
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let window = host.window(from, to);
            assert_eq!(window.len(), stretches, "{from} to {to}");
            let shown = |address: IpAddr| {
                let key = host.lease(address);
                window.iter().any(|(first, end)| *first <= key && key < *end)
            };
            let mut address = from;
            for _ in 0..70_000 {
                assert!(shown(address), "{address} of {from} to {to}");
                if address == to {
                    break;
                }
                address = ipam_kit::cni::address::next(address).unwrap();
            }
            assert!(shown(to));
        }
        let window = host.window("10.0.3.200".parse().unwrap(), "10.0.4.199".parse().unwrap());
        let far = host.lease("10.0.30.1".parse().unwrap());
        assert!(window.iter().all(|(first, end)| far < *first || *end <= far));
    }
}
