//! Changes to a section `ipam`: the settings of selectors, and secrets that have rotated.

use serde_json::{Map, Value};

use ipam_kit::text::is_secret;

/// JSON merge patch (RFC 7396).
pub(crate) fn merge_patch(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(inner) => {
                let slot = target.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(slot) = slot {
                    merge_patch(slot, inner);
                }
            }
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
}

/// Replaces secrets by those of the present `ipam` section, because they rotate; all else stays as
/// recorded. A token, or the file with one, is also added where the record has neither. A section with
/// the file of a provider stays: the file has its secrets, and is read at every call.
pub(crate) fn refresh_secrets(recorded: &mut Map<String, Value>, newer: &Map<String, Value>) {
    if recorded.keys().any(|key| key.eq_ignore_ascii_case("providerFile")) {
        return;
    }
    if newer.keys().any(|key| is_token(key)) {
        recorded.retain(|key, _| !is_token(key));
    }
    for (key, value) in newer {
        if is_secret(key) || is_token(key) {
            recorded.insert(key.clone(), value.clone());
        } else if let Some(known) = recorded.get_mut(key) {
            refresh_value(known, value);
        } else if let Value::Object(section) = value {
            let mut tokens = section.clone();
            tokens.retain(|key, value| is_token(key) && !value.is_null());
            if !tokens.is_empty() {
                recorded.insert(key.clone(), Value::Object(tokens));
            }
        }
    }
}

/// A token, or the file with one.
fn is_token(key: &str) -> bool {
    matches!(key.to_ascii_lowercase().as_str(), "token" | "tokenfile" | "token_file")
}

fn refresh_value(known: &mut Value, value: &Value) {
    match (known, value) {
        (Value::Object(known), Value::Object(value)) => refresh_secrets(known, value),
        (Value::Array(known), Value::Array(value)) if known.len() == value.len() => {
            for (known, value) in known.iter_mut().zip(value) {
                refresh_value(known, value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn secrets_rotate_and_nothing_else() {
        let mut recorded = object(
            json!({"url": "a", "etcd": {"password": "1", "user": "u"}, "s": [{"apiToken": "1"}]}),
        );
        refresh_secrets(
            &mut recorded,
            &object(
                json!({"url": "b", "etcd": {"password": "2", "user": "v"}, "s": [{"apiToken": "2"}], "new_secret": "n", "x": {"token": 1}}),
            ),
        );
        let expected = json!({"url": "a", "etcd": {"password": "2", "user": "u"}, "s": [{"apiToken": "2"}], "new_secret": "n", "x": {"token": 1}});
        assert_eq!(Value::from(recorded), expected);
    }

    #[test]
    fn a_token_takes_the_place_of_another_wherever_it_stands() {
        for (recorded, newer, expected) in [
            (json!({}), json!({"c": {"tokenFile": "/t"}}), json!({"c": {"tokenFile": "/t"}})),
            (
                json!({"c": {"token": "1", "timeout": "5s"}}),
                json!({"c": {"tokenFile": "/t", "timeout": "9s"}}),
                json!({"c": {"tokenFile": "/t", "timeout": "5s"}}),
            ),
            (json!({"c": {"token": "1"}}), json!({"c": {}}), json!({"c": {"token": "1"}})),
            (json!({}), json!({"e": {"passwordFile": "/p"}}), json!({})),
            (
                json!({"c": {"providerFile": "/f"}}),
                json!({"c": {"url": "u", "tokenFile": "/t", "password": "p"}, "token": 1}),
                json!({"c": {"providerFile": "/f"}, "token": 1}),
            ),
        ] {
            let mut recorded = object(recorded);
            refresh_secrets(&mut recorded, &object(newer));
            assert_eq!(Value::from(recorded), expected);
        }
    }
}
