//! The keys of `ipam` that this delegate reads: the section `kube`.

use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::cni::{Environment, parse_value};
use ipam_kit::host::Settings;
use ipam_kit::keys::Key;
use ipam_kit::text::may_begin_object_names;
use ipam_kit::{Error, Result};
use ipam_kube::CredentialsSource;
use ipam_servers::{ConfigFile, parse_timeout};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::names::ObjectNames;

/// The keys of [`KubeConfig`].
pub(crate) const KEYS: &[Key] = &[Key::Section("kube", SECTION)];

/// The keys of [`KubeSection`].
const SECTION: &[Key] = &[
    Key::Value("kubeconfig"),
    Key::Value("namespace"),
    Key::Value("networkName"),
    Key::Value("overlapCheck"),
    Key::Value("timeout"),
    Key::Value("layout"),
];

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct KubeConfig {
    kube: Option<Map<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct KubeSection {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    network_name: Option<String>,
    overlap_check: Option<bool>,
    timeout: Option<String>,
    layout: Option<String>,
}

/// The objects of a network, and the way to their API server.
#[derive(Debug)]
pub(crate) struct KubeSite {
    pub(crate) source: CredentialsSource,
    /// The namespace of the objects, if the configuration names it.
    pub(crate) namespace: Option<String>,
    pub(crate) names: ObjectNames,
    /// Whether each address has a reservation, which pools that overlap share.
    pub(crate) overlap_check: bool,
    /// How long to go on after the first error, and to wait for a call of this node that does not
    /// end its turn.
    pub(crate) timeout: Duration,
}

impl KubeConfig {
    /// Reads the section. The host's settings say which kubeconfig it may name.
    ///
    /// # Errors
    /// A value is malformed, no credentials are found, or the kubeconfig is not allowed.
    pub(crate) fn site(self, environment: &Environment, host: &Settings) -> Result<KubeSite> {
        let section: KubeSection =
            parse_value(&Value::Object(self.kube.unwrap_or_default()), "ipam.kube")?;
        if let Some(layout) = section.layout.as_deref().filter(|layout| *layout != "ippool") {
            let message = format!("unknown layout {layout:?}: expected ippool");
            return Err(Error::config("ipam.kube.layout", message));
        }
        let timeout = parse_timeout(section.timeout.as_deref(), "ipam.kube.timeout")?;
        let key = "ipam.kube.kubeconfig";
        let named = ConfigFile::given(key, section.kubeconfig);
        Ok(KubeSite {
            source: CredentialsSource::find(key, named, environment, host)?.within(timeout),
            namespace: given_name(section.namespace, "ipam.kube.namespace")?,
            names: ObjectNames::new(given_name(section.network_name, "ipam.kube.networkName")?),
            overlap_check: section.overlap_check.unwrap_or(true),
            timeout,
        })
    }
}

/// Reads a name that becomes part of an object's name or path; an empty one counts as absent.
fn given_name(name: Option<String>, path: &str) -> Result<Option<String>> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    if may_begin_object_names(&name) {
        return Ok(Some(name));
    }
    let message = format!("invalid name {name:?} for an object of Kubernetes");
    Err(Error::config(path, message).advise(
        "use lower-case letters, digits, - and ., \
             beginning with a letter or a digit, and at most 200 characters",
    ))
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    use super::*;

    fn site(section: Value) -> Result<KubeSite> {
        let config: KubeConfig = serde_json::from_value(json!({"kube": section})).unwrap();
        config.site(&Environment::default(), &Settings::default())
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<KubeSection>(&names(SECTION));
        assert_fields::<KubeConfig>(&names(KEYS));
    }

    #[test]
    fn defaults_are_those_of_whereabouts() {
        let site = site(json!({"kubeconfig": "/k"})).unwrap();
        assert!(site.overlap_check && site.namespace.is_none());
        assert_eq!(site.timeout, Duration::from_secs(10));
    }

    #[test]
    fn an_invalid_value_is_refused_by_its_path() {
        for (section, start) in [
            (json!({"layout": "blocks"}), "ipam.kube.layout: unknown layout"),
            (json!({"networkName": "Blue"}), "ipam.kube.networkName: invalid name"),
            (json!({"networkName": "a..b"}), "ipam.kube.networkName: invalid name"),
            (json!({"namespace": "a/b"}), "ipam.kube.namespace: invalid name"),
            (json!({"timeout": "soon"}), "ipam.kube.timeout: invalid duration"),
            (json!({"overlapCheck": "yes"}), "ipam.kube.overlapCheck: "),
            (
                json!({"enable_overlapping_ranges": false}),
                "ipam.kube.enable_overlapping_ranges: unknown field",
            ),
        ] {
            let mut whole = section.clone();
            whole["kubeconfig"] = "/k".into();
            let error = site(whole).unwrap_err().to_string();
            assert!(error.starts_with(start), "{section}: {error}");
        }
    }
}
