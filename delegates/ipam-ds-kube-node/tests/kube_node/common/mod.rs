//! A place for the process tests of `ipam-ds-kube-node`: nodes of a real Kubernetes API server, each
//! with a machine that calls the program, alone, in a chain, or as the preset `kube-node`.

pub mod site;

use serde_json::Value;

pub use site::Site;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-ds-kube-node");

/// The addresses of a result.
#[track_caller]
pub fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap_or_else(|| panic!("no ips: {result}"));
    ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

/// `CNI_ARGS` of a pod in a namespace of Kubernetes, as kubelet says it.
pub fn pod_in(namespace: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=p")
}
