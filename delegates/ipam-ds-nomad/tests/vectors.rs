//! What the ipam-ds-nomad of passcod/cni-plugins did, case by case, and where we differ, with the reason:
//! `vectors.json`. All else is equal.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;

use ipam_testkit::vectors::{Comparison, Difference};
use serde::Deserialize;
use serde_json::{Value, json};

use common::{ID, Nomad, call};

#[derive(Deserialize)]
struct Fixture {
    reasons: BTreeMap<String, String>,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    id: String,
    about: String,
    config: Value,
    allocation: Value,
    /// What the server answers instead.
    status: Option<u16>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    command: String,
    recorded: Value,
    differences: Vec<Difference>,
}

impl Vector {
    /// Runs a step and describes it as the recording does; a request that is repeated counts once.
    fn play(&self, step: &Step) -> Value {
        let nomad = match self.status {
            Some(status) => Nomad::saying(status, &format!("{{\"error\": \"status {status}\"}}")),
            None => Nomad::with(ID, &self.allocation),
        };
        let mut config = self.config.to_string().replace("${NOMAD}", &nomad.url);
        config = config
            .replace("\"nomad_servers\"", "\"nomad\":{\"timeout\":\"300ms\"},\"nomad_servers\"");
        let outcome = call(&step.command, ID, &serde_json::from_str(&config).unwrap());
        let mut requests = nomad.requests();
        requests.dedup();
        let observed =
            json!({"exit": outcome.exit, "stdout": outcome.json(), "requests": requests});
        let text = observed.to_string().replace(&nomad.url, "${NOMAD}").replace(ID, "${ID}");
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_in_passcod() {
    let fixture: Fixture = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let mut comparison = Comparison::with(&fixture.reasons);
    for vector in &fixture.vectors {
        for step in &vector.steps {
            let place = format!("{} {} ({})", vector.id, step.command, vector.about);
            let observed = vector.play(step);
            comparison.add(&place, step.recorded.clone(), &step.differences, &observed);
        }
    }
    comparison.finish();
    assert_eq!(fixture.vectors.len(), 6);
}

/// Whoever is about to switch is told every reason.
#[test]
fn the_readme_has_every_reason() {
    let fixture: Fixture = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let readme = include_str!("../README.md").replace("\n  ", " ");
    for (name, reason) in &fixture.reasons {
        assert!(readme.contains(&format!("\n- {reason}\n")), "{name}: {reason}");
    }
}
