//! Which pools a selector answers, and what it leaves as it is.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::calls::{SelectorCalls, pools_of};
use super::checks;
use crate::bench::expect;
use crate::plain;
use crate::{CheckResult, Finding};
use ipam_kit::pool::{Pool, RangeRules, RangeSet};

checks!(
    pools_are_valid,
    a_gateway_is_inside_its_subnet,
    no_address_is_given,
    addresses_routes_and_dns_are_kept,
    unknown_members_are_kept,
    pools_that_are_there_stay_in_front,
    a_pool_of_the_same_name_is_one_pool,
    an_add_again_answers_the_same_pools,
    an_unknown_key_changes_nothing,
);

fn pools_are_valid(calls: &SelectorCalls<'_>) -> CheckResult {
    let sets = range_sets(&calls.pools()?)?;
    for (i, one) in sets.iter().enumerate() {
        for other in &sets[..i] {
            expect(!one.overlaps(other), || format!("the pools {other} and {one} overlap"))?;
        }
    }
    Ok(())
}

fn a_gateway_is_inside_its_subnet(calls: &SelectorCalls<'_>) -> CheckResult {
    for set in range_sets(&calls.pools()?)? {
        for range in set.ranges() {
            let outside = range.gateway().filter(|gateway| !range.subnet().contains(gateway));
            expect(outside.is_none(), || {
                format!("the gateway {} is outside {}", plain::optional(outside), range.subnet())
            })?;
        }
    }
    Ok(())
}

fn range_sets(pools: &[Value]) -> Result<Vec<RangeSet>, Finding> {
    let mut sets = Vec::new();
    for (i, pool) in pools.iter().enumerate() {
        let path = format!("pools[{i}]");
        let pool = Pool::parse(pool, &path)?;
        sets.extend(pool.range_set(RangeRules::ANY, &path)?);
    }
    Ok(sets)
}

fn no_address_is_given(calls: &SelectorCalls<'_>) -> CheckResult {
    let answer = calls.add(&calls.config)?;
    expect(is_nothing(&answer["ips"]), || {
        format!("a selector gives no address: ips is {}", plain::output(&answer["ips"].to_string()))
    })
}

fn addresses_routes_and_dns_are_kept(calls: &SelectorCalls<'_>) -> CheckResult {
    let before = json!({
        "cniVersion": "1.1.0",
        "ips": [{"address": "192.0.2.9/24", "gateway": "192.0.2.1"}],
        "routes": [{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}],
        "dns": {"nameservers": ["192.0.2.53"], "search": ["conformance.example"]},
    });
    let answer = calls.add(&calls.with("prevResult", before.clone()))?;
    expect(answer["ips"] == before["ips"], || changed("ips", &before, &answer))?;
    for key in ["/routes", "/dns/nameservers", "/dns/search"] {
        let items = |value: &Value| value.pointer(key).and_then(Value::as_array).cloned();
        let after = items(&answer).unwrap_or_default();
        let is_kept = items(&before).unwrap_or_default().iter().all(|item| after.contains(item));
        expect(is_kept, || changed(key.trim_start_matches('/'), &before, &answer))?;
    }
    Ok(())
}

fn unknown_members_are_kept(calls: &SelectorCalls<'_>) -> CheckResult {
    let before =
        json!({"cniVersion": "1.1.0", "ips": [], "conformance.example": {"kept": [1, null]}});
    let answer = calls.add(&calls.with("prevResult", before.clone()))?;
    let key = "conformance.example";
    expect(answer[key] == before[key], || changed(key, &before, &answer))
}

fn changed(key: &str, before: &Value, answer: &Value) -> String {
    let [before, after] = [before, answer].map(|value| {
        let mut value = value;
        for part in key.split('/') {
            value = &value[part];
        }
        plain::output(&value.to_string())
    });
    format!("prevResult had {key} {before}, the answer has {after}")
}

fn pools_that_are_there_stay_in_front(calls: &SelectorCalls<'_>) -> CheckResult {
    let own = calls.pools()?;
    let before = json!([
        {"name": "conformance-first", "requested-ip": "192.0.2.9", "requested_ip": "192.0.2.9"},
        {"name": "conformance-second", "ranges": [{"subnet": "198.51.100.0/24"}], "other": [1]},
    ]);
    let result = json!({"cniVersion": "1.1.0", "ips": [], "pools": before});
    let answer = pools_of(&calls.add(&calls.with("prevResult", result))?)?;
    let there = before.as_array().cloned().unwrap_or_default();
    expect(answer.starts_with(&there), || {
        format!("prevResult had the pools {before}, the answer has {}", json!(answer))
    })?;
    expect(answer.len() == there.len() + own.len(), || {
        format!("expected {} pools behind them, found {}", own.len(), json!(answer))
    })
}

fn a_pool_of_the_same_name_is_one_pool(calls: &SelectorCalls<'_>) -> CheckResult {
    let own = calls.pools()?;
    let names: BTreeSet<&str> = own.iter().filter_map(|pool| pool["name"].as_str()).collect();
    if names.len() != own.len() {
        return Err(Finding::NotApplicable(
            "it answers pools without a name; a configuration by which each pool has a name makes \
             this check run",
        ));
    }
    let there: Vec<Value> =
        names.iter().map(|name| json!({"name": name, "requested-ip": "192.0.2.9"})).collect();
    let result = json!({"cniVersion": "1.1.0", "ips": [], "pools": there});
    let answer = pools_of(&calls.add(&calls.with("prevResult", result))?)?;
    expect(answer.len() == own.len(), || {
        format!("{} pools of the same names became {}", own.len(), json!(answer))
    })
}

fn an_add_again_answers_the_same_pools(calls: &SelectorCalls<'_>) -> CheckResult {
    let first = calls.pools()?;
    for _ in 0..2 {
        let again = calls.pools()?;
        expect(again == first, || format!("first {}, then {}", json!(first), json!(again)))?;
    }
    Ok(())
}

fn an_unknown_key_changes_nothing(calls: &SelectorCalls<'_>) -> CheckResult {
    let first = calls.pools()?;
    let mut config = calls.with("conformance.example", json!({"a": [1]}));
    config["ipam"]["conformance.example"] = json!({"a": [1]});
    let answer = pools_of(&calls.add(&config)?)?;
    expect(answer == first, || {
        format!("with an unknown key {}, else {}", json!(answer), json!(first))
    })
}

/// Whether a member says nothing: it is missing, null or empty.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}
