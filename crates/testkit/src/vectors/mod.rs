//! What a system did that a preset replaces, and where we differ.

mod comparison;
mod difference;

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::world::{Outcome, World, start_raw, wait};
pub use comparison::Comparison;
pub use difference::Difference;

/// The cases of one system.
#[derive(Deserialize)]
pub struct Fixture {
    pub classes: BTreeMap<String, Class>,
    pub reasons: BTreeMap<String, String>,
    pub vectors: Vec<Vector>,
}

/// A class of errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    pub code: u64,
    #[serde(default)]
    pub same_words: bool,
}

/// One case: calls that follow each other, from one state to another.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    pub id: String,
    pub about: String,
    /// Not what Debian's program of this name answers.
    #[serde(default)]
    pub newer: bool,
    pub config: Value,
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    #[serde(default)]
    pub before: BTreeMap<String, String>,
    pub steps: Vec<Step>,
    pub after: BTreeMap<String, String>,
    #[serde(default)]
    pub differences: Vec<Difference>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub command: String,
    #[serde(default)]
    pub container_id: String,
    #[serde(default)]
    pub ifname: String,
    #[serde(default)]
    pub env: BTreeMap<String, Option<String>>,
    #[serde(default)]
    pub config: Value,
    pub stdin: Option<String>,
    /// None: it did not end.
    #[serde(deserialize_with = "Option::deserialize")]
    pub exit: Option<i32>,
    #[serde(default)]
    pub stdout: Value,
    pub error: Option<Failure>,
    /// What was sent to a store.
    #[serde(default)]
    pub requests: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub class: String,
    pub code: u64,
    pub msg: String,
}

/// Where vectors are played: a world, the name of the program in its plugin folder, and what stands
/// for the placeholders of the configurations beside `${DIR}`.
pub struct Stage<'a> {
    pub world: &'a World,
    pub program: &'a str,
    pub places: &'a [(&'a str, &'a str)],
}

impl Fixture {
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap()
    }

    /// Plays every vector; fails where we differ otherwise than listed, or where something is listed
    /// that is no difference. `play` gives the outcomes and the state after.
    #[track_caller]
    pub fn differs_only_as_listed(&self, play: impl Fn(&Vector) -> (Vec<Outcome>, Value)) {
        let mut comparison = Comparison::with(&self.reasons);
        for vector in &self.vectors {
            let place = format!("{} ({})", vector.id, vector.about);
            let (outcomes, after) = play(vector);
            let steps: Vec<_> = outcomes.iter().map(describe).collect();
            let observed = json!({"steps": steps, "after": after});
            comparison.add(&place, vector.recorded(self), &vector.differences, &observed);
            for (step, outcome) in vector.steps.iter().zip(outcomes) {
                let Some(error) = &step.error else { continue };
                if self.classes[&error.class].same_words && outcome.exit == Some(1) {
                    let (_, text) = outcome.failure();
                    if !text.contains(&error.msg) {
                        comparison.fault(&place, &format!("{text} lacks {:?}", error.msg));
                    }
                }
            }
        }
        comparison.finish();
    }

    /// Whoever is about to switch is told every reason.
    #[track_caller]
    pub fn every_reason_is_in(&self, told: &[&str]) {
        for (name, reason) in &self.reasons {
            assert!(told.contains(&reason.as_str()), "{name}: {reason}");
        }
    }
}

impl Vector {
    /// What we are to do, but for the differences.
    fn recorded(&self, fixture: &Fixture) -> Value {
        let steps = self.steps.iter().map(|step| match &step.error {
            Some(error) => json!({"exit": step.exit, "code": fixture.classes[&error.class].code}),
            None => json!({"exit": step.exit, "stdout": step.stdout}),
        });
        json!({"steps": steps.collect::<Vec<_>>(), "after": self.after})
    }

    /// Runs the steps; the state before is there already.
    pub fn play(&self, stage: &Stage<'_>) -> Vec<Outcome> {
        for (name, content) in &self.files {
            fs::write(stage.world.path(name), content).unwrap();
        }
        self.steps.iter().map(|step| step.play(stage, &self.config)).collect()
    }
}

impl Step {
    fn play(&self, stage: &Stage<'_>, config: &Value) -> Outcome {
        let world = stage.world;
        let mut config = config.clone();
        merge(&mut config, &self.config);
        for key in ["ipam", "IPAM"] {
            if let Some(ipam) = config.get_mut(key) {
                ipam["stateDir"] = json!(world.path("state"));
            }
        }
        let mut text = config.to_string().replace("${DIR}", world.path("").to_str().unwrap());
        for (place, value) in stage.places {
            text = text.replace(place, value);
        }
        assert!(!text.contains("${"), "{text}");
        let program = world.path("bin").join(stage.program);
        let mut command = world.command_of(&program, &self.command, &self.container_id);
        command.env("CNI_IFNAME", &self.ifname);
        for (key, value) in &self.env {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        wait(start_raw(command, self.stdin.as_ref().unwrap_or(&text).as_bytes()))
    }
}

/// Our outcome as the expected one is written.
fn describe(outcome: &Outcome) -> Value {
    let json = outcome.json();
    match json.get("code") {
        Some(code) => json!({"exit": outcome.exit, "code": code}),
        None => json!({"exit": outcome.exit, "stdout": json}),
    }
}

/// Puts `patch` over `value`, member by member.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return };
    for (key, theirs) in patch {
        match value.get_mut(key) {
            Some(Value::Object(_)) if theirs.is_object() => merge(&mut value[key], theirs),
            _ => value[key] = theirs.clone(),
        }
    }
}
