//! Addresses and CIDRs as Go's `net` package reads and prints them, and counting along them.

use std::error::Error as StdError;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// A text that cannot be read as an address or a CIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    text: String,
    reason: &'static str,
}

/// Reads an address; leading zeros are refused, an IPv4-mapped IPv6 address becomes IPv4.
///
/// # Errors
/// The text is not an address.
pub fn parse_address(text: &str) -> Result<IpAddr, Malformed> {
    parse_plain(text, text).map(|address| address.to_canonical())
}

/// Reads `10.1.0.0/16` and keeps the host bits, if any.
///
/// # Errors
/// The text is not a CIDR, or its address is an IPv4-mapped IPv6 one.
pub fn parse_cidr(text: &str) -> Result<IpNet, Malformed> {
    let malformed = |reason| Malformed::new(text, reason);
    let (address, prefix) =
        text.split_once('/').ok_or_else(|| malformed("is not a CIDR: missing prefix length"))?;
    let address = parse_plain(address, text)?;
    if address.to_canonical() != address {
        return Err(malformed("is IPv4-mapped: write it as IPv4"));
    }
    IpNet::new(address, parse_prefix(prefix, text)?)
        .map_err(|_| malformed("is not a CIDR: prefix length too long"))
}

/// Reads a requested address: `10.1.2.3` or `10.1.2.3/24`.
///
/// The prefix of an IPv4-mapped address is counted as IPv4's.
///
/// # Errors
/// The text is neither.
pub fn parse_address_or_cidr(text: &str) -> Result<(IpAddr, Option<u8>), Malformed> {
    let Some((address, prefix)) = text.split_once('/') else {
        return parse_address(text).map(|address| (address, None));
    };
    let written = parse_plain(address, text)?;
    let prefix = parse_prefix(prefix, text)?;
    let address = written.to_canonical();
    let above = bits(written) - bits(address);
    match prefix.checked_sub(above) {
        Some(prefix) if prefix <= bits(address) => Ok((address, Some(prefix))),
        _ => Err(Malformed::new(text, "has a prefix length that does not fit the address")),
    }
}

/// The number of bits of an address of this family.
pub(crate) fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Whether a gateway lies outside of its subnet. A link-local one is meant so.
pub fn is_strange_gateway(gateway: IpAddr, subnet: IpNet) -> bool {
    let is_link_local = match gateway {
        IpAddr::V4(gateway) => gateway.is_link_local(),
        IpAddr::V6(gateway) => gateway.is_unicast_link_local(),
    };
    !is_link_local && !subnet.contains(&gateway)
}

/// The address one above; none above the family's last.
pub fn next(address: IpAddr) -> Option<IpAddr> {
    offset(address, 1)
}

/// The address one below; none below the family's first.
pub fn previous(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_sub(1).map(from_v4),
        IpAddr::V6(v6) => v6.to_bits().checked_sub(1).map(from_v6),
    }
}

/// The address `by` above; none when that leaves the family.
pub fn offset(address: IpAddr, by: u128) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let by = u32::try_from(by).ok()?;
            v4.to_bits().checked_add(by).map(from_v4)
        }
        IpAddr::V6(v6) => v6.to_bits().checked_add(by).map(from_v6),
    }
}

/// How far `to` is above `from`; none when it is below, or of the other family.
pub fn distance(from: IpAddr, to: IpAddr) -> Option<u128> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            to.to_bits().checked_sub(from.to_bits()).map(u128::from)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => to.to_bits().checked_sub(from.to_bits()),
        _ => None,
    }
}

impl Malformed {
    fn new(text: &str, reason: &'static str) -> Self {
        Self { text: text.to_owned(), reason }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.text, self.reason)
    }
}

impl StdError for Malformed {}

fn parse_plain(address: &str, text: &str) -> Result<IpAddr, Malformed> {
    address.parse().map_err(|_| Malformed::new(text, "is not an IP address"))
}

/// Digits only, where std accepts a sign; no leading zero, where Go accepts some.
fn parse_prefix(prefix: &str, text: &str) -> Result<u8, Malformed> {
    let plain = prefix.bytes().all(|byte| byte.is_ascii_digit())
        && (prefix == "0" || !prefix.starts_with('0'));
    plain
        .then(|| prefix.parse().ok())
        .flatten()
        .ok_or_else(|| Malformed::new(text, "is not a CIDR: invalid prefix length"))
}

fn from_v4(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

fn from_v6(bits: u128) -> IpAddr {
    Ipv6Addr::from_bits(bits).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        parse_address(text).unwrap()
    }

    #[test]
    fn addresses_are_read_and_printed_as_by_go() {
        for (written, printed) in [
            ("10.1.2.3", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("::1.2.3.4", "::102:304"),
            ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
            ("3ffe:ffff:0:01ff::0010", "3ffe:ffff:0:1ff::10"),
        ] {
            assert_eq!(address(written).to_string(), printed);
        }
        for text in ["", "10.1.2.010", "10.1.2", " 10.1.2.3", "fe80::1%eth0", "::10000"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cidrs_are_strict_and_keep_host_bits() {
        assert_eq!(parse_cidr("10.1.2.3/8").unwrap().to_string(), "10.1.2.3/8");
        assert_eq!(parse_cidr("::/0").unwrap().to_string(), "::/0");
        for text in [
            "10.1.2.3",
            "010.1.2.3/8",
            "10.1.2.3/08",
            "10.1.2.3/+8",
            "10.1.2.3/-1",
            "10.1.2.3/",
            "10.1.2.3/33",
            "::/129",
            "::/256",
            "10.1.2.3/8/8",
            "10.0.0.0/255.0.0.0",
            "/8",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(parse_cidr(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_cidr("10.1/16").unwrap_err().to_string(),
            r#""10.1/16" is not an IP address"#
        );
    }

    #[test]
    fn requested_addresses_may_have_a_prefix() {
        let read = |text| parse_address_or_cidr(text).ok();
        let v4 = address("10.1.2.3");
        assert_eq!(read("10.1.2.3"), Some((v4, None)));
        assert_eq!(read("10.1.2.3/24"), Some((v4, Some(24))));
        assert_eq!(read("::ffff:10.1.2.3/120"), Some((v4, Some(24))));
        for text in ["::ffff:10.1.2.3/24", "10.1.2.3/33", "10.1.2.3/", "10.1.2.03/24"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn counting_stops_at_the_ends_of_a_family() {
        let (first, last) = (address("0.0.0.0"), address("255.255.255.255"));
        assert_eq!((previous(first), next(last)), (None, None));
        assert_eq!(next(address("10.0.0.255")), Some(address("10.0.1.0")));
        assert_eq!(previous(address("::1:0")), Some(address("::ffff")));
        assert_eq!(offset(first, u32::MAX.into()), Some(last));
        assert_eq!(offset(first, 1 << 32), None);
        assert_eq!(distance(first, last), Some(u32::MAX.into()));
        assert_eq!(distance(last, first), None);
        assert_eq!(distance(first, address("::")), None);
        let all = address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        assert_eq!(offset(address("::"), u128::MAX), Some(all));
        assert_eq!(next(all), None);
    }
}
