//! The token of a user with a password: asked for by one call of the node at a time, and kept in the
//! state folder.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ipam_kit::allocate::owner_index::now;
use ipam_kit::host::{StateFile, beside, lock, make_private_folder, open_own};
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::http::Client;
use crate::secret::Secret;
use crate::section::ServerLogin;
use crate::server::Server;

/// A user's way to a token. A token is never deleted, because all nodes may share it.
#[derive(Debug)]
pub struct UserLogin {
    service: &'static str,
    login: ServerLogin,
    /// The user and the first server.
    subject: String,
    file: StateFile,
}

/// The answer to a login.
#[derive(Debug)]
pub enum LoginAnswer {
    /// A token.
    Token(String),
    /// The server refuses, and will refuse again: for a minute, no login is sent.
    Refused {
        /// The code of the error.
        code: ErrorCode,
        /// The server's words, without secrets.
        said: String,
        /// Advice for the operator.
        advice: &'static str,
    },
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
    code: u32,
    said: String,
    advice: String,
}

/// For how long no password is sent after a login without success, in milliseconds. Servers count
/// refused logins, and block the node after some.
const PAUSE: u64 = 60_000;

impl UserLogin {
    /// The login at the first server of a service, named in errors as `service`. No text of the
    /// client's servers shows the password from now on. `file` names the file of a user at a
    /// server, in a folder of the delegate.
    pub fn new(
        service: &'static str,
        login: ServerLogin,
        server: &Server,
        client: &mut Client,
        file: impl FnOnce(&str) -> PathBuf,
    ) -> Self {
        client.conceal(&login.password);
        let subject = format!("{} at {server}", login.user);
        let file = StateFile::at(file(&subject));
        Self { service, login, subject, file }
    }

    /// The kept token of this user.
    pub fn kept(&self) -> Option<Secret> {
        self.read().token()
    }

    /// Takes the token that another call of this node was given meanwhile, or else asks for one.
    /// `refused` is the token that the server no longer accepts.
    ///
    /// # Errors
    /// The server refuses the login, now or within the last minute. Code 11: another call still logs
    /// in after half of the time. Those of `ask`.
    pub fn renew(
        &self,
        client: &mut Client,
        refused: Option<&Secret>,
        ask: impl FnOnce(&mut Client, &ServerLogin) -> Result<LoginAnswer>,
    ) -> Result<Secret> {
        let _turn = self.turn(client.left() / 2)?;
        let kept = self.read();
        if let Some(token) = kept.token()
            && (refused != Some(&token) || is_recent(kept.repeated))
        {
            return Ok(token);
        }
        if let Some(refusal) = kept.refusal.filter(|refusal| is_recent(refusal.at)) {
            return Err(self.error(" less than a minute ago", &refusal));
        }
        let kept = KeptToken { subject: self.subject.clone(), ..KeptToken::default() };
        match ask(client, &self.login)? {
            LoginAnswer::Token(token) => {
                let secret = Secret::parse(&token, &format!("the token of {}", self.service))?;
                let repeated = if refused == Some(&secret) { now() } else { 0 };
                self.keep(&KeptToken { token, repeated, ..kept });
                Ok(secret)
            }
            LoginAnswer::Refused { code, said, advice } => {
                let (code, advice) = (code.number(), advice.to_owned());
                let refusal = LoginRefusal { at: now(), code, said, advice };
                let error = self.error("", &refusal);
                self.keep(&KeptToken { refusal: Some(refusal), ..kept });
                Err(error)
            }
        }
    }

    /// Waits until no other call of this node logs in as this user. A folder that cannot be written
    /// is a warning.
    fn turn(&self, patience: Duration) -> Result<Option<File>> {
        let path = beside(self.file.path(), ".lock");
        let opened = path.parent().map_or(Ok(()), make_private_folder);
        let opened = opened.and_then(|()| open_own(&path, OFlags::RDWR | OFlags::CREATE, 0o600));
        let give_up = Instant::now() + patience;
        match opened.and_then(|file| Ok((lock(&file, give_up)?, file))) {
            Ok((true, file)) => Ok(Some(file)),
            Ok((false, _)) => {
                let message = format!(
                    "another call still logs in as {}: {} is locked",
                    self.subject,
                    path.display()
                );
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise(
                    "call again; if the error persists, check which process of this node has the file locked",
                ))
            }
            Err(error) => {
                warn!("cannot lock {}: {error}: logs in without it", path.display());
                Ok(None)
            }
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

    fn error(&self, when: &str, refusal: &LoginRefusal) -> Error {
        let Self { service, subject, .. } = self;
        let message = format!("{service} refused the login of {subject}{when}: {}", refusal.said);
        Error::new(ErrorCode::new(refusal.code), message)
            .advise(&*refusal.advice)
            .advise("the next login is sent a minute after this one")
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
    use std::path::Path;

    use ipam_kit::delegate::Deadline;

    use super::*;
    use crate::http::Access;
    use crate::tls::Tls;

    fn client() -> Client {
        let access = Access {
            service: "Rack",
            servers: vec![Server::parse_one("http://127.0.0.1:1", "p", None).unwrap()],
            tls: Tls::default(),
            headers: Vec::new(),
            timeout: Duration::from_secs(2),
            unreached: ErrorCode::TRY_AGAIN,
            advice: |_, _| None,
        };
        Client::new(access, Deadline::after(Duration::from_secs(2))).unwrap()
    }

    fn login(client: &mut Client, folder: &Path) -> UserLogin {
        let password = Secret::parse("pass-word", "p").unwrap();
        let login = ServerLogin { user: "ann".to_owned(), password };
        let server = Server::parse_one("http://127.0.0.1:1", "p", None).unwrap();
        let file = folder.join("rack").join("token.json");
        UserLogin::new("Rack", login, &server, client, |_| file)
    }

    fn gives(token: &str) -> impl FnOnce(&mut Client, &ServerLogin) -> Result<LoginAnswer> {
        |_, _| Ok(LoginAnswer::Token(token.to_owned()))
    }

    fn never(_: &mut Client, _: &ServerLogin) -> Result<LoginAnswer> {
        panic!("it asks")
    }

    #[test]
    fn a_token_is_kept_and_asked_for_again_when_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut client = client();
        let login = login(&mut client, folder.path());
        assert_eq!(login.kept(), None);
        let first = login.renew(&mut client, None, gives("one")).unwrap();
        assert_eq!(login.kept(), Some(first.clone()));
        assert_eq!(login.renew(&mut client, None, never).unwrap(), first);
        let second = login.renew(&mut client, Some(&first), gives("two")).unwrap();
        assert_eq!(second.expose(), "two");
        // Another call that had the first one takes the second.
        assert_eq!(login.renew(&mut client, Some(&first), never).unwrap(), second);
        // A server that gives the refused one again is asked once in a minute.
        login.renew(&mut client, Some(&second), gives("two")).unwrap();
        assert_eq!(login.renew(&mut client, Some(&second), never).unwrap(), second);
    }

    #[test]
    fn a_refused_login_is_sent_once_and_its_words_are_shown_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut client = client();
        let login = login(&mut client, folder.path());
        let refuses = |_: &mut Client, _: &ServerLogin| {
            let (code, said) = (ErrorCode::BACKEND, "HTTP 400: unknown user".to_owned());
            Ok(LoginAnswer::Refused { code, said, advice: "correct username" })
        };
        let first = login.renew(&mut client, None, refuses).unwrap_err();
        let second = login.renew(&mut client, None, never).unwrap_err();
        for error in [first, second] {
            let text = error.in_full();
            assert_eq!(error.code(), ErrorCode::BACKEND);
            assert!(text.contains("Rack refused the login of ann at http://127.0.0.1:1"), "{text}");
            assert!(text.contains("HTTP 400: unknown user"), "{text}");
            assert!(text.contains("correct username"), "{text}");
        }
        assert_eq!(login.kept(), None);
    }

    #[test]
    fn while_another_call_logs_in_the_error_names_the_locked_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut client = client();
        let login = login(&mut client, folder.path());
        let _turn = login.turn(Duration::ZERO).unwrap().unwrap();
        let error = login.renew(&mut client, None, never).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
        assert!(error.in_full().contains("rack/token.json.lock is locked"), "{error}");
    }
}
