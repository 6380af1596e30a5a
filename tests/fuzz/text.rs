//! Text on its way to people, and secrets in it.

use ipam_kit::text::{masked, redacted, visible, visible_lines};
use serde_json::{Value, json};

use crate::engine::fuzz;

const SECRET: &str = "s3cret-w0rd";

/// Whether a terminal or a log obeys it, as the Unicode standard names these characters.
fn is_obeyed(c: char) -> bool {
    matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0x61c | 0x200e | 0x200f
        | 0x2028 | 0x2029 | 0x202a..=0x202e | 0x2066..=0x2069)
}

#[test]
fn text_that_leaves_is_obeyed_by_nothing() {
    let seeds = [
        "ipam.rangeRules: unknown variant `\u{1b}[2J\u{1b}[31mX\rforged`",
        "one\ntwo\tthree\u{85}\u{9b}0m\u{7f}\0",
        "a\u{202e}b\u{2066}c\u{2069}d\u{200f}e\u{61c}f\u{2028}g\u{2029}",
        "plain, blåtänd, 中文, \u{1f980} and \\u{1b}",
    ];
    fuzz("visible", &seeds.map(|seed| seed.as_bytes().to_vec()), |input| {
        let text = String::from_utf8_lossy(input);
        let shown = visible(&text);
        assert!(!shown.contains(is_obeyed), "{shown:?}");
        assert_eq!(visible(&shown), shown);
        assert_eq!(shown == text, !text.contains(is_obeyed));
        // Nothing is lost: without what was escaped, both are the same.
        let plain: String = text.chars().filter(|c| !is_obeyed(*c)).collect();
        assert!(
            shown.len() >= text.chars().count() && shown.chars().count() >= plain.chars().count()
        );
        let mut rest = shown.chars();
        assert!(plain.chars().all(|c| rest.any(|other| other == c)), "{shown:?}");
        let lines = visible_lines(&text);
        assert!(!lines.contains(|c| is_obeyed(c) && !matches!(c, '\n' | '\t')), "{lines:?}");
        assert_eq!(lines.matches('\n').count(), text.matches('\n').count());
        assert_eq!(visible(&lines), shown);
    });
}

#[test]
fn a_secret_that_a_server_repeats_is_gone() {
    let seeds = [
        format!("HTTP 403: token {SECRET} is unknown"),
        format!("{SECRET}{SECRET}, cut: {}", &SECRET[..7]),
        format!("{}{SECRET}{}", &SECRET[..5], &SECRET[5..]),
    ];
    fuzz("redacted", &seeds.map(String::into_bytes), |input| {
        let text = String::from_utf8_lossy(input).into_owned();
        let shown = redacted(text.clone(), [SECRET, "", "0123"]);
        assert!(!shown.contains(SECRET) && !shown.contains("0123"), "{shown}");
        assert!((4..SECRET.len()).all(|cut| !shown.ends_with(&SECRET[..cut])), "{shown}");
        if !text.contains(&SECRET[..4]) && !text.contains("0123") {
            assert_eq!(shown, text);
        }
    });
}

/// Whether a secret stands under a key of others, by the letters of the key alone.
fn is_named_secret(key: &str) -> bool {
    let letters: String =
        key.to_ascii_lowercase().chars().filter(|c| !matches!(c, '_' | '-')).collect();
    let key = letters.strip_suffix('s').unwrap_or(&letters);
    [
        "password",
        "passwd",
        "token",
        "secret",
        "apikey",
        "privatekey",
        "passphrase",
        "bearer",
        "authorization",
        "credential",
    ]
    .iter()
    .any(|name| key.ends_with(name))
}

fn assert_masked(before: &Value, after: &Value) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            assert!(before.keys().eq(after.keys()));
            for (key, value) in before {
                match is_named_secret(key) {
                    true => assert_eq!(after[key], "…", "{key}"),
                    false => assert_masked(value, &after[key]),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            assert_eq!(before.len(), after.len());
            before.iter().zip(after).for_each(|(before, after)| assert_masked(before, after));
        }
        (Value::String(before), Value::String(after)) => {
            if !before.contains("://") {
                assert_eq!(before, after);
            }
        }
        _ => assert_eq!(before, after),
    }
}

#[test]
fn secrets_of_a_configuration_are_masked() {
    let url = format!("https://u:{SECRET}@h:1/p?a=b&access_token={SECRET}#Secrets={SECRET};c");
    let seeds = [
        json!({"a": [{"apiToken": SECRET}], "etcd_Password": {"x": 1}, "user": "u", "url": url}),
        json!({"X-API-Key": SECRET, "credentials": [SECRET], "keyFile": "/k", "b": [[url, "x"]]}),
        json!([{"bearer": null, "passphrase": 7, "tokenFile": "/t", "clientSecrets": {}}]),
    ];
    fuzz("masked", &seeds.map(|seed| seed.to_string().into_bytes()), |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
        let shown = masked(value.clone());
        assert_masked(&value, &shown);
        assert_eq!(masked(shown.clone()), shown);
    });
    // Wherever such a URL stands, and whatever stands around it.
    fuzz("masked_url", &[b"https".to_vec(), b"x/y?z=1".to_vec()], |input| {
        let text = String::from_utf8_lossy(input).replace(['/', '?', '#', '&', ';', '='], "");
        for url in [
            format!("{text}://{text}:{SECRET}@h"),
            format!("http://h/{text}?token={SECRET}"),
            format!("http://h?{text}&my-Password={SECRET}&{text}"),
            format!("http://{text}@h#{text};apiKeys={SECRET}"),
        ] {
            let shown = masked(json!({ "url": url }));
            // As a part of the host's name it is none.
            if !text.contains(SECRET) {
                assert!(!shown.to_string().contains(SECRET), "{url}: {shown}");
            }
        }
    });
}
