use std::fs;
use std::path::PathBuf;

use ipam_kit::host::{beside, make_private_folder, read_own, replace_own};
use ipam_kit::text::redacted;
use ipam_kit::{Error, Result};
use ipam_servers::{ConfigFile, read_text};
use log::debug;

/// Who calls, by user name and password.
///
/// Checking a password costs the server some 80 ms of bcrypt, so the token it gave is kept for the next
/// processes, in a file that only root can read.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    password: ConfigFile,
    cache: PathBuf,
    /// The token that was shown last.
    shown: String,
}

impl Credentials {
    /// A caller whose token is kept in this file.
    pub(crate) fn new(user: String, password: ConfigFile, cache: PathBuf) -> Self {
        Self { user, password, cache, shown: String::new() }
    }

    /// The password.
    ///
    /// # Errors
    /// The file cannot be read or is empty.
    pub(crate) fn password(&self) -> Result<String> {
        let ConfigFile { path, file } = &self.password;
        let text = read_text(file).map_err(|error| {
            Error::config(path, format_args!("{} cannot be read", file.display()))
                .caused_by(error)
                .advise("name a file that holds nothing but the password")
        })?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(Error::config(path, format_args!("{} is empty", file.display()))
                .advise("name a file that holds nothing but the password"));
        }
        Ok(password.to_owned())
    }

    /// The token of an earlier process; none where a loss of power has torn it.
    pub(crate) fn cached(&mut self) -> Option<String> {
        let text = String::from_utf8(read_own(&self.cache).ok()?).ok()?;
        let whole = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let token = whole.then_some(text)?;
        self.shown.clone_from(&token);
        Some(token)
    }

    /// A server's words without the password and the token.
    pub(crate) fn redacted(&self, text: String) -> String {
        let password = self.password().unwrap_or_default();
        redacted(text, [&*password, &*self.shown])
    }

    /// Lets go of a kept token: a store that was restored from a backup waits for the time it names, and does
    /// not answer until then.
    pub(crate) fn forget(&self) {
        let _ = fs::remove_file(&self.cache);
    }

    /// Keeps a token; without a place for it the next process asks for another.
    pub(crate) fn keep(&mut self, token: &str) {
        token.clone_into(&mut self.shown);
        let kept = || {
            let folder = self.cache.parent().unwrap_or(&self.cache);
            make_private_folder(folder)?;
            let draft = beside(&self.cache, &format!("#{}", std::process::id()));
            replace_own(&self.cache, &draft, 0o600, token.as_bytes())
        };
        if let Err(error) = kept() {
            debug!("the token is not kept in {}: {error}", self.cache.display());
        }
    }
}
