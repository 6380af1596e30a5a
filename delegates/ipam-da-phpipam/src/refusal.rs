//! Refusals of the server, in words that say what to do.

use ipam_kit::{Error, ErrorCode};

use crate::answers::Envelope;

/// The words for a change that waited too long for its turn: with the transaction lock *File*, with
/// *MySQL*, and before phpIPAM 1.8.
const LOCKED: [&str; 3] =
    ["Cannot obtain lock", "MySQL wait timeout exceeded", "because of transaction lock"];

/// The words for a change by an App that may only read.
pub(crate) const READ_ONLY: &str = "invalid permissions";

/// Whether a change waited too long for its turn, so that it is certainly not made.
pub(crate) fn is_locked(envelope: &Envelope) -> bool {
    envelope.code >= 500 && LOCKED.iter().any(|words| envelope.says(words))
}

/// The error of an answer that nothing else explains. `said` are its words without secrets.
pub(crate) fn refusal(
    envelope: &Envelope,
    app: &str,
    has_login: bool,
    what: &str,
    said: &str,
) -> Error {
    let (code, advice) = advice(envelope, has_login);
    Error::new(code, format!("phpIPAM refused {what} of the App {app:?}: {} {said}", envelope.code))
        .advise(advice)
}

fn advice(envelope: &Envelope, has_login: bool) -> (ErrorCode, &'static str) {
    const USE_CODE: &str = "set ipam.phpipam.token to the App code instead of username and password: the App security is \"SSL with App code token\"";
    let backend = ErrorCode::BACKEND;
    match envelope.code {
        _ if is_locked(envelope) => (
            ErrorCode::TRY_AGAIN,
            "call again; if the error persists, check which other client of phpIPAM holds its lock, or start fewer containers at once",
        ),
        401 if envelope.says(READ_ONLY) => {
            (backend, "set the App permissions in phpIPAM to Read / Write")
        }
        // Any user gets a token, which such an App refuses.
        401 | 403 if has_login => (backend, USE_CODE),
        401 | 403 => (
            backend,
            "correct token or tokenFile in ipam.phpipam: it is the App code of this App, whose App security is \"SSL with App code token\"; or log in with username and password",
        ),
        400 if envelope.says("application id") => {
            (backend, "correct ipam.phpipam.appId: it is the App id of an App in phpIPAM")
        }
        400 if envelope.says("request key") => (
            backend,
            "correct ipam.phpipam.keyField: it is the name of a custom field of addresses",
        ),
        409 if envelope.says("Authentication not needed") => (backend, USE_CODE),
        503 if envelope.says("SSL") => (
            backend,
            "use https:// in ipam.phpipam.url; behind a proxy that ends TLS, set $trust_x_forwarded_headers in phpIPAM's config.php",
        ),
        503 if envelope.says("disabled") => {
            (backend, "enable the API and this App in phpIPAM (Administration, API)")
        }
        // A request that is not encrypted is not understood, in whatever words.
        503 => (
            backend,
            "choose \"SSL with App code token\" as the App security in phpIPAM: \"Encrypted\" is not supported",
        ),
        500 if envelope.says("blocked") => (
            ErrorCode::TRY_AGAIN,
            "correct username and password in ipam.phpipam: phpIPAM blocks this node for five minutes after eleven refused logins",
        ),
        500 if envelope.says("SQLSTATE[22001]") => {
            (backend, "let the custom field of ipam.phpipam.keyField hold 64 characters or more")
        }
        500 => {
            (ErrorCode::TRY_AGAIN, "call again; if the error persists, check the log of phpIPAM")
        }
        _ => (backend, "correct what the answer names, in phpIPAM or in the pool"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_without_a_turn_is_told_from_one_whose_outcome_is_unknown() {
        for (code, said, is_it) in [
            (500, "Cannot obtain lock for /tmp/phpipam_api_lock.txt after 1.0028 seconds", true),
            (500, "MySQL wait timeout exceeded after 1.0190 seconds", true),
            (503, "Transaction timed out after 30 seconds because of transaction lock", true),
            (500, "Error: SQLSTATE[HY000]: General error: 1205 Lock wait timeout exceeded", false),
            (200, "Cannot obtain lock", false),
        ] {
            let body = json!({"code": code, "success": code < 300, "message": said}).to_string();
            let envelope = Envelope::parse(body.as_bytes()).unwrap();
            assert_eq!(is_locked(&envelope), is_it, "{said}");
            let (error, _) = advice(&envelope, false);
            assert!(!is_it || error == ErrorCode::TRY_AGAIN, "{said}: {error:?}");
        }
    }
}
