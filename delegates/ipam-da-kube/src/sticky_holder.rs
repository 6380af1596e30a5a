//! Whether the holder of a sticky name is alive, as its pod and its node say.

use std::collections::BTreeMap;

use ipam_kube::STATIC_POD_UID;
use serde::Deserialize;

/// A pod, as far as it tells whether it is alive.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HolderPod {
    metadata: PodMetadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodMetadata {
    uid: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

/// A node, as far as it tells whether its pods may still run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HolderNode {
    metadata: NodeMetadata,
    spec: NodeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeMetadata {
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

/// The taint, or label, of a node that an operator declares to be off.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Returns whether a pod of this uid may still run. `pod` is the present pod of its name, and `node`
/// the node object that the pod names. A node that is NotReady changes nothing: it may run the pod.
///
/// A holder without a uid is known by the pod's name alone.
pub(crate) fn is_alive(uid: &str, pod: Option<&HolderPod>, node: Option<&HolderNode>) -> bool {
    let Some(pod) = pod.filter(|pod| uid.is_empty() || pod.has_uid(uid)) else { return false };
    if matches!(&*pod.status.phase, "Succeeded" | "Failed") {
        return false;
    }
    // No node has such a pod yet, and nothing proves that it has ended.
    pod.spec.node_name.is_empty() || node.is_some_and(|node| !node.is_out_of_service())
}

impl HolderPod {
    /// Returns the name of the pod's node; empty before it has one.
    pub(crate) fn node_name(&self) -> &str {
        &self.spec.node_name
    }

    /// Returns whether runtimes know the pod by a uid: its own or, of a static pod, the one that its
    /// mirror in the API server names.
    fn has_uid(&self, uid: &str) -> bool {
        let PodMetadata { uid: own, annotations } = &self.metadata;
        let of_static = STATIC_POD_UID.iter().filter_map(|key| annotations.get(*key));
        own == uid || of_static.into_iter().any(|of_static| of_static == uid)
    }
}

impl HolderNode {
    fn is_out_of_service(&self) -> bool {
        self.metadata.labels.contains_key(OUT_OF_SERVICE)
            || self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, phase: &str, node: &str) -> Value {
        json!({"metadata": {"uid": uid}, "spec": {"nodeName": node}, "status": {"phase": phase}})
    }

    #[test]
    fn the_pod_object_decides_and_its_node_object_overrules() {
        let gone = Value::Null;
        let ready = json!({"metadata": {"labels": {"a": "b"}}, "spec": {}});
        let lost = json!({
            "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        });
        let tainted = json!({"spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}});
        let labelled = json!({"metadata": {"labels": {OUT_OF_SERVICE: ""}}});
        let running = pod("u1", "Running", "n1");
        let mut terminating = running.clone();
        terminating["metadata"]["deletionTimestamp"] = "2026-03-01T09:30:00Z".into();
        let mut mirror = running.clone();
        mirror["metadata"]["annotations"] = json!({STATIC_POD_UID[1]: "u0"});
        let bare = json!({"metadata": {"uid": "u1"}});
        for (what, uid, pod, node, expected) in [
            ("runs", "u1", &running, &ready, true),
            ("pending", "u1", &pod("u1", "Pending", "n1"), &ready, true),
            ("of no known phase", "u1", &pod("u1", "Unknown", "n1"), &ready, true),
            ("terminates", "u1", &terminating, &ready, true),
            ("terminates on a lost node", "u1", &terminating, &lost, true),
            ("runs on a lost node", "u1", &running, &lost, true),
            ("without node and phase", "u1", &bare, &gone, true),
            ("known by name alone", "", &running, &ready, true),
            ("static", "u0", &mirror, &ready, true),
            ("has succeeded", "u1", &pod("u1", "Succeeded", "n1"), &ready, false),
            ("has failed", "u1", &pod("u1", "Failed", "n1"), &ready, false),
            ("deleted", "u1", &gone, &gone, false),
            ("deleted, known by name alone", "", &gone, &gone, false),
            ("static, replaced", "u9", &mirror, &ready, false),
            ("replaced by one of its name", "u0", &running, &ready, false),
            ("its node was deleted", "u1", &running, &gone, false),
            ("its node is out of service by taint", "u1", &running, &tainted, false),
            ("its node is out of service by label", "u1", &terminating, &labelled, false),
        ] {
            let pod: Option<HolderPod> = serde_json::from_value(pod.clone()).unwrap();
            let node: Option<HolderNode> = serde_json::from_value(node.clone()).unwrap();
            assert_eq!(is_alive(uid, pod.as_ref(), node.as_ref()), expected, "{what}");
        }
    }
}
