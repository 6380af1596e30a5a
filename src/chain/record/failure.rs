use std::cmp::Reverse;

use serde_json::{Map, Value};

use ipam_kit::error::{Error, ErrorCode};
use ipam_kit::text::{redacted, secrets_in};

/// The error that a failed ADD answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureReason {
    pub code: ErrorCode,
    /// Its message, without causes and advice.
    pub message: String,
}

impl FailureReason {
    /// The most characters of a message. The log has all of it.
    const LONGEST: usize = 300;

    /// The fewest bytes of a secret. A shorter text may be a part of any word.
    const SHORTEST_SECRET: usize = 4;

    /// The reason that an error gives, without the secrets of these configurations.
    pub(crate) fn of<'a>(
        error: &Error,
        configurations: impl IntoIterator<Item = &'a Map<String, Value>>,
    ) -> Self {
        let mut secrets: Vec<&str> = configurations.into_iter().flat_map(secrets_in).collect();
        secrets.retain(|secret| secret.len() >= Self::SHORTEST_SECRET);
        // A secret may be a part of another one.
        secrets.sort_unstable_by_key(|secret| Reverse(secret.len()));
        let mut message = redacted(error.to_string(), secrets);
        if let Some((end, _)) = message.char_indices().nth(Self::LONGEST) {
            message.truncate(end);
            message.push('…');
        }
        Self { code: error.code(), message }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reason_is_short_and_has_no_secrets() {
        let config = json!({"ipam": {
            "consul": {"token": "s3cret", "password": "a", "secret": "s3cret-and-more"},
            "server": "http://u:hunter2@h/",
        }});
        let of = |message: String| {
            let error = Error::new(ErrorCode::BACKEND, message).caused_by("why").advise("do it");
            FailureReason::of(&error, config.as_object()).message
        };
        assert_eq!(of("refused s3cret twice".to_owned()), "refused … twice");
        assert_eq!(of("s3cret-and-more".to_owned()), "…");
        assert_eq!(of("no http://u:hunter2@h/".to_owned()), "no http://u:…@h/");
        assert_eq!(of("é".repeat(300)), "é".repeat(300));
        assert_eq!(of("é".repeat(301)), format!("{}…", "é".repeat(300)));
        // A secret is taken out before the cut, which would leave its beginning.
        assert_eq!(of(format!("{}s3cret{}", "x".repeat(297), "y".repeat(9))).chars().count(), 301);
        assert!(!of(format!("{}s3cret{}", "x".repeat(297), "y".repeat(9))).contains("s3"));
    }
}
