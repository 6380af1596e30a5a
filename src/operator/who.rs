//! `who`: who holds one address.

use std::net::IpAddr;

use serde_json::Value;

use super::ask::{AllocatorRow, ask, ask_leases};
use super::call::Operator;
use super::list::{QUESTION, show};
use super::pools;
use super::printed::Printed;
use ipam_cli::{PoolRow, push_line, usage_error};
use ipam_kit::cni::address::{parse_address_or_cidr, parse_cidr};
use ipam_kit::error::{Error, ErrorCode, Result};

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let address = parse(operator.arguments.operand(1).unwrap_or_default())?;
    let mut printed = Printed::default();
    let mut leases = ask_leases(operator, &QUESTION, &mut printed)?;
    leases.retain(|lease| lease.address == address);
    if leases.is_empty() && !printed.failed {
        let nobody = Error::new(ErrorCode::NOT_HELD, format!("nobody holds {address}"));
        return Err(match describe_place(operator, address) {
            Some(place) => nobody.advise(place),
            None => nobody,
        });
    }
    show(operator, &leases, &mut printed);
    if operator.prints_json() {
        return Ok(printed);
    }
    for record in leases.iter().filter_map(|lease| lease.record_state()?.record) {
        if let Some(last) = record.attempts.last() {
            let chain = last.header.chain.join(", ");
            push_line(&mut printed.text, &format!("netns {}, chain {chain}", last.header.netns));
        }
    }
    Ok(printed)
}

/// Whether a free address lies in a pool; `None` if an allocator does not answer.
fn describe_place(operator: &Operator, address: IpAddr) -> Option<String> {
    let mut printed = Printed::default();
    let rows = ask(operator, &pools::QUESTION, &mut printed).ok()?;
    let mut ranges = Vec::new();
    for AllocatorRow { row, path, .. } in rows {
        let pool = PoolRow::parse(&Value::from(row.clone()), &path).ok()?;
        if pool.blocks.iter().any(|block| (block.from..=block.to).contains(&address)) {
            let name =
                row.get("pool").as_str().map_or("a pool".to_owned(), |it| format!("the pool {it}"));
            return Some(format!(
                "it lies in {name}, and is free, or never given as the gateway is"
            ));
        }
        ranges.push(row.text("ranges").to_owned());
    }
    let ranges = Error::listed(ranges, ", ");
    (!printed.failed).then(|| format!("it lies outside of the pools: {ranges}"))
}

/// An address as it is typed, with the prefix length of its subnet or without.
pub(crate) fn parse(text: &str) -> Result<IpAddr> {
    let (address, prefix) =
        parse_address_or_cidr(text).map_err(|error| usage_error(error.to_string()))?;
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
