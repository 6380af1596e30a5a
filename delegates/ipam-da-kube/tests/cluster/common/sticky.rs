//! Pods with sticky names, on a server that has their kind.

use std::process::Command;
use std::sync::OnceLock;

use ipam_testkit::kube::{self, Kube, Kubeconfig};
use ipam_testkit::node::{addresses, given};
use ipam_testkit::world::{Outcome, start, until, wait};
use serde_json::{Value, json};

use super::node::{Node, POOL};
use super::{Desk, v094};

/// The group and version of the kind.
pub const STICKY_API: &str = "ipam-delegated.io/v1alpha1";

/// A desk on a server that has the kind.
#[track_caller]
pub fn sticky_desk() -> Desk {
    let kube = v094().served();
    serve_sticky(kube);
    Desk::on(kube)
}

/// Makes the server of the newest release of whereabouts serve the kind.
#[track_caller]
pub fn serve_sticky(kube: &'static Kube) {
    static APPLIED: OnceLock<()> = OnceLock::new();
    APPLIED.get_or_init(|| {
        let namespace = "/api/v1/namespaces/kube-system";
        until("the server has made its namespaces", || kube.get(namespace).is_some());
        kubectl(kube, &["apply", "-f", "deploy/sticky.yaml"]);
        let all = format!("/apis/{STICKY_API}/stickyleases");
        until("the kind is served", || kube.ask("GET", &all, b"").status == 200);
    });
}

/// What kubectl prints, called by an administrator in the folder of the package.
#[track_caller]
pub fn kubectl(kube: &Kube, words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let admin = folder.path().join("admin");
    Kubeconfig::of(kube, &kube.admin()).write(&admin);
    let mut kubectl = Command::new(kube::kubectl());
    kubectl.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", folder.path());
    kubectl.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--kubeconfig").arg(admin).args(words);
    let output = kubectl.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A sandbox of a pod with a sticky name.
#[derive(Clone, Copy)]
pub struct StickySandbox<'a> {
    pub desk: &'a Desk,
    pub node: &'a Node,
    pub container: &'a str,
    pub ifname: &'a str,
    /// Name and uid; no pod if the name is empty.
    pub pod: (&'a str, &'a str),
}

impl<'a> StickySandbox<'a> {
    /// The sandbox of a pod that is an object, on the node of that name.
    #[track_caller]
    pub fn of_pod(
        desk: &'a Desk,
        node: &'a Node,
        container: &'a str,
        pod: &'a str,
        uid: &'a str,
    ) -> Self {
        Self { desk, node, container, ifname: "eth0", pod: (pod, uid) }
    }

    pub fn call_with(&self, verb: &str, prev_result: &Value) -> Outcome {
        let mut network = self.node.network();
        for (key, value) in prev_result.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        wait(start(self.command(verb), &network))
    }

    pub fn command(&self, verb: &str) -> Command {
        let mut command = self.node.command(verb, self.container);
        let (name, uid) = self.pod;
        let mut args = "IgnoreUnknown=1".to_owned();
        if !name.is_empty() {
            let namespace = &self.desk.namespace;
            args.push_str(&format!(
                ";K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}"
            ));
        }
        command.env("CNI_ARGS", args).env("CNI_IFNAME", self.ifname);
        command
    }

    #[track_caller]
    pub fn add(&self) -> Value {
        self.call_with("ADD", &json!({})).success()
    }

    /// An ADD that succeeds: its one address.
    #[track_caller]
    pub fn address(&self) -> String {
        addresses(&self.add()).swap_remove(0)
    }

    /// An ADD that fails with this code.
    #[track_caller]
    pub fn refused(&self, code: u64) -> String {
        let (found, text) = self.call_with("ADD", &json!({})).failure();
        assert_eq!(found, code, "{text}");
        text
    }

    /// A DEL without a record.
    #[track_caller]
    pub fn del(&self) {
        assert_eq!(self.call_with("DEL", &json!({})).success(), Value::Null);
    }

    /// A DEL with the leases of an ADD.
    #[track_caller]
    pub fn del_known(&self, result: &Value) {
        assert_eq!(self.call_with("DEL", &given(result)).success(), Value::Null);
    }
}

impl Desk {
    /// A node whose pool has a sticky name.
    pub fn sticky_node(&self, name: &str, sticky: &str, keep: &str) -> Node {
        let node = Node::of(self).named(name);
        node.with_in_pools("sticky", sticky).with_in_pools("keep", keep)
    }

    pub fn sticky_path(&self, name: &str) -> String {
        format!("/apis/{STICKY_API}/namespaces/{}/stickyleases/{name}", self.namespace)
    }

    /// The object of a sticky name in the pool of nodes.
    pub fn sticky(&self, name: &str) -> Option<Value> {
        self.client.get(&self.sticky_path(&format!("{POOL}.{name}")))
    }

    /// All objects of sticky names, by name.
    #[track_caller]
    pub fn sticky_objects(&self) -> Vec<(String, Value)> {
        let all = self.client.get(self.sticky_path("").trim_end_matches('/')).unwrap();
        let items = all["items"].as_array().unwrap().iter();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        items.map(|object| (name(object), object.clone())).collect()
    }

    /// Makes a pod object, on a node if one is named; returns its uid.
    #[track_caller]
    pub fn create_pod(&self, name: &str, node: &str) -> String {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"containers": [{"name": "a", "image": "a"}]},
        });
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        let pod = self.client.create(&pod);
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Ends the time for which the address of a name is kept.
    #[track_caller]
    pub fn expire(&self, name: &str) {
        let change = json!({"spec": {"keptUntil": "2026-01-01T00:00:00Z"}});
        self.client.patch(&self.sticky_path(&format!("{POOL}.{name}")), &change);
    }

    /// Makes the hold of a name look older than any GC spares.
    #[track_caller]
    pub fn age_holder(&self, name: &str) {
        let change = json!({"spec": {"holder": {"since": "2026-01-01T00:00:00Z"}}});
        self.client.patch(&self.sticky_path(&format!("{POOL}.{name}")), &change);
    }

    pub fn pod_path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{name}", self.namespace)
    }

    /// Deletes a pod object as an operator does who knows that the pod has ended.
    #[track_caller]
    pub fn force_delete_pod(&self, name: &str) {
        let body = json!({"gracePeriodSeconds": 0}).to_string();
        self.client.ask("DELETE", &self.pod_path(name), body.as_bytes()).success();
        assert_eq!(self.client.get(&self.pod_path(name)), None);
    }
}
