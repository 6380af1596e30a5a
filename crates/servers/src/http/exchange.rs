use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipam_kit::error::{Error, ErrorCode, Result};
use log::debug;
use ureq::Agent;
use ureq::http::header::{ACCEPT, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use super::dial::{self, WireState};
use super::message::{BodyEnd, Bounded, HttpAnswer, HttpRequest, Method};
use super::request_error;
use super::secrets::{SHOWN, Secrets, one_line};
use crate::failover::Transport;
use crate::request_error::RequestError;
use crate::secret::Secret;
use crate::server::Server;
use crate::tls::{Tls, Trust};

/// The servers of a service, with TLS, headers and times.
#[derive(Debug)]
pub struct Access {
    /// The service's name in errors, before the word "server", as in `Consul`.
    pub service: &'static str,
    /// At least one.
    pub servers: Vec<Server>,
    /// For servers over TLS.
    pub tls: Tls,
    /// Headers of every request.
    pub headers: Vec<(&'static str, Secret)>,
    /// How long to retry after the first failure.
    pub timeout: Duration,
    /// The code of an error if no request reached a server.
    pub unreached: ErrorCode,
    /// Advice about a status that is not an answer, by the status and the body.
    pub advice: fn(status: u16, body: &str) -> Option<&'static str>,
}

/// The HTTP transport: one request to one server.
pub(super) struct Http {
    service: &'static str,
    servers: Vec<Server>,
    /// Headers of every request.
    headers: HeaderMap,
    secrets: Secrets,
    /// The media type of bodies, if there is a common one.
    media: Option<&'static str>,
    advice: fn(status: u16, body: &str) -> Option<&'static str>,
    agent: Agent,
    wire: WireState,
    /// Whether a server has answered 429.
    is_limited: AtomicBool,
}

/// A request with all its headers, and the reader of its answer.
pub(super) struct PreparedRequest<'a, T> {
    ask: &'a HttpRequest<'a>,
    headers: HeaderMap,
    take: Take<'a, T>,
}

/// Reads the body of an answer, given its head.
pub(super) type Take<'a, T> = &'a mut dyn FnMut(HttpAnswer, &mut dyn Read) -> io::Result<T>;

/// The bytes that are read of a rejection.
const READ: u64 = 4 * SHOWN as u64;

impl Http {
    /// # Errors
    /// A certificate file is unusable, or a header is invalid.
    pub(super) fn new(access: Access, trust: &Trust) -> Result<Self> {
        let Access { service, servers, headers: shown, advice, .. } = access;
        let mut headers = HeaderMap::new();
        let mut secrets = Secrets::default();
        for (name, secret) in &shown {
            secrets.add(secret);
            put(&mut headers, name, secret.expose(), true)?;
        }
        let secured = servers.iter().any(Server::is_secured);
        let tls = secured.then(|| trust.settings()).transpose()?;
        let (wire, is_limited) = (WireState::default(), AtomicBool::new(false));
        let agent = dial::agent(tls, wire.clone());
        Ok(Self {
            service,
            servers,
            headers,
            secrets,
            media: None,
            advice,
            agent,
            wire,
            is_limited,
        })
    }

    pub(super) fn speak(&mut self, media: &'static str) {
        self.media = Some(media);
    }

    /// # Errors
    /// The header is invalid.
    pub(super) fn show(&mut self, name: &str, value: &Secret) -> Result<()> {
        self.secrets.add(value);
        put(&mut self.headers, name, value.expose(), true)
    }

    pub(super) fn conceal(&mut self, secret: &Secret) {
        self.secrets.add(secret);
    }

    pub(super) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    pub(super) fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// Adds all headers: those of the request replace those of every request.
    ///
    /// # Errors
    /// A header is invalid.
    pub(super) fn prepare<'a, T>(
        &mut self,
        ask: &'a HttpRequest<'a>,
        take: Take<'a, T>,
    ) -> Result<PreparedRequest<'a, T>> {
        let mut headers = self.headers.clone();
        if let Some(media) = self.media {
            put(&mut headers, ACCEPT.as_str(), media, false)?;
        }
        if let Some(media) = ask.media.or(self.media).filter(|_| !ask.body.is_empty()) {
            put(&mut headers, CONTENT_TYPE.as_str(), media, false)?;
        }
        for (name, value) in ask.headers {
            put(&mut headers, name, value, false)?;
        }
        for (name, secret) in ask.secrets {
            self.secrets.add(secret);
            put(&mut headers, name, secret.expose(), true)?;
        }
        Ok(PreparedRequest { ask, headers, take })
    }

    fn exchange<T>(
        &self,
        server: &Server,
        prepared: &mut PreparedRequest<'_, T>,
        patience: Duration,
    ) -> Result<T, RequestError> {
        let ask = prepared.ask;
        let began = Instant::now();
        self.wire.set_sent(false);
        let answered = self.request(server, prepared, patience);
        let sent = self.wire.is_sent();
        let broken = |error: &ureq::Error| {
            request_error::of_transport(error, sent, server.is_secured(), patience)
        };
        let response = answered.map_err(|error| match self.wire.protocol_advice() {
            Some(advice) => request_error::not_http(&error, patience, advice),
            None => broken(&error),
        })?;
        let status = response.status().as_u16();
        self.is_limited.fetch_or(status == 429, Ordering::Relaxed);
        debug!("{server}: {} {}: {status} in {:.1?}", ask.method, ask.path, began.elapsed());
        if !ask.ok_statuses.contains(&status) {
            return Err(self.refusal(ask, response));
        }
        if let Some(sign) =
            ask.required_header.filter(|sign| !response.headers().contains_key(*sign))
        {
            let text = format!(
                "HTTP {status} without the header {sign}: the server is not {}",
                self.service
            );
            return Err(RequestError::rejected(text).sent(sent));
        }
        let head = head(ask, &response);
        let mut body = Bounded::new(response.into_body().into_reader(), ask.limit);
        let taken = (prepared.take)(head, &mut body);
        let asked = format_args!("{} {}", ask.method, ask.path);
        match (body.end(), taken) {
            (BodyEnd::TooLong, _) => Err(RequestError::not_understood(
                Error::new(
                    ErrorCode::BACKEND,
                    format!("the answer to {asked} has more than {} bytes", ask.limit),
                )
                .advise("check what the server stores there"),
            )),
            (BodyEnd::Broken(error), _) => Err(broken(&error.into())),
            (BodyEnd::None, Ok(taken)) => Ok(taken),
            (BodyEnd::None, Err(error)) => Err(RequestError::not_understood(
                Error::new(ErrorCode::BACKEND, format!("cannot parse the answer to {asked}"))
                    .caused_by(self.secrets.redacted(error.to_string())),
            )),
        }
    }

    fn request<T>(
        &self,
        server: &Server,
        prepared: &PreparedRequest<'_, T>,
        patience: Duration,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let ask = prepared.ask;
        let mut request =
            Request::builder().method(ask.method.name()).uri(format!("{server}/{}", ask.path));
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&prepared.headers);
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

    /// The error of a status that is not an answer.
    fn refusal(&self, ask: &HttpRequest<'_>, response: Response<ureq::Body>) -> RequestError {
        let status = response.status().as_u16();
        let wait = request_error::asked_to_wait(status, response.headers().get(RETRY_AFTER));
        let mut text = self.said(response);
        let is_other_service = request_error::is_other_service(status, ask.method, &text);
        if is_other_service {
            text.push_str(
                " (check port, path and scheme: a server that speaks TLS needs https://)",
            );
        }
        if let Some(wait) = wait {
            text.push_str(&format!(" (the server asks to retry after {}s)", wait.as_secs()));
        }
        let error = request_error::of_status(status, ask.method, text).wait(wait);
        if is_other_service { error.sent(false) } else { error }
    }

    /// The words of a server without an answer, in one line.
    fn said(&self, response: Response<ureq::Body>) -> String {
        let status = response.status();
        let to = response.headers().get(LOCATION).filter(|_| status.is_redirection());
        let to = to.map(|to| self.secrets.shown(to.as_bytes()));
        let mut body = Vec::new();
        // The part that came before the connection broke is enough.
        let _ = response.into_body().into_reader().take(READ).read_to_end(&mut body);
        // Before it is cut, so that no part of a secret is left.
        let body = self.secrets.redacted(String::from_utf8_lossy(&body).into_owned());
        let mut text = format!("HTTP {}", status.as_u16());
        if let Some(to) = to {
            text.push_str(&format!(
                ", a redirect to {to}, which is not followed (name that server in the configuration)"
            ));
        } else {
            let said = one_line(&body);
            if !said.is_empty() {
                text.push_str(&format!(": {said}"));
            }
        }
        if let Some(advice) = (self.advice)(status.as_u16(), &body) {
            text.push_str(&format!(" ({advice})"));
        }
        text
    }
}

impl<T> Transport<PreparedRequest<'_, T>> for Http {
    type Answer = T;

    fn ask(
        &mut self,
        index: usize,
        prepared: &mut PreparedRequest<'_, T>,
        patience: Duration,
    ) -> Result<T, RequestError> {
        self.exchange(&self.servers[index], prepared, patience)
            .map_err(|error| error.map_reason(|reason| self.secrets.redacted(reason)))
    }
}

/// An answer without its body.
fn head(ask: &HttpRequest<'_>, response: &Response<ureq::Body>) -> HttpAnswer {
    let mut head = HttpAnswer::new(response.status().as_u16(), Vec::new());
    for name in ask.kept_headers {
        let value = response.headers().get(*name);
        if let Some(value) = value.and_then(|value| value.to_str().ok()) {
            head.headers.push(((*name).to_owned(), value.to_owned()));
        }
    }
    head
}

fn put(headers: &mut HeaderMap, name: &str, value: &str, is_secret: bool) -> Result<()> {
    let header = HeaderName::from_bytes(name.as_bytes()).ok();
    let Some((header, mut value)) = header.zip(HeaderValue::from_str(value).ok()) else {
        return Err(Error::new(ErrorCode::INTERNAL, format!("invalid header {name}")));
    };
    value.set_sensitive(is_secret);
    headers.insert(header, value);
    Ok(())
}

#[cfg(test)]
mod tests;
