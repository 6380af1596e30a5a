//! The names of whereabouts' objects, and the keys of allocations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_kit::pool::{RangeRules, RangeSet};
use ipam_kit::text::{is_label, stable_hash};
use ipnet::IpNet;

/// The names of the objects of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectNames {
    /// whereabouts' `network_name`: networks of other names have objects of their own.
    network_name: Option<String>,
}

impl ObjectNames {
    pub(crate) fn new(network_name: Option<String>) -> Self {
        Self { network_name }
    }

    /// Returns the name of the IPPool of a subnet, as whereabouts 0.4 and later write it.
    pub(crate) fn pool(&self, subnet: IpNet) -> String {
        self.prefixed(&subnet.trunc().to_string().replace([':', '/'], "-"))
    }

    /// Returns the name that whereabouts 0.3 gave the IPPool of a subnet, if it is another one.
    pub(crate) fn pool_of_v03(&self, subnet: IpNet) -> Option<String> {
        let text = subnet.trunc().to_string();
        text.contains("::")
            .then(|| self.prefixed(&text.replace("::", "-").replace([':', '/'], "-")))
    }

    /// Returns the name of the reservation of an address.
    pub(crate) fn reservation(&self, address: IpAddr) -> String {
        let mut text = address.to_string();
        if text.ends_with(':') {
            text.push('0');
        }
        self.prefixed(&text.replace(':', "-"))
    }

    /// Reads the address in the name of a reservation; `None` if it is of another network.
    pub(crate) fn address_of(&self, reservation: &str) -> Option<IpAddr> {
        let text = match &self.network_name {
            Some(name) => reservation.strip_prefix(name)?.strip_prefix('-')?,
            None => reservation,
        };
        let v4 = text.parse::<Ipv4Addr>().map(IpAddr::from);
        v4.or_else(|_| text.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::from)).ok()
    }

    /// Returns the name of the object of a sticky name in a pool: both texts, or a hash of both if
    /// they cannot be part of an object's name.
    pub(crate) fn sticky(pool: &str, name: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let whole = format!("{pool}.{name}");
        if whole.len() <= LONGEST_NAME && name.split('.').all(is_label) {
            return whole;
        }
        let begin: String =
            name.bytes().filter(|byte| plain(*byte)).take(40).map(char::from).collect();
        let short: String = pool.chars().take(LONGEST_NAME - 60).collect();
        let short = short.trim_end_matches(['-', '.']);
        format!("{short}.x{}-{:016x}", begin.trim_matches('-'), stable_hash(&whole))
    }

    /// Returns whether the IPPool of this name and range is of this network. Between both, a name
    /// may have that of a node, whose slice of the network the pool is.
    pub(crate) fn has(&self, pool: &str, range: IpNet) -> bool {
        let own = self.pool(range);
        let bare = Self::default().pool(range);
        let is_slice = self.network_name.as_ref().is_some_and(|name| {
            let rest = pool.strip_prefix(&**name).and_then(|rest| rest.strip_prefix('-'));
            rest.and_then(|rest| rest.strip_suffix(&*bare)).is_some_and(|node| node.ends_with('-'))
        });
        pool == own || is_slice
    }

    /// Reads the names of a network from those of an IPPool; `None` if it has another range.
    pub(crate) fn of_pool(pool: &str, range: IpNet) -> Option<Self> {
        match pool.strip_suffix(&*Self::default().pool(range))? {
            "" => Some(Self::default()),
            prefix => Some(Self::new(Some(prefix.strip_suffix('-')?.to_owned()))),
        }
    }

    /// Returns whether nothing names the network.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.network_name.is_none()
    }

    fn prefixed(&self, name: &str) -> String {
        match &self.network_name {
            Some(prefix) => format!("{prefix}-{name}"),
            None => name.to_owned(),
        }
    }
}

/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// The largest offset: some releases of whereabouts read it as a signed number of 64 bits.
const LARGEST: u128 = i64::MAX as u128;

/// Returns the key of an address in a pool: its distance from the network address. `None` outside
/// of the subnet, or if whereabouts could not read the key.
pub(crate) fn offset_of(subnet: IpNet, address: IpAddr) -> Option<u64> {
    if !subnet.contains(&address) {
        return None;
    }
    let offset = number(address) - number(subnet.network());
    (offset <= LARGEST).then(|| u64::try_from(offset).ok()).flatten()
}

/// Returns the part of ranges whose keys whereabouts can read; `None` if all or none of it is.
pub(crate) fn readable_part(set: &RangeSet, path: &str) -> Option<RangeSet> {
    let mut part = Vec::new();
    let mut is_whole = true;
    for range in set.ranges() {
        let subnet = range.subnet().trunc();
        let mut config = range.to_config();
        if offset_of(subnet, range.end()).is_none() {
            is_whole = false;
            if offset_of(subnet, range.start()).is_none() {
                continue;
            }
            config.range_end = Some(address_at(subnet, &LARGEST.to_string())?.to_string());
        }
        part.push(config);
    }
    if is_whole || part.is_empty() {
        return None;
    }
    RangeSet::parse(&part, RangeRules::ANY, path).ok()
}

/// Returns the address of a key; `None` for a key that is not an offset inside the subnet.
pub(crate) fn address_at(subnet: IpNet, key: &str) -> Option<IpAddr> {
    let is_plain = key == "0" || !key.starts_with(['0', '+']);
    let offset: u128 = key.parse().ok().filter(|_| is_plain)?;
    let number = number(subnet.network()).checked_add(offset)?;
    let address = match subnet {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(u32::try_from(number).ok()?)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
    };
    subnet.contains(&address).then_some(address)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_end_with_the_last_key_that_whereabouts_reads() {
        let part = |ranges: serde_json::Value| {
            let ranges: Vec<_> = serde_json::from_value(ranges).unwrap();
            let set = RangeSet::parse(&ranges, RangeRules::ANY, "ipam").unwrap();
            readable_part(&set, "ipam").map(|part| part.to_string())
        };
        assert_eq!(part(json!([{"subnet": "10.0.0.0/8"}, {"subnet": "11.0.0.0/8"}])), None);
        let end = "fd00::7fff:ffff:ffff:ffff";
        assert_eq!(part(json!([{"subnet": "fd00::/48"}])), Some(format!("fd00::1-{end}")));
        let beyond = json!({"subnet": "fd00:1::/64", "rangeStart": "fd00:1::8000:0:0:0"});
        assert_eq!(part(json!([beyond])), None);
        let both = json!([{"subnet": "fd00::/64", "rangeStart": "fd00::9"}, beyond]);
        assert_eq!(part(both), Some(format!("fd00::9-{end}")));
    }

    #[test]
    fn names_are_those_of_whereabouts() {
        let (bare, blue) = (ObjectNames::default(), ObjectNames::new(Some("blue".to_owned())));
        for (subnet, name, v03) in [
            ("192.168.2.225/28", "192.168.2.224-28", None),
            ("2001::1/116", "2001---116", Some("2001--116")),
            ("2001:db8:1:2::/64", "2001-db8-1-2---64", Some("2001-db8-1-2--64")),
        ] {
            assert_eq!(bare.pool(net(subnet)), name);
            assert_eq!(blue.pool(net(subnet)), format!("blue-{name}"));
            assert_eq!(bare.pool_of_v03(net(subnet)).as_deref(), v03);
        }
        for (address, name) in
            [("10.0.0.5", "10.0.0.5"), ("fd00::5", "fd00--5"), ("fd00::", "fd00--0")]
        {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(bare.reservation(address), name);
            assert_eq!(bare.address_of(name), Some(address));
            assert_eq!(blue.reservation(address), format!("blue-{name}"));
            assert_eq!(blue.address_of(&blue.reservation(address)), Some(address));
            assert_eq!(blue.address_of(name), None);
            assert_eq!(bare.address_of(&blue.reservation(address)), None);
        }
    }

    #[test]
    fn any_sticky_name_becomes_the_name_of_an_object() {
        let pool = "10.0.0.0-24";
        for name in ["web-0", "test234", "shop.web-0", "0"] {
            assert_eq!(ObjectNames::sticky(pool, name), format!("{pool}.{name}"));
        }
        let long = "n".repeat(300);
        let mut names = std::collections::BTreeSet::new();
        for name in ["shop/web-0", "shop-/web-0", "Web-0", "web_0", "-a", "a..b", "ä", " ", &long]
        {
            let object = ObjectNames::sticky(pool, name);
            assert!(
                object.starts_with("10.0.0.0-24.x") && object.len() <= LONGEST_NAME,
                "{object}"
            );
            let is_valid =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            assert!(object.chars().all(is_valid) && !object.contains(".."), "{object}");
            assert!(names.insert(object), "{name}");
        }
        assert_eq!(
            ObjectNames::sticky(pool, "shop/web-0").len(),
            "10.0.0.0-24.xshopweb-0-".len() + 16
        );
        let longest = ObjectNames::sticky(&"p".repeat(244), "shop/web-0");
        assert!(longest.len() <= LONGEST_NAME, "{longest}");
    }

    #[test]
    fn a_pool_is_of_the_network_that_its_name_begins_with() {
        let (bare, blue) = (ObjectNames::default(), ObjectNames::new(Some("blue".to_owned())));
        let range = net("10.0.0.0/24");
        assert!(bare.has("10.0.0.0-24", range) && !bare.has("blue-10.0.0.0-24", range));
        assert!(blue.has("blue-10.0.0.0-24", range) && blue.has("blue-node-1-10.0.0.0-24", range));
        assert!(!blue.has("10.0.0.0-24", range) && !blue.has("blue10.0.0.0-24", range));
        for (pool, names) in [
            ("10.0.0.0-24", Some(bare)),
            ("blue-10.0.0.0-24", Some(blue)),
            ("blue10.0.0.0-24", None),
            ("blue-10.0.0.0-25", None),
        ] {
            assert_eq!(ObjectNames::of_pool(pool, range), names, "{pool}");
        }
    }

    #[test]
    fn a_key_is_the_distance_from_the_network_address() {
        for (subnet, address, key) in [
            ("10.0.0.0/24", "10.0.0.5", 5),
            ("fd00::/64", "fd00::1:0", 65536),
            ("fd00::/8", "fd00::", 0),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(offset_of(net(subnet), address), Some(key));
            assert_eq!(address_at(net(subnet), &key.to_string()), Some(address));
        }
        assert_eq!(offset_of(net("10.0.0.0/24"), "10.0.1.5".parse().unwrap()), None);
        // Half of a /64 is beyond the numbers that old releases read.
        assert_eq!(offset_of(net("fd00::/64"), "fd00::8000:0:0:0".parse().unwrap()), None);
        for key in ["", "-1", "+1", "01", "1.0", "256", "99999999999999999999999999999999999999999"]
        {
            assert_eq!(address_at(net("10.0.0.0/24"), key), None, "{key}");
        }
    }
}
