//! The preset `whereabouts` with all of its programs: an address that stays with the name of a pod.

use std::path::Path;
use std::process::Command;

use ipam_testkit::kube::{self, Node};
use ipam_testkit::whereabouts::Crds;
use ipam_testkit::world::{Outcome, World, binary, until};
use serde_json::{Value, json};

use crate::chain::shown;
use crate::site::Site;

/// A server with the definitions that are shipped.
fn site() -> Site {
    let kube = Crds::shipped().served();
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let site = Site::on(kube, &everything);
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ipam-da-kube/deploy");
    let mut kubectl = Command::new(kube::kubectl());
    kubectl.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", site.world.path(""));
    kubectl.arg("--kubeconfig").arg(site.world.path("kubeconfig"));
    let output = kubectl.args(["apply", "-f"]).arg(deploy.join("sticky.yaml")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let all = "/apis/ipam-delegated.io/v1alpha1/stickyleases";
    until("the kind is served", || kube.ask("GET", all, b"").status == 200);
    kube.create_node(&Node::named("node-1"));
    site
}

/// A node with the programs of the preset.
fn node() -> World {
    let world = World::new();
    for name in ["ipam-delegated", "ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-kube"] {
        world.install(&binary(name));
    }
    world.install_as(&binary("ipam-delegated"), "whereabouts");
    world
}

fn call(site: &Site, node: &World, verb: &str, container: &str, args: &str) -> Outcome {
    let mut network = shown(0);
    network["ipam"]["kubernetes"] = json!({"kubeconfig": site.world.path("kubeconfig")});
    network["ipam"]["stateDir"] = json!(node.path("state"));
    let mut command = node.command_of(&node.path("bin/whereabouts"), verb, container);
    command.env("CNI_IFNAME", "net1").env("CNI_ARGS", args);
    site.run(command, &network)
}

#[test]
fn a_pod_of_the_forks_example_keeps_its_address_when_its_node_is_lost() {
    let site = site();
    let nodes = [node(), node()];
    let named = json!({"k8s.v1.cni.cncf.io/networks": "whereabouts-conf", "podname": "test234"});
    let first = site.annotated("test-5d9f-first", &named);
    let address = call(&site, &nodes[0], "ADD", "c1", &first).ips();
    let other = site.annotated("other", &Value::Null);
    assert_ne!(call(&site, &nodes[1], "ADD", "c2", &other).ips(), address);
    // The next pod of the name waits until the pod object of the first has gone.
    let second = site.annotated("test-5d9f-second", &named);
    let (code, text) = call(&site, &nodes[1], "ADD", "c3", &second).failure();
    assert!(code == 11 && text.contains("test-5d9f-first"), "{code}: {text}");
    site.delete_pod("test-5d9f-first");
    assert_eq!(call(&site, &nodes[1], "ADD", "c3", &second).ips(), address);
    // The node comes back, and releases what it knows.
    call(&site, &nodes[0], "DEL", "c1", &first).success();
    let late = site.annotated("late", &Value::Null);
    assert_ne!(call(&site, &nodes[0], "ADD", "c4", &late).ips(), address);
    // Scaled to 0 and back: the address was kept meanwhile.
    call(&site, &nodes[1], "DEL", "c3", &second).success();
    site.delete_pod("test-5d9f-second");
    let between = site.annotated("between", &Value::Null);
    assert_ne!(call(&site, &nodes[1], "ADD", "c5", &between).ips(), address);
    let third = site.annotated("test-5d9f-third", &named);
    assert_eq!(call(&site, &nodes[0], "ADD", "c6", &third).ips(), address);
}
