//! Printing of rows as JSON or as a table: leases, pools and findings look alike in every program.

use serde_json::Value;

use super::{Arguments, Column, Glyphs, OptionSpec, PoolRow, Row, map, table};
use ipam_kit::cni::Environment;
use ipam_kit::text::visible;

const OF_LEASES: [Column; 7] = [
    Column::text("ADDRESS", "address"),
    Column::text("POOL", "pool"),
    Column::text("CONTAINER", "containerID"),
    Column::text("IFNAME", "ifname"),
    Column::text("NODE", "node"),
    Column::text("AGE", "ageSeconds"),
    Column::text("STATE", "state"),
];

/// The columns that a table of leases has if a row has a value for them.
const OF_SOME_LEASES: [Column; 2] =
    [Column::text("RECORD", "record"), Column::text("NOTE", "note")];

const OF_POOLS: &[Column] = &[
    Column::text("POOL", "pool"),
    Column::text("RANGES", "ranges"),
    Column::number("SIZE", "size"),
    Column::number("HELD", "held"),
    Column::number("FREE", "free"),
    Column::number("USE%", "usePercent"),
];

/// Adds a line to a text, with control characters as escapes.
pub fn push_line(text: &mut String, line: &str) {
    text.push_str(&visible(line));
    text.push('\n');
}

/// Rows as a table, or as JSON with `--json`.
pub fn print_rows(
    arguments: &Arguments,
    columns: &[Column],
    rows: impl IntoIterator<Item = Row>,
) -> String {
    if arguments.has(&OptionSpec::JSON) {
        return json_array(rows);
    }
    let rows: Vec<Row> = rows.into_iter().collect();
    table(columns, &rows)
}

/// Leases, as [`print_rows`] prints them.
pub fn print_leases(arguments: &Arguments, leases: impl IntoIterator<Item = Row>) -> String {
    if arguments.has(&OptionSpec::JSON) {
        return json_array(leases);
    }
    let rows: Vec<Row> = leases.into_iter().collect();
    let mut columns = OF_LEASES.to_vec();
    for column in OF_SOME_LEASES {
        if rows.iter().any(|row| !row.get(column.key()).is_null()) {
            columns.push(column);
        }
    }
    table(&columns, &rows)
}

/// Pools with their rows, as [`print_rows`] prints them. A map of each pool follows the table, in
/// the glyphs of the locale in `environment`, or in ASCII with `--ascii`.
pub fn print_pools(
    arguments: &Arguments,
    environment: &Environment,
    pools: Vec<(PoolRow, Row)>,
) -> String {
    let mut maps = String::new();
    if !arguments.has(&OptionSpec::JSON) {
        let is_ascii = arguments.has(&OptionSpec::ASCII);
        let glyphs = if is_ascii { Glyphs::Ascii } else { Glyphs::of(environment) };
        pools.iter().for_each(|(pool, _)| push_map(&mut maps, pool, glyphs));
    }
    let rows = pools.into_iter().map(|(pool, mut row)| {
        row.set("usePercent", use_percent(&pool).into());
        row
    });
    print_rows(arguments, OF_POOLS, rows) + &maps
}

/// A finding of a `lint` as a row; `level` is `error`, `warning` or `note`.
pub fn finding(level: &str, message: &str) -> Row {
    let mut finding = Row::default();
    finding.set_text("level", level);
    finding.set_text("message", message);
    finding
}

/// Findings, a line each.
pub fn push_findings(text: &mut String, findings: &[Row]) {
    for finding in findings {
        let (level, message) = (finding.text("level"), finding.text("message"));
        push_line(text, &format!("{level}: {message}"));
    }
}

/// An array on one line. Each row becomes text at once: all rows of a large ledger as values would
/// take hundreds of megabytes.
fn json_array(rows: impl IntoIterator<Item = Row>) -> String {
    let mut text = String::from("[");
    for row in rows {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&Value::from(row).to_string());
    }
    text + "]\n"
}

/// The held part of a pool in percent, rounded up: a pool with one lease is not empty.
fn use_percent(pool: &PoolRow) -> Option<u64> {
    let held = pool.held?;
    let percent = held.saturating_mul(100).div_ceil(pool.size.max(1));
    u64::try_from(percent).ok()
}

/// The map of a pool below its name; nothing for a pool without blocks.
fn push_map(text: &mut String, pool: &PoolRow, glyphs: Glyphs) {
    let drawn = map(pool, glyphs);
    if !drawn.is_empty() {
        text.push('\n');
        push_line(text, pool.pool.as_deref().unwrap_or(&pool.ranges));
        text.push_str(&drawn);
    }
}
