use std::error::Error as StdError;

use ipam_kit::{Error, ErrorCode};
use tonic::Code;

use crate::token::Caller;

/// Why a request brought no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It cannot have been carried out, and this endpoint may carry it out later.
    NotSent(String),
    /// It may have been carried out, or may still be.
    Unknown(String),
    /// This endpoint will not carry it out, whatever is asked; another one may.
    Unfit(String),
    /// The token is not known to the servers any more.
    StaleToken,
    /// The store refuses it.
    Refused(Error),
    /// The store does not let this caller.
    Denied(Error),
}

impl Trouble {
    /// Why a connection could not be made, to an endpoint over TLS or not.
    pub(crate) fn connecting(error: &(dyn StdError + 'static), secured: bool) -> Self {
        let text = chain(error);
        if is_of_tls(&text) {
            return Self::Unfit(with_advice(text));
        }
        // So ends a server without TLS, and one that is being stopped.
        let ends = ["tls handshake eof", "Connection reset"];
        let hint = match secured && ends.iter().any(|end| text.contains(end)) {
            true => " (if the server does not speak TLS, write http:// before the endpoint)",
            false => "",
        };
        Self::NotSent(text + hint)
    }

    /// Why a request that was sent has failed. A server may repeat the secrets that it was shown.
    pub(crate) fn sending(error: &etcd_client::Error, caller: Option<&Caller>) -> Self {
        match error {
            etcd_client::Error::GRpcStatus(status) => Self::of(status, &|said| match caller {
                Some(caller) => caller.redacted(said),
                None => said,
            }),
            other => Self::Unknown(chain(other)),
        }
    }

    fn of(status: &tonic::Status, redacted: &dyn Fn(String) -> String) -> Self {
        let message = &*redacted(status.message().to_owned());
        // What etcd itself says begins so; anything else is of the connection.
        let Some(told) = message.strip_prefix("etcdserver: ") else {
            return Self::of_connection(status.code(), redacted(chain(status)));
        };
        match status.code() {
            Code::Unauthenticated => Self::StaleToken,
            // A signed token names the revision of the rights that it was made at.
            Code::InvalidArgument if told.starts_with("revision of auth store is old") => {
                Self::StaleToken
            }
            Code::PermissionDenied => Self::Denied(refused(message).advise(
                "grant the user's role readwrite on the prefix: etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/",
            )),
            Code::InvalidArgument if told.starts_with("user name is empty") => {
                Self::Refused(refused(message).advise(
                    "the store asks who calls: give certFile and keyFile of a certificate whose common name is an etcd user, or username and passwordFile",
                ))
            }
            Code::InvalidArgument if told.starts_with("authentication failed") => {
                Self::Refused(refused(message).advise("look at username and at the content of passwordFile"))
            }
            Code::ResourceExhausted if told.contains("space exceeded") => {
                Self::Refused(refused(message).advise(
                    "the store has raised the alarm NOSPACE: compact and defragment it, raise its quota, then etcdctl alarm disarm; releasing addresses works meanwhile",
                ))
            }
            Code::InvalidArgument if told.starts_with("too many operations") => {
                Self::Refused(refused(message).advise(
                    "etcd takes 128 operations a transaction: ask for fewer pools at once, or raise its --max-txn-ops",
                ))
            }
            // Turned away before it was proposed.
            Code::ResourceExhausted => Self::NotSent(message.to_owned()),
            Code::Unavailable if told == "no leader" || told.starts_with("rpc not supported") => {
                Self::NotSent(message.to_owned())
            }
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                Self::Unknown(message.to_owned())
            }
            _ => Self::Refused(refused(message).advise("see the log of the etcd server")),
        }
    }

    fn of_connection(code: Code, text: String) -> Self {
        // With TLS 1.3 a server says so only when it is asked for something, and has not done it.
        if REFUSALS.iter().any(|alert| text.contains(&format!("fatal alert: {alert}"))) {
            return Self::Unfit(with_advice(text));
        }
        match code {
            Code::Unimplemented => Self::Unfit(format!("{text}: this is no etcd with the v3 API")),
            _ => Self::Unknown(text),
        }
    }
}

fn refused(message: &str) -> Error {
    Error::new(ErrorCode::BACKEND, message)
}

/// The alerts by which a server refuses a client's certificate, before it reads any request.
const REFUSALS: [&str; 7] = [
    "AccessDenied",
    "BadCertificate",
    "CertificateExpired",
    "CertificateRequired",
    "CertificateUnknown",
    "UnknownCA",
    "UnsupportedCertificate",
];

/// Whether the failure is about certificates or TLS itself, and not about the network.
fn is_of_tls(text: &str) -> bool {
    ["peer certificate", "fatal alert", "corrupt message", "invalid certificate"]
        .iter()
        .any(|sign| text.contains(sign))
}

fn with_advice(text: String) -> String {
    let advice = if text.contains("fatal alert") {
        "the server does not take the client's certificate: look at certFile and keyFile"
    } else if text.contains("corrupt message") {
        "the server does not speak TLS: write http:// before the endpoint, or look at the port"
    } else {
        "the server's certificate is not one that trustedCaFile vouches for, or is for another name"
    };
    format!("{text} ({advice})")
}

/// An error with its causes, each once.
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
        let trouble =
            |code, message: &str| match Trouble::of(&tonic::Status::new(code, message), &|said| {
                said
            }) {
                Trouble::NotSent(_) => "not sent",
                Trouble::Unknown(_) => "unknown",
                Trouble::Unfit(_) => "unfit",
                Trouble::StaleToken => "stale token",
                Trouble::Refused(_) => "refused",
                Trouble::Denied(_) => "denied",
            };
        for (code, message, expected) in [
            (Code::Unavailable, "etcdserver: no leader", "not sent"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "not sent"),
            (Code::Unavailable, "etcdserver: request timed out", "unknown"),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                "unknown",
            ),
            (Code::Unavailable, "etcdserver: leader changed", "unknown"),
            (Code::Unavailable, "error reading a body from connection", "unknown"),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "stale token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", "stale token"),
            (Code::PermissionDenied, "etcdserver: permission denied", "denied"),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "refused"),
            (Code::InvalidArgument, "etcdserver: user name is empty", "refused"),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", "unfit"),
            (Code::Unknown, "transport error: received fatal alert: BadCertificate", "unfit"),
            (Code::Unknown, "transport error: received corrupt message", "unknown"),
            (Code::Unknown, "transport error: received fatal alert: DecryptError", "unknown"),
        ] {
            assert_eq!(trouble(code, message), expected, "{message}");
        }
    }
}
