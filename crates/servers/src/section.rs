use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::cni::{Environment, parse_value};
use ipam_kit::error::{Error, Result};
use ipam_kit::host::parse_duration;
use ipam_kit::keys::{Key, names};
use log::warn;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::provider_file;
use super::secret::{ConfigFile, Secret};
use super::server::Server;
use super::tls::Tls;

/// The keys of `ipam` and the variables by which a delegate reaches its servers.
///
/// The URLs of the servers are beside the section. In it are [`ServerSection::KEYS`], which mean the same
/// for every delegate, and the delegate's own keys:
///
/// ```
/// use ipam_kit::keys::Key;
/// use ipam_kit::{Request, Result};
/// use ipam_servers::{ServerSection, ServerSettings};
/// use serde::Deserialize;
/// use serde_json::{Map, Value};
///
/// const SECTION: ServerSection = ServerSection {
///     service: "Rack",
///     servers: "rack_servers",
///     example: "http://10.20.30.40:8080",
///     name: "racks",
///     keys: &[Key::All(ServerSection::KEYS), Key::Value("row")],
///     token: "RACKS_TOKEN",
///     token_file: None,
/// };
///
/// /// The keys that a delegate declares.
/// const KEYS: &[Key] = &[Key::Value(SECTION.servers), Key::Section(SECTION.name, SECTION.keys)];
///
/// #[derive(Deserialize)]
/// #[serde(default)]
/// # #[derive(Default)]
/// struct Config {
///     rack_servers: Option<Vec<String>>,
///     racks: Option<Map<String, Value>>,
/// }
///
/// #[derive(Deserialize)]
/// struct Own {
///     row: Option<u32>,
/// }
///
/// fn settings(config: Config, request: &Request) -> Result<(ServerSettings, Own)> {
///     SECTION.read(config.rack_servers, config.racks, &request.environment)
/// }
/// # let _ = (KEYS, settings);
/// ```
#[derive(Debug)]
pub struct ServerSection {
    /// The service's name in errors, for example `Consul`.
    pub service: &'static str,
    /// The key of `ipam` with the URLs of the servers.
    pub servers: &'static str,
    /// A URL, for errors.
    pub example: &'static str,
    /// The key of `ipam` with the section, as in `consul`.
    pub name: &'static str,
    /// The keys of the section: [`ServerSection::KEYS`], and the delegate's own.
    pub keys: &'static [Key],
    /// The variable with a token, for a section without one.
    pub token: &'static str,
    /// The variable that names a file with a token, likewise.
    pub token_file: Option<&'static str>,
}

/// The settings to reach servers.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// At least one.
    pub servers: Vec<Server>,
    /// The token to show.
    pub token: Option<Secret>,
    /// The CA to trust, and the client's certificate.
    pub tls: Tls,
    /// How long to retry after the first failure.
    pub timeout: Duration,
    /// Whether they come from the file of a provider, as forks of whereabouts have it.
    pub is_of_provider: bool,
}

/// A user with a password, by which a server gives a token.
#[derive(Clone, Debug)]
pub struct ServerLogin {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// The keys of a login as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoginKeys {
    username: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    insecure: Option<bool>,
}

/// The servers of a section as they are written.
#[derive(Default, Deserialize)]
#[serde(default)]
struct UrlKeys {
    url: Option<String>,
    urls: Option<Vec<String>>,
    #[serde(rename = "providerFile")]
    provider_file: Option<String>,
}

const TIMEOUT: Duration = Duration::from_secs(10);

/// The keys as they are written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServerKeys {
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    timeout: Option<String>,
}

impl ServerSection {
    /// The keys that every such section has.
    pub const KEYS: &'static [Key] = &[
        Key::Value("token"),
        Key::Value("tokenFile"),
        Key::Value("caFile"),
        Key::Value("certFile"),
        Key::Value("keyFile"),
        Key::Value("timeout"),
    ];

    /// The keys of a section that names its servers itself, or a file with the server and a login.
    pub const URLS: &'static [Key] =
        &[Key::Value("url"), Key::Value("urls"), Key::Value("providerFile")];

    /// The keys of a section with [`ServerLogin`].
    pub const LOGIN: &'static [Key] = &[
        Key::Value("username"),
        Key::Value("password"),
        Key::Value("passwordFile"),
        Key::Value("insecure"),
    ];

    /// Reads the user and the password of a section; `None` without a user.
    ///
    /// # Errors
    /// The section also has a token; of a user and a password, one is missing, or a file cannot be
    /// read; the password would go over http, and `insecure` does not allow it.
    pub fn login(&self, keys: LoginKeys, settings: &ServerSettings) -> Result<Option<ServerLogin>> {
        let [user_path, path, file_path] =
            ["username", "password", "passwordFile"].map(|key| self.path(key));
        let user = not_blank(keys.username.as_deref(), &user_path);
        let password = not_blank(keys.password.as_deref(), &path);
        let password = match (password, ConfigFile::given(&file_path, keys.password_file)) {
            (Some(_), Some(_)) => {
                return Err(Error::config(path, "given together with passwordFile")
                    .advise("remove one of them"));
            }
            (Some(password), None) => Some(Secret::parse(password, &path)?),
            (None, Some(file)) => Some(Secret::read(&file)?),
            (None, None) => None,
        };
        let login = both_or_neither((&user_path, user), (&path, password))?;
        let Some((user, password)) = login else { return Ok(None) };
        if settings.token.is_some() {
            return Err(Error::config(user_path, "given together with a token")
                .advise("remove one of them"));
        }
        let plain = settings.servers.iter().find(|server| !server.is_secured());
        if let Some(server) = plain.filter(|_| keys.insecure != Some(true)) {
            let message = format!("the password would go to {server} unencrypted");
            return Err(Error::config(path, message)
                .advise("use https://, or a token, or set insecure to true"));
        }
        Ok(Some(ServerLogin { user: user.to_owned(), password }))
    }

    /// Reads the servers and the section, with the delegate's own keys in it. The token of the
    /// section comes before that of the environment, which a runtime scrubs at times.
    ///
    /// # Errors
    /// No server is given, or a URL is invalid; a key of the section is unknown or has a value of
    /// the wrong type; there are two tokens, or its file cannot be read; of a certificate and its
    /// key, one is missing; the timeout is malformed.
    pub fn read<Own: DeserializeOwned>(
        &self,
        servers: Option<Vec<String>>,
        section: Option<Map<String, Value>>,
        environment: &Environment,
    ) -> Result<(ServerSettings, Own)> {
        let servers = self.servers(servers)?;
        self.read_section(servers, section.unwrap_or_default(), environment)
    }

    /// [`ServerSection::read`] for a section that names its servers itself, by
    /// [`ServerSection::URLS`]. The delegate's own keys may come from the file `providerFile`, for
    /// the provider with the section's name; then the environment's token does not count.
    ///
    /// # Errors
    /// As of [`ServerSection::read`]; both `url` and `urls` are given, or one of them and
    /// `providerFile`; the file is missing, is not trusted or is malformed.
    pub fn read_with_urls<Own: DeserializeOwned>(
        &self,
        section: Option<Map<String, Value>>,
        environment: &Environment,
    ) -> Result<(ServerSettings, Own)> {
        let mut section = section.unwrap_or_default();
        self.refuse_unknown(&section)?;
        let path = format!("ipam.{}", self.name);
        let mut urls: UrlKeys = parse_value(&Value::Object(section.clone()), &path)?;
        let file_path = self.path("providerFile");
        let file = not_blank(urls.provider_file.as_deref(), &file_path).map(str::to_owned);
        let is_of_provider = file.is_some();
        let no_token = Environment::default();
        let environment = if is_of_provider { &no_token } else { environment };
        if let Some(file) = file {
            let has_app = names(self.keys).contains(&"appId");
            provider_file::merge(&mut section, &file, &file_path, self.name, has_app)?;
            urls = parse_value(&Value::Object(section.clone()), &path)?;
        }
        let url = self.path("url");
        let servers = match (not_blank(urls.url.as_deref(), &url), urls.urls) {
            (Some(_), Some(_)) => {
                return Err(
                    Error::config(url, "given together with urls").advise("remove one of them")
                );
            }
            (Some(text), None) => vec![Server::parse_one(text, &url, None)?],
            (None, Some(texts)) => Server::parse_all(&texts, &self.path("urls"), None)?,
            (None, None) => {
                let Self { service, example, .. } = self;
                return Err(Error::config(url, "missing").advise(format!(
                    "name the {service} server, for example \"url\": {example:?}"
                )));
            }
        };
        let (settings, own) = self.read_section(servers, section, environment)?;
        Ok((ServerSettings { is_of_provider, ..settings }, own))
    }

    fn read_section<Own: DeserializeOwned>(
        &self,
        servers: Vec<Server>,
        section: Map<String, Value>,
        environment: &Environment,
    ) -> Result<(ServerSettings, Own)> {
        self.refuse_unknown(&section)?;
        let section = Value::Object(section);
        let path = format!("ipam.{}", self.name);
        let own = parse_value(&section, &path)?;
        let keys: ServerKeys = parse_value(&section, &path)?;
        let token = self.token(keys.token.as_deref(), keys.token_file, environment)?;
        let (certificate, key) = (self.path("certFile"), self.path("keyFile"));
        let identity = both_or_neither(
            (&certificate, ConfigFile::given(&certificate, keys.cert_file)),
            (&key, ConfigFile::given(&key, keys.key_file)),
        )?;
        let ca = ConfigFile::given(self.path("caFile"), keys.ca_file);
        let timeout = parse_timeout(keys.timeout.as_deref(), &self.path("timeout"))?;
        let tls = Tls { ca, identity };
        Ok((ServerSettings { servers, token, tls, timeout, is_of_provider: false }, own))
    }

    fn path(&self, key: &str) -> String {
        format!("ipam.{}.{key}", self.name)
    }

    fn servers(&self, urls: Option<Vec<String>>) -> Result<Vec<Server>> {
        let Self { service, servers, example, .. } = self;
        let path = format!("ipam.{servers}");
        let urls = urls.ok_or_else(|| {
            Error::config(&path, "missing").advise(format!(
                "name the {service} servers, for example {servers:?}: [{example:?}]"
            ))
        })?;
        Server::parse_all(&urls, &path, None)
    }

    fn refuse_unknown(&self, section: &Map<String, Value>) -> Result<()> {
        let known = names(self.keys);
        match section.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let path = self.path(&key.escape_debug().to_string());
                let advice = format!("expected one of {}", known.join(", "));
                Err(Error::config(path, "unknown key").advise(advice))
            }
        }
    }

    fn token(
        &self,
        token: Option<&str>,
        file: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<Option<Secret>> {
        let path = self.path("token");
        match (not_blank(token, &path), ConfigFile::given(self.path("tokenFile"), file)) {
            (Some(_), Some(_)) => {
                Err(Error::config(path, "given together with tokenFile")
                    .advise("remove one of them"))
            }
            (Some(token), None) => Secret::parse(token, &path).map(Some),
            (None, Some(file)) => Secret::read(&file).map(Some),
            (None, None) => self.token_of(environment),
        }
    }

    fn token_of(&self, environment: &Environment) -> Result<Option<Secret>> {
        if let Some(token) = not_blank(environment.text(self.token), self.token) {
            return Secret::parse(token, self.token).map(Some);
        }
        let Some(name) = self.token_file else { return Ok(None) };
        let file = ConfigFile::given(name, not_blank(environment.text(name), name));
        file.as_ref().map(Secret::read).transpose()
    }
}

/// Takes two settings of which neither makes sense alone, each with its path.
///
/// # Errors
/// One of them is missing.
pub fn both_or_neither<A, B>(
    (one_path, one): (&str, Option<A>),
    (other_path, other): (&str, Option<B>),
) -> Result<Option<(A, B)>> {
    let (missing, given) = match (one, other) {
        (Some(one), Some(other)) => return Ok(Some((one, other))),
        (None, None) => return Ok(None),
        (Some(_), None) => (other_path, one_path),
        (None, Some(_)) => (one_path, other_path),
    };
    Err(Error::config(missing, format_args!("missing, but {given} is given"))
        .advise("give both or neither"))
}

/// Reads how long to retry after the first failure; 10 seconds by default.
///
/// # Errors
/// The text is malformed; `path` names it in the error.
pub fn parse_timeout(text: Option<&str>, path: &str) -> Result<Duration> {
    let Some(text) = text else { return Ok(TIMEOUT) };
    parse_duration(text).ok_or_else(|| {
        Error::config(path, format_args!("invalid duration {text:?}"))
            .advise(r#"expected for example "10s" or "1m30s""#)
    })
}

/// A blank text counts as absent.
fn not_blank<'a>(text: Option<&'a str>, path: &str) -> Option<&'a str> {
    let text = text?;
    if text.trim().is_empty() {
        warn!("{path}: a blank value is ignored: set a value or remove it");
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests;
