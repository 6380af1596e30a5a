//! `pools`: how full the pools are.

use serde_json::Value;

use super::ask::{Told, ask};
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::{Column, Count, Glyphs, PoolRow, Words, map, table};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("pools takes one network"));
    }
    let mut printed = Printed::default();
    let mut told: Vec<Told<PoolRow>> = Vec::new();
    for new in ask::<PoolRow>(operator, &["pools", "--json", "--config", "-"], &mut printed)? {
        let same = |known: &Told<PoolRow>| known.allocator == new.allocator && known.row == new.row;
        if !told.iter().any(same) {
            told.push(new);
        }
    }
    printed.text = if operator.words.has("json") {
        format!("{}\n", told.iter().map(to_json).collect::<Value>())
    } else {
        let ascii = operator.words.has("ascii");
        for_people(&told, if ascii { Glyphs::Ascii } else { Glyphs::of(&operator.environment) })
    };
    Ok(printed)
}

fn to_json(told: &Told<PoolRow>) -> Value {
    let mut row = serde_json::to_value(&told.row).unwrap_or_default();
    row["allocator"] = told.allocator.as_str().into();
    row
}

fn for_people(told: &[Told<PoolRow>], glyphs: Glyphs) -> String {
    let columns = [
        Column::Text("POOL"),
        Column::Text("RANGES"),
        Column::Number("SIZE"),
        Column::Number("HELD"),
        Column::Number("FREE"),
        Column::Number("USE%"),
    ];
    let rows: Vec<Vec<String>> = told.iter().map(|told| cells(&told.row)).collect();
    let mut text = table(&columns, &rows);
    for told in told {
        let drawn = map(&told.row, glyphs);
        if !drawn.is_empty() {
            let title = told.row.pool.as_deref().unwrap_or(&told.row.ranges);
            text.extend(["\n", title, "\n", &drawn]);
        }
    }
    text
}

fn cells(row: &PoolRow) -> Vec<String> {
    let count = |count: Option<Count>| count.map(|Count(n)| n.to_string()).unwrap_or_default();
    // Rounded up, so that a pool with one lease is not empty.
    let used = row.held.map(|Count(held)| match row.size.0 {
        0 => 100,
        size => held.saturating_mul(100).div_ceil(size),
    });
    vec![
        row.pool.clone().unwrap_or_default(),
        row.ranges.clone(),
        row.size.0.to_string(),
        count(row.held),
        count(row.free),
        used.map(|used| used.to_string()).unwrap_or_default(),
    ]
}
