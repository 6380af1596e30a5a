use std::fmt;

use ::http::Uri;
use ::http::uri::Authority;

use ipam_kit::cni::shown_url;
use ipam_kit::error::{Error, Result};

/// The base URL of a server, below which requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    secured: bool,
    /// Host and port.
    authority: String,
    /// Empty, or with a slash in front and none at its end.
    path: String,
}

impl Server {
    /// Reads base URLs, at least one. A URL without a port has `default_port`, or without that the port
    /// of its scheme.
    ///
    /// # Errors
    /// No server is given, or a URL is invalid; the error names its path below `path`.
    pub fn parse_all(
        texts: &[String],
        path: &str,
        default_port: impl Into<Option<u16>>,
    ) -> Result<Vec<Self>> {
        if texts.is_empty() {
            return Err(Error::config(path, "empty list")
                .advise("name at least one server, for example http://HOST:PORT"));
        }
        let default_port = default_port.into();
        let texts = texts.iter().enumerate();
        texts
            .map(|(i, text)| Self::parse_one(text, &format!("{path}[{i}]"), default_port))
            .collect()
    }

    /// Reads one base URL, whose path is `path`.
    pub fn parse_one(text: &str, path: &str, default_port: Option<u16>) -> Result<Self> {
        Self::parse(text, default_port).map_err(|wrong| {
            Error::config(path, format_args!("{} {wrong}", shown_url(text)))
                .advise("expected http://HOST:PORT or https://HOST:PORT, optionally with a path")
        })
    }

    /// Reads one base URL.
    ///
    /// # Errors
    /// The URL is invalid: the reason, in words that follow the URL.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, &'static str> {
        const SCHEME: &str = "does not begin with http:// or https://";
        const URL: &str = "is not a valid URL";
        let scheme = text.trim().split_once("://");
        let authority = scheme.map_or(text, |(_, rest)| rest).split(['/', '?', '#']).next();
        if authority.is_some_and(|authority| authority.contains('@')) {
            return Err("contains a user name or password: use the keys for them");
        }
        let (scheme, rest) = scheme.ok_or(SCHEME)?;
        let secured = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            "unix" => return Err("is a Unix socket, which is not supported"),
            _ => return Err(SCHEME),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if rest.contains(['?', '#']) {
            return Err("has a query or a fragment: expected at most a path");
        }
        let parsed: Authority = authority.parse().map_err(|_| URL)?;
        let host = parsed.host();
        if host.is_empty() {
            return Err("has no host");
        }
        let port = match parsed.port_u16() {
            Some(port) => port,
            None if authority.len() == host.len() => {
                default_port.unwrap_or(if secured { 443 } else { 80 })
            }
            None => return Err("has no valid port"),
        };
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        let server = Self { secured, authority: format!("{host}:{port}"), path };
        server.to_string().parse::<Uri>().map_err(|_| URL)?;
        Ok(server)
    }

    /// Host and port.
    pub fn host_and_port(&self) -> &str {
        &self.authority
    }

    /// The URL without the scheme, and without the scheme's default port.
    pub fn without_scheme(&self) -> String {
        let port = if self.secured { ":443" } else { ":80" };
        let host = self.authority.strip_suffix(port).unwrap_or(&self.authority);
        format!("{host}{}", self.path)
    }

    /// Whether it has a path.
    pub fn has_path(&self) -> bool {
        !self.path.is_empty()
    }

    /// Whether it is spoken to over TLS.
    pub fn is_secured(&self) -> bool {
        self.secured
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secured { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.without_scheme())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_supplied_and_the_last_slash_dropped() {
        for (text, port, url) in [
            ("http://10.0.0.1:8500/", Some(8500), "http://10.0.0.1:8500"),
            (" HTTP://a ", Some(8500), "http://a:8500"),
            ("https://a", None, "https://a"),
            ("https://a:443", Some(8500), "https://a"),
            ("http://a:80", Some(8500), "http://a"),
            ("http://[fd00::1]", Some(4646), "http://[fd00::1]:4646"),
            ("http://lb/consul/", None, "http://lb/consul"),
            ("https://lb:444/a/b%20c", None, "https://lb:444/a/b%20c"),
        ] {
            let servers = Server::parse_all(&[text.to_owned()], "p", port).unwrap();
            assert_eq!(servers[0].to_string(), url);
            assert_eq!(servers[0].is_secured(), url.starts_with("https"));
        }
        assert!(Server::parse_all(&["http://a".to_owned()], "p", 8500).is_ok());
    }

    #[test]
    fn the_port_of_a_scheme_shows_in_the_authority_alone() {
        for (text, authority, place) in [
            ("https://a:443/b", "a:443", "a/b"),
            ("http://a", "a:80", "a"),
            ("http://a:443", "a:443", "a:443"),
            ("https://a:8443", "a:8443", "a:8443"),
        ] {
            let server = Server::parse(text, None).unwrap();
            assert_eq!((server.host_and_port(), &*server.without_scheme()), (authority, place));
        }
    }

    #[test]
    fn anything_else_is_refused_by_its_place() {
        for text in [
            "",
            "10.0.0.1:8500",
            "a",
            "unix:///run/x.sock",
            "ftp://a",
            "http://",
            "http:///x",
            "http://a b",
            "http://a:port",
            "http://a:",
            "http://a:99999",
            "http://fd00::1",
            "http://a/b c",
        ] {
            let texts = ["http://a".to_owned(), text.to_owned()];
            let error = Server::parse_all(&texts, "p", 80).unwrap_err();
            assert!(error.to_string().starts_with(&format!("p[1]: {text:?} ")), "{error}");
            assert_eq!(error.code().number(), 7);
        }
        let error = Server::parse_all(&[], "p", None).unwrap_err();
        assert_eq!(error.to_string(), "p: empty list");
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_shown() {
        for (text, message) in [
            ("http://u:s3cret@a:1", "the URL contains a user name"),
            ("htps://u:s3cret@a:1", "the URL contains a user name"),
            ("u:s3cret@a:1", "the URL contains a user name"),
            ("http:/u:s3cret@a:1", "the URL does not begin"),
            (
                "http://a?token=s3cret",
                "\"http://a…\" has a query or a fragment: expected at most a path",
            ),
            (
                "http://a/b?s3cret",
                "\"http://a/b…\" has a query or a fragment: expected at most a path",
            ),
            ("http://a#s3cret", "\"http://a…\" has a query or a fragment: expected at most a path"),
            ("http://a/b?c@s3cret", "the URL has a query or a fragment: expected at most a path"),
            ("a?token=s3cret", "\"a…\" does not begin"),
        ] {
            let error = Server::parse_all(&[text.to_owned()], "p", None).unwrap_err();
            assert!(error.to_string().starts_with(&format!("p[0]: {message}")), "{error}");
            assert!(!error.in_full().contains("s3cret"), "{error}");
        }
        assert!(Server::parse_all(&["http://a/b@c".to_owned()], "p", None).is_ok());
    }
}
