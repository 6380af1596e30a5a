//! `pools`: how full the pools are.

use serde_json::Value;

use super::ask::ask;
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::{Glyphs, PoolRow, Words, pool_report};

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
        let glyphs = if ascii { Glyphs::Ascii } else { Glyphs::of(&operator.environment) };
        let rows: Vec<PoolRow> = pools.into_iter().map(|(_, row)| row).collect();
        pool_report(&rows, glyphs)
    };
    Ok(printed)
}
