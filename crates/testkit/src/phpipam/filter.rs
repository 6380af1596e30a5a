//! Filters of lists, which compare as loosely as PHP does.

use serde_json::Value;

use super::answer::{Outcome, data, told};

/// The rows of a list that a query lets through.
pub(super) fn filtered(rows: Vec<Value>, query: &[(String, String)]) -> Outcome {
    let value = |key: &str| query.iter().find(|(known, _)| known == key).map(|(_, value)| &**value);
    let Some(by) = value("filter_by") else { return data(rows.into()) };
    let wanted = match value("filter_value") {
        None => return told(400, "Missing filter_value"),
        Some(text) if text.trim().is_empty() => return told(400, "Empty filter_value"),
        Some(text) => text,
    };
    if rows.first().is_none_or(|row| row.get(by).is_none()) {
        return told(400, "Invalid filter_by");
    }
    let is_match = |row: &Value| match value("filter_match") {
        None | Some("full") => is_loosely(&row[by], wanted),
        Some("partial") => text(&row[by]).contains(wanted),
        Some(other) => panic!("the imitation does not match by {other}"),
    };
    let found: Vec<Value> = rows.into_iter().filter(is_match).collect();
    if found.is_empty() {
        return told(404, "No results (filter applied)");
    }
    data(found.into())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// PHP's `==` of a column and a text: two numbers are equal by their value.
fn is_loosely(column: &Value, wanted: &str) -> bool {
    let column = text(column);
    match (number(&column), number(wanted)) {
        (Some(column), Some(wanted)) => column == wanted,
        _ => column == wanted,
    }
}

fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    text.parse().ok().filter(|_| begins)
}
