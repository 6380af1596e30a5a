use std::time::Duration;

/// Reads `10s`, `500ms`, `1m30s` or `2h`: whole numbers, each with a unit. `None` for any other
/// text, and for a sum of zero.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let milliseconds = match &rest[..letters] {
            "ms" => number,
            "s" => number.checked_mul(1000)?,
            "m" => number.checked_mul(60_000)?,
            "h" => number.checked_mul(3_600_000)?,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(milliseconds))?;
        rest = &rest[letters..];
    }
    (!total.is_zero()).then_some(total)
}

/// As [`parse_duration`]; `0s` is zero.
pub fn parse_duration_or_zero(text: &str) -> Option<Duration> {
    if text == "0s" { Some(Duration::ZERO) } else { parse_duration(text) }
}

/// Shows a time to people, rounded to milliseconds: `750ms`, `1.5s`, `90s`.
pub fn show_duration(time: Duration) -> String {
    let milliseconds = time.as_micros().saturating_add(500) / 1000;
    match u64::try_from(milliseconds).unwrap_or(u64::MAX) {
        0 => "0ms".to_owned(),
        milliseconds => format!("{:?}", Duration::from_millis(milliseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_whole_milliseconds() {
        for (nanoseconds, shown) in
            [(749_944_297, "750ms"), (1_500_000_000, "1.5s"), (59_999_999_999, "60s"), (1, "0ms")]
        {
            assert_eq!(show_duration(Duration::from_nanos(nanoseconds)), shown);
        }
    }

    #[test]
    fn numbers_need_units() {
        assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("2h"), Some(Duration::from_secs(7200)));
        for text in [
            "",
            "0s",
            "10",
            "s",
            "-1s",
            "1.5s",
            "1d",
            "10 s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
