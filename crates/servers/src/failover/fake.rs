//! Servers made of a function, and a clock that moves by hand.

use std::cell::Cell;
use std::time::{Duration, Instant};

use ipam_kit::delegate::Deadline;
use ipam_kit::error::ErrorCode;

use super::{Failover, Service, Transport};
use crate::request_error::RequestError;

thread_local! {
    /// The time of a test that moves its clock; others have the machine's.
    static CLOCK: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time by the clock of a test.
pub(super) fn now() -> Instant {
    CLOCK.get().unwrap_or_else(Instant::now)
}

pub(super) fn pass(time: Duration) {
    CLOCK.set(Some(now() + time));
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Servers made of a function from a place and the number of the request to what comes of it.
pub(super) struct Fake<F> {
    reply: F,
    pub(super) asked: Vec<(usize, Duration)>,
    pub(super) pauses: Vec<Duration>,
}

impl<F> Fake<F> {
    pub(super) fn places(&self) -> Vec<usize> {
        self.asked.iter().map(|(place, _)| *place).collect()
    }
}

impl<F: FnMut(usize, usize) -> Result<&'static str, RequestError>> Transport<()> for Fake<F> {
    type Answer = &'static str;

    fn ask(
        &mut self,
        place: usize,
        _: &mut (),
        patience: Duration,
    ) -> Result<&'static str, RequestError> {
        self.asked.push((place, patience));
        (self.reply)(place, self.asked.len() - 1)
    }

    fn pause(&mut self, time: Duration) {
        self.pauses.push(time);
        pass(time);
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

pub(super) fn within<F>(
    servers: usize,
    timeout: Duration,
    deadline: Duration,
    reply: F,
) -> Failover<Fake<F>>
where
    F: FnMut(usize, usize) -> Result<&'static str, RequestError>,
{
    pass(Duration::ZERO);
    let service = Service {
        name: "Test",
        servers: NAMES[..servers].iter().map(|name| (*name).to_owned()).collect(),
        timeout,
        unreached: ErrorCode::UNREACHED,
    };
    let fake = Fake { reply, asked: Vec::new(), pauses: Vec::new() };
    Failover::new(service, fake, Deadline::after(deadline))
}

pub(super) fn failover<F>(servers: usize, reply: F) -> Failover<Fake<F>>
where
    F: FnMut(usize, usize) -> Result<&'static str, RequestError>,
{
    within(servers, 20 * SECOND, 1000 * SECOND, reply)
}
