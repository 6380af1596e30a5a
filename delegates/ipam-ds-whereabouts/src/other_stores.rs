//! The store of the leases. Those that no delegate serves yet are refused.

use std::path::Path;

use ipam_kit::Result;
use serde_json::Value;

use crate::config::StoreKeys;
use crate::merged_keys::MergedKeys;
use crate::provider::Provider;
use crate::tolerance::Tolerance;
use crate::written::Written;

/// Where the leases are.
#[derive(Debug, Default)]
pub(crate) enum Datastore {
    /// In the pools of Kubernetes.
    #[default]
    Kubernetes,
    /// In etcd, at these endpoints.
    Etcd(Written<String>),
    /// At a provider, which has the pools, too.
    Provider(Provider),
}

impl Datastore {
    /// Reads where the leases are: at the provider of a file, else where the keys say.
    ///
    /// # Errors
    /// Code 7: a key names a store that is not served yet, and the error the delegate that will; or
    /// the store is ambiguous. A release ends by an ambiguous store: the wrong one holds nothing, and
    /// would answer that all is released. Those of [`Provider::read`].
    pub(crate) fn read(
        provider_file: &Path,
        ipam: &Value,
        keys: &mut MergedKeys<'_, StoreKeys>,
        tolerance: &mut Tolerance,
    ) -> Result<Self> {
        if let Some(provider) = Provider::read(provider_file)? {
            return Ok(Self::Provider(provider));
        }
        tolerance.allow(refuse_slices(keys))?;
        Self::named_by(ipam, keys)
    }

    fn named_by(ipam: &Value, keys: &mut MergedKeys<'_, StoreKeys>) -> Result<Self> {
        let datastore = keys.take("datastore", |keys| &mut keys.datastore);
        let datastore = datastore.map(|datastore| datastore.value).unwrap_or_default();
        if !matches!(&*datastore, "" | "etcd") {
            return Ok(Self::Kubernetes);
        }
        let Some(host) = keys.take("etcd_host", |keys| &mut keys.etcd_host) else {
            return Ok(Self::Kubernetes);
        };
        let own = ["kube", "kubernetes"].map(|section| &ipam[section]["kubeconfig"]);
        let has_own_login = own.iter().any(|file| file.as_str().is_some_and(|it| !it.is_empty()));
        // The installers of all versions put a kubeconfig into the flat file.
        let has_login = has_own_login
            || (datastore.is_empty()
                && keys.is_given(|keys| &mut keys.kubernetes.get_or_insert_default().kubeconfig));
        if !has_login {
            return Ok(Self::Etcd(host));
        }
        // Up to 0.5, and in the fork, the leases are in etcd; since 0.6 these keys have no effect.
        let error = host.place.error("a kubeconfig is named, too: the store is ambiguous");
        Err(error.advise(
            "set datastore to \"kubernetes\" if the leases are there, as with whereabouts 0.6 and \
             later; else set it to \"etcd\", and name no kubeconfig in the network",
        ))
    }
}

fn refuse_slices(keys: &mut MergedKeys<'_, StoreKeys>) -> Result<()> {
    if let Some(size) = keys.take("node_slice_size", |keys| &mut keys.node_slice_size) {
        let error = size.place.error("node slices are not supported yet");
        return Err(error.advise(
            "a later release of ipam-da-kube will serve them: \
             if no pod uses the network, remove the key, so that all nodes share one pool",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn node_slices_are_refused() {
        for verb in ["ADD", "CHECK", "STATUS"] {
            let store = json!({"node_slice_size": "/26", "datastore": "kubernetes"});
            let details = Call::ipam(store).verb(verb).err(7, "ipam.node_slice_size: ");
            assert!(details.contains("a later release of ipam-da-"), "{details}");
        }
    }

    #[test]
    fn datastore_or_the_only_store_that_is_named_has_the_leases() {
        let host = || json!({"etcd_host": "etcd:2379"});
        let etcd = || json!({"etcd_host": "etcd:2379", "datastore": "etcd"});
        let store_of = |call: Call| {
            let answer = call.ipam_key("range", json!("10.0.0.0/24")).verb("STATUS").ok();
            answer["ipam"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        for call in [
            Call::ipam(json!({"datastore": "kubernetes", "etcd_host": "etcd:2379"})),
            Call::ipam(json!({"datastore": "etcd"})),
            Call::ipam(json!({"datastore": "", "etcd_host": "", "node_slice_size": ""})),
            Call::ipam(host()).flat(json!({"datastore": "kubernetes"})),
        ] {
            assert_eq!(store_of(call), ["kube"]);
        }
        for call in [
            Call::bare(host()),
            Call::bare(json!({})).flat(host()),
            Call::bare(etcd()),
            Call::bare(etcd())
                .flat(json!({"datastore": "kubernetes", "kubernetes": {"kubeconfig": "/k"}})),
            Call::bare(json!({"datastore": "etcd"})).flat(host()),
        ] {
            assert_eq!(store_of(call), ["etcd"]);
        }
        for verb in ["ADD", "CHECK", "STATUS", "DEL", "GC"] {
            let start = "ipam.etcd_host: a kubeconfig is named, too";
            let details = Call::ipam(host()).verb(verb).err(7, start);
            assert!(details.contains("set datastore"), "{details}");
            Call::ipam(etcd()).verb(verb).err(7, start);
        }
        Call::bare(host())
            .flat(json!({"kubernetes": {"kubeconfig": "/k"}}))
            .err(7, "ipam.etcd_host: a kubeconfig is named, too");
        Call::ipam(json!({})).flat(host()).err(7, "FLAT.etcd_host: a kubeconfig is named, too");
    }
}
