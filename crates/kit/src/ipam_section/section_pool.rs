//! Pools as `ipam` and `runtimeConfig` write them: each with its place, its ranges read.

use std::net::IpAddr;

use log::warn;
use serde_json::Value;

use super::config::{SectionConfig, range_sets};
use crate::cni::{Network, RequestedAddress};
use crate::error::{Error, ErrorCode, Result};
use crate::pool::{Pool, Range, RangeConfig, RangeRules, RangeSet};

const IP_RANGES: &str = "runtimeConfig.ipRanges";

/// A pool on its way to the allocator, with what is needed to find the address asked for.
#[derive(Debug)]
pub struct SectionPool {
    /// Its place in the configuration.
    pub path: String,
    /// The pool, with the requested address that it has of its own.
    pub pool: Pool,
    /// Its ranges, read.
    pub set: Option<RangeSet>,
    /// The address that the runtime requests of it.
    pub(super) requested: Option<RequestedAddress>,
}

impl SectionPool {
    /// The requested address, and the path of the request.
    pub(super) fn request(&self) -> Option<(IpAddr, String)> {
        let own = self.pool.requested_ip.map(|own| (own, self.own_path()));
        own.or_else(|| {
            let requested = self.requested.as_ref()?;
            Some((requested.address, requested.path.clone()))
        })
    }

    /// The place of the pool's own requested address.
    pub(super) fn own_path(&self) -> String {
        format!("{}.requested-ip", self.path)
    }

    /// The pool, with the address asked for.
    pub(crate) fn into_pool(self) -> Pool {
        let requested_ip = self.request().map(|(address, _)| address);
        let mut pool = self.pool;
        pool.requested_ip = requested_ip;
        pool
    }

    pub(super) fn refuse_strategy_in_ranges(&self) -> Result<()> {
        let inside = if self.path.starts_with("ipam.pools") { ".ranges" } else { "" };
        RangeConfig::refuse_strategy(self.pool.ranges(), &format!("{}{inside}", self.path))
    }

    fn of_pool(value: &Value, rules: RangeRules, path: String) -> Result<Self> {
        let pool = Pool::parse(value, &path)?;
        Ok(Self { set: pool.range_set(rules, &path)?, path, pool, requested: None })
    }

    fn of_set(ranges: &[RangeConfig], rules: RangeRules, path: String) -> Result<Self> {
        let set = RangeSet::parse(ranges, rules, &path)?;
        let canonical = set.to_config().into_iter().zip(ranges);
        let ranges = canonical
            .map(|(range, written)| RangeConfig { unknown: written.unknown.clone(), ..range })
            .collect();
        let pool =
            Pool::new(None, ranges).ok_or_else(|| Error::config(&path, "empty range set"))?;
        Ok(Self { path, pool, set: Some(set), requested: None })
    }
}

/// Reads the pools of `ipam.pools`, else makes one of each of host-local's range sets; empty where
/// there are neither.
///
/// # Errors
/// There are both, one is invalid, two overlap, or the `cniVersion` has no
/// place for so many.
pub(super) fn read(config: &SectionConfig<'_>, network: &Network) -> Result<Vec<SectionPool>> {
    let pools = match config.pools {
        Some(pools) => from_pools(pools, config, network)?,
        None => from_sets(config, network)?,
    };
    let sets = pools.iter().filter_map(|pool| Some((pool.path.as_str(), pool.set.as_ref()?)));
    RangeSet::refuse_overlaps(sets)?;
    refuse_for_version(&pools, network)?;
    Ok(pools)
}

fn from_pools(
    pools: &Value,
    config: &SectionConfig<'_>,
    network: &Network,
) -> Result<Vec<SectionPool>> {
    const PATH: &str = "ipam.pools";
    let ranges = (!config.ranges.is_empty()).then_some("ipam.ranges");
    if let Some(other) = ranges.or(config.single_range.as_ref().map(|_| "ipam.subnet")) {
        return Err(Error::config(PATH, format!("cannot be combined with {other}"))
            .advise(format!("set one of the two: a pool of {PATH} may have ranges of its own")));
    }
    if network.ip_ranges().is_some() {
        warn!("{IP_RANGES} is ignored: {PATH} names the pools");
    }
    let Some(pools) = pools.as_array().filter(|pools| !pools.is_empty()) else {
        return Err(Error::config(PATH, "expected an array of at least one pool")
            .advise(r#"such as "pools": [{"name": "blue"}]"#));
    };
    let rules = config.rules;
    let numbered = pools.iter().enumerate();
    numbered.map(|(i, pool)| SectionPool::of_pool(pool, rules, format!("{PATH}[{i}]"))).collect()
}

/// In host-local's order: the runtime's sets, the single range of old style, `ipam.ranges`.
fn from_sets(config: &SectionConfig<'_>, network: &Network) -> Result<Vec<SectionPool>> {
    let rules = config.rules;
    let of_runtime = network.ip_ranges().map(|sets| range_sets(sets, IP_RANGES)).transpose()?;
    let mut pools = of_sets(&of_runtime.unwrap_or_default(), rules, IP_RANGES)?;
    if let Some(range) = &config.single_range {
        // Its members are in `ipam` itself, and so are the paths of errors.
        Range::parse(range, rules, "ipam")?;
        pools.push(SectionPool::of_set(std::slice::from_ref(range), rules, "ipam".to_owned())?);
    }
    pools.extend(of_sets(&config.ranges, rules, "ipam.ranges")?);
    for (index, section) in (0..).zip(&mut pools) {
        section.pool.index = Some(index);
    }
    Ok(pools)
}

fn of_sets(sets: &[Vec<RangeConfig>], rules: RangeRules, path: &str) -> Result<Vec<SectionPool>> {
    let numbered = sets.iter().enumerate();
    numbered.map(|(i, set)| SectionPool::of_set(set, rules, format!("{path}[{i}]"))).collect()
}

fn refuse_for_version(pools: &[SectionPool], network: &Network) -> Result<()> {
    let version = network.version();
    if !version.has_single_addresses() {
        return Ok(());
    }
    for ipv4 in [true, false] {
        let of_family =
            pools.iter().filter(|pool| pool.set.as_ref().is_some_and(|set| set.is_ipv4() == ipv4));
        let paths: Vec<_> = of_family.map(|pool| pool.path.as_str()).collect();
        if paths.len() > 1 {
            return Err(Error::new(
                ErrorCode::INCOMPATIBLE_VERSION,
                format!(
                    "cniVersion {version} allows one address per family: {} are of one family",
                    paths.join(", ")
                ),
            )
            .advise("use cniVersion 0.3.0 or newer"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ipam_section::call::SectionCall;

    #[test]
    fn pools_are_copied() {
        let pools = json!([
            {"name": "blue"},
            {"name": "red", "requested-ip": "10.1.2.3", "requested_ip": "10.1.2.3", "colour": {},
             "strategy": "lowest", "takeover": true, "index": 7,
             "ranges": [{"subnet": "10.1.2.0/24", "exclude": ["10.1.2.9"], "vlan": 7}]},
        ]);
        let answer = SectionCall::ipam(json!({"pools": pools, "ranges": [], "subnet": ""})).ok();
        assert_eq!(answer["pools"], pools);
        let answer =
            SectionCall::ipam(json!({"pools": [{"name": "a", "requested_ip": "10.1.2.3/24"}]}))
                .ok();
        let both = json!([{"name": "a", "requested-ip": "10.1.2.3", "requested_ip": "10.1.2.3"}]);
        assert_eq!(answer["pools"], both);
    }

    #[test]
    fn bad_pools_name_their_place() {
        for (pools, message) in [
            (json!({"any": ["thing"]}), ": expected an array of at least one pool"),
            (json!([]), ": expected an array of at least one pool"),
            (json!("blue"), ": expected an array of at least one pool"),
            (json!([{"name": "a"}, "b"]), "[1]: expected an object with name or ranges"),
            (json!([{}]), "[0]: expected a name or ranges"),
            (json!([{"name": 5}]), "[0].name: expected a string, found a number"),
            (
                json!([{"name": "a", "requested-ip": "x"}]),
                "[0].requested-ip: \"x\" is not an IP address",
            ),
            (
                json!([{"name": "a", "requested-ip": "::1", "requested_ip": "::2"}]),
                "[0]: requested-ip ::1 and requested_ip ::2 differ",
            ),
            (
                json!([{"name": "a"}, {"ranges": [{"subnet": "10.1.2.3/24"}]}]),
                "[1].ranges[0].subnet: 10.1.2.3/24 has host bits set",
            ),
            (
                json!([{"ranges": [{"subnet": "10.1.2.0/24"}]}, {"name": "a"},
                       {"name": "b", "ranges": [{"subnet": "10.1.0.0/16"}]}]),
                "[2]: 10.1.0.1-10.1.255.254 overlaps 10.1.2.1-10.1.2.254 of ipam.pools[0]",
            ),
        ] {
            SectionCall::ipam(json!({"pools": pools})).err(7, &format!("ipam.pools{message}"));
        }
    }

    #[test]
    fn pools_and_ranges_exclude_each_other() {
        let pools = json!([{"name": "a"}]);
        for (key, value) in
            [("ranges", json!([[{"subnet": "10.1.2.0/24"}]])), ("subnet", json!("10.1.2.0/24"))]
        {
            let details = SectionCall::ipam(json!({"pools": pools, key: value}))
                .err(7, &format!("ipam.pools: cannot be combined with ipam.{key}"));
            assert!(details.starts_with("set one of the two"), "{details}");
        }
        let runtime = json!({"ipRanges": [[{"subnet": "10.1.2.0/24"}]]});
        let answer = SectionCall::ipam(json!({"pools": pools})).with("runtimeConfig", runtime).ok();
        assert_eq!(answer["pools"], pools);
    }

    #[test]
    fn sets_come_in_host_locals_order() {
        let answer = SectionCall::ipam(json!({
            "ranges": [[{"subnet": "10.3.0.0/24"}, {"subnet": "10.4.0.0/24", "exclude": ["10.4.0.9"], "vlan": 7}],
                       [{"subnet": "fd00::/64"}]],
            "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.5", "rangeEnd": "10.2.0.7",
            "gateway": "10.2.0.254", "exclude": ["10.2.0.6"],
        }))
        .with("runtimeConfig", json!({"ipRanges": [[{"subnet": "10.1.0.0/24"}]]}))
        .ok();
        let range = |subnet: &str, start: &str, end: &str, gateway: &str| json!({"subnet": subnet, "rangeStart": start, "rangeEnd": end, "gateway": gateway});
        let mut old = range("10.2.0.0/24", "10.2.0.5", "10.2.0.7", "10.2.0.254");
        old["exclude"] = json!(["10.2.0.6/32"]);
        let mut second = range("10.4.0.0/24", "10.4.0.1", "10.4.0.254", "10.4.0.1");
        second["exclude"] = json!(["10.4.0.9/32"]);
        second["vlan"] = json!(7);
        let first = range("10.3.0.0/24", "10.3.0.1", "10.3.0.254", "10.3.0.1");
        assert_eq!(
            answer["pools"],
            json!([
                {"index": 0, "ranges": [range("10.1.0.0/24", "10.1.0.1", "10.1.0.254", "10.1.0.1")]},
                {"index": 1, "ranges": [old]},
                {"index": 2, "ranges": [first, second]},
                {"index": 3, "ranges": [range("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")]},
            ])
        );
    }

    #[test]
    fn bad_sets_name_their_place() {
        for (ipam, message) in [
            (json!({"ranges": [[]]}), "ipam.ranges[0]: empty range set"),
            (
                json!({"ranges": [{"subnet": "10.1.2.0/24"}]}),
                "ipam.ranges[0]: expected an array, found an object",
            ),
            (
                json!({"ranges": [[{"subnet": 5}]]}),
                "ipam.ranges[0][0].subnet: expected a string, found a number",
            ),
            (json!({"subnet": 5}), "ipam.subnet: expected a string, found a number"),
            (json!({"subnet": "10.1.2.0"}), "ipam.subnet: \"10.1.2.0\" is not a CIDR"),
            (
                json!({"subnet": "2001:db8::/127"}),
                "ipam.subnet: 2001:db8::/127 is too small to allocate from",
            ),
            (
                json!({"subnet": "2001:DB8:24:19ff::/63"}),
                "ipam.subnet: 2001:db8:24:19ff::/63 has host bits set: write 2001:db8:24:19fe::/63",
            ),
            (
                json!({"subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.1"}),
                "ipam.rangeEnd: 10.1.3.1 is not in 10.1.2.0/24",
            ),
            (
                json!({"subnet": "10.1.2.0/24", "exclude": ["10.1.2.0/24"]}),
                "ipam: every address of 10.1.2.1-10.1.2.254 is excluded",
            ),
            (
                json!({"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "fd00::/64"}]]}),
                "ipam.ranges[0]: mixed address families",
            ),
            (
                json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.2.128/25"}]]}),
                "ipam.ranges[1]: 10.1.2.129-10.1.2.254 overlaps 10.1.2.1-10.1.2.254 of ipam.ranges[0]",
            ),
            (
                json!({"subnet": "10.1.0.0/16", "ranges": [[{"subnet": "10.1.2.0/24"}]]}),
                "ipam.ranges[0]: 10.1.2.1-10.1.2.254 overlaps 10.1.0.1-10.1.255.254 of ipam",
            ),
        ] {
            SectionCall::ipam(ipam).err(7, message);
        }
    }

    #[test]
    fn bad_sets_of_the_runtime_name_their_place() {
        for (sets, message) in [
            (json!("x"), ": expected an array, found a string"),
            (json!([[{"subnet": 5}]]), "[0][0].subnet: expected a string, found a number"),
            (json!([[{"subnet": "10.1.2.0/24"}], [{}]]), "[1][0].subnet: missing"),
            (
                json!([[{"subnet": "10.9.0.0/16"}], [{"subnet": "10.9.1.0/24"}]]),
                "[1]: 10.9.1.1-10.9.1.254 overlaps 10.9.0.1-10.9.255.254 of runtimeConfig.ipRanges[0]",
            ),
        ] {
            SectionCall::ipam(json!({"subnet": "10.1.0.0/16"}))
                .with("runtimeConfig", json!({"ipRanges": sets}))
                .err(7, &format!("{IP_RANGES}{message}"));
        }
    }

    #[test]
    fn old_versions_have_one_address_per_family() {
        let call = |ipam| SectionCall::ipam(ipam).with("cniVersion", json!("0.2.0"));
        let sets = json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}],
                                     [{"subnet": "11.1.2.0/24"}]]});
        call(sets.clone()).err(
            1,
            "cniVersion 0.2.0 allows one address per family: ipam.ranges[0], ipam.ranges[2] are of one family",
        );
        SectionCall::ipam(sets).with("cniVersion", json!("0.3.0")).ok();
        call(json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]})).ok();
        call(json!({"pools": [{"name": "a"}, {"name": "b"}]})).ok();
    }

    #[test]
    fn the_range_rules_can_be_chosen() {
        let call = |rules: Value, subnet| {
            SectionCall::ipam(json!({"rangeRules": rules, "subnet": subnet}))
        };
        let start = |rules, subnet| call(rules, subnet).ok()["pools"][0]["ranges"][0].clone();
        assert_eq!(start(json!("etcd"), "10.1.2.9/24")["rangeStart"], "10.1.2.10");
        assert_eq!(start(json!("own"), "10.1.2.8/31")["rangeEnd"], "10.1.2.9");
        for rules in [json!(null), json!("host-local")] {
            call(rules.clone(), "10.1.2.9/24").err(7, "ipam.subnet: 10.1.2.9/24 has host bits set");
            call(rules, "10.1.2.8/31").err(7, "ipam.subnet: 10.1.2.8/31 is too small");
        }
        call(json!("mine"), "10.1.2.0/24").err(7, "ipam.rangeRules: unknown variant `mine`");
        let pools = json!([{"ranges": [{"subnet": "10.1.2.8/31"}]}]);
        SectionCall::ipam(json!({"rangeRules": "own", "pools": pools})).ok();
    }
}
