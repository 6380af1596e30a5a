//! The selectors of `examples/` work as they say.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// The same selector, three times.
fn selectors() -> [(&'static str, PathBuf); 3] {
    [
        ("Rust", binary("examples/ipam-ds-rack")),
        ("shell", example("ipam-ds-rack.sh")),
        ("Python", example("ipam-ds-rack.py")),
    ]
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Calls a program with `stdin` as it is.
fn call(world: &World, program: &Path, verb: &str, stdin: &str) -> Outcome {
    let mut command = world.command_of(program, verb, "c1");
    if matches!(verb, "GC" | "STATUS" | "VERSION") {
        // libcni sets them, empty.
        command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
    }
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    wait(child)
}

/// A result without members that say nothing.
fn plain(mut result: Value) -> Value {
    let nothing = [json!([]), json!({}), Value::Null];
    result.as_object_mut().unwrap().retain(|_, member| !nothing.contains(member));
    result
}

#[test]
fn a_selector_in_any_language_stands_in_a_chain() {
    for (language, program) in selectors() {
        let world = World::new();
        world.install_as(&program, "ipam-ds-rack");
        world.allocator("ipam-da-x", "10.1.0.2/24");
        fs::write(world.path("rack"), " r1\n").unwrap();
        let mut network = world.network(json!(["ipam-ds-rack", "ipam-da-x"]));
        network["ipam"]["rackFile"] = json!(world.path("rack"));
        network["ipam"]["racks"] = json!({"r1": {"name": "blue"}, "r2": {"name": "red"}});

        let result = world.call("ADD", "c1", &network).success();
        assert_eq!(
            result,
            json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}),
            "{language}"
        );
        assert_eq!(
            world.calls()[0]["stdin"]["prevResult"]["pools"],
            json!([{"name": "blue"}]),
            "{language}"
        );
        world.call("CHECK", "c1", &network).success();
        world.call("DEL", "c1", &network).success();
        assert!(world.held().is_empty(), "{language}");

        // Without a record the whole chain runs; its selector may fail.
        world.call("DEL", "c1", &network).success();
        fs::remove_file(world.path("rack")).unwrap();
        world.call("DEL", "c1", &network).success();
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert_eq!(code, 5, "{language}: {text}");
        assert!(text.starts_with("ipam-ds-rack: ipam.rackFile: cannot read"), "{language}: {text}");

        network["cniVersion"] = json!("1.1.0");
        network["cni.dev/valid-attachments"] = json!([]);
        fs::write(world.path("rack"), "r2").unwrap();
        for verb in ["STATUS", "GC"] {
            world.call(verb, "", &network).success();
        }
    }
}

#[test]
fn the_three_selectors_answer_alike() {
    let world = World::new();
    fs::write(world.path("rack"), "\n\tr1 \n").unwrap();
    fs::write(world.path("elsewhere"), "r9").unwrap();
    fs::write(world.path("empty"), "").unwrap();
    fs::write(world.path("two"), "r1\nr2\n").unwrap();
    let rack = world.path("rack");
    let config = |version: &str, ipam: Value, prev_result: Value| {
        let mut config = json!({"cniVersion": version, "name": "n", "type": "t", "ipam": ipam});
        if !prev_result.is_null() {
            config["prevResult"] = prev_result;
        }
        config.to_string()
    };
    let racks = json!({"r1": {"name": "blue"}, "r2": {"name": "red"}});
    let ipam = json!({"type": "ipam-ds-rack", "rackFile": rack, "racks": racks, "other": [1]});
    let full = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}, {"address": "fd00::2/64"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400}],
        "dns": {"nameservers": ["10.0.0.53"]},
        "pools": [{"name": "an earlier selector's"}],
        "leases": ["opaque"],
        "ofOthers": {"kept": true},
    });
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1"}});
    let blue = json!([{"name": "blue"}]);
    let behind = json!([{"name": "an earlier selector's"}, {"name": "blue"}]);
    let ranges = json!([{"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"}]);
    let with_ranges = json!([{"name": "blue", "ranges": ranges}]);
    let same = json!({"ips": [], "pools": [{"name": "blue", "requested-ip": "10.0.0.9"}]});
    let enriched = json!([{"name": "blue", "requested-ip": "10.0.0.9", "ranges": ranges}]);
    let mut of_ranges = ipam.clone();
    of_ranges["racks"] = json!({"r1": with_ranges[0], "r2": {"name": "red"}});
    let unnamed = json!([{"ranges": ranges}]);
    let mut of_unnamed = ipam.clone();
    of_unnamed["racks"] = json!({"r1": unnamed[0]});

    // Verb, stdin, and the pools or the code and the beginning of the message.
    let cases = [
        ("ADD", config("1.0.0", ipam.clone(), Value::Null), Ok(&blue)),
        ("ADD", config("1.0.0", ipam.clone(), json!({})), Ok(&blue)),
        ("ADD", config("1.0.0", ipam.clone(), full.clone()), Ok(&behind)),
        ("ADD", config("1.0.0", ipam.clone(), same.clone()), Ok(&same["pools"])),
        ("ADD", config("1.0.0", of_ranges.clone(), Value::Null), Ok(&with_ranges)),
        ("ADD", config("1.0.0", of_ranges, same.clone()), Ok(&enriched)),
        ("STATUS", config("1.1.0", of_unnamed, Value::Null), Ok(&unnamed)),
        ("ADD", config("0.2.0", ipam.clone(), old), Ok(&blue)),
        ("DEL", config("1.0.0", ipam.clone(), full.clone()), Ok(&behind)),
        ("CHECK", config("1.0.0", ipam.clone(), full), Ok(&behind)),
        ("STATUS", config("1.1.0", ipam.clone(), Value::Null), Ok(&blue)),
        ("ADD", String::new(), Err((6, ""))),
        ("ADD", "[]".to_owned(), Err((6, ""))),
        ("ADD", "{} {}".to_owned(), Err((6, ""))),
        ("ADD", "{".to_owned(), Err((6, ""))),
        ("ADD", config("1.0.0", json!("x"), Value::Null), Err((7, "ipam"))),
        ("ADD", config("1.0.0", json!({"racks": {}}), Value::Null), Err((7, "ipam"))),
        ("ADD", config("1.0.0", json!({"rackFile": rack}), Value::Null), Err((7, "ipam"))),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": 7, "racks": {}}), Value::Null),
            Err((7, "ipam.rackFile: ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": rack, "racks": []}), Value::Null),
            Err((7, "ipam.racks: ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": rack, "racks": {"r1": "blue"}}), Value::Null),
            Err((7, "ipam.racks.r1: expected an object with name or ranges")),
        ),
        (
            "ADD",
            config(
                "1.0.0",
                json!({"rackFile": rack, "racks": {"r2": {"name": "red"}}}),
                Value::Null,
            ),
            Err((7, "ipam.racks: no pool for rack \"r1\"")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": rack, "racks": {"r1": {"name": ""}}}), Value::Null),
            Err((7, "ipam.racks.r1: expected a")),
        ),
        (
            "STATUS",
            config(
                "1.1.0",
                json!({"rackFile": world.path("elsewhere"), "racks": racks}),
                json!({}),
            ),
            Err((7, "ipam.racks: no pool for rack \"r9\"")),
        ),
        (
            "DEL",
            config("1.0.0", json!({"rackFile": "/nonexistent/rack", "racks": racks}), json!({})),
            Err((5, "ipam.rackFile: cannot read /nonexistent/rack")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": world.path(""), "racks": racks}), json!({})),
            Err((5, "ipam.rackFile: cannot read ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": "", "racks": racks}), json!({})),
            Err((5, "ipam.rackFile: cannot read ")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": world.path("empty"), "racks": racks}), json!({})),
            Err((7, "ipam.racks: no pool for rack \"\"")),
        ),
        (
            "ADD",
            config("1.0.0", json!({"rackFile": world.path("two"), "racks": racks}), json!({})),
            Err((7, "ipam.racks: no pool for rack \"r1")),
        ),
        ("FROB", "{}".to_owned(), Err((4, "unknown CNI_COMMAND: FROB"))),
    ];
    for (verb, stdin, expected) in cases {
        let outcomes = selectors().map(|(language, p)| (language, call(&world, &p, verb, &stdin)));
        match expected {
            Ok(pools) => {
                let [first, rest @ ..] =
                    outcomes.map(|(language, o)| (language, plain(o.success())));
                assert_eq!(&first.1["pools"], pools, "{stdin}");
                for (language, result) in rest {
                    assert_eq!(result, first.1, "{language}: {verb} {stdin}");
                }
            }
            Err((code, start)) => {
                for (language, outcome) in outcomes {
                    let (found, text) = outcome.failure();
                    assert_eq!(found, code, "{language}: {verb} {stdin}: {text}");
                    assert!(text.starts_with(start), "{language}: {verb} {stdin}: {text}");
                }
            }
        }
    }
}

#[test]
fn the_three_selectors_answer_version_whatever_stdin_is() {
    let world = World::new();
    let answers = selectors().map(|(_, p)| call(&world, &p, "VERSION", "").success());
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    for (language, program) in selectors() {
        assert!(call(&world, &program, "VERSION", "no JSON").success().is_object(), "{language}");
        // A person called.
        let mut command = world.command_of(&program, "ADD", "c1");
        command.env_remove("CNI_COMMAND");
        let outcome = wait(start(command, &json!({})));
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""), "{language}");
        assert!(outcome.stderr.starts_with("ipam-ds-rack"), "{language}: {}", outcome.stderr);
    }
}

#[test]
fn the_shell_selector_says_that_jq_is_missing() {
    let world = World::new();
    let mut command = world.command_of(&example("ipam-ds-rack.sh"), "ADD", "c1");
    command.env("PATH", "/nonexistent");
    let (code, text) = wait(start(command, &json!({}))).failure();
    assert_eq!(code, 5);
    assert!(text.starts_with("jq is not installed"), "{text}");
}
