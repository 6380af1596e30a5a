//! `who`: who holds one address.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::record::Record;
use super::ask::{Told, ask_leases};
use super::list::{QUESTION, shown, to_json};
use super::{Operator, Printed};
use crate::cni::address::parse_address_or_cidr;
use crate::error::{Error, ErrorCode, Result};
use crate::operate::{LeaseRow, Words};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let [_, address] = operator.words.operands()[..] else {
        return Err(Words::refusal("who takes a network and an address"));
    };
    let address = parse(address)?;
    let mut printed = Printed::default();
    let mut told = ask_leases(operator, &QUESTION, &mut printed)?;
    told.retain(|told| told.row.address == address);
    if told.is_empty() && !printed.failed {
        return Err(Error::new(ErrorCode::NOT_HELD, format!("nobody holds {address}")));
    }
    if operator.words.has("json") {
        printed.text = format!("{}\n", told.iter().map(whole).collect::<Value>());
        return Ok(printed);
    }
    printed.text = shown(operator, &told);
    for told in &told {
        if let Some((netns, chain)) = circumstances(told) {
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

fn whole(told: &Told<LeaseRow>) -> Value {
    let mut row = to_json(told);
    if let Some((netns, chain)) = circumstances(told) {
        row["netns"] = netns.into();
        row["chain"] = json!(chain);
    }
    row
}

/// The namespace and the chain of the owner's last ADD.
fn circumstances(told: &Told<LeaseRow>) -> Option<(String, Vec<String>)> {
    let record: Record = told.here.says(&told.row)?.record?;
    let last = record.attempts.into_iter().next_back()?.attempt;
    Some((last.netns, last.chain))
}
