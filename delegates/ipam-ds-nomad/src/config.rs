use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::host::parse_duration;
use ipam_kit::keys::Key;
use ipam_kit::{Error, Request, Result};
use ipam_servers::{Access, Named, Secret, Server, Tls};
use serde::Deserialize;

/// The keys of [`Config`].
pub(crate) const KEYS: &[Key] = &[Key::Value("nomad_servers"), Key::Section("nomad", SECTION)];

const SECTION: &[Key] = &[
    Key::Value("token"),
    Key::Value("tokenFile"),
    Key::Value("namespace"),
    Key::Value("region"),
    Key::Value("caFile"),
    Key::Value("certFile"),
    Key::Value("keyFile"),
    Key::Value("timeout"),
];

/// What this delegate reads of `ipam`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    nomad_servers: Option<Vec<String>>,
    nomad: Option<Section>,
}

/// `ipam.nomad`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Section {
    token: Option<String>,
    token_file: Option<PathBuf>,
    namespace: Option<String>,
    region: Option<String>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    timeout: Option<String>,
}

/// How to reach Nomad, and where in it the allocations are.
#[derive(Debug)]
pub(crate) struct Store {
    pub access: Access,
    pub namespace: Option<String>,
    pub region: Option<String>,
}

/// The variable with a token, where the configuration has none.
const VARIABLE: &str = "NOMAD_TOKEN";

const TIMEOUT: Duration = Duration::from_secs(10);

impl Config {
    /// What the configuration names; the token may be in the environment of the call.
    ///
    /// # Errors
    /// There is no server, or one is no URL; the token is given twice or cannot be read; of a certificate
    /// and its key, one is missing; the timeout is none.
    pub(crate) fn store(self, request: &Request) -> Result<Store> {
        let servers = self.nomad_servers.ok_or_else(|| {
            Error::config("ipam.nomad_servers", "missing").advise(
                r#"name Nomad's servers, as in "nomad_servers": ["http://10.20.30.40:4646"]"#,
            )
        })?;
        let section = self.nomad.unwrap_or_default();
        let token = section.token(request.environment.text(VARIABLE))?;
        Ok(Store {
            access: Access {
                service: "Nomad",
                servers: Server::parse_all(&servers, "ipam.nomad_servers", None)?,
                headers: token.map(|token| ("X-Nomad-Token", token)).into_iter().collect(),
                timeout: section.timeout()?,
                unreached: request.unreached(),
                advice,
                tls: section.tls()?,
            },
            namespace: section.namespace.filter(|name| !name.is_empty()),
            region: section.region.filter(|name| !name.is_empty()),
        })
    }
}

impl Section {
    fn token(&self, of_environment: Option<&str>) -> Result<Option<Secret>> {
        match (&self.token, named("tokenFile", self.token_file.as_ref())) {
            (Some(_), Some(_)) => {
                Err(Error::config("ipam.nomad.token", "given together with ipam.nomad.tokenFile")
                    .advise("give the token once"))
            }
            (Some(text), None) => Secret::parse(text, "ipam.nomad.token").map(Some),
            (None, Some(file)) => Secret::read(&file).map(Some),
            (None, None) => of_environment
                .filter(|text| !text.is_empty())
                .map(|text| Secret::parse(text, VARIABLE))
                .transpose(),
        }
    }

    fn tls(&self) -> Result<Tls> {
        let certificate = named("certFile", self.cert_file.as_ref());
        let key = named("keyFile", self.key_file.as_ref());
        let missing = |absent: &str, given: &Named| {
            Error::config(
                format_args!("ipam.nomad.{absent}"),
                format_args!("missing, but {} is given", given.path),
            )
            .advise("give both or neither")
        };
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(given), None) => return Err(missing("keyFile", &given)),
            (None, Some(given)) => return Err(missing("certFile", &given)),
        };
        Ok(Tls { authority: named("caFile", self.ca_file.as_ref()), identity })
    }

    fn timeout(&self) -> Result<Duration> {
        let Some(text) = &self.timeout else { return Ok(TIMEOUT) };
        parse_duration(text).ok_or_else(|| {
            Error::config("ipam.nomad.timeout", format_args!("{text:?} is no duration"))
                .advise(r#"as in "10s" or "500ms""#)
        })
    }
}

/// A file that the section names; an empty name is none.
fn named(key: &str, file: Option<&PathBuf>) -> Option<Named> {
    let file = file.filter(|file| !file.as_os_str().is_empty())?;
    Some(Named { path: format!("ipam.nomad.{key}"), file: file.clone() })
}

fn advice(status: u16, body: &str) -> Option<&'static str> {
    match status {
        403 => Some(
            "give ipam.nomad.token or ipam.nomad.tokenFile: a token with read-job in the allocation's namespace",
        ),
        404 => Some(
            "Nomad knows no such allocation: it is of another region or cluster, or has been forgotten",
        ),
        // So Nomad answers a token that may not read it.
        500 if body.contains("Unknown allocation") => {
            Some("the token may not see it: give one with read-job in the allocation's namespace")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::ErrorCode;
    use ipam_kit::cni::{Environment, Verb};
    use ipam_kit::host::Settings;
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;
    use serde_json::{Value, json};

    fn store(ipam: Value, token: &str) -> Result<Store> {
        let config = serde_json::from_value::<Config>(ipam).unwrap();
        let variables =
            [("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "e"), ("CNI_NETNS", "/n"), (VARIABLE, token)];
        let network =
            br#"{"cniVersion": "1.0.0", "name": "n", "type": "t", "ipam": {"type": "t"}}"#;
        let request =
            Request::parse(Verb::Add, Environment::new(variables), network, Settings::default());
        config.store(&request.unwrap())
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<Config>(&names(KEYS));
        assert_fields::<Section>(&names(SECTION));
    }

    #[test]
    fn the_token_of_the_configuration_comes_before_that_of_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of-file\n").unwrap();
        for (section, expected) in [
            (json!({"token": "own"}), Some("own")),
            (json!({"tokenFile": file}), Some("of-file")),
            (json!({"tokenFile": ""}), Some("of-environment")),
            (Value::Null, Some("of-environment")),
        ] {
            let ipam = json!({"nomad_servers": ["http://a"], "nomad": section});
            let headers = store(ipam, "of-environment").unwrap().access.headers;
            assert_eq!(headers.first().map(|(_, token)| token.expose()), expected);
        }
        assert!(
            store(json!({"nomad_servers": ["http://a"]}), "").unwrap().access.headers.is_empty()
        );
    }

    #[test]
    fn what_is_given_reaches_the_client() {
        let section = json!({"namespace": "a", "region": "", "caFile": "/ca", "certFile": "/c", "keyFile": "/k",
                             "timeout": "3s"});
        let ipam = json!({"nomad_servers": ["https://a:4646/", "http://b"], "nomad": section});
        let Store { access, namespace, region } = store(ipam, "").unwrap();
        let servers: Vec<_> = access.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["https://a:4646", "http://b"]);
        assert_eq!((namespace.as_deref(), region), (Some("a"), None));
        assert_eq!(access.timeout, Duration::from_secs(3));
        let (certificate, key) = access.tls.identity.unwrap();
        let authority = access.tls.authority.unwrap();
        for (named, path, file) in [
            (authority, "ipam.nomad.caFile", "/ca"),
            (certificate, "ipam.nomad.certFile", "/c"),
            (key, "ipam.nomad.keyFile", "/k"),
        ] {
            assert_eq!((named.path.as_str(), named.file.to_str()), (path, Some(file)));
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let with = |section: Value| json!({"nomad_servers": ["http://a"], "nomad": section});
        for (ipam, message) in [
            (json!({}), "ipam.nomad_servers: missing"),
            (json!({"nomad_servers": null}), "ipam.nomad_servers: missing"),
            (json!({"nomad_servers": []}), "ipam.nomad_servers: no server"),
            (
                json!({"nomad_servers": ["a:4646"]}),
                "ipam.nomad_servers[0]: \"a:4646\" does not begin with",
            ),
            (
                json!({"nomad_servers": ["http://a", "unix:///s"]}),
                "ipam.nomad_servers[1]: \"unix:///s\" is a",
            ),
            (with(json!({"token": "a", "tokenFile": "/b"})), "ipam.nomad.token: given together"),
            (with(json!({"token": "s3\ncret"})), "ipam.nomad.token: holds a line break"),
            (
                with(json!({"tokenFile": "/nowhere"})),
                "ipam.nomad.tokenFile: /nowhere cannot be read",
            ),
            (
                with(json!({"certFile": "/c"})),
                "ipam.nomad.keyFile: missing, but ipam.nomad.certFile is",
            ),
            (
                with(json!({"keyFile": "/k"})),
                "ipam.nomad.certFile: missing, but ipam.nomad.keyFile is",
            ),
            (with(json!({"timeout": "soon"})), "ipam.nomad.timeout: \"soon\" is no duration"),
        ] {
            let error = store(ipam, "").unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
        }
        let misspelt = serde_json::from_value::<Config>(with(json!({"cafile": "/c"})));
        assert!(misspelt.unwrap_err().to_string().contains("cafile"));
    }
}
