//! Which addresses an ADD gives.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::checks;
use crate::bench::{Added, Bench, expect, expect_given, network, set_prev_result};
use crate::plain::{self, list};
use crate::pool_spec::{PoolSpec, ipv6, other, small, with_ranges};
use crate::{CheckResult, Finding};
use ipam_kit::cni::{IpConfig, IpamResult, Verb};
use ipam_kit::contract::DelegateInput;

checks!(
    an_add_gives_one_address_of_each_pool,
    an_add_keeps_what_came_before,
    static_addresses_are_answered_beside_one_for_each_pool,
    static_addresses_alone_are_answered,
    a_pool_leases_no_static_address,
    an_add_without_pools_is_error_7,
    a_pool_is_given_out_to_the_last_address,
    excluded_addresses_are_not_given,
    every_range_of_a_pool_is_used,
    an_add_again_gives_the_same_addresses,
    an_add_is_all_or_nothing,
    a_full_pool_has_room_after_a_del,
    an_added_pool_adds_a_lease,
    changed_pools_replace_the_lease,
    round_robin_reuses_an_address_late,
    lowest_reuses_the_lowest,
    random_stays_inside,
);

const C1: &str = "c1/eth0";

fn an_add_gives_one_address_of_each_pool(bench: &Bench) -> CheckResult {
    let added = bench.add(C1, &[small(), ipv6()])?;
    let subnets = [[10, 1, 2, 0].into(), IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, 0])];
    let in_order = added.networks.len() == 2
        && added.networks.iter().zip(subnets).all(|(network, subnet)| network.network() == subnet);
    expect(in_order, || {
        format!(
            "expected one address of each pool, in order, but {} was given",
            list(&added.networks)
        )
    })?;
    let lengths: Vec<u8> = added.networks.iter().map(ipnet::IpNet::prefix_len).collect();
    expect(lengths == [28, 64], || format!("the prefix lengths are {}", list(&lengths)))?;
    let gateways: Vec<String> =
        added.result.ips.iter().map(|ip| plain::optional(ip.gateway)).collect();
    expect(gateways == ["10.1.2.1", "fd00:1::1"], || {
        format!("the gateways are {}", list(&gateways))
    })
}

fn an_add_keeps_what_came_before(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let (environment, mut config) = bench.call(Verb::Add, C1, &[small()], None)?;
    let before = json!({"ips": [{"address": "192.0.2.9/24"}], "routes": [{"dst": "0.0.0.0/0"}]});
    let before = IpamResult::parse(&before, "prevResult")?;
    set_prev_result(&mut config, before.clone(), Bench::input(&[small()], None))?;
    let added = bench.added(environment, config)?.map_err(|refusal| refusal.message)?;
    expect_given(&added, &["192.0.2.9", "10.1.2.2"])?;
    expect(added.result.routes == before.routes, || {
        let routes = added.result.routes.iter().map(|route| route.dst);
        format!("the routes are to {}", list(routes))
    })?;
    let left = added.answer.pools.map(Value::from);
    expect(left == Some(json!([])), || {
        format!("it serves the only pool, left are {}", plain::optional(left))
    })
}

fn static_addresses_are_answered_beside_one_for_each_pool(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let pools = [small()];
    let gateway = IpAddr::from([192, 0, 2, 1]);
    let fixed = IpConfig::new(network("192.0.2.9/24")?, Some(gateway));
    for who in [C1, "c2/eth0"] {
        let added = add_with_static(bench, who, &pools, &fixed)?;
        let given = added
            .result
            .ips
            .iter()
            .any(|ip| ip.address == fixed.address && ip.gateway == fixed.gateway);
        expect(given, || {
            format!("192.0.2.9/24 with gateway {gateway} is missing in {}", list(&added.networks))
        })?;
        expect(added.addresses.len() == 2, || {
            format!(
                "expected one address of the pool and the static one, but {} was given",
                list(&added.addresses)
            )
        })?;
        bench.check(who, &pools, &added)?;
        bench.del(who, &pools, Some(&added))?;
    }
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 13, || format!("all 13 addresses are free, but {} were given", left.len()))
}

fn static_addresses_alone_are_answered(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let fixed = IpConfig::new(network("192.0.2.9/24")?, None);
    for who in [C1, "c2/eth0"] {
        let added = add_with_static(bench, who, &[], &fixed)?;
        expect_given(&added, &["192.0.2.9"])?;
        for verb in [Verb::Check, Verb::Del] {
            let (environment, mut config) = bench.call(verb, who, &[], Some(&added))?;
            let static_addresses = vec![fixed.clone()];
            let input = DelegateInput { static_addresses, ..Bench::input(&[], Some(&added)) };
            set_prev_result(&mut config, added.result.clone(), input)?;
            bench.nothing(verb.as_str(), who, environment, config)?;
        }
    }
    Ok(())
}

fn a_pool_leases_no_static_address(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let pools = [small()];
    let fixed = IpConfig::new(network("10.1.2.5/28")?, None);
    let mut given = BTreeSet::new();
    for number in 1..=12 {
        let added = add_with_static(bench, &format!("c{number}/eth0"), &pools, &fixed)?;
        given.extend(added.addresses);
    }
    // 12 of the pool, and the same static one for all.
    let usable: BTreeSet<IpAddr> = (2..=14).map(|n| [10, 1, 2, n].into()).collect();
    expect(given == usable, || {
        format!("expected {}, but {} was given", list(&usable), list(&given))
    })
}

/// An ADD that is shown a static address beside pools.
fn add_with_static(
    bench: &Bench,
    who: &str,
    pools: &[PoolSpec],
    fixed: &IpConfig,
) -> Result<Added, Finding> {
    let (environment, mut config) = bench.call(Verb::Add, who, pools, None)?;
    let static_addresses = vec![fixed.clone()];
    let input = DelegateInput { static_addresses, ..Bench::input(pools, None) };
    set_prev_result(&mut config, IpamResult::default(), input)?;
    let added = bench.added(environment, config)?;
    Ok(added.map_err(|refusal| refusal.message)?)
}

fn an_add_without_pools_is_error_7(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    bench.refuse_add(C1, &[], 7)
}

fn a_pool_is_given_out_to_the_last_address(bench: &Bench) -> CheckResult {
    let given = bench.fill(&small(), 20)?;
    let usable: BTreeSet<IpAddr> = (2..=14).map(|n| [10, 1, 2, n].into()).collect();
    expect(given == usable, || {
        format!("expected {}, but {} was given", list(&usable), list(&given))
    })
}

fn excluded_addresses_are_not_given(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let exclude = ["10.1.2.4/30", "10.1.2.9", "10.1.2.14/32"];
    let pool = with_ranges(json!([{"subnet": "10.1.2.0/28", "exclude": exclude}]));
    let given = bench.fill(&pool, 20)?;
    let usable: BTreeSet<IpAddr> =
        [2, 3, 8, 10, 11, 12, 13].map(|n| [10, 1, 2, n].into()).into_iter().collect();
    expect(given == usable, || {
        format!("expected {}, but {} was given", list(&usable), list(&given))
    })
}

fn every_range_of_a_pool_is_used(bench: &Bench) -> CheckResult {
    let pool = with_ranges(json!([
        {"subnet": "10.1.3.0/28", "rangeStart": "10.1.3.8", "rangeEnd": "10.1.3.9"},
        {"subnet": "10.1.2.0/28", "rangeStart": "10.1.2.4", "rangeEnd": "10.1.2.6", "gateway": "10.1.2.5"},
    ]));
    let given: Vec<String> = bench.fill(&pool, 9)?.iter().map(ToString::to_string).collect();
    let usable = ["10.1.2.4", "10.1.2.6", "10.1.3.8", "10.1.3.9"];
    expect(given == usable, || format!("expected {}, but {} was given", list(usable), list(&given)))
}

fn an_add_again_gives_the_same_addresses(bench: &Bench) -> CheckResult {
    let pools = [small(), ipv6(), other()];
    let first = bench.add(C1, &pools)?;
    bench.add("c2/eth0", &pools)?;
    for _ in 0..3 {
        let again = bench.add(C1, &pools)?;
        expect(again.addresses == first.addresses, || {
            format!("first {}, then {}", list(&first.addresses), list(&again.addresses))
        })?;
    }
    bench.del(C1, &pools, None)?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 12, || {
        format!("12 of 13 addresses are free, but {} were given", left.len())
    })
}

fn an_add_is_all_or_nothing(bench: &Bench) -> CheckResult {
    bench.fill(&other(), 20)?;
    bench.refuse_add(C1, &[small(), other()], 100)?;
    bench.refuse_add(C1, &[other(), small()], 100)?;
    let given = bench.fill_all(&small())?;
    expect(given.len() == 13, || {
        format!("all 13 addresses are free, but {} were given", given.len())
    })
}

fn a_full_pool_has_room_after_a_del(bench: &Bench) -> CheckResult {
    bench.fill(&small(), 20)?;
    bench.refuse_add(C1, &[small()], 100)?;
    bench.del("fill5/eth0", &[small()], None)?;
    let added = bench.add(C1, &[small()])?;
    expect_given(&added, &["10.1.2.7"])
}

fn an_added_pool_adds_a_lease(bench: &Bench) -> CheckResult {
    let first = bench.add(C1, &[small()])?;
    let both = bench.add(C1, &[small(), other()])?;
    expect(both.addresses.first() == first.addresses.first(), || {
        format!("first {}, then {}", list(&first.addresses), list(&both.addresses))
    })?;
    bench.check(C1, &[small(), other()], &both.without_leases())?;
    bench.del(C1, &[small(), other()], None)?;
    for pool in [small(), other()] {
        let left = bench.fill_all(&pool)?;
        expect(left.len() == 13, || {
            format!("all 13 addresses are free, but {} were given", left.len())
        })?;
    }
    Ok(())
}

fn changed_pools_replace_the_lease(bench: &Bench) -> CheckResult {
    let before = bench.add(C1, &[small()])?;
    let after = bench.add(C1, &[other()])?;
    expect_given(&after, &["10.1.3.2"])?;
    bench.refuse_check(C1, &[small()], &before.without_leases())?;
    let left = bench.fill(&small(), 20)?;
    expect(left.len() == 13, || format!("all 13 addresses are free, but {} were given", left.len()))
}

fn round_robin_reuses_an_address_late(bench: &Bench) -> CheckResult {
    let pool = [with_ranges(json!([
        {"subnet": "10.1.3.0/28", "rangeStart": "10.1.3.4", "rangeEnd": "10.1.3.5"},
        {"subnet": "10.1.2.0/28", "rangeStart": "10.1.2.7", "rangeEnd": "10.1.2.8"},
    ]))
    .by("round-robin")];
    let order = ["10.1.3.4", "10.1.3.5", "10.1.2.7", "10.1.2.8", "10.1.3.4", "10.1.3.5"];
    for address in order {
        expect_given(&bench.add(C1, &pool)?, &[address])?;
        bench.del(C1, &pool, None)?;
    }
    Ok(())
}

fn lowest_reuses_the_lowest(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let pool = [small().by("lowest")];
    for (who, address) in [(C1, "10.1.2.2"), ("c2/eth0", "10.1.2.3"), ("c3/eth0", "10.1.2.4")] {
        expect_given(&bench.add(who, &pool)?, &[address])?;
    }
    bench.del("c2/eth0", &pool, None)?;
    expect_given(&bench.add("c4/eth0", &pool)?, &["10.1.2.3"])?;
    expect_given(&bench.add("c5/eth0", &pool)?, &["10.1.2.5"])
}

fn random_stays_inside(bench: &Bench) -> CheckResult {
    bench.delegates_only()?;
    let given = bench.fill(&small().by("random"), 20)?;
    let usable: BTreeSet<IpAddr> = (2..=14).map(|n| [10, 1, 2, n].into()).collect();
    expect(given == usable, || {
        format!("expected {}, but {} was given", list(&usable), list(&given))
    })
}
