//! `list`: the leases of a network.

use super::ask::{AllocatorLease, ask_leases};
use super::call::Operator;
use super::printed::Printed;
use crate::chain::record::Record;
use ipam_cli::{Row, print_leases};
use ipam_kit::error::Result;

/// The arguments that an allocator answers with all its leases of the network.
pub(crate) const QUESTION: [&str; 4] = ["list", "--json", "--config", "-"];

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let mut printed = Printed::default();
    let leases = ask_leases(operator, &QUESTION, &mut printed)?;
    show(operator, &leases, &mut printed);
    Ok(printed)
}

/// Prints leases as allocators gave them, each with the state of its owner's record.
pub(crate) fn show(operator: &Operator, leases: &[AllocatorLease], printed: &mut Printed) {
    printed.text = print_leases(&operator.arguments, leases.iter().map(row));
}

/// The row of an allocator, with the state of the owner's record.
fn row(lease: &AllocatorLease) -> Row {
    let mut row = lease.row.clone();
    let says = lease.record_state();
    row.set_text_or_null("record", says.map(|says| says.state));
    let record = says.and_then(|says| says.record.as_ref());
    if let Some((namespace, pod)) = record.and_then(Record::pod) {
        row.set_text("namespace", namespace);
        row.set_text("pod", pod);
    }
    if let Some(last) = record.and_then(|record| record.attempts.last()) {
        row.set_text("netns", &last.header.netns);
        row.set("chain", last.header.chain.clone().into());
    }
    row
}
