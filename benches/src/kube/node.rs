use ipam_testkit::kube::{Kube, Node};
use serde_json::json;

use crate::network::{SUBNET, pool};

pub const NODE: &str = "node-1";
pub const ANNOTATION: &str = "example.com/ranges";

/// Makes the node object, as large as a kubelet makes it that has pulled as many images as it reports.
pub fn create_node(server: &Kube) {
    let node = Node::named(NODE).cidrs(&[SUBNET]).annotation(ANNOTATION, &pool().to_string());
    server.create_node(&node);
    let image = |number: u32| {
        let name = format!("registry.example.com/team/application-{number}");
        let digest = format!("{name}@sha256:{number:064x}");
        json!({"names": [digest, format!("{name}:v1.{number}.0")], "sizeBytes": 10_000_000 + number})
    };
    let condition = |kind: &str| {
        let time = "2026-01-02T03:04:05Z";
        json!({
            "type": kind, "status": "False", "reason": format!("KubeletHas{kind}"), "message": "kubelet is as it should be",
            "lastHeartbeatTime": time, "lastTransitionTime": time,
        })
    };
    let amounts = json!({
        "cpu": "8", "ephemeral-storage": "101430960Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": "32860432Ki", "pods": "110",
    });
    let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition);
    let status = json!({
        "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": NODE}],
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": conditions,
        "images": (0..50).map(image).collect::<Vec<_>>(),
        "nodeInfo": {
            "machineID": "0123456789abcdef0123456789abcdef", "systemUUID": "", "bootID": "",
            "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12 (bookworm)",
            "containerRuntimeVersion": "containerd://1.7.0", "kubeletVersion": "v1.20.2",
            "kubeProxyVersion": "v1.20.2", "operatingSystem": "linux", "architecture": "amd64",
        },
    });
    server.patch(&format!("{}/status", path()), &json!({"status": status}));
}

pub fn path() -> String {
    format!("/api/v1/nodes/{NODE}")
}
