//! `list`: who holds which address.

use serde_json::Value;

use super::ask::{Lease, ask_leases};
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::{LeaseRow, Words, lease_table};

/// The question that an allocator answers with all its leases of the network.
pub(super) const QUESTION: [&str; 4] = ["list", "--json", "--config", "-"];

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("list takes one network"));
    }
    let mut printed = Printed::default();
    let leases = ask_leases(operator, &QUESTION, &mut printed)?;
    printed.text = shown(operator, &leases);
    Ok(printed)
}

/// The rows as a table, or as JSON where that was asked for.
pub(super) fn shown(operator: &Operator, leases: &[Lease]) -> String {
    if operator.words.has("json") {
        return format!("{}\n", leases.iter().map(to_json).collect::<Value>());
    }
    let rows: Vec<LeaseRow> = leases.iter().map(|lease| lease.row.clone()).collect();
    let says = |lease: &Lease| lease.says().map_or("", |says| says.state);
    lease_table(&rows, Some(&leases.iter().map(says).collect::<Vec<_>>()))
}

/// A row as the allocator gave it, with its name and the word of the record.
pub(super) fn to_json(lease: &Lease) -> Value {
    let mut row = lease.told.to_json();
    row["record"] = lease.says().map(|says| says.state).into();
    row
}
