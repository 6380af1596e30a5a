use std::io::{self, Read};
use std::time::{Duration, Instant};

use ipam_kit::error::{Error, ErrorCode, Result};
use log::debug;
use ureq::Agent;
use ureq::http::header::{ACCEPT, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use super::dial::{self, Sent};
use super::message::{Bounded, End, HttpAnswer, HttpRequest, Method};
use super::request_error;
use super::secrets::{SHOWN, Secrets, one_line};
use crate::failover::Transport;
use crate::request_error::RequestError;
use crate::secret::Secret;
use crate::server::Server;
use crate::tls::{Tls, Trust};

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

/// HTTP as a way to servers: one request, sent to one of them.
pub(super) struct Http {
    service: &'static str,
    servers: Vec<Server>,
    /// What every request shows.
    headers: HeaderMap,
    secrets: Secrets,
    /// What it speaks, where that is to be told.
    media: Option<&'static str>,
    advice: fn(status: u16, body: &str) -> Option<&'static str>,
    agent: Agent,
    sent: Sent,
}

/// What is asked, and what becomes of the answer.
pub(super) struct Question<'a, T> {
    ask: &'a HttpRequest<'a>,
    headers: HeaderMap,
    take: Take<'a, T>,
}

/// Takes the body of an answer, whose head comes without it.
pub(super) type Take<'a, T> = &'a mut dyn FnMut(HttpAnswer, &mut dyn Read) -> io::Result<T>;

/// The bytes that are read of a refusal.
const READ: u64 = 4 * SHOWN as u64;

impl Http {
    /// # Errors
    /// A certificate file cannot be used, or a header is invalid.
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
        let sent = Sent::default();
        let agent = dial::agent(tls, sent.clone());
        Ok(Self { service, servers, headers, secrets, media: None, advice, agent, sent })
    }

    pub(super) fn speak(&mut self, media: &'static str) {
        self.media = Some(media);
    }

    pub(super) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    pub(super) fn server(&self, place: usize) -> &Server {
        &self.servers[place]
    }

    /// What is asked with all its headers: those of the request replace those of every request.
    ///
    /// # Errors
    /// A header is invalid.
    pub(super) fn question<'a, T>(
        &mut self,
        ask: &'a HttpRequest<'a>,
        take: Take<'a, T>,
    ) -> Result<Question<'a, T>> {
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
        Ok(Question { ask, headers, take })
    }

    fn exchange<T>(
        &self,
        server: &Server,
        question: &mut Question<'_, T>,
        patience: Duration,
    ) -> Result<T, RequestError> {
        let (ask, began) = (question.ask, Instant::now());
        self.sent.set(false);
        let answered = self.request(server, question, patience);
        let sent = self.sent.is_set();
        let broken =
            |error: &ureq::Error| request_error::of(error, sent, server.is_secured(), patience);
        let response = answered.map_err(|error| match self.sent.strange() {
            Some(advice) => request_error::stranger(&error, patience, advice),
            None => broken(&error),
        })?;
        let status = response.status().as_u16();
        debug!("{server}: {} {}: {status} in {:.1?}", ask.method, ask.path, began.elapsed());
        if !ask.ok_statuses.contains(&status) {
            return Err(self.refusal(ask, response));
        }
        if let Some(sign) =
            ask.required_header.filter(|sign| !response.headers().contains_key(*sign))
        {
            let text =
                format!("HTTP {status} without the header {sign}: this is not {}", self.service);
            return Err(RequestError::rejected(text).sent(sent));
        }
        let head = head(ask, &response);
        let mut body = Bounded::new(response.into_body().into_reader(), ask.limit);
        let taken = (question.take)(head, &mut body);
        let asked = format_args!("{} {}", ask.method, ask.path);
        match (body.end(), taken) {
            (End::TooLong, _) => Err(RequestError::not_understood(
                Error::new(
                    ErrorCode::BACKEND,
                    format!("the answer to {asked} has more than {} bytes", ask.limit),
                )
                .advise("see what the server holds there"),
            )),
            (End::Broken(error), _) => Err(broken(&error.into())),
            (End::None, Ok(taken)) => Ok(taken),
            (End::None, Err(error)) => Err(RequestError::not_understood(
                Error::new(ErrorCode::BACKEND, format!("the answer to {asked} is not understood"))
                    .caused_by(self.secrets.redacted(error.to_string())),
            )),
        }
    }

    fn request<T>(
        &self,
        server: &Server,
        question: &Question<'_, T>,
        patience: Duration,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let ask = question.ask;
        let mut request =
            Request::builder().method(ask.method.name()).uri(format!("{server}/{}", ask.path));
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&question.headers);
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

    /// What a status means that is no answer.
    fn refusal(&self, ask: &HttpRequest<'_>, response: Response<ureq::Body>) -> RequestError {
        let status = response.status().as_u16();
        let wait = request_error::asked_to_wait(status, response.headers().get(RETRY_AFTER));
        let mut text = self.said(response);
        let is_elsewhere = request_error::is_elsewhere(status, ask.method, &text);
        if is_elsewhere {
            text.push_str(
                " (look at port, path and scheme: a server that speaks TLS needs https://)",
            );
        }
        if let Some(wait) = wait {
            text.push_str(&format!(" (it asks to be left alone for {} s)", wait.as_secs()));
        }
        let trouble = request_error::of_status(status, ask.method, text).wait(wait);
        if is_elsewhere { trouble.sent(false) } else { trouble }
    }

    /// What a server said instead of an answer, in one line.
    fn said(&self, response: Response<ureq::Body>) -> String {
        let status = response.status();
        let to = response.headers().get(LOCATION).filter(|_| status.is_redirection());
        let to = to.map(|to| self.secrets.shown(to.as_bytes()));
        let mut body = Vec::new();
        // What has come until the connection breaks will do.
        let _ = response.into_body().into_reader().take(READ).read_to_end(&mut body);
        // Before it is cut, where a part of a secret would be left.
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

impl<T> Transport<Question<'_, T>> for Http {
    type Answer = T;

    fn ask(
        &mut self,
        place: usize,
        question: &mut Question<'_, T>,
        patience: Duration,
    ) -> Result<T, RequestError> {
        self.exchange(&self.servers[place], question, patience)
            .map_err(|trouble| trouble.map_reason(|reason| self.secrets.redacted(reason)))
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
    let wrong = || Error::new(ErrorCode::INTERNAL, format!("invalid header {name}"));
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
    let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
    value.set_sensitive(is_secret);
    headers.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests;
