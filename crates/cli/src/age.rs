/// An age in seconds as people read it: `12s`, `5m`, `3h`, `9d`, rounded down.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_its_largest_unit() {
        let ages = [0, 59, 60, 3599, 3600, 86399, 86400 * 400].map(age);
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h", "23h", "400d"]);
    }
}
