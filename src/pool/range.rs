//! One range of addresses, read: what lies in it and what of it may be given out.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use super::cidr::{self, Malformed};
use super::{GatewayPlace, HostBits, RangeConfig, RangeRules, SmallSubnets};
use crate::error::{Error, Result};

/// A range that can be allocated from: start <= end, both in the subnet.
///
/// `Display` shows `start-end`, host-local's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: Option<IpAddr>,
    exclude: Vec<IpNet>,
    segments: Vec<(IpAddr, IpAddr)>,
}

/// No address that Go would print as IPv4 is given out of an IPv6 range.
const MAPPED: IpNet = IpNet::V6(Ipv6Net::new_assert(
    Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0),
    96,
));

impl Range {
    /// Reads a range; `path` is its place in the configuration, as in `ipam.ranges[0][1]`.
    ///
    /// Defaults are host-local's: gateway and start are the address after the subnet's, the end
    /// is the last but one (IPv4) or the last (IPv6). A written start or end is given out even if
    /// it is the network or broadcast address.
    ///
    /// # Errors
    /// A member is missing, malformed, of another family than the subnet or against the rules, or
    /// start and end are outside of the subnet or in the wrong order.
    pub fn parse(config: &RangeConfig, rules: RangeRules, path: &str) -> Result<Self> {
        let members = Members { config, path };
        let subnet = members.subnet(rules)?;
        let defaults = Defaults::of(subnet);
        let gateway = members.gateway(subnet, rules, defaults.gateway)?;
        let start = members.bound("rangeStart", &config.range_start, subnet)?;
        let end = members.bound("rangeEnd", &config.range_end, subnet)?;
        let (start, end) = members.span(start.or(defaults.start), end.unwrap_or(defaults.end))?;
        let exclude = members.exclude(subnet)?;
        Ok(Self {
            segments: cut(start, end, exclude.iter().chain([&MAPPED])),
            subnet,
            start,
            end,
            gateway,
            exclude,
        })
    }

    /// The subnet as written, host bits kept.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The first address.
    pub fn start(&self) -> IpAddr {
        self.start
    }

    /// The last address.
    pub fn end(&self) -> IpAddr {
        self.end
    }

    /// The gateway, which may lie outside of the range and, by some rules, of the subnet.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// What is not given out, without host bits; it may lie outside of the range.
    pub fn exclude(&self) -> &[IpNet] {
        &self.exclude
    }

    /// Start to end without what is excluded, in order and never adjacent; the gateway is not cut
    /// out, nor is it excluded by anything but its own address.
    pub fn segments(&self) -> &[(IpAddr, IpAddr)] {
        &self.segments
    }

    /// Whether the address lies between start and end.
    pub fn spans(&self, address: IpAddr) -> bool {
        self.start <= address && address <= self.end
    }

    /// Whether the address may be given out: inside, not excluded and not the gateway.
    pub fn usable(&self, address: IpAddr) -> bool {
        self.gateway != Some(address) && self.in_segment(address)
    }

    /// How many addresses may be given out, exactly.
    pub fn size(&self) -> u128 {
        let lengths = self.segments.iter().map(|&(first, last)| {
            cidr::distance(first, last).map_or(0, |steps| steps.saturating_add(1))
        });
        let gateways = self.gateway.is_some_and(|gateway| self.in_segment(gateway));
        lengths.fold(0, u128::saturating_add) - u128::from(gateways)
    }

    /// Whether some address lies between start and end of both, host-local's rule.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The range with every default written out, as the etcd plugins store it.
    pub fn to_config(&self) -> RangeConfig {
        RangeConfig {
            range_start: Some(self.start.to_string()),
            range_end: Some(self.end.to_string()),
            subnet: Some(self.subnet.to_string()),
            gateway: self.gateway.map(|gateway| gateway.to_string()),
            exclude: self.exclude.iter().map(IpNet::to_string).collect(),
            ..RangeConfig::default()
        }
    }

    fn in_segment(&self, address: IpAddr) -> bool {
        let after = self
            .segments
            .partition_point(|&(first, _)| first <= address);
        after > 0 && address <= self.segments[after - 1].1
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

struct Defaults {
    start: Option<IpAddr>,
    end: IpAddr,
    gateway: Option<IpAddr>,
}

impl Defaults {
    fn of(subnet: IpNet) -> Self {
        let last = subnet.broadcast();
        if is_small(subnet) {
            return Self {
                start: Some(subnet.network()),
                end: last,
                gateway: None,
            };
        }
        let first = cidr::next(subnet.addr());
        Self {
            start: first,
            end: match last {
                IpAddr::V4(_) => cidr::previous(last).unwrap_or(last),
                IpAddr::V6(_) => last,
            },
            gateway: first,
        }
    }
}

/// The members of a range, each with its place for the error.
struct Members<'a> {
    config: &'a RangeConfig,
    path: &'a str,
}

impl Members<'_> {
    fn subnet(&self, rules: RangeRules) -> Result<IpNet> {
        let Some(text) = &self.config.subnet else {
            return Err(self.error("subnet", "missing: expected a CIDR as 10.1.0.0/16"));
        };
        let subnet = cidr::parse_cidr(text).map_err(|error| self.error("subnet", error))?;
        if rules.small == SmallSubnets::Refuse && is_small(subnet) {
            return Err(self.error("subnet", format!("{subnet} is too small to allocate from")));
        }
        if rules.host_bits == HostBits::Refuse && subnet != subnet.trunc() {
            let message = format!("{subnet} has host bits set: write {}", subnet.trunc());
            return Err(self.error("subnet", message));
        }
        Ok(subnet)
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
                let which = if written.is_some() {
                    ""
                } else {
                    "the default "
                };
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
            return Err(self.error(culprit, "no address is left after the subnet's"));
        };
        if start > end {
            let message = format!("the range starts at {start}, after its end {end}");
            return Err(self.error(culprit, message));
        }
        if [start, end].iter().any(|bound| MAPPED.contains(bound)) {
            let message = format!("{start}-{end} starts or ends among IPv4-mapped addresses");
            return Err(self.error(culprit, message));
        }
        Ok((start, end))
    }

    fn exclude(&self, subnet: IpNet) -> Result<Vec<IpNet>> {
        let read = |(index, text): (usize, &String)| {
            let name = format!("exclude[{index}]");
            let hole = parse_hole(text).map_err(|error| self.error(&name, error))?;
            self.same_family(&name, hole.addr(), subnet)?;
            Ok(hole)
        };
        self.config.exclude.iter().enumerate().map(read).collect()
    }

    fn address(&self, name: &str, text: &Option<String>, subnet: IpNet) -> Result<Option<IpAddr>> {
        let Some(text) = present(text) else {
            return Ok(None);
        };
        let address = cidr::parse_address(text).map_err(|error| self.error(name, error))?;
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
        cidr::parse_cidr(text).map(|net| net.trunc())
    } else {
        cidr::parse_address(text).map(IpNet::from)
    }
}

fn cut<'a>(
    start: IpAddr,
    end: IpAddr,
    holes: impl Iterator<Item = &'a IpNet>,
) -> Vec<(IpAddr, IpAddr)> {
    let mut holes: Vec<_> = holes
        .map(|hole| (hole.network(), hole.broadcast()))
        .filter(|&(first, last)| start <= last && first <= end)
        .collect();
    holes.sort_unstable();
    let mut segments = Vec::new();
    let mut from = Some(start);
    for (first, last) in holes {
        let Some(at) = from else { break };
        if let Some(before) = cidr::previous(first)
            && at <= before
        {
            segments.push((at, before));
        }
        if at <= last {
            from = cidr::next(last);
        }
    }
    if let Some(at) = from
        && at <= end
    {
        segments.push((at, end));
    }
    segments
}
