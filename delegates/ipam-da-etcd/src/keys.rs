use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_delegated::allocate::Owner;
use ipam_delegated::allocate::ledger::Holder;
use ipam_delegated::cni::NetworkName;

/// The keys of one network: one per address and one per owner, and one for the latest claim.
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
pub struct Keys {
    leases: String,
    owners: String,
    latest: String,
}

impl Keys {
    /// The keys of a network below a prefix.
    pub fn new(prefix: &str, network: &NetworkName) -> Self {
        let network = format!("{prefix}/networks/{network}");
        Self {
            leases: format!("{network}/leases/"),
            owners: format!("{network}/owners/"),
            latest: format!("{network}/latest"),
        }
    }

    /// The key of an address.
    pub fn lease(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(address) => format!("{}4/{:08x}", self.leases, address.to_bits()),
            IpAddr::V6(address) => format!("{}6/{:032x}", self.leases, address.to_bits()),
        }
    }

    /// The address that a key stands for; none for a key that is not of this layout.
    pub fn address(&self, key: &[u8]) -> Option<IpAddr> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.leases)?;
        let (family, hex) = rest.split_once('/')?;
        let canonical = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match (family, hex.len()) {
            _ if !canonical => None,
            ("4", 8) => u32::from_str_radix(hex, 16).ok().map(|n| Ipv4Addr::from_bits(n).into()),
            ("6", 32) => u128::from_str_radix(hex, 16).ok().map(|n| Ipv6Addr::from_bits(n).into()),
            _ => None,
        }
    }

    /// The keys from one address to another, both included: the first, and the one after the last.
    pub fn window(&self, from: IpAddr, to: IpAddr) -> (String, String) {
        (self.lease(from), after(self.lease(to)))
    }

    /// The key of an owner.
    pub fn owner(&self, owner: &Owner) -> String {
        self.owner_of(&owner.scope.node, owner.container.as_str(), owner.ifname.as_str())
    }

    /// The key of the owner with these names.
    pub fn owner_of(&self, node: &str, container: &str, ifname: &str) -> String {
        format!("{}{}/{}", self.of_node(node), plain(container), plain(ifname))
    }

    /// The key of the owner that an entry names; none where the entry does not tell the owner in full.
    pub fn owner_of_holder(&self, holder: &Holder) -> Option<String> {
        let (node, ifname) = (holder.node.as_deref()?, holder.ifname.as_deref()?);
        Some(self.owner_of(node, &holder.container, ifname))
    }

    /// What the keys of a node's owners begin with.
    pub fn of_node(&self, node: &str) -> String {
        format!("{}{}/", self.owners, plain(node))
    }

    /// What the keys of all owners begin with.
    pub fn owners(&self) -> &str {
        &self.owners
    }

    /// The key that every claim writes: its modification revision is that of the latest claim.
    pub fn latest(&self) -> &str {
        &self.latest
    }

    /// What the keys of all addresses begin with.
    pub fn leases(&self) -> &str {
        &self.leases
    }
}

/// The first key after this one.
pub fn after(mut key: String) -> String {
    key.push('\0');
    key
}

/// The first key that does not begin with this prefix, which ends in a slash.
pub fn end_of(prefix: &str) -> String {
    let mut end = prefix.trim_end_matches('/').to_owned();
    // What comes after the slash among the characters.
    end.push('0');
    end
}

/// A name as a part of a key: bytes that may mean something to people or tools become `%` and two
/// hex digits.
pub fn plain(name: &str) -> String {
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

    fn keys() -> Keys {
        Keys::new("/p", &NetworkName::parse("net").unwrap())
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
        let (first, end) = keys().window("10.0.0.9".parse().unwrap(), "10.0.0.9".parse().unwrap());
        let next = keys().lease("10.0.0.10".parse().unwrap());
        assert!(first < end && end < next);
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
