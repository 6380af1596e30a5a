//! Requests to the server below `api/APP/`, with a token.

use std::io::Read;

use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_records::short_hash;
use ipam_servers::{
    Access, Client, HttpAnswer, HttpRequest, Method, Secret, UserLogin, each_element, escape, media,
};
use log::warn;
use serde::de::DeserializeOwned;

use crate::answers::{Envelope, nonsense, parse};
use crate::config::PhpIpamSite;
use crate::login::log_in;
use crate::refusal::{READ_ONLY, is_locked, refusal};

/// The server, over HTTP.
#[derive(Debug)]
pub(crate) struct AppClient {
    client: Client,
    app: String,
    login: Option<UserLogin>,
    token: Option<Secret>,
}

/// A step of a list.
pub(crate) enum ListStep<T> {
    /// The list begins, or begins anew.
    Begin,
    /// It shows an element.
    Element(T),
}

/// An answer with a list, or the envelope without one.
enum ListAnswer {
    Shown,
    Refused(Envelope),
    /// Status and beginning of an answer that is not phpIPAM's.
    Strange(u16),
}

/// The statuses with an envelope.
const TOLD: &[u16] = &[200, 201, 400, 401, 403, 404, 405, 409, 415, 500, 503];

/// The same without those of a server that cannot answer now.
const CALM: &[u16] = &[200, 201, 400, 401, 403, 404, 405, 409, 415];

/// The largest answer that is read whole, in bytes.
const ANSWER: u64 = 256 * 1024;

/// The largest answer that is read element by element, in bytes.
const LIST: u64 = 1024 * 1024 * 1024;

/// The longest element of a list, in bytes.
const ELEMENT: usize = 256 * 1024;

/// How often a change is sent that had to wait too long for its turn.
const TURNS: u32 = 3;

impl AppClient {
    /// # Errors
    /// A certificate file cannot be used.
    pub(crate) fn new(site: PhpIpamSite, request: &Request) -> Result<Self> {
        let PhpIpamSite { settings, login, app, .. } = site;
        let state = request.state_dir()?;
        let first = settings.servers[0].clone();
        let folder = state.root().join("phpipam");
        let access = Access {
            service: "phpIPAM",
            servers: settings.servers,
            tls: settings.tls,
            headers: Vec::new(),
            timeout: settings.timeout,
            unreached: request.unreached(),
            advice: |_, _| None,
        };
        let mut client = Client::new(access, request.deadline)?.speaking(media::JSON);
        let file = |user: &str| folder.join(format!("token-{}.json", short_hash(user)));
        let login = login.map(|login| UserLogin::new("phpIPAM", login, &first, &mut client, file));
        let token = settings.token.or_else(|| login.as_ref()?.kept());
        let mut this = Self { client, app, login, token: None };
        if let Some(token) = token {
            this.show(token)?;
        }
        Ok(this)
    }

    fn show(&mut self, token: Secret) -> Result<()> {
        self.client.show("token", &token)?;
        self.token = Some(token);
        Ok(())
    }

    /// Asks for a token if it has none yet.
    fn log_in(&mut self) -> Result<()> {
        if self.token.is_some() { Ok(()) } else { self.renew() }
    }

    /// Asks for another token.
    fn renew(&mut self) -> Result<()> {
        let Some(login) = &self.login else { return Ok(()) };
        let token = login.renew(&mut self.client, self.token.as_ref(), |client, login| {
            log_in(client, login, &self.app)
        })?;
        self.show(token)
    }

    /// Whether another token may help.
    fn is_spent(&self, envelope: &Envelope) -> bool {
        self.login.is_some() && envelope.code == 401 && !envelope.says(READ_ONLY)
    }

    fn path(&self, path: &str) -> String {
        format!("api/{}/{path}", escape(&self.app))
    }

    /// Sends a request that changes nothing.
    ///
    /// # Errors
    /// The server cannot be reached, or is not phpIPAM.
    pub(crate) fn read(&mut self, path: &str) -> Result<Envelope> {
        self.send(Method::Get, path)
    }

    /// [`AppClient::read`] with another method, for a request that changes nothing either.
    ///
    /// # Errors
    /// As of [`AppClient::read`].
    pub(crate) fn send(&mut self, method: Method, path: &str) -> Result<Envelope> {
        self.log_in()?;
        let envelope = self.send_once(method, path)?;
        if !self.is_spent(&envelope) {
            return Ok(envelope);
        }
        self.renew()?;
        self.send_once(method, path)
    }

    fn send_once(&mut self, method: Method, path: &str) -> Result<Envelope> {
        let full = self.path(path);
        let request =
            |ok| HttpRequest { ok_statuses: ok, limit: ANSWER, ..HttpRequest::new(method, &full) };
        let mut answer = self.client.read(&request(TOLD))?;
        let mut envelope = Envelope::parse(&answer.body);
        if envelope.is_none() && answer.status >= 500 {
            // Its database may be away, or a proxy answers: another server may do better.
            answer = self.client.read(&request(CALM))?;
            envelope = Envelope::parse(&answer.body);
        }
        envelope.ok_or_else(|| strange(answer.status, path))
    }

    /// Sends a request for a list, and passes its elements on. An envelope without a list is the
    /// answer of a server that shows none.
    ///
    /// # Errors
    /// The server cannot be reached, or is not phpIPAM; those of `take`.
    pub(crate) fn list<T: DeserializeOwned>(
        &mut self,
        path: &str,
        take: &mut dyn FnMut(ListStep<T>) -> Result<()>,
    ) -> Result<Option<Envelope>> {
        self.log_in()?;
        let refused = self.list_once(path, take)?;
        match refused {
            Some(envelope) if self.is_spent(&envelope) => {
                self.renew()?;
                self.list_once(path, take)
            }
            refused => Ok(refused),
        }
    }

    fn list_once<T: DeserializeOwned>(
        &mut self,
        path: &str,
        take: &mut dyn FnMut(ListStep<T>) -> Result<()>,
    ) -> Result<Option<Envelope>> {
        let full = self.path(path);
        for ok in [TOLD, CALM] {
            let request = HttpRequest {
                ok_statuses: ok,
                limit: LIST,
                ..HttpRequest::new(Method::Get, &full)
            };
            let mut read = |head: &HttpAnswer, body: &mut dyn Read| {
                if let Err(error) = take(ListStep::Begin) {
                    return Ok(Err(error));
                }
                if head.status != 200 {
                    let mut said = Vec::new();
                    body.take(ANSWER).read_to_end(&mut said)?;
                    let strange = ListAnswer::Strange(head.status);
                    return Ok(Ok(Envelope::parse(&said).map_or(strange, ListAnswer::Refused)));
                }
                let rest = each_element(body, Some("data"), ELEMENT, |element| {
                    take(ListStep::Element(parse(element, &format!("an element of {path}"))?))
                })?;
                Ok(rest.map(|rest| match Envelope::parse(&rest) {
                    Some(envelope) if envelope.is(200) => ListAnswer::Shown,
                    Some(envelope) => ListAnswer::Refused(envelope),
                    None => ListAnswer::Strange(head.status),
                }))
            };
            match self.client.read_with(&request, &mut read)?? {
                ListAnswer::Shown => return Ok(None),
                ListAnswer::Refused(envelope) => return Ok(Some(envelope)),
                ListAnswer::Strange(500..) if ok == TOLD => {}
                ListAnswer::Strange(status) => return Err(strange(status, path)),
            }
        }
        Err(strange(500, path))
    }

    /// Sends a change; `None` if its outcome is unknown. It is sent again to a server that has certainly
    /// not carried it out: after another login, or when it had to wait too long for its turn.
    ///
    /// # Errors
    /// It was not and will not be done.
    pub(crate) fn change(
        &mut self,
        method: Method,
        path: &str,
        body: &[u8],
    ) -> Result<Option<Envelope>> {
        self.log_in()?;
        let (mut turns, mut logins) = (0, 0);
        loop {
            let Some(envelope) = self.change_once(method, path, body)? else { return Ok(None) };
            if logins == 0 && self.is_spent(&envelope) {
                logins += 1;
                self.renew()?;
                continue;
            }
            if is_locked(&envelope) {
                turns += 1;
                if turns == TURNS || self.client.left().is_zero() {
                    return Err(self.refusal(&envelope, "a change"));
                }
                continue;
            }
            return Ok(Some(envelope));
        }
    }

    fn change_once(&mut self, method: Method, path: &str, body: &[u8]) -> Result<Option<Envelope>> {
        let full = self.path(path);
        let answer = self.client.write(&HttpRequest {
            body,
            ok_statuses: TOLD,
            limit: ANSWER,
            ..HttpRequest::new(method, &full)
        })?;
        let Some(answer) = answer else { return Ok(None) };
        match (Envelope::parse(&answer.body), answer.status) {
            (Some(envelope), _) => Ok(Some(envelope)),
            (None, 400..=499) => Err(strange(answer.status, path)),
            (None, status) => {
                warn!("the outcome of a change is unknown: HTTP {status} to {path} says nothing");
                Ok(None)
            }
        }
    }

    /// The error of an answer that nothing else explains.
    pub(crate) fn refusal(&self, envelope: &Envelope, what: &str) -> Error {
        let said = self.client.secrets().shown(envelope.message().as_bytes());
        refusal(envelope, &self.app, self.login.is_some(), what, &said)
    }

    /// Sets another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.client.set_deadline(deadline);
    }

    /// Whether there is time for another try.
    pub(crate) fn has_time(&self) -> bool {
        !self.client.left().is_zero()
    }
}

/// The error of an answer without an envelope.
fn strange(status: u16, path: &str) -> Error {
    match status {
        500.. => Error::new(
            ErrorCode::TRY_AGAIN,
            format!("phpIPAM answered {path} with HTTP {status} and nothing else"),
        )
        .advise("call again; if the error persists, check phpIPAM's log and its database"),
        _ => nonsense(format!("the answer to {path} is not phpIPAM's: HTTP {status}")),
    }
}
