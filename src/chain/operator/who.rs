//! `who`: who holds one address.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::record::Record;
use super::ask::{Lease, ask_leases};
use super::list::{QUESTION, shown, to_json};
use super::{Operator, Printed};
use crate::cni::address::parse_address_or_cidr;
use crate::error::{Error, ErrorCode, Result};
use crate::operate::Words;

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let [_, address] = operator.words.operands()[..] else {
        return Err(Words::refusal("who takes a network and an address"));
    };
    let address = parse(address)?;
    let mut printed = Printed::default();
    let mut leases = ask_leases(operator, &QUESTION, &mut printed)?;
    leases.retain(|lease| lease.row.address == address);
    if leases.is_empty() && !printed.failed {
        return Err(Error::new(ErrorCode::NOT_HELD, format!("nobody holds {address}")));
    }
    if operator.words.has("json") {
        printed.text = format!("{}\n", leases.iter().map(whole).collect::<Value>());
        return Ok(printed);
    }
    printed.text = shown(operator, &leases);
    for lease in &leases {
        if let Some((netns, chain)) = circumstances(lease) {
            printed.text.extend(["netns ", &netns, ", chain ", &chain.join(", "), "\n"]);
        }
    }
    Ok(printed)
}

/// An address as it is typed; a prefix length beside it is passed over.
pub(super) fn parse(text: &str) -> Result<IpAddr> {
    let parsed = parse_address_or_cidr(text);
    parsed.map(|(address, _)| address).map_err(|error| Words::refusal(error.to_string()))
}

fn whole(lease: &Lease) -> Value {
    let mut row = to_json(lease);
    if let Some((netns, chain)) = circumstances(lease) {
        row["netns"] = netns.into();
        row["chain"] = json!(chain);
    }
    row
}

/// The namespace and the chain of the owner's last ADD.
fn circumstances(lease: &Lease) -> Option<(String, Vec<String>)> {
    let record: Record = lease.says()?.record?;
    let last = record.attempts.into_iter().next_back()?.attempt;
    Some((last.netns, last.chain))
}
