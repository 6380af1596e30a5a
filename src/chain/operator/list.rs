//! `list`: who holds which address.

use serde_json::Value;

use super::ask::{Lease, ask_leases};
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::{Column, Words, age, table};

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
    let heads =
        ["ADDRESS", "POOL", "CONTAINER", "IFNAME", "NODE", "AGE", "STATE", "RECORD", "NOTE"];
    let rows: Vec<Vec<String>> = leases.iter().map(cells).collect();
    let noted = leases.iter().any(|lease| lease.row.note.is_some());
    let columns = heads.map(Column::Text);
    table(if noted { &columns } else { &columns[..8] }, &rows)
}

/// A row as the allocator gave it, with its name and the word of the record.
pub(super) fn to_json(lease: &Lease) -> Value {
    let mut row = lease.told.to_json();
    row["record"] = lease.says().map(|says| says.state).into();
    row
}

fn cells(lease: &Lease) -> Vec<String> {
    let row = &lease.row;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![
        row.address.to_string(),
        text(&row.pool),
        text(&row.container),
        text(&row.ifname),
        text(&row.node),
        row.age.map(age).unwrap_or_default(),
        row.state.as_str().to_owned(),
        lease.says().map_or("", |says| says.state).to_owned(),
        text(&row.note),
    ]
}
