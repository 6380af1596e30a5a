use std::fmt::{self, Write};

use crate::times::{Series, Times};

/// What is shown of the times. A row or column without any time is left out.
pub enum Table {
    /// A row for each number of leases held: series, some of them with how many times another one
    /// they are.
    Held(&'static [(&'static str, Option<&'static str>)]),
    /// A row for each case, with the series `CASE COLUMN` and how many times those of the first
    /// case they are.
    Cases { corner: &'static str, cases: &'static [&'static str], columns: [&'static str; 2] },
}

/// A row of the table of targets.
pub struct Row {
    what: String,
    value: String,
    met: bool,
}

impl Table {
    /// As Markdown.
    pub fn of(&self, series: &[(usize, Series)]) -> String {
        match self {
            Self::Held(columns) => held(columns, series),
            Self::Cases { corner, cases, columns } => {
                self::cases(corner, cases, *columns, &series[0].1)
            }
        }
    }
}

impl Row {
    pub fn new(what: String, value: String, met: bool) -> Self {
        Self { what, value, met }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, met } = self;
        let verdict = if *met { "met" } else { "**missed**" };
        write!(f, "| {what} | {value} | {verdict} |")
    }
}

fn held(columns: &[(&str, Option<&str>)], sites: &[(usize, Series)]) -> String {
    let columns = columns.iter().filter(|(name, _)| sites[0].1.contains_key(*name));
    let mut head = vec!["leases held".to_owned()];
    for (name, other) in columns.clone() {
        head.push((*name).to_owned());
        head.extend(other.map(|_| "÷".to_owned()));
    }
    let mut table = header(&head);
    for (held, series) in sites {
        let mut cells = vec![held.to_string()];
        for (name, other) in columns.clone() {
            cells.push(series[*name].to_string());
            cells.extend(other.map(|other| quotient(&series[*name], &series[other])));
        }
        row(&mut table, &cells);
    }
    table
}

fn cases(corner: &str, cases: &[&str], columns: [&str; 2], series: &Series) -> String {
    let [first, second] = columns.map(str::to_owned);
    let mut table = header(&[corner.to_owned(), first, "÷".to_owned(), second, "÷".to_owned()]);
    let find = |case: &str, column: &str| series.get(&format!("{case} {column}"));
    for case in
        cases.iter().filter(|case| columns.iter().any(|column| find(case, column).is_some()))
    {
        let mut cells = vec![(*case).to_owned()];
        for column in columns {
            let times = find(case, column);
            let others = find(cases[0], column).filter(|_| *case != cases[0]);
            cells.push(times.map_or_else(String::new, Times::to_string));
            cells.push(times.zip(others).map_or_else(String::new, |(a, b)| quotient(a, b)));
        }
        row(&mut table, &cells);
    }
    table
}

fn header(cells: &[String]) -> String {
    let mut table = String::new();
    row(&mut table, cells);
    row(&mut table, &vec!["---".to_owned(); cells.len()]);
    table
}

fn row(table: &mut String, cells: &[String]) {
    let _ = writeln!(table, "| {} |", cells.join(" | "));
}

fn quotient(times: &Times, others: &Times) -> String {
    ratio(times.ratio(others))
}

pub fn ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}
