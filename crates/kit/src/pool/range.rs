//! One range of addresses, read: what lies in it and what of it may be given out.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Map;

use super::bounds::{Bounds, IPV4_MAPPED};
use super::{RangeConfig, RangeRules};
use crate::cni::address;
use crate::error::Result;

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
    rules: Option<&'static str>,
    segments: Vec<(IpAddr, IpAddr)>,
}

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
        let Bounds { subnet, start, end, gateway, exclude, rules } =
            Bounds::read(config, rules, path)?;
        let holes = exclude.iter().chain([&IPV4_MAPPED]);
        let holes = holes.map(|hole| (hole.network(), hole.broadcast())).collect();
        let segments = cut(start, end, holes);
        Ok(Self { subnet, start, end, gateway, exclude, rules, segments })
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

    /// The excluded subnets, without host bits; they may lie outside of the range.
    pub fn exclude(&self) -> &[IpNet] {
        &self.exclude
    }

    /// Start to end without what is excluded or another range's, in order and never adjacent.
    ///
    /// Neither the gateway nor what [`Range::skips`] is cut out. IPv4-mapped addresses are: Go
    /// would print them as IPv4.
    pub fn segments(&self) -> &[(IpAddr, IpAddr)] {
        &self.segments
    }

    /// Whether the address lies between start and end.
    pub fn spans(&self, address: IpAddr) -> bool {
        self.start <= address && address <= self.end
    }

    /// Whether the rules of the range forbid to give the address out: by
    /// [`RangeConfig::WHEREABOUTS`] an IPv4 address that ends in .0.
    pub fn skips(&self, address: IpAddr) -> bool {
        RangeConfig::forbids(self.rules, address)
    }

    /// Whether the address may be given out or is the gateway: inside, and neither excluded nor
    /// skipped.
    pub(super) fn offers(&self, address: IpAddr) -> bool {
        let after = self.segments.partition_point(|&(first, _)| first <= address);
        after > 0 && address <= self.segments[after - 1].1 && !self.skips(address)
    }

    /// Whether the address may be given out: inside, neither excluded nor skipped, and not the
    /// gateway.
    pub fn usable(&self, address: IpAddr) -> bool {
        self.gateway != Some(address) && self.offers(address)
    }

    /// How many addresses may be given out, exactly.
    pub fn size(&self) -> u128 {
        let sizes = self.segments.iter().map(|&(first, last)| self.size_between(first, last));
        sizes.fold(0, u128::saturating_add)
    }

    /// How many addresses of a part of a segment may be given out, exactly.
    pub fn size_between(&self, first: IpAddr, last: IpAddr) -> u128 {
        let length = address::distance(first, last).map_or(0, |steps| steps.saturating_add(1));
        let skipped = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) if self.rules.is_some() => {
                let [first, last] = [first, last].map(|it| u64::from(it.to_bits()));
                last / 256 + 1 - first.div_ceil(256)
            }
            _ => 0,
        };
        let gateway = self
            .gateway
            .is_some_and(|gateway| first <= gateway && gateway <= last && !self.skips(gateway));
        length - u128::from(skipped) - u128::from(gateway)
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
            rules: self.rules.map(str::to_owned),
            unknown: Map::new(),
        }
    }

    /// The range without some stretches of addresses, which it still spans.
    pub(super) fn without(self, holes: &[(IpAddr, IpAddr)]) -> Self {
        if holes.is_empty() {
            return self;
        }
        let segments = self.segments.iter();
        let segments = segments.flat_map(|(first, last)| cut(*first, *last, holes.to_vec()));
        Self { segments: segments.collect(), ..self }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

fn cut(start: IpAddr, end: IpAddr, mut holes: Vec<(IpAddr, IpAddr)>) -> Vec<(IpAddr, IpAddr)> {
    holes.retain(|&(first, last)| start <= last && first <= end);
    holes.sort_unstable();
    let mut segments = Vec::new();
    let mut from = Some(start);
    for (first, last) in holes {
        let Some(at) = from else { break };
        if let Some(before) = address::previous(first)
            && at <= before
        {
            segments.push((at, before));
        }
        if at <= last {
            from = address::next(last);
        }
    }
    if let Some(at) = from
        && at <= end
    {
        segments.push((at, end));
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(json: serde_json::Value) -> Range {
        let config = serde_json::from_value(json).unwrap();
        Range::parse(&config, RangeRules::OURS, "r").unwrap()
    }

    fn address(text: &str) -> IpAddr {
        address::parse_address(text).unwrap()
    }

    fn segments(range: &Range) -> Vec<String> {
        let print = |(first, last): &(IpAddr, IpAddr)| format!("{first}-{last}");
        range.segments().iter().map(print).collect()
    }

    #[test]
    fn excludes_are_cut_out_and_merged() {
        let range = range(serde_json::json!({
            "subnet": "10.0.0.0/24",
            "exclude": ["10.0.0.64/27", "10.0.0.4", "10.0.0.3/31", "10.0.0.70", "10.0.0.254",
                "10.0.0.5", "192.168.0.0/16"],
        }));
        assert_eq!(
            segments(&range),
            ["10.0.0.1-10.0.0.1", "10.0.0.6-10.0.0.63", "10.0.0.96-10.0.0.253"]
        );
        assert_eq!(range.size(), 58 + 158);
        for (text, spanned, usable) in [
            ("10.0.0.0", false, false),
            ("10.0.0.1", true, false),
            ("10.0.0.2", true, false),
            ("10.0.0.6", true, true),
            ("10.0.0.95", true, false),
            ("10.0.0.96", true, true),
            ("10.0.0.255", false, false),
            ("::a00:60", false, false),
        ] {
            assert_eq!(range.spans(address(text)), spanned, "{text}");
            assert_eq!(range.usable(address(text)), usable, "{text}");
        }
    }

    #[test]
    fn whole_families_do_not_overflow() {
        let all = range(serde_json::json!({"subnet": "::/0", "rangeStart": "::"}));
        assert_eq!(
            segments(&all),
            ["::-::fffe:ffff:ffff", "::1:0:0:0-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]
        );
        assert_eq!(all.size(), u128::MAX - (1 << 32));
        let all = range(serde_json::json!({"subnet": "::/0", "exclude": ["::/0"]}));
        assert_eq!((all.segments().len(), all.size()), (0, 0));
        let all = range(serde_json::json!({"subnet": "0.0.0.0/0", "rangeEnd": "255.255.255.255"}));
        assert_eq!(all.size(), (1 << 32) - 2);
        let all = range(serde_json::json!({"subnet": "0.0.0.0/0", "rules": "whereabouts"}));
        assert_eq!(all.size(), (255 << 24) - 1);
        assert_eq!(all.segments().len(), 1);
    }
}
