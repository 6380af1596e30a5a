//! `pools`: how full the pools are.

use serde_json::Value;

use super::ask::{Told, ask};
use super::{Operator, Printed, say};
use crate::error::{ErrorCode, Result};
use crate::operate::{Column, Glyphs, PoolRow, Words, map};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("pools takes one network"));
    }
    let mut printed = Printed::default();
    let (mut rows, mut pools) = (Vec::new(), Vec::new());
    for Told { mut row, place, .. } in
        ask(operator, &["pools", "--json", "--config", "-"], &mut printed)?
    {
        let parsed = PoolRow::parse(&Value::from(row.clone()), &place);
        let parsed = parsed.map_err(|error| error.with_code(ErrorCode::DELEGATE));
        let Some(pool) = printed.keep(parsed) else { continue };
        row.value("usePercent", used(&pool).into());
        if !pools.contains(&pool) {
            rows.push(row);
            pools.push(pool);
        }
    }
    printed.set_rows(operator, COLUMNS, rows);
    if !operator.words.has("json") {
        let ascii = operator.words.has("ascii");
        let glyphs = if ascii { Glyphs::Ascii } else { Glyphs::of(&operator.environment) };
        for pool in &pools {
            let title = pool.pool.as_deref().unwrap_or(&pool.ranges);
            let drawn = map(pool, glyphs);
            if !drawn.is_empty() {
                say(&mut printed.text, &["\n", title, "\n", &drawn]);
            }
        }
    }
    Ok(printed)
}

const COLUMNS: &[Column] = &[
    Column::text("POOL", "pool"),
    Column::text("RANGES", "ranges"),
    Column::number("SIZE", "size"),
    Column::number("HELD", "held"),
    Column::number("FREE", "free"),
    Column::number("USE%", "usePercent"),
];

/// How much of a pool is held, in percent, rounded up: a pool with one lease is not empty.
fn used(pool: &PoolRow) -> Option<u64> {
    let held = pool.held?;
    let percent = held.saturating_mul(100).div_ceil(pool.size.max(1));
    u64::try_from(percent).ok()
}
