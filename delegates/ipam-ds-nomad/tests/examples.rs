//! The example job in the example network.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use common::{ID, Nomad, allocation, call};

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    fs::read_to_string(path).unwrap()
}

/// The blocks of this kind, each with its attributes that are plain texts.
fn blocks(hcl: &str, kind: &str) -> Vec<Map<String, Value>> {
    let begin = format!("\n    {kind} {{\n");
    let block = |text: &str| {
        let (inside, _) = text.split_once("\n    }").unwrap();
        let attribute = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.trim().to_owned(), json!(value.trim().trim_matches('"'))))
        };
        inside.lines().filter_map(attribute).collect()
    };
    hcl.split(&begin).skip(1).map(block).collect()
}

#[test]
fn the_groups_of_the_job_get_their_pools() {
    let job = example("nomad-job.hcl");
    let conflist: Value =
        serde_json::from_str(&example("70-ipam-delegated-nomad.conflist")).unwrap();
    let plugins = conflist["plugins"].as_array().unwrap();
    let bridge = plugins.iter().find(|plugin| plugin["ipam"].is_object()).unwrap();
    let (networks, metas) = (blocks(&job, "network"), blocks(&job, "meta"));
    let mut chosen = Vec::new();
    for (network, meta) in networks.iter().zip(&metas) {
        let nomad = Nomad::with(ID, &allocation(json!(meta), json!([{"Mode": network["mode"]}])));
        let mut config = bridge.clone();
        config["cniVersion"] = conflist["cniVersion"].clone();
        config["name"] = conflist["name"].clone();
        config["ipam"]["nomad_servers"] = json!([nomad.url]);
        config["ipam"]["nomad"] = Value::Null;
        let outcome = call("ADD", ID, &config);
        // The network of the job is that of the file: no warning.
        assert_eq!(outcome.stderr, "");
        chosen.push(outcome.success()["pools"][0].clone());
    }
    let leader =
        json!({"name": "shop", "requested-ip": "10.217.0.10", "requested_ip": "10.217.0.10"});
    assert_eq!(chosen, [leader, json!({"name": "shop"})]);
}
