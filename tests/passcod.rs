//! Passcod's behaviour, case by case: `tests/vectors/passcod.json` says what it did and where
//! we differ, with the reason. All else is equal.

use std::collections::BTreeMap;

use ipam_testkit::vectors::{Comparison, Difference};
use ipam_testkit::world::World;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Fixture {
    reasons: BTreeMap<String, String>,
    /// What a delegate prints, and how it ends, by verb.
    mocks: BTreeMap<String, BTreeMap<String, Mock>>,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mock {
    stdout: Value,
    #[serde(default)]
    exit: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    id: String,
    about: String,
    /// Name → mock.
    delegates: BTreeMap<String, String>,
    config: Value,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    command: String,
    container_id: Option<String>,
    ifname: Option<String>,
    stdin_raw: Option<String>,
    recorded: Value,
    differences: Vec<Difference>,
}

impl Step {
    /// Runs the step and describes it as the recording does.
    fn play(&self, world: &World, config: &Value) -> Value {
        let mut config = config.clone();
        if let Some(ipam) = config.get_mut("ipam").and_then(Value::as_object_mut) {
            ipam.insert("stateDir".to_owned(), json!(world.path("state")));
        }
        let mut command = world.command(&self.command, self.container_id.as_deref().unwrap_or(""));
        command.env("CNI_IFNAME", self.ifname.as_deref().unwrap_or(""));
        command.env("CNI_NETNS", "/some/where");
        let stdin = self.stdin_raw.clone().unwrap_or_else(|| config.to_string());
        let outcome =
            ipam_testkit::world::wait(ipam_testkit::world::start_raw(command, stdin.as_bytes()));
        let calls = world.calls();
        world.take_calls();
        let described = calls.iter().map(|call| {
            let mut prev_result = call["stdin"]["prevResult"].clone();
            if let Some(fence) = prev_result.get_mut("fence") {
                // A time.
                assert!(fence["after"].is_u64());
                *fence = json!(true);
            }
            json!({"plugin": call["delegate"], "command": call["verb"], "prevResult": prev_result})
        });
        let mut observed = json!({
            "exit": outcome.exit,
            "stdout": outcome.json(),
            "delegate_calls": described.collect::<Vec<_>>(),
        });
        if self.recorded.get("delegate_stdin").is_some() {
            let mut stdin = calls[0]["stdin"].clone();
            let ipam = stdin["ipam"].as_object_mut().expect("an object");
            ipam.remove("stateDir");
            // A random UUID.
            assert!(ipam.remove("node").is_some_and(|node| node.is_string()));
            observed["delegate_stdin"] = stdin;
        }
        observed
    }
}

/// A delegate in shell that prints what its mock says.
fn script(mock: &BTreeMap<String, Mock>) -> String {
    let cases = mock.iter().map(|(verb, mock)| {
        let text = match &mock.stdout {
            Value::String(text) => text.clone(),
            json => json.to_string(),
        };
        assert!(!text.contains('\''), "to be quoted for the shell");
        format!("{verb}) printf '%s' '{text}'; exit {};;\n", mock.exit)
    });
    format!("case $CNI_COMMAND in\n{}esac", cases.collect::<String>())
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_in_passcod() {
    let fixture: Fixture = serde_json::from_str(include_str!("vectors/passcod.json")).unwrap();
    let mut comparison = Comparison::with(&fixture.reasons);
    for vector in &fixture.vectors {
        let world = World::new();
        for (name, mock) in &vector.delegates {
            world.delegate(name, &script(&fixture.mocks[mock]));
        }
        for step in &vector.steps {
            let place = format!("{} {} ({})", vector.id, step.command, vector.about);
            let observed = step.play(&world, &vector.config);
            comparison.add(&place, step.recorded.clone(), &step.differences, &observed);
        }
    }
    comparison.finish();
    assert_eq!(fixture.vectors.len(), 14);
}

/// The comparison sees whatever is not listed.
#[test]
fn a_change_of_any_recorded_value_is_seen() {
    let fixture: Fixture = serde_json::from_str(include_str!("vectors/passcod.json")).unwrap();
    let first = &fixture.vectors[0];
    let world = World::new();
    for (name, mock) in &first.delegates {
        world.delegate(name, &script(&fixture.mocks[mock]));
    }
    let step = &first.steps[0];
    let mut expected = step.recorded.clone();
    for difference in &step.differences {
        difference.apply(&mut expected).unwrap();
    }
    let observed = step.play(&world, &first.config);
    assert_eq!(observed, expected);
    for pointer in leaves(&expected, String::new()) {
        let mut changed = expected.clone();
        *changed.pointer_mut(&pointer).unwrap() = json!("something else");
        assert_ne!(observed, changed, "{pointer}");
    }
    let mut unlisted = step.recorded.clone();
    let none = Difference { at: "/exit".to_owned(), ours: Some(json!(0)), why: String::new() };
    assert!(none.apply(&mut unlisted).is_err());
}

/// Pointers to everything in `value` that is no object with members and no array with elements.
fn leaves(value: &Value, at: String) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(object) => object.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(array) => array.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => Vec::new(),
    };
    if inner.is_empty() {
        return vec![at];
    }
    inner.into_iter().flat_map(|(key, value)| leaves(value, format!("{at}/{key}"))).collect()
}
