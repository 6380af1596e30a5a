//! Requests to the server, with its token.

use std::io::{self, Read};

use ipam_kit::{Request, Result};
use ipam_servers::{Access, Client, HttpAnswer, HttpRequest, Method, Secret, media};

use crate::config::OpenWispSite;
use crate::login::Login;

/// The server, over HTTP.
#[derive(Debug)]
pub(crate) struct ApiClient {
    client: Client,
    login: Option<Login>,
    has_token: bool,
}

/// A request below `api/v1/ipam/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) body: &'a [u8],
    /// The statuses that are an answer.
    pub(crate) ok: &'a [u16],
}

/// The largest answer that is read whole, in bytes.
const ANSWER: u64 = 64 * 1024;

/// The largest answer that is read element by element, in bytes.
const LIST: u64 = 1024 * 1024 * 1024;

impl ApiClient {
    /// # Errors
    /// A certificate file cannot be used.
    pub(crate) fn new(site: OpenWispSite, request: &Request) -> Result<Self> {
        let state = request.state_dir()?;
        let server = site.settings.servers[0].to_string();
        let folder = state.root().join("openwisp");
        let login = site.login.map(|login| Login::new(login, &server, &folder));
        let settings = site.settings;
        let access = Access {
            service: "OpenWISP",
            servers: settings.servers,
            tls: settings.tls,
            headers: Vec::new(),
            timeout: settings.timeout,
            unreached: request.unreached(),
            advice,
        };
        let client = Client::new(access, request.deadline)?.speaking(media::JSON);
        let mut this = Self { client, login, has_token: false };
        let token = settings.token.or_else(|| this.login.as_ref()?.kept());
        if let Some(token) = token {
            this.show(&token)?;
        }
        Ok(this)
    }

    fn show(&mut self, token: &Secret) -> Result<()> {
        let header = Secret::parse(&format!("Bearer {}", token.expose()), "the token of OpenWISP")?;
        self.has_token = true;
        self.client.show("Authorization", &header)
    }

    /// Asks for a token if it has none yet, or after the server has refused it.
    fn log_in(&mut self, again: bool) -> Result<bool> {
        if self.has_token && !again {
            return Ok(true);
        }
        let Some(login) = &self.login else { return Ok(false) };
        let token = login.renew(&mut self.client)?;
        self.show(&token)?;
        Ok(true)
    }

    /// Sends a request that changes nothing.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub(crate) fn read(&mut self, ask: Ask<'_>) -> Result<HttpAnswer> {
        self.log_in(false)?;
        let path = path_of(ask);
        for is_last in [self.login.is_none(), true] {
            let ok = statuses(ask.ok, is_last);
            let answer = self.client.read(&request(ask, &path, &ok, ANSWER))?;
            if answer.status != 401 || is_last {
                return Ok(answer);
            }
            self.log_in(true)?;
        }
        unreachable_answer(&path)
    }

    /// The same for a long body.
    ///
    /// # Errors
    /// As [`Client::read_with`].
    pub(crate) fn read_with<T>(
        &mut self,
        ask: Ask<'_>,
        take: &mut dyn FnMut(&HttpAnswer, &mut dyn Read) -> io::Result<T>,
    ) -> Result<T> {
        self.log_in(false)?;
        let path = path_of(ask);
        for is_last in [self.login.is_none(), true] {
            let ok = statuses(ask.ok, is_last);
            let mut take = |head: &HttpAnswer, body: &mut dyn Read| match head.status {
                401 => Ok(None),
                _ => take(head, body).map(Some),
            };
            if let Some(taken) =
                self.client.read_with(&request(ask, &path, &ok, LIST), &mut take)?
            {
                return Ok(taken);
            }
            self.log_in(true)?;
        }
        unreachable_answer(&path)
    }

    /// Sends a change; `None` if its outcome is unknown.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub(crate) fn write(&mut self, ask: Ask<'_>) -> Result<Option<HttpAnswer>> {
        self.log_in(false)?;
        let path = path_of(ask);
        for is_last in [self.login.is_none(), true] {
            let ok = statuses(ask.ok, is_last);
            let answer = self.client.write(&request(ask, &path, &ok, ANSWER))?;
            // A server that refuses the token has carried out nothing.
            if answer.as_ref().is_none_or(|answer| answer.status != 401) || is_last {
                return Ok(answer);
            }
            self.log_in(true)?;
        }
        unreachable_answer(&path)
    }

    /// A server's words in one line, without secrets.
    pub(crate) fn shown(&self, said: &[u8]) -> String {
        self.client.secrets().shown(said)
    }
}

fn unreachable_answer<T>(path: &str) -> Result<T> {
    Err(crate::answers::nonsense(format!("the token was refused twice for {path}")))
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

/// Advice about an answer with another status.
fn advice(status: u16, body: &str) -> Option<&'static str> {
    Some(match status {
        401 => "correct token or tokenFile in ipam.openwisp: OpenWISP does not know this token",
        403 if body.contains("not a manager") => {
            "make this user a manager of the organization in OpenWISP"
        }
        403 => {
            "give this user the rights add, view, change and delete of IP addresses, and view of subnets"
        }
        429 => {
            "raise ipam in DEFAULT_THROTTLE_RATES of OpenWISP's REST_FRAMEWORK: it allows 400 requests an hour by default"
        }
        _ => return None,
    })
}
