//! What `lint` finds in the shipped examples, all of them in one folder.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ipam_testkit::world::{Outcome, World, binary, host_local, wait};
use serde_json::{Value, json};

/// The networks of the examples, by the names of their files.
fn examples() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut found: Vec<(String, Value)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "conflist"))
        .map(|entry| {
            let content = fs::read(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), serde_json::from_slice(&content).unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// A node with all that the examples name. Its stores, servers and what reads them are stood in for.
fn world() -> World {
    let world = World::new();
    for name in ["ipam-ds-static", "ipam-da-local"] {
        world.install(&binary(name));
    }
    world.install(&host_local());
    for name in ["ipam-ds-kube-node", "ipam-ds-node-annotation"] {
        world.selector(name, &json!([{"ranges": [{"subnet": "10.244.3.0/24"}]}]));
    }
    // It knows the pool of a real allocation alone.
    let unknown = r#"printf '{"code":103,"msg":"no such allocation"}'; exit 1"#;
    world.delegate(
        "ipam-ds-nomad",
        &format!("[ $CNI_COMMAND = ADD ] || {{ printf '{{\"pools\":[]}}'; exit; }}; {unknown}"),
    );
    let servers = ["etcd", "consul", "kube", "openwisp", "phpipam"];
    for name in servers.map(|server| format!("ipam-da-{server}")) {
        let name = &*name;
        world.answering(name, "10.0.0.2/24");
        world.answer(name, "about", &json!({"name": name, "role": "allocator", "reach": "node"}));
        world.answer(name, "lint", &json!([]));
    }
    world
}

/// Types `lint`, where this machine's routes are not seen.
fn lint(world: &World, name: &str) -> Outcome {
    let typed = world.typing(&["lint", name]);
    let mut command = Command::new("unshare");
    command.arg("--net").arg(typed.get_program()).args(typed.get_args()).env_remove("CNI_COMMAND");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().unwrap())
}

#[test]
fn lint_is_silent_about_the_examples_but_for_what_they_mean() {
    let world = world();
    let examples = examples();
    examples.iter().for_each(|(file, network)| drop(world.config(file, network)));
    assert_eq!(examples.len(), 13);
    for (file, network) in &examples {
        let outcome = lint(&world, network["name"].as_str().unwrap());
        let loud = outcome
            .stdout
            .lines()
            .filter(|line| ["error: ", "warning: "].iter().any(|level| line.starts_with(level)));
        let loud: Vec<&str> = loud.collect();
        assert!(outcome.exit == Some(0) && loud.is_empty(), "{file}: {loud:#?}");
    }
    // The same folder with one of them twice is not.
    let (_, twice) = &examples[0];
    let mut twice = twice.clone();
    twice["name"] = json!("twice");
    world.config("99-twice.conflist", &twice);
    let outcome = lint(&world, "twice");
    assert!(outcome.stdout.contains("warning: 10.210.0.0/16 overlaps"), "{outcome:?}");
}
