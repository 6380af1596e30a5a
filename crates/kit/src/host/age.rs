use std::time::{Duration, SystemTime};

/// Whether a time lies at least `grace` before `now`.
///
/// A time that lies ahead by more than `grace` is of a clock that was set back since, so it counts
/// as old: else what it protects would stay until the clock has caught up.
#[must_use]
pub fn is_old(time: SystemTime, grace: Duration, now: SystemTime) -> bool {
    match now.duration_since(time) {
        Ok(age) => age >= grace,
        Err(ahead) => ahead.duration() > grace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_young_for_as_long_as_the_grace_on_both_sides() {
        let now = SystemTime::now();
        let second = Duration::from_secs(1);
        let grace = 5 * second;
        let old = |time| is_old(time, grace, now);
        assert!(old(now - 5 * second) && !old(now - 4 * second) && !old(now));
        assert!(!old(now + second) && !old(now + 5 * second) && old(now + 6 * second));
        let none = |time| is_old(time, Duration::ZERO, now);
        assert!(none(now) && none(now + second) && none(now - second));
    }
}
