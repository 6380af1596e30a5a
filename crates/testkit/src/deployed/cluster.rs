//! A cluster to which the manifests are applied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kube::{self, Kube, Kubeconfig, ServiceAccount};
use crate::world::until;

/// A cluster with DaemonSets and Multus' kind of object, and a node that is this machine.
pub struct Cluster {
    pub kube: Kube,
    folder: TempDir,
}

impl Cluster {
    pub fn new() -> Self {
        // The last of two such flags counts.
        let apis = "api/v1 apps/v1 apiextensions.k8s.io/v1 apiregistration.k8s.io/v1 \
                    authentication.k8s.io/v1 authorization.k8s.io/v1 rbac.authorization.k8s.io/v1";
        let apis: Vec<String> = apis.split_whitespace().map(|api| format!("{api}=true")).collect();
        let flag = format!("--runtime-config=api/all=false,{}", apis.join(","));
        let kube = Kube::builder().flag(flag).start();
        let folder = TempDir::new().unwrap();
        Kubeconfig::of(&kube, &kube.admin()).write(&folder.path().join("admin"));
        let cluster = Self { kube, folder };
        let definition = cluster.folder.path().join("definition.json");
        fs::write(&definition, network_attachment_definitions().to_string()).unwrap();
        cluster.kubectl(&["apply", "-f", definition.to_str().unwrap()]);
        let known = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";
        until("the kind of object is known", || cluster.kube.ask("GET", known, b"").status == 200);
        cluster
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin")
    }

    /// What kubectl prints for the administrator; it must succeed.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(&self.kubeconfig(), arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn try_kubectl(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        let mut kubectl = Command::new(kube::kubectl());
        kubectl.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.folder.path());
        kubectl.arg("--kubeconfig").arg(kubeconfig).args(arguments).output().unwrap()
    }

    /// What `kubectl apply` says of each object of a manifest, by its kind and name.
    #[track_caller]
    pub fn apply(&self, manifest: &Path) -> Vec<String> {
        let said = self.kubectl(&["apply", "-f", manifest.to_str().unwrap()]);
        said.lines().map(str::to_owned).collect()
    }

    /// The service account of the DaemonSets.
    pub fn account(&self) -> ServiceAccount<'_> {
        self.kube.existing_service_account("kube-system", "ipam-delegated")
    }

    #[track_caller]
    pub fn daemon_set(&self, name: &str) -> Value {
        let path = format!("/apis/apps/v1/namespaces/kube-system/daemonsets/{name}");
        self.kube.get(&path).unwrap()
    }

    /// The configuration of a network for Multus.
    pub fn network(&self, name: &str) -> Value {
        let path = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions";
        let object = self.kube.get(&format!("{path}/{name}")).unwrap();
        serde_json::from_str(object["spec"]["config"].as_str().unwrap()).unwrap()
    }
}

/// The kind of object as Multus defines it.
fn network_attachment_definitions() -> Value {
    let config = json!({"type": "object", "properties": {"config": {"type": "string"}}});
    let schema = json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"},
        "metadata": {"type": "object"}, "spec": config,
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition",
                "shortNames": ["net-attach-def"],
            },
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    })
}
