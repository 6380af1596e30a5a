//! The token of a user with a password: asked for once, and kept in the state folder.

use std::path::Path;

use ipam_kit::allocate::owner_index::now;
use ipam_kit::host::StateFile;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_records::short_hash;
use ipam_servers::{Client, HttpRequest, Method, Secret, ServerLogin, media};
use log::warn;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answers::parse;

/// A user's way to a token.
#[derive(Debug)]
pub(crate) struct Login {
    login: ServerLogin,
    /// The first server, and the user.
    subject: String,
    file: StateFile,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct KeptToken {
    subject: String,
    token: String,
    /// When the server refused the password, in milliseconds since 1970.
    refused: u64,
}

#[derive(Deserialize)]
struct TokenJson {
    token: String,
}

/// For how long no password is sent after it was refused, in milliseconds. OpenWISP takes 20 logins
/// a day of an address.
const REFUSED: u64 = 60_000;

const PATH: &str = "api/v1/users/token/";

impl Login {
    /// With a file of its own in the folder, for each user and server.
    pub(crate) fn new(login: ServerLogin, server: &str, folder: &Path) -> Self {
        let subject = format!("{} at {server}", login.user);
        let path = folder.join(format!("token-{}.json", short_hash(&subject)));
        Self { login, subject, file: StateFile::at(path) }
    }

    /// The kept token of this user.
    pub(crate) fn kept(&self) -> Option<Secret> {
        let kept: KeptToken = self.file.read();
        let is_own = kept.subject == self.subject && !kept.token.is_empty();
        is_own.then(|| Secret::parse(&kept.token, "token").ok()).flatten()
    }

    /// Asks for a token.
    ///
    /// # Errors
    /// Code 103: the server refuses the password, now or within the last minute. The server cannot
    /// be reached.
    pub(crate) fn renew(&self, client: &mut Client) -> Result<Secret> {
        let kept: KeptToken = self.file.read();
        if kept.subject == self.subject && now().abs_diff(kept.refused) < REFUSED {
            return Err(self.refused("a minute has not passed since then"));
        }
        client.conceal(&self.login.password);
        let body = json!({"username": self.login.user, "password": self.login.password.expose()});
        let body = body.to_string();
        let answer = client.read(&HttpRequest {
            body: body.as_bytes(),
            media: Some(media::JSON),
            ok_statuses: &[200, 400],
            limit: 16 * 1024,
            ..HttpRequest::new(Method::Post, PATH)
        })?;
        let mut kept = KeptToken { subject: self.subject.clone(), ..KeptToken::default() };
        if answer.status == 400 {
            kept.refused = now();
            self.keep(&kept);
            return Err(self.refused(&client.secrets().shown(&answer.body)));
        }
        let TokenJson { token } = parse(&answer.body, "the answer to a login")?;
        let secret = Secret::parse(&token, "the token of OpenWISP")?;
        kept.token = token;
        self.keep(&kept);
        Ok(secret)
    }

    fn keep(&self, kept: &KeptToken) {
        if let Err(error) = self.file.write(kept) {
            warn!("cannot write {}: {error}", self.file.path().display());
        }
    }

    fn refused(&self, said: &str) -> Error {
        let message = format!("OpenWISP refused the login of {}: {said}", self.subject);
        Error::new(ErrorCode::BACKEND, message).advise(
            "correct username and password in ipam.openwisp, or set a token; the next login is sent after a minute",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_a_server_has_a_file_of_its_own() {
        let path = |user: &str, server: &str| {
            let password = Secret::parse("s3cret", "p").unwrap();
            let login = ServerLogin { user: user.to_owned(), password };
            Login::new(login, server, Path::new("/f")).file.path().to_owned()
        };
        let first = path("a", "https://x");
        assert_eq!(path("a", "https://x"), first);
        assert!(path("b", "https://x") != first && path("a", "https://y") != first);
    }
}
