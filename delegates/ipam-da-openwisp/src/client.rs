//! Requests to the server, with its token.

use std::io::{self, Read};

use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_records::short_hash;
use ipam_servers::{
    Access, Client, HttpAnswer, HttpRequest, Method, Secret, Secrets, UserLogin, media,
};
use log::warn;

use crate::config::OpenWispSite;
use crate::login::log_in;

/// The server, over HTTP. No error of a request shows a password or a token.
#[derive(Debug)]
pub(crate) struct ApiClient {
    client: Client,
    login: Option<UserLogin>,
    /// The token in the header of each request.
    token: Option<Secret>,
    user: String,
}

/// A request below `api/v1/ipam/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) body: &'a [u8],
    /// The statuses that count as an answer.
    pub(crate) ok: &'a [u16],
}

/// Advice about too many requests.
pub(crate) const RAISE_RATE: &str = "raise ipam in DEFAULT_THROTTLE_RATES of OpenWISP's REST_FRAMEWORK: it allows 400 requests an hour by default";

/// The largest answer that is read whole, in bytes.
const ANSWER: u64 = 64 * 1024;

/// The largest answer that is read element by element, in bytes.
const LIST: u64 = 1024 * 1024 * 1024;

/// Parses a long body, given the head of its answer.
type AnswerReader<'a, T> = &'a mut dyn FnMut(&HttpAnswer, &mut dyn Read) -> io::Result<Result<T>>;

impl ApiClient {
    /// # Errors
    /// A certificate file cannot be used.
    pub(crate) fn new(site: OpenWispSite, request: &Request) -> Result<Self> {
        let state = request.state_dir()?;
        let first = site.settings.servers[0].clone();
        let folder = state.root().join("openwisp");
        let settings = site.settings;
        let user = match (&site.login, &settings.token) {
            (Some(login), _) => format!("user {}", login.user),
            (None, Some(token)) => format!("token {}", token.expose()),
            (None, None) => String::new(),
        };
        let access = Access {
            service: "OpenWISP",
            servers: settings.servers,
            tls: settings.tls,
            headers: Vec::new(),
            timeout: settings.timeout,
            unreached: request.unreached(),
            advice: if site.login.is_some() { login_advice } else { advice },
        };
        let mut client = Client::new(access, request.deadline)?.speaking(media::JSON);
        let file = |user: &str| folder.join(format!("token-{}.json", short_hash(user)));
        let login =
            site.login.map(|login| UserLogin::new("OpenWISP", login, &first, &mut client, file));
        let mut this = Self { client, login, token: None, user: short_hash(&user) };
        let token = settings.token.or_else(|| this.login.as_ref()?.kept());
        if let Some(token) = token {
            this.show(token)?;
        }
        Ok(this)
    }

    /// A name for the user of the token or the password, which shows neither.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Whether the server has answered a request of this call with 429.
    pub(crate) fn is_limited(&self) -> bool {
        self.client.is_limited()
    }

    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.client.set_deadline(deadline);
    }

    fn show(&mut self, token: Secret) -> Result<()> {
        let header = Secret::parse(&format!("Bearer {}", token.expose()), "the token of OpenWISP")?;
        self.token = Some(token);
        self.client.show("Authorization", &header)
    }

    /// Takes another token than the present one, if there is a user with a password.
    fn log_in(&mut self) -> Result<()> {
        let Some(login) = &self.login else { return Ok(()) };
        let token = login.renew(&mut self.client, self.token.as_ref(), log_in)?;
        self.show(token)
    }

    /// Sends a request that changes nothing, and parses the answer.
    ///
    /// # Errors
    /// As [`Client::read`], and those of `take`.
    pub(crate) fn read<T>(
        &mut self,
        ask: Ask<'_>,
        take: impl FnOnce(&HttpAnswer) -> Result<T>,
    ) -> Result<T> {
        let path = path_of(ask);
        let answer = self.send(&mut |client, is_last| {
            let ok = statuses(ask.ok, is_last);
            let answer = client.read(&request(ask, &path, &ok, ANSWER))?;
            Ok((is_last || answer.status != 401).then_some(answer))
        })?;
        take(&answer).map_err(|error| self.redacted(error))
    }

    /// The same for a long body.
    ///
    /// # Errors
    /// As [`Client::read_with`], and those of `take`.
    pub(crate) fn read_with<T>(&mut self, ask: Ask<'_>, take: AnswerReader<'_, T>) -> Result<T> {
        let path = path_of(ask);
        let taken = self.send(&mut |client, is_last| {
            let ok = statuses(ask.ok, is_last);
            let mut take = |head: &HttpAnswer, body: &mut dyn Read| match head.status {
                401 => Ok(None),
                _ => take(head, body).map(Some),
            };
            client.read_with(&request(ask, &path, &ok, LIST), &mut take)
        })?;
        taken.map_err(|error| self.redacted(error))
    }

    /// Sends a change, and parses the answer. `None` if the outcome is unknown: no answer came, or the
    /// answer to a change that succeeded cannot be parsed.
    ///
    /// # Errors
    /// As [`Client::write`], and those of `take` for another status than 2xx.
    pub(crate) fn write<T>(
        &mut self,
        ask: Ask<'_>,
        take: impl FnOnce(&HttpAnswer, &Secrets) -> Result<T>,
    ) -> Result<Option<T>> {
        let path = path_of(ask);
        let answer = self.send(&mut |client, is_last| {
            let ok = statuses(ask.ok, is_last);
            let answer = client.write(&request(ask, &path, &ok, ANSWER))?;
            // A server that refuses the token has carried out nothing.
            let is_answer = answer.as_ref().is_none_or(|answer| answer.status != 401);
            Ok((is_last || is_answer).then_some(answer))
        })?;
        let Some(answer) = answer else { return Ok(None) };
        match take(&answer, self.client.secrets()) {
            Ok(taken) => Ok(Some(taken)),
            Err(error) if (200..300).contains(&answer.status) => {
                let error = self.redacted(error).in_full();
                warn!("the outcome of {} {path} is unknown: {error}", ask.method);
                Ok(None)
            }
            Err(error) => Err(self.redacted(error)),
        }
    }

    /// Sends a request with the token, and with another one if the server refuses the first. `send`
    /// returns `None` for a refused token; its flag says that this token is the last one.
    fn send<T>(
        &mut self,
        send: &mut dyn FnMut(&mut Client, bool) -> Result<Option<T>>,
    ) -> Result<T> {
        if self.token.is_none() {
            self.log_in()?;
        }
        if self.login.is_some() {
            if let Some(answer) = send(&mut self.client, false)? {
                return Ok(answer);
            }
            self.log_in()?;
        }
        // The last one is an answer or an error.
        send(&mut self.client, true)?
            .ok_or_else(|| Error::new(ErrorCode::INTERNAL, "a refused token counts as an answer"))
    }

    /// An error about a server's words, without secrets.
    pub(crate) fn redacted(&self, error: Error) -> Error {
        self.client.secrets().redacted_error(error)
    }
}

fn path_of(ask: Ask<'_>) -> String {
    format!("api/v1/ipam/{}", ask.path)
}

/// Without another token to try, a 401 is a refusal.
fn statuses(ok: &[u16], is_last: bool) -> Vec<u16> {
    let unauthorized = (!is_last).then_some(401);
    ok.iter().copied().chain(unauthorized).collect()
}

fn request<'a>(ask: Ask<'a>, path: &'a str, ok: &'a [u16], limit: u64) -> HttpRequest<'a> {
    HttpRequest {
        body: ask.body,
        ok_statuses: ok,
        kept_headers: &["date", "content-length", "transfer-encoding"],
        limit,
        ..HttpRequest::new(ask.method, path)
    }
}

/// Advice about an answer whose status is an error.
fn advice(status: u16, body: &str) -> Option<&'static str> {
    Some(match status {
        401 => "correct token or tokenFile in ipam.openwisp: OpenWISP does not know this token",
        403 if body.contains("not a manager") => {
            "make this user a manager of the organization in OpenWISP"
        }
        403 => {
            "give this user the rights add, view, change and delete of IP addresses, and view of subnets"
        }
        429 => RAISE_RATE,
        _ => return None,
    })
}

/// [`advice`] for a user with a password, who has just logged in.
fn login_advice(status: u16, body: &str) -> Option<&'static str> {
    match status {
        401 => Some(
            "OpenWISP refuses the token that it gave to this user: check that the user in ipam.openwisp.username is active, and that no proxy before OpenWISP removes the header Authorization",
        ),
        _ => advice(status, body),
    }
}
