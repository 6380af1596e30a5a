use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etcd_client::{GetOptions, TxnOp};
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::Holder;
use ipam_kit::cni::NetworkName;

use crate::layout::{Codec, Layout, OldKeys};
use crate::written::{Part, parts};

/// The keys of one network: one per address and one per owner, and one for the latest claim. In our own
/// layout:
///
/// ```text
/// <prefix>/networks/<network>/leases/4/0a010007                        10.1.0.7
/// <prefix>/networks/<network>/leases/6/fd000000000000000000000000000007  fd00::7
/// <prefix>/networks/<network>/owners/<node>/<container>/<ifname>
/// <prefix>/networks/<network>/latest                                   written by every claim
/// ```
///
/// Addresses are hex of fixed width, so that their order is that of the keys and a window of
/// addresses has an end key: a server walks all keys of a range, whatever the limit.
#[derive(Debug)]
pub(crate) struct Keys {
    layout: &'static Layout,
    network: NetworkName,
    prefix: String,
    leases: String,
    owners: String,
    latest: String,
}

impl Keys {
    /// The keys of a network below a prefix.
    pub(crate) fn new(layout: &'static Layout, prefix: &str, network: &NetworkName) -> Self {
        let at = |place: &str| place_of(prefix, place, network);
        Self {
            leases: at(layout.leases),
            owners: at(layout.owners),
            latest: at(layout.latest),
            prefix: prefix.to_owned(),
            network: network.clone(),
            layout,
        }
    }

    /// The key of an address.
    pub(crate) fn lease(&self, address: IpAddr) -> String {
        match (self.layout.codec, address) {
            (Codec::Document, IpAddr::V4(v4)) => format!("{}4/{:08x}", self.leases, v4.to_bits()),
            (Codec::Document, IpAddr::V6(v6)) => format!("{}6/{:032x}", self.leases, v6.to_bits()),
            (Codec::ContainerId { .. }, address) => format!("{}{address}", self.leases),
        }
    }

    /// The address that a key stands for; none for a key that is not of this layout.
    pub(crate) fn address(&self, key: &[u8]) -> Option<IpAddr> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.leases)?;
        match self.layout.codec {
            Codec::Document => of_fixed_width(rest),
            Codec::ContainerId { .. } => {
                let address: IpAddr = rest.parse().ok()?;
                (address.to_string() == rest).then_some(address)
            }
        }
    }

    /// The keys from one address to another, both included, as stretches: the first key of each, and the
    /// one after its last. There may be others among them.
    pub(crate) fn window(&self, from: IpAddr, to: IpAddr) -> Vec<(String, String)> {
        match self.layout.codec {
            Codec::Document => vec![(self.lease(from), after(self.lease(to)))],
            Codec::ContainerId { .. } => self.written(from, to),
        }
    }

    /// [`Self::window`] where addresses are written as people do.
    fn written(&self, from: IpAddr, to: IpAddr) -> Vec<(String, String)> {
        let Some(parts) = parts(from, to) else {
            return vec![(self.leases.clone(), end_of(&self.leases))];
        };
        let stretch = |part| match part {
            Part::Beginning(text) => {
                let first = format!("{}{text}", self.leases);
                let end = next_character(first.clone());
                (first, end)
            }
            Part::Address(address) => (self.lease(address), after(self.lease(address))),
        };
        parts.into_iter().map(stretch).collect()
    }

    /// The key of an owner.
    pub(crate) fn owner(&self, owner: &Owner) -> String {
        self.owner_of(&owner.scope.node, owner.container.as_str(), owner.ifname.as_str())
    }

    /// The key of the owner with these names.
    pub(crate) fn owner_of(&self, node: &str, container: &str, ifname: &str) -> String {
        let (node, ifname) = (plain(node), plain(ifname));
        match (self.old(), self.is_flat()) {
            (None, _) => format!("{}{node}/{}/{ifname}", self.owners, plain(container)),
            (Some(_), false) => format!("{}{node}/{ifname}", self.of_container(container)),
            (Some(_), true) => {
                format!("{}{node}/{}/{ifname}", self.of_container(container), self.network)
            }
        }
    }

    /// The key of the owner that an entry names; none where the entry does not tell the owner in full.
    pub(crate) fn owner_of_holder(&self, holder: &Holder) -> Option<String> {
        let (node, ifname) = (holder.node.as_deref()?, holder.ifname.as_deref()?);
        Some(self.owner_of(node, &holder.container, ifname))
    }

    /// What the keys of a container's owners begin with, beside the keys of a replaced plugin, which name
    /// the container alone: on all nodes, and on all networks that stand side by side.
    pub(crate) fn of_container(&self, container: &str) -> String {
        format!("{}{}/", self.owners, plain(container))
    }

    /// Reads the key of an owner; with those of the container's other owners where addresses name it alone.
    pub(crate) fn read_owner(&self, owner: &Owner) -> TxnOp {
        if self.is_native() {
            return TxnOp::get(self.owner(owner), None);
        }
        let first = self.of_container(owner.container.as_str());
        let all = GetOptions::new().with_range(end_of(&first));
        TxnOp::get(first, Some(all))
    }

    /// What the keys of a node's owners begin with, perhaps among others.
    pub(crate) fn of_node(&self, node: &str) -> String {
        match self.old() {
            None => format!("{}{}/", self.owners, plain(node)),
            Some(_) => self.owners.clone(),
        }
    }

    /// What the keys of all owners begin with.
    pub(crate) fn owners(&self) -> &str {
        &self.owners
    }

    /// The key that every claim writes: its modification revision is that of the latest claim.
    pub(crate) fn latest(&self) -> &str {
        &self.latest
    }

    /// What the keys of all addresses begin with.
    pub(crate) fn leases(&self) -> &str {
        &self.leases
    }

    /// The network's name.
    pub(crate) fn network(&self) -> &NetworkName {
        &self.network
    }

    /// How values are written.
    pub(crate) fn codec(&self) -> Codec {
        self.layout.codec
    }

    /// What a replaced plugin keeps in this layout, if one does.
    pub(crate) fn old(&self) -> Option<&'static OldKeys> {
        self.layout.old.as_ref()
    }

    /// Whether no other plugin reads the same keys.
    pub(crate) fn is_native(&self) -> bool {
        self.old().is_none()
    }

    /// Whether one does that takes the address after its cursor whoever holds it.
    pub(crate) fn overwrites(&self) -> bool {
        self.old().is_some_and(|old| old.overwrites)
    }

    /// Whether the addresses of all networks stand side by side.
    pub(crate) fn is_flat(&self) -> bool {
        self.old().is_some_and(|old| old.flat)
    }

    /// The old key of the address last given out of a range set.
    pub(crate) fn cursor(&self, index: u32) -> Option<String> {
        Some(format!("{}{index}", self.place(self.old()?.cursor)))
    }

    /// The old key of the ranges.
    pub(crate) fn ranges(&self) -> Option<String> {
        self.old()?.ranges.map(|place| self.place(place))
    }

    /// The key at a place of the layout.
    pub(crate) fn place(&self, place: &str) -> String {
        place_of(&self.prefix, place, &self.network)
    }
}

fn place_of(prefix: &str, place: &str, network: &NetworkName) -> String {
    format!("{prefix}{}", place.replace("NETWORK", network.as_str()))
}

fn of_fixed_width(key: &str) -> Option<IpAddr> {
    let (family, hex) = key.split_once('/')?;
    let canonical = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    match (family, hex.len()) {
        _ if !canonical => None,
        ("4", 8) => u32::from_str_radix(hex, 16).ok().map(|n| Ipv4Addr::from_bits(n).into()),
        ("6", 32) => u128::from_str_radix(hex, 16).ok().map(|n| Ipv6Addr::from_bits(n).into()),
        _ => None,
    }
}

/// The first key after this one.
pub(crate) fn after(mut key: String) -> String {
    key.push('\0');
    key
}

/// The first key that does not begin with this prefix, which ends in a slash.
pub(crate) fn end_of(prefix: &str) -> String {
    let mut end = prefix.trim_end_matches('/').to_owned();
    // What comes after the slash among the characters.
    end.push('0');
    end
}

/// The first key that does not begin with this text, whose last character is `.` or `:`.
fn next_character(mut text: String) -> String {
    let next = match text.pop() {
        Some(last) => char::from_u32(u32::from(last) + 1).unwrap_or(last),
        None => '0',
    };
    text.push(next);
    text
}

/// A name as a part of a key: bytes that may mean something to people or tools become `%` and two
/// hex digits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{CNI_IPAM_ETCD, HOST_ETCD, NATIVE};

    fn of(layout: &'static Layout) -> Keys {
        Keys::new(layout, "/p", &NetworkName::parse("net").unwrap())
    }

    fn keys() -> Keys {
        of(&NATIVE)
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
    fn old_keys_stand_where_the_old_plugins_look() {
        let address = "2001:db8::7".parse().unwrap();
        let etcd = of(&CNI_IPAM_ETCD);
        assert_eq!(etcd.lease(address), "/p/networks/net/used/2001:db8::7");
        assert_eq!(etcd.cursor(1).unwrap(), "/p/networks/net/lastReserved/1");
        assert_eq!(etcd.ranges().unwrap(), "/p/networks/net");
        assert_eq!(
            etcd.owner_of("n", "c", "eth0"),
            "/p/networks/net/ipam-delegated/owners/c/n/eth0"
        );
        let host = of(&HOST_ETCD);
        assert_eq!(host.lease(address), "/p/ips/2001:db8::7");
        assert_eq!(host.cursor(0).unwrap(), "/p/last_reserved_ip0");
        assert_eq!(host.owner_of("n", "c", "eth0"), "/p/ipam-delegated/owners/c/n/net/eth0");
        assert_eq!(host.latest(), "/p/ipam-delegated/latest/net");
        assert_eq!((host.ranges(), keys().cursor(0)), (None, None));
        for foreign in ["10.1.0.07", "2001:DB8::7", "2001:db8:0::7", "net/10.1.0.7", ""] {
            assert_eq!(host.address(format!("/p/ips/{foreign}").as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn a_window_of_written_addresses_shows_all_of_them_and_few_others() {
        let host = of(&HOST_ETCD);
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
