use std::time::{Duration, Instant};

/// The moment by which a call must have ended.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// The variable that tells a delegate its time, in milliseconds.
    pub const VARIABLE: &'static str = "IPAM_DELEGATED_DEADLINE_MS";

    /// The time a chain has when nothing else is set.
    pub const DEFAULT: Duration = Duration::from_secs(60);

    /// A century, on which no clock overflows: a longer time counts as this one.
    pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// A deadline that long from now.
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time.min(Self::LONGEST))
    }

    /// The time that is left, zero after the deadline.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// The time that is left, divided by the number of calls still to come.
    pub fn share(self, calls: usize) -> Duration {
        self.left() / u32::try_from(calls).unwrap_or(u32::MAX).max(1)
    }
}
