use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use ipam_kit::error::{Error, Result};
use ipam_kit::host::parse_duration;
use ipam_kit::keys::Key;
use ipam_servers::ConfigFile;

/// The keys that say how to find the node.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// `kubeconfig`: how to reach the API server; without it, as [`CredentialsSource::find`] has it.
    ///
    /// [`CredentialsSource::find`]: crate::CredentialsSource::find
    pub kubeconfig: Option<ConfigFile>,
    /// `nodeName`: the node's name, so that no search is needed.
    pub(crate) node_name: Option<NodeName>,
    /// `cacheTtl`: for how long an answer is believed. Default: a minute.
    pub(crate) ttl: Option<Duration>,
}

/// A node's name, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeName {
    /// The name.
    pub(crate) name: String,
    /// The setting, as in `ipam.nodeName`.
    pub(crate) path: String,
}

/// The keys as they are written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeKeys {
    kubeconfig: Option<PathBuf>,
    node_name: Option<String>,
    cache_ttl: Option<String>,
}

impl NodeKeys {
    /// The keys, as a delegate declares them.
    pub const KEYS: &'static [Key] =
        &[Key::Value("kubeconfig"), Key::Value("nodeName"), Key::Value("cacheTtl")];

    /// Reads the keys. Errors put `prefix` in front of each, as in `ipam.`.
    ///
    /// # Errors
    /// `cacheTtl` is not a valid duration.
    pub fn read(self, prefix: &str) -> Result<NodeSettings> {
        let path = |key: &str| format!("{prefix}{key}");
        let ttl = self.cache_ttl.filter(|text| !text.is_empty()).map(|text| {
            let none = matches!(&*text, "0" | "0s").then_some(Duration::ZERO);
            none.or_else(|| parse_duration(&text)).ok_or_else(|| {
                Error::config(path("cacheTtl"), format_args!("invalid duration {text:?}"))
                    .advise(r#"expected for example "60s" or "5m"; with "0s" every call asks the API server"#)
            })
        });
        Ok(NodeSettings {
            kubeconfig: ConfigFile::given(path("kubeconfig"), self.kubeconfig),
            node_name: self
                .node_name
                .filter(|name| !name.is_empty())
                .map(|name| NodeName { name, path: path("nodeName") }),
            ttl: ttl.transpose()?,
        })
    }
}

impl NodeSettings {
    /// For how long an answer is believed.
    pub fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(60))
    }

    /// These, and what only the others say.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            kubeconfig: self.kubeconfig.or(others.kubeconfig),
            node_name: self.node_name.or(others.node_name),
            ttl: self.ttl.or(others.ttl),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<NodeSettings> {
        NodeKeys::deserialize(value).unwrap().read("ipam.")
    }

    #[test]
    fn every_key_is_declared() {
        ipam_testkit::fields::assert_fields::<NodeKeys>(&names(NodeKeys::KEYS));
    }

    #[test]
    fn what_is_empty_is_absent() {
        let settings = read(json!({"kubeconfig": "", "nodeName": "", "cacheTtl": ""})).unwrap();
        assert!(settings.kubeconfig.is_none() && settings.node_name.is_none());
        assert_eq!(settings.ttl(), Duration::from_secs(60));
        assert_eq!(read(json!({"cacheTtl": "0s"})).unwrap().ttl(), Duration::ZERO);
    }

    #[test]
    fn what_is_no_duration_is_refused_by_its_place() {
        let error = read(json!({"cacheTtl": "soon"})).unwrap_err();
        assert_eq!(error.to_string(), r#"ipam.cacheTtl: invalid duration "soon""#);
    }

    #[test]
    fn the_first_who_says_it_counts() {
        let first = read(json!({"nodeName": "a"})).unwrap();
        let second = read(json!({"nodeName": "b", "kubeconfig": "/k", "cacheTtl": "5s"})).unwrap();
        let both = first.or(second);
        assert_eq!(both.node_name.unwrap().name, "a");
        assert_eq!(both.kubeconfig.unwrap().path, "ipam.kubeconfig");
        assert_eq!(both.ttl, Some(Duration::from_secs(5)));
    }
}
