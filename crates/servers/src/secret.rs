use std::fmt;
use std::path::PathBuf;

use super::file;
use ipam_kit::error::{Error, Result};

/// A file that the configuration names.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The path of the key, for example `ipam.server.certFile`.
    pub path: String,
    /// The file.
    pub file: PathBuf,
}

impl ConfigFile {
    /// The file that the key at `path` names; an empty name counts as absent.
    pub fn given(path: impl Into<String>, file: Option<impl Into<PathBuf>>) -> Option<Self> {
        let file = file?.into();
        (!file.as_os_str().is_empty()).then(|| Self { path: path.into(), file })
    }
}

/// A token or a password, which no error and no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a secret without the white space around it. `path` is where it comes from: a path of the
    /// configuration, or the name of a variable.
    ///
    /// # Errors
    /// It is empty, or holds what no header may hold.
    pub fn parse(text: &str, path: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::config(path, "empty").advise("set a secret, or remove the key"));
        }
        if !text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err(Error::config(
                path,
                "contains a line break or another character that is invalid in a header",
            )
            .advise("expected only the secret, on one line"));
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads a secret from a file that holds nothing else.
    ///
    /// # Errors
    /// The file cannot be read, or as in [`Secret::parse`].
    pub fn read(ConfigFile { path, file }: &ConfigFile) -> Result<Self> {
        let shown = file.display();
        let text = file::read_text(file).map_err(|error| {
            Error::config(path, format_args!("{shown} cannot be read"))
                .caused_by(error)
                .advise("name a file that contains only the secret")
        })?;
        Self::parse(&text, &format!("{path}: {shown}"))
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_secret_shows_nowhere() {
        let secret = Secret::parse(" s3cret\n", "p").unwrap();
        assert_eq!(secret.expose(), "s3cret");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "… … Some(…)");
    }

    #[test]
    fn what_is_no_secret_is_refused_without_showing_it() {
        for (text, message) in
            [(" \n", "p: empty"), ("s3cret\nx", "p: contains"), ("s3crét", "p: contains")]
        {
            let error = Secret::parse(text, "p").unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert!(!error.in_full().contains("s3c"), "{error}");
        }
    }

    #[test]
    fn a_file_is_named_with_its_path_in_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| ConfigFile {
            path: "ipam.x.tokenFile".to_owned(),
            file: folder.path().join(name),
        };
        fs::write(folder.path().join("token"), "s3cret\n").unwrap();
        assert_eq!(Secret::read(&named("token")).unwrap().expose(), "s3cret");
        fs::write(folder.path().join("empty"), "\n").unwrap();
        for name in ["empty", "absent"] {
            let error = Secret::read(&named(name)).unwrap_err();
            assert!(error.to_string().starts_with("ipam.x.tokenFile: /"), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
