//! Keys of whereabouts without an effect, for `lint`.

use ipam_kit::Request;
use ipam_kit::keys::{MisspeltKey, misspelt_inside, names};
use serde_json::Value;

use crate::config::{KEYS, WITHOUT_EFFECT};
use crate::flat_file::FlatFile;
use crate::written::WrittenPlace;

/// Returns a text for each key of the network and of the flat file that has no effect, or is
/// misspelt.
pub(crate) fn without_effect(request: &Request, flat: Option<&FlatFile>) -> Vec<String> {
    let config = request.network.config();
    let mut places: Vec<String> = Vec::new();
    let of_ipam = config.get("ipam").into_iter().flat_map(idle_keys);
    places.extend(of_ipam.map(|key| WrittenPlace::of_ipam(key).to_string()));
    if let Some(file) = flat {
        places.extend(idle_keys(file.content()).into_iter().map(|key| file.place(key).to_string()));
    }
    if config.get("args").is_some_and(|args| !args["pool"].is_null()) {
        places.push("args.pool".to_owned());
    }
    let idle = places.into_iter().map(|place| format!("{place} has no effect"));
    let misspelt = misspelt_inside(request.network.ipam(), KEYS, "ipam");
    let misspelt = misspelt.iter().map(MisspeltKey::warning);
    idle.chain(misspelt).chain(flat.into_iter().flat_map(FlatFile::misspelt)).collect()
}

/// The keys of a section without an effect. The leases are in Kubernetes: other stores are refused.
fn idle_keys(section: &Value) -> Vec<&'static str> {
    let mut keys = names(WITHOUT_EFFECT);
    keys.push("etcd_host");
    keys.retain(|key| !section[*key].is_null());
    if section["datastore"].as_str().is_some_and(|store| store != "kubernetes") {
        keys.push("datastore");
    }
    if !section["kubernetes"]["k8s_api_root"].is_null() {
        keys.push("kubernetes.k8s_api_root");
    }
    keys
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn each_key_without_an_effect_is_named_on_status() {
        let ipam = json!({
            "rangeRules": "whereabouts", "ipRanges": [{"range": "10.0.0.0/24", "exclud": []}],
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
    }
}
