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
    Key::All(OF_ETCD),
    Key::Value("node_slice_size"),
];

/// The keys of the datastore `etcd`.
pub(crate) const OF_ETCD: &[Key] = &[
    Key::Value("etcd_host"),
    Key::Value("etcd_username"),
    Key::Value("etcd_password"),
    Key::Value("etcd_key_file"),
    Key::Value("etcd_cert_file"),
    Key::Value("etcd_ca_cert_file"),
];

/// Keys of whereabouts that nothing is read from.
pub(crate) const WITHOUT_EFFECT: &[Key] = &[
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
    pub(crate) etcd_username: Option<String>,
    pub(crate) etcd_password: Option<String>,
    pub(crate) etcd_key_file: Option<String>,
    pub(crate) etcd_cert_file: Option<String>,
    pub(crate) etcd_ca_cert_file: Option<String>,
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
    use ipam_kit::keys::{names, to_json};
    use ipam_testkit::fields::assert_fields;
    use serde_json::json;

    use super::*;
    use crate::testing::Call;

    const STRING: &str = "a string";
    const ARRAY: &str = "an array";
    const OBJECT: &str = "an object";

    /// The type of the value of each key, and of each element of an array.
    const TYPES: &[(&str, &str)] = &[
        ("range", STRING),
        ("range_start", STRING),
        ("range_end", STRING),
        ("exclude", ARRAY),
        ("exclude[0]", STRING),
        ("ipRanges", ARRAY),
        ("ipRanges[0]", OBJECT),
        ("ipRanges[0].range", STRING),
        ("ipRanges[0].range_start", STRING),
        ("ipRanges[0].range_end", STRING),
        ("ipRanges[0].exclude", ARRAY),
        ("ipRanges[0].exclude[0]", STRING),
        ("gateway", STRING),
        ("routes", ARRAY),
        ("routes[0]", OBJECT),
        ("routes[0].dst", STRING),
        ("routes[0].gw", STRING),
        ("dns", OBJECT),
        ("dns.nameservers", ARRAY),
        ("dns.nameservers[0]", STRING),
        ("dns.domain", STRING),
        ("dns.search", ARRAY),
        ("dns.search[0]", STRING),
        ("dns.options", ARRAY),
        ("dns.options[0]", STRING),
        ("addresses", ARRAY),
        ("addresses[0]", OBJECT),
        ("addresses[0].address", STRING),
        ("addresses[0].gateway", STRING),
        ("requested", STRING),
        ("network_name", STRING),
        ("enable_overlapping_ranges", "a boolean"),
        ("kubernetes", OBJECT),
        ("kubernetes.kubeconfig", STRING),
        ("configuration_path", STRING),
        ("datastore", STRING),
        ("etcd_host", STRING),
        ("etcd_username", STRING),
        ("etcd_password", STRING),
        ("etcd_key_file", STRING),
        ("etcd_cert_file", STRING),
        ("etcd_ca_cert_file", STRING),
        ("node_slice_size", STRING),
    ];

    /// The object with this value at a place such as `ipRanges[0].range`.
    fn nested(place: &str, value: Value) -> Value {
        place.rsplit('.').fold(value, |value, step| match step.strip_suffix("[0]") {
            Some(key) => json!({ key: [value] }),
            None => json!({ step: value }),
        })
    }

    #[test]
    fn a_value_of_the_wrong_type_is_an_error_at_its_place() {
        let values = [
            (STRING, json!("10.0.0.0/24")),
            (ARRAY, json!(["10.0.0.0/24", "10.0.0.0/24"])),
            (ARRAY, json!([])),
            (OBJECT, json!({})),
            ("a boolean", json!(true)),
            ("a number", json!(5)),
        ];
        for (place, expected) in TYPES {
            for (found, value) in &values {
                if found == expected {
                    continue;
                }
                let mut wrong = nested(place, value.clone());
                if place.ends_with(".gw") {
                    wrong["routes"][0]["dst"] = "::/0".into();
                }
                for verb in ["ADD", "CHECK", "STATUS"] {
                    let mut call = Call::ipam(json!({})).verb(verb);
                    for (key, value) in wrong.as_object().unwrap() {
                        call = call.ipam_key(key, value.clone());
                    }
                    call.err(7, &format!("ipam.{place}: "));
                    // The error of a route in a file shows nothing of it.
                    let place = place.trim_end_matches(".dst").trim_end_matches(".gw");
                    let of_file = Call::ipam(json!({})).flat(&wrong).verb(verb);
                    of_file.err(7, &format!("FLAT.{place}: "));
                }
            }
        }
    }

    #[test]
    fn each_key_with_an_effect_has_a_type() {
        let keys = to_json(&[Key::All(OF_POOLS), Key::All(OF_STORE)]);
        let mut of_keys = Vec::new();
        for (key, inside) in keys.as_object().unwrap() {
            of_keys.push(key.clone());
            // Those of the main plugin in a route, and the root of an API server, have no reader.
            let inside = inside.as_object().into_iter().flat_map(|inside| inside.keys());
            let inside = inside.filter(|it| {
                let idle = ["mtu", "advmss", "priority", "table", "scope", "k8s_api_root"];
                !idle.contains(&it.as_str())
            });
            of_keys.extend(inside.map(|it| format!("{key}.{it}")));
        }
        let mut of_types: Vec<String> =
            TYPES.iter().map(|(place, _)| place.replace("[0]", "")).collect();
        of_types.sort();
        of_types.dedup();
        of_keys.sort();
        assert_eq!(of_keys, of_types);
    }

    #[test]
    fn every_key_is_declared() {
        assert_fields::<PoolKeys>(&names(OF_POOLS));
        assert_fields::<StoreKeys>(&names(OF_STORE));
        assert_fields::<RangeKeys>(&names(RANGE));
        assert_fields::<AddressKeys>(&names(ADDRESS));
        assert_fields::<DnsKeys>(&names(DNS));
    }
}
