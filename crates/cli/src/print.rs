//! Leases and pools as people read them.

use super::{Column, Glyphs, PoolRow, Row, map};
use ipam_kit::text::visible;

const LEASE: [Column; 7] = [
    Column::text("ADDRESS", "address"),
    Column::text("POOL", "pool"),
    Column::text("CONTAINER", "containerID"),
    Column::text("IFNAME", "ifname"),
    Column::text("NODE", "node"),
    Column::text("AGE", "ageSeconds"),
    Column::text("STATE", "state"),
];

/// The columns of a pool's row.
pub const POOL_COLUMNS: &[Column] = &[
    Column::text("POOL", "pool"),
    Column::text("RANGES", "ranges"),
    Column::number("SIZE", "size"),
    Column::number("HELD", "held"),
    Column::number("FREE", "free"),
    Column::number("USE%", "usePercent"),
];

/// The columns of rows of leases: what the node's records say of each where they were asked, and
/// notes where there are any.
pub fn lease_columns(rows: &[Row]) -> Vec<Column> {
    let has = |key: &str| rows.iter().any(|row| !row.get(key).is_null());
    let mut columns = LEASE.to_vec();
    for column in [Column::text("RECORD", "record"), Column::text("NOTE", "note")] {
        if has(column.key()) {
            columns.push(column);
        }
    }
    columns
}

/// How much of a pool is held, in percent, rounded up: a pool with one lease is not empty.
pub fn use_percent(pool: &PoolRow) -> Option<u64> {
    let held = pool.held?;
    let percent = held.saturating_mul(100).div_ceil(pool.size.max(1));
    u64::try_from(percent).ok()
}

/// A map of each pool under its name.
pub fn maps(pools: &[PoolRow], glyphs: Glyphs) -> String {
    let mut text = String::new();
    for pool in pools {
        let title = pool.pool.as_deref().unwrap_or(&pool.ranges);
        let drawn = map(pool, glyphs);
        if !drawn.is_empty() {
            for part in ["\n", &visible(title), "\n", &drawn] {
                text.push_str(part);
            }
        }
    }
    text
}
