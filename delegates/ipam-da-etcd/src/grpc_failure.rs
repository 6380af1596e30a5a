use std::error::Error as StdError;

use ipam_kit::{Error, ErrorCode};
use ipam_servers::{RequestError, words};
use tonic::Code;

use crate::credentials::EtcdCredentials;

/// Why a request that was sent brought no answer.
#[derive(Debug)]
pub(crate) enum GrpcFailure {
    /// The token is not known to the servers any more.
    StaleToken,
    /// The store does not let this caller.
    Denied(Error),
    /// Whatever means the same with every service.
    RequestError(RequestError),
}

/// Why a connection could not be made, to a server over TLS or not.
pub(crate) fn connection_failure(error: &(dyn StdError + 'static), secured: bool) -> RequestError {
    let text = chain(error);
    if is_of_tls(&text) {
        return RequestError::rejected(with_advice(text));
    }
    // So ends a server without TLS, and one that is being stopped.
    let ends = ["tls handshake eof", "Connection reset"];
    let text = words::of_connection(text);
    match secured && ends.iter().any(|end| text.contains(end)) {
        true => RequestError::not_done(format!("{text} ({})", words::PERHAPS_WITHOUT_TLS)),
        false => RequestError::not_done(text),
    }
}

impl From<RequestError> for GrpcFailure {
    fn from(failure: RequestError) -> Self {
        Self::RequestError(failure)
    }
}

impl From<GrpcFailure> for RequestError {
    fn from(failure: GrpcFailure) -> Self {
        match failure {
            GrpcFailure::StaleToken => Self::refused(
                refused("the server requires a login").advise(
                    "set username and passwordFile (etcd_username and etcd_password of whereabouts)",
                ),
            ),
            GrpcFailure::Denied(error) => Self::refused(error),
            GrpcFailure::RequestError(failure) => failure,
        }
    }
}

impl GrpcFailure {
    /// Why a request that was sent has failed. A server may repeat the secrets that it was shown.
    pub(crate) fn of_request(
        error: &etcd_client::Error,
        credentials: Option<&EtcdCredentials>,
    ) -> Self {
        match error {
            etcd_client::Error::GRpcStatus(status) => {
                Self::of_status(status, &|said| match credentials {
                    Some(credentials) => credentials.redacted(said),
                    None => said,
                })
            }
            other => RequestError::unknown(chain(other)).into(),
        }
    }

    fn of_status(status: &tonic::Status, redacted: &dyn Fn(String) -> String) -> Self {
        let message = &*redacted(status.message().to_owned());
        // What etcd itself says begins so; anything else is of the connection.
        let Some(reason) = message.strip_prefix("etcdserver: ") else {
            return of_connection(status.code(), redacted(chain(status))).into();
        };
        let advice = match status.code() {
            Code::Unauthenticated => return Self::StaleToken,
            // A signed token names the revision of the rights that it was made at.
            Code::InvalidArgument if reason.starts_with("revision of auth store is old") => {
                return Self::StaleToken;
            }
            Code::PermissionDenied => {
                return Self::Denied(refused(message));
            }
            Code::InvalidArgument if reason.starts_with("user name is empty") => {
                "the store requires a login: set certFile and keyFile of a certificate whose common name is an etcd user, or username and passwordFile (of whereabouts: etcd_cert_file and etcd_key_file, or etcd_username and etcd_password)"
            }
            Code::InvalidArgument if reason.starts_with("authentication failed") => {
                "check username and the content of passwordFile (etcd_username and etcd_password of whereabouts)"
            }
            Code::ResourceExhausted if reason.contains("space exceeded") => {
                "the store has raised the alarm NOSPACE: compact and defragment it, or raise its quota, then run etcdctl alarm disarm; DEL works meanwhile"
            }
            Code::InvalidArgument if reason.starts_with("too many operations") => {
                "raise --max-txn-ops of etcd, which is 128 by default, or select fewer pools"
            }
            Code::InvalidArgument if reason.starts_with("request is too large") => {
                "raise --max-request-bytes of etcd; in the layout whereabouts, a pool is one value: give new networks another layout"
            }
            // Turned away before it was proposed.
            Code::ResourceExhausted => return RequestError::not_done(message).sent(true).into(),
            Code::Unavailable
                if reason == "no leader" || reason.starts_with("rpc not supported") =>
            {
                return RequestError::not_done(message).sent(true).into();
            }
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                return RequestError::unknown(message).into();
            }
            _ => "see the log of the etcd server",
        };
        RequestError::refused(refused(message).advise(advice)).into()
    }
}

fn of_connection(code: Code, text: String) -> RequestError {
    // With TLS 1.3 a server refuses a certificate only at the first request, which it does not do.
    if words::REFUSALS.iter().any(|alert| text.contains(&format!("fatal alert: {alert}"))) {
        return RequestError::rejected(with_advice(text));
    }
    match code {
        Code::Unimplemented => {
            RequestError::rejected(format!("{text}: expected an etcd with the v3 API"))
        }
        _ => RequestError::unknown(text),
    }
}

/// Completes the reason of a connection that ended at its first request over TLS: a server that
/// refuses the client's certificate may end it before the alert is read.
pub(crate) fn with_advice_about_a_cut(reason: String) -> String {
    let lowercase = reason.to_lowercase();
    let cuts = ["connection closed", "connection reset", "broken pipe"];
    if !cuts.iter().any(|cut| lowercase.contains(cut)) {
        return reason;
    }
    format!("{reason} (the server may refuse the client's certificate: check certFile and keyFile)")
}

fn refused(message: &str) -> Error {
    Error::new(ErrorCode::BACKEND, message)
}

/// Tells whether the failure is about certificates or TLS itself, and not about the network.
fn is_of_tls(text: &str) -> bool {
    ["peer certificate", "fatal alert", "corrupt message", "invalid certificate"]
        .iter()
        .any(|sign| text.contains(sign))
}

fn with_advice(text: String) -> String {
    let advice = if text.contains("fatal alert") {
        "the server refuses the client's certificate: check certFile and keyFile"
    } else if text.contains("corrupt message") {
        words::WITHOUT_TLS
    } else if ["expired", "Expired", "not valid yet", "NotValidYet"]
        .iter()
        .any(|sign| text.contains(sign))
    {
        words::NOT_VALID_NOW
    } else {
        "the server's certificate has another name, or is not signed by a CA of trustedCaFile"
    };
    format!("{text} ({advice})")
}

/// Returns an error with its causes, each once.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = match error.downcast_ref::<tonic::Status>() {
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_is_told_apart() {
        let kind = |code, message: &str| {
            let failure = GrpcFailure::of_status(&tonic::Status::new(code, message), &|said| said);
            let shown = format!("{failure:?}");
            let kinds = ["StaleToken", "Denied", "Refused", "NotDone", "Unknown", "Rejected"];
            kinds.into_iter().find(|kind| shown.contains(kind)).unwrap()
        };
        for (code, message, expected) in [
            (Code::Unavailable, "etcdserver: no leader", "NotDone"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "NotDone"),
            (Code::Unavailable, "etcdserver: request timed out", "Unknown"),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                "Unknown",
            ),
            (Code::Unavailable, "etcdserver: leader changed", "Unknown"),
            (Code::Unavailable, "error reading a body from connection", "Unknown"),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "StaleToken"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", "StaleToken"),
            (Code::PermissionDenied, "etcdserver: permission denied", "Denied"),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "Refused"),
            (Code::InvalidArgument, "etcdserver: user name is empty", "Refused"),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", "Rejected"),
            (Code::Unknown, "transport error: received fatal alert: BadCertificate", "Rejected"),
            (Code::Unknown, "transport error: received corrupt message", "Unknown"),
            (Code::Unknown, "transport error: received fatal alert: DecryptError", "Unknown"),
        ] {
            assert_eq!(kind(code, message), expected, "{message}");
        }
    }

    #[test]
    fn a_cut_over_tls_brings_advice_about_the_certificate() {
        for (said, advised) in [
            ("operation was canceled: transport error: connection closed", true),
            ("stream closed because of a broken pipe", true),
            ("transport error: Connection reset by peer (os error 104)", true),
            ("no answer within 5 s", false),
        ] {
            let text = with_advice_about_a_cut(said.to_owned());
            assert_eq!(text.contains("check certFile and keyFile"), advised, "{text}");
        }
    }

    #[test]
    fn an_expired_certificate_is_told_from_one_of_another_ca() {
        for (said, advice) in [
            ("invalid peer certificate: Expired", words::NOT_VALID_NOW),
            ("invalid peer certificate: certificate not valid yet: …", words::NOT_VALID_NOW),
            ("invalid peer certificate: UnknownIssuer", "trustedCaFile"),
            ("received fatal alert: CertificateExpired", "check certFile and keyFile"),
        ] {
            let shown = format!("{:?}", connection_failure(&std::io::Error::other(said), true));
            assert!(shown.contains("Rejected") && shown.contains(advice), "{shown}");
        }
    }
}
