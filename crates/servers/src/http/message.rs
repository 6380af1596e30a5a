use std::fmt::{self, Write as _};
use std::io::{self, Read};

use crate::secret::Secret;

/// A request to a server.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// The method.
    pub method: Method,
    /// The path below the server's URL, without a slash in front, with its query; already escaped, see
    /// [`escape`].
    pub path: &'a str,
    /// The body; a GET sends none.
    pub body: &'a [u8],
    /// The media type of the body, as in [`media`]; without it, the client's.
    pub media: Option<&'a str>,
    /// Headers of this request only. They replace those of every request.
    pub headers: &'a [(&'a str, &'a str)],
    /// The same, with values that no error and no log shows.
    pub secrets: &'a [(&'a str, Secret)],
    /// The statuses that are an answer. Any other means that this server rejects the request.
    pub ok_statuses: &'a [u16],
    /// The headers of the answer to keep, see [`HttpAnswer::header`].
    pub kept_headers: &'a [&'a str],
    /// A header that every answer of this service has, if there is one. An answer without it is of
    /// another service.
    pub required_header: Option<&'a str>,
    /// The largest body that is read of an answer, in bytes; a larger one is an error, and one whose
    /// values or texts would cost much more to hold.
    pub limit: u64,
}

/// Media types of bodies.
pub mod media {
    /// JSON.
    pub const JSON: &str = "application/json";
    /// A list of changes to JSON (RFC 6902).
    pub const JSON_PATCH: &str = "application/json-patch+json";
    /// The members of a JSON object that change (RFC 7396).
    pub const MERGE_PATCH: &str = "application/merge-patch+json";
}

impl<'a> HttpRequest<'a> {
    /// A request without a body, of which 200 alone is an answer, with a body of at most 1 MiB.
    pub const fn new(method: Method, path: &'a str) -> Self {
        Self {
            method,
            path,
            body: &[],
            media: None,
            headers: &[],
            secrets: &[],
            ok_statuses: &[200],
            kept_headers: &[],
            required_header: None,
            limit: 1024 * 1024,
        }
    }
}

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Writes at a path.
    Put,
    /// Creates.
    Post,
    /// Changes parts, as the media type of the body defines.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// One of [`HttpRequest::ok_statuses`].
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
    pub(super) headers: Vec<(String, String)>,
}

impl HttpAnswer {
    /// An answer without headers.
    pub fn new(status: u16, body: Vec<u8>) -> Self {
        Self { status, body, headers: Vec::new() }
    }

    /// The header of a name that [`HttpRequest::kept_headers`] has, where the answer has it as text; the first,
    /// where it has several. All headers of an answer have 64 KiB at most.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }
}

/// Escapes a text for a segment of a path or a value of a query.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// A body that is read up to a limit. It remembers why reading ended.
pub(super) struct Bounded<R> {
    inner: R,
    left: u64,
    end: BodyEnd,
}

/// Why a body cannot be read further.
#[derive(Default)]
pub(super) enum BodyEnd {
    /// It can, or it is at its end.
    #[default]
    None,
    /// It is longer than the limit.
    TooLong,
    /// The connection failed.
    Broken(io::Error),
}

impl<R: Read> Bounded<R> {
    pub(super) fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit, end: BodyEnd::None }
    }

    pub(super) fn end(self) -> BodyEnd {
        self.end
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !matches!(self.end, BodyEnd::None) {
            return Err(io::Error::other("the body was read beyond its end"));
        }
        let mut probe = [0];
        let part = match usize::try_from(self.left) {
            Ok(0) if !buffer.is_empty() => &mut probe[..],
            Ok(left) if left < buffer.len() => &mut buffer[..left],
            _ => buffer,
        };
        match self.inner.read(part) {
            Ok(0) => Ok(0),
            Ok(_) if self.left == 0 => {
                self.end = BodyEnd::TooLong;
                Err(io::Error::other("the body is longer than the limit"))
            }
            Ok(length) => {
                self.left -= length as u64;
                Ok(length)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let told = io::Error::new(error.kind(), error.to_string());
                self.end = BodyEnd::Broken(error);
                Err(told)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_means_something_in_a_url_is_escaped() {
        assert_eq!(escape("aZ9-._~"), "aZ9-._~");
        assert_eq!(escape("a/b c?d&e=f%é:"), "a%2Fb%20c%3Fd%26e%3Df%25%C3%A9%3A");
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        for (limit, whole) in [(4, false), (5, true), (6, true)] {
            let mut body = Bounded::new(&b"12345"[..], limit);
            let mut read = Vec::new();
            assert_eq!(body.read_to_end(&mut read).is_ok(), whole, "{limit}");
            assert_eq!(matches!(body.end(), BodyEnd::TooLong), !whole, "{limit}");
        }
    }
}
