//! The pool that each address is for that the runtime requests.

use std::net::IpAddr;

use log::debug;

use super::SectionPool;
use crate::cni::{RequestedAddress, Verb};
use crate::delegate::Request;
use crate::error::{Error, ErrorCode, Result};
use crate::pool::{Range, RangeSet};

/// Assigns each requested address to the pool that it is for.
///
/// Only an ADD takes addresses: on the other verbs a request that does not fit is left out.
///
/// # Errors
/// On ADD: a request is malformed, fits no pool or more than one, may not be given out, or is the
/// second for its pool.
pub(super) fn assign(pools: &mut [SectionPool], request: &Request) -> Result<()> {
    for pool in &*pools {
        fail_on_add(request, check_own(pool))?;
    }
    let requested = match request.requested() {
        Ok(requested) => requested,
        Err(error) => return fail_on_add(request, Err(error)),
    };
    for requested in requested {
        fail_on_add(request, assign_one(pools, requested))?;
    }
    Ok(())
}

fn fail_on_add(request: &Request, result: Result<()>) -> Result<()> {
    match (result, request.verb) {
        (Err(error), verb) if verb != Verb::Add => {
            debug!("a requested address is ignored: {}", error.in_full());
            Ok(())
        }
        (result, _) => result,
    }
}

/// The address in `requested-ip` must fit the pool's own ranges.
fn check_own(pool: &SectionPool) -> Result<()> {
    let (Some(own), Some(set)) = (pool.pool.requested_ip, &pool.set) else { return Ok(()) };
    match set.refusal(own) {
        Some(reason) => Err(refused(&pool.own_path(), own, reason)),
        None => Ok(()),
    }
}

fn assign_one(pools: &mut [SectionPool], requested: RequestedAddress) -> Result<()> {
    if pools.iter().any(|pool| pool.pool.requested_ip == Some(requested.address)) {
        return Ok(());
    }
    let index = find(pools, &requested)?;
    let pool = &mut pools[index];
    if let Some((address, path)) = pool.request() {
        let reason = format!("the second request for {}, after {address} of {path}", pool.path);
        return Err(refused(&requested.path, requested.address, reason)
            .advise("an ADD takes one address from each pool: request one of the two"));
    }
    pool.requested = Some(requested);
    Ok(())
}

/// The pool whose ranges have the address, else the only one without ranges and without a request.
fn find(pools: &[SectionPool], requested: &RequestedAddress) -> Result<usize> {
    let RequestedAddress { address, path, .. } = requested;
    for (i, pool) in pools.iter().enumerate() {
        let set = pool.set.as_ref().filter(|set| set.find(*address).is_some());
        if let Some(set) = set {
            return match set.refusal(*address) {
                None => Ok(i),
                Some(reason) => Err(refused(path, *address, reason)),
            };
        }
    }
    if let Some(range) = ranges(pools).find(|range| range.gateway() == Some(*address)) {
        return Err(refused(path, *address, format!("the gateway of {range}")));
    }
    let without_ranges: Vec<(usize, &SectionPool)> =
        pools.iter().enumerate().filter(|(_, pool)| pool.set.is_none()).collect();
    let open = without_ranges.iter().filter(|(_, pool)| pool.pool.requested_ip.is_none());
    match open.collect::<Vec<_>>()[..] {
        [(i, _)] => Ok(*i),
        [] => {
            let ranges: Vec<_> = ranges(pools).map(Range::to_string).collect();
            let taken: Vec<_> = without_ranges.iter().map(|(_, pool)| pool.own_path()).collect();
            let mut reasons = Vec::new();
            if !ranges.is_empty() {
                reasons.push(format!("not in {}", ranges.join(",")));
            }
            if !taken.is_empty() {
                reasons.push(format!("not the address of {}", taken.join(", ")));
            }
            Err(refused(path, *address, reasons.join(" and ")))
        }
        [..] => {
            let paths: Vec<_> = without_ranges.iter().map(|(_, pool)| pool.path.as_str()).collect();
            let reason = format!("ambiguous: {} have no ranges", paths.join(", "));
            Err(refused(path, *address, reason)
                .advise("give each pool its ranges, or set requested-ip in the pool"))
        }
    }
}

fn ranges(pools: &[SectionPool]) -> impl Iterator<Item = &Range> {
    pools.iter().filter_map(|pool| pool.set.as_ref()).flat_map(RangeSet::ranges)
}

fn refused(path: &str, address: IpAddr, reason: String) -> Error {
    Error::new(ErrorCode::NOT_IN_POOL, format!("{address} is {reason}")).at(path)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::cni::Verb;
    use crate::ipam_section::call::SectionCall;

    fn requested(call: SectionCall) -> Vec<Value> {
        let answer = call.ok();
        let pools = answer["pools"].as_array().unwrap().iter();
        pools
            .map(|pool| {
                assert_eq!(pool.get("requested-ip"), pool.get("requested_ip"));
                pool.get("requested-ip").cloned().unwrap_or_default()
            })
            .collect()
    }

    fn two_sets() -> SectionCall {
        SectionCall::ipam(json!({"ranges": [
            [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "exclude": ["10.1.2.64/26"]},
             {"subnet": "10.3.0.0/16"}],
            [{"subnet": "fd00::/64"}],
        ]}))
    }

    #[test]
    fn requests_find_their_set_from_every_source() {
        for call in [
            two_sets().args("IP=fd00::9/64,10.3.0.9"),
            two_sets().args("ip=10.3.0.9").with("runtimeConfig", json!({"ips": ["fd00::9"]})),
            two_sets().with("args", json!({"cni": {"ips": ["10.3.0.9/16", "FD00:0::9"]}})),
            two_sets()
                .args("IgnoreUnknown=1;IP=10.3.0.9")
                .with("args", json!({"cni": {"ips": ["10.3.0.9", "fd00::9"]}}))
                .with("runtimeConfig", json!({"ips": ["fd00::9"]})),
        ] {
            assert_eq!(requested(call), ["10.3.0.9", "fd00::9"]);
        }
        assert_eq!(requested(two_sets().args("IP=fd00::9")), [json!(null), json!("fd00::9")]);
    }

    #[test]
    fn requests_that_do_not_fit_are_refused() {
        for (args, message) in [
            ("10.9.9.9", "10.9.9.9 is not in 10.1.2.9-10.1.2.254,10.3.0.1-10.3.255.254,fd"),
            ("10.1.2.255", "10.1.2.255 is not in 10.1.2.9-"),
            ("10.3.0.1", "10.3.0.1 is the gateway of 10.3.0.1-10.3.255.254"),
            ("10.1.2.1", "10.1.2.1 is the gateway of 10.1.2.9-10.1.2.254"),
            ("10.1.2.65", "10.1.2.65 is excluded from 10.1.2.9-10.1.2.254 by 10.1.2.64/26"),
            (
                "10.1.2.9,10.3.0.9",
                "10.3.0.9 is the second request for ipam.ranges[0], after 10.1.2.9 of CNI_ARGS IP",
            ),
        ] {
            let call = two_sets().args(&format!("IP={args}"));
            call.err(101, &format!("CNI_ARGS IP: {message}"));
        }
        two_sets()
            .with("args", json!({"cni": {"ips": ["10.1.2.9"]}}))
            .with("runtimeConfig", json!({"ips": ["10.1.2.10"]}))
            .err(
                101,
                "runtimeConfig.ips[0]: 10.1.2.10 is the second request for ipam.ranges[0], after 10.1.2.9 of args.cni",
            );
        two_sets().args("IP=pear").err(4, "CNI_ARGS IP: invalid address \"pear\"");
    }

    #[test]
    fn other_verbs_leave_out_what_does_not_fit() {
        for verb in [Verb::Del, Verb::Check, Verb::Gc, Verb::Status] {
            let call = two_sets().args("IP=10.9.9.9,10.3.0.1,10.1.2.9,10.3.0.9").verb(verb);
            assert_eq!(requested(call), [json!("10.1.2.9"), json!(null)], "{verb}");
            let call = two_sets().args("IP=pear").verb(verb);
            assert_eq!(requested(call), [json!(null), json!(null)], "{verb}");
            let pools =
                json!([{"ranges": [{"subnet": "10.1.2.0/24"}], "requested-ip": "10.1.2.1"}]);
            let call = SectionCall::ipam(json!({"pools": pools})).verb(verb);
            assert_eq!(requested(call), ["10.1.2.1"], "{verb}");
        }
    }

    fn pools(pools: Value, args: &str) -> SectionCall {
        SectionCall::ipam(json!({"pools": pools})).args(args)
    }

    #[test]
    fn the_one_pool_without_ranges_takes_the_rest() {
        let one = json!([
            {"name": "a", "ranges": [{"subnet": "10.1.2.0/24"}]},
            {"name": "b", "requested_ip": "192.0.2.1"},
            {"name": "c"},
        ]);
        let call = pools(one.clone(), "IP=10.9.9.9,10.1.2.9");
        assert_eq!(requested(call), ["10.1.2.9", "192.0.2.1", "10.9.9.9"]);
        let call = pools(one.clone(), "IP=192.0.2.1");
        assert_eq!(requested(call), [json!(null), json!("192.0.2.1"), json!(null)]);
        pools(one.clone(), "IP=10.9.9.9,10.9.9.8")
            .err(101, "CNI_ARGS IP: 10.9.9.8 is the second request for ipam.pools[2], after 10.9.9.9 of CNI_ARGS IP");
        pools(one, "IP=10.1.2.1").err(101, "CNI_ARGS IP: 10.1.2.1 is the gateway of 10.1.2.1-");
    }

    #[test]
    fn a_request_fits_one_pool_or_none() {
        for (given, message) in [
            (
                json!([{"name": "a"}, {"name": "b"}]),
                "ambiguous: ipam.pools[0], ipam.pools[1] have no ranges",
            ),
            (
                json!([{"name": "a", "requested-ip": "10.1.2.3"}]),
                "not the address of ipam.pools[0].requested-ip",
            ),
            (
                json!([{"name": "a", "requested-ip": "10.1.2.3"}, {"ranges": [{"subnet": "10.1.0.0/24"}]}]),
                "not in 10.1.0.1-10.1.0.254 and not the address of ipam.pools[0].requested-ip",
            ),
            (
                json!([{"ranges": [{"subnet": "10.9.9.0/24"}], "requested-ip": "10.9.9.8"}]),
                "the second request for ipam.pools[0], after 10.9.9.8 of ipam.pools[0].requested-ip",
            ),
        ] {
            let details = pools(given, "IP=10.9.9.9")
                .err(101, &format!("CNI_ARGS IP: 10.9.9.9 is {message}"));
            if message.starts_with("ambiguous") {
                assert_eq!(details, "give each pool its ranges, or set requested-ip in the pool");
            }
        }
    }

    #[test]
    fn a_pools_own_request_must_fit_its_ranges() {
        for (own, message) in [
            ("10.1.2.1", "10.1.2.1 is the gateway of 10.1.2.1-10.1.2.254"),
            ("10.9.9.9", "10.9.9.9 is not in 10.1.2.1-10.1.2.254"),
            ("10.1.2.7", "10.1.2.7 is excluded from 10.1.2.1-10.1.2.254 by 10.1.2.7/32"),
        ] {
            let range = json!({"subnet": "10.1.2.0/24", "exclude": ["10.1.2.7"]});
            pools(json!([{"ranges": [range], "requested-ip": own}]), "")
                .err(101, &format!("ipam.pools[0].requested-ip: {message}"));
        }
    }
}
