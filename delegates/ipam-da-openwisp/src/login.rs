//! The token of a user with a password: asked for once, and kept in the state folder.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipam_kit::allocate::owner_index::now;
use ipam_kit::host::{StateFile, lock, make_private_folder, open_own};
use ipam_kit::{Error, ErrorCode, Result};
use ipam_records::short_hash;
use ipam_servers::{Client, HttpRequest, Method, Secret, ServerLogin, media};
use log::warn;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answers::nonsense;

/// A user's way to a token.
#[derive(Debug)]
pub(crate) struct Login {
    login: ServerLogin,
    /// The first server, and the user.
    subject: String,
    file: StateFile,
    /// Locked by the call that logs in.
    lock: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct KeptToken {
    subject: String,
    token: String,
    /// When a login gave a refused token once more, in milliseconds since 1970.
    repeated: u64,
    /// The last login, if the server refused it.
    refusal: Option<LoginRefusal>,
}

#[derive(Serialize, Deserialize)]
struct LoginRefusal {
    /// In milliseconds since 1970.
    at: u64,
    /// Whether there were too many logins; else the password was refused.
    too_many: bool,
}

#[derive(Deserialize)]
struct TokenJson {
    token: String,
}

/// For how long no password is sent after a login without success, in milliseconds. OpenWISP takes
/// 20 logins a day from an address.
const PAUSE: u64 = 60_000;

const PATH: &str = "api/v1/users/token/";

impl Login {
    /// With files of its own in the folder, for each user and server.
    pub(crate) fn new(login: ServerLogin, server: &str, folder: &Path) -> Self {
        let subject = format!("{} at {server}", login.user);
        let name = format!("token-{}", short_hash(&subject));
        let file = StateFile::at(folder.join(format!("{name}.json")));
        Self { login, subject, file, lock: folder.join(format!("{name}.lock")) }
    }

    /// The kept token of this user.
    pub(crate) fn kept(&self) -> Option<Secret> {
        self.read().token()
    }

    /// Takes the token that another call of this node was given meanwhile, or else asks for one.
    /// `refused` is the token that the server does not know any more.
    ///
    /// # Errors
    /// Code 103: the server refuses the password, now or within the last minute. Code 11: it has
    /// had too many logins, or another call logs in until the time is over. The server cannot be
    /// reached.
    pub(crate) fn renew(&self, client: &mut Client, refused: Option<&Secret>) -> Result<Secret> {
        let _turn = self.turn(client.left() / 2)?;
        let kept = self.read();
        if let Some(token) = kept.token()
            && (refused != Some(&token) || is_recent(kept.repeated))
        {
            return Ok(token);
        }
        if let Some(refusal) = kept.refusal.filter(|refusal| is_recent(refusal.at)) {
            return Err(self.refused(&refusal, "a minute has not passed since then"));
        }
        let body = json!({"username": self.login.user, "password": self.login.password.expose()});
        let body = body.to_string();
        let answer = client.read(&HttpRequest {
            body: body.as_bytes(),
            media: Some(media::JSON),
            ok_statuses: &[200, 400, 429],
            limit: 16 * 1024,
            ..HttpRequest::new(Method::Post, PATH)
        })?;
        let kept = KeptToken { subject: self.subject.clone(), ..KeptToken::default() };
        if answer.status != 200 {
            let refusal = LoginRefusal { at: now(), too_many: answer.status == 429 };
            let said = client.secrets().shown(&answer.body);
            let error = self.refused(&refusal, &format!("HTTP {}: {said}", answer.status));
            self.keep(&KeptToken { refusal: Some(refusal), ..kept });
            return Err(error);
        }
        // The words of the parser may quote the token.
        let TokenJson { token } = serde_json::from_slice(&answer.body)
            .map_err(|_| nonsense("cannot parse the answer to a login".to_owned()))?;
        let secret = Secret::parse(&token, "the token of OpenWISP")?;
        let repeated = if refused == Some(&secret) { now() } else { 0 };
        self.keep(&KeptToken { token, repeated, ..kept });
        Ok(secret)
    }

    /// Waits until no other call of this node logs in as this user. A folder that cannot be written
    /// is a warning.
    fn turn(&self, patience: Duration) -> Result<Option<File>> {
        let give_up = Instant::now() + patience;
        let locked = self.open_lock().and_then(|file| Ok((lock(&file, give_up)?, file)));
        match locked {
            Ok((true, file)) => Ok(Some(file)),
            Ok((false, _)) => {
                let message = format!("another call still logs in as {}", self.subject);
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
            }
            Err(error) => {
                warn!("cannot lock {}: {error}: logs in without it", self.lock.display());
                Ok(None)
            }
        }
    }

    fn open_lock(&self) -> std::io::Result<File> {
        let open = || open_own(&self.lock, OFlags::RDWR | OFlags::CREATE, 0o600);
        match (open(), self.lock.parent()) {
            (Err(error), Some(folder)) if error.kind() == ErrorKind::NotFound => {
                make_private_folder(folder)?;
                open()
            }
            (opened, _) => opened,
        }
    }

    fn read(&self) -> KeptToken {
        let kept: KeptToken = self.file.read();
        if kept.subject == self.subject { kept } else { KeptToken::default() }
    }

    fn keep(&self, kept: &KeptToken) {
        if let Err(error) = self.file.write(kept) {
            warn!("cannot write {}: {error}", self.file.path().display());
        }
    }

    fn refused(&self, refusal: &LoginRefusal, said: &str) -> Error {
        let (code, advice) = match refusal.too_many {
            true => (
                ErrorCode::TRY_AGAIN,
                "raise OPENWISP_USERS_AUTH_THROTTLE_RATE in OpenWISP's settings: it allows 20 logins a day from one address by default; or set a token in ipam.openwisp instead of username and password",
            ),
            false => (
                ErrorCode::BACKEND,
                "correct username and password in ipam.openwisp, or set a token; the next login is sent after a minute",
            ),
        };
        let message = format!("OpenWISP refused the login of {}: {said}", self.subject);
        Error::new(code, message).advise(advice)
    }
}

impl KeptToken {
    fn token(&self) -> Option<Secret> {
        Secret::parse(&self.token, "token").ok()
    }
}

fn is_recent(time: u64) -> bool {
    now().abs_diff(time) < PAUSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_of_a_server_has_files_of_its_own() {
        let paths = |user: &str, server: &str| {
            let password = Secret::parse("s3cret", "p").unwrap();
            let login = ServerLogin { user: user.to_owned(), password };
            let login = Login::new(login, server, Path::new("/f"));
            [login.file.path().to_owned(), login.lock]
        };
        let first = paths("a", "https://x");
        assert_eq!(paths("a", "https://x"), first);
        for other in [paths("b", "https://x"), paths("a", "https://y")] {
            assert!(other.iter().all(|path| !first.contains(path)), "{other:?}");
        }
    }
}
