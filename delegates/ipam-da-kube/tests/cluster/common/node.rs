//! Nodes of a desk, which call the program, also for pods.

use ipam_testkit::kube::{Kubeconfig, Login};
use ipam_testkit::node::{Store, subnets};
use ipam_testkit::whereabouts::{POOLS, RESERVATIONS};
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use super::Desk;

/// A node that calls the program.
pub type Node = ipam_testkit::node::Node<Desk>;

/// The subnet of the pool that nodes use if a test names no other, and the pool's name.
pub const SUBNET: &str = "10.1.2.0/24";
pub const POOL: &str = "10.1.2.0-24";

impl Store for Desk {
    const NAME: &'static str = "kube";

    fn address(&self) -> String {
        self.kubeconfig_path().display().to_string()
    }

    fn servers(addresses: &[String]) -> Value {
        json!({"kube": {"kubeconfig": addresses[0], "timeout": "20s"}})
    }

    fn pools() -> Value {
        subnets(&[SUBNET])
    }
}

/// A sandbox of a pod on a node.
#[derive(Clone, Copy)]
pub struct Sandbox<'a> {
    pub node: &'a Node,
    pub container: &'a str,
    pub ifname: &'a str,
    /// The pod's name in the namespace `ns`, and its uid.
    pub pod: (&'a str, &'a str),
}

impl Sandbox<'_> {
    pub fn call_with(&self, verb: &str, prev_result: &Value) -> Outcome {
        let mut network = self.node.network();
        for (key, value) in prev_result.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        let (name, uid) = self.pod;
        let mut args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={name}");
        if !uid.is_empty() {
            args.push_str(&format!(";K8S_POD_UID={uid}"));
        }
        let mut command = self.node.command(verb, self.container);
        command.env("CNI_ARGS", args).env("CNI_IFNAME", self.ifname);
        wait(start(command, &network))
    }

    #[track_caller]
    pub fn add(&self) -> Value {
        self.call_with("ADD", &json!({})).success()
    }

    /// An ADD that succeeds: its one address.
    #[track_caller]
    pub fn address(&self) -> String {
        ipam_testkit::node::addresses(&self.add()).swap_remove(0)
    }

    /// A DEL without a record.
    #[track_caller]
    pub fn del(&self) {
        assert_eq!(self.call_with("DEL", &json!({})).success(), Value::Null);
    }

    /// A DEL with the leases of an ADD.
    #[track_caller]
    pub fn del_known(&self, result: &Value) {
        let given = ipam_testkit::node::given(result);
        assert_eq!(self.call_with("DEL", &given).success(), Value::Null);
    }
}

impl Desk {
    /// Writes the kubeconfig of the desk for another login.
    pub fn log_in(&self, login: &Login) {
        self.kubeconfig_of(login).write(&self.kubeconfig_path());
    }

    /// A kubeconfig with the namespace of the desk.
    pub fn kubeconfig_of(&self, login: &Login) -> Kubeconfig {
        let more = json!({"contexts": [{"context": {"namespace": self.namespace}}]});
        Kubeconfig::of(self.kube, login).more(&more)
    }

    pub fn kubeconfig_path(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// All entries, as `POOL KEY ID`, and all reservations, as `NAME CONTAINER`.
    #[track_caller]
    pub fn held(&self) -> Vec<String> {
        let objects = self.objects();
        let mut held = Vec::new();
        for (name, pool) in objects.pools() {
            for (key, entry) in pool["spec"]["allocations"].as_object().into_iter().flatten() {
                held.push(format!("{name} {key} {}", entry["id"].as_str().unwrap_or("-")));
            }
        }
        for (name, reservation) in objects.reservations() {
            let container = reservation["spec"]["containerid"].as_str();
            held.push(format!("{name} {}", container.unwrap_or("-")));
        }
        held
    }

    /// Changes an object of whereabouts.
    #[track_caller]
    pub fn patch(&self, plural: &str, name: &str, change: &Value) {
        assert!([POOLS, RESERVATIONS].contains(&plural));
        self.client.patch(&self.objects().path(plural, name), change);
    }
}

/// Changes the last line of a file of the state folder, which is the one that counts.
#[track_caller]
pub fn change_note(path: &std::path::Path, change: impl FnOnce(&mut Value)) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut noted: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    change(&mut noted);
    std::fs::write(path, format!("{noted}\n")).unwrap();
}
