//! Sets of ranges of a system that refuses none: bounds that only filter, and each address once.

use std::net::IpAddr;

use super::{Range, RangeConfig};
use crate::cni::address;
use crate::error::Error;

/// A range whose bounds only filter the addresses of its subnet.
pub(super) enum Clipped {
    /// The bounds lie in the subnet, or cannot be read.
    Unchanged,
    /// A bound outside of the subnet filters nothing, and is left out; each with its place.
    Smaller(RangeConfig, Vec<String>),
    /// The bounds leave no address.
    Empty(Error),
}

/// Applies the bounds of a range to its subnet; `path` is its place. An address of IPv6 is above
/// all of IPv4.
pub(super) fn clip(config: &RangeConfig, path: &str) -> Clipped {
    let Some(subnet) = config.subnet.as_deref().and_then(|text| address::parse_cidr(text).ok())
    else {
        return Clipped::Unchanged;
    };
    let (network, broadcast) = (subnet.network(), subnet.broadcast());
    let read = |text: &Option<String>| address::parse_address(text.as_deref()?).ok();
    let (start, end) = (read(&config.range_start), read(&config.range_end));
    let outside = |key: &str, bound: IpAddr| {
        Error::config(format_args!("{path}.{key}"), format!("{bound} is not in {subnet}"))
    };
    match (start, end) {
        (Some(start), _) if start > broadcast => {
            return Clipped::Empty(outside("rangeStart", start));
        }
        (_, Some(end)) if end < network => return Clipped::Empty(outside("rangeEnd", end)),
        (Some(start), Some(end)) if start > end => {
            let message = format!("the range starts at {start}, after its end {end}");
            return Clipped::Empty(Error::config(format_args!("{path}.rangeStart"), message));
        }
        _ => {}
    }
    let mut config = config.clone();
    let mut remarks = Vec::new();
    if let Some(start) = start.filter(|start| *start < network) {
        config.range_start = None;
        remarks.push(format!("{}: it is ignored", outside("rangeStart", start)));
    }
    if let Some(end) = end.filter(|end| *end > broadcast) {
        config.range_end = None;
        remarks.push(format!("{}: it is ignored", outside("rangeEnd", end)));
    }
    // The network and the broadcast address are given out where a bound names them.
    match (start, end) {
        (Some(start), None) if start == broadcast => config.range_end = Some(start.to_string()),
        (None, Some(end)) if end == network => config.range_start = Some(end.to_string()),
        _ if remarks.is_empty() => return Clipped::Unchanged,
        _ => {}
    }
    Clipped::Smaller(config, remarks)
}

/// The same ranges: each without what an earlier one spans, and without the gateways of others.
pub(super) fn each_address_once(ranges: Vec<Range>) -> Vec<Range> {
    let gateways: Vec<IpAddr> = ranges.iter().filter_map(Range::gateway).collect();
    let mut spanned = Vec::new();
    let apart = |range: Range| {
        let others = gateways.iter().filter(|gateway| range.gateway() != Some(**gateway));
        let holes = spanned.iter().copied().chain(others.map(|g| (*g, *g)));
        let inside =
            |(first, last): &(IpAddr, IpAddr)| *first <= range.end() && range.start() <= *last;
        let holes: Vec<_> = holes.filter(inside).collect();
        spanned.push((range.start(), range.end()));
        range.without(&holes)
    };
    ranges.into_iter().map(apart).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::error::Result;
    use crate::pool::{RangeRules, RangeSet};

    fn set(ranges: Value) -> Result<RangeSet> {
        let ranges: Vec<_> = serde_json::from_value(ranges).unwrap();
        RangeSet::parse(&ranges, RangeRules::CONSUL, "p")
    }

    /// What may be given out, in order.
    fn segments(set: &RangeSet) -> Vec<String> {
        let all = set.ranges().iter().flat_map(|range| range.segments());
        all.map(|(first, last)| format!("{first}-{last}")).collect()
    }

    #[test]
    fn the_first_range_that_spans_an_address_gives_it() {
        let set = set(json!([
            {"subnet": "10.0.20.0/24", "gateway": "10.0.20.1", "exclude": ["10.0.20.9"]},
            {"subnet": "fd00::/126"},
            {"subnet": "10.0.0.0/16", "gateway": "10.0.0.1"},
            {"subnet": "10.0.20.0/24", "gateway": "10.0.20.1"},
        ]))
        .unwrap();
        assert_eq!(
            segments(&set),
            [
                "10.0.20.1-10.0.20.8",
                "10.0.20.10-10.0.20.254",
                "fd00::1-fd00::3",
                "10.0.0.1-10.0.20.0",
                "10.0.20.255-10.0.255.254",
            ]
        );
        assert_eq!(set.size(), 252 + 3 + (65534 - 254 - 1));
        for (address, refusal) in [
            ("10.0.20.8", None),
            ("10.0.20.1", Some("the gateway of 10.0.20.1-10.0.20.254")),
            ("10.0.20.9", Some("excluded from 10.0.20.1-10.0.20.254 by 10.0.20.9/32")),
            ("10.0.20.255", None),
            ("fd00::2", None),
        ] {
            let refused = set.refusal(address.parse().unwrap());
            assert_eq!(refused.as_deref(), refusal, "{address}");
        }
        assert_eq!(
            set.remarks(),
            [
                "p: mixed address families: an ADD takes one address, from the first range that has one free",
                "p: 10.0.20.1-10.0.20.254 and 10.0.0.1-10.0.255.254 overlap: each address is given once",
                "p: 10.0.0.1-10.0.255.254 and 10.0.20.1-10.0.20.254 overlap: each address is given once",
            ]
        );
    }

    #[test]
    fn the_gateway_of_a_range_is_given_by_no_other() {
        let set = set(json!([
            {"subnet": "10.0.0.0/29", "rangeEnd": "10.0.0.3", "gateway": "10.0.0.5"},
            {"subnet": "10.0.0.0/29", "rangeStart": "10.0.0.4", "gateway": "10.0.0.2"},
        ]))
        .unwrap();
        assert_eq!(
            segments(&set),
            ["10.0.0.1-10.0.0.1", "10.0.0.3-10.0.0.3", "10.0.0.4-10.0.0.4", "10.0.0.6-10.0.0.6"]
        );
        assert_eq!((set.size(), set.remarks().len()), (4, 0));
        let refused = set.refusal("10.0.0.2".parse().unwrap()).unwrap();
        assert_eq!(refused, "the gateway of 10.0.0.4-10.0.0.6");
    }

    #[test]
    fn bounds_outside_of_the_subnet_only_filter() {
        let subnet = "10.1.0.0/30";
        for (start, end, given) in [
            ("10.0.0.9", "", &["10.1.0.1-10.1.0.2"][..]),
            ("", "10.9.0.0", &["10.1.0.1-10.1.0.2"]),
            ("", "fd00::1", &["10.1.0.1-10.1.0.2"]),
            ("10.0.0.9", "10.1.0.1", &["10.1.0.1-10.1.0.1"]),
            ("10.1.0.3", "", &["10.1.0.3-10.1.0.3"]),
            ("", "10.1.0.0", &["10.1.0.0-10.1.0.0"]),
            ("10.1.0.4", "", &[]),
            ("fd00::1", "", &[]),
            ("", "10.0.9.9", &[]),
            ("10.1.0.2", "10.1.0.1", &[]),
        ] {
            let range = json!({"subnet": subnet, "rangeStart": start, "rangeEnd": end});
            let other = json!({"subnet": "10.2.0.0/32"});
            let set = set(json!([range, other])).unwrap();
            let expected: Vec<_> = given.iter().copied().chain(["10.2.0.0-10.2.0.0"]).collect();
            assert_eq!(segments(&set), expected, "{start}-{end}");
            let named = ["10.1.0.3", "10.1.0.0"].iter().any(|named| [start, end].contains(named));
            assert_eq!(set.remarks().is_empty(), named, "{start}-{end}: {:?}", set.remarks());
        }
        let error = set(json!([{"subnet": subnet, "rangeStart": "fd00::1"}])).unwrap_err();
        assert_eq!(error.to_string(), "p[0].rangeStart: fd00::1 is not in 10.1.0.0/30");
        let six = set(json!([{"subnet": "fd00::/127", "rangeStart": "10.0.0.1"}])).unwrap();
        assert_eq!(segments(&six), ["fd00::-fd00::1"]);
    }

    #[test]
    fn a_requested_address_is_of_the_last_range_that_spans_it() {
        let set = set(json!([{"subnet": "10.0.20.0/24"}, {"subnet": "10.0.0.0/16"}])).unwrap();
        let address = "10.0.20.9".parse().unwrap();
        let prefix = |range: Option<&crate::pool::Range>| range.unwrap().subnet().prefix_len();
        assert_eq!((prefix(set.find(address)), prefix(set.find_last(address))), (24, 16));
    }
}
