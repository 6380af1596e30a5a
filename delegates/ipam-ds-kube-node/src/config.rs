//! The keys of `ipam` that this delegate reads.

use std::path::PathBuf;

use ipam_kit::cni::{Args, Route};
use ipam_kit::keys::Key;
use ipam_kube::own_node::NodeKeys;
use serde::Deserialize;

/// The keys of `ipam` that this delegate reads: those of [`KubeNodeConfig`], and what a selection
/// has beside subnets.
pub(crate) const KEYS: &[Key] = &[
    Key::All(OWN),
    Key::All(NodeKeys::KEYS),
    Key::Foreign("routes", Route::KEYS),
    Key::Value("resolvConf"),
    Key::Value("rangeRules"),
];

const OWN: &[Key] =
    &[Key::Value("annotation"), Key::Value("ipv4-namespaces"), Key::Value("dataDir")];

/// The keys of `ipam` that this delegate reads, without those that find the node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KubeNodeConfig {
    annotation: Option<String>,
    #[serde(rename = "ipv4-namespaces")]
    ipv4_namespaces: Option<Vec<String>>,
    #[serde(rename = "dataDir")]
    data_dir: Option<PathBuf>,
}

impl KubeNodeConfig {
    /// The annotation with the subnets; `None` if they are in `spec.podCIDRs`.
    pub(crate) fn annotation(&self) -> Option<&str> {
        self.annotation.as_deref().filter(|name| !name.is_empty())
    }

    /// The folder of kube-node's own cache, if the configuration names one.
    pub(crate) fn data_dir(&self) -> Option<&PathBuf> {
        self.data_dir.as_ref().filter(|folder| !folder.as_os_str().is_empty())
    }

    /// The namespace of a pod that gets no IPv4 address; `None` if it may have one.
    pub(crate) fn without_ipv4(&self, args: &Args) -> Option<String> {
        let namespace = args.get("K8S_POD_NAMESPACE").unwrap_or_default();
        let listed = self.ipv4_namespaces.as_ref()?;
        (!listed.iter().any(|name| name == namespace)).then(|| namespace.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_key_is_declared() {
        ipam_testkit::fields::assert_fields::<KubeNodeConfig>(&names(OWN));
    }

    #[test]
    fn ipv4_is_for_the_namespaces_that_are_listed() {
        let of_old = "K8S_POD_NAMESPACE=old;IgnoreUnknown=1";
        for (listed, args, without) in [
            (Value::Null, "", None),
            (json!(["old"]), of_old, None),
            (json!(["older", "old"]), of_old, None),
            (json!([]), of_old, Some("old")),
            (json!(["older"]), of_old, Some("old")),
            (json!(["old"]), "", Some("")),
        ] {
            let config: KubeNodeConfig =
                serde_json::from_value(json!({ "ipv4-namespaces": listed })).unwrap();
            assert_eq!(config.without_ipv4(&Args::parse(args)).as_deref(), without, "{listed}");
        }
    }
}
