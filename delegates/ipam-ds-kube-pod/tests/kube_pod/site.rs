//! A namespace with pods, and a machine with a login that may read pods and that namespace.

use std::process::Command;

use ipam_testkit::kube::{Grant, Kube, Kubeconfig, Login, Request};
use ipam_testkit::world::{Outcome, World, start, wait};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-ds-kube-pod");

/// The section `pod` that allows all.
pub fn all() -> Value {
    json!({
        "sticky": "name", "keep": "1h", "pools": ["blue", "red", "blue6"],
        "poolFrom": ["pod", "namespace"], "addresses": true,
    })
}

pub struct Site {
    pub kube: &'static Kube,
    pub world: World,
    pub login: Login,
    pub namespace: String,
    _grant: Grant<'static>,
}

impl Site {
    #[track_caller]
    pub fn new() -> Self {
        let get =
            |plural: &str| json!({"apiGroups": [""], "resources": [plural], "verbs": ["get"]});
        Self::allowed(&json!([get("pods"), get("namespaces")]))
    }

    /// A login with these rights.
    #[track_caller]
    pub fn allowed(rules: &Value) -> Self {
        let kube = Kube::shared();
        let (world, login) = (World::new(), kube.user());
        let grant = kube.allow(&login, rules);
        let namespace = kube.create_namespace();
        Kubeconfig::of(kube, &login).write(&world.path("kubeconfig"));
        Self { kube, world, login, namespace, _grant: grant }
    }

    /// Makes a pod, and gives its uid.
    #[track_caller]
    pub fn pod(&self, name: &str, metadata: &Value) -> String {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "none"}]},
        });
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(self.namespace);
        self.kube.create(&pod)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Makes a pod with these annotations, and gives the `CNI_ARGS` of its calls.
    #[track_caller]
    pub fn annotated(&self, name: &str, annotations: &Value) -> String {
        self.args(name, &self.pod(name, &json!({"annotations": annotations})))
    }

    #[track_caller]
    pub fn delete_pod(&self, name: &str) {
        let path = format!("/api/v1/namespaces/{}/pods/{name}", self.namespace);
        self.kube.delete(&format!("{path}?gracePeriodSeconds=0"));
    }

    #[track_caller]
    pub fn annotate_namespace(&self, annotations: &Value) {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        self.kube.patch(&path, &json!({"metadata": {"annotations": annotations}}));
    }

    /// As containerd writes it.
    pub fn args(&self, pod: &str, uid: &str) -> String {
        format!(
            "K8S_POD_UID={uid};IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={pod};\
             K8S_POD_INFRA_CONTAINER_ID=c1",
            self.namespace
        )
    }

    /// What the chain gives the selector: three named pools of earlier selectors, and one without a
    /// name.
    pub fn network(&self, pod: &Value) -> Value {
        let ranges = |subnet: &str| json!([{ "subnet": subnet }]);
        json!({
            "cniVersion": "1.0.0", "name": "net", "type": "macvlan",
            "ipam": {
                "type": "ipam-ds-kube-pod", "pod": pod,
                "kubeconfig": self.world.path("kubeconfig"), "stateDir": self.world.path("state"),
            },
            "prevResult": {"cniVersion": "1.0.0", "ips": [], "pools": [
                {"name": "blue", "ranges": ranges("10.1.0.0/24")},
                {"name": "red", "ranges": ranges("10.2.0.0/24")},
                {"name": "blue6", "ranges": ranges("fd01::/64")},
                {"ranges": ranges("10.3.0.0/24"), "index": 7, "colour": "grey"},
            ]},
        })
    }

    /// A call of the selector for a pod.
    pub fn command(&self, verb: &str, args: &str) -> Command {
        let mut command = self.world.command_of(PROGRAM.as_ref(), verb, "c1");
        command.env("CNI_IFNAME", "net1").env("CNI_ARGS", args);
        if matches!(verb, "GC" | "STATUS") {
            command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        command
    }

    /// Runs a call, which shows no secret.
    #[track_caller]
    pub fn run(&self, command: Command, network: &Value) -> Outcome {
        let outcome = wait(start(command, network));
        let token = self.login.token().unwrap();
        assert!(!outcome.stdout.contains(token), "{}", outcome.stdout);
        assert!(!outcome.stderr.contains(token), "{}", outcome.stderr);
        outcome
    }

    /// ADD for a pod.
    #[track_caller]
    pub fn add(&self, args: &str, network: &Value) -> Outcome {
        self.run(self.command("ADD", args), network)
    }

    /// The pools that an ADD for a pod chooses, as [`lines`].
    #[track_caller]
    pub fn chosen(&self, args: &str, pod: &Value) -> Vec<String> {
        lines(&self.add(args, &self.network(pod)).success())
    }

    /// What the server was asked by this machine, as `VERB PATH CODE`, with NS for the namespace.
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        let requests = self.kube.requests_of(&self.login.user);
        requests.iter().map(Request::line).map(|it| it.replace(&self.namespace, "NS")).collect()
    }
}

/// The pools of an answer: name, and what is asked of it.
pub fn lines(answer: &Value) -> Vec<String> {
    let pools = answer["pools"].as_array().unwrap().iter();
    let line = |pool: &Value| {
        let keys = ["name", "requested-ip", "sticky", "keep"];
        let texts = keys.iter().filter_map(|key| pool[key].as_str());
        texts.collect::<Vec<_>>().join(" ")
    };
    pools.map(line).collect()
}
