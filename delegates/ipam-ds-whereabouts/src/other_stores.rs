//! The stores of whereabouts and its fork other than Kubernetes, which are refused.

use std::path::Path;

use ipam_kit::Result;
use ipam_kit::keys::Key;
use serde::Deserialize;

use crate::config::StoreKeys;
use crate::flat_file::{FlatFile, PROVIDER_FILE};
use crate::merged_keys::MergedKeys;
use crate::tolerance::Tolerance;

const PROVIDER_KEYS: &[Key] = &[
    Key::Value("ipamtype"),
    Key::Value("ipamuser"),
    Key::Value("ipampwd"),
    Key::Value("ipamurl"),
    Key::Value("appid"),
];

/// The key of the provider's file that is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProviderKeys {
    ipamtype: Option<String>,
}

/// Refuses a configuration whose leases are not in the pools of Kubernetes.
///
/// # Errors
/// Code 7: the file of a provider or a key says so; the error names the delegate that will serve
/// it. A release ends by a provider alone: old configurations may have keys of a store that
/// whereabouts has left since, and runtimes remember them.
pub(crate) fn refuse_other_stores(
    keys: &mut MergedKeys<'_, StoreKeys>,
    tolerance: &mut Tolerance,
) -> Result<()> {
    if let Some(file) = tolerance.allow(FlatFile::read(Path::new(PROVIDER_FILE)))? {
        refuse_provider(&file, tolerance)?;
    }
    tolerance.allow(refuse_keys(keys))
}

fn refuse_keys(keys: &mut MergedKeys<'_, StoreKeys>) -> Result<()> {
    if let Some(size) = keys.take("node_slice_size", |keys| &mut keys.node_slice_size) {
        let error = size.place.error("node slices are not supported yet");
        return Err(error.advise(
            "a later release of ipam-da-kube will serve them: \
             if no pod uses the network, remove the key, so that all nodes share one pool",
        ));
    }
    let datastore = keys.take("datastore", |keys| &mut keys.datastore);
    if datastore.is_some_and(|datastore| datastore.value == "kubernetes") {
        return Ok(());
    }
    // Up to 0.5, and in the fork, the leases are in etcd then; since 0.6 the key has no effect.
    match keys.take("etcd_host", |keys| &mut keys.etcd_host) {
        None => Ok(()),
        Some(host) => {
            let error = host.place.error("whereabouts' keys in etcd are not supported yet");
            Err(error.advise(
                "a later release of ipam-da-etcd will serve them; if the leases are in \
                 Kubernetes, as with whereabouts 0.6 and later, set datastore to \"kubernetes\"",
            ))
        }
    }
}

fn refuse_provider(file: &FlatFile, tolerance: &mut Tolerance) -> Result<()> {
    tolerance.allow(file.refuse_other_letters(PROVIDER_KEYS))?;
    let provider = file.keys::<ProviderKeys>(tolerance)?.ipamtype.unwrap_or_default();
    let place = file.place("ipamtype");
    match provider.as_str() {
        "phpipam" | "openwisp" => Err(place
            .error(format!("the provider {provider} is not supported yet"))
            .advise(format!("a later release of ipam-da-{provider} will serve it"))),
        "nsxtipam" => Err(place
            .error("the provider nsxtipam is not supported, and will not be")
            .advise("keep the old plugin on networks of NSX-T")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ipam_kit::cni::Verb;
    use serde_json::json;

    use super::*;
    use crate::testing::Call;

    #[test]
    fn leases_in_etcd_and_node_slices_are_refused() {
        let refused = |store: serde_json::Value, key: &str| {
            for verb in ["ADD", "CHECK", "STATUS"] {
                let start = format!("ipam.{key}: ");
                let details = Call::ipam(store.clone()).verb(verb).err(7, &start);
                assert!(details.contains("a later release of ipam-da-"), "{details}");
            }
        };
        refused(json!({"etcd_host": "etcd:2379"}), "etcd_host");
        refused(json!({"etcd_host": "etcd:2379", "datastore": "etcd"}), "etcd_host");
        refused(json!({"node_slice_size": "/26", "datastore": "kubernetes"}), "node_slice_size");
        let flat = json!({"etcd_host": "etcd:2379"});
        Call::ipam(json!({})).flat(flat).err(7, "FLAT.etcd_host: whereabouts' keys in etcd");
        for store in [
            json!({"datastore": "kubernetes", "etcd_host": "etcd:2379"}),
            json!({"datastore": "etcd"}),
            json!({"datastore": "", "etcd_host": "", "node_slice_size": ""}),
        ] {
            Call::ipam(store).verb("STATUS").ok();
        }
    }

    #[test]
    fn the_file_of_a_provider_names_the_delegate_that_will_serve_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whereabouts-ipam.conf");
        let refusal = |verb: Verb, content: &str| {
            fs::write(&path, content).unwrap();
            let file = FlatFile::read(&path).unwrap().unwrap();
            refuse_provider(&file, &mut Tolerance::of(verb)).map_err(|error| error.in_full())
        };
        for (content, words) in [
            (r#"{"ipamtype": "phpipam", "ipampwd": "pa55"}"#, "ipam-da-phpipam will serve it"),
            (r#"{"ipamtype": "openwisp"}"#, "ipam-da-openwisp will serve it"),
            (r#"{"ipamtype": "nsxtipam"}"#, "is not supported, and will not be"),
        ] {
            for verb in [Verb::Add, Verb::Del] {
                let error = refusal(verb, content).unwrap_err();
                assert!(error.contains(".ipamtype: ") && error.contains(words), "{error}");
                assert!(!error.contains("pa55"), "{error}");
            }
        }
        for (content, words) in [
            (r#"{"ipamtype": 5}"#, ".ipamtype: expected a string, found a number"),
            (r#"{"IpamType": "phpipam"}"#, ".IpamType: unknown key (did you mean ipamtype?)"),
        ] {
            let error = refusal(Verb::Add, content).unwrap_err();
            assert!(error.contains(words), "{error}");
            assert!(refusal(Verb::Del, content).is_ok(), "{content}");
        }
        for content in [r#"{"ipamtype": ""}"#, r#"{"ipamtype": "kubernetes"}"#, "{}"] {
            assert!(refusal(Verb::Add, content).is_ok(), "{content}");
        }
    }
}
