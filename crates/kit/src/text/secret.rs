use serde_json::{Map, Value};

/// A value for people to read, in which secrets are shown as `…`.
pub fn masked(mut value: Value) -> Value {
    mask(&mut value);
    value
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if is_secret(key) || looks_secret(key) {
                    *value = "…".into();
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(array) => array.iter_mut().for_each(mask),
        Value::String(text) => {
            if let Some(bare) = bare_url(text) {
                *text = bare;
            }
        }
        _ => {}
    }
}

/// The texts of an object that [`masked`] hides, at every depth: because of their key, or as a part of
/// a URL.
pub fn secrets_in(object: &Map<String, Value>) -> Vec<&str> {
    let mut found = Vec::new();
    for (key, value) in object {
        collect(value, is_secret(key) || looks_secret(key), &mut found);
    }
    found
}

fn collect<'a>(value: &'a Value, is_hidden: bool, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                collect(value, is_hidden || is_secret(key) || looks_secret(key), found);
            }
        }
        Value::Array(array) => array.iter().for_each(|value| collect(value, is_hidden, found)),
        Value::String(text) if is_hidden => found.push(text),
        Value::String(text) => found.extend(secrets_of_urls(text)),
        _ => {}
    }
}

/// The secrets of URLs that [`bare_url`] hides. A user's name is one only without a password.
fn secrets_of_urls(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for part in text.split("://").skip(1) {
        let (place, values) = part.split_at(part.find(['/', '?', '#']).unwrap_or(part.len()));
        if let Some((user, _)) = place.rsplit_once('@') {
            found.push(user.split_once(':').map_or(user, |(_, password)| password));
        }
        let pairs = values.split(['?', '#', '&', ';']).filter_map(|pair| pair.split_once('='));
        found
            .extend(pairs.filter(|(key, _)| is_secret(key) || looks_secret(key)).map(|(_, it)| it));
    }
    found
}

/// Keys under which others keep secrets.
fn looks_secret(key: &str) -> bool {
    let mut key = key.to_ascii_lowercase();
    key.retain(|letter| !matches!(letter, '_' | '-'));
    let ends = ["apikey", "privatekey", "passphrase", "bearer", "authorization"];
    let bare = key.strip_suffix('s').unwrap_or(&key);
    ends.iter().any(|end| bare.ends_with(end)) || bare.ends_with("credential") || is_secret(bare)
}

/// URLs, one or a list of them, without users' names and passwords, and without the secrets of a
/// query and a fragment.
fn bare_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let (places, values) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let mut bare = format!("{scheme}://{places}");
    for value in values.split_inclusive(['?', '#', '&', ';']) {
        match value.split_once('=') {
            Some((key, secret)) if is_secret(key) || looks_secret(key) => {
                let after =
                    secret.ends_with(['?', '#', '&', ';']).then(|| &secret[secret.len() - 1..]);
                bare.extend([key, "=…", after.unwrap_or_default()]);
            }
            _ => bare.push_str(value),
        }
    }
    let mut parts = bare.split("://");
    let scheme = parts.next().unwrap_or_default().to_owned();
    Some(parts.fold(scheme, |bare, part| bare + "://" + &without_user(part)))
}

/// The part of a URL after its scheme, without the user's name and password.
fn without_user(part: &str) -> String {
    let host = part.find(['/', '?', '#']).unwrap_or(part.len());
    match part[..host].rfind('@') {
        Some(user) => format!("…{}", &part[user..]),
        None => part.to_owned(),
    }
}

/// Keys whose values the project's own programs take for secrets.
pub fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["password", "passwd", "token", "secret"].iter().any(|end| key.ends_with(end))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_at_every_depth() {
        let value = json!({"a": [{"apiToken": "t"}], "etcd_password": {"x": 1}, "user": "u"});
        assert_eq!(
            masked(value),
            json!({"a": [{"apiToken": "…"}], "etcd_password": "…", "user": "u"})
        );
        let hidden = [
            "apiKey",
            "api_key",
            "X-API-Key",
            "passphrase",
            "credentials",
            "bearer",
            "tokens",
            "privateKey",
        ];
        for key in hidden {
            assert_eq!(masked(json!({key: ["s"]})), json!({key: "…"}));
        }
        let shown = json!({"tokenFile": "/t", "keyFile": "/k", "key": "k", "url": "http://a/b@c"});
        assert_eq!(masked(shown.clone()), shown);
        for (url, shown) in [
            ("http://u:p@w@h:1/a?b", "http://…@h:1/a?b"),
            ("https://u@h", "https://…@h"),
            ("u:p@h", "u:p@h"),
            ("http://h/?token=t&a=b&API-Key=k;c=d", "http://h/?token=…&a=b&API-Key=…;c=d"),
            ("http://u:p@h?x=@&secret=s#token=t", "http://…@h?x=@&secret=…#token=…"),
            ("https://h/a=b?token", "https://h/a=b?token"),
            ("http://u:p@h:1,https://v:q@i", "http://…@h:1,https://…@i"),
            ("http://h/?to=http://u:p@i/&token=t", "http://h/?to=http://…@i/&token=…"),
        ] {
            assert_eq!(masked(json!([url])), json!([shown]));
        }
    }

    #[test]
    fn the_texts_of_secrets_are_found_at_every_depth() {
        let value = json!({"a": [{"apiToken": "t"}], "password": {"x": ["p", 1]}, "user": "u"});
        assert_eq!(secrets_in(value.as_object().unwrap()), ["t", "p"]);
        for (url, secrets) in [
            ("http://u:p@w@h:1/a?b", &["p@w"][..]),
            ("https://t0ken@h", &["t0ken"]),
            ("http://u:p@h:1,https://v:q@i", &["p", "q"]),
            ("http://h/?to=http://u:p@i/&token=t#a=b", &["p", "t"]),
            ("http://h:1/u@p", &[]),
            ("u:p@h", &[]),
        ] {
            assert_eq!(secrets_in(json!({"url": [url]}).as_object().unwrap()), secrets, "{url}");
        }
    }
}
