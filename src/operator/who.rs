//! `who`: the holder of one address, or the reason that no owner holds it.

use std::net::IpAddr;

use serde_json::Value;

use super::ask::{AllocatorRow, ask, ask_leases};
use super::call::Operator;
use super::list::{QUESTION, show};
use super::pools;
use super::printed::Printed;
use ipam_cli::{PoolPlace, PoolRow, not_an_address, push_line};
use ipam_kit::cni::address::{parse_address_or_cidr, parse_cidr};
use ipam_kit::error::{Error, ErrorCode, Result};

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let address = parse(operator.arguments.operand(1).unwrap_or_default())?;
    let mut printed = Printed::default();
    let mut leases = ask_leases(operator, &QUESTION, &mut printed)?;
    leases.retain(|lease| lease.address == address);
    if leases.is_empty() && !printed.failed {
        // A warning before it may name a plugin that cannot be asked.
        printed.fail(&not_held(operator, address));
        return Ok(printed);
    }
    show(operator, &leases, &mut printed);
    if operator.prints_json() {
        return Ok(printed);
    }
    for record in leases.iter().filter_map(|lease| lease.record_state()?.record.as_ref()) {
        if let Some(last) = record.attempts.last() {
            let pod = record.pod().map(|(namespace, pod)| format!("pod {namespace}/{pod}, "));
            let (pod, netns) = (pod.unwrap_or_default(), &last.header.netns);
            let chain = last.header.chain.join(", ");
            push_line(&mut printed.text, &format!("{pod}netns {netns}, chain {chain}"));
        }
    }
    Ok(printed)
}

/// Error 104 for an address that no allocator of the network holds: says whether it is free, a
/// gateway, excluded or in no pool.
pub(super) fn not_held(operator: &Operator, address: IpAddr) -> Error {
    let network = operator.network().map(|found| found.name).unwrap_or_default();
    let message = describe_place(operator, &network, address)
        .unwrap_or_else(|| format!("no owner holds {address} on {network}"));
    Error::new(ErrorCode::NOT_HELD, message)
}

/// Places an address that no owner holds in the pools; `None` if an allocator does not answer.
fn describe_place(operator: &Operator, network: &str, address: IpAddr) -> Option<String> {
    let mut printed = Printed::default();
    let rows = ask(operator, &pools::QUESTION, &mut printed).ok()?;
    let mut ranges = Vec::new();
    for AllocatorRow { row, path, .. } in rows {
        let pool = PoolRow::parse(&Value::from(row.clone()), &path).ok()?;
        let its_ranges = row.text("ranges");
        let Some(place) = pool.place(address) else {
            ranges.push(its_ranges.to_owned());
            continue;
        };
        let pool = match row.get("pool").as_str() {
            Some(name) => format!("pool {name} ({its_ranges})"),
            None => format!("pool {its_ranges}"),
        };
        return Some(match place {
            PoolPlace::Free => format!("{address} is free, in {pool}"),
            PoolPlace::Gateway => format!("{address} is the gateway of {pool}, and never given"),
            PoolPlace::Excluded => format!("{address} is excluded from {pool}, and never given"),
            PoolPlace::Unclear => {
                format!("{address} is free in {pool}, or its gateway, which is never given")
            }
        });
    }
    if printed.failed {
        return None;
    }
    Some(match &ranges[..] {
        [] => format!("{address} is in no pool of {network}: its allocators name none"),
        _ => {
            let ranges = Error::listed(ranges, ", ");
            format!("{address} is in no pool of {network}: its pools are {ranges}")
        }
    })
}

/// Parses a typed address, with the prefix length of its subnet or without.
pub(crate) fn parse(text: &str) -> Result<IpAddr> {
    let (address, prefix) = parse_address_or_cidr(text).map_err(not_an_address)?;
    let subnet = prefix.and_then(|_| parse_cidr(text).ok());
    if subnet
        .is_some_and(|net| net.addr() == net.network() && net.prefix_len() < net.max_prefix_len())
    {
        let message = format!("{text} is a subnet");
        return Err(Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
            .advise("name each address, without a prefix length"));
    }
    Ok(address)
}
