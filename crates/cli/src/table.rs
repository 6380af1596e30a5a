use serde_json::Value;

use super::{Row, age};
use ipam_kit::text::visible;

/// A column of a table: its heading, the member of each row that it shows, and the side that its
/// cells are aligned to.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    key: &'static str,
    right: bool,
}

impl Column {
    /// Cells are aligned left.
    pub const fn text(head: &'static str, key: &'static str) -> Self {
        Self { head, key, right: false }
    }

    /// Cells are aligned right.
    pub(crate) const fn number(head: &'static str, key: &'static str) -> Self {
        Self { head, key, right: true }
    }

    /// The member of each row that it shows.
    pub(super) fn key(&self) -> &'static str {
        self.key
    }
}

/// Rows as a table for people: a line of headings, then one line a row, two blanks between columns.
///
/// An empty cell is shown as `-`, a control character as an escape, and `ageSeconds` as an age.
pub fn table(columns: &[Column], rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    lines.push(columns.iter().map(|column| column.head.to_owned()).collect());
    for row in rows {
        lines.push(columns.iter().map(|column| cell(column.key, row.get(column.key))).collect());
    }
    let mut widths = vec![0; columns.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = length(cell).max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut out = String::new();
        for ((cell, width), column) in line.iter().zip(&widths).zip(columns) {
            let blanks = " ".repeat(width - length(cell));
            let [first, second] = if column.right { [&blanks, cell] } else { [cell, &blanks] };
            for piece in [first, second, "  "] {
                out.push_str(piece);
            }
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// The number of characters of a cell.
fn length(cell: &str) -> usize {
    cell.chars().count()
}

fn cell(key: &str, value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let mut joined = String::new();
            for part in parts {
                if !joined.is_empty() {
                    joined.push(',');
                }
                joined.push_str(part.as_str().unwrap_or_default());
            }
            joined
        }
        Value::Number(seconds) if key == "ageSeconds" => age(seconds.as_u64().unwrap_or_default()),
        other => other.to_string(),
    };
    if text.is_empty() { "-".to_owned() } else { visible(&text).into_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_aligned() {
        let columns = [
            Column::text("POOL", "pool"),
            Column::number("SIZE", "size"),
            Column::text("IPS", "ips"),
            Column::text("AGE", "ageSeconds"),
        ];
        let rows = [
            json!({"pool": "blåtänd", "size": 7, "ips": [], "ageSeconds": 61}),
            json!({"pool": "b\u{1b}", "size": "1000", "ips": ["a", "b"]}),
        ];
        let rows = rows.map(|row| Row::from(row.as_object().unwrap().clone()));
        assert_eq!(
            table(&columns, &rows),
            "POOL     SIZE  IPS  AGE\nblåtänd     7  -    1m\nb\\u{1b}  1000  a,b  -\n"
        );
    }
}
