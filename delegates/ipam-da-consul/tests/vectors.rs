//! passcod's ipam-da-consul, case by case: `tests/vectors/passcod-consul.json` says what it did and
//! where we differ, with the reason. All else is equal.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use ipam_testkit::consul::Consul;
use ipam_testkit::vectors::{Fixture, Stage};
use ipam_testkit::world::{Outcome, World};
use serde_json::{Map, Value, json};

use common::PROGRAM;

fn fixture() -> Fixture {
    Fixture::parse(include_str!("../../../tests/vectors/passcod-consul.json"))
}

/// An outcome without what delegates tell each other.
fn plain(outcome: Outcome) -> Outcome {
    let mut json = outcome.json();
    let Some(result) = json.as_object_mut().filter(|result| result.contains_key("ips")) else {
        return outcome;
    };
    assert_eq!(result.remove("pools"), Some(json!([])));
    let leases = result.remove("leases").unwrap();
    let addresses = |list: &Value| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|item| item["address"].clone()).collect()
    };
    assert_eq!(addresses(&leases), addresses(&result["ips"]));
    Outcome { stdout: json.to_string(), ..outcome }
}

/// All keys that passcod may know, with their values; of an allocation the target alone.
fn state(consul: &Consul) -> Value {
    let theirs =
        consul.list("").into_iter().filter(|entry| !entry.key.starts_with("ipam/.owners/"));
    let plain = |value: String| match serde_json::from_str(&value) {
        Ok(Value::Object(allocation)) if allocation.contains_key("target") => {
            json!({"target": allocation["target"]}).to_string()
        }
        _ => value,
    };
    let state: Map<_, _> =
        theirs.map(|entry| (entry.key, Value::String(plain(entry.value)))).collect();
    Value::Object(state)
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_in_passcod() {
    let fixture = fixture();
    assert_eq!(fixture.vectors.len(), 15);
    differs_only_as_listed(&fixture);
}

#[track_caller]
fn differs_only_as_listed(fixture: &Fixture) {
    let consul = Consul::start();
    fixture.differs_only_as_listed(|vector| {
        consul.delete_all("");
        consul.put_all(vector.before.clone());
        let world = World::new();
        world.install(Path::new(PROGRAM));
        let url = consul.url();
        let stage =
            Stage { world: &world, program: "ipam-da-consul", places: &[("${CONSUL}", &url)] };
        let outcomes = vector.play(&stage).into_iter().map(plain).collect();
        (outcomes, state(&consul))
    });
}

/// The comparison sees whatever is not listed.
#[test]
#[should_panic(expected = "003 (pool full")]
fn a_difference_that_is_not_listed_is_seen() {
    let mut fixture = fixture();
    fixture.vectors[0].differences.remove(0);
    differs_only_as_listed(&fixture);
}
