//! The addresses that a pod asks for.

use std::net::IpAddr;

use ipam_kit::cni::address::parse_address;
use ipam_kit::cni::{Args, IpConfig, RequestedAddress, Verb};
use ipam_kit::pool::{Pool, RangeConfig};
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipnet::IpNet;

use crate::config::PoolKeys;
use crate::merged_keys::MergedKeys;
use crate::range::{UsableRange, without_zeros};

/// The rule for a range in which a pod asks for an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum OnRequest {
    /// One of its addresses beside the requested one, as with whereabouts.
    #[default]
    Beside,
    /// The requested address alone.
    Instead,
}

impl OnRequest {
    /// Reads the key `requested`.
    ///
    /// # Errors
    /// Its word is unknown.
    pub(crate) fn read(keys: &mut MergedKeys<'_, PoolKeys>) -> Result<Self> {
        let Some(word) = keys.take("requested", |keys| &mut keys.requested) else {
            return Ok(Self::default());
        };
        match word.value.as_str() {
            "beside" => Ok(Self::Beside),
            "instead" => Ok(Self::Instead),
            other => {
                let expected = "\"beside\" or \"instead\"";
                let error = format!("unknown word {other:?}: expected {expected}");
                Err(word.place.shown(word.place.error(error), expected))
            }
        }
    }
}

/// The addresses that a pod asks for by `CNI_ARGS`, `args.cni.ips` and `runtimeConfig.ips`.
#[derive(Debug, Default)]
pub(crate) struct PodRequests {
    /// Those in the subnet of a range.
    pub(crate) in_ranges: Vec<RequestInRange>,
    /// Those outside of all.
    pub(crate) outside: Vec<IpConfig>,
    /// The gateways of `GATEWAY`, which the pod does not get itself.
    pub(crate) gateways: Vec<IpAddr>,
}

/// An address that a pod asks for, in the subnet of a range: the allocator claims it.
#[derive(Debug)]
pub(crate) struct RequestInRange {
    /// The number of the range.
    pub(crate) range: usize,
    pub(crate) address: IpAddr,
    /// Where the pod says it.
    pub(crate) path: String,
    gateway: Option<IpAddr>,
}

impl PodRequests {
    /// Reads the requests of a pod on ADD; other verbs take no address. `static_addresses` are
    /// those that every pod gets: a request for one of them adds nothing. Each gateway of the pod becomes
    /// that of the addresses whose network has it.
    ///
    /// # Errors
    /// A request is malformed, is outside of all ranges and without a prefix length, or is never
    /// given out.
    pub(crate) fn read(
        request: &Request,
        ranges: &[UsableRange],
        static_addresses: &mut [IpConfig],
    ) -> Result<Self> {
        let mut requests = Self::default();
        if request.verb != Verb::Add {
            return Ok(requests);
        }
        requests.gateways = gateways(&request.args)?;
        for requested in requested_addresses(request)? {
            if static_addresses.iter().any(|ip| ip.address.addr() == requested.address) {
                continue;
            }
            match range_of(ranges, requested.address) {
                Some(number) => {
                    let inside =
                        RequestInRange::new(number, &ranges[number], requested, &requests.gateways);
                    requests.in_ranges.push(inside?);
                }
                None => requests.outside.push(outside(&requested)?),
            }
        }
        for ip in static_addresses.iter_mut().chain(&mut requests.outside) {
            ip.gateway = gateway_in(&requests.gateways, ip.address).or(ip.gateway);
        }
        Ok(requests)
    }
}

/// The address that a pod asks for on ADD, of a pool whose ranges a server alone knows. Each gateway of
/// the pod becomes that of the static addresses whose network has it.
///
/// # Errors
/// A request is malformed, or the second one.
pub(crate) fn one_requested(
    request: &Request,
    static_addresses: &mut [IpConfig],
) -> Result<Option<IpAddr>> {
    if request.verb != Verb::Add {
        return Ok(None);
    }
    let gateways = gateways(&request.args)?;
    let mut requested = requested_addresses(request)?;
    for ip in static_addresses {
        requested.retain(|requested| requested.address != ip.address.addr());
        ip.gateway = gateway_in(&gateways, ip.address).or(ip.gateway);
    }
    match &requested[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.address)),
        [first, second, ..] => {
            let message = format!(
                "{} is the second request, after {} of {}",
                second.address, first.address, first.path
            );
            Err(Error::new(ErrorCode::NOT_IN_POOL, message)
                .at(&second.path)
                .advise("a pool of a provider gives a pod one address: request one of the two"))
        }
    }
}

impl RequestInRange {
    fn new(
        number: usize,
        range: &UsableRange,
        requested: RequestedAddress,
        gateways: &[IpAddr],
    ) -> Result<Self> {
        let RequestedAddress { address, path, .. } = requested;
        let reason = match gateways.contains(&address) {
            true => Some("the gateway of CNI_ARGS GATEWAY".to_owned()),
            false => range.refusal(address).map(|why| format!("{why} of {}", range.subnet)),
        };
        if let Some(reason) = reason {
            let message = format!("{address} is {reason}");
            return Err(Error::new(ErrorCode::NOT_IN_POOL, message).at(path));
        }
        let gateway = gateway_in(gateways, range.subnet).or(range.gateway);
        Ok(Self { range: number, address, path, gateway })
    }

    /// The pool of this address alone.
    pub(crate) fn pool(&self, range: &UsableRange) -> Option<Pool> {
        let part = RangeConfig {
            gateway: self.gateway.map(|gateway| gateway.to_string()),
            // Only the pod itself gets an excluded address, as one that it asks for.
            exclude: Vec::new(),
            ..range.part(self.address, self.address)
        };
        let mut pool = Pool::new(None, vec![part])?;
        pool.requested_ip = Some(self.address);
        Some(pool)
    }

    /// The error of a request that cannot be served.
    pub(crate) fn refused(&self, reason: &str) -> Error {
        Error::new(ErrorCode::NOT_IN_POOL, format!("{} is {reason}", self.address)).at(&self.path)
    }
}

/// The addresses that a pod asks for. Numbers of IPv4 in `CNI_ARGS` may begin with zeros, as in the
/// other texts that whereabouts reads.
fn requested_addresses(request: &Request) -> Result<Vec<RequestedAddress>> {
    let plain = request.args.iter().map(|(key, value)| {
        let list: Vec<String> = value.split(',').map(|text| without_zeros(text.trim())).collect();
        format!("{key}={}", list.join(","))
    });
    let plain = Args::parse(&plain.collect::<Vec<_>>().join(";"));
    RequestedAddress::all(&plain, request.network.config())
}

/// The range that gives out the address, else one with the address in its subnet.
fn range_of(ranges: &[UsableRange], address: IpAddr) -> Option<usize> {
    let spanning = ranges.iter().position(|range| range.spans(address));
    spanning.or_else(|| ranges.iter().position(|range| range.subnet.contains(&address)))
}

fn outside(requested: &RequestedAddress) -> Result<IpConfig> {
    let address = requested.address;
    let net = requested.prefix_len.map(|length| IpNet::new(address, length));
    let Some(Ok(net)) = net else {
        let message = format!("{address} is outside of all ranges and has no prefix length");
        let usual = if address.is_ipv4() { 24 } else { 64 };
        return Err(Error::new(ErrorCode::NOT_IN_POOL, message)
            .at(&requested.path)
            .advise(format!("write it with that of its network, such as {address}/{usual}")));
    };
    Ok(IpConfig::new(net, None))
}

/// The gateways of `GATEWAY`.
fn gateways(args: &Args) -> Result<Vec<IpAddr>> {
    let list = args.get("GATEWAY").unwrap_or_default().split(',').map(str::trim);
    let gateways = list.filter(|text| !text.is_empty()).map(|text| {
        parse_address(&without_zeros(text)).map_err(|error| {
            Error::new(ErrorCode::INVALID_ENVIRONMENT, error.to_string()).at("CNI_ARGS GATEWAY")
        })
    });
    gateways.collect()
}

/// The last gateway that lies in a network.
fn gateway_in(gateways: &[IpAddr], net: IpNet) -> Option<IpAddr> {
    gateways.iter().rev().find(|gateway| net.contains(*gateway)).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::Call;

    fn two() -> Call {
        Call::ipam(json!({
            "range": "10.0.0.0/24", "gateway": "10.0.0.1", "exclude": ["10.0.0.64/27"],
            "ipRanges": [{"range": "fd00::/64"}],
        }))
    }

    fn statics(call: Call) -> Value {
        call.ok()["static"].clone()
    }

    #[test]
    fn an_address_in_a_subnet_becomes_a_pool_behind_those_of_the_ranges() {
        let v6 = "fd00::1-fd00::ffff:ffff:ffff:fffe";
        let ninth =
            ["10.0.0.1-10.0.0.8,10.0.0.10-10.0.0.254", v6, "10.0.0.9-10.0.0.9 for 10.0.0.9"];
        for call in [
            two().args("IP=10.0.0.9"),
            two().args("IP=10.0.0.9/16"),
            two().args("IP= 010.00.0.09/016,"),
            two().with("runtimeConfig", json!({"ips": ["10.0.0.9/24"]})),
            two().with("args", json!({"cni": {"ips": ["10.0.0.9"]}})),
            two().args("IP=10.0.0.9").with("runtimeConfig", json!({"ips": ["10.0.0.9/24"]})),
        ] {
            assert_eq!(call.pools(), ninth);
        }
        assert_eq!(
            two().args("IP=10.0.0.254,fd00::1,10.0.0.2").pools(),
            [
                "10.0.0.1-10.0.0.1,10.0.0.3-10.0.0.253",
                "fd00::2-fd00::ffff:ffff:ffff:fffe",
                "10.0.0.254-10.0.0.254 for 10.0.0.254",
                "fd00::1-fd00::1 for fd00::1",
                "10.0.0.2-10.0.0.2 for 10.0.0.2",
            ]
        );
    }

    #[test]
    fn an_excluded_address_and_one_beyond_the_bounds_can_be_requested() {
        let call = two().args("IP=10.0.0.70").ok();
        let range = json!({
            "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.70", "rangeEnd": "10.0.0.70",
            "gateway": "10.0.0.1", "rules": "whereabouts",
        });
        assert_eq!(call["pools"][2]["ranges"], json!([range]));
        let bounded = json!({"range": "10.0.0.0/24", "range_end": "10.0.0.9"});
        let pools = ["10.0.0.1-10.0.0.9", "10.0.0.20-10.0.0.20 for 10.0.0.20"];
        assert_eq!(Call::ipam(bounded).args("IP=10.0.0.20").pools(), pools);
    }

    #[test]
    fn an_address_outside_of_all_ranges_is_static() {
        let args = "IP=10.5.5.5/24,2001:db8::5/64;GATEWAY=10.5.5.1,10.0.0.3";
        assert_eq!(
            statics(two().args(args)),
            json!([{"address": "10.5.5.5/24", "gateway": "10.5.5.1"}, {"address": "2001:db8::5/64"}])
        );
        two()
            .args("IP=10.5.5.5")
            .err(101, "CNI_ARGS IP: 10.5.5.5 is outside of all ranges and has no prefix length");
        two().args("IP=10.5.5.5/24;GATEWAY=x").err(4, r#"CNI_ARGS GATEWAY: "x" is not an IP"#);
        two().args("IP=x").err(4, "CNI_ARGS IP: invalid address");
        two().with("runtimeConfig", json!({"ips": ["x"]})).err(7, "runtimeConfig.ips[0]: invalid");
    }

    #[test]
    fn a_gateway_of_the_pod_is_that_of_the_addresses_whose_network_has_it() {
        let answer = two().args("IP=10.0.0.9;GATEWAY=10.0.0.3,fd00::3").ok();
        let gateways = answer["pools"].as_array().unwrap().iter();
        let gateways: Vec<&Value> = gateways.map(|pool| &pool["ranges"][0]["gateway"]).collect();
        assert_eq!(gateways, [&json!("10.0.0.1"), &Value::Null, &json!("10.0.0.3")]);
    }

    #[test]
    fn a_pod_does_not_get_the_gateway_that_it_names() {
        let call = |verb: &'static str| {
            let answer = two().args("GATEWAY=010.0.0.2,fd00::1,10.9.9.9").verb(verb).ok();
            [0, 1].map(|i| answer["pools"][i]["ranges"][0]["exclude"].clone())
        };
        let excluded = json!(["10.0.0.64/27", "10.0.0.2/32"]);
        assert_eq!(call("ADD"), [excluded, json!(["fd00::1/128"])]);
        assert_eq!(call("CHECK"), [json!(["10.0.0.64/27"]), Value::Null]);
    }

    #[test]
    fn what_is_never_given_is_refused() {
        for (address, why) in [
            ("10.0.0.1", "the gateway of 10.0.0.0/24"),
            ("10.0.0.0", "the network address of 10.0.0.0/24"),
            ("10.0.0.255", "the last address of 10.0.0.0/24"),
            ("fd00::", "the network address of fd00::/64"),
        ] {
            let message = format!("CNI_ARGS IP: {address} is {why}");
            two().args(&format!("IP={address}")).err(101, &message);
        }
        two()
            .args("IP=10.0.0.9;GATEWAY=10.0.0.9")
            .err(101, "CNI_ARGS IP: 10.0.0.9 is the gateway of CNI_ARGS GATEWAY");
        let wide = Call::ipam(json!({"range": "10.0.0.0/16"})).args("IP=10.0.7.0");
        wide.err(101, "CNI_ARGS IP: 10.0.7.0 is an address that ends in .0 of 10.0.0.0/16");
    }

    #[test]
    fn a_request_may_take_the_place_of_its_range() {
        let instead = || {
            Call::ipam(json!({
                "range": "10.0.0.0/30", "ipRanges": [{"range": "10.0.1.0/24"}], "requested": "instead",
            }))
        };
        let pools = ["10.0.0.2-10.0.0.2 for 10.0.0.2", "10.0.1.1-10.0.1.254"];
        assert_eq!(instead().args("IP=10.0.0.2").pools(), pools);
        instead().args("IP=10.0.0.2,10.0.0.1").err(
            101,
            "CNI_ARGS IP: 10.0.0.1 is the second request for ipam.range, after 10.0.0.2 of CNI_ARGS IP",
        );
        let both = Call::ipam(json!({"range": "10.0.0.0/30"})).args("IP=10.0.0.2,10.0.0.1");
        let details = both.err(101, "CNI_ARGS IP: 10.0.0.1 is the only address left in ipam.range");
        assert!(details.contains(r#"set "requested": "instead""#), "{details}");
        let word = Call::ipam(json!({"range": "10.0.0.0/30", "requested": "both"}));
        word.err(7, r#"ipam.requested: unknown word "both": expected "beside" or "instead""#);
    }

    #[test]
    fn other_verbs_take_no_address() {
        let pools = ["10.0.0.1-10.0.0.254", "fd00::1-fd00::ffff:ffff:ffff:fffe"];
        for verb in ["DEL", "CHECK", "GC", "STATUS"] {
            for args in ["IP=10.0.0.9", "IP=10.5.5.5", "IP=x"] {
                assert_eq!(two().verb(verb).args(args).pools(), pools, "{verb} {args}");
            }
        }
    }
}
