use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// How far the clock of this test is ahead of the machine's.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The time by the clock of this test.
pub(super) fn now() -> Instant {
    Instant::now() + AHEAD.get()
}
