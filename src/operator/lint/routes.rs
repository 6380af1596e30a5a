//! The routes of this host, as the kernel's tables show them.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipam_kit::error::{Error, Result};
use ipam_kit::host::read_regular;

/// A route to more than one address, and not to all of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostRoute {
    pub interface: String,
    /// As in `10.1.0.0/16`.
    pub subnet: String,
}

/// The kernel's flag of a route that refuses, which is of no interface.
const REJECT: u64 = 0x200;

/// Every route of a table that says something about a subnet: not the default route, nor those of
/// the loopback interface, of single addresses, link-local or multicast.
///
/// # Errors
/// A table could not be read. A host without IPv6 has no table of it.
pub(crate) fn routes() -> Result<Vec<HostRoute>> {
    let mut routes = Vec::new();
    for (table, parse) in
        [("/proc/net/route", parse_v4 as fn(&str) -> _), ("/proc/net/ipv6_route", parse_v6)]
    {
        match read_regular(Path::new(table)) {
            Ok(text) => routes.extend(String::from_utf8_lossy(&text).lines().filter_map(parse)),
            Err(error) if error.kind() == ErrorKind::NotFound && table.contains("v6") => {}
            Err(error) => return Err(Error::io(format_args!("cannot read {table}"), error)),
        }
    }
    Ok(routes)
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask …`, with numbers as memory has them.
fn parse_v4(line: &str) -> Option<HostRoute> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [interface, destination, _, flags, _, _, _, mask, ..] = fields[..] else { return None };
    let address = Ipv4Addr::from(hexadecimal(destination)?.to_ne_bytes());
    let prefix = u8::try_from(hexadecimal(mask)?.count_ones()).ok()?;
    let is_of_subnet = (1..32).contains(&prefix) && !address.is_link_local();
    route(interface, address.into(), prefix, hexadecimal(flags)?.into(), is_of_subnet)
}

/// `destination prefix source prefix gateway metric refcnt use flags interface`.
fn parse_v6(line: &str) -> Option<HostRoute> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [destination, prefix, _, _, _, _, _, _, flags, interface] = fields[..] else { return None };
    let address = Ipv6Addr::from(u128::from_str_radix(destination, 16).ok()?);
    let prefix = u8::from_str_radix(prefix, 16).ok()?;
    let flags = u64::from_str_radix(flags, 16).ok()?;
    let is_of_subnet =
        (1..128).contains(&prefix) && !address.is_unicast_link_local() && !address.is_multicast();
    route(interface, address.into(), prefix, flags, is_of_subnet)
}

fn hexadecimal(field: &str) -> Option<u32> {
    u32::from_str_radix(field, 16).ok()
}

fn route(
    interface: &str,
    address: IpAddr,
    prefix: u8,
    flags: u64,
    is_of_subnet: bool,
) -> Option<HostRoute> {
    let counts = is_of_subnet && flags & REJECT == 0 && interface != "lo";
    counts.then(|| HostRoute {
        interface: interface.to_owned(),
        subnet: format!("{address}/{prefix}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn routes_of_subnets_are_read() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                  eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n\
                  podman0 0000580A 00000000 0001 0 0 0 0000FFFF 0 0 0\n\
                  veth1 02005A0A 00000000 0005 0 0 0 FFFFFFFF 0 0 0\n\
                  eth0 0000FEA9 00000000 0001 0 0 0 0000FFFF 0 0 0\n\
                  * 0000630A 00000000 0200 0 0 0 0000FFFF 0 0 0\n";
        let found: Vec<HostRoute> = v4.lines().filter_map(parse_v4).collect();
        let route = |interface: &str, subnet: &str| HostRoute {
            interface: interface.to_owned(),
            subnet: subnet.to_owned(),
        };
        assert_eq!(found, [route("podman0", "10.88.0.0/16")]);
        let nothing = "0".repeat(32);
        let v6 = |destination: &str, prefix: &str, flags: &str, interface: &str| {
            let line = format!(
                "{destination} {prefix} {nothing} 00 {nothing} 00000100 00000001 00000000 {flags} {interface}"
            );
            parse_v6(&line)
        };
        let subnet = "fd000088000000000000000000000000";
        assert_eq!(v6(subnet, "40", "00000001", "br0"), Some(route("br0", "fd00:88::/64")));
        for (destination, prefix, flags, interface) in [
            (subnet, "80", "00000001", "br0"),
            (subnet, "40", "00000201", "br0"),
            (subnet, "40", "00000001", "lo"),
            (nothing.as_str(), "00", "00000003", "eth0"),
            ("fe800000000000000000000000000000", "40", "00000001", "br0"),
            ("ff000000000000000000000000000000", "08", "00000001", "br0"),
        ] {
            assert_eq!(v6(destination, prefix, flags, interface), None, "{destination}");
        }
    }
}
