use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::host::{ResultCache, parse_duration};
use ipam_kit::keys::{Key, names, refuse_other_letters};
use ipam_kit::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::endpoint::{self, Endpoint};
use crate::layout::{self, LAYOUTS, Layout, NATIVE};

/// The keys of [`Config`].
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

/// What this delegate reads of `ipam`: the section `etcd`, or the keys of a system that it replaces.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    etcd: Option<Section>,
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
struct Section {
    endpoints: Vec<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    trusted_ca_file: Option<String>,
    username: Option<String>,
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
pub(crate) struct Store {
    /// At least one.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The client's certificate with its key.
    pub(crate) identity: Option<(Named, Named)>,
    /// Certificates of the authorities that may have signed the server's.
    pub(crate) trusted: Option<Named>,
    /// A user name, and the file with the password.
    pub(crate) user: Option<(String, Named)>,
    /// How long to go on after the first trouble.
    pub(crate) timeout: Duration,
    /// Whose keys hold the leases.
    pub(crate) layout: &'static Layout,
    /// What every key begins with; no slash at its end.
    pub(crate) prefix: String,
    /// Where the runtime keeps the results of its calls.
    pub(crate) result_cache: PathBuf,
}

/// A file that the configuration names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// Where it names it: `ipam.etcd.certFile`.
    pub(crate) path: String,
    pub(crate) file: PathBuf,
}

/// The names of the settings in one spelling, for errors.
struct Spelling {
    endpoints: &'static str,
    /// Whether that is a list.
    listed: bool,
    cert: &'static str,
    key: &'static str,
    ca: &'static str,
}

const OURS: Spelling = Spelling {
    endpoints: "ipam.etcd.endpoints",
    listed: true,
    cert: "ipam.etcd.certFile",
    key: "ipam.etcd.keyFile",
    ca: "ipam.etcd.trustedCaFile",
};

const CNI_IPAM_ETCD: Spelling = Spelling {
    endpoints: "ipam.etcdConfig.etcdURL",
    listed: false,
    cert: "ipam.etcdConfig.etcdCertFile",
    key: "ipam.etcdConfig.etcdKeyFile",
    ca: "ipam.etcdConfig.etcdTrustedCAFileFile",
};

const HOST_ETCD: Spelling = Spelling {
    endpoints: "ipam.endpoints",
    listed: true,
    cert: "ipam.certfile",
    key: "ipam.keyfile",
    ca: "ipam.trustedcafile",
};

impl Config {
    const TIMEOUT: Duration = Duration::from_secs(10);

    /// The store that the configuration names.
    ///
    /// # Errors
    /// It names none, or one in two spellings; an endpoint, the timeout or the prefix is malformed; of a
    /// certificate and its key, or a user and its password, one is missing.
    pub(crate) fn store(&self) -> Result<Store> {
        let (section, spelling) = self.section()?;
        let layout = layout(section.layout.as_deref())?;
        if layout.old.is_some() {
            self.refuse_other_letters()?;
        }
        let named = |path: &str, file: &Option<String>| {
            let file = file.as_ref().filter(|file| !file.is_empty())?;
            Some(Named { path: path.to_owned(), file: PathBuf::from(file) })
        };
        let cert = named(spelling.cert, &section.cert_file);
        let key = named(spelling.key, &section.key_file);
        let trusted = named(spelling.ca, &section.trusted_ca_file);
        let secured = cert.is_some() || trusted.is_some();
        let username = section.username.clone().filter(|name| !name.is_empty());
        Ok(Store {
            endpoints: endpoint::parse_all(
                &section.endpoints,
                secured,
                spelling.endpoints,
                spelling.listed,
            )?,
            identity: both(cert, key, spelling.cert, spelling.key)?,
            trusted,
            user: both(
                username,
                named("ipam.etcd.passwordFile", &section.password_file),
                "ipam.etcd.username",
                "ipam.etcd.passwordFile",
            )?,
            timeout: timeout(section.timeout.as_deref())?,
            prefix: prefix(section.prefix.as_deref(), layout)?,
            layout,
            result_cache: section.result_cache.unwrap_or_else(|| ResultCache::DEFAULT.into()),
        })
    }

    /// The replaced plugins are written in Go, which takes their keys in any letters.
    fn refuse_other_letters(&self) -> Result<()> {
        refuse_other_letters(&self.others, &names(OF_THE_REPLACED), "ipam")?;
        let theirs = self.etcd_config.as_ref().map(|theirs| &theirs.others);
        let place = "ipam.etcdConfig";
        theirs.map_or(Ok(()), |others| refuse_other_letters(others, &names(STORE), place))
    }

    /// The settings in our own form, and how they were spelled. What the spellings of others have no
    /// word for comes from `ipam.etcd` all the same.
    fn section(&self) -> Result<(Section, &'static Spelling)> {
        let ours = self.etcd.clone().unwrap_or_default();
        let rest = || Section { endpoints: Vec::new(), ..ours.clone() };
        let theirs = self.etcd_config.as_ref().map(|theirs| {
            let url = theirs.url.clone().filter(|url| !url.is_empty());
            // It looks at its files only then, though its document asks for them always.
            let secured = url.as_ref().is_some_and(|url| url.starts_with("https"));
            let file = |file: &Option<String>| file.clone().filter(|_| secured);
            let section = Section {
                endpoints: url.into_iter().collect(),
                cert_file: file(&theirs.cert_file),
                key_file: file(&theirs.key_file),
                trusted_ca_file: file(&theirs.trusted_ca_file),
                ..rest()
            };
            (section, &CNI_IPAM_ETCD)
        });
        let flat = self.endpoints.as_ref().map(|endpoints| {
            let section = Section {
                endpoints: endpoints.clone(),
                cert_file: self.certfile.clone(),
                key_file: self.keyfile.clone(),
                trusted_ca_file: self.trustedcafile.clone(),
                ..rest()
            };
            (section, &HOST_ETCD)
        });
        let alone = theirs.is_none() && flat.is_none();
        let ours = self
            .etcd
            .as_ref()
            .filter(|ours| alone || ours.names_a_store())
            .map(|ours| (ours.clone(), ours.spelling()));
        let mut given: Vec<_> = [ours, theirs, flat].into_iter().flatten().collect();
        match (given.pop(), given.pop()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(Error::config("ipam.etcd", "missing: no store is named")
                .advise(r#"as in "etcd": {"endpoints": ["10.0.0.1:2379"]}"#)),
            (Some((_, one)), Some((_, other))) => Err(Error::config(
                one.endpoints,
                format_args!("given together with {}", other.endpoints),
            )
            .advise("name the store once")),
        }
    }
}

impl Section {
    /// How the store would be named that this section does not name.
    fn spelling(&self) -> &'static Spelling {
        let layout = self.layout.as_deref().filter(|_| !self.names_a_store());
        match layout.and_then(Layout::named) {
            Some(layout) if layout.name == layout::CNI_IPAM_ETCD.name => &CNI_IPAM_ETCD,
            Some(layout) if layout.name == layout::HOST_ETCD.name => &HOST_ETCD,
            _ => &OURS,
        }
    }

    fn names_a_store(&self) -> bool {
        let files = [&self.cert_file, &self.key_file, &self.trusted_ca_file];
        !self.endpoints.is_empty() || files.into_iter().any(Option::is_some)
    }
}

/// Two settings of which neither makes sense alone.
fn both<A, B>(
    one: Option<A>,
    other: Option<B>,
    one_path: &str,
    other_path: &str,
) -> Result<Option<(A, B)>> {
    let missing = |path: &str, given: &str| {
        Err(Error::config(path, format_args!("missing, but {given} is given"))
            .advise("give both or neither"))
    };
    match (one, other) {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        (Some(_), None) => missing(other_path, one_path),
        (None, Some(_)) => missing(one_path, other_path),
    }
}

fn timeout(text: Option<&str>) -> Result<Duration> {
    let Some(text) = text else { return Ok(Config::TIMEOUT) };
    parse_duration(text).ok_or_else(|| {
        Error::config("ipam.etcd.timeout", format_args!("{text:?} is no duration"))
            .advise(r#"as in "10s" or "1m30s""#)
    })
}

fn layout(name: Option<&str>) -> Result<&'static Layout> {
    let Some(name) = name else { return Ok(&NATIVE) };
    Layout::named(name).ok_or_else(|| {
        let names = LAYOUTS.map(|layout| layout.name).join(", ");
        Error::config(
            "ipam.etcd.layout",
            format_args!("{name:?} is no layout: expected one of {names}"),
        )
    })
}

fn prefix(text: Option<&str>, layout: &Layout) -> Result<String> {
    let text = text.map_or(layout.prefix, |text| text.trim_end_matches('/'));
    if text.is_empty() {
        return Err(Error::config(
            "ipam.etcd.prefix",
            "empty: every key of the store would be ours",
        )
        .advise(format!("leave it out for {}", layout.prefix)));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    fn store(ipam: Value) -> Result<Store> {
        serde_json::from_value::<Config>(ipam).unwrap().store()
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<Section>(&names(SECTION));
        let all = |keys: &[Key], value: &dyn Fn(&str) -> Value| -> Value {
            names(keys)
                .into_iter()
                .map(|key| (key.to_owned(), value(key)))
                .collect::<Map<_, _>>()
                .into()
        };
        let theirs = serde_json::from_value(all(STORE, &|_| "x".into())).unwrap();
        let CniIpamEtcd {
            url: Some(_),
            cert_file: Some(_),
            key_file: Some(_),
            trusted_ca_file: Some(_),
            others,
        } = theirs
        else {
            panic!("{theirs:?}")
        };
        assert!(others.is_empty(), "{others:?}");
        let config = serde_json::from_value(all(KEYS, &|key| match key {
            "etcd" | "etcdConfig" => json!({}),
            "endpoints" => json!(["x"]),
            _ => "x".into(),
        }));
        let config = config.unwrap();
        let Config {
            etcd: Some(_),
            etcd_config: Some(_),
            endpoints: Some(_),
            certfile: Some(_),
            keyfile: Some(_),
            trustedcafile: Some(_),
            others,
        } = config
        else {
            panic!("{config:?}")
        };
        assert!(others.is_empty(), "{others:?}");
    }

    #[test]
    fn every_spelling_names_the_same_store() {
        for ipam in [
            json!({"etcd": {"endpoints": ["a:1"], "certFile": "/c", "keyFile": "/k", "trustedCaFile": "/ca"}}),
            json!({"etcdConfig": {"etcdURL": "https://a:1", "etcdCertFile": "/c", "etcdKeyFile": "/k",
                                  "etcdTrustedCAFileFile": "/ca"}}),
            json!({"endpoints": ["a:1"], "certfile": "/c", "keyfile": "/k", "trustedcafile": "/ca"}),
        ] {
            let store = store(ipam).unwrap();
            let urls: Vec<_> = store.endpoints.iter().map(ToString::to_string).collect();
            assert_eq!(urls, ["https://a:1"]);
            let (cert, key) = store.identity.unwrap();
            let files = [cert.file, key.file, store.trusted.unwrap().file];
            assert_eq!(files.map(|file| file.display().to_string()), ["/c", "/k", "/ca"]);
            assert_eq!((store.timeout, store.prefix.as_str()), (Config::TIMEOUT, NATIVE.prefix));
        }
    }

    #[test]
    fn a_layout_goes_with_every_spelling() {
        for ipam in [
            json!({"etcd": {"endpoints": ["a:1"], "layout": "host-etcd"}}),
            json!({"endpoints": ["a:1"], "etcd": {"layout": "host-etcd"}}),
            json!({"etcdConfig": {"etcdURL": "a:1"}, "etcd": {"layout": "host-etcd", "timeout": "3s"}}),
        ] {
            let store = store(ipam).unwrap();
            assert_eq!((store.layout.name, store.prefix.as_str()), ("host-etcd", "/ipam"));
        }
        let prefixed =
            json!({"etcd": {"endpoints": ["a"], "layout": "cni-ipam-etcd", "prefix": "/x/"}});
        assert_eq!(store(prefixed).unwrap().prefix, "/x");
    }

    #[test]
    fn files_count_over_https_alone_where_they_did() {
        let files = json!({"etcdCertFile": "/c", "etcdTrustedCAFileFile": "/ca"});
        for (url, endpoint) in
            [("10.0.0.1:2379", "http://10.0.0.1:2379"), ("http://a:1", "http://a:1")]
        {
            let mut theirs = files.clone();
            theirs["etcdURL"] = url.into();
            let store = store(json!({"etcdConfig": theirs})).unwrap();
            assert_eq!(store.endpoints[0].to_string(), endpoint);
            assert!(store.identity.is_none() && store.trusted.is_none());
        }
    }

    #[test]
    fn keys_of_the_replaced_plugins_in_other_letters_are_not_passed_over() {
        for (ipam, message) in [
            (
                json!({"endpoints": ["a"], "certFile": "/c", "etcd": {"layout": "host-etcd"}}),
                "ipam.certFile: write certfile",
            ),
            (
                json!({"etcdConfig": {"etcdURL": "a", "etcdCAFile": "/c", "EtcdKeyFile": "/k"},
                       "etcd": {"layout": "cni-ipam-etcd"}}),
                "ipam.etcdConfig.EtcdKeyFile: write etcdKeyFile",
            ),
        ] {
            let error = store(ipam).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        }
        assert!(store(json!({"certFile": "/c", "etcd": {"endpoints": ["a"]}})).is_ok());
        // They do not read this one.
        let other = json!({"endpoints": ["a"], "etcd": {"layout": "host-etcd"}, "Etcd": {}});
        assert!(store(other).is_ok());
    }

    #[test]
    fn empty_files_are_none() {
        let store = store(json!({"etcdConfig": {"etcdURL": "http://a:1", "etcdCertFile": "",
            "etcdKeyFile": "", "etcdTrustedCAFileFile": ""}}))
        .unwrap();
        assert!(store.identity.is_none() && store.trusted.is_none());
        assert_eq!(store.endpoints[0].to_string(), "http://a:1");
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        for (ipam, message) in [
            (json!({}), "ipam.etcd: missing: no store is named"),
            (json!({"etcd": {}}), "ipam.etcd.endpoints: no endpoint"),
            (json!({"etcdConfig": {"etcdURL": ""}}), "ipam.etcdConfig.etcdURL: no endpoint"),
            (json!({"etcdConfig": {"etcdURL": "a b"}}), "ipam.etcdConfig.etcdURL: \"a b\" is no"),
            (json!({"endpoints": []}), "ipam.endpoints: no endpoint"),
            (
                json!({"etcd": {"endpoints": ["a"]}, "endpoints": ["b"]}),
                "ipam.endpoints: given together with ipam.etcd.endpoints",
            ),
            (
                json!({"etcd": {"endpoints": ["a"], "certFile": "/c"}}),
                "ipam.etcd.keyFile: missing, but ipam.etcd.certFile is given",
            ),
            (
                json!({"endpoints": ["a"], "keyfile": "/k"}),
                "ipam.certfile: missing, but ipam.keyfile is given",
            ),
            (
                json!({"etcd": {"endpoints": ["a"], "username": "u"}}),
                "ipam.etcd.passwordFile: missing, but ipam.etcd.username is given",
            ),
            (
                json!({"etcd": {"endpoints": ["a"], "timeout": "soon"}}),
                "ipam.etcd.timeout: \"soon\" is no duration",
            ),
            (json!({"etcd": {"endpoints": ["a"], "prefix": "//"}}), "ipam.etcd.prefix: empty"),
            (
                json!({"etcd": {"endpoints": ["a"], "layout": "etcd"}}),
                "ipam.etcd.layout: \"etcd\" is no layout: expected one of native, cni-ipam-etcd, host-etcd",
            ),
            (json!({"etcd": {"layout": "native"}}), "ipam.etcd.endpoints: no endpoint"),
            (json!({"etcd": {"layout": "host-etcd"}}), "ipam.endpoints: no endpoint"),
            (json!({"etcd": {"layout": "cni-ipam-etcd"}}), "ipam.etcdConfig.etcdURL: no endpoint"),
        ] {
            let error = store(ipam).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(error.code().number(), 7);
        }
        let error = serde_json::from_value::<Config>(json!({"etcd": {"trustedCAfile": "/ca"}}));
        assert!(error.unwrap_err().to_string().contains("trustedCAfile"));
    }
}
