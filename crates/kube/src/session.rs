use std::io::{self, Read};

use log::{debug, info, warn};

use super::credentials::{KubeCredentials, LoginProof};
use super::refusal::RequestContext;
use super::resource::Resource;
use super::source::CredentialsSource;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_servers::{Access, Client, HttpAnswer, HttpRequest, Method, Secret, Tls, media};

/// A client with its credentials. After a 401 it reads them once more, since tokens and certificates
/// rotate.
#[derive(Debug)]
pub(super) struct KubeSession {
    client: Client,
    credentials: KubeCredentials,
    /// The proof that the client sends.
    sent: LoginProof,
    source: CredentialsSource,
    unreached: ErrorCode,
    deadline: Deadline,
    is_renewed: bool,
}

impl KubeSession {
    /// # Errors
    /// Error 7: a file cannot be read, is wrong, or has a setting that is not supported.
    pub(super) fn open(
        source: CredentialsSource,
        unreached: ErrorCode,
        deadline: Deadline,
    ) -> Result<Self> {
        let credentials = source.credentials()?;
        let sent = credentials.proof();
        let client = connected(&credentials, &source, unreached, deadline)?;
        Ok(Self { client, credentials, sent, source, unreached, deadline, is_renewed: false })
    }

    pub(super) fn credentials(&self) -> &KubeCredentials {
        &self.credentials
    }

    /// A request with the parts of this session that its errors show.
    pub(super) fn context<'a>(
        &'a self,
        method: Method,
        resource: &'a Resource<'a>,
    ) -> RequestContext<'a> {
        RequestContext::new(self.client.secrets().clone(), &self.credentials, method, resource)
    }

    /// [`Client::read`], once more if the credentials have rotated.
    pub(super) fn read(&mut self, ask: &HttpRequest<'_>) -> Result<HttpAnswer> {
        loop {
            let answer = self.client.read(ask).map_err(|error| self.explain(error))?;
            if answer.status != 401 || !self.renew() {
                return Ok(answer);
            }
        }
    }

    /// [`Client::read_with`] for objects of a kind. After a 401 the caller calls
    /// [`KubeSession::renew`].
    pub(super) fn read_with<T>(
        &mut self,
        ask: &HttpRequest<'_>,
        resource: &Resource<'_>,
        take: &mut dyn FnMut(&RequestContext<'_>, u16, &mut dyn Read) -> io::Result<T>,
    ) -> Result<T> {
        let secrets = self.client.secrets().clone();
        let context = RequestContext::new(secrets, &self.credentials, ask.method, resource);
        let mut take = |head: &HttpAnswer, body: &mut dyn Read| take(&context, head.status, body);
        self.client.read_with(ask, &mut take).map_err(|error| self.explain(error))
    }

    /// [`Client::write`], once more if the credentials have rotated: a server that answers 401 has
    /// carried out nothing.
    pub(super) fn write(&mut self, ask: &HttpRequest<'_>) -> Result<Option<HttpAnswer>> {
        loop {
            let answer = self.client.write(ask).map_err(|error| self.explain(error))?;
            let is_rejected = answer.as_ref().is_some_and(|answer| answer.status == 401);
            if !is_rejected || !self.renew() {
                return Ok(answer);
            }
        }
    }

    /// Reads the credentials once more, after a 401, and uses them from now on if they differ from
    /// those that were sent. Only the first call reads anything. Returns whether they differ.
    pub(super) fn renew(&mut self) -> bool {
        if std::mem::replace(&mut self.is_renewed, true) {
            return false;
        }
        self.try_renew().unwrap_or_else(|error| {
            warn!("the rejected credentials cannot be read again: {}", error.in_full());
            false
        })
    }

    fn try_renew(&mut self) -> Result<bool> {
        let credentials = self.source.credentials()?;
        let proof = credentials.proof();
        // Objects that were read from one server say nothing about those of another.
        if proof == self.sent
            || credentials.server.to_string() != self.credentials.server.to_string()
        {
            debug!("the rejected credentials have not rotated");
            return Ok(false);
        }
        self.client = connected(&credentials, &self.source, self.unreached, self.deadline)?;
        info!(
            "the server rejected the credentials (401), which have rotated; new: {}",
            credentials.shown()
        );
        (self.credentials, self.sent) = (credentials, proof);
        Ok(true)
    }

    /// An error of the client, with the code and the advice for a server that refuses.
    fn explain(&self, error: Error) -> Error {
        if !self.client.is_refused() {
            return error;
        }
        let KubeCredentials { server, trust, server_path, ca_path, .. } = &self.credentials;
        let error = error.with_code(ErrorCode::BACKEND);
        if !server.is_secured() {
            return error.advise(format!("check {server_path}"));
        }
        let error = error.advise(format!("check {server_path} and {ca_path}"));
        match &trust.identity {
            Some(_) => error.advise(format!("check {}", self.credentials.shown())),
            None => error,
        }
    }
}

fn connected(
    credentials: &KubeCredentials,
    source: &CredentialsSource,
    unreached: ErrorCode,
    deadline: Deadline,
) -> Result<Client> {
    let bearer = |(place, token): &(String, Secret)| {
        let value = Secret::parse(&format!("Bearer {}", token.expose()), place)?;
        Ok(("Authorization", value))
    };
    let access = Access {
        service: "Kubernetes API",
        servers: vec![credentials.server.clone()],
        tls: Tls::default(),
        headers: credentials.token.iter().map(bearer).collect::<Result<_>>()?,
        timeout: source.timeout(),
        unreached,
        advice: |status, _| {
            (300..400).contains(&status).then_some("the server is not a Kubernetes API server")
        },
    };
    Ok(Client::trusting(access, &credentials.trust, deadline)?.speaking(media::JSON))
}

#[cfg(test)]
mod tests;
