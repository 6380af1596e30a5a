//! The keys of `ipam` that this delegate reads: `nomad_servers` and `nomad`.

use ipam_kit::keys::Key;
use ipam_kit::{Request, Result};
use ipam_servers::{Access, ServerSection, ServerSettings};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The keys of [`NomadConfig`].
pub(crate) const KEYS: &[Key] = &[Key::Value("nomad_servers"), Key::Section("nomad", SECTION.keys)];

const SECTION: ServerSection = ServerSection {
    service: "Nomad",
    servers: "nomad_servers",
    example: "http://10.20.30.40:4646",
    name: "nomad",
    keys: &[Key::All(ServerSection::KEYS), Key::All(OWN)],
    token: "NOMAD_TOKEN",
    token_file: None,
};

/// The keys of [`NomadSection`].
const OWN: &[Key] = &[Key::Value("namespace"), Key::Value("region")];

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NomadConfig {
    nomad_servers: Option<Vec<String>>,
    nomad: Option<Map<String, Value>>,
}

/// The keys of `ipam.nomad` that are this delegate's alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NomadSection {
    namespace: Option<String>,
    region: Option<String>,
}

/// The settings to reach Nomad, with the namespace and region of the allocations.
#[derive(Debug)]
pub(crate) struct NomadStore {
    pub access: Access,
    pub namespace: Option<String>,
    pub region: Option<String>,
}

impl NomadConfig {
    /// Reads the settings from the configuration; the token may be in the call's environment.
    ///
    /// # Errors
    /// As [`ServerSection::read`].
    pub(crate) fn store(self, request: &Request) -> Result<NomadStore> {
        let (settings, own) =
            SECTION.read::<NomadSection>(self.nomad_servers, self.nomad, &request.environment)?;
        let ServerSettings { servers, token, tls, timeout, .. } = settings;
        Ok(NomadStore {
            access: Access {
                service: SECTION.service,
                servers,
                headers: token.map(|token| ("X-Nomad-Token", token)).into_iter().collect(),
                timeout,
                unreached: request.unreached(),
                advice,
                tls,
            },
            namespace: own.namespace.filter(|name| !name.is_empty()),
            region: own.region.filter(|name| !name.is_empty()),
        })
    }
}

fn advice(status: u16, body: &str) -> Option<&'static str> {
    match status {
        403 => Some(
            "set ipam.nomad.token or ipam.nomad.tokenFile to a token with read-job in the allocation's namespace",
        ),
        404 if body.contains("alloc") => Some(
            "unknown allocation: it belongs to another region or cluster, or was garbage-collected",
        ),
        404 => Some("the server may not be Nomad: check host, port and path"),
        // Nomad answers so to a token without the right.
        500 if body.contains("Unknown allocation") => Some(
            "the token may lack the right: use one with read-job in the allocation's namespace",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use ipam_kit::ErrorCode;
    use ipam_kit::cni::{Environment, Verb};
    use ipam_kit::delegate::Deadline;
    use ipam_kit::host::Settings;
    use ipam_kit::keys::names;
    use ipam_servers::Client;
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    fn store(ipam: Value, token: &str) -> Result<NomadStore> {
        let config = serde_json::from_value::<NomadConfig>(ipam).unwrap();
        let variables = [
            ("CNI_CONTAINERID", "c"),
            ("CNI_IFNAME", "e"),
            ("CNI_NETNS", "/n"),
            (SECTION.token, token),
        ];
        let network =
            br#"{"cniVersion": "1.0.0", "name": "n", "type": "t", "ipam": {"type": "t"}}"#;
        let request =
            Request::parse(Verb::Add, Environment::new(variables), network, Settings::default());
        config.store(&request.unwrap())
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<NomadConfig>(&names(KEYS));
        assert_fields::<NomadSection>(&names(OWN));
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
            (json!({"token": " \n"}), Some("of-environment")),
            (json!({"token": "", "tokenFile": file}), Some("of-file")),
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
        let NomadStore { access, namespace, region } = store(ipam, "").unwrap();
        let servers: Vec<_> = access.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["https://a:4646", "http://b"]);
        assert_eq!((namespace.as_deref(), region), (Some("a"), None));
        assert_eq!(access.timeout, Duration::from_secs(3));
        let (certificate, key) = access.tls.identity.unwrap();
        let ca = access.tls.ca.unwrap();
        for (named, path, file) in [
            (ca, "ipam.nomad.caFile", "/ca"),
            (certificate, "ipam.nomad.certFile", "/c"),
            (key, "ipam.nomad.keyFile", "/k"),
        ] {
            assert_eq!((named.path.as_str(), named.file.to_str()), (path, Some(file)));
        }
    }

    #[test]
    fn an_error_names_the_path_of_a_key() {
        let with = |section: Value| json!({"nomad_servers": ["http://a"], "nomad": section});
        for (ipam, message) in [
            (json!({}), "ipam.nomad_servers: missing"),
            (json!({"nomad_servers": null}), "ipam.nomad_servers: missing"),
            (json!({"nomad_servers": []}), "ipam.nomad_servers: empty list"),
            (
                json!({"nomad_servers": ["a:4646"]}),
                "ipam.nomad_servers[0]: \"a:4646\" does not begin with",
            ),
            (
                json!({"nomad_servers": ["http://a", "unix:///s"]}),
                "ipam.nomad_servers[1]: \"unix:///s\" is a",
            ),
            (with(json!({"token": "a", "tokenFile": "/b"})), "ipam.nomad.token: given together"),
            (with(json!({"token": "s3\ncret"})), "ipam.nomad.token: contains a line break"),
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
            (with(json!({"timeout": "soon"})), "ipam.nomad.timeout: invalid duration \"soon\""),
            (with(json!({"cafile": "/c"})), "ipam.nomad.cafile: unknown key"),
        ] {
            let error = store(ipam, "").unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
        }
    }

    #[test]
    fn a_file_without_an_end_or_without_a_writer_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for file in ["/dev/zero", pipe.to_str().unwrap()] {
            for key in ["tokenFile", "caFile"] {
                let ipam = json!({"nomad_servers": ["https://a"], "nomad": {key: file}});
                let client = store(ipam, "").and_then(|NomadStore { access, .. }| {
                    Client::new(access, Deadline::after(Duration::from_secs(30)))
                });
                let error = client.unwrap_err();
                assert_eq!(error.to_string(), format!("ipam.nomad.{key}: {file} cannot be read"));
                assert!(error.details().starts_with("not a regular file"), "{error:?}");
            }
        }
    }
}
