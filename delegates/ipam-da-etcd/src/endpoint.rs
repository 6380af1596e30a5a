use std::fmt;

use ipam_kit::cni::shown_url;
use ipam_kit::{Error, Result};
use ipam_servers::Server;

/// The address of a server: a URL without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(Server);

/// etcd's port for clients.
const PORT: u16 = 2379;

/// Reads endpoints, at least one.
///
/// # Errors
/// The list is empty, or an endpoint is malformed. The error names its path: `listed` ones have an
/// index.
pub(crate) fn parse_all(
    texts: &[String],
    secured: bool,
    path: &str,
    listed: bool,
) -> Result<Vec<Endpoint>> {
    if texts.is_empty() {
        return Err(Error::config(path, "empty: expected at least one endpoint")
            .advise("name an etcd server, as in 10.0.0.1:2379"));
    }
    let mut endpoints = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let endpoint = Endpoint::parse(text, secured).map_err(|reason| {
            let path = if listed { format!("{path}[{index}]") } else { path.to_owned() };
            Error::config(path, format_args!("{} {reason}", shown_url(text)))
                .advise("expected HOST:PORT, http://HOST:PORT or https://HOST:PORT")
        })?;
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

impl Endpoint {
    /// Reads an endpoint. Without a scheme it is https where that is `secured`, else http; without
    /// a port it is etcd's own.
    fn parse(text: &str, secured: bool) -> Result<Self, &'static str> {
        let server = match (text.contains("://"), secured) {
            (true, _) => Server::parse(text, Some(PORT)),
            (false, true) => Server::parse(&format!("https://{}", text.trim()), Some(PORT)),
            (false, false) => Server::parse(&format!("http://{}", text.trim()), Some(PORT)),
        }?;
        if server.has_path() { Err("has more than a host and a port") } else { Ok(Self(server)) }
    }

    /// Host and port.
    pub(crate) fn host_and_port(&self) -> &str {
        self.0.host_and_port()
    }

    /// Tells whether it is spoken to over TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.0.is_secured()
    }
}

impl fmt::Display for Endpoint {
    /// Shows the port in any case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secured() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host_and_port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_and_a_port_are_supplied() {
        for (text, secured, url) in [
            ("127.0.0.1:2379", false, "http://127.0.0.1:2379"),
            ("127.0.0.1:2379", true, "https://127.0.0.1:2379"),
            ("HTTP://a:80/", true, "http://a:80"),
            ("https://etcd.example", false, "https://etcd.example:2379"),
            (" [fd00::1]:4001 ", false, "http://[fd00::1]:4001"),
            ("[fd00::1]", false, "http://[fd00::1]:2379"),
        ] {
            assert_eq!(Endpoint::parse(text, secured).unwrap().to_string(), url);
        }
    }

    #[test]
    fn anything_else_is_refused_by_its_place() {
        for text in [
            "",
            "unix:///run/etcd",
            "a b",
            "a:port",
            "a:99999",
            "a:",
            "http://",
            "http://a/b",
            "fd00::1",
        ] {
            let error =
                parse_all(&["a".to_owned(), text.to_owned()], false, "p", true).unwrap_err();
            assert!(error.to_string().starts_with(&format!("p[1]: {text:?} ")), "{error}");
        }
    }

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        for (text, message) in [
            ("http://u:s3cret@a:1", "p: the URL contains"),
            ("u:s3cret@a:1", "p: the URL contains"),
            ("htps://u:s3cret@a:1", "p: the URL contains"),
            ("a?token=s3cret", "p: \"a…\" has a query"),
            ("htps://a?token=s3cret", "p: \"htps://a…\" does not begin with http://"),
        ] {
            let error = parse_all(&[text.to_owned()], false, "p", false).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert!(!error.in_full().contains("s3cret"), "{error}");
        }
    }
}
