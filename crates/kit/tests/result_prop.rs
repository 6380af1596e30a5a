//! What holds for every result in every version: what the form has a place for survives, nothing
//! is invented, and what has no place is an error where an address would be lost.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_kit::cni::{Dns, IpConfig, IpamResult, Route, Version};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn ip(ipv4: bool) -> BoxedStrategy<IpAddr> {
    if ipv4 {
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()).boxed()
    } else {
        // IPv4-mapped addresses are written as IPv4, in all of CNI.
        any::<u128>()
            .prop_map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits)))
            .prop_filter("mapped", |address| address.to_canonical() == *address)
            .boxed()
    }
}

fn net(ipv4: bool) -> impl Strategy<Value = IpNet> {
    let longest: u8 = if ipv4 { 32 } else { 128 };
    (ip(ipv4), 0..=longest).prop_map(|(address, prefix)| IpNet::new(address, prefix).unwrap())
}

fn members(of: &'static [&'static str]) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(prop::sample::select(of), 0..2000_u32, 0..3)
        .prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), json!(v))).collect())
}

fn ip_config() -> impl Strategy<Value = IpConfig> {
    any::<bool>().prop_flat_map(|ipv4| {
        (net(ipv4), prop::option::of(ip(ipv4)), members(&["interface", "x"]))
            .prop_map(|(address, gateway, extra)| IpConfig { address, gateway, extra })
    })
}

fn route() -> impl Strategy<Value = Route> {
    let known = &["mtu", "advmss", "priority", "table", "scope"];
    any::<bool>().prop_flat_map(move |ipv4| {
        (net(ipv4), prop::option::of(ip(ipv4)), members(known)).prop_map(|(dst, gw, extra)| Route {
            dst,
            gw,
            extra,
        })
    })
}

fn dns() -> impl Strategy<Value = Dns> {
    let texts = || prop::collection::vec("[a-z0-9.]{1,12}", 0..3);
    prop_oneof![
        Just(Dns::default()),
        (texts(), texts()).prop_map(|(nameservers, search)| {
            let dns = json!({"nameservers": nameservers, "search": search});
            Dns(dns.as_object().unwrap().clone())
        })
    ]
}

fn result() -> impl Strategy<Value = IpamResult> {
    (
        prop::collection::vec(ip_config(), 0..4),
        prop::collection::vec(route(), 0..5),
        dns(),
        members(&["pools", "leases", "y"]),
    )
        .prop_map(|(ips, routes, dns, extra)| IpamResult { ips, routes, dns, extra })
}

fn is_v4(net: IpNet) -> bool {
    net.addr().is_ipv4()
}

/// What an older form leaves of a result.
fn as_in(version: Version, result: &IpamResult) -> IpamResult {
    let mut result = result.clone();
    if version.has_single_addresses() {
        for ip in &mut result.ips {
            ip.extra.clear();
        }
        let has = |route: &Route| result.ips.iter().any(|ip| is_v4(ip.address) == is_v4(route.dst));
        for route in &mut result.routes {
            if has(route) {
                route.extra.clear();
            }
        }
        // The form has no order between families.
        result.ips.sort_by_key(|ip| !is_v4(ip.address));
        let routes = std::mem::take(&mut result.routes);
        let placed = |v4: bool| {
            let ips = &result.ips;
            let here = move |route: &&Route| {
                is_v4(route.dst) == v4 && ips.iter().any(|ip| is_v4(ip.address) == v4)
            };
            routes.iter().filter(here).cloned().collect::<Vec<_>>()
        };
        let homeless =
            |route: &&Route| !result.ips.iter().any(|ip| is_v4(ip.address) == is_v4(route.dst));
        // They are kept for a delegate that is still to come.
        let pools = result.extra.get("pools").and_then(Value::as_array);
        let is_last = !result.ips.is_empty() && pools.is_none_or(Vec::is_empty);
        let homeless: Vec<Route> =
            routes.iter().filter(homeless).filter(|_| !is_last).cloned().collect();
        result.routes = [placed(true), placed(false), homeless].concat();
    }
    result
}

fn fits(version: Version, result: &IpamResult) -> bool {
    let count = |v4| result.ips.iter().filter(|ip| is_v4(ip.address) == v4).count();
    !version.has_single_addresses() || (count(true) <= 1 && count(false) <= 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_has_a_place_survives(result in result()) {
        for version in Version::ALL {
            let Ok(written) = result.to_json(version) else {
                prop_assert!(!fits(version, &result));
                continue;
            };
            prop_assert!(fits(version, &result), "an address was dropped: {written}");
            let read = IpamResult::parse(&written, "r").unwrap();
            prop_assert_eq!(&read, &as_in(version, &result), "{}", version);
        }
    }

    #[test]
    fn a_refusal_names_the_address_and_the_version(result in result()) {
        for version in Version::ALL.into_iter().filter(|v| !fits(*v, &result)) {
            let error = result.to_json(version).unwrap_err();
            prop_assert_eq!(error.code().number(), 1);
            prop_assert!(error.to_string().contains(version.as_str()));
            let named = result.ips.iter().any(|ip| error.to_string().contains(&ip.address.to_string()));
            prop_assert!(named, "{}", error);
        }
    }

    #[test]
    fn every_pair_of_versions_agrees(result in result()) {
        for from in Version::ALL.into_iter().filter(|v| fits(*v, &result)) {
            let read = IpamResult::parse(&result.to_json(from).unwrap(), "r").unwrap();
            for to in Version::ALL {
                // By way of the other form, no more is lost than that form loses.
                let direct = as_in(from, &result).to_json(to);
                prop_assert_eq!(read.to_json(to).ok(), direct.ok(), "{} to {}", from, to);
            }
        }
    }

    #[test]
    fn nothing_is_invented(result in result()) {
        for version in Version::ALL.into_iter().filter(|v| fits(*v, &result)) {
            let written = result.to_json(version).unwrap();
            let object = written.as_object().unwrap();
            let own: &[&str] = if version.has_single_addresses() {
                &["cniVersion", "ip4", "ip6", "dns", "routes"]
            } else {
                &["cniVersion", "ips", "dns", "routes"]
            };
            for key in object.keys() {
                prop_assert!(own.contains(&key.as_str()) || result.extra.contains_key(key), "{}", key);
            }
            prop_assert_eq!(object.contains_key("dns"), version < Version::V1_0_0 || !result.dns.0.is_empty());
            for (i, ip) in object.get("ips").and_then(Value::as_array).iter().flat_map(|v| v.iter()).enumerate() {
                let family = if is_v4(result.ips[i].address) { "4" } else { "6" };
                let expected = (version < Version::V1_0_0).then_some(family);
                prop_assert_eq!(ip.get("version").and_then(Value::as_str), expected);
                prop_assert_eq!(ip.get("gateway").is_some(), result.ips[i].gateway.is_some());
            }
            let empty_routes = object.get("routes").is_some_and(|routes| routes == &json!([]));
            prop_assert!(!empty_routes);
        }
    }
}
