//! The keys of `ipam` that this delegate reads: the section `phpipam`.

use ipam_kit::cni::{Environment, parse_value};
use ipam_kit::keys::Key;
use ipam_kit::{Error, Result};
use ipam_servers::{LoginKeys, ServerLogin, ServerSection, ServerSettings};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The keys of [`PhpIpamConfig`].
pub(crate) const KEYS: &[Key] = &[Key::Section(SECTION.name, SECTION.keys)];

const SECTION: ServerSection = ServerSection {
    service: "phpIPAM",
    servers: "phpipam",
    example: "https://ipam.example.org",
    name: "phpipam",
    keys: &[
        Key::All(ServerSection::URLS),
        Key::All(ServerSection::KEYS),
        Key::All(ServerSection::LOGIN),
        Key::All(OWN),
    ],
    token: "PHPIPAM_TOKEN",
    token_file: None,
};

/// The keys of [`AppKeys`].
const OWN: &[Key] = &[Key::Value("appId"), Key::Value("section"), Key::Value("keyField")];

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PhpIpamConfig {
    phpipam: Option<Map<String, Value>>,
}

/// The keys of `ipam.phpipam` that are this delegate's alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AppKeys {
    app_id: Option<String>,
    section: Option<String>,
    key_field: Option<String>,
}

/// A server, and what is seen of it.
#[derive(Debug)]
pub(crate) struct PhpIpamSite {
    pub(crate) settings: ServerSettings,
    pub(crate) login: Option<ServerLogin>,
    /// The id of the App.
    pub(crate) app: String,
    /// The id or the name of the section whose subnets alone are seen.
    pub(crate) section: Option<String>,
    /// The custom field of addresses that has a unique index with the subnet.
    pub(crate) key_field: Option<String>,
}

impl PhpIpamConfig {
    /// Reads the server that the configuration names.
    ///
    /// # Errors
    /// A setting is malformed; the server, the App, or every way to log in, is missing.
    pub(crate) fn site(self, environment: &Environment) -> Result<PhpIpamSite> {
        let (settings, keys) =
            SECTION.read_with_urls::<Map<String, Value>>(self.phpipam, environment)?;
        let keys = Value::Object(keys);
        let path = "ipam.phpipam";
        let own: AppKeys = parse_value(&keys, path)?;
        let login: LoginKeys = parse_value(&keys, path)?;
        let login = SECTION.login(login, &settings)?;
        let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        let Some(app) = given(own.app_id) else {
            return Err(Error::config(format_args!("{path}.appId"), "missing")
                .advise("set it to the App id of an App in phpIPAM (Administration, API)"));
        };
        if settings.token.is_none() && login.is_none() {
            return Err(Error::config(format_args!("{path}.token"), "missing").advise(
                "set token or tokenFile of ipam.phpipam to the App's code, or username and password, or the variable PHPIPAM_TOKEN",
            ));
        }
        let key_field = given(own.key_field);
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if let Some(name) = key_field.as_deref().filter(|name| !is_name(name) || is_taken(name)) {
            let message = format!("expected the name of a custom field, found {name:?}");
            return Err(Error::config(format_args!("{path}.keyField"), message)
                .advise("name a custom field of addresses, such as cni_key"));
        }
        Ok(PhpIpamSite { settings, login, app, section: given(own.section), key_field })
    }
}

/// Whether phpIPAM or this delegate uses a field for something else.
fn is_taken(name: &str) -> bool {
    const FIELDS: [&str; 13] = [
        "id",
        "subnetId",
        "ip",
        "ip_addr",
        "is_gateway",
        "description",
        "hostname",
        "mac",
        "owner",
        "tag",
        "state",
        "port",
        "note",
    ];
    FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    use super::*;

    fn site(section: Value) -> Result<PhpIpamSite> {
        let config: PhpIpamConfig = serde_json::from_value(json!({"phpipam": section})).unwrap();
        config.site(&Environment::default())
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<PhpIpamConfig>(&names(KEYS));
        assert_fields::<AppKeys>(&names(OWN));
    }

    #[test]
    fn an_app_with_its_code_or_a_login_is_read() {
        let read =
            site(json!({"url": "http://a/ipam", "appId": "cni", "token": "t", "section": "1"}))
                .unwrap();
        assert_eq!((&*read.app, read.section.as_deref(), read.key_field), ("cni", Some("1"), None));
        let login = json!({"url": "https://a", "appId": "cni", "username": "u", "password": "p",
            "keyField": "cni_key", "section": ""});
        let read = site(login).unwrap();
        assert!(read.login.is_some() && read.section.is_none());
        assert_eq!(read.key_field.as_deref(), Some("cni_key"));
    }

    #[test]
    fn the_file_of_a_provider_names_the_app() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("whereabouts-ipam.conf");
        let keys = json!({"ipamtype": "phpipam", "ipamuser": "u", "ipampwd": "p",
            "ipamurl": "10.0.0.9", "appid": "whereabouts"});
        std::fs::write(&file, keys.to_string()).unwrap();
        let read = site(json!({"providerFile": file})).unwrap();
        assert_eq!((&*read.app, read.login.unwrap().user), ("whereabouts", "u".to_owned()));
        assert_eq!(read.settings.servers[0].to_string(), "http://10.0.0.9");
        let error = site(json!({"providerFile": file, "appId": "other"})).unwrap_err();
        assert!(error.to_string().contains("has appid, and appId is given"), "{error}");
    }

    #[test]
    fn an_invalid_value_is_refused_by_its_path() {
        let app = |more: Value| {
            let mut section = json!({"url": "https://a", "appId": "cni"});
            section.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            section
        };
        for (section, start) in [
            (json!({}), "ipam.phpipam.url: missing"),
            (json!({"url": "https://a", "token": "t"}), "ipam.phpipam.appId: missing"),
            (app(json!({})), "ipam.phpipam.token: missing"),
            (app(json!({"token": "t", "appID": "x"})), "ipam.phpipam.appID: unknown key"),
            (app(json!({"token": "t", "keyField": "note"})), "ipam.phpipam.keyField: expected"),
            (app(json!({"token": "t", "keyField": "a b"})), "ipam.phpipam.keyField: expected"),
            (
                json!({"url": "http://a", "appId": "cni", "username": "u", "password": "p"}),
                "ipam.phpipam.password: the password would go to http://a unencrypted",
            ),
        ] {
            let error = site(section.clone()).unwrap_err();
            assert!(error.to_string().starts_with(start), "{section}: {error}");
            assert_eq!(error.code().number(), 7);
        }
    }
}
