//! Waiting for what a server or a thread of a test comes to.

use std::thread;
use std::time::{Duration, Instant};

pub const SECOND: Duration = Duration::from_secs(1);

/// Waits for something that comes within a minute.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + 60 * SECOND;
    while !condition() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        thread::sleep(SECOND / 50);
    }
}
