//! Parses settings as an annotation writes them.

use ipam_kit::{Error, ErrorCode, Result};
use serde_json::{Map, Value};

/// Parses settings: a JSON object, with or without its braces, and with or without quotes around
/// the names of members. Nothing is evaluated: what jq would calculate is an error.
///
/// # Errors
/// Code 7: the settings are malformed, or empty.
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>> {
    let text = text.trim();
    if text.is_empty() {
        return Err(invalid("empty"));
    }
    let quoted = with_quotes(text);
    let whole = if quoted.starts_with('{') { quoted } else { format!("{{{quoted}}}") };
    match serde_json::from_slice::<Map<String, Value>>(whole.as_bytes()) {
        Ok(settings) if settings.is_empty() => Err(invalid("no settings")),
        Ok(settings) => Ok(settings),
        Err(error) => Err(invalid("invalid JSON").caused_by(error)),
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorCode::INVALID_CONFIG, message).advise(
        r#"expected settings of host-local, for example "ranges": [[{"subnet": "10.1.2.0/24"}]]"#,
    )
}

/// The settings with quotes around the names of members: words before a colon, outside of strings.
fn with_quotes(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (part, after) = rest.split_at(length);
        let is_name =
            is_word(first) && !first.is_ascii_digit() && after.trim_start().starts_with(':');
        if is_name {
            quoted.extend(["\"", part, "\""]);
        } else {
            quoted.push_str(part);
        }
        rest = after;
    }
    quoted
}

/// The length of the JSON string at the begin.
fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_with_and_without_braces_and_quotes() {
        let expected = json!({"ranges": [[{"subnet": "172.16.5.0/24"}]]});
        for text in [
            r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#,
            r#"ranges: [[{"subnet": "172.16.5.0/24"}]]"#,
            r#" {"ranges": [[{"subnet": "172.16.5.0/24"}]]}
"#,
            r#"{ranges :[[{subnet: "172.16.5.0/24"}]]}"#,
            "ranges: [\n  [{ subnet: \"172.16.5.0/24\" }]\n]",
        ] {
            assert_eq!(Value::Object(parse(text).unwrap()), expected, "{text}");
        }
        let text = r#"a: "b: c \" d: e\\", "f:": {g_1: [true, null, 1.5e3]}"#;
        let expected = json!({"a": "b: c \" d: e\\", "f:": {"g_1": [true, null, 1500.0]}});
        assert_eq!(Value::Object(parse(text).unwrap()), expected);
    }

    #[test]
    fn nothing_is_evaluated() {
        for text in [
            "",
            " \n",
            "{}",
            "this is not jq",
            r#"ranges: [[{subnet: ("10.77." + "0.0/24")}]]"#,
            r#"ranges: [[{subnet: "10.77.\(1).0/24"}]]"#,
            r#"ranges: env"#,
            r#"ranges: []} | halt_error | {a: 1"#,
            r#""ranges": []}, {"a": 1"#,
            r#"ranges: $(reboot)"#,
            r#"ranges: `reboot`"#,
            "ranges: [[{\"subnet\": \"10.0.0.0/24\"}]",
            r#""ranges"#,
            r#"[1]"#,
            r#"1: 2"#,
            "\"a\": \"\u{7}\"",
            "ü: 1",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG, "{text}");
        }
        let deep = format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse(&deep).is_err());
    }
}
