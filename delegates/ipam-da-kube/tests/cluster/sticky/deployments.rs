//! Pods of Deployments and StatefulSets, whose names come from the selector, by the preset.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipam_testkit::kube::{Kubeconfig, Node as NodeObject};
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use crate::common::Desk;
use crate::common::sticky::{kubectl, sticky_desk};

/// The Deployment of the README of vivekskrishna/whereabouts, word for word.
const DEPLOYMENT_OF_THE_FORK: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  creationTimestamp: null
  labels:
    app: test
  name: test
spec:
  replicas: 1
  selector:
    matchLabels:
      app: test
  strategy: {}
  template:
    metadata:
      annotations:
        k8s.v1.cni.cncf.io/networks: whereabouts-conf
        podname: test234
      creationTimestamp: null
      labels:
        app: test
    spec:
      containers:
      - image: nginx
        imagePullPolicy: IfNotPresent
        name: nginx
        resources: {}
";

/// Its network, without the remarks of the README.
const NETWORK_OF_THE_FORK: &str = "\
apiVersion: \"k8s.cni.cncf.io/v1\"
kind: NetworkAttachmentDefinition
metadata:
  name: whereabouts-conf
spec:
  config: '{
      \"cniVersion\": \"0.3.0\",
      \"name\": \"whereaboutsexample\",
      \"args\": {\"pool\": \"pool1\"},
      \"type\": \"macvlan\",
      \"master\": \"ens38\",
      \"mode\": \"bridge\",
      \"ipam\": {
        \"type\": \"whereabouts\",
        \"datastore\": \"kubernetes\",
        \"range\": \"192.168.2.225/28\",
        \"log_file\": \"/tmp/whereabouts.log\",
        \"log_level\": \"debug\"
      }
    }'
";

/// The object of a manifest, whose kind the server may not have.
#[track_caller]
fn object_of(desk: &Desk, manifest: &str) -> Value {
    let file = desk.folder.path().join("manifest.yaml");
    fs::write(&file, manifest).unwrap();
    let file = file.to_str().unwrap();
    let told = kubectl(desk.kube, &["label", "--local", "-f", file, "-o", "json", "a=b"]);
    serde_json::from_str(&told).unwrap()
}

/// The configuration of a NetworkAttachmentDefinition.
#[track_caller]
fn network_of(desk: &Desk, manifest: &str) -> Value {
    let config = object_of(desk, manifest)["spec"]["config"].clone();
    serde_json::from_str(config.as_str().unwrap()).unwrap()
}

/// A node with the preset.
struct PresetNode(World);

impl PresetNode {
    fn new(desk: &Desk) -> Self {
        let world = World::new();
        for name in ["ipam-delegated", "ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-kube"] {
            world.install(&binary(name));
        }
        symlink("ipam-delegated", world.path("bin/whereabouts")).unwrap();
        let more = json!({"contexts": [{"context": {"namespace": desk.namespace}}]});
        let kubeconfig = Kubeconfig::of(desk.kube, &desk.login).more(&more);
        kubeconfig.write(&world.path("kubeconfig"));
        Self(world)
    }

    /// A call for a sandbox of a pod: its name and uid.
    fn call(
        &self,
        desk: &Desk,
        verb: &str,
        container: &str,
        pod: [&str; 2],
        network: &Value,
    ) -> Outcome {
        let Self(world) = self;
        let mut network = network.clone();
        network["ipam"]["kubernetes"] = json!({"kubeconfig": world.path("kubeconfig")});
        network["ipam"]["stateDir"] = json!(world.path("state"));
        let mut command = world.command_of(&world.path("bin/whereabouts"), verb, container);
        let [name, uid] = pod;
        let namespace = &desk.namespace;
        command.env("CNI_IFNAME", "net1").env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}"),
        );
        wait(start(command, &network))
    }
}

impl Desk {
    /// A pod of a controller, with these annotations.
    #[track_caller]
    fn create_owned_pod(&self, name: &str, node: &str, annotations: &Value, set: &str) -> String {
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": set, "name": "test", "uid": "7c0e", "controller": true,
        }]);
        let pod = self.client.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.namespace, "annotations": annotations,
                "ownerReferences": owner,
            },
            "spec": {"nodeName": node, "containers": [{"image": "nginx", "name": "nginx"}]},
        }));
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }
}

#[test]
fn the_example_of_the_fork_keeps_its_address_where_no_del_was_sent_for_the_failed_pod() {
    let desk = sticky_desk();
    let object = format!("n1.{}", desk.namespace);
    desk.client.create_node(&NodeObject::named(&object));
    let [failed, next] = [(); 2].map(|()| PresetNode::new(&desk));
    let deployment = object_of(&desk, DEPLOYMENT_OF_THE_FORK);
    let annotations = deployment["spec"]["template"]["metadata"]["annotations"].clone();
    let mut network = network_of(&desk, NETWORK_OF_THE_FORK);
    // The one addition: the network allows pods to name themselves.
    network["ipam"]["pod"] = json!({"sticky": "name", "nameScope": "cluster"});
    let uid = desk.create_owned_pod("test-5d8f7-abcde", &object, &annotations, "ReplicaSet");
    let pod = ["test-5d8f7-abcde", &uid];
    let first = failed.call(&desk, "ADD", "c1", pod, &network).ips();
    // The node fails. The Deployment makes a pod of another name, on another node.
    let uid = desk.create_owned_pod("test-5d8f7-fghij", "n2", &annotations, "ReplicaSet");
    let other = ["test-5d8f7-fghij", &uid];
    let (code, text) = next.call(&desk, "ADD", "c2", other, &network).failure();
    let holder = format!("is held by the pod {}/test-5d8f7-abcde", desk.namespace);
    assert!(code == 11 && text.contains(&holder), "{code} {text}");
    desk.force_delete_pod("test-5d8f7-abcde");
    assert_eq!(next.call(&desk, "ADD", "c2", other, &network).ips(), first);
    // The node comes back.
    failed.call(&desk, "DEL", "c1", pod, &network).ended_well();
    next.call(&desk, "CHECK", "c2", other, &network);
    assert_eq!(desk.objects().held().len(), 1);
    next.call(&desk, "DEL", "c2", other, &network).ended_well();
    assert_eq!((desk.held(), desk.sticky_objects()), (Vec::new(), Vec::new()));
}

#[test]
fn pods_of_a_stateful_set_keep_their_addresses_from_node_to_node() {
    let desk = sticky_desk();
    let nodes = [(); 2].map(|()| PresetNode::new(&desk));
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/statefulset.yaml");
    let example = fs::read_to_string(example).unwrap();
    let (definition, set) = example.split_once("\n---\n").unwrap();
    let (network, set) = (network_of(&desk, definition), object_of(&desk, set));
    let annotations = &set["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.v1.cni.cncf.io/networks"], network["name"]);
    let round = |container: &str, first: usize| -> Vec<String> {
        let mut given = Vec::new();
        for number in 0..3 {
            let name = format!("test-{number}");
            let uid = desk.create_owned_pod(&name, "n1", &json!({}), "StatefulSet");
            let container = format!("{container}{number}");
            let node = &nodes[(first + number) % 2];
            let pod = [name.as_str(), uid.as_str()];
            given.extend(node.call(&desk, "ADD", &container, pod, &network).ips());
            node.call(&desk, "DEL", &container, pod, &network).ended_well();
            desk.force_delete_pod(&name);
        }
        given
    };
    let given = round("a", 0);
    assert_eq!(given.len(), 3);
    assert_eq!(round("b", 1), given);
}
