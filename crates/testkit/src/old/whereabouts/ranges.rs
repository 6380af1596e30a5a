//! Which address a program chooses: `pkg/config/config.go`, `pkg/allocate/allocate.go` and
//! `pkg/iphelpers/iphelpers.go` of each release.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::Value;

use crate::whereabouts::Release;

/// A range of the configuration.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) net: IpNet,
    start: IpAddr,
    end: Option<IpAddr>,
    exclude: Vec<String>,
}

/// An address that was chosen.
pub(super) struct Chosen {
    pub(super) address: IpAddr,
    /// Whether the program has it in four bytes, which the fork takes for another family than the
    /// pool's.
    pub(super) is_short: bool,
}

impl Range {
    /// `range`, `range_start`, `range_end` and `exclude` of a section `ipam`, or of an element of
    /// `ipRanges`.
    #[track_caller]
    pub(super) fn parse(value: &Value) -> Self {
        let address = |key: &str| value[key].as_str().map(|text| text.parse().unwrap());
        let range = value["range"].as_str().unwrap();
        let exclude = value["exclude"].as_array().into_iter().flatten();
        let exclude = exclude.map(|text| text.as_str().unwrap().to_owned()).collect();
        let (net, start, end): (IpNet, Option<IpAddr>, Option<IpAddr>) = match range.split_once('-')
        {
            Some((start, last)) => {
                let last: IpNet = last.parse().unwrap();
                (last, Some(start.parse().unwrap()), Some(last.addr()))
            }
            None => (range.parse().unwrap(), address("range_start"), address("range_end")),
        };
        Self { net: net.trunc(), start: start.unwrap_or(net.network()), end, exclude }
    }

    /// The lowest address that is not reserved, or what the program says.
    pub(super) fn choose(
        &self,
        release: Release,
        reserved: &BTreeSet<IpAddr>,
    ) -> Result<Chosen, String> {
        match release {
            Release::V04 | Release::V054 | Release::Fork => self.choose_early(release, reserved),
            Release::V07 | Release::V094 => self.choose_late(reserved),
        }
    }

    /// Up to v0.5.4. With an end, the range may leave its subnet.
    fn choose_early(
        &self,
        release: Release,
        reserved: &BTreeSet<IpAddr>,
    ) -> Result<Chosen, String> {
        let start = bits(self.start);
        let [first, last] = match self.end {
            Some(end) => [start, bits(end)],
            None => {
                let length = self.net.max_prefix_len() - self.net.prefix_len();
                if length < 2 {
                    return Err(format!("net mask is too short, must be 2 or more: {length}"));
                }
                let hosts = bits(self.net.hostmask());
                let is_network = start == bits(self.net.network());
                let broadcast = u128::from(self.net.addr().is_ipv4());
                [start + u128::from(is_network), (start | hosts) - broadcast]
            }
        };
        let excluded: Vec<IpNet> = self.exclude.iter().map(|text| text.parse().unwrap()).collect();
        let mut next = first;
        while next != last.wrapping_add(1) {
            let address = self.address(next);
            let is_excluded = excluded.iter().any(|net| net.contains(&address));
            if !reserved.contains(&address) && !is_excluded {
                // Only what was computed from the mask is in four bytes, and later addresses are
                // computed from the first in sixteen.
                let computed = self.end.is_none() && self.net.addr().is_ipv4();
                let is_short = release == Release::Fork && computed && next == first;
                return Ok(Chosen { address, is_short });
            }
            next = next.wrapping_add(1);
        }
        let [first, last] = [first, last].map(|bits| self.address(bits));
        let net = self.net;
        Err(format!("Could not allocate IP in range: ip: {first} / - {last} / range: {net}"))
    }

    /// From v0.6 on: network and broadcast are never chosen, in IPv6 neither.
    fn choose_late(&self, reserved: &BTreeSet<IpAddr>) -> Result<Chosen, String> {
        let net = self.net;
        if net.max_prefix_len() - net.prefix_len() < 2 {
            let subnet = format!("{{{} {}}}", net.network(), hexadecimal(net.netmask()));
            return Err(format!(
                "net mask is too short, subnet {subnet} has no usable IP addresses, it is too small"
            ));
        }
        let (mut first, mut last) = (bits(net.network()) + 1, bits(net.broadcast()) - 1);
        let within = |address: IpAddr, first: u128, last: u128| {
            let same = address.is_ipv4() == net.addr().is_ipv4();
            (same && (first..=last).contains(&bits(address))).then(|| bits(address))
        };
        first = within(self.start, first, last).unwrap_or(first);
        last = self.end.and_then(|end| within(end, first, last)).unwrap_or(last);
        let parse = |text: &String| {
            let parsed = text.parse::<IpNet>().ok();
            let parsed = parsed.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
            parsed.ok_or_else(|| {
                format!("could not parse exclude range, err: \"invalid CIDR address: {text}\"")
            })
        };
        let excluded = self.exclude.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let mut next = first;
        while next <= last {
            let address = self.address(next);
            if reserved.contains(&address) {
                next += 1;
            } else if let Some(net) = excluded.iter().find(|net| net.contains(&address)) {
                next = bits(net.broadcast()) + 1;
            } else {
                return Ok(Chosen { address, is_short: false });
            }
        }
        let [first, last] = [first, last].map(|bits| self.address(bits));
        let excluded = self.exclude.join(" ");
        Err(format!(
            "Could not allocate IP in range: ip: {first} / - {last} / range: {net} / \
             excludeRanges: [{excluded}]"
        ))
    }

    fn address(&self, bits: u128) -> IpAddr {
        match self.net {
            IpNet::V4(_) => Ipv4Addr::from_bits(u32::try_from(bits).unwrap()).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(bits).into(),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn hexadecimal(mask: IpAddr) -> String {
    match mask {
        IpAddr::V4(mask) => format!("{:08x}", mask.to_bits()),
        IpAddr::V6(mask) => format!("{:032x}", mask.to_bits()),
    }
}
