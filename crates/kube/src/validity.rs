use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ipam_kit::text::Utc;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in UTC. As text it is a time of the objects of Kubernetes: `2026-03-01T09:30:00Z`, or
/// `2026-03-01T09:30:00.125Z` with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    seconds: i64,
    millis: u16,
}

/// The time in which credentials are valid, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Validity {
    from: Option<Moment>,
    until: Option<Moment>,
}

impl Validity {
    /// The validity of a certificate (RFC 5280); `None` if it cannot be read.
    pub(super) fn of_certificate(der: &[u8]) -> Option<Self> {
        let (certificate, _) = DerElement::SEQUENCE.take(der)?;
        let (mut rest, _) = DerElement::SEQUENCE.take(certificate)?;
        if let Some((_, after_version)) = DerElement::VERSION.take(rest) {
            rest = after_version;
        }
        for skipped in [DerElement::INTEGER, DerElement::SEQUENCE, DerElement::SEQUENCE] {
            (_, rest) = skipped.take(rest)?;
        }
        let (times, _) = DerElement::SEQUENCE.take(rest)?;
        let (from, rest) = Moment::take(times)?;
        let (until, _) = Moment::take(rest)?;
        Some(Self { from: Some(from), until: Some(until) })
    }

    /// The validity of a token, if it is a JWT (RFC 7519), as a service account's is. The server checks
    /// its signature.
    pub(super) fn of_token(token: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct TokenClaims {
            exp: Option<f64>,
            nbf: Option<f64>,
        }
        let (_, rest) = token.split_once('.')?;
        let (claims, _) = rest.split_once('.')?;
        let claims: TokenClaims =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        Some(Self {
            from: claims.nbf.map(Moment::from_seconds),
            until: claims.exp.map(Moment::from_seconds),
        })
    }

    /// Why it is not valid at a moment, to follow the name of the credentials.
    pub(super) fn complaint(&self, now: Moment) -> Option<String> {
        match (self.from, self.until) {
            (_, Some(until)) if until < now => Some(format!("expired at {until}")),
            (Some(from), _) if from > now => {
                Some(format!("is not valid before {from} (this host's clock: {now})"))
            }
            _ => None,
        }
    }
}

impl Moment {
    /// This host's time, in whole seconds.
    pub fn now() -> Self {
        Self { millis: 0, ..Self::now_in_millis() }
    }

    /// This host's time, in whole milliseconds.
    pub fn now_in_millis() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u16::try_from(since.subsec_millis()).unwrap_or_default();
        Self { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), millis }
    }

    /// The moment that comes so many whole seconds later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        let later = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Self { seconds: self.seconds.saturating_add(later), ..self }
    }

    /// The moment as the time of this host; 1970 for an earlier one.
    pub fn time(self) -> SystemTime {
        let Ok(seconds) = u64::try_from(self.seconds) else { return UNIX_EPOCH };
        UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(self.millis.into())
    }

    fn whole(seconds: i64) -> Self {
        Self { seconds, millis: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "whole seconds will do")]
    fn from_seconds(seconds: f64) -> Self {
        Self::whole(seconds as i64)
    }

    /// The time at the start of DER, and the rest.
    fn take(der: &[u8]) -> Option<(Self, &[u8])> {
        if let Some((text, rest)) = DerElement::UTC_TIME.take(der) {
            let century = if text.first()? < &b'5' { b"20" } else { b"19" };
            return Some((Self::parse(&[century, text].concat())?, rest));
        }
        let (text, rest) = DerElement::GENERALIZED_TIME.take(der)?;
        Some((Self::parse(text)?, rest))
    }

    /// Reads a time of RFC 3339, as API servers accept it: with any fraction of a second, of which
    /// milliseconds count, and in any zone.
    fn from_rfc3339(text: &str) -> Option<Self> {
        let (whole, rest) = text.split_at_checked("2026-03-01T09:30:00".len())?;
        let digits: String = whole.chars().filter(char::is_ascii_digit).collect();
        let moment = Self::parse(format!("{digits}Z").as_bytes())?;
        // A day or an hour that no calendar has is shown as another one.
        if moment.to_string() != format!("{whole}Z") {
            return None;
        }
        let Some(rest) = rest.strip_prefix('.') else {
            return Some(Self::whole(moment.seconds - zone_offset(rest)?));
        };
        let (fraction, zone) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let millis: String = fraction.chars().chain("00".chars()).take(3).collect();
        let millis = millis.parse().ok().filter(|_| !fraction.is_empty())?;
        Some(Self { seconds: moment.seconds - zone_offset(zone)?, millis })
    }

    /// Reads `YYYYMMDDHHMMSSZ`.
    fn parse(text: &[u8]) -> Option<Self> {
        let digits = text.strip_suffix(b"Z").filter(|digits| digits.len() == 14)?;
        let year = number(&digits[..4])?;
        let month = number(&digits[4..6])?;
        let day = number(&digits[6..8])?;
        let hours = number(&digits[8..10])?;
        let minutes = number(&digits[10..12])?;
        let seconds = number(&digits[12..])?;
        let days_since_1970 = days_before_year(year) - days_before_year(1970);
        let days = days_since_1970 + days_before_month(year, month)? + day - 1;
        Some(Self::whole(days * DAY + hours * 3600 + minutes * 60 + seconds))
    }
}

/// Returns by how many seconds a zone of RFC 3339 is ahead of UTC.
fn zone_offset(zone: &str) -> Option<i64> {
    let (sign, time) = zone.split_at_checked(1)?;
    let sign = match sign {
        "Z" if time.is_empty() => return Some(0),
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = time.split_once(':')?;
    let is_time = hours.len() == 2 && minutes.len() == 2;
    let (hours, minutes) = (number(hours.as_bytes())?, number(minutes.as_bytes())?);
    (is_time && hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn number(digits: &[u8]) -> Option<i64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

const DAY: i64 = 24 * 3600;

/// In the Gregorian calendar, from the year 0.
fn days_before_year(year: i64) -> i64 {
    let before = year - 1;
    365 * year + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400)
}

fn days_before_month(year: i64, month: i64) -> Option<i64> {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = BEFORE.get(usize::try_from(month - 1).ok()?)?;
    let leap = days_before_year(year + 1) - days_before_year(year) == 366;
    Some(before + i64::from(leap && month > 2))
}

/// As in RFC 3339.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Utc::new(self.seconds))?;
        match self.millis {
            0 => f.write_str("Z"),
            millis => write!(f, ".{millis:03}Z"),
        }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_rfc3339(&text).ok_or_else(|| {
            D::Error::custom(format_args!(
                "expected a time such as 2026-03-01T09:30:00Z, found {text:?}"
            ))
        })
    }
}

/// The first byte of an element of DER.
struct DerElement(u8);

impl DerElement {
    const INTEGER: Self = Self(0x02);
    const UTC_TIME: Self = Self(0x17);
    const GENERALIZED_TIME: Self = Self(0x18);
    const SEQUENCE: Self = Self(0x30);
    /// The member 0 of a certificate, which is optional.
    const VERSION: Self = Self(0xa0);

    /// The content of the first element, if it has this tag, and the rest.
    fn take<'a>(&self, der: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (tag, rest) = der.split_first()?;
        let (first, mut rest) = rest.split_first().filter(|_| *tag == self.0)?;
        let mut length = usize::from(*first);
        if length >= 0x80 {
            let (bytes, after) = rest.split_at_checked(length - 0x80)?;
            // What is longer than this is no certificate.
            if bytes.is_empty() || bytes.len() > 3 {
                return None;
            }
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        rest.split_at_checked(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(text: &str) -> Moment {
        Moment::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn moments_are_counted_as_calendars_do() {
        for (text, seconds, shown) in [
            ("19700101000000Z", 0, "1970-01-01T00:00:00Z"),
            ("19691231235959Z", -1, "1969-12-31T23:59:59Z"),
            ("20000229120000Z", 951_825_600, "2000-02-29T12:00:00Z"),
            ("20240301000000Z", 1_709_251_200, "2024-03-01T00:00:00Z"),
            ("20261231235959Z", 1_798_761_599, "2026-12-31T23:59:59Z"),
            ("21000301000000Z", 4_107_542_400, "2100-03-01T00:00:00Z"),
            ("99991231235959Z", 253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(moment(text).seconds, seconds, "{text}");
            assert_eq!(moment(text).to_string(), shown);
        }
        for text in [
            "",
            "20240101000000",
            "202401010000Z",
            "20241301000000Z",
            "2024010100000xZ",
            "+0240101000000Z",
        ] {
            assert_eq!(Moment::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_time_of_an_object_is_read_as_it_is_written_and_in_other_zones() {
        let written = serde_json::json!("2026-03-01T09:30:00Z");
        let read: Moment = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written);
        assert_eq!(read.after(Duration::from_secs(90)).to_string(), "2026-03-01T09:31:30Z");
        let written = serde_json::json!("2026-03-01T09:30:00.025Z");
        let precise: Moment = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(precise).unwrap(), written);
        assert_eq!(precise.time().duration_since(read.time()).unwrap(), Duration::from_millis(25));
        for (text, seconds, millis) in [
            ("2026-03-01T09:30:00.000Z", 0, 0),
            ("2026-03-01T09:30:00.5Z", 0, 500),
            ("2026-03-01T09:30:00.123456789Z", 0, 123),
            ("2026-03-01T10:31:00+01:00", 60, 0),
            ("2026-02-28T19:30:01.25-14:00", 1, 250),
        ] {
            let other: Moment = serde_json::from_value(text.into()).unwrap();
            assert_eq!(other, Moment { seconds: read.seconds + seconds, millis }, "{text}");
        }
        for other in [
            "",
            "2026-03-01 09:30:00Z",
            "2026-03-01T09:30:00",
            "2026-03-01T09:30:00.Z",
            "2026-03-01T09:30:00.25",
            "2026-03-01T09:30:00+1:00",
            "2026-03-01T09:30:00+24:00",
            "2026-03-01T09:30:00Z+",
            "2026-02-29T09:30:00Z",
            "2026-03-01T09:30:60Z",
            "20260301093000Z",
            "soon",
        ] {
            assert!(serde_json::from_value::<Moment>(other.into()).is_err(), "{other}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_is_shown_as_it_is_read() {
        for day in (0..146_097).step_by(13) {
            let shown = Moment::whole(day * DAY).to_string();
            let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
            assert_eq!(moment(&format!("{digits}Z")).seconds, day * DAY, "{shown}");
        }
    }

    /// An element of DER.
    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let head = match u8::try_from(length) {
            Ok(short @ ..0x80) => vec![tag, short],
            _ => vec![tag, 0x82, (length >> 8) as u8, (length & 0xff) as u8],
        };
        [head, content.to_vec()].concat()
    }

    fn certificate(version: &[u8], times: &[u8]) -> Vec<u8> {
        let names = der(0x30, &[0; 200]);
        let parts = [version, &der(2, &[5]), &der(0x30, &[]), &names, &der(0x30, times), &names];
        der(0x30, &[der(0x30, &parts.concat()), der(0x30, &[])].concat())
    }

    #[test]
    fn a_certificate_is_read_up_to_its_times() {
        let short = [der(0x17, b"491231235959Z"), der(0x17, b"500101000000Z")].concat();
        let long = [der(0x17, b"260101000000Z"), der(0x18, b"20500101000000Z")].concat();
        for (version, times, from, until) in [
            (vec![], &short, "20491231235959Z", "19500101000000Z"),
            (der(0xa0, &der(2, &[2])), &long, "20260101000000Z", "20500101000000Z"),
        ] {
            let whole = certificate(&version, times);
            let expected = Validity { from: Some(moment(from)), until: Some(moment(until)) };
            assert_eq!(Validity::of_certificate(&whole), Some(expected));
            for end in 0..whole.len() {
                assert_eq!(Validity::of_certificate(&whole[..end]), None);
            }
        }
        assert_eq!(Validity::of_certificate(&certificate(&[], &der(0x17, b"2601010000Z"))), None);
    }

    #[test]
    fn a_token_says_when_it_expires() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        let now = Moment::whole(1_000);
        for (token, complaint) in [
            (
                token(r#"{"exp": 999, "iss": "x"}"#),
                Some("expired at 1970-01-01T00:16:39Z".to_owned()),
            ),
            (token(r#"{"exp": 1000}"#), None),
            (
                token(r#"{"exp": 2000.5, "nbf": 1001}"#),
                Some(
                    "is not valid before 1970-01-01T00:16:41Z (this host's clock: 1970-01-01T00:16:40Z)"
                        .to_owned(),
                ),
            ),
            (token("{}"), None),
        ] {
            assert_eq!(Validity::of_token(&token).unwrap().complaint(now), complaint);
        }
        for token in ["", "abc.def", "a.b.c", "31ada4fd-adec-460c-809a-9e56ceb75269"] {
            assert_eq!(Validity::of_token(token), None, "{token}");
        }
    }
}
