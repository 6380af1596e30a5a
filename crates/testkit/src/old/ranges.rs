//! Range sets as both plugins complete them, and the order in which they try addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::Value;

#[derive(Clone, Debug)]
pub(super) struct RangeSet(Vec<Range>);

#[derive(Clone, Debug)]
struct Range {
    first: IpAddr,
    last: IpAddr,
    /// With the bits of a host where the configuration has them.
    subnet: IpNet,
    gateway: IpAddr,
}

/// Reads `ipam.ranges`.
#[track_caller]
pub(super) fn parse(ranges: &Value) -> Vec<RangeSet> {
    let list = |value: &Value| value.as_array().expect("an array of arrays of ranges").clone();
    let set = |set: &Value| RangeSet(list(set).iter().map(Range::parse).collect());
    list(ranges).iter().map(set).collect()
}

/// The value of the network's key in cni-ipam-etcd.
pub(super) fn document(sets: &[RangeSet]) -> String {
    let join = |texts: Vec<String>| format!("[{}]", texts.join(","));
    let set = |set: &RangeSet| join(set.0.iter().map(Range::document).collect());
    join(sets.iter().map(set).collect())
}

impl Range {
    #[track_caller]
    fn parse(range: &Value) -> Self {
        let subnet: IpNet = range["subnet"].as_str().unwrap().parse().unwrap();
        let address = |key: &str| range[key].as_str().map(|text| text.parse::<IpAddr>().unwrap());
        let second = next(subnet.addr());
        let last = match subnet.broadcast() {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() - 1).into(),
            IpAddr::V6(address) => address.into(),
        };
        Self {
            first: address("rangeStart").unwrap_or(second),
            last: address("rangeEnd").unwrap_or(last),
            subnet,
            gateway: address("gateway").unwrap_or(second),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.subnet.contains(&address) && self.first <= address && address <= self.last
    }

    fn document(&self) -> String {
        let Self { first, last, subnet, gateway } = self;
        format!(
            r#"{{"rangeStart":"{first}","rangeEnd":"{last}","subnet":"{subnet}","gateway":"{gateway}"}}"#
        )
    }
}

impl RangeSet {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }

    /// Whether an address of the set is the gateway of its range.
    pub(super) fn has_gateway(&self, address: IpAddr) -> bool {
        let range = self.0.iter().find(|range| range.contains(address));
        range.is_some_and(|range| range.gateway == address)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.iter().map(|Range { first, last, .. }| format!("{first}-{last}"));
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

/// allocator.RangeIter. It never ends in a full set of several ranges where the search begins after
/// the last address of one: the programs' own fault.
pub(super) struct Walk<'a> {
    set: &'a RangeSet,
    range: usize,
    first_range: usize,
    current: Option<IpAddr>,
    start: Option<IpAddr>,
}

impl<'a> Walk<'a> {
    /// From the address after this one; from the first where it lies in no range.
    pub(super) fn after(set: &'a RangeSet, last: Option<IpAddr>) -> Self {
        let place = last.and_then(|last| set.0.iter().position(|range| range.contains(last)));
        let range = place.unwrap_or(0);
        Self {
            set,
            range,
            first_range: range,
            current: last.filter(|_| place.is_some()),
            start: None,
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = IpAddr;

    fn next(&mut self) -> Option<IpAddr> {
        loop {
            let ranges = &self.set.0;
            let address = match self.current {
                None => ranges[self.range].first,
                Some(address) if address == ranges[self.range].last => {
                    self.range = (self.range + 1) % ranges.len();
                    ranges[self.range].first
                }
                Some(address) => next(address),
            };
            self.current = Some(address);
            match self.start {
                None => self.start = Some(address),
                Some(start) if start == address && self.range == self.first_range => return None,
                Some(_) => {}
            }
            if address != ranges[self.range].gateway {
                return Some(address);
            }
        }
    }
}

fn next(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() + 1).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() + 1).into(),
    }
}
