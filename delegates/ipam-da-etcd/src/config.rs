use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::host::ResultCache;
use ipam_kit::keys::{Key, names, refuse_other_letters};
use ipam_kit::{Error, Result};
use ipam_servers::{ConfigFile, both_or_neither, parse_timeout};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::endpoint::{self, Endpoint};
use crate::layout::{self, LAYOUTS, Layout, NATIVE};

/// The keys of [`EtcdConfig`].
pub(crate) const KEYS: &[Key] = &[Key::Section("etcd", SECTION), Key::All(OF_THE_REPLACED)];

const OF_THE_REPLACED: &[Key] = &[
    Key::Foreign("etcdConfig", STORE),
    Key::Value("endpoints"),
    Key::Value("certfile"),
    Key::Value("keyfile"),
    Key::Value("trustedcafile"),
];

const SECTION: &[Key] = &[
    Key::Value("endpoints"),
    Key::Value("certFile"),
    Key::Value("keyFile"),
    Key::Value("trustedCaFile"),
    Key::Value("username"),
    Key::Value("password"),
    Key::Value("passwordFile"),
    Key::Value("timeout"),
    Key::Value("layout"),
    Key::Value("prefix"),
    Key::Value("resultCache"),
];

const STORE: &[Key] = &[
    Key::Value("etcdURL"),
    Key::Value("etcdCertFile"),
    Key::Value("etcdKeyFile"),
    Key::Value("etcdTrustedCAFileFile"),
];

/// The keys of `ipam` for this delegate: the section `etcd`, or those of a system that it replaces.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EtcdConfig {
    etcd: Option<EtcdSection>,
    /// cni-ipam-etcd's.
    #[serde(rename = "etcdConfig")]
    etcd_config: Option<CniIpamEtcd>,
    /// host-etcd's, with the three files.
    endpoints: Option<Vec<String>>,
    certfile: Option<String>,
    keyfile: Option<String>,
    trustedcafile: Option<String>,
    /// Other delegates' keys, and those of ours that are spelled otherwise.
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// `ipam.etcd`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct EtcdSection {
    endpoints: Vec<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    trusted_ca_file: Option<String>,
    username: Option<String>,
    password: Option<String>,
    password_file: Option<String>,
    timeout: Option<String>,
    layout: Option<String>,
    prefix: Option<String>,
    result_cache: Option<PathBuf>,
}

/// `ipam.etcdConfig`, with cni-ipam-etcd's own names.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CniIpamEtcd {
    #[serde(rename = "etcdURL")]
    url: Option<String>,
    #[serde(rename = "etcdCertFile")]
    cert_file: Option<String>,
    #[serde(rename = "etcdKeyFile")]
    key_file: Option<String>,
    #[serde(rename = "etcdTrustedCAFileFile")]
    trusted_ca_file: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A store to talk to.
#[derive(Debug)]
pub(crate) struct EtcdStore {
    /// At least one.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The client's certificate with its key.
    pub(crate) identity: Option<(ConfigFile, ConfigFile)>,
    /// Certificates of the CAs that may have signed the server's.
    pub(crate) trusted: Option<ConfigFile>,
    /// A user name, and the password.
    pub(crate) user: Option<(String, EtcdPassword)>,
    /// How long to go on after the first failure.
    pub(crate) timeout: Duration,
    /// The layout of the keys.
    pub(crate) layout: &'static Layout,
    /// The beginning of every key, without a slash at its end.
    pub(crate) prefix: String,
    /// Where the runtime keeps the results of its calls.
    pub(crate) result_cache: PathBuf,
}

/// Where a password is.
#[derive(Clone)]
pub(crate) enum EtcdPassword {
    /// In a file with nothing else.
    File(ConfigFile),
    /// In the configuration itself.
    Text(String),
}

impl fmt::Debug for EtcdPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EtcdPassword")
    }
}

/// The names of the settings in errors, in our section or in a replaced plugin's.
struct SettingNames {
    endpoints: &'static str,
    /// Whether that is a list.
    listed: bool,
    cert: &'static str,
    key: &'static str,
    ca: &'static str,
}

const OURS: SettingNames = SettingNames {
    endpoints: "ipam.etcd.endpoints",
    listed: true,
    cert: "ipam.etcd.certFile",
    key: "ipam.etcd.keyFile",
    ca: "ipam.etcd.trustedCaFile",
};

const CNI_IPAM_ETCD: SettingNames = SettingNames {
    endpoints: "ipam.etcdConfig.etcdURL",
    listed: false,
    cert: "ipam.etcdConfig.etcdCertFile",
    key: "ipam.etcdConfig.etcdKeyFile",
    ca: "ipam.etcdConfig.etcdTrustedCAFileFile",
};

const HOST_ETCD: SettingNames = SettingNames {
    endpoints: "ipam.endpoints",
    listed: true,
    cert: "ipam.certfile",
    key: "ipam.keyfile",
    ca: "ipam.trustedcafile",
};

const PASSWORD_FILE: &str = "ipam.etcd.passwordFile";

impl EtcdConfig {
    /// Returns the store that the configuration names.
    ///
    /// # Errors
    /// It names none, or one in two sections; an endpoint, the timeout or the prefix is malformed;
    /// of a certificate and its key, or a user and its password, one is missing.
    pub(crate) fn store(&self) -> Result<EtcdStore> {
        let (section, names) = self.section()?;
        let layout = layout(section.layout.as_deref())?;
        if !layout.is_native() {
            self.refuse_other_letters()?;
        }
        let cert = ConfigFile::given(names.cert, section.cert_file);
        let key = ConfigFile::given(names.key, section.key_file);
        let trusted = ConfigFile::given(names.ca, section.trusted_ca_file);
        let secured = cert.is_some() || trusted.is_some();
        let username = section.username.filter(|name| !name.is_empty());
        let text = section.password.filter(|text| !text.is_empty()).map(EtcdPassword::Text);
        let file = ConfigFile::given(PASSWORD_FILE, section.password_file).map(EtcdPassword::File);
        if text.is_some() && file.is_some() {
            return Err(Error::config(PASSWORD_FILE, "conflicts with ipam.etcd.password")
                .advise("keep the file"));
        }
        // An error about the pair names the spelling that is given.
        let password_key = if text.is_some() { "ipam.etcd.password" } else { PASSWORD_FILE };
        let password = file.or(text);
        Ok(EtcdStore {
            endpoints: endpoint::parse_all(
                &section.endpoints,
                secured,
                names.endpoints,
                names.listed,
            )?,
            identity: both_or_neither((names.cert, cert), (names.key, key))?,
            trusted,
            user: both_or_neither(("ipam.etcd.username", username), (password_key, password))?,
            timeout: parse_timeout(section.timeout.as_deref(), "ipam.etcd.timeout")?,
            prefix: prefix(section.prefix.as_deref(), layout)?,
            layout,
            result_cache: ResultCache::folder_named(section.result_cache),
        })
    }

    /// Rejects their keys in other letters: the replaced plugins are written in Go, which takes any.
    fn refuse_other_letters(&self) -> Result<()> {
        refuse_other_letters(&self.others, &names(OF_THE_REPLACED), "ipam")?;
        let theirs = self.etcd_config.as_ref().map(|theirs| &theirs.others);
        match theirs {
            None => Ok(()),
            Some(others) => refuse_other_letters(others, &names(STORE), "ipam.etcdConfig"),
        }
    }

    /// Returns the settings in our own form, and their names. A setting that a replaced plugin does
    /// not have comes from `ipam.etcd`.
    fn section(&self) -> Result<(EtcdSection, &'static SettingNames)> {
        let ours = self.etcd.clone().unwrap_or_default();
        let theirs = self.etcd_config.as_ref().map(|theirs| {
            let url = theirs.url.clone().filter(|url| !url.is_empty());
            // cni-ipam-etcd uses its files only then, although its page asks for them always.
            let secured = url.as_ref().is_some_and(|url| url.starts_with("https"));
            let section = EtcdSection {
                endpoints: url.into_iter().collect(),
                cert_file: theirs.cert_file.clone().filter(|_| secured),
                key_file: theirs.key_file.clone().filter(|_| secured),
                trusted_ca_file: theirs.trusted_ca_file.clone().filter(|_| secured),
                ..ours.clone()
            };
            (section, &CNI_IPAM_ETCD)
        });
        let flat = self.endpoints.as_ref().map(|endpoints| {
            let section = EtcdSection {
                endpoints: endpoints.clone(),
                cert_file: self.certfile.clone(),
                key_file: self.keyfile.clone(),
                trusted_ca_file: self.trustedcafile.clone(),
                ..ours.clone()
            };
            (section, &HOST_ETCD)
        });
        let alone = theirs.is_none() && flat.is_none();
        let ours = self
            .etcd
            .as_ref()
            .filter(|ours| alone || ours.names_a_store())
            .map(|ours| (ours.clone(), ours.setting_names()));
        let mut given: Vec<_> = [ours, theirs, flat].into_iter().flatten().collect();
        match (given.pop(), given.pop()) {
            (Some(only), None) => Ok(only),
            (None, _) => {
                Err(Error::config("ipam.etcd", "missing: expected the endpoints of an etcd")
                    .advise(r#"set it, as in "etcd": {"endpoints": ["10.0.0.1:2379"]}"#))
            }
            (Some((_, one)), Some((_, other))) => Err(Error::config(
                one.endpoints,
                format_args!("conflicts with {}", other.endpoints),
            )
            .advise("keep the one that names the store, and remove the other")),
        }
    }
}

impl EtcdSection {
    /// Returns the settings by which the store is named, or would be if it were.
    fn setting_names(&self) -> &'static SettingNames {
        let layout = self.layout.as_deref().filter(|_| !self.names_a_store());
        match layout.and_then(Layout::named) {
            Some(layout) if layout.name == layout::CNI_IPAM_ETCD.name => &CNI_IPAM_ETCD,
            Some(layout) if layout.name == layout::HOST_ETCD.name => &HOST_ETCD,
            _ => &OURS,
        }
    }

    fn names_a_store(&self) -> bool {
        let files = [&self.cert_file, &self.key_file, &self.trusted_ca_file];
        let has_file = files.into_iter().flatten().any(|file| !file.is_empty());
        has_file || !self.endpoints.is_empty()
    }
}

fn layout(name: Option<&str>) -> Result<&'static Layout> {
    let Some(name) = name else { return Ok(&NATIVE) };
    Layout::named(name).ok_or_else(|| {
        let [first, second, third, last] = LAYOUTS.map(|layout| layout.name);
        Error::config(
            "ipam.etcd.layout",
            format_args!("unknown layout {name:?}: expected {first}, {second}, {third} or {last}"),
        )
    })
}

fn prefix(text: Option<&str>, layout: &Layout) -> Result<String> {
    let text = text.map_or(layout.prefix, |text| text.trim_end_matches('/'));
    if text.is_empty() {
        return Err(Error::config(
            "ipam.etcd.prefix",
            "empty: expected what every key begins with",
        )
        .advise(format!("remove it, and the keys begin with {}", layout.prefix)));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
