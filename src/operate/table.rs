/// A column's heading, and the side its cells stand on.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    /// Cells stand left.
    Text(&'static str),
    /// Cells stand right.
    Number(&'static str),
}

/// A table for people: a line of headings, then one line a row, columns two blanks apart.
///
/// An empty cell is shown as `-`, a control character as `?`.
pub fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let head = |column: &Column| match column {
        Column::Text(head) | Column::Number(head) => (*head).to_owned(),
    };
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(head).collect()];
    lines.extend(rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()));
    let length = |cell: &String| cell.chars().count();
    let mut text = String::new();
    let widths: Vec<usize> = (0..columns.len())
        .map(|i| lines.iter().filter_map(|line| line.get(i)).map(length).max().unwrap_or(0))
        .collect();
    for line in &lines {
        let mut out = String::new();
        for ((cell, width), column) in line.iter().zip(&widths).zip(columns) {
            let blanks = " ".repeat(width - length(cell));
            match column {
                Column::Text(_) => out.extend([cell.as_str(), &blanks, "  "]),
                Column::Number(_) => out.extend([blanks.as_str(), cell, "  "]),
            }
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

fn shown(cell: &str) -> String {
    if cell.is_empty() { "-".to_owned() } else { cell.replace(char::is_control, "?") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let columns = [Column::Text("POOL"), Column::Number("SIZE"), Column::Text("WHY")];
        let text = table(&columns, &[row(["blåtänd", "7", ""]), row(["b\x1b", "1000", "x"])]);
        assert_eq!(text, "POOL     SIZE  WHY\nblåtänd     7  -\nb?       1000  x\n");
    }
}
