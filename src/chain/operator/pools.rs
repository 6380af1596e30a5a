//! `pools`: how full the pools are.

use serde_json::Value;

use super::ask::ask;
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::{Column, Glyphs, PoolRow, Words, map, table};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("pools takes one network"));
    }
    let mut printed = Printed::default();
    let mut pools: Vec<(Value, PoolRow)> = Vec::new();
    for told in ask(operator, &["pools", "--json", "--config", "-"], &mut printed)? {
        let row = told.read(PoolRow::parse)?;
        let new = (told.to_json(), row);
        if !pools.contains(&new) {
            pools.push(new);
        }
    }
    printed.text = if operator.words.has("json") {
        format!("{}\n", pools.into_iter().map(|(row, _)| row).collect::<Value>())
    } else {
        let ascii = operator.words.has("ascii");
        for_people(&pools, if ascii { Glyphs::Ascii } else { Glyphs::of(&operator.environment) })
    };
    Ok(printed)
}

fn for_people(pools: &[(Value, PoolRow)], glyphs: Glyphs) -> String {
    let columns = [
        Column::Text("POOL"),
        Column::Text("RANGES"),
        Column::Number("SIZE"),
        Column::Number("HELD"),
        Column::Number("FREE"),
        Column::Number("USE%"),
    ];
    let rows: Vec<Vec<String>> = pools.iter().map(|(_, row)| cells(row)).collect();
    let mut text = table(&columns, &rows);
    for (_, row) in pools {
        let drawn = map(row, glyphs);
        if !drawn.is_empty() {
            let title = row.pool.as_deref().unwrap_or(&row.ranges);
            text.extend(["\n", title, "\n", &drawn]);
        }
    }
    text
}

fn cells(row: &PoolRow) -> Vec<String> {
    let count = |count: Option<u128>| count.map(|count| count.to_string()).unwrap_or_default();
    // Rounded up, so that a pool with one lease is not empty.
    let used = row.held.map(|held| match row.size {
        0 => 100,
        size => held.saturating_mul(100).div_ceil(size),
    });
    vec![
        row.pool.clone().unwrap_or_default(),
        row.ranges.clone(),
        row.size.to_string(),
        count(row.held),
        count(row.free),
        used.map(|used| used.to_string()).unwrap_or_default(),
    ]
}
