//! Reads a range's members: defaults, families, rules, and the path of each error.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use super::{DefaultGateway, GatewayPlace, HostBits, RangeConfig, RangeRules, SmallSubnets};
use crate::cni::address::{self, Malformed};
use crate::error::{Error, Result};

/// The addresses that Go prints as IPv4: none is given out of an IPv6 range.
pub(super) const IPV4_MAPPED: IpNet =
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96));

/// The members of a range, read: start <= end, both in the subnet, all of one family.
pub(super) struct Bounds {
    pub(super) subnet: IpNet,
    pub(super) start: IpAddr,
    pub(super) end: IpAddr,
    pub(super) gateway: Option<IpAddr>,
    pub(super) exclude: Vec<IpNet>,
    pub(super) rules: Option<&'static str>,
}

impl Bounds {
    pub(super) fn read(config: &RangeConfig, rules: RangeRules, path: &str) -> Result<Self> {
        let members = RangeMembers { config, path };
        let subnet = members.subnet(rules)?;
        let own_rules = members.rules()?;
        let default_gateway = match own_rules {
            Some(_) => DefaultGateway::Nothing,
            None => rules.default_gateway,
        };
        let defaults = Defaults::of(subnet, default_gateway);
        let gateway = members.gateway(subnet, rules, defaults.gateway)?;
        let start = members.bound("rangeStart", &config.range_start, subnet)?;
        let end = members.bound("rangeEnd", &config.range_end, subnet)?;
        let (start, end) = members.span(start.or(defaults.start), end.unwrap_or(defaults.end))?;
        let exclude = members.exclude(subnet)?;
        Ok(Self { subnet, start, end, gateway, exclude, rules: own_rules })
    }
}

struct Defaults {
    start: Option<IpAddr>,
    end: IpAddr,
    gateway: Option<IpAddr>,
}

impl Defaults {
    fn of(subnet: IpNet, gateway: DefaultGateway) -> Self {
        let last = subnet.broadcast();
        if is_small(subnet) {
            return Self { start: Some(subnet.network()), end: last, gateway: None };
        }
        let first = address::next(subnet.addr());
        Self {
            start: first,
            end: match last {
                IpAddr::V4(_) => address::previous(last).unwrap_or(last),
                IpAddr::V6(_) => last,
            },
            gateway: first.filter(|_| gateway == DefaultGateway::First),
        }
    }
}

/// The members of a range, with their path for errors.
struct RangeMembers<'a> {
    config: &'a RangeConfig,
    path: &'a str,
}

impl RangeMembers<'_> {
    fn subnet(&self, rules: RangeRules) -> Result<IpNet> {
        let Some(text) = &self.config.subnet else {
            return Err(self.error("subnet", "missing: expected a CIDR such as 10.1.0.0/16"));
        };
        let subnet = address::parse_cidr(text).map_err(|error| self.error("subnet", error))?;
        if rules.small == SmallSubnets::Refuse && is_small(subnet) {
            return Err(self.error("subnet", format!("{subnet} is too small to allocate from")));
        }
        if rules.host_bits == HostBits::Refuse && subnet != subnet.trunc() {
            let message = format!("{subnet} has host bits set: write {}", subnet.trunc());
            return Err(self.error("subnet", message));
        }
        Ok(if rules.host_bits == HostBits::Ignore { subnet.trunc() } else { subnet })
    }

    fn rules(&self) -> Result<Option<&'static str>> {
        match self.config.rules.as_deref() {
            None => Ok(None),
            Some(RangeConfig::WHEREABOUTS) => Ok(Some(RangeConfig::WHEREABOUTS)),
            Some(other) => {
                let message = format!("unknown rules {other:?}: expected \"whereabouts\"");
                Err(self.error("rules", message))
            }
        }
    }

    fn gateway(
        &self,
        subnet: IpNet,
        rules: RangeRules,
        default: Option<IpAddr>,
    ) -> Result<Option<IpAddr>> {
        let written = self.address("gateway", &self.config.gateway, subnet)?;
        let gateway = written.or(default);
        match gateway {
            Some(gateway)
                if rules.gateway == GatewayPlace::InsideSubnet && !subnet.contains(&gateway) =>
            {
                let which = if written.is_some() { "" } else { "the default " };
                Err(self.error("gateway", format!("{which}{gateway} is not in {subnet}")))
            }
            _ => Ok(gateway),
        }
    }

    fn bound(&self, name: &str, text: &Option<String>, subnet: IpNet) -> Result<Option<IpAddr>> {
        let bound = self.address(name, text, subnet)?;
        match bound {
            Some(bound) if !subnet.contains(&bound) => {
                Err(self.error(name, format!("{bound} is not in {subnet}")))
            }
            _ => Ok(bound),
        }
    }

    fn span(&self, start: Option<IpAddr>, end: IpAddr) -> Result<(IpAddr, IpAddr)> {
        let culprit = if present(&self.config.range_start).is_some() {
            "rangeStart"
        } else if present(&self.config.range_end).is_some() {
            "rangeEnd"
        } else {
            "subnet"
        };
        let Some(start) = start else {
            return Err(self.error(culprit, "the subnet has no address to allocate"));
        };
        if start > end {
            let message = format!("the range starts at {start}, after its end {end}");
            return Err(self.error(culprit, message));
        }
        if [start, end].iter().any(|bound| IPV4_MAPPED.contains(bound)) {
            let message = format!("{start}-{end} starts or ends among IPv4-mapped addresses");
            return Err(self.error(culprit, message));
        }
        Ok((start, end))
    }

    fn exclude(&self, subnet: IpNet) -> Result<Vec<IpNet>> {
        let mut holes = Vec::new();
        for (index, text) in self.config.exclude.iter().enumerate() {
            let name = format!("exclude[{index}]");
            let hole = parse_hole(text).map_err(|error| self.error(&name, error))?;
            self.same_family(&name, hole.addr(), subnet)?;
            holes.push(hole);
        }
        Ok(holes)
    }

    fn address(&self, name: &str, text: &Option<String>, subnet: IpNet) -> Result<Option<IpAddr>> {
        let Some(text) = present(text) else {
            return Ok(None);
        };
        let address = address::parse_address(text).map_err(|error| self.error(name, error))?;
        self.same_family(name, address, subnet)?;
        Ok(Some(address))
    }

    fn same_family(&self, name: &str, address: IpAddr, subnet: IpNet) -> Result<()> {
        if address.is_ipv4() == subnet.addr().is_ipv4() {
            return Ok(());
        }
        let message = format!("{address} is of another address family than {subnet}");
        Err(self.error(name, message))
    }

    fn error(&self, name: &str, message: impl fmt::Display) -> Error {
        Error::config(format_args!("{}.{name}", self.path), message)
    }
}

/// Go reads an empty address as none.
fn present(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn is_small(subnet: IpNet) -> bool {
    subnet.max_prefix_len() - subnet.prefix_len() < 2
}

fn parse_hole(text: &str) -> Result<IpNet, Malformed> {
    if text.contains('/') {
        address::parse_cidr(text).map(|net| net.trunc())
    } else {
        address::parse_address(text).map(IpNet::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST_LOCAL: RangeRules = RangeRules::HOST_LOCAL;
    const ETCD: RangeRules = RangeRules::ETCD;
    const OURS: RangeRules = RangeRules::OURS;

    /// The members in the order subnet, rangeStart, rangeEnd, gateway; `""` is absent.
    fn config(members: [&str; 4]) -> RangeConfig {
        let [subnet, range_start, range_end, gateway] =
            members.map(|text| (!text.is_empty()).then(|| text.to_owned()));
        RangeConfig { subnet, range_start, range_end, gateway, ..RangeConfig::default() }
    }

    fn read(members: [&str; 4], rules: RangeRules) -> [String; 3] {
        let bounds = Bounds::read(&config(members), rules, "r").unwrap();
        let gateway = bounds.gateway.map(|gateway| gateway.to_string());
        [bounds.start.to_string(), bounds.end.to_string(), gateway.unwrap_or_default()]
    }

    #[track_caller]
    fn refused(members: [&str; 4], rules: RangeRules, message: &str) {
        let error = Bounds::read(&config(members), rules, "ipam.ranges[0][1]").err().unwrap();
        assert_eq!(error.to_string(), format!("ipam.ranges[0][1].{message}"));
    }

    #[test]
    fn defaults_are_host_locals() {
        for (subnet, expected) in [
            ("10.0.0.0/30", ["10.0.0.1", "10.0.0.2", "10.0.0.1"]),
            ("192.168.1.0/29", ["192.168.1.1", "192.168.1.6", "192.168.1.1"]),
            ("0.0.0.0/0", ["0.0.0.1", "255.255.255.254", "0.0.0.1"]),
            (
                "2001:db8:1::/64",
                ["2001:db8:1::1", "2001:db8:1:0:ffff:ffff:ffff:ffff", "2001:db8:1::1"],
            ),
            ("::/0", ["::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"]),
        ] {
            assert_eq!(read([subnet, "", "", ""], HOST_LOCAL), expected);
        }
    }

    #[test]
    fn network_and_broadcast_are_given_out_when_written() {
        assert_eq!(
            read(["192.0.2.0/30", "192.0.2.0", "192.0.2.3", ""], HOST_LOCAL),
            ["192.0.2.0", "192.0.2.3", "192.0.2.1"]
        );
    }

    #[test]
    fn small_subnets_are_ranges_without_gateway_by_our_rules() {
        for (subnet, expected) in [
            ("10.0.0.0/31", ["10.0.0.0", "10.0.0.1", ""]),
            ("10.0.0.7/32", ["10.0.0.7", "10.0.0.7", ""]),
            ("::2/127", ["::2", "::3", ""]),
            ("::2/128", ["::2", "::2", ""]),
        ] {
            assert_eq!(read([subnet, "", "", ""], OURS), expected);
            for rules in [HOST_LOCAL, ETCD] {
                let message = format!("subnet: {subnet} is too small to allocate from");
                refused([subnet, "", "", ""], rules, &message);
            }
        }
        let gateway = read(["10.0.0.0/31", "", "", "10.0.0.0"], OURS);
        assert_eq!(gateway, ["10.0.0.0", "10.0.0.1", "10.0.0.0"]);
    }

    #[test]
    fn host_bits_move_the_etcd_plugins_defaults() {
        let subnet = ["10.1.2.5/24", "", "", ""];
        assert_eq!(read(subnet, ETCD), ["10.1.2.6", "10.1.2.254", "10.1.2.6"]);
        let message = "subnet: 10.1.2.5/24 has host bits set: write 10.1.2.0/24";
        refused(subnet, HOST_LOCAL, message);
        refused(
            ["2001:DB8:24:19ff::/63", "", "", ""],
            OURS,
            "subnet: 2001:db8:24:19ff::/63 has host bits set: write 2001:db8:24:19fe::/63",
        );
        refused(
            ["10.1.2.254/24", "", "", ""],
            ETCD,
            "subnet: the range starts at 10.1.2.255, after its end 10.1.2.254",
        );
        refused(
            ["10.1.2.255/24", "10.1.2.3", "", ""],
            ETCD,
            "gateway: the default 10.1.3.0 is not in 10.1.2.255/24",
        );
        refused(
            ["255.255.255.255/8", "", "", ""],
            ETCD,
            "subnet: the subnet has no address to allocate",
        );
    }

    #[test]
    fn the_gateway_may_lie_outside_but_by_the_etcd_plugins_rules() {
        let members = ["10.1.2.0/24", "", "", "10.9.9.9"];
        assert_eq!(read(members, HOST_LOCAL)[2], "10.9.9.9");
        refused(members, ETCD, "gateway: 10.9.9.9 is not in 10.1.2.0/24");
    }

    #[test]
    fn by_the_rules_of_whereabouts_only_a_written_gateway_counts() {
        let with_rules = |rules: &str, gateway| {
            let config = config(["10.1.2.0/24", "", "", gateway]);
            let config = RangeConfig { rules: Some(rules.to_owned()), ..config };
            Bounds::read(&config, HOST_LOCAL, "r").map(|bounds| bounds.gateway)
        };
        assert_eq!(with_rules("whereabouts", "").unwrap(), None);
        let written = with_rules("whereabouts", "10.9.9.9").unwrap();
        assert_eq!(written.unwrap().to_string(), "10.9.9.9");
        for rules in ["", "Whereabouts", "host-local"] {
            let error = with_rules(rules, "").unwrap_err().to_string();
            let expected = format!("r.rules: unknown rules {rules:?}: expected \"whereabouts\"");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn bad_bounds_name_their_member() {
        for (members, message) in [
            (["", "10.0.0.1", "", ""], "subnet: missing: expected a CIDR such as 10.1.0.0/16"),
            (
                ["10.1.2.0", "", "", ""],
                r#"subnet: "10.1.2.0" is not a CIDR: missing prefix length"#,
            ),
            (
                ["::ffff:10.0.0.0/104", "", "", ""],
                r#"subnet: "::ffff:10.0.0.0/104" is IPv4-mapped: write it as IPv4"#,
            ),
            (
                ["192.0.2.0/24", "192.0.2.50", "192.0.2.40", ""],
                "rangeStart: the range starts at 192.0.2.50, after its end 192.0.2.40",
            ),
            (
                ["192.0.2.0/24", "", "192.0.2.0", ""],
                "rangeEnd: the range starts at 192.0.2.1, after its end 192.0.2.0",
            ),
            (["192.0.2.0/24", "192.0.3.1", "", ""], "rangeStart: 192.0.3.1 is not in 192.0.2.0/24"),
            (["192.0.2.0/24", "", "192.0.3.1", ""], "rangeEnd: 192.0.3.1 is not in 192.0.2.0/24"),
            (["192.0.2.0/24", "x", "", ""], r#"rangeStart: "x" is not an IP address"#),
            (
                ["192.0.2.0/24", "", "", "fd00::1"],
                "gateway: fd00::1 is of another address family than 192.0.2.0/24",
            ),
            (
                ["::/80", "", "", ""],
                "subnet: ::1-::ffff:255.255.255.255 starts or ends among IPv4-mapped addresses",
            ),
        ] {
            refused(members, HOST_LOCAL, message);
        }
    }

    #[test]
    fn excludes_are_cidrs_or_addresses_of_the_family() {
        let read = |exclude: &str| {
            let mut config = config(["10.0.0.0/8", "", "", ""]);
            config.exclude = vec!["10.1.2.3/16".into(), exclude.into()];
            Bounds::read(&config, OURS, "r").map(|bounds| bounds.exclude[1].to_string())
        };
        assert_eq!(read("10.2.3.4").unwrap(), "10.2.3.4/32");
        assert_eq!(read("192.168.1.1/16").unwrap(), "192.168.0.0/16");
        assert_eq!(
            read("fd00::/8").unwrap_err().to_string(),
            "r.exclude[1]: fd00:: is of another address family than 10.0.0.0/8"
        );
        assert_eq!(
            read("10.0.0.0/33").unwrap_err().to_string(),
            r#"r.exclude[1]: "10.0.0.0/33" is not a CIDR: prefix length too long"#
        );
    }
}
