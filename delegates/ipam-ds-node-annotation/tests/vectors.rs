//! The node-annotation of Nordix/ipam-node-annotation, case by case: `vectors.json` says what it did and
//! where the preset differs, with the reason. All else is equal.

#![allow(clippy::unwrap_used, reason = "tests")]

mod node_annotation {
    pub mod common;
}

use std::fs;

use ipam_delegated::presets::NODE_ANNOTATION_DIFFERENCES;
use ipam_testkit::kube::Node;
use ipam_testkit::vectors::{Fixture, Vector};
use ipam_testkit::world::Outcome;
use serde_json::{Map, Value, json};

use node_annotation::common::{CONF, Site};

const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";

/// The annotations of the recording that its cases name, and one in a folder of the test.
const ANNOTATIONS: [(&str, &str); 3] = [
    ("example.com/na", r#""ranges": [[{"subnet": "172.16.5.0/24"}]]"#),
    (
        "example.com/na-null",
        r#""ranges": [[{"subnet":"10.0.0.0/24"}]], "resolvConf": "${DIR}/null.conf""#,
    ),
    ("example.com/na-expr", r#"ranges: [[{subnet: ("10.77." + "0.0/24")}]]"#),
];

fn fixture() -> Fixture {
    Fixture::parse(include_str!("vectors.json"))
}

/// This machine's node is known by its machine-id, as node-annotation knew it.
fn play(vector: &Vector) -> (Vec<Outcome>, Value) {
    let site = Site::bare();
    let all = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]);
    site.kube.allow(&site.login, &all);
    let folder = site.world.path("").display().to_string();
    // Its files lie where the host allows them.
    site.host.settings(&json!({"stateDir": site.world.path("state"), "resolvDirs": [folder.trim_end_matches('/')]}));
    for name in ["vm-001", "vm-002"] {
        site.kube.delete_node(name);
    }
    for name in vector.files["nodes"].split(' ') {
        let own = name == "vm-002";
        let mut node = Node::named(name).machine_id(if own { MACHINE_ID } else { "other" });
        for (name, text) in ANNOTATIONS.iter().filter(|_| own) {
            node = node.annotation(name, &text.replace("${DIR}/", &folder));
        }
        site.kube.create_node(&node);
    }
    for (name, text) in &vector.files {
        fs::write(site.world.path(name), text).unwrap();
    }
    let conf = vector.files.get("conf").map_or("{}", String::as_str);
    let mut conf: Value = serde_json::from_str(conf).unwrap();
    conf["kubeconfig"] = json!(site.world.path("kubeconfig"));
    fs::write(site.host.path(CONF), conf.to_string()).unwrap();
    site.host.shell(&format!(
        "echo {MACHINE_ID} >/etc/cni/id; mount --bind /etc/cni/id /etc/machine-id"
    ));
    let outcomes = vector.steps.iter().map(|step| {
        let mut command = site.command(&step.command, &step.container_id);
        command.env("CNI_IFNAME", &step.ifname);
        ipam_testkit::world::wait(ipam_testkit::world::start(command, &vector.config))
    });
    let outcomes = outcomes.collect();
    let leases = site.host.path("/var/lib/cni/networks/mynet");
    let held = site.leases("mynet").into_iter().map(|address| {
        let content = fs::read_to_string(leases.join(&address)).unwrap();
        (address, Value::String(content))
    });
    (outcomes, Value::Object(held.collect::<Map<_, _>>()))
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_in_node_annotation() {
    let fixture = fixture();
    assert_eq!(fixture.vectors.len(), 5);
    fixture.differs_only_as_listed(play);
}

#[test]
fn every_reason_is_told_before_the_switch() {
    fixture().every_reason_is_in(NODE_ANNOTATION_DIFFERENCES);
}
