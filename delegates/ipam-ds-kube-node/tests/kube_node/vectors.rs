//! What kube-node did, case by case, and where the preset `kube-node` differs, with the reason:
//! `vectors.json`. All else is equal, and so are the files that it leaves.

use std::fs;

use ipam_testkit::kube::Kube;
use ipam_testkit::machine::Machine;
use ipam_testkit::vectors::{Fixture, Stage, Vector};
use ipam_testkit::world::Outcome;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::Site;

const TEXT: &str = include_str!("vectors.json");

const MACHINE_ID: &str = "9a1f0c35e2b84d7f8a6b5c4d3e2f1a0b";

#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<Value>,
}

/// Plays a vector on a machine that is known by its machine-id.
fn play(vector: &Vector) -> (Vec<Outcome>, Value) {
    let site = Site::without_object(Kube::shared(), "vm-002");
    let reads = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]);
    site.kube.allow(&site.login, &reads);
    for (name, content) in &vector.before {
        fs::write(site.world.path("data").join(name), content).unwrap();
    }
    // The program stands behind a script that calls it on the other machine.
    let machine = Machine::named("vm").id(MACHINE_ID);
    let command = machine.run(&site.command("ADD", "c1"));
    let words = command.get_args().map(|word| quoted(word.to_str().unwrap()));
    let words = words.collect::<Vec<_>>().join(" ");
    site.world.program("here", &format!("#!/bin/sh\nexec unshare {words}\n"));
    let kubeconfig = site.kubeconfig_path().display().to_string();
    let places = [("${KUBECONFIG}", kubeconfig.as_str())];
    let outcomes = vector.play(&Stage { world: &site.world, program: "here", places: &places });
    let folder = site.world.path("").display().to_string();
    let plain = |text: String| text.replace(&folder, "${DIR}");
    let after = site.data().into_iter().map(|(path, text)| (path, Value::String(plain(text))));
    (outcomes, Value::Object(after.collect()))
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_with_kube_node() {
    let Nodes { nodes } = serde_json::from_str(&TEXT.replace("${MACHINE_ID}", MACHINE_ID)).unwrap();
    for mut node in nodes {
        node["apiVersion"] = "v1".into();
        node["kind"] = "Node".into();
        node["spec"]["podCIDR"] = node["spec"]["podCIDRs"][0].clone();
        Kube::shared().create(&node);
    }
    let fixture = Fixture::parse(TEXT);
    fixture.differs_only_as_listed(play);
    assert_eq!(fixture.vectors.len(), 7);
}

#[test]
fn every_reason_is_a_difference_that_the_preset_lists() {
    Fixture::parse(TEXT).every_reason_is_in(ipam_delegated::presets::KUBE_NODE_DIFFERENCES);
}
