//! Leases and pools as people read them.

use super::{Column, Glyphs, LeaseRow, PoolRow, age, map, table};

/// A table of leases. `records` is a column of what somebody else knows of each.
pub fn lease_table(rows: &[LeaseRow], records: Option<&[&str]>) -> String {
    let noted = rows.iter().any(|row| row.note.is_some());
    let mut columns = ["ADDRESS", "POOL", "CONTAINER", "IFNAME", "NODE", "AGE", "STATE"].to_vec();
    columns.extend(records.map(|_| "RECORD"));
    columns.extend(noted.then_some("NOTE"));
    let columns: Vec<Column> = columns.into_iter().map(Column::Text).collect();
    let cells = |(i, row): (usize, &LeaseRow)| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let mut cells = vec![
            row.address.to_string(),
            text(&row.pool),
            text(&row.container),
            text(&row.ifname),
            text(&row.node),
            row.age.map(age).unwrap_or_default(),
            row.state.as_str().to_owned(),
        ];
        cells.extend(records.map(|records| records.get(i).copied().unwrap_or_default().to_owned()));
        cells.extend(noted.then(|| text(&row.note)));
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().enumerate().map(cells).collect();
    table(&columns, &rows)
}

/// A table of pools, and a map of each.
pub fn pool_report(rows: &[PoolRow], glyphs: Glyphs) -> String {
    let columns = [
        Column::Text("POOL"),
        Column::Text("RANGES"),
        Column::Number("SIZE"),
        Column::Number("HELD"),
        Column::Number("FREE"),
        Column::Number("USE%"),
    ];
    let mut text = table(&columns, &rows.iter().map(cells).collect::<Vec<_>>());
    for row in rows {
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
