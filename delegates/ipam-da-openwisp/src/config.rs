//! The keys of `ipam` that this delegate reads: the section `openwisp`.

use ipam_kit::cni::{Environment, parse_value};
use ipam_kit::keys::Key;
use ipam_kit::{Error, Result};
use ipam_servers::{LoginKeys, ServerLogin, ServerSection, ServerSettings};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The keys of [`OpenWispConfig`].
pub(crate) const KEYS: &[Key] = &[Key::Section(SECTION.name, SECTION.keys)];

const SECTION: ServerSection = ServerSection {
    service: "OpenWISP",
    servers: "openwisp",
    example: "https://ipam.example.org",
    name: "openwisp",
    keys: &[
        Key::All(ServerSection::URLS),
        Key::All(ServerSection::KEYS),
        Key::All(ServerSection::LOGIN),
        Key::All(OWN),
    ],
    token: "OPENWISP_TOKEN",
    token_file: None,
};

/// The keys of [`OwnKeys`].
const OWN: &[Key] = &[Key::Value("organization"), Key::Value("confirm")];

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct OpenWispConfig {
    openwisp: Option<Map<String, Value>>,
}

/// The keys of `ipam.openwisp` that are this delegate's alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnKeys {
    organization: Option<String>,
    confirm: Option<bool>,
}

/// A server, and the organization whose subnets are used.
#[derive(Debug)]
pub(crate) struct OpenWispSite {
    pub(crate) settings: ServerSettings,
    pub(crate) login: Option<ServerLogin>,
    pub(crate) organization: Organization,
    /// Whether each claim is read again.
    pub(crate) confirm: bool,
}

/// The organization whose subnets are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Organization {
    /// Any organization.
    Any,
    /// None: subnets that all organizations share.
    Shared,
    /// The one with this id.
    Id(String),
}

impl OpenWispConfig {
    /// Reads the server that the configuration names.
    ///
    /// # Errors
    /// A setting is malformed; the server, or every way to log in, is missing.
    pub(crate) fn site(self, environment: &Environment) -> Result<OpenWispSite> {
        let (settings, keys) =
            SECTION.read_with_urls::<Map<String, Value>>(self.openwisp, environment)?;
        let keys = Value::Object(keys);
        let path = "ipam.openwisp";
        let own: OwnKeys = parse_value(&keys, path)?;
        let login: LoginKeys = parse_value(&keys, path)?;
        let login = SECTION.login(login, &settings)?;
        if settings.token.is_none() && login.is_none() {
            return Err(Error::config(format_args!("{path}.token"), "missing").advise(
                "set token or tokenFile of ipam.openwisp, or username and password, or the variable OPENWISP_TOKEN",
            ));
        }
        let organization = organization(own.organization.as_deref())?;
        Ok(OpenWispSite { settings, login, organization, confirm: own.confirm.unwrap_or(true) })
    }
}

fn organization(text: Option<&str>) -> Result<Organization> {
    let is_id =
        |text: &str| text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    match text {
        None | Some("") => Ok(Organization::Any),
        Some("shared") => Ok(Organization::Shared),
        Some(text) if is_id(text) => Ok(Organization::Id(text.to_ascii_lowercase())),
        Some(text) => {
            let message =
                format!(r#"expected the id of an organization or "shared", found {text:?}"#);
            Err(Error::config("ipam.openwisp.organization", message).advise(
                "copy the id, such as 6f1c0d5e-8a5b-4c8e-9d0f-2f4b7c1e3a59, from the organization's page in OpenWISP",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    use super::*;

    fn site(section: Value) -> Result<OpenWispSite> {
        let config: OpenWispConfig = serde_json::from_value(json!({"openwisp": section})).unwrap();
        config.site(&Environment::default())
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<OpenWispConfig>(&names(KEYS));
        assert_fields::<OwnKeys>(&names(OWN));
    }

    #[test]
    fn a_token_or_a_login_is_read() {
        let id = "6F1C0D5E-8a5b-4c8e-9d0f-2f4b7c1e3a59";
        let read = site(json!({"url": "http://a", "token": "t", "organization": id})).unwrap();
        assert_eq!(read.organization, Organization::Id(id.to_lowercase()));
        assert!(read.confirm && read.login.is_none());
        let login = json!({"url": "https://a", "username": "u", "password": "p", "confirm": false});
        let read = site(login).unwrap();
        assert!(!read.confirm && read.login.is_some());
    }

    #[test]
    fn the_file_of_a_provider_without_app_is_a_login() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("whereabouts-ipam.conf");
        let keys = json!({"ipamtype": "openwisp", "ipamuser": "u", "ipampwd": "p",
            "ipamurl": "10.0.0.9:8000", "appid": "ignored"});
        std::fs::write(&file, keys.to_string()).unwrap();
        let read = site(json!({"providerFile": file})).unwrap();
        assert_eq!(read.login.unwrap().user, "u");
        assert_eq!(read.settings.servers[0].to_string(), "http://10.0.0.9:8000");
    }

    #[test]
    fn an_invalid_value_is_refused_by_its_path() {
        for (section, start) in [
            (json!({}), "ipam.openwisp.url: missing"),
            (json!({"url": "http://a"}), "ipam.openwisp.token: missing"),
            (
                json!({"url": "http://a", "token": "t", "organization": "acme"}),
                "ipam.openwisp.organization: expected the id",
            ),
            (json!({"url": "http://a", "token": "t", "confirm": "no"}), "ipam.openwisp.confirm: "),
            (json!({"url": "http://a", "tokn": "t"}), "ipam.openwisp.tokn: unknown key"),
            (
                json!({"url": "http://a", "username": "u", "password": "p"}),
                "ipam.openwisp.password: the password would go to http://a unencrypted",
            ),
        ] {
            let error = site(section.clone()).unwrap_err();
            assert!(error.to_string().starts_with(start), "{section}: {error}");
            assert_eq!(error.code().number(), 7);
        }
    }
}
