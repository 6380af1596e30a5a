//! The token of a user with a password: asked for by one call of the node at a time, and kept in the
//! state folder. All nodes share a user's token, so that it is never deleted.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipam_kit::allocate::owner_index::now;
use ipam_kit::host::{StateFile, beside, lock, make_private_folder, open_own};
use ipam_kit::{Error, ErrorCode, Result};
use ipam_records::short_hash;
use ipam_servers::{Client, HttpRequest, Method, Secret, ServerLogin, escape};
use log::warn;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::answers::{Envelope, nonsense};
use crate::refusal::refusal;

/// A user's way to a token.
#[derive(Debug)]
pub(crate) struct UserLogin {
    login: ServerLogin,
    app: String,
    /// The first server, and the user.
    subject: String,
    file: StateFile,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct UserToken {
    subject: String,
    token: String,
    /// When the server refused the password, in milliseconds since 1970.
    refused: u64,
}

#[derive(Deserialize)]
struct UserTokenJson {
    token: String,
}

/// For how long no password is sent after it was refused, in milliseconds. Eleven refused logins
/// block the node for everything.
const REFUSED: u64 = 60_000;

impl UserLogin {
    /// With a file of its own in the folder, for each user and server.
    pub(crate) fn new(login: ServerLogin, app: &str, server: &str, folder: &Path) -> Self {
        let subject = format!("{} at {server}", login.user);
        let path = folder.join(format!("token-{}.json", short_hash(&subject)));
        Self { login, app: app.to_owned(), subject, file: StateFile::at(path) }
    }

    /// The kept token of this user.
    pub(crate) fn kept(&self) -> Option<Secret> {
        self.kept_of(&self.file.read())
    }

    fn kept_of(&self, kept: &UserToken) -> Option<Secret> {
        let is_own = kept.subject == self.subject && !kept.token.is_empty();
        is_own.then(|| Secret::parse(&kept.token, "token").ok()).flatten()
    }

    /// Asks for a token in place of one that was refused, or takes one that another call of the node
    /// has got meanwhile.
    ///
    /// # Errors
    /// Code 103: the server refuses the password, now or within the last minute. The server cannot
    /// be reached.
    pub(crate) fn renew(&self, client: &mut Client, spent: Option<&Secret>) -> Result<Secret> {
        let _turn = self.turn(Instant::now() + client.left());
        let kept: UserToken = self.file.read();
        if let Some(token) = self.kept_of(&kept).filter(|token| Some(token) != spent) {
            return Ok(token);
        }
        if kept.subject == self.subject && now().abs_diff(kept.refused) < REFUSED {
            return Err(self.refused("a minute has not passed since then"));
        }
        let pair = format!("{}:{}", self.login.user, self.login.password.expose());
        let header = format!("Basic {}", STANDARD.encode(pair));
        let header = Secret::parse(&header, "ipam.phpipam.password")?;
        client.conceal(&self.login.password);
        let path = format!("api/{}/user/", escape(&self.app));
        let answer = client.read(&HttpRequest {
            secrets: &[("Authorization", header)],
            ok_statuses: &[200, 400, 401, 403, 409, 500, 503],
            limit: 16 * 1024,
            ..HttpRequest::new(Method::Post, &path)
        })?;
        let Some(envelope) = Envelope::parse(&answer.body) else {
            return Err(nonsense(format!("HTTP {} to a login", answer.status)));
        };
        let mut kept = UserToken { subject: self.subject.clone(), ..UserToken::default() };
        if !envelope.is(200) {
            let said = client.secrets().shown(envelope.message().as_bytes());
            if envelope.says("Invalid username or password") {
                kept.refused = now();
                self.keep(&kept);
                return Err(self.refused(&said));
            }
            return Err(refusal(&envelope, &self.app, "a login", &said));
        }
        // The words of the parser may quote the token.
        let UserTokenJson { token } = serde_json::from_value(envelope.data.unwrap_or_default())
            .map_err(|_| nonsense("cannot parse the answer to a login".to_owned()))?;
        let secret = Secret::parse(&token, "the token of phpIPAM")?;
        kept.token = token;
        self.keep(&kept);
        Ok(secret)
    }

    /// Waits until no other call of the node logs in. Without a state folder, calls do not wait.
    fn turn(&self, give_up: Instant) -> Option<File> {
        let path = beside(self.file.path(), ".lock");
        let opened = path.parent().map_or(Ok(()), make_private_folder);
        let opened = opened.and_then(|()| open_own(&path, OFlags::RDWR | OFlags::CREATE, 0o600));
        let locked = opened.and_then(|file| Ok((lock(&file, give_up)?, file)));
        match locked {
            Ok((true, file)) => Some(file),
            Ok((false, _)) => None,
            Err(error) => {
                warn!("cannot lock {}: {error}", path.display());
                None
            }
        }
    }

    fn keep(&self, kept: &UserToken) {
        if let Err(error) = self.file.write(kept) {
            warn!("cannot write {}: {error}", self.file.path().display());
        }
    }

    fn refused(&self, said: &str) -> Error {
        let message = format!("phpIPAM refused the login of {}: {said}", self.subject);
        Error::new(ErrorCode::BACKEND, message).advise(
            "correct username and password in ipam.phpipam, or set a token; the next login is sent after a minute",
        )
    }
}
