//! JSON written as YAML.

use std::fmt::Write as _;

use serde_json::Value;

/// In block style, as kubectl, kind and kubeadm write it: keys sorted, lists not indented.
pub(super) fn block(value: &Value) -> String {
    let mut text = String::new();
    write_block(&mut text, value, 0, false);
    text
}

/// In flow style, but for the topmost object.
pub(super) fn flow(value: &Value) -> String {
    let mut text = String::new();
    for (key, value) in value.as_object().unwrap() {
        text.push_str(key);
        text.push_str(": ");
        write_flow(&mut text, value);
        text.push('\n');
    }
    text
}

/// At the place where the value begins: `inline` where a dash stands before it.
fn write_block(text: &mut String, value: &Value, indent: usize, inline: bool) {
    let margin = " ".repeat(indent);
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (place, (key, value)) in members.iter().enumerate() {
                if place > 0 || !inline {
                    text.push_str(&margin);
                }
                text.push_str(key);
                text.push(':');
                write_member(text, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                write!(text, "{margin}- ").unwrap();
                write_block(text, item, indent + 2, true);
            }
        }
        _ => {
            write_flow(text, value);
            text.push('\n');
        }
    }
}

fn write_member(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            text.push('\n');
            write_block(text, value, indent + 2, false);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            write_block(text, value, indent, false);
        }
        _ => {
            text.push(' ');
            write_flow(text, value);
            text.push('\n');
        }
    }
}

fn write_flow(text: &mut String, value: &Value) {
    match value {
        Value::Object(members) => {
            text.push('{');
            for (place, (key, value)) in members.iter().enumerate() {
                write!(text, "{}{key}: ", if place > 0 { ", " } else { "" }).unwrap();
                write_flow(text, value);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (place, value) in items.iter().enumerate() {
                text.push_str(if place > 0 { ", " } else { "" });
                write_flow(text, value);
            }
            text.push(']');
        }
        Value::String(string) if is_plain(string) => text.push_str(string),
        // A string of JSON is one of YAML, too.
        _ => write!(text, "{value}").unwrap(),
    }
}

/// Whether it needs no quotes, in flow style either.
fn is_plain(string: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:@=+".contains(c);
    string.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && string.chars().all(safe)
        && !string.ends_with(':')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&string.to_lowercase().as_str())
}
