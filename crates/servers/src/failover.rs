use std::fmt;
use std::time::{Duration, Instant};

use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use log::{debug, warn};

use crate::request_error::{Kind, RequestError};
use crate::server_status::{ServerStatus, ServerStatuses};

/// A blocking transport to the servers of a service, for requests of the type `R`.
///
/// A connection belongs to one server of the list.
pub trait Transport<R> {
    /// The answer of a server.
    type Answer;

    /// Sends a request to the server at this index of the list, and takes `patience` at most. Each
    /// server gets the same request.
    ///
    /// # Errors
    /// The server sent no answer. The reason shows no secret.
    fn ask(
        &mut self,
        index: usize,
        request: &mut R,
        patience: Duration,
    ) -> Result<Self::Answer, RequestError>;

    /// Waits before another round.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The equivalent servers of a service.
#[derive(Debug)]
pub struct Service {
    /// Its name in errors, before the word "server", as in `Consul`.
    pub name: &'static str,
    /// The servers as errors show them, at least one.
    pub servers: Vec<String>,
    /// How long to retry after the first failure.
    pub timeout: Duration,
    /// The code of an error if no request reached a server.
    pub unreached: ErrorCode,
}

/// Asks one server after another, over a transport, until one answers.
///
/// It begins with the server that answered last. It separates requests that were certainly not carried
/// out from those that may have been, and never repeats a change that may have been.
pub struct Failover<T> {
    service: Service,
    transport: T,
    /// When to end in any case.
    end: Instant,
    /// The server to begin with.
    first: usize,
    /// Whether a request may have reached a server.
    sent: bool,
    /// Whether the last request failed because every server rejects it.
    refused: bool,
    /// When the first failure after the last answer was.
    failing_since: Option<Instant>,
    /// The status of each server since then.
    statuses: ServerStatuses,
}

/// How long one of several servers may take for a request before the next one is asked; twice as
/// long in each further round.
pub const PATIENCE: Duration = Duration::from_millis(1500);

/// The least time in which a server can show why it fails.
const SHORTEST: Duration = Duration::from_millis(200);

/// The wait between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

impl<T> Failover<T> {
    /// A failover between these servers. It retries for nine tenths of the time until the deadline
    /// at most; the rest is for reporting the error.
    pub fn new(service: Service, transport: T, deadline: Deadline) -> Self {
        Self {
            statuses: ServerStatuses::new(service.servers.len()),
            service,
            transport,
            end: end_within(deadline),
            first: 0,
            sent: false,
            refused: false,
            failing_since: None,
        }
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport, for requests to one server only.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Sets another deadline.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.end = end_within(deadline);
    }

    /// The index of the server that answered last.
    pub fn answering(&self) -> usize {
        self.first
    }

    /// Begins with this server, if the list has it.
    pub fn prefer(&mut self, server: &str) {
        if let Some(index) = self.service.servers.iter().position(|other| other == server) {
            self.first = index;
        }
    }

    /// The server to begin with, unless the configuration names it first.
    pub fn preferred(&self) -> Option<&str> {
        (self.first > 0).then(|| &*self.service.servers[self.first])
    }

    /// Whether the last request failed because every server rejects it, so that waiting is useless.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The time until it stops retrying.
    pub fn left(&self) -> Duration {
        let now = now();
        let since = self.failing_since.map_or(Duration::ZERO, |first| now.duration_since(first));
        let until_end = self.end.saturating_duration_since(now);
        self.service.timeout.saturating_sub(since).min(until_end)
    }

    /// Sends a request that changes nothing to one server after another, round after round, until one
    /// answers or the deadline has passed.
    ///
    /// # Errors
    /// No server answers in time; every server rejects it; the service refuses; the answer cannot be
    /// parsed.
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

    /// Sends a change; `None` if it may have been done, or may still be. Another server gets it only
    /// after a server that has certainly not done it.
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
        self.statuses.forget_rejections();
        self.refused = false;
        for round in 0_u32.. {
            let start = self.first;
            for index in (start..self.service.servers.len()).chain(0..start) {
                let started = now();
                if self.statuses.is_skipped(index, started) {
                    continue;
                }
                let left = self.left();
                if left.is_zero() {
                    return Err(self.no_answer_error());
                }
                let patience = self.patience(round).min(left);
                match self.transport.ask(index, request, patience) {
                    Ok(answer) => {
                        self.record_answer(index);
                        return Ok(Some(answer));
                    }
                    Err(failure) => {
                        match self.record_failure(index, started, patience, failure, changes)? {
                            AfterFailure::Server => {}
                            AfterFailure::Unknown => return Ok(None),
                        }
                    }
                }
            }
            if self.statuses.is_hopeless(round) {
                break;
            }
            let pause = (PAUSE * (round + 1).min(5)).min(self.left());
            match self.statuses.shortest_wait(now()) {
                Some(wait) if wait > self.left() => break,
                wait => self.transport.pause(wait.map_or(pause, |wait| wait.max(pause))),
            }
        }
        Err(self.no_answer_error())
    }

    fn record_answer(&mut self, index: usize) {
        self.first = index;
        self.sent = true;
        self.failing_since = None;
        self.statuses.clear();
    }

    /// Records why a server sent no answer, and decides what follows.
    fn record_failure(
        &mut self,
        index: usize,
        started: Instant,
        patience: Duration,
        failure: RequestError,
        changes: bool,
    ) -> Result<AfterFailure> {
        let RequestError { kind, sent, wait } = failure;
        self.sent |= sent;
        // A refusal is an answer.
        if self.failing_since.is_none() && !matches!(kind, Kind::Rejected(_)) {
            self.failing_since = Some(started);
        }
        let server = &self.service.servers[index];
        let again = wait.map(|wait| now() + wait);
        let (reason, rejected) = match kind {
            Kind::Refused(error) => {
                let error = error.within(format_args!("{} at {server}", self.service.name));
                self.record_answer(index);
                self.refused = true;
                return Err(error);
            }
            Kind::NotUnderstood(error) if !changes => {
                return Err(error.within(format_args!("{} at {server}", self.service.name)));
            }
            Kind::NotUnderstood(error) => {
                return Ok(self.record_unknown(index, error.in_full(), again));
            }
            Kind::Unknown(reason) if changes => {
                return Ok(self.record_unknown(index, reason, again));
            }
            Kind::Unknown(reason) | Kind::NotDone(reason) => (reason, false),
            Kind::Rejected(reason) => (reason, true),
        };
        let is_repeated = self.statuses.reasons().nth(index) == Some(&*reason);
        match rejected {
            _ if is_repeated || self.service.servers.len() == 1 => debug!("{server}: {reason}"),
            true => warn!("{server} rejected the request: {reason}"),
            false => warn!("{server} did not answer: {reason}"),
        }
        // A try with hardly any time says less than the one before.
        if patience >= SHORTEST || rejected || self.statuses.is_unknown(index) {
            self.statuses.put(index, ServerStatus { reason, rejected, unreachable: !sent, again });
        }
        Ok(AfterFailure::Server)
    }

    /// Records that a change may have been carried out. The next request begins with the next server.
    fn record_unknown(
        &mut self,
        index: usize,
        reason: String,
        again: Option<Instant>,
    ) -> AfterFailure {
        let servers = &self.service.servers;
        warn!("{}: the outcome of a request is unknown: {reason}", servers[index]);
        self.first = (index + 1) % servers.len();
        self.statuses.put(index, ServerStatus { reason, again, ..ServerStatus::default() });
        AfterFailure::Unknown
    }

    /// How long one server may take in this round.
    fn patience(&self, round: u32) -> Duration {
        let several = self.service.servers.len() > 1;
        if several { PATIENCE * (1 << round.min(4)) } else { self.service.timeout }
    }

    fn no_answer_error(&mut self) -> Error {
        let Service { name, servers, unreached, .. } = &self.service;
        if self.statuses.reasons().all(str::is_empty) {
            let message = match self.sent {
                true => format!(
                    "deadline exceeded before the next request to {name}: earlier requests and waits took the time"
                ),
                false => format!(
                    "deadline exceeded before the first request to {name}: the call waited for other calls, or this host is too busy"
                ),
            };
            return Error::new(ErrorCode::TIMED_OUT, message).advise(
                "call again; if the error persists, start fewer containers at once, or raise `ipam.timeout`",
            );
        }
        let rejected = self.statuses.are_rejections();
        self.refused = rejected;
        let mut text = match rejected {
            true => format!("every {name} server rejected the request"),
            false => format!("no {name} server answers"),
        };
        for (server, reason) in servers.iter().zip(self.statuses.reasons()) {
            let reason = match reason {
                "" => "not asked: deadline exceeded",
                reason => reason,
            };
            text.push_str(&format!("; {server}: {reason}"));
        }
        let code = match (self.sent, rejected) {
            (false, _) if *unreached != ErrorCode::TRY_AGAIN => *unreached,
            (_, true) => ErrorCode::BACKEND,
            (_, false) => ErrorCode::TRY_AGAIN,
        };
        Error::new(code, text).advise(if rejected {
            "check the answer of each server, and the settings that name it"
        } else {
            "check that the servers run and that this host can reach them, then call again"
        })
    }
}

impl<T> fmt::Debug for Failover<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failover").field("service", &self.service).finish_non_exhaustive()
    }
}

/// The step after a server that sent no answer.
enum AfterFailure {
    /// Ask the next server.
    Server,
    /// Ask no server: the change may have been done.
    Unknown,
}

/// The rest of the time is for reporting the error.
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
