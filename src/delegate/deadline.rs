use std::time::{Duration, Instant};

/// The moment by which a call must have ended.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// The variable that tells a delegate its time, in milliseconds.
    pub const VARIABLE: &'static str = "IPAM_DELEGATED_DEADLINE_MS";

    /// The time a chain has when nothing else is set.
    pub const DEFAULT: Duration = Duration::from_secs(60);

    /// That long from now.
    pub fn after(time: Duration) -> Self {
        // A century is for ever, and no clock overflows on it.
        Self(Instant::now() + time.min(Duration::from_secs(100 * 365 * 24 * 3600)))
    }

    /// The time that is left; zero when none is.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// The earlier of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}
