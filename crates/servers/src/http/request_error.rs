use std::io;
use std::time::Duration;

use rustls::CertificateError;
use ureq::http::HeaderValue;

use super::message::Method;
use crate::request_error::RequestError;
use crate::words;

/// The error of a request without an answer within `patience`.
pub(super) fn of_transport(
    error: &ureq::Error,
    sent: bool,
    secured: bool,
    patience: Duration,
) -> RequestError {
    let text = text(error, patience);
    if let ureq::Error::Io(error) = error {
        if let Some(advice) = of_tls(error).and_then(|error| tls_advice(error, sent)) {
            return RequestError::rejected(format!("{text} ({advice})")).sent(sent);
        }
        // A server without TLS ends like this, and so does one that is being stopped.
        let ends = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        if secured && !sent && ends.contains(&error.kind()) {
            return RequestError::not_done(format!("{text} ({})", words::PERHAPS_WITHOUT_TLS));
        }
    }
    // A server that wants another certificate may close before its reason is read.
    if secured && sent && is_cut(error) {
        return RequestError::unknown(format!(
            "{text} (the server may reject this client: check the client's certificate and key)"
        ));
    }
    if sent { RequestError::unknown(text) } else { RequestError::not_done(text) }
}

/// The error of a server whose first bytes are not HTTP/1: it has carried out nothing.
pub(super) fn not_http(error: &ureq::Error, patience: Duration, advice: &str) -> RequestError {
    RequestError::rejected(format!("{} ({advice})", text(error, patience)))
}

/// The error of a status that is not an answer.
pub(super) fn of_status(status: u16, method: Method, text: String) -> RequestError {
    match status {
        // Not now: too slow, too early, too many.
        408 | 425 | 429 => RequestError::not_done(text).sent(true),
        // 501: a server of another service, which does not know the method.
        300..=499 | 501 => RequestError::rejected(text).sent(true),
        _ if status >= 500 || method != Method::Get => RequestError::unknown(text),
        _ => RequestError::rejected(text).sent(true),
    }
}

/// Whether a server says that it does not know the path of a change, like one of another service, or
/// that it speaks only TLS. Either way it did not get the request.
pub(super) fn is_other_service(status: u16, method: Method, said: &str) -> bool {
    let is_change = method != Method::Get;
    is_change && (matches!(status, 404 | 405 | 501) || (status == 400 && said.contains("HTTPS")))
}

/// How long a server that rejects requests for now asks to wait, if it says so in seconds.
pub(super) fn asked_to_wait(status: u16, header: Option<&HeaderValue>) -> Option<Duration> {
    let seconds = header.filter(|_| matches!(status, 429 | 500..))?.to_str().ok()?;
    let seconds = seconds.trim().parse().ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds).min(RequestError::LONGEST))
}

fn text(error: &ureq::Error, patience: Duration) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect) => words::NOT_CONNECTED.to_owned(),
        ureq::Error::Timeout(_) => words::no_answer_within(patience),
        ureq::Error::HostNotFound => words::UNRESOLVED.to_owned(),
        ureq::Error::Protocol(error) => format!("the answer is not HTTP/1.1: {error}"),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the server closed the connection before the end of its answer".to_owned()
        }
        ureq::Error::Io(error) => words::of_connection(error.to_string()),
        other => other.to_string(),
    }
}

fn is_cut(error: &ureq::Error) -> bool {
    let ends = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    matches!(error, ureq::Error::Io(error) if ends.contains(&error.kind()))
}

fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Advice about a failure of TLS that retries do not cure.
fn tls_advice(error: &rustls::Error, sent: bool) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Some(words::NOT_VALID_NOW),
        rustls::Error::InvalidCertificate(_) => {
            Some("the server's certificate is not from a trusted CA, or is for another name")
        }
        // With TLS 1.3 a server says so only after a request, which it has not carried out.
        rustls::Error::AlertReceived(alert)
            if !sent || alert.as_str().is_some_and(|alert| words::REFUSALS.contains(&alert)) =>
        {
            Some("the server rejects this client: check the client's certificate and key")
        }
        rustls::Error::InvalidMessage(_) if !sent => Some(words::WITHOUT_TLS),
        _ if !sent => Some("TLS handshake failed"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rustls::AlertDescription;

    use super::*;
    use crate::request_error::Kind;

    fn kind(trouble: &RequestError) -> &'static str {
        match trouble.kind {
            Kind::NotDone(_) => "not done",
            Kind::Unknown(_) => "unknown",
            Kind::Rejected(_) => "rejected",
            Kind::NotUnderstood(_) | Kind::Refused(_) => "an error",
        }
    }

    #[test]
    fn what_a_status_leaves_open_depends_on_what_was_asked() {
        for (status, get, put) in [
            (204, "rejected", "unknown"),
            (301, "rejected", "rejected"),
            (403, "rejected", "rejected"),
            (404, "rejected", "rejected"),
            (408, "not done", "not done"),
            (429, "not done", "not done"),
            (500, "unknown", "unknown"),
            (501, "rejected", "rejected"),
            (503, "unknown", "unknown"),
            (700, "unknown", "unknown"),
        ] {
            let of = |method| kind(&of_status(status, method, String::new()));
            assert_eq!((of(Method::Get), of(Method::Put)), (get, put), "{status}");
            assert_eq!(of(Method::Post), put, "{status}");
        }
    }

    #[test]
    fn what_a_failure_leaves_open_depends_on_what_was_sent() {
        let io = |kind: io::ErrorKind| ureq::Error::Io(kind.into());
        let tls = |error: rustls::Error| {
            ureq::Error::Io(io::Error::new(io::ErrorKind::InvalidData, error))
        };
        let alert = |alert| tls(rustls::Error::AlertReceived(alert));
        for (error, before, after) in [
            (io(io::ErrorKind::ConnectionRefused), "not done", "unknown"),
            (io(io::ErrorKind::UnexpectedEof), "not done", "unknown"),
            (ureq::Error::Timeout(ureq::Timeout::Global), "not done", "unknown"),
            (ureq::Error::HostNotFound, "not done", "unknown"),
            (alert(AlertDescription::CertificateRequired), "rejected", "rejected"),
            (alert(AlertDescription::HandshakeFailure), "rejected", "unknown"),
            (alert(AlertDescription::DecryptError), "rejected", "unknown"),
            (tls(rustls::CertificateError::UnknownIssuer.into()), "rejected", "rejected"),
            (tls(rustls::InvalidMessage::InvalidContentType.into()), "rejected", "unknown"),
        ] {
            let of_sent = |sent| kind(&of_transport(&error, sent, true, Duration::ZERO));
            assert_eq!((of_sent(false), of_sent(true)), (before, after), "{error:?}");
        }
    }

    #[test]
    fn a_server_says_in_seconds_how_long_it_wants_to_be_left_alone() {
        for (status, header, seconds) in [
            (429, "1", Some(1)),
            (503, " 20 ", Some(20)),
            (429, "18446744073709551615", Some(86_400)),
            (429, "0", None),
            (429, "Fri, 31 Dec 1999 23:59:59 GMT", None),
            (404, "1", None),
        ] {
            let header = HeaderValue::from_static(header);
            let wait = asked_to_wait(status, Some(&header));
            assert_eq!(wait, seconds.map(Duration::from_secs), "{status} {header:?}");
        }
        assert_eq!(asked_to_wait(429, None), None);
    }
}
