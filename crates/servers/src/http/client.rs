use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

use ipam_kit::delegate::Deadline;
use ipam_kit::error::Result;

use super::elements::Weight;
use super::exchange::{Access, Http, PreparedRequest, Take};
use super::message::{HttpAnswer, HttpRequest};
use super::secrets::Secrets;
use crate::failover::{Failover, Service};
use crate::secret::Secret;
use crate::server::Server;
use crate::tls::Trust;

/// The equivalent servers of a service over HTTP.
pub struct Client {
    failover: Failover<Http>,
}

impl Client {
    /// Makes a client, which connects with its first request. It retries for nine tenths of the time
    /// until the deadline at most; the rest is for reporting the error.
    ///
    /// # Errors
    /// A certificate file is unusable, or a header is invalid.
    pub fn new(access: Access, deadline: Deadline) -> Result<Self> {
        let trust = Trust::from(access.tls.clone());
        Self::trusting(access, &trust, deadline)
    }

    /// [`Client::new`] with this instead of [`Access::tls`].
    ///
    /// # Errors
    /// As of [`Client::new`].
    pub fn trusting(access: Access, trust: &Trust, deadline: Deadline) -> Result<Self> {
        let service = Service {
            name: access.service,
            servers: access.servers.iter().map(Server::to_string).collect(),
            timeout: access.timeout,
            unreached: access.unreached,
        };
        let http = Http::new(access, trust)?;
        Ok(Self { failover: Failover::new(service, http, deadline) })
    }

    /// Requests answers of this media type, and marks bodies with it, unless the request
    /// names another.
    pub fn speaking(mut self, media: &'static str) -> Self {
        self.failover.transport_mut().speak(media);
        self
    }

    /// Whether the last request failed because every server rejected it, so that waiting is useless.
    pub fn is_refused(&self) -> bool {
        self.failover.is_refused()
    }

    /// The secrets that servers got, and which no text of theirs may show.
    pub fn secrets(&self) -> &Secrets {
        self.failover.transport().secrets()
    }

    /// Whether a server has answered a request with 429: too many requests.
    pub fn is_limited(&self) -> bool {
        self.failover.transport().is_limited()
    }

    /// Shows this header with every later request, in place of an earlier one of its name.
    ///
    /// # Errors
    /// The header is invalid.
    pub fn show(&mut self, name: &'static str, value: &Secret) -> Result<()> {
        self.failover.transport_mut().show(name, value)
    }

    /// Shows no text of servers that repeats this secret, which a body contains.
    pub fn conceal(&mut self, secret: &Secret) {
        self.failover.transport_mut().conceal(secret);
    }

    /// Sets another deadline.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.failover.set_deadline(deadline);
    }

    /// The server that answered last.
    pub fn answering(&self) -> &Server {
        self.failover.transport().server(self.failover.answering())
    }

    /// Begins with this server, if the list has it.
    pub fn prefer(&mut self, url: &str) {
        self.failover.prefer(url);
    }

    /// The server to begin with, unless the configuration names it first.
    pub fn preferred(&self) -> Option<&str> {
        self.failover.preferred()
    }

    /// Sends a request that changes nothing to one server after another, round after round, until one
    /// answers or the deadline has passed.
    ///
    /// # Errors
    /// No server answers in time; every server rejects the request; the answer exceeds the limit.
    pub fn read(&mut self, ask: &HttpRequest<'_>) -> Result<HttpAnswer> {
        let mut take = whole;
        let prepared = self.prepare(ask, &mut take)?;
        self.failover.read(prepared)
    }

    /// [`Client::read`] for a body that is too large for memory. If the connection breaks within the
    /// body, `take` is called again for another server. It gets the answer with its status and the
    /// [kept headers](HttpRequest::kept_headers), and the body apart.
    ///
    /// # Errors
    /// As of [`Client::read`], and those of `take`.
    pub fn read_with<T>(
        &mut self,
        ask: &HttpRequest<'_>,
        take: &mut dyn FnMut(&HttpAnswer, &mut dyn Read) -> io::Result<T>,
    ) -> Result<T> {
        let mut take = |head: HttpAnswer, body: &mut dyn Read| take(&head, body);
        let prepared = self.prepare(ask, &mut take)?;
        self.failover.read(prepared)
    }

    /// Sends a change; `None` if it may have been done, or may still be. It is sent to another
    /// server only after one that has certainly not done it.
    ///
    /// # Errors
    /// It was not and will not be done.
    pub fn write(&mut self, ask: &HttpRequest<'_>) -> Result<Option<HttpAnswer>> {
        let mut take = whole;
        let prepared = self.prepare(ask, &mut take)?;
        self.failover.write(prepared)
    }

    /// The time until it stops retrying.
    pub fn left(&self) -> Duration {
        self.failover.left()
    }

    /// Waits.
    pub fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn prepare<'a, T>(
        &mut self,
        ask: &'a HttpRequest<'a>,
        take: Take<'a, T>,
    ) -> Result<PreparedRequest<'a, T>> {
        self.failover.transport_mut().prepare(ask, take)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("failover", &self.failover).finish()
    }
}

fn whole(mut answer: HttpAnswer, body: &mut dyn Read) -> io::Result<HttpAnswer> {
    body.read_to_end(&mut answer.body)?;
    Weight::check(&answer.body)?;
    Ok(answer)
}
