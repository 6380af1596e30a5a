//! What holds for every range, whatever its subnet, bounds and excludes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_kit::cni::address;
use ipam_kit::pool::{Range, RangeConfig, RangeRules, RangeSet};
use ipnet::IpNet;
use proptest::prelude::*;

fn address(ipv4: bool, bits: u128) -> IpAddr {
    if ipv4 {
        Ipv4Addr::from_bits((bits >> 96) as u32).into()
    } else {
        Ipv6Addr::from_bits(bits).into()
    }
}

/// The address of the net whose host bits are those of `bits`.
fn inside(net: IpNet, bits: u128) -> IpAddr {
    let host = 128 - u32::from(net.max_prefix_len() - net.prefix_len());
    let offset = bits.checked_shr(host).unwrap_or(0);
    address::offset(net.network(), offset).expect("host bits do not overflow")
}

fn net(address: IpAddr, prefix: u8) -> IpNet {
    IpNet::new(address, prefix).expect("the prefix fits")
}

/// Any net with at least `spare` host bits, small ones more often.
fn subnet(ipv4: bool, spare: u8) -> impl Strategy<Value = IpNet> {
    let longest = if ipv4 { 32 } else { 128 } - spare;
    let prefix = prop_oneof![0..=longest, longest - 7..=longest];
    (any::<u128>(), prefix).prop_map(move |(bits, prefix)| net(address(ipv4, bits), prefix))
}

fn excludes(subnet: IpNet) -> impl Strategy<Value = Vec<String>> {
    let longest = subnet.max_prefix_len();
    let near = (any::<u128>(), subnet.prefix_len()..=longest)
        .prop_map(move |(bits, prefix)| net(inside(subnet, bits), prefix).to_string());
    let bare = any::<u128>().prop_map(move |bits| inside(subnet, bits).to_string());
    let far = any::<u128>()
        .prop_map(move |bits| net(address(longest == 32, bits), longest / 2).to_string());
    prop::collection::vec(prop_oneof![4 => near, 2 => bare, 1 => far], 0..6)
}

/// A valid range of a random subnet that has at least `spare` host bits, set if `host_bits`.
fn config(spare: u8, host_bits: bool) -> impl Strategy<Value = RangeConfig> {
    any::<bool>()
        .prop_flat_map(move |ipv4| subnet(ipv4, spare))
        .prop_flat_map(|subnet| {
            let point = move || any::<u128>().prop_map(move |bits| inside(subnet, bits));
            let bounds = (point(), point(), any::<[bool; 3]>());
            (Just(subnet), bounds, prop::option::of(point()), excludes(subnet))
        })
        .prop_map(move |(subnet, (a, b, [with_start, with_end, with_rules]), gateway, exclude)| {
            let subnet = if host_bits { subnet } else { subnet.trunc() };
            let (start, end) = (a.min(b), a.max(b));
            let start = (with_start || end == subnet.network()).then_some(start);
            let end = (with_end || start == Some(subnet.broadcast())).then_some(end);
            RangeConfig {
                range_start: start.map(|start| start.to_string()),
                range_end: end.map(|end| end.to_string()),
                subnet: Some(subnet.to_string()),
                gateway: gateway.map(|gateway| gateway.to_string()),
                exclude,
                rules: with_rules.then(|| RangeConfig::WHEREABOUTS.to_owned()),
                ..RangeConfig::default()
            }
        })
}

/// A config with points in and around the range to look at.
fn config_and_points(spare: u8) -> impl Strategy<Value = (RangeConfig, Vec<u128>)> {
    (config(spare, false), prop::collection::vec(any::<u128>(), 8))
}

fn points(range: &Range, bits: &[u128]) -> Vec<IpAddr> {
    let ends = range.exclude().iter().flat_map(|hole| [hole.network(), hole.broadcast()]);
    let known = ends.chain([range.start(), range.end()]).chain(range.gateway());
    let around = known
        .flat_map(|point| [address::previous(point), Some(point), address::next(point)])
        .flatten();
    let random = bits.iter().map(|&bits| inside(range.subnet(), bits));
    around.chain(random).flat_map(|point| [point, ending_in_zero(point)]).collect()
}

/// The first address of the /24 that the address lies in; of IPv6, the address.
fn ending_in_zero(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & !0xff).into(),
        IpAddr::V6(_) => address,
    }
}

fn in_segments(range: &Range, address: IpAddr) -> bool {
    range.segments().iter().any(|&(first, last)| first <= address && address <= last)
}

proptest! {
    #[test]
    fn a_parsed_range_lies_in_its_subnet((config, bits) in config_and_points(0)) {
        let range = Range::parse(&config, RangeRules::OURS, "r").unwrap();
        prop_assert!(range.start() <= range.end());
        prop_assert!(range.subnet().contains(&range.start()));
        prop_assert!(range.subnet().contains(&range.end()));
        let mut before = None;
        for &(first, last) in range.segments() {
            prop_assert!(range.spans(first) && range.spans(last) && first <= last);
            prop_assert!(before.and_then(address::next).is_none_or(|adjacent| adjacent < first));
            before = Some(last);
        }
        for point in points(&range, &bits) {
            let excluded = range.exclude().iter().any(|hole| hole.contains(&point))
                || point.to_canonical() != point;
            let free = range.spans(point) && !excluded;
            prop_assert_eq!(in_segments(&range, point), free, "{}", point);
            let skips_zero = config.rules.is_some() && point.is_ipv4();
            let given = free && !(skips_zero && point == ending_in_zero(point));
            prop_assert_eq!(range.usable(point), given && range.gateway() != Some(point));
        }
    }

    #[test]
    fn size_counts_what_is_usable(config in config(0, false)) {
        let range = Range::parse(&config, RangeRules::OURS, "r").unwrap();
        let length = address::distance(range.start(), range.end()).unwrap();
        prop_assert!(range.size() <= length.saturating_add(1));
        if length < 1 << 10 {
            let count = (0..=length)
                .filter_map(|by| address::offset(range.start(), by))
                .filter(|&address| range.usable(address))
                .count();
            prop_assert_eq!(range.size(), count as u128);
        }
    }

    #[test]
    fn the_canonical_config_reads_as_the_same_range(
        ours in config(0, false),
        etcd in config(2, true),
    ) {
        let range = Range::parse(&ours, RangeRules::OURS, "r").unwrap();
        let again = Range::parse(&range.to_config(), RangeRules::OURS, "r").unwrap();
        prop_assert_eq!(again, range);
        if let Ok(range) = Range::parse(&etcd, RangeRules::ETCD, "r") {
            let again = Range::parse(&range.to_config(), RangeRules::ETCD, "r").unwrap();
            prop_assert_eq!(again, range);
        }
    }

    #[test]
    fn host_local_gives_out_the_same_without_excludes(
        (first, bits) in config_and_points(2),
        second in config(2, false),
    ) {
        // host-local gives what ends in .0.
        let [first, second] = [first, second].map(|range| RangeConfig { rules: None, ..range });
        let both = RangeSet::parse(&[first.clone(), second], RangeRules::HOST_LOCAL, "s");
        let set = match both.or_else(|_| RangeSet::parse(&[first], RangeRules::HOST_LOCAL, "s")) {
            Ok(set) => set,
            Err(error) => {
                prop_assert!(error.to_string().ends_with("is excluded"), "{}", error);
                return Ok(());
            }
        };
        let plain = set.without_excludes();
        prop_assert!(plain.iter().all(|range| range.exclude.is_empty() && range.gateway.is_some()));
        let again = RangeSet::parse(&plain, RangeRules::HOST_LOCAL, "s").unwrap();
        prop_assert_eq!(again.size(), set.size());
        let usable = |set: &RangeSet, point| set.find(point).is_some_and(|range| range.usable(point));
        for point in set.ranges().iter().flat_map(|range| points(range, &bits)) {
            prop_assert_eq!(usable(&set, point), usable(&again, point), "{}", point);
        }
    }

    #[test]
    fn overlap_is_a_common_address(ends in prop::array::uniform4(any::<u8>())) {
        let range = |a: u8, b: u8| {
            let config = RangeConfig {
                subnet: Some("10.0.0.0/24".into()),
                range_start: Some(format!("10.0.0.{}", a.min(b))),
                range_end: Some(format!("10.0.0.{}", a.max(b))),
                ..RangeConfig::default()
            };
            RangeSet::parse(&[config], RangeRules::HOST_LOCAL, "s").unwrap()
        };
        let (one, other) = (range(ends[0], ends[1]), range(ends[2], ends[3]));
        let common = (0..=255).map(|last| Ipv4Addr::new(10, 0, 0, last).into())
            .any(|address| one.find(address).is_some() && other.find(address).is_some());
        prop_assert_eq!(one.overlaps(&other), common);
        prop_assert_eq!(other.overlaps(&one), common);
    }

    #[test]
    fn texts_are_read_as_std_and_ipnet_do_or_refused(text in "[0-9a-f:./+]{0,20}|\\PC{0,20}") {
        if let Ok(address) = address::parse_address(&text) {
            prop_assert_eq!(text.parse::<IpAddr>().unwrap().to_canonical(), address);
        }
        if let Ok(net) = address::parse_cidr(&text) {
            prop_assert_eq!(text.parse::<IpNet>().unwrap(), net);
        }
    }

    #[test]
    fn a_printed_cidr_is_read_again(v4 in subnet(true, 0), v6 in subnet(false, 0)) {
        for net in [v4, v6] {
            prop_assert_eq!(address::parse_cidr(&net.to_string()).unwrap(), net);
            let pair = (net.addr(), Some(net.prefix_len()));
            prop_assert_eq!(address::parse_address_or_cidr(&net.to_string()).unwrap(), pair);
        }
    }
}
