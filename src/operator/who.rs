//! `who`: who holds one address.

use std::net::IpAddr;

use super::ask::ask_leases;
use super::list::{QUESTION, show};
use super::{Operator, Printed, say};
use ipam_cli::Words;
use ipam_kit::cni::address::parse_address_or_cidr;
use ipam_kit::error::{Error, ErrorCode, Result};

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let [_, address] = operator.words.operands()[..] else {
        return Err(Words::refusal("who takes a network and an address"));
    };
    let address = parse(address)?;
    let mut printed = Printed::default();
    let mut leases = ask_leases(operator, &QUESTION, &mut printed)?;
    leases.retain(|lease| lease.address == address);
    if leases.is_empty() && !printed.failed {
        return Err(Error::new(ErrorCode::NOT_HELD, format!("nobody holds {address}")));
    }
    show(operator, &leases, &mut printed);
    if operator.words.has("json") {
        return Ok(printed);
    }
    for record in leases.iter().filter_map(|lease| lease.says()?.record) {
        if let Some(last) = record.attempts.last() {
            let chain = last.attempt.chain.join(", ");
            let parts = ["netns ", &last.attempt.netns, ", chain ", &chain, "\n"];
            say(&mut printed.text, &parts);
        }
    }
    Ok(printed)
}

/// An address as it is typed; a prefix length beside it is passed over.
pub(crate) fn parse(text: &str) -> Result<IpAddr> {
    let parsed = parse_address_or_cidr(text);
    parsed.map(|(address, _)| address).map_err(|error| Words::refusal(error.to_string()))
}
