use std::fmt;
use std::time::Duration;

/// A second of the Gregorian calendar, in UTC. It is shown as `2026-03-01T09:30:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    since_1970: i64,
}

impl Utc {
    /// As many seconds after 1970.
    pub fn new(since_1970: i64) -> Self {
        Self { since_1970 }
    }

    /// Year, month and day. Years that begin in March have the leap day at their end.
    fn date(self) -> (i64, i64, i64) {
        const DAYS_OF_400_YEARS: i64 = 146_097;
        // From March 1 of the year 0.
        let days = self.since_1970.div_euclid(DAY) + 719_468;
        let (era, day) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        // Months of 31, 30, 31, 30 and 31 days come one after the other.
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let is_next_year = month >= 10;
        let month = if is_next_year { month - 9 } else { month + 3 };
        (era * 400 + year + i64::from(is_next_year), month, day)
    }
}

const DAY: i64 = 24 * 3600;

impl From<Duration> for Utc {
    /// The time so long after 1970.
    fn from(since_1970: Duration) -> Self {
        Self::new(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        let seconds = self.since_1970.rem_euclid(DAY);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_has_its_date() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00"),
            (-1, "1969-12-31T23:59:59"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (1_772_357_400, "2026-03-01T09:30:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (4_107_542_399, "2100-02-28T23:59:59"),
            (-62_167_219_200, "0000-01-01T00:00:00"),
        ] {
            assert_eq!(Utc::new(seconds).to_string(), shown, "{seconds}");
        }
    }

    #[test]
    fn the_days_of_400_years_follow_each_other() {
        let days: Vec<String> = (0..=146_097).map(|day| Utc::new(day * DAY).to_string()).collect();
        assert!(days.is_sorted_by(|one, next| one < next));
        assert_eq!(days.last().unwrap(), "2370-01-01T00:00:00");
    }
}
