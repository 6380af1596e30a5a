use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::SectionPool;
use crate::pool::{Pool, RangeConfig, RangeRules, RangeSet};

/// The settings that replace the pools: empty if a pool has no ranges.
pub(super) fn patch(pools: &[SectionPool]) -> Map<String, Value> {
    // host-local sees the runtime's requests itself, but not a pool's own.
    let sets = pools.iter().map(|pool| Some(ranges(pool.set.as_ref()?, pool.pool.requested_ip)));
    of_sets(sets.collect())
}

/// The settings for the pools of several selectors: empty when one has no ranges that can be read.
pub(super) fn joint(pools: &[Value]) -> Map<String, Value> {
    let sets = pools.iter().map(|pool| {
        let pool = Pool::parse(pool, "").ok()?;
        let set = pool.range_set(RangeRules::ANY, "").ok()??;
        Some(ranges(&set, pool.requested_ip))
    });
    of_sets(sets.collect())
}

fn of_sets(sets: Option<Vec<Vec<RangeConfig>>>) -> Map<String, Value> {
    let Some(sets) = sets else {
        return Map::new();
    };
    // The keys of old style have become a set.
    let read = ["subnet", "rangeStart", "rangeEnd", "gateway"];
    let mut patch: Map<_, _> = read.into_iter().map(|key| (key.to_owned(), Value::Null)).collect();
    patch.insert("ranges".to_owned(), json!(sets));
    patch
}

fn ranges(set: &RangeSet, requested: Option<IpAddr>) -> Vec<RangeConfig> {
    let requested = requested.filter(|address| set.refusal(*address).is_none());
    requested.and_then(|address| only(set, address)).unwrap_or_else(|| set.without_excludes())
}

fn only(set: &RangeSet, address: IpAddr) -> Option<Vec<RangeConfig>> {
    let range = set.find(address)?;
    Some(vec![RangeConfig {
        subnet: Some(range.subnet().trunc().to_string()),
        range_start: Some(address.to_string()),
        range_end: Some(address.to_string()),
        gateway: range.gateway().as_ref().map(IpAddr::to_string),
        ..RangeConfig::default()
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam_section::call::SectionCall;

    fn ranges_for_host_local(ipam: Value) -> Value {
        let mut patch = SectionCall::ipam(ipam).for_host_local();
        let ranges = patch.as_object_mut().unwrap().remove("ranges").unwrap();
        let nulls = json!({"subnet": null, "rangeStart": null, "rangeEnd": null, "gateway": null});
        assert_eq!(patch, nulls);
        ranges
    }

    fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Value {
        json!({"subnet": subnet, "rangeStart": start, "rangeEnd": end, "gateway": gateway})
    }

    #[test]
    fn every_set_is_written_out() {
        let whole = range("10.1.2.0/24", "10.1.2.1", "10.1.2.254", "10.1.2.1");
        assert_eq!(ranges_for_host_local(json!({"subnet": "10.1.2.0/24"})), json!([[whole]]));
        assert_eq!(ranges_for_host_local(json!({"ranges": [[whole]]})), json!([[whole]]));
        let pools = json!([{"name": "a", "ranges": [{"subnet": "10.1.2.0/24"}]}]);
        assert_eq!(ranges_for_host_local(json!({"pools": pools})), json!([[whole]]));
    }

    #[test]
    fn the_runtimes_sets_are_included() {
        let answer = SectionCall::ipam(json!({"subnet": "10.1.2.0/24"}))
            .with("runtimeConfig", json!({"ipRanges": [[{"subnet": "10.5.0.0/16"}]]}))
            .for_host_local();
        assert_eq!(
            answer["ranges"],
            json!([
                [range("10.5.0.0/16", "10.5.0.1", "10.5.255.254", "10.5.0.1")],
                [range("10.1.2.0/24", "10.1.2.1", "10.1.2.254", "10.1.2.1")],
            ])
        );
    }

    #[test]
    fn excludes_and_host_bits_are_resolved() {
        let ipam = json!({"rangeRules": "etcd", "ranges": [[
            {"subnet": "10.1.2.9/24", "rangeStart": "10.1.2.1", "exclude": ["10.1.2.64/26"]},
        ]]});
        assert_eq!(
            ranges_for_host_local(ipam),
            json!([[
                range("10.1.2.0/24", "10.1.2.1", "10.1.2.63", "10.1.2.10"),
                range("10.1.2.0/24", "10.1.2.128", "10.1.2.254", "10.1.2.10"),
            ]])
        );
    }

    #[test]
    fn a_pools_own_request_narrows_its_set() {
        let pools = json!([
            {"ranges": [{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.2.0/24"}], "requested-ip": "10.1.2.9"},
            {"ranges": [{"subnet": "10.3.0.0/24"}]},
        ]);
        assert_eq!(
            ranges_for_host_local(json!({"pools": pools})),
            json!([
                [range("10.1.2.0/24", "10.1.2.9", "10.1.2.9", "10.1.2.1")],
                [range("10.3.0.0/24", "10.3.0.1", "10.3.0.254", "10.3.0.1")],
            ])
        );
    }

    #[test]
    fn the_runtimes_request_narrows_nothing() {
        let call = SectionCall::ipam(json!({"subnet": "10.1.2.0/24"})).args("IP=10.1.2.9");
        let whole = range("10.1.2.0/24", "10.1.2.1", "10.1.2.254", "10.1.2.1");
        assert_eq!(call.for_host_local()["ranges"], json!([[whole]]));
    }

    #[test]
    fn a_pool_without_ranges_leaves_the_settings_alone() {
        let pools = json!([{"name": "a"}, {"ranges": [{"subnet": "10.3.0.0/24"}]}]);
        assert_eq!(SectionCall::ipam(json!({"pools": pools})).for_host_local(), json!({}));
    }
}
