//! `pools`: how full the pools are.

use serde_json::Value;

use super::ask::{Told, ask};
use super::{Operator, Printed};
use ipam_cli::{Glyphs, POOL_COLUMNS, PoolRow, Words, maps, use_percent};
use ipam_kit::error::{ErrorCode, Result};

/// The question that an allocator answers with its pools.
pub(crate) const QUESTION: [&str; 4] = ["pools", "--json", "--config", "-"];

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("pools takes one network"));
    }
    let mut printed = Printed::default();
    let (mut rows, mut pools) = (Vec::new(), Vec::new());
    for Told { mut row, place, .. } in ask(operator, &QUESTION, &mut printed)? {
        let parsed = PoolRow::parse(&Value::from(row.clone()), &place);
        let parsed = parsed.map_err(|error| error.with_code(ErrorCode::DELEGATE));
        let Some(pool) = printed.keep(parsed) else { continue };
        row.value("usePercent", use_percent(&pool).into());
        if !pools.contains(&pool) {
            rows.push(row);
            pools.push(pool);
        }
    }
    printed.set_rows(operator, POOL_COLUMNS, rows);
    if !operator.words.has("json") {
        let ascii = operator.words.has("ascii");
        let glyphs = if ascii { Glyphs::Ascii } else { Glyphs::of(&operator.environment) };
        printed.text.push_str(&maps(&pools, glyphs));
    }
    Ok(printed)
}
