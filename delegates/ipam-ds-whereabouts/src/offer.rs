//! The offer for a pod: pools, static addresses, routes and name resolution.

use std::net::IpAddr;

use ipam_kit::cni::{Dns, IpConfig, Route, Verb};
use ipam_kit::keys::nearest;
use ipam_kit::{Error, Request, Result, Selection};
use ipnet::IpNet;
use log::warn;
use serde_json::{Map, Value};

use crate::config::{AddressKeys, DnsKeys, PoolKeys, RangeKeys};
use crate::merged_keys::MergedKeys;
use crate::pools::pools;
use crate::range::{RangeText, UsableRange, read_address, read_cidr};
use crate::requests::{OnRequest, PodRequests};
use crate::written::{Written, WrittenPlace};

/// The remark on static addresses.
pub(crate) const NOT_CLAIMED: &str = "ipam.addresses are not claimed: every pod gets them";

/// Chooses what a pod gets. `has_network_name` tells whether the names of objects begin with that
/// of a network.
///
/// # Errors
/// A key is malformed, two ranges overlap, a request cannot be served, or there is nothing that an
/// ADD could give.
pub(crate) fn choose(
    mut keys: MergedKeys<'_, PoolKeys>,
    has_network_name: bool,
    request: &Request,
) -> Result<Selection> {
    let ipam = request.network.ipam();
    let mut remarks = Vec::new();
    let mut ranges = read_ranges(&mut keys, &mut remarks)?;
    refuse_overlaps(&ranges)?;
    if !has_network_name {
        ranges.iter().try_for_each(refuse_nameless)?;
    }
    remarks.extend(ranges.iter().flat_map(|range| range.ignored.clone()));
    if request.verb == Verb::Add {
        remarks.iter().for_each(|remark| warn!("{remark}"));
    }
    let (routes, dns) = (read_routes(&mut keys)?, read_dns(&mut keys));
    let mut static_addresses = read_static_addresses(&mut keys)?;
    if !static_addresses.is_empty() {
        remarks.push(NOT_CLAIMED.to_owned());
    }
    let requests = PodRequests::read(request, &ranges, &mut static_addresses)?;
    ranges.iter_mut().for_each(|range| range.keep_free(&requests.gateways));
    let rule = OnRequest::read(&mut keys)?;
    let mut pools = pools(rule, &ranges, &requests.in_ranges)?;
    if ipam.get("strategy").is_none_or(Value::is_null) {
        pools.iter_mut().for_each(|pool| pool.strategy = Some("lowest".to_owned()));
    }
    static_addresses.extend(requests.outside);
    if pools.is_empty() && static_addresses.is_empty() {
        if request.verb == Verb::Add {
            return Err(Error::config(
                "ipam.range",
                "missing: there is neither a range nor an address",
            )
            .advise(misspelt_range(ipam)));
        }
        remarks
            .push("ipam.range is missing: a pod gets only addresses that it asks for".to_owned());
    }
    Ok(Selection {
        pools: Some(pools),
        static_addresses,
        routes,
        dns,
        remarks,
        ..Selection::default()
    })
}

/// The advice for a pod without any address.
fn misspelt_range(ipam: &Map<String, Value>) -> String {
    let known = ["range", "ipRanges", "addresses"];
    let misspelt = ipam.keys().find_map(|key| Some((key, nearest(key, known)?)));
    let hint = misspelt.map(|(key, meant)| {
        format!(", instead of ipam.{} (did you mean {meant}?)", key.escape_debug())
    });
    format!("set range, ipRanges or addresses{}", hint.unwrap_or_default())
}

/// Reads the ranges; `remarks` gets a text for each key without an effect.
fn read_ranges(
    keys: &mut MergedKeys<'_, PoolKeys>,
    remarks: &mut Vec<String>,
) -> Result<Vec<UsableRange>> {
    let gateway = keys.take("gateway", |keys| &mut keys.gateway);
    let gateway = gateway.map(|text| read_address(&text.value, &text.place)).transpose()?;
    let mut ranges = Vec::new();
    if let Some(range) = keys.take("range", |keys| &mut keys.range) {
        let text = RangeText {
            place: range.place.clone(),
            range,
            start: keys.take("range_start", |keys| &mut keys.range_start),
            end: keys.take("range_end", |keys| &mut keys.range_end),
            exclude: keys.take("exclude", |keys| &mut keys.exclude),
            ignores_bounds: true,
        };
        ranges.push(UsableRange::read(text, gateway)?);
    } else {
        remarks.extend(keys.take("range_start", |keys| &mut keys.range_start).map(unused));
        remarks.extend(keys.take("range_end", |keys| &mut keys.range_end).map(unused));
        remarks.extend(keys.take("exclude", |keys| &mut keys.exclude).map(unused));
    }
    if let Some(Written { value, place }) = keys.take("ipRanges", |keys| &mut keys.ip_ranges) {
        for (i, range) in value.into_iter().enumerate() {
            let text = element(range, place.inner(format_args!("[{i}]")))?;
            ranges.push(UsableRange::read(text, gateway)?);
        }
    }
    Ok(ranges)
}

fn unused<T>(key: Written<T>) -> String {
    format!("{} is ignored: ipam.range, to which it belongs, is missing", key.place)
}

/// An element of `ipRanges`.
fn element(keys: RangeKeys, place: WrittenPlace) -> Result<RangeText> {
    let RangeKeys { range, range_start, range_end, exclude } = keys;
    let inner = place.inner(".range");
    let range = range.ok_or_else(|| inner.error("missing: expected a CIDR such as 10.1.0.0/16"))?;
    let bound = |name: &str, text: Option<String>| {
        let text = text.filter(|text| !text.is_empty())?;
        Some(Written { value: text, place: place.inner(format_args!(".{name}")) })
    };
    Ok(RangeText {
        range: Written { value: range, place: inner },
        start: bound("range_start", range_start),
        end: bound("range_end", range_end),
        exclude: exclude.map(|value| Written { value, place: place.inner(".exclude") }),
        ignores_bounds: false,
        place,
    })
}

fn refuse_overlaps(ranges: &[UsableRange]) -> Result<()> {
    for (i, range) in ranges.iter().enumerate() {
        if let Some(other) = ranges[..i].iter().find(|other| range.overlaps(other)) {
            let message = format!("{range} overlaps {other} of {}", other.place);
            let error = range.place.error(message);
            return Err(error.advise("make them disjoint, or remove one of them"));
        }
    }
    Ok(())
}

/// The text of an address becomes the name of an object, which may not begin with `:` or `-`.
fn refuse_nameless(range: &UsableRange) -> Result<()> {
    match range.subnet.network() {
        IpAddr::V6(first) if first.to_bits() >> 96 == 0 => {
            let message = format!("{} gives invalid names of objects, such as -1", range.subnet);
            Err(range.place.error(message).advise("set network_name, with which they begin then"))
        }
        _ => Ok(()),
    }
}

/// The addresses that every pod gets, each once.
///
/// # Errors
/// An address is malformed.
pub(crate) fn read_static_addresses(keys: &mut MergedKeys<'_, PoolKeys>) -> Result<Vec<IpConfig>> {
    let Some(Written { value, place }) = keys.take("addresses", |keys| &mut keys.addresses) else {
        return Ok(Vec::new());
    };
    let mut static_addresses: Vec<IpConfig> = Vec::new();
    for (i, AddressKeys { address, gateway }) in value.into_iter().enumerate() {
        let place = place.inner(format_args!("[{i}]"));
        let at_address = place.inner(".address");
        let address = address
            .ok_or_else(|| at_address.error("missing: expected an address such as 10.1.2.3/24"))?;
        let address: IpNet = read_cidr(&address, &at_address)?;
        let gateway = gateway.filter(|text| !text.is_empty());
        let gateway =
            gateway.map(|text| read_address(&text, &place.inner(".gateway"))).transpose()?;
        if static_addresses.iter().all(|ip| ip.address.addr() != address.addr()) {
            static_addresses.push(IpConfig::new(address, gateway));
        }
    }
    Ok(static_addresses)
}

/// The routes of every pod.
///
/// # Errors
/// A route is malformed.
pub(crate) fn read_routes(keys: &mut MergedKeys<'_, PoolKeys>) -> Result<Vec<Route>> {
    let mut routes = Vec::new();
    if let Some(Written { value, place }) = keys.take("routes", |keys| &mut keys.routes) {
        for (i, route) in value.into_iter().enumerate() {
            let place = place.inner(format_args!("[{i}]"));
            let route = Route::parse(route, &place.to_string())
                .map_err(|error| place.shown(error, "a route: dst, a CIDR, and gw, an address"))?;
            routes.push(route);
        }
    }
    Ok(routes)
}

/// The name resolution of every pod.
pub(crate) fn read_dns(keys: &mut MergedKeys<'_, PoolKeys>) -> Dns {
    fn of(keys: &mut PoolKeys) -> &mut DnsKeys {
        keys.dns.get_or_insert_default()
    }
    let mut dns = Map::new();
    if let Some(list) = keys.take("dns.nameservers", |keys| &mut of(keys).nameservers) {
        dns.insert("nameservers".to_owned(), list.value.into());
    }
    if let Some(name) = keys.take("dns.domain", |keys| &mut of(keys).domain) {
        dns.insert("domain".to_owned(), name.value.into());
    }
    if let Some(list) = keys.take("dns.search", |keys| &mut of(keys).search) {
        dns.insert("search".to_owned(), list.value.into());
    }
    if let Some(list) = keys.take("dns.options", |keys| &mut of(keys).options) {
        dns.insert("options".to_owned(), list.value.into());
    }
    Dns(dns)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn a_range_whose_addresses_are_all_excluded_is_an_error_of_its_key() {
        let lan = |exclude: &[&str]| json!({"range": "10.0.0.0/29", "exclude": exclude});
        Call::ipam(lan(&["10.0.0.0/30", "10.0.0.4/31"])).ok();
        for (ipam, place) in [
            (lan(&["10.0.0.0/8"]), "ipam.range"),
            (json!({"ipRanges": [lan(&["10.0.0.0/30", "10.0.0.4/30"])]}), "ipam.ipRanges[0]"),
        ] {
            for verb in ["ADD", "STATUS"] {
                let expected = format!("{place}: every address of 10.0.0.1-10.0.0.6 is excluded");
                let details = Call::ipam(ipam.clone()).verb(verb).err(7, &expected);
                assert!(details.starts_with("exclude fewer addresses"), "{details}");
            }
            Call::ipam(ipam).verb("DEL").ok();
        }
        let flat = Call::ipam(json!({})).flat(lan(&["10.0.0.0/8"]));
        flat.err(7, "FLAT.range: expected a range with an address that is not excluded");
    }

    #[test]
    fn a_range_of_its_own_comes_first_and_each_gives_one_address() {
        let ipam = json!({
            "ipRanges": [{"range": "10.1.0.0/24", "exclude": ["10.1.0.1"]}, {"range": "fd00::/112"}],
            "range": "10.2.0.0/24", "range_start": "10.2.0.5", "gateway": "10.9.9.9",
        });
        let answer = Call::ipam(ipam.clone()).ok();
        assert_eq!(answer["pools"][1]["ranges"][0]["exclude"], json!(["10.1.0.1/32"]));
        assert_eq!(answer["pools"][1]["ranges"][0]["gateway"], "10.9.9.9");
        assert_eq!(answer["pools"][2]["ranges"][0].get("gateway"), None);
        assert_eq!(answer["pools"][0]["strategy"], "lowest");
        let pools = ["10.2.0.5-10.2.0.254", "10.1.0.1-10.1.0.254", "fd00::1-fd00::fffe"];
        assert_eq!(Call::ipam(ipam.clone()).pools(), pools);
        let mut random = ipam;
        random["strategy"] = "random".into();
        assert_eq!(Call::ipam(random).ok()["pools"][0].get("strategy"), None);
    }

    #[test]
    fn two_ranges_that_overlap_are_an_error_that_names_both() {
        let inside = |range: &str| json!({"range": "10.0.0.0/24", "ipRanges": [{"range": range}]});
        Call::ipam(inside("10.0.0.0/16")).err(
            7,
            "ipam.ipRanges[0]: 10.0.0.1-10.0.255.254 overlaps 10.0.0.1-10.0.0.254 of ipam.range",
        );
        let mut twice = json!({"ipRanges": [{"range": "fd00::/64"}, {"range": "fd00::1/64"}]});
        Call::ipam(twice.clone())
            .err(7, "ipam.ipRanges[1]: fd00::1-fd00::ffff:ffff:ffff:fffe overlaps");
        twice["ipRanges"][0]["range_end"] = "fd00::9".into();
        twice["ipRanges"][1]["range_start"] = "fd00::a".into();
        Call::ipam(twice).ok();
    }

    #[test]
    fn names_of_objects_do_not_begin_with_a_colon() {
        for range in ["::/64", "0:0:0:1::/64", "::1:0:0/96", "::/0"] {
            let ipam = json!({"range": range});
            let details = Call::ipam(ipam.clone()).err(7, "ipam.range: ");
            assert!(details.starts_with("set network_name"), "{details}");
            for key in [json!({"network_name": "blue"}), json!({"kube": {"networkName": "blue"}})] {
                let mut named = ipam.clone();
                named.as_object_mut().unwrap().extend(key.as_object().unwrap().clone());
                Call::ipam(named).ok();
            }
        }
    }

    #[test]
    fn every_pod_gets_the_addresses() {
        let ipam = json!({
            "range": "10.0.0.0/24",
            "addresses": [
                {"address": "10.0.0.7/24"},
                {"address": "010.5.5.5/24", "gateway": "10.5.5.1"},
                {"address": "fd00::5/64", "gateway": ""},
                {"address": "10.5.5.5/16"},
            ],
        });
        let call = || Call::ipam(ipam.clone());
        let answer = call().args("IP=10.9.9.9/24,10.0.0.7;GATEWAY=10.0.0.3,10.9.9.1").ok();
        assert_eq!(
            answer["static"],
            json!([
                {"address": "10.0.0.7/24", "gateway": "10.0.0.3"},
                {"address": "10.5.5.5/24", "gateway": "10.5.5.1"},
                {"address": "fd00::5/64"},
                {"address": "10.9.9.9/24", "gateway": "10.9.9.1"},
            ])
        );
        assert_eq!(answer["pools"].as_array().unwrap().len(), 1);
        let remarks = call().verb("STATUS").ok()["remarks"].clone();
        assert_eq!(remarks, json!(["ipam.addresses are not claimed: every pod gets them"]));
        for (addresses, message) in [
            (json!({}), ": expected an array, found an object"),
            (json!([{}]), "[0].address: missing"),
            (json!([{"address": "10.0.0.7"}]), r#"[0].address: "10.0.0.7" is not a CIDR"#),
            (json!([{"address": "10.0.0.7/24", "gateway": "x"}]), r#"[0].gateway: "x" is not"#),
        ] {
            Call::ipam(json!({"addresses": addresses})).err(7, &format!("ipam.addresses{message}"));
        }
    }

    #[test]
    fn without_ranges_there_are_static_addresses_or_an_error() {
        let alone = Call::ipam(json!({"addresses": [{"address": "10.0.0.7/24"}]})).ok();
        assert_eq!((&alone["pools"], alone["static"].as_array().unwrap().len()), (&json!([]), 1));
        let asked = Call::ipam(json!({})).args("IP=10.0.0.7/24").ok();
        assert_eq!(asked["static"], json!([{"address": "10.0.0.7/24"}]));
        Call::ipam(json!({"ipRanges": [], "range": ""}))
            .err(7, "ipam.range: missing: there is neither");
        let details = Call::ipam(json!({"rnage": "10.0.0.0/24"})).err(7, "ipam.range: missing");
        assert!(details.ends_with("instead of ipam.rnage (did you mean range?)"), "{details}");
        let status = Call::ipam(json!({})).verb("STATUS").ok();
        assert!(status["remarks"][0].as_str().unwrap().starts_with("ipam.range is missing"));
    }

    #[test]
    fn routes_and_name_resolution_are_copied() {
        let ipam = json!({
            "range": "10.0.0.0/24",
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.0.0.3", "mtu": 1400}],
            "dns": {"nameservers": ["10.1.1.1"], "domain": "a", "search": ["b"], "options": ["c"]},
        });
        let answer = Call::ipam(ipam.clone()).ok();
        assert_eq!((&answer["routes"], &answer["dns"]), (&ipam["routes"], &ipam["dns"]));
        for (key, value, message) in [
            ("routes", json!([{"dst": "10.0.0.0"}]), "routes[0].dst: "),
            ("routes", json!([5]), "routes[0]: expected an object"),
            ("dns", json!({"nameservers": "10.1.1.1"}), "dns.nameservers: expected an array"),
            ("dns", json!({"domain": 5}), "dns.domain: expected a string"),
        ] {
            Call::ipam(json!({key: value})).err(7, &format!("ipam.{message}"));
        }
    }
}
