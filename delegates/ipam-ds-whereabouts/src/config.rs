//! The keys of whereabouts, in the section `ipam` and in the flat file.

use ipam_kit::cni::Route;
use ipam_kit::keys::Key;
use serde::Deserialize;
use serde_json::Value;

/// The keys of `ipam` that this delegate knows.
pub(crate) const KEYS: &[Key] = &[Key::All(OF_POOLS), Key::All(OF_STORE), Key::All(WITHOUT_EFFECT)];

const OF_POOLS: &[Key] = &[
    Key::Value("range"),
    Key::Value("range_start"),
    Key::Value("range_end"),
    Key::Value("exclude"),
    Key::Foreign("ipRanges", RANGE),
    Key::Value("gateway"),
    Key::Foreign("routes", Route::KEYS),
    Key::Foreign("dns", DNS),
    Key::Foreign("addresses", ADDRESS),
    Key::Value("requested"),
];

const OF_STORE: &[Key] = &[
    Key::Value("network_name"),
    Key::Value("enable_overlapping_ranges"),
    Key::Foreign("kubernetes", KUBERNETES),
    Key::Value("configuration_path"),
    Key::Value("datastore"),
    Key::Value("etcd_host"),
    Key::Value("node_slice_size"),
];

/// Keys of whereabouts that nothing is read from.
pub(crate) const WITHOUT_EFFECT: &[Key] = &[
    Key::Value("etcd_username"),
    Key::Value("etcd_password"),
    Key::Value("etcd_key_file"),
    Key::Value("etcd_cert_file"),
    Key::Value("etcd_ca_cert_file"),
    Key::Value("leader_lease_duration"),
    Key::Value("leader_renew_deadline"),
    Key::Value("leader_retry_period"),
    Key::Value("sleep_for_race"),
    Key::Value("reconciler_cron_expression"),
    Key::Value("log_file"),
    Key::Value("log_level"),
];

const RANGE: &[Key] = &[
    Key::Value("range"),
    Key::Value("range_start"),
    Key::Value("range_end"),
    Key::Value("exclude"),
];

const ADDRESS: &[Key] = &[Key::Value("address"), Key::Value("gateway")];

const DNS: &[Key] =
    &[Key::Value("nameservers"), Key::Value("domain"), Key::Value("search"), Key::Value("options")];

const KUBERNETES: &[Key] = &[Key::Value("kubeconfig"), Key::Value("k8s_api_root")];

/// The keys that choose addresses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PoolKeys {
    pub(crate) range: Option<String>,
    pub(crate) range_start: Option<String>,
    pub(crate) range_end: Option<String>,
    pub(crate) exclude: Option<Vec<String>>,
    #[serde(rename = "ipRanges")]
    pub(crate) ip_ranges: Option<Vec<RangeKeys>>,
    pub(crate) gateway: Option<String>,
    pub(crate) routes: Option<Vec<Value>>,
    pub(crate) dns: Option<DnsKeys>,
    pub(crate) addresses: Option<Vec<AddressKeys>>,
    pub(crate) requested: Option<String>,
}

/// An element of `ipRanges`.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RangeKeys {
    pub(crate) range: Option<String>,
    pub(crate) range_start: Option<String>,
    pub(crate) range_end: Option<String>,
    pub(crate) exclude: Option<Vec<String>>,
}

/// An element of `addresses`.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct AddressKeys {
    pub(crate) address: Option<String>,
    pub(crate) gateway: Option<String>,
}

/// The object `dns`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DnsKeys {
    pub(crate) nameservers: Option<Vec<String>>,
    pub(crate) domain: Option<String>,
    pub(crate) search: Option<Vec<String>>,
    pub(crate) options: Option<Vec<String>>,
}

/// The keys that choose the store of the leases.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoreKeys {
    pub(crate) network_name: Option<String>,
    pub(crate) enable_overlapping_ranges: Option<bool>,
    pub(crate) kubernetes: Option<KubernetesKeys>,
    pub(crate) configuration_path: Option<String>,
    pub(crate) datastore: Option<String>,
    pub(crate) etcd_host: Option<String>,
    pub(crate) node_slice_size: Option<String>,
}

/// The object `kubernetes`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KubernetesKeys {
    pub(crate) kubeconfig: Option<String>,
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;

    use super::*;

    #[test]
    fn every_key_is_declared() {
        assert_fields::<PoolKeys>(&names(OF_POOLS));
        assert_fields::<StoreKeys>(&names(OF_STORE));
        assert_fields::<RangeKeys>(&names(RANGE));
        assert_fields::<AddressKeys>(&names(ADDRESS));
        assert_fields::<DnsKeys>(&names(DNS));
    }
}
