//! What the ipam-ds-static of passcod/cni-plugins answers, and what this one answers instead.
//!
//! Intended differences:
//! - `routes` is left out when there is none, and so is `dns` from `cniVersion` 1.0.0 on.
//! - `ipam-ds-static-004`: pools are checked; what is no array of pools is error 7.

mod common;

use serde_json::{Value, json};

/// The recorded answer, with the intended differences.
fn expected(id: &str, recorded: &Value) -> (i32, Value) {
    if id == "ipam-ds-static-004" {
        let error = json!({
            "cniVersion": "1.0.0", "code": 7,
            "msg": "ipam.pools: expected an array of at least one pool",
            "details": "such as \"pools\": [{\"name\": \"blue\"}]",
        });
        return (1, error);
    }
    let Value::Object(mut answer) = recorded["stdout"].clone() else {
        panic!("{id} records no answer");
    };
    assert_eq!(answer.remove("routes"), Some(json!([])));
    assert_eq!(answer.remove("dns"), Some(json!({})));
    (0, Value::Object(answer))
}

#[test]
fn answers_are_the_ancestors_but_for_the_intended_differences() {
    let file: Value = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 3);
    for vector in vectors {
        let id = vector["id"].as_str().unwrap();
        for step in vector["steps"].as_array().unwrap() {
            let verb = step["command"].as_str().unwrap();
            let outcome = common::call(verb, "", &vector["config"].to_string());
            let found = (outcome.exit.unwrap(), outcome.json());
            assert_eq!(found, expected(id, &step["expect"]), "{id}");
        }
    }
}
