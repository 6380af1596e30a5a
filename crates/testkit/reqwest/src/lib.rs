//! What the crate `consul` needs of `reqwest`, so that tests can read by it what we write: plain HTTP,
//! a connection for each request.
//!
//! `reqwest` itself would bring OpenSSL, which `consul` gives no way to leave out, and an HTTP/2 that
//! nobody mends any more.

#![forbid(unsafe_code)]

pub use http::{StatusCode, header};

/// The client that blocks.
pub mod blocking {
    use std::io::{self, Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use url::Url;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[derive(Clone, Debug)]
    pub struct Client;

    #[derive(Debug)]
    pub struct ClientBuilder;

    impl ClientBuilder {
        #[expect(clippy::new_without_default, reason = "as in reqwest")]
        pub fn new() -> Self {
            Self
        }

        pub fn build(self) -> io::Result<Client> {
            Ok(Client)
        }
    }

    impl Client {
        pub fn get(&self, url: Url) -> RequestBuilder {
            RequestBuilder::new("GET", url)
        }

        pub fn put(&self, url: Url) -> RequestBuilder {
            RequestBuilder::new("PUT", url)
        }

        pub fn delete(&self, url: Url) -> RequestBuilder {
            RequestBuilder::new("DELETE", url)
        }
    }

    #[derive(Debug)]
    pub struct RequestBuilder {
        method: &'static str,
        url: Url,
        headers: String,
        body: io::Result<Vec<u8>>,
    }

    impl RequestBuilder {
        fn new(method: &'static str, url: Url) -> Self {
            Self { method, url, headers: String::new(), body: Ok(Vec::new()) }
        }

        pub fn header(mut self, name: &str, value: &str) -> Self {
            self.headers.push_str(&format!("{name}: {value}\r\n"));
            self
        }

        pub fn json<T: Serialize + ?Sized>(mut self, body: &T) -> Self {
            self.body = serde_json::to_vec(body).map_err(io::Error::other);
            self
        }

        pub fn send(self) -> io::Result<Response> {
            let body = self.body?;
            let addresses = self.url.socket_addrs(|| None)?;
            let mut stream = TcpStream::connect(&addresses[..])?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let query = self.url.query().map_or_else(String::new, |query| format!("?{query}"));
            let (method, path, headers) = (self.method, self.url.path(), self.headers);
            // An answer to HTTP/1.0 comes in one piece.
            let head = format!("{method} {path}{query} HTTP/1.0\r\n{headers}Content-Length: ");
            stream.write_all(format!("{head}{}\r\n\r\n", body.len()).as_bytes())?;
            stream.write_all(&body)?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes)?;
            Response::read(&bytes)
        }
    }

    #[derive(Debug)]
    pub struct Response {
        status: StatusCode,
        headers: HeaderMap,
        body: Vec<u8>,
    }

    impl Response {
        fn read(bytes: &[u8]) -> io::Result<Self> {
            let end = bytes.windows(4).position(|piece| piece == b"\r\n\r\n");
            let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
            let head = String::from_utf8_lossy(&bytes[..end]);
            let mut lines = head.lines();
            let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let pair = |line: &str| {
                let (name, value) = line.split_once(": ")?;
                Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
            };
            Ok(Self {
                status: status.parse().map_err(io::Error::other)?,
                headers: lines.filter_map(pair).collect(),
                body: bytes[end + 4..].to_vec(),
            })
        }

        pub fn status(&self) -> StatusCode {
            self.status
        }

        pub fn headers(&self) -> &HeaderMap {
            &self.headers
        }

        pub fn json<T: DeserializeOwned>(self) -> io::Result<T> {
            serde_json::from_slice(&self.body).map_err(io::Error::other)
        }
    }
}
