use std::fmt;
use std::time::{Duration, Instant};

use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use log::{debug, warn};

use crate::request_error::{Kind, RequestError};
use crate::server_status::{ServerStatus, ServerStatuses};

/// A blocking way to the servers of a service, for requests of the type `R`.
///
/// A connection belongs to one place of the list of servers.
pub trait Transport<R> {
    /// What a server answers.
    type Answer;

    /// Asks the server at this place of the list, and takes no longer than `patience`. The request
    /// is the same for each server that is tried.
    ///
    /// # Errors
    /// The server brought no answer. The reason shows no secret.
    fn ask(
        &mut self,
        place: usize,
        request: &mut R,
        patience: Duration,
    ) -> Result<Self::Answer, RequestError>;

    /// Waits before another round.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The servers of a service, of which one that answers is as good as another.
#[derive(Debug)]
pub struct Service {
    /// What errors call it: what stands before the word "server", as in `Consul`.
    pub name: &'static str,
    /// The servers as errors show them, at least one.
    pub servers: Vec<String>,
    /// How long to go on after the first trouble.
    pub timeout: Duration,
    /// The code of an error when no server could be asked for anything.
    pub unreached: ErrorCode,
}

/// Asks one server after another, over a transport, until one answers.
///
/// It keeps to the server that answered last. It tells what was certainly not carried out from what
/// may have been, and never repeats a change that may have been.
pub struct Failover<T> {
    service: Service,
    transport: T,
    /// When to end, whatever else there is time for.
    end: Instant,
    /// The server to begin with.
    first: usize,
    /// Whether one may have been asked for something.
    asked: bool,
    /// Whether what was asked last failed because no server does it.
    refused: bool,
    /// When the service first did not answer, since it last did.
    trouble: Option<Instant>,
    /// What is known of each server since then.
    findings: ServerStatuses,
}

/// How long one of several servers may take for a request before the next one is asked; twice as
/// long in each further round.
pub const PATIENCE: Duration = Duration::from_millis(1500);

/// The least time in which a server can show what is wrong with it.
const SHORTEST: Duration = Duration::from_millis(200);

/// The wait between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

impl<T> Failover<T> {
    /// A failover between these servers. It goes on for nine tenths of the time until the deadline
    /// at most: what is left then is for saying what is wrong.
    pub fn new(service: Service, transport: T, deadline: Deadline) -> Self {
        Self {
            findings: ServerStatuses::new(service.servers.len()),
            service,
            transport,
            end: end_within(deadline),
            first: 0,
            asked: false,
            refused: false,
            trouble: None,
        }
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport, for what goes to one server alone.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Goes on until another deadline.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.end = end_within(deadline);
    }

    /// The place of the server that answered last.
    pub fn answering(&self) -> usize {
        self.first
    }

    /// Begins with this server, if it is one of them.
    pub fn prefer(&mut self, server: &str) {
        if let Some(place) = self.service.servers.iter().position(|other| other == server) {
            self.first = place;
        }
    }

    /// The server to begin with, where it is not the one that the configuration names first.
    pub fn preferred(&self) -> Option<&str> {
        (self.first > 0).then(|| &*self.service.servers[self.first])
    }

    /// Whether what was asked last failed because no server does it, so that waiting would not help.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The time until the service is given up.
    pub fn left(&self) -> Duration {
        let now = now();
        let since = self.trouble.map_or(Duration::ZERO, |first| now.duration_since(first));
        let until_end = self.end.saturating_duration_since(now);
        self.service.timeout.saturating_sub(since).min(until_end)
    }

    /// Asks something that changes nothing: one server after another, round after round, until one
    /// answers or the time is over.
    ///
    /// # Errors
    /// None answers in time; none of them does what is asked; the service refuses; the answer is
    /// not understood.
    pub fn read<R>(&mut self, mut request: R) -> Result<T::Answer>
    where
        T: Transport<R>,
    {
        loop {
            if let Some(answer) = self.send(&mut request, false)? {
                return Ok(answer);
            }
        }
    }

    /// Changes something; `None` when it may have been done, or may still be. It is sent to another
    /// server only after one that has certainly not done it.
    ///
    /// # Errors
    /// It was not and will not be done.
    pub fn write<R>(&mut self, mut request: R) -> Result<Option<T::Answer>>
    where
        T: Transport<R>,
    {
        self.send(&mut request, true)
    }

    fn send<R>(&mut self, request: &mut R, changes: bool) -> Result<Option<T::Answer>>
    where
        T: Transport<R>,
    {
        self.findings.begin();
        self.refused = false;
        for round in 0_u32.. {
            let start = self.first;
            for place in (start..self.service.servers.len()).chain(0..start) {
                let started = now();
                if self.findings.is_left_alone(place, started) {
                    continue;
                }
                let left = self.left();
                if left.is_zero() {
                    return Err(self.nobody_answered());
                }
                let patience = self.patience(round).min(left);
                match self.transport.ask(place, request, patience) {
                    Ok(answer) => {
                        self.note_answer(place);
                        return Ok(Some(answer));
                    }
                    Err(trouble) => match self.note(place, started, patience, trouble, changes)? {
                        Next::Server => {}
                        Next::Unknown => return Ok(None),
                    },
                }
            }
            if self.findings.nobody_does(round) {
                break;
            }
            let pause = (PAUSE * (round + 1).min(5)).min(self.left());
            match self.findings.asked_to_wait(now()) {
                Some(wait) if wait > self.left() => break,
                wait => self.transport.pause(wait.map_or(pause, |wait| wait.max(pause))),
            }
        }
        Err(self.nobody_answered())
    }

    fn note_answer(&mut self, place: usize) {
        self.first = place;
        self.asked = true;
        self.trouble = None;
        self.findings.clear();
    }

    /// Notes why the server at this place brought no answer.
    fn note(
        &mut self,
        place: usize,
        started: Instant,
        patience: Duration,
        trouble: RequestError,
        changes: bool,
    ) -> Result<Next> {
        let RequestError { kind, sent, wait } = trouble;
        self.asked |= sent;
        // A refusal is an answer.
        if self.trouble.is_none() && !matches!(kind, Kind::Rejected(_)) {
            self.trouble = Some(started);
        }
        let server = &self.service.servers[place];
        let again = wait.map(|wait| now() + wait);
        let (reason, rejected) = match kind {
            Kind::Refused(error) => {
                let error = error.within(format_args!("{} at {server}", self.service.name));
                self.note_answer(place);
                self.refused = true;
                return Err(error);
            }
            Kind::NotUnderstood(error) if !changes => {
                return Err(error.within(format_args!("{} at {server}", self.service.name)));
            }
            Kind::NotUnderstood(error) => {
                return Ok(self.leave_open(place, error.in_full(), again));
            }
            Kind::Unknown(reason) if changes => return Ok(self.leave_open(place, reason, again)),
            Kind::Unknown(reason) | Kind::NotDone(reason) => (reason, false),
            Kind::Rejected(reason) => (reason, true),
        };
        match self.service.servers.len() {
            1 => debug!("{server}: {reason}"),
            _ if rejected => warn!("{server} does not do what is asked: {reason}"),
            _ => warn!("{server} does not answer: {reason}"),
        }
        // A try that had hardly any time says less than the one before.
        if patience >= SHORTEST || rejected || self.findings.is_silent(place) {
            self.findings.put(place, ServerStatus { reason, rejected, away: !sent, again });
        }
        Ok(Next::Server)
    }

    /// Notes that a change may have been carried out. What follows begins with the next server.
    fn leave_open(&mut self, place: usize, reason: String, again: Option<Instant>) -> Next {
        let servers = &self.service.servers;
        warn!("{}: the outcome of a request is unknown: {reason}", servers[place]);
        self.first = (place + 1) % servers.len();
        self.findings.put(place, ServerStatus { reason, again, ..ServerStatus::default() });
        Next::Unknown
    }

    /// How long one server may take in this round.
    fn patience(&self, round: u32) -> Duration {
        let several = self.service.servers.len() > 1;
        if several { PATIENCE * (1 << round.min(4)) } else { self.service.timeout }
    }

    fn nobody_answered(&mut self) -> Error {
        let Service { name, servers, unreached, .. } = &self.service;
        if self.findings.reasons().all(str::is_empty) {
            let message = format!("the time was over before {name} was asked");
            return Error::new(ErrorCode::TIMED_OUT, message).advise("raise `ipam.timeout`");
        }
        let rejected = self.findings.are_refusals();
        self.refused = rejected;
        let mut text = match rejected {
            true => format!("no {name} server does what is asked"),
            false => format!("no {name} server answers"),
        };
        for (server, reason) in servers.iter().zip(self.findings.reasons()) {
            let reason = match reason {
                "" => "not asked, the time was over",
                reason => reason,
            };
            text.push_str(&format!("; {server}: {reason}"));
        }
        let code = match (self.asked, rejected) {
            (false, _) if *unreached != ErrorCode::TRY_AGAIN => *unreached,
            (_, true) => ErrorCode::BACKEND,
            (_, false) => ErrorCode::TRY_AGAIN,
        };
        Error::new(code, text).advise(if rejected {
            "look at what each server says, and at the settings that name it"
        } else {
            "look at the servers and at the way to them; call again once they answer"
        })
    }
}

impl<T> fmt::Debug for Failover<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failover").field("service", &self.service).finish_non_exhaustive()
    }
}

/// What follows a server that brought no answer.
enum Next {
    /// The next server is asked.
    Server,
    /// The change may have been done, so no server is asked.
    Unknown,
}

/// What is left after this is for saying what is wrong.
fn end_within(deadline: Deadline) -> Instant {
    now() + deadline.left() * 9 / 10
}

#[cfg(not(test))]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
use fake::now;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
