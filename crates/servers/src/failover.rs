use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use log::{debug, warn};
use ureq::Agent;
use ureq::http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use ureq::http::{HeaderName, HeaderValue, Request, Response};

use super::ask::{Answer, Ask, Bounded, End, Method};
use super::dial::{self, Sent};
use super::elements::Weight;
use super::finding::{Finding, Findings};
use super::secret::Secret;
use super::server::Server;
use super::tls::{Tls, Trust};
use super::trouble::{self, Trouble};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::text::redacted;

/// How to reach a service.
#[derive(Debug)]
pub struct Access {
    /// What errors call the service: what stands before the word "server", as in `Consul`.
    pub service: &'static str,
    /// At least one.
    pub servers: Vec<Server>,
    /// For servers over TLS.
    pub tls: Tls,
    /// What every request shows.
    pub headers: Vec<(&'static str, Secret)>,
    /// How long to go on after the first trouble.
    pub timeout: Duration,
    /// The code of an error when no server could be asked for anything.
    pub unreached: ErrorCode,
    /// What to do about a status that is no answer, by the status and the body.
    pub advice: fn(status: u16, body: &str) -> Option<&'static str>,
}

/// The servers of a service, of which one that answers is as good as another.
pub struct Client {
    access: Access,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// What it speaks, where that is to be told.
    media: Option<&'static str>,
    deadline: Deadline,
    agent: Agent,
    sent: Sent,
    /// Until when the server wants to be left alone that was asked last.
    again: Cell<Option<Instant>>,
    /// The server to begin with.
    first: Cell<usize>,
    /// Whether one may have been asked for something.
    asked: Cell<bool>,
    /// When the service first did not answer, since it last did.
    trouble: Cell<Option<Instant>>,
    /// What is known of each server since then.
    findings: Findings,
}

/// How long one of several servers may take for a request before the next one is asked; twice as
/// long in each further round.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The least time in which a server can show what is wrong with it.
const SHORTEST: Duration = Duration::from_millis(200);

/// The wait between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// Characters of a refusal that are shown, and the bytes that are read for it.
const SHOWN: usize = 300;
const READ: u64 = 4 * SHOWN as u64;

/// What becomes of an answer's body.
type Take<'a, T> = &'a mut dyn FnMut(u16, &mut dyn Read) -> io::Result<T>;

impl Client {
    /// A client; it connects when there is something to ask. It goes on for nine tenths of the time
    /// until the deadline at most: what is left then is for saying what is wrong.
    ///
    /// # Errors
    /// A certificate file cannot be used, or a header is none.
    pub fn new(access: Access, deadline: Deadline) -> Result<Self> {
        let trust = Trust::from(access.tls.clone());
        Self::trusting(access, &trust, deadline)
    }

    /// [`Client::new`] with this instead of [`Access::tls`].
    ///
    /// # Errors
    /// As of [`Client::new`].
    pub fn trusting(access: Access, trust: &Trust, deadline: Deadline) -> Result<Self> {
        let header = |(name, secret): &(&'static str, Secret)| {
            let wrong = |_| Error::new(ErrorCode::INTERNAL, format!("{name} is no header"));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong(()))?;
            let mut value = HeaderValue::from_str(secret.expose()).map_err(|_| wrong(()))?;
            value.set_sensitive(true);
            Ok((name, value))
        };
        let headers = access.headers.iter().map(header).collect::<Result<_>>()?;
        let secured = access.servers.iter().any(Server::is_secured);
        let tls = secured.then(|| trust.settings()).transpose()?;
        let sent = Sent::default();
        Ok(Self {
            headers,
            media: None,
            deadline: within(deadline),
            agent: dial::agent(tls, sent.clone()),
            sent,
            again: Cell::new(None),
            first: Cell::new(0),
            asked: Cell::new(false),
            trouble: Cell::new(None),
            findings: Findings::new(access.servers.len()),
            access,
        })
    }

    /// Asks for answers of this media type, and says that bodies are of it.
    pub fn speaking(self, media: &'static str) -> Self {
        Self { media: Some(media), ..self }
    }

    /// Whether what was asked last failed because no server does it, so that waiting would not help.
    pub fn is_refused(&self) -> bool {
        self.findings.are_refusals()
    }

    /// What a server said, in one line that shows no secret.
    pub fn shown(&self, said: &[u8]) -> String {
        one_line(&self.redacted(String::from_utf8_lossy(said).into_owned()))
    }

    /// Goes on until another deadline.
    pub fn go_on(&mut self, deadline: Deadline) {
        self.deadline = within(deadline);
    }

    /// The server that answered last.
    pub fn answering(&self) -> &Server {
        &self.access.servers[self.first.get()]
    }

    /// Begins with this server, if it is one of them.
    pub fn prefer(&self, url: &str) {
        if let Some(place) = self.access.servers.iter().position(|other| other.to_string() == url) {
            self.first.set(place);
        }
    }

    /// The server to begin with, where it is not the one that the configuration names first.
    pub fn preferred(&self) -> Option<String> {
        let place = self.first.get();
        (place > 0).then(|| self.access.servers[place].to_string())
    }

    /// Asks something that changes nothing: one server after another, round after round, until one
    /// answers or the time is over.
    ///
    /// # Errors
    /// None answers in time; none of them does what is asked; the answer is longer than the limit.
    pub fn read(&self, ask: &Ask<'_>) -> Result<Answer> {
        self.read_with(ask, &mut whole)
    }

    /// [`Client::read`] for a body that is too large to hold. Where the connection breaks within the
    /// body, `take` is called anew for another server.
    ///
    /// # Errors
    /// As of [`Client::read`], and those of `take`.
    pub fn read_with<T>(
        &self,
        ask: &Ask<'_>,
        take: &mut dyn FnMut(u16, &mut dyn Read) -> io::Result<T>,
    ) -> Result<T> {
        loop {
            if let Some(answer) = self.send(ask, take, false)? {
                return Ok(answer);
            }
        }
    }

    /// Changes something; `None` when it may have been done, or may still be. It is sent to another
    /// server only after one that has certainly not done it.
    ///
    /// # Errors
    /// It was not and will not be done.
    pub fn write(&self, ask: &Ask<'_>) -> Result<Option<Answer>> {
        self.send(ask, &mut whole, true)
    }

    /// The time until the service is given up.
    pub fn left(&self) -> Duration {
        let since = self.trouble.get().map_or(Duration::ZERO, |first| first.elapsed());
        self.access.timeout.saturating_sub(since).min(self.deadline.left())
    }

    /// Waits.
    pub fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn send<T>(&self, ask: &Ask<'_>, take: Take<'_, T>, changes: bool) -> Result<Option<T>> {
        let servers = &self.access.servers;
        self.findings.begin();
        for round in 0_u32.. {
            let start = self.first.get();
            for place in (start..servers.len()).chain(0..start) {
                let started = Instant::now();
                if self.findings.is_left_alone(place, started) {
                    continue;
                }
                let left = self.left();
                if left.is_zero() {
                    return Err(self.nobody_answered());
                }
                let server = &servers[place];
                let patience = self.patience(round).min(left);
                let trouble = match self.try_one(server, ask, take, patience) {
                    Ok(answer) => {
                        self.first.set(place);
                        self.trouble.set(None);
                        self.findings.clear();
                        return Ok(Some(answer));
                    }
                    Err(trouble) => trouble,
                };
                // A refusal is an answer.
                if self.trouble.get().is_none() && !matches!(trouble, Trouble::Unfit(_)) {
                    self.trouble.set(Some(started));
                }
                let (reason, unfit) = match trouble {
                    Trouble::Final(error) if !changes => {
                        return Err(
                            error.within(format_args!("{} at {server}", self.access.service))
                        );
                    }
                    Trouble::Final(error) => (error.in_full(), None),
                    Trouble::Unknown(reason) if changes => (reason, None),
                    Trouble::Unknown(reason) | Trouble::NotSent(reason) => (reason, Some(false)),
                    Trouble::Unfit(reason) => (reason, Some(true)),
                };
                let reason = self.redacted(reason);
                let Some(unfit) = unfit else {
                    warn!("{server}: the outcome of a request is unknown: {reason}");
                    let again = self.again.get();
                    self.findings.put(place, Finding { reason, again, ..Finding::default() });
                    self.first.set((place + 1) % servers.len());
                    return Ok(None);
                };
                match servers.len() {
                    1 => debug!("{server}: {reason}"),
                    _ if unfit => warn!("{server} does not do what is asked: {reason}"),
                    _ => warn!("{server} does not answer: {reason}"),
                }
                // A try that had hardly any time says less than the one before.
                if patience >= SHORTEST || unfit || self.findings.is_silent(place) {
                    let (away, again) = (!self.sent.is_set(), self.again.get());
                    self.findings.put(place, Finding { reason, unfit, away, again });
                }
            }
            if self.findings.nobody_does(round) {
                break;
            }
            let pause = (PAUSE * (round + 1).min(5)).min(self.left());
            match self.findings.asked_to_wait() {
                Some(wait) if wait > self.left() => break,
                wait => self.pause(wait.map_or(pause, |wait| wait.max(pause))),
            }
        }
        Err(self.nobody_answered())
    }

    fn try_one<T>(
        &self,
        server: &Server,
        ask: &Ask<'_>,
        take: Take<'_, T>,
        patience: Duration,
    ) -> Result<T, Trouble> {
        let began = Instant::now();
        self.sent.set(false);
        self.again.set(None);
        let answered = self.request(server, ask, patience);
        let sent = self.sent.is_set();
        let broken = |error: &ureq::Error| Trouble::of(error, sent, server.is_secured(), patience);
        let was_asked = self.asked.replace(self.asked.get() || sent);
        let response = answered.map_err(|error| match self.sent.strange() {
            Some(advice) => {
                self.asked.set(was_asked);
                Trouble::stranger(&error, patience, advice)
            }
            None => broken(&error),
        })?;
        let status = response.status().as_u16();
        debug!("{server}: {} {}: {status} in {:.1?}", ask.method, ask.path, began.elapsed());
        if !ask.answers.contains(&status) {
            let wait = trouble::asked_to_wait(status, response.headers().get(RETRY_AFTER));
            self.again.set(wait.map(|wait| Instant::now() + wait));
            let mut text = self.refusal(response);
            if trouble::is_elsewhere(status, ask.method, &text) {
                self.asked.set(was_asked);
                text.push_str(" (look at the port and at the scheme: a server that speaks TLS needs https://)");
            }
            if let Some(wait) = wait {
                text.push_str(&format!(" (it asks to be left alone for {} s)", wait.as_secs()));
            }
            return Err(Trouble::of_status(status, ask.method, text));
        }
        if let Some(sign) = ask.sign.filter(|sign| !response.headers().contains_key(*sign)) {
            let service = self.access.service;
            return Err(Trouble::Unfit(format!(
                "HTTP {status} without the header {sign}: this is not {service}"
            )));
        }
        let mut body = Bounded::new(response.into_body().into_reader(), ask.limit);
        let taken = take(status, &mut body);
        match (body.end(), taken) {
            (End::TooLong, _) => Err(Trouble::Final(
                Error::new(
                    ErrorCode::BACKEND,
                    format!(
                        "the answer to {} {} has more than {} bytes",
                        ask.method, ask.path, ask.limit
                    ),
                )
                .advise("see what the server holds there"),
            )),
            (End::Broken(error), _) => Err(broken(&error.into())),
            (End::None, Ok(taken)) => Ok(taken),
            (End::None, Err(error)) => Err(Trouble::Final(
                Error::new(
                    ErrorCode::BACKEND,
                    format!("the answer to {} {} is not understood", ask.method, ask.path),
                )
                .caused_by(self.redacted(error.to_string())),
            )),
        }
    }

    fn request(
        &self,
        server: &Server,
        ask: &Ask<'_>,
        patience: Duration,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut request =
            Request::builder().method(ask.method.name()).uri(format!("{server}/{}", ask.path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(media) = self.media {
            request = request.header(ACCEPT, media);
            if !ask.body.is_empty() {
                request = request.header(CONTENT_TYPE, ask.method.content().unwrap_or(media));
            }
        }
        let patience = Some(patience);
        if ask.method == Method::Get || (ask.method == Method::Delete && ask.body.is_empty()) {
            let request = self.agent.configure_request(request.body(())?);
            self.agent.run(request.timeout_global(patience).build())
        } else {
            let request = self.agent.configure_request(request.body(ask.body)?);
            self.agent.run(request.timeout_global(patience).build())
        }
    }

    /// What a server said instead of an answer, in one line.
    fn refusal(&self, response: Response<ureq::Body>) -> String {
        let status = response.status();
        let to = response.headers().get("location");
        let to = to.map(|to| {
            one_line(&self.redacted(String::from_utf8_lossy(to.as_bytes()).into_owned()))
        });
        let mut body = Vec::new();
        // What has come until the connection breaks will do.
        let _ = response.into_body().into_reader().take(READ).read_to_end(&mut body);
        // Before it is cut, where a part of a secret would be left.
        let body = self.redacted(String::from_utf8_lossy(&body).into_owned());
        let mut text = format!("HTTP {}", status.as_u16());
        if let Some(to) = to.filter(|_| status.is_redirection()) {
            text.push_str(&format!(
                ", a redirect to {to}, which is not followed (name that server in the configuration)"
            ));
        } else {
            let said = one_line(&body);
            if !said.is_empty() {
                text.push_str(&format!(": {said}"));
            }
        }
        if let Some(advice) = (self.access.advice)(status.as_u16(), &body) {
            text.push_str(&format!(" ({advice})"));
        }
        text
    }

    /// How long one server may take in this round.
    pub(super) fn patience(&self, round: u32) -> Duration {
        let several = self.access.servers.len() > 1;
        if several { PATIENCE * (1 << round.min(4)) } else { self.access.timeout }
    }

    /// A server's words without the secrets that it was shown.
    fn redacted(&self, text: String) -> String {
        let secrets = self.access.headers.iter().map(|(_, secret)| secret.expose());
        let bare = secrets.map(|secret| secret.strip_prefix("Bearer ").unwrap_or(secret));
        redacted(text, bare)
    }

    fn nobody_answered(&self) -> Error {
        let (reasons, service) = (self.findings.reasons(), self.access.service);
        if reasons.iter().all(String::is_empty) {
            let message = format!("the time is over before {service} was asked");
            return Error::new(ErrorCode::TIMED_OUT, message).advise("raise `ipam.timeout`");
        }
        let unfit = self.findings.are_refusals();
        let mut text = match unfit {
            true => format!("no {service} server does what is asked"),
            false => format!("no {service} server answers"),
        };
        for (server, reason) in self.access.servers.iter().zip(&reasons) {
            let reason = match &**reason {
                "" => "not asked, the time was over",
                reason => reason,
            };
            text.push_str(&format!("; {server}: {reason}"));
        }
        let code = match (self.asked.get(), unfit) {
            (false, _) if self.access.unreached != ErrorCode::TRY_AGAIN => self.access.unreached,
            (_, true) => ErrorCode::BACKEND,
            (_, false) => ErrorCode::TRY_AGAIN,
        };
        Error::new(code, text).advise(if unfit {
            "look at what each server says, and at the settings that name it"
        } else {
            "look at the servers and at the way to them; call again once they answer"
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("access", &self.access).finish_non_exhaustive()
    }
}

/// What is left after this is for saying what is wrong.
fn within(deadline: Deadline) -> Deadline {
    Deadline::after(deadline.left() * 9 / 10)
}

fn whole(status: u16, body: &mut dyn Read) -> io::Result<Answer> {
    let mut answer = Answer { status, body: Vec::new() };
    body.read_to_end(&mut answer.body)?;
    Weight::judge(&answer.body)?;
    Ok(answer)
}

/// The first characters, with all that is no text turned into single spaces.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN).collect()
}
