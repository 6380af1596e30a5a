//! Texts that every transport uses.

use std::time::Duration;

use ipam_kit::host::show_duration;

/// The text for a connection that timed out.
pub const NOT_CONNECTED: &str = "connection timed out";

/// The text for a host whose name has no address.
pub const UNRESOLVED: &str = "host name does not resolve";

/// Advice about a server that should speak TLS and does not.
pub const WITHOUT_TLS: &str = "the server does not speak TLS: use http://, or check the port";

/// Advice about a server that ends the connection, as one without TLS does and one that is being
/// stopped.
pub const PERHAPS_WITHOUT_TLS: &str = "if the server does not speak TLS, use http://";

/// Advice about a server that should not speak TLS and does.
pub const WITH_TLS: &str = "the server speaks TLS: use https://";

/// Advice about a server's certificate that has expired, or is not valid yet.
pub const NOT_VALID_NOW: &str =
    "the server's certificate is not valid at this time, or this machine's clock is wrong";

/// The TLS alerts by which a server refuses a client's certificate before it reads any request.
pub const REFUSALS: [&str; 7] = [
    "AccessDenied",
    "BadCertificate",
    "CertificateExpired",
    "CertificateRequired",
    "CertificateUnknown",
    "UnknownCA",
    "UnsupportedCertificate",
];

/// The text for a server that did not answer within `patience`.
pub fn no_answer_within(patience: Duration) -> String {
    format!("no answer within {}", show_duration(patience))
}

/// The text of a failed connection in the same words for every transport.
pub fn of_connection(text: String) -> String {
    if text.contains("failed to lookup address information") {
        return UNRESOLVED.to_owned();
    }
    let layers = ["transport error: ", "tcp connect error: "];
    layers.iter().fold(&*text, |text, layer| text.strip_prefix(layer).unwrap_or(text)).to_owned()
}
