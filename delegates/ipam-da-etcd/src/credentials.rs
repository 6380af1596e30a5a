use std::fs;
use std::io;
use std::path::PathBuf;

use ipam_kit::host::{beside, make_private_folder, read_own, replace_own};
use ipam_kit::text::redacted;
use ipam_kit::{Error, Result};
use ipam_servers::{ConfigFile, read_text};
use log::debug;

use crate::config::EtcdPassword;

/// User name and password, and the auth token that a server gave for them.
///
/// A password costs the server some 80 ms of bcrypt. So the token is kept for the next processes, in
/// a file that only root can read.
#[derive(Debug)]
pub(crate) struct EtcdCredentials {
    pub(crate) user: String,
    password: EtcdPassword,
    cache: PathBuf,
    /// The token that was shown last.
    shown: String,
}

impl EtcdCredentials {
    /// Credentials whose token is kept in the file `cache`.
    pub(crate) fn new(user: String, password: EtcdPassword, cache: PathBuf) -> Self {
        Self { user, password, cache, shown: String::new() }
    }

    /// Returns the password.
    ///
    /// # Errors
    /// The file cannot be read or is empty.
    pub(crate) fn read_password(&self) -> Result<String> {
        let ConfigFile { path, file } = match &self.password {
            EtcdPassword::File(file) => file,
            EtcdPassword::Text(text) => return Ok(text.clone()),
        };
        let text = read_text(file).map_err(|error| {
            Error::config(path, format_args!("{} cannot be read", file.display()))
                .caused_by(error)
                .advise("name a file with the password and nothing else")
        })?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(Error::config(
                path,
                format_args!("{} is empty: expected the password", file.display()),
            )
            .advise("name a file with the password and nothing else"));
        }
        Ok(password.to_owned())
    }

    /// Returns the token that an earlier process kept; `None` if a loss of power has torn it.
    pub(crate) fn cached_token(&mut self) -> Option<String> {
        let text = String::from_utf8(read_own(&self.cache).ok()?).ok()?;
        let whole = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let token = whole.then_some(text)?;
        self.shown.clone_from(&token);
        Some(token)
    }

    /// Returns the text of a server without the password and the token.
    pub(crate) fn redacted(&self, text: String) -> String {
        let password = self.read_password().unwrap_or_default();
        redacted(text, [&*password, &*self.shown])
    }

    /// Removes the kept token: a store that was restored from a backup does not answer a request
    /// with a token of a later revision until it has reached that revision.
    pub(crate) fn forget_token(&self) {
        let _ = fs::remove_file(&self.cache);
    }

    /// Keeps a token. If that fails, the next process asks for another.
    pub(crate) fn keep_token(&mut self, token: &str) {
        token.clone_into(&mut self.shown);
        if let Err(error) = self.write_cache(token) {
            debug!("cannot keep the token in {}: {error}", self.cache.display());
        }
    }

    fn write_cache(&self, token: &str) -> io::Result<()> {
        make_private_folder(self.cache.parent().unwrap_or(&self.cache))?;
        let draft = beside(&self.cache, &format!("#{}", std::process::id()));
        replace_own(&self.cache, &draft, 0o600, token.as_bytes())
    }
}
