//! The file of a node that names the server of addresses and a login, as forks of whereabouts read
//! it: `{"ipamtype":"phpipam","ipamuser":"…","ipampwd":"…","ipamurl":"10.0.0.9:8080","appid":"…"}`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ipam_kit::host::read_trusted;
use ipam_kit::{Error, Result};
use log::warn;
use serde_json::{Map, Value};

use crate::secret::Secret;
use crate::server::Server;

/// The keys of the file.
const TYPE: &str = "ipamtype";
const USER: &str = "ipamuser";
const PASSWORD: &str = "ipampwd";
const URL: &str = "ipamurl";
const APP: &str = "appid";

/// The keys of a section that exclude the file.
const REPLACED: [&str; 7] =
    ["url", "urls", "token", "tokenFile", "username", "password", "passwordFile"];

/// The rights by which others than the owner read a file.
const READ_BY_OTHERS: u32 = 0o044;

/// Puts the settings of a provider's file into a section, under the section's own keys. `path` is the
/// path of the key that names the file; `provider` is the `ipamtype` that the delegate serves.
///
/// # Errors
/// Code 7: the section has a key of those that the file has; the file is missing, is not trusted, has
/// a malformed value, or is of another provider. Code 5: it cannot be read. No error shows the
/// password.
pub(crate) fn merge(
    section: &mut Map<String, Value>,
    file: &str,
    path: &str,
    provider: &str,
    has_app: bool,
) -> Result<()> {
    if let Some(key) = REPLACED.into_iter().find(|key| section.contains_key(*key)) {
        return Err(Error::config(path, format_args!("given together with {key}"))
            .advise("remove one of them"));
    }
    let keys = ProviderFile::read(file, path)?;
    keys.check_type(provider)?;
    let url = keys.required(URL)?;
    // As the forks do, which speak plain HTTP alone.
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    Server::parse_one(&url, &keys.path(URL), None)?;
    let password = keys.required(PASSWORD)?;
    Secret::parse(password, &keys.path(PASSWORD))?;
    for (key, text) in [("url", &*url), ("username", keys.required(USER)?), ("password", password)]
    {
        section.insert(key.to_owned(), text.into());
    }
    section.entry("insecure").or_insert(true.into());
    let app = keys.given(APP)?.filter(|_| has_app);
    if app.is_some() && section.contains_key("appId") {
        return Err(Error::config(path, format_args!("{file} has {APP}, and appId is given"))
            .advise("remove one of them"));
    }
    section.extend(app.map(|app| ("appId".to_owned(), app.into())));
    Ok(())
}

/// The file as it is written.
struct ProviderFile<'a> {
    file: &'a str,
    /// The path of the key that names the file.
    path: &'a str,
    keys: Map<String, Value>,
}

impl<'a> ProviderFile<'a> {
    fn read(file: &'a str, path: &'a str) -> Result<Self> {
        if Path::new(file).is_relative() {
            return Err(Error::config(path, format_args!("{file:?} is relative"))
                .advise("name the file by an absolute path"));
        }
        let text = read_trusted(Path::new(file)).map_err(|error| error.at(path))?;
        let Some(text) = text else {
            return Err(Error::config(path, format_args!("{file} does not exist"))
                .advise("write the file, or name the server and a login in the configuration"));
        };
        let mode = fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode());
        if mode & READ_BY_OTHERS != 0 {
            warn!("{file} has a password, and others may read it: chmod 600 {file}");
        }
        // The parser's words about another type would quote the value, which may be the password.
        match serde_json::from_slice(&text) {
            Ok(Value::Object(keys)) => Self { file, path, keys }.check_letters(),
            _ => Err(Error::config(path, format_args!("{file} is not one JSON object")).advise(
                format!("write it as {{\"{TYPE}\": …, \"{USER}\": …, \"{PASSWORD}\": …}}"),
            )),
        }
    }

    /// The forks take keys in any letters.
    fn check_letters(self) -> Result<Self> {
        for known in [TYPE, USER, PASSWORD, URL, APP] {
            let other = |key: &&String| key.eq_ignore_ascii_case(known) && *key != known;
            if let Some(key) = self.keys.keys().find(other) {
                return Err(Error::config(self.path(key), "unknown key")
                    .advise(format!("write {known}: keys are case-sensitive")));
            }
        }
        Ok(self)
    }

    fn check_type(&self, provider: &str) -> Result<()> {
        let path = self.path(TYPE);
        match self.required(TYPE)? {
            found if found == provider => Ok(()),
            "nsxtipam" => Err(Error::config(path, "the provider nsxtipam is not supported")
                .advise("keep the old plugin on networks of NSX-T")),
            other => {
                Err(Error::config(path, format_args!("expected {provider:?}, found {other:?}"))
                    .advise(
                        "name the delegate of this provider in ipam.delegates, or correct the file",
                    ))
            }
        }
    }

    /// The path of a key in errors.
    fn path(&self, key: &str) -> String {
        format!("{}: {}: {}", self.path, self.file, key.escape_debug())
    }

    /// A text; `None` if it is missing or blank.
    fn given(&self, key: &str) -> Result<Option<&str>> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.trim()).filter(|text| !text.is_empty())),
            Some(_) => Err(Error::config(self.path(key), "expected a string")
                .advise("write the value between quotes")),
        }
    }

    fn required(&self, key: &str) -> Result<&str> {
        self.given(key)?.ok_or_else(|| {
            Error::config(self.path(key), "missing").advise(format!("set {key} in {}", self.file))
        })
    }
}
