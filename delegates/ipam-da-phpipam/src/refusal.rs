//! Refusals of the server, in words that say what to do.

use ipam_kit::{Error, ErrorCode};

use crate::answers::Envelope;

/// The words for a change that waited too long for its turn. It is certainly not made.
pub(crate) const LOCKED: &str = "Cannot obtain lock";

/// The words for a change by an App that may only read.
pub(crate) const READ_ONLY: &str = "invalid permissions";

/// The error of an answer that nothing else explains. `said` are its words without secrets.
pub(crate) fn refusal(envelope: &Envelope, app: &str, what: &str, said: &str) -> Error {
    let (code, advice) = advice(envelope);
    Error::new(code, format!("phpIPAM refused {what} of the App {app:?}: {} {said}", envelope.code))
        .advise(advice)
}

fn advice(envelope: &Envelope) -> (ErrorCode, &'static str) {
    let backend = ErrorCode::BACKEND;
    match envelope.code {
        401 if envelope.says(READ_ONLY) => {
            (backend, "set the App permissions in phpIPAM to Read / Write")
        }
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
        409 if envelope.says("Authentication not needed") => (
            backend,
            "set ipam.phpipam.token to the App code instead of username and password: the App security is \"SSL with App code token\"",
        ),
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
            "choose \"SSL with App code token\" as the App security in phpIPAM: Crypt is not supported",
        ),
        500 if envelope.says("blocked") => (
            ErrorCode::TRY_AGAIN,
            "correct username and password in ipam.phpipam: phpIPAM blocks this node for five minutes after eleven refused logins",
        ),
        500 if envelope.says(LOCKED) => (
            ErrorCode::TRY_AGAIN,
            "call again; if the error persists, check which other client of phpIPAM holds its lock, or start fewer containers at once",
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
