//! Keys that do not have the effect that a person may expect.

use ipam_kit::Request;
use ipam_kit::keys::{MisspeltKey, misspelt_inside, names, nearest};
use log::warn;
use serde_json::Value;

use crate::config::{KEYS, OF_ETCD, WITHOUT_EFFECT};
use crate::flat_file::FlatFile;
use crate::other_stores::Datastore;
use crate::written::WrittenPlace;

/// The keys that have no effect with a provider, beside those of etcd.
const OF_OTHER_STORES: [&str; 11] = [
    "range",
    "range_start",
    "range_end",
    "exclude",
    "ipRanges",
    "gateway",
    "requested",
    "network_name",
    "enable_overlapping_ranges",
    "datastore",
    "node_slice_size",
];

/// Returns a text for each key of the network and of the flat file that has no effect, or is
/// misspelt. `lint` itself finds those of `ipam` that are misspelt outside of its sections.
pub(crate) fn of_keys(
    request: &Request,
    flat: Option<&FlatFile>,
    datastore: &Datastore,
) -> Vec<String> {
    let config = request.network.config();
    let mut places: Vec<String> = Vec::new();
    let of_ipam = config.get("ipam").into_iter().flat_map(|section| idle_keys(section, datastore));
    places.extend(of_ipam.map(|key| WrittenPlace::of_ipam(key).to_string()));
    if let Some(file) = flat {
        places.extend(
            idle_keys(file.content(), datastore).into_iter().map(|key| file.place(key).to_string()),
        );
    }
    let names_pool = config.get("args").is_some_and(|args| !args["pool"].is_null());
    if names_pool && !matches!(datastore, Datastore::Provider(_)) {
        places.push("args.pool".to_owned());
    }
    let idle = places.into_iter().map(|place| format!("{place} has no effect"));
    let misspelt = misspelt_inside(request.network.ipam(), KEYS, "ipam");
    let misspelt = misspelt.iter().map(MisspeltKey::warning);
    idle.chain(misspelt).chain(of_file(request, flat)).collect()
}

/// Logs each key that is misspelt, as far as the library does not.
pub(crate) fn warn_of_keys(request: &Request, flat: Option<&FlatFile>) {
    for key in request.network.ipam().keys() {
        if let Some(meant) = nearest(key, names(KEYS)) {
            warn!("ipam.{} is ignored (did you mean {meant}?)", key.escape_debug());
        }
    }
    of_file(request, flat).iter().for_each(|remark| warn!("{remark}"));
}

/// Misspelt keys of the flat file, or that another one is named and missing.
fn of_file(request: &Request, flat: Option<&FlatFile>) -> Vec<String> {
    let mut remarks: Vec<String> = flat.into_iter().flat_map(FlatFile::misspelt).collect();
    let named = request.network.ipam().get("configuration_path").and_then(Value::as_str);
    let named = named.filter(|named| !named.is_empty());
    if let Some(named) = named.filter(|named| flat.is_none_or(|file| file.path() != *named)) {
        remarks.push(format!("ipam.configuration_path: {named} is missing"));
    }
    remarks
}

/// The keys of a section without an effect: also those of other stores.
fn idle_keys(section: &Value, datastore: &Datastore) -> Vec<&'static str> {
    let mut keys = names(WITHOUT_EFFECT);
    match datastore {
        Datastore::Kubernetes => keys.extend(names(OF_ETCD)),
        Datastore::Etcd(_) => {
            keys.extend(["network_name", "enable_overlapping_ranges", "kubernetes"]);
        }
        Datastore::Provider(_) => {
            keys.extend(OF_OTHER_STORES);
            keys.extend(names(OF_ETCD));
        }
    }
    keys.retain(|key| !section[*key].is_null());
    let is_other = section["datastore"].as_str().is_some_and(|store| store != "kubernetes");
    if matches!(datastore, Datastore::Kubernetes) && is_other {
        keys.push("datastore");
    }
    if !matches!(datastore, Datastore::Etcd(_)) && !section["kubernetes"]["k8s_api_root"].is_null()
    {
        keys.push("kubernetes.k8s_api_root");
    }
    keys
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Call;

    #[test]
    fn each_key_without_an_effect_is_named_on_status() {
        let ipam = json!({
            "rangeRules": "host-local", "ipRanges": [{"range": "10.0.0.0/24", "exclud": []}],
            "leader_lease_duration": 1500, "log_file": "/l", "sleep_for_race": null,
            "datastore": "etcd", "kubernetes": {"kubeconfig": "/k", "k8s_api_root": "https://h"},
        });
        let flat = json!({"reconciler_cron_expression": "30 4 * * *", "datastore": "kubernetes", "gatway": "a"});
        let call = || Call::ipam(ipam.clone()).flat(&flat).with("args", json!({"pool": "p"}));
        let remarks = [
            "ipam.leader_lease_duration",
            "ipam.log_file",
            "ipam.datastore",
            "ipam.kubernetes.k8s_api_root",
            "FLAT.reconciler_cron_expression",
            "args.pool",
        ];
        let mut remarks = remarks.map(|place| format!("{place} has no effect")).to_vec();
        remarks.push("ipam.ipRanges[0].exclud is ignored (did you mean exclude?)".to_owned());
        remarks.push("FLAT.gatway is ignored (did you mean gateway?)".to_owned());
        assert_eq!(call().verb("STATUS").ok()["remarks"], json!(remarks));
        assert_eq!(call().ok().get("remarks"), None);
        for key in names(WITHOUT_EFFECT) {
            for value in [json!(5), json!("/x"), json!({"a": 1})] {
                let section = json!({ key: value, "range": "10.0.0.0/24" });
                let call = || Call::ipam(section.clone()).flat(&section);
                let remarks = call().verb("STATUS").ok()["remarks"].clone();
                let expected = ["ipam", "FLAT"].map(|it| format!("{it}.{key} has no effect"));
                assert_eq!(remarks, json!(expected));
                call().ok();
            }
        }
    }
}
