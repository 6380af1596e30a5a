use std::fmt::{self, Write as _};
use std::io::{self, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_kit::text::Utc;

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

/// The time in a header such as `Date` or `Last-Modified`, in HTTP's present form
/// (`Sun, 06 Nov 1994 08:49:37 GMT`, RFC 9110).
pub fn parse_http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let (_, date) = text.trim().split_once(", ")?;
    let [day, month, year, time, "GMT"] = *date.split(' ').collect::<Vec<_>>() else { return None };
    let month = MONTHS.find(month).filter(|at| month.len() == 3 && at % 3 == 0)? / 3 + 1;
    let [hour, minute, second] = *time.split(':').collect::<Vec<_>>() else { return None };
    let [day, hour, minute, second] = [day, hour, minute, second].map(|part| part.parse().ok());
    let month = u64::try_from(month).ok()?;
    let seconds = utc_seconds(year.parse().ok()?, month, day?, hour?, minute?, second?)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Seconds since 1970 of a time in UTC, by the proleptic Gregorian calendar.
pub(super) fn utc_seconds(
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
) -> Option<u64> {
    let is_time = hour < 24 && minute < 60 && second <= 60;
    if !(is_time && (1970..=9999).contains(&year) && (1..=12).contains(&month)) {
        return None;
    }
    // Years begin in March, so that a leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let months_since_march = (month + 9) % 12;
    let day_of_year =
        (153 * months_since_march + 2) / 5 + day.checked_sub(1).filter(|d| *d < 31)?;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// A time with its offset from UTC, as JSON has it: `2026-11-27T22:53:08.137585Z` (RFC 3339).
pub fn parse_timestamp(text: &str) -> Option<SystemTime> {
    let (date, rest) = text.split_at_checked(10)?;
    let [year, month, day] = *date.split('-').collect::<Vec<_>>() else { return None };
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, rest) = rest.split_at_checked(8)?;
    let [hour, minute, second] = *time.split(':').collect::<Vec<_>>() else { return None };
    let parts = [year, month, day, hour, minute, second];
    if parts.iter().any(|part| !part.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let [year, month, day, hour, minute, second] = parts.map(|part| part.parse().ok());
    let seconds = utc_seconds(year?, month?, day?, hour?, minute?, second?)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        None => ("", rest),
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
    };
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let time = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))?;
    if zone.eq_ignore_ascii_case("z") {
        return Some(time);
    }
    let (is_ahead, offset) = match zone.split_at_checked(1)? {
        ("+", offset) => (true, offset),
        ("-", offset) => (false, offset),
        _ => return None,
    };
    let (hours, minutes) = offset.split_once(':')?;
    let [hours, minutes]: [Option<u64>; 2] = [hours, minutes].map(|part| part.parse().ok());
    let offset = hours?.checked_mul(3600)?.checked_add(minutes?.checked_mul(60)?)?;
    let offset = Duration::from_secs(offset);
    if is_ahead { time.checked_sub(offset) } else { time.checked_add(offset) }
}

/// A time in the form of [`parse_timestamp`], in UTC, with microseconds.
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}Z", Utc::from(since), since.subsec_micros())
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
    fn times_of_headers_and_of_json_are_read() {
        let at = |seconds: u64, nanos: u32| Some(UNIX_EPOCH + Duration::new(seconds, nanos));
        for (text, time) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", at(784_111_777, 0)),
            (" Thu, 01 Jan 1970 00:00:00 GMT", at(0, 0)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", at(1_709_251_199, 0)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 06 anF 1994 08:49:37 GMT", None),
            ("Sun, 00 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 24:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(parse_http_date(text), time, "{text}");
        }
        for (text, time) in [
            ("1994-11-06T08:49:37Z", at(784_111_777, 0)),
            ("1994-11-06T08:49:37.5z", at(784_111_777, 500_000_000)),
            ("1994-11-06T10:49:37.000001+02:00", at(784_111_777, 1_000)),
            ("1994-11-06 03:19:37-05:30", at(784_111_777, 0)),
            ("1994-11-06T08:49:37", None),
            ("1994-11-06", None),
            ("1994-13-06T08:49:37Z", None),
            ("+994-11-06T08:49:37Z", None),
            ("1969-12-31T23:59:59Z", None),
            ("1994-11-06T08:49:37+99999999999999999:00", None),
            ("é994-11-06T08:49:37Z", None),
        ] {
            assert_eq!(parse_timestamp(text), time, "{text}");
        }
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, 999_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400, 1_000, "2000-02-29T00:00:00.000001Z"),
            (1_709_251_199, 0, "2024-02-29T23:59:59.000000Z"),
            (4_102_444_800, 0, "2100-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::new(seconds, nanos)), text);
            assert_eq!(parse_timestamp(text), at(seconds, nanos / 1_000 * 1_000));
        }
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
