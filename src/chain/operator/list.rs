//! `list`: who holds which address.

use serde_json::Value;

use super::ask::{Told, ask_leases};
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::{Column, LeaseRow, Words, age, table};

/// The question that an allocator answers with all its leases of the network.
pub(super) const QUESTION: [&str; 4] = ["list", "--json", "--config", "-"];

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("list takes one network"));
    }
    let mut printed = Printed::default();
    let told = ask_leases(operator, &QUESTION, &mut printed)?;
    printed.text = shown(operator, &told);
    Ok(printed)
}

/// The rows as a table, or as JSON where that was asked for.
pub(super) fn shown(operator: &Operator, told: &[Told<LeaseRow>]) -> String {
    if operator.words.has("json") {
        return format!("{}\n", told.iter().map(to_json).collect::<Value>());
    }
    let heads =
        ["ADDRESS", "POOL", "CONTAINER", "IFNAME", "NODE", "AGE", "STATE", "RECORD", "NOTE"];
    let rows: Vec<Vec<String>> = told.iter().map(cells).collect();
    let noted = told.iter().any(|told| told.row.note.is_some());
    let columns = if noted { &heads[..] } else { &heads[..8] };
    let columns: Vec<Column> = columns.iter().map(|head| Column::Text(head)).collect();
    table(&columns, &rows)
}

/// A row as the allocator gave it, with its name and the word of the record.
pub(super) fn to_json(told: &Told<LeaseRow>) -> Value {
    let mut row = serde_json::to_value(&told.row).unwrap_or_default();
    row["allocator"] = told.allocator.as_str().into();
    row["record"] = told.here.says(&told.row).map(|says| says.state).into();
    row
}

fn cells(told: &Told<LeaseRow>) -> Vec<String> {
    let row = &told.row;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![
        row.address.to_string(),
        text(&row.pool),
        text(&row.container),
        text(&row.ifname),
        text(&row.node),
        row.age_seconds.map(age).unwrap_or_default(),
        row.state.as_str().to_owned(),
        told.here.says(row).map_or("", |says| says.state).to_owned(),
        text(&row.note),
    ]
}
