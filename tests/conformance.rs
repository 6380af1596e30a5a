//! The examples of selectors and allocators pass `ipam-conformance`, as docs/delegates.md says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ipam_testkit::pages::Page;
use ipam_testkit::world::{World, binary};
use serde_json::{Value, json};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// A `PATH` that finds the interpreter itself first, not a script that looks for it.
fn path() -> OsString {
    let arguments = ["-c", "import os, sys; print(os.path.dirname(sys.executable), end='')"];
    let output = Command::new("python3").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let first = PathBuf::from(String::from_utf8(output.stdout).unwrap());
    let rest = env::var_os("PATH").unwrap();
    env::join_paths([first].into_iter().chain(env::split_paths(&rest))).unwrap()
}

/// The last line of a report without a failure.
#[track_caller]
fn conforms(words: &[&str]) -> String {
    let mut command = Command::new(binary("ipam-conformance"));
    let output = command.args(words).env("PATH", path()).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {stdout}");
    stdout.lines().last().unwrap().to_owned()
}

/// Runs the selector suite on a program.
#[track_caller]
fn chooses(program: &Path, ipam: &Value) {
    let world = World::new();
    fs::write(world.path("rack"), "r1\n").unwrap();
    let mut config = json!({"name": "net", "ipam": ipam});
    if config["ipam"]["rackFile"].is_string() {
        config["ipam"]["rackFile"] = json!(world.path("rack"));
    }
    fs::write(world.path("net.json"), config.to_string()).unwrap();
    let config = world.path("net.json");
    let words = ["--selector", program.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let last = conforms(&words);
    assert!(last.ends_with(" passed, 0 failed, 0 differ, 0 not applicable"), "{last}");
}

#[test]
fn the_selector_in_each_language_conforms() {
    let racks = json!({"r1": {"name": "blue", "ranges": [{"subnet": "10.230.1.0/24"}]}});
    let ipam = json!({"rackFile": "/etc/rack", "racks": racks});
    let programs =
        [example("ipam-ds-rack.py"), example("ipam-ds-rack.sh"), binary("examples/ipam-ds-rack")];
    for program in programs {
        chooses(&program, &ipam);
    }
}

#[test]
fn ipam_ds_static_conforms() {
    let ranges = json!([{"subnet": "10.230.1.0/24", "gateway": "10.230.1.254"}]);
    chooses(&binary("ipam-ds-static"), &json!({"pools": [{"name": "blue", "ranges": ranges}]}));
}

#[test]
fn the_allocator_in_python_conforms() {
    let program = example("ipam-da-files.py");
    let last = conforms(&["--delegate", program.to_str().unwrap()]);
    assert_eq!(last, "50 passed, 0 failed, 0 differ, 4 not applicable");
}

#[test]
fn the_allocator_in_rust_conforms() {
    let program = binary("examples/ipam-da-files");
    let last = conforms(&["--delegate", program.to_str().unwrap()]);
    assert_eq!(last, "50 passed, 0 failed, 0 differ, 4 not applicable");
}

/// The network of the page, with its rack in this world.
fn network_of_page(world: &World) -> Value {
    let mut network = Page::read("docs/delegates.md").json("Running it");
    network["ipam"]["rackFile"] = json!(world.path("rack"));
    network["ipam"]["stateDir"] = json!(world.path("state"));
    network["ipam"]["dataDir"] = json!(world.path("data"));
    fs::write(world.path("rack"), "r1\n").unwrap();
    network
}

#[test]
fn the_network_of_the_page_gives_addresses_of_the_rack() {
    let world = World::new();
    let network = network_of_page(&world);
    world.install_as(&example("ipam-ds-rack.py"), "ipam-ds-rack");
    world.install(&binary("ipam-da-local"));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.230.1.2/24"]);
    fs::write(world.path("rack"), "r2\n").unwrap();
    assert_eq!(world.call("ADD", "c2", &network).ips(), ["10.230.2.2/24"]);
    world.call("DEL", "c1", &network).success();
    world.call("DEL", "c2", &network).success();
}

#[test]
fn a_delegate_runs_by_hand_with_the_input_of_the_chain() {
    let world = World::new();
    world.install_as(&example("ipam-ds-rack.py"), "ipam-ds-rack");
    world.install(&binary("ipam-da-local"));
    world.config("10-racknet.json", &network_of_page(&world));
    let mut script = "set -e\n".to_owned();
    let mut expected = String::new();
    for (command, printed) in Page::read("docs/delegates.md").commands("Debugging", "console") {
        let folders = format!(
            " --conf-dir '{}' --cni-path '{}'",
            world.path("net.d").display(),
            world.path("bin").display()
        );
        let explain = "ipam-delegated explain racknet";
        let here = command.replace("/opt/cni/bin", world.path("bin").to_str().unwrap());
        script += &here.replace(
            explain,
            &format!("'{}' explain racknet{folders}", binary("ipam-delegated").display()),
        );
        script.push('\n');
        expected += &printed;
    }
    let folder = world.path("");
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    let [given, expected]: [Value; 2] =
        [&output.stdout[..], expected.as_bytes()].map(|it| serde_json::from_slice(it).unwrap());
    assert_eq!(given, expected);
}

/// Both allocators on one folder, each with the other one's leases.
#[test]
fn the_allocators_read_each_others_leases() {
    let world = World::new();
    let data = world.path("data");
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-files"]));
    network["ipam"]["dataDir"] = json!(data);
    network["ipam"]["ranges"] = json!([[{"subnet": "10.230.1.0/29"}]]);
    world.install(&binary("ipam-ds-static"));
    let programs = [example("ipam-da-files.py"), binary("examples/ipam-da-files")];
    let install = |program: &Path| {
        let _ = fs::remove_file(world.path("bin/ipam-da-files"));
        world.install_as(program, "ipam-da-files");
    };
    for (first, second) in [(&programs[0], &programs[1]), (&programs[1], &programs[0])] {
        install(first);
        let given = world.call("ADD", "c1", &network).ips();
        install(second);
        assert_eq!(world.call("ADD", "c1", &network).ips(), given);
        let others = world.call("ADD", "c2", &network).ips();
        assert_ne!(others, given);
        world.call("CHECK", "c1", &network).success();
        for container in ["c1", "c2"] {
            world.call("DEL", container, &network).success();
        }
        let left = fs::read_dir(data.join("net")).unwrap().map(|it| it.unwrap().file_name());
        let left: Vec<OsString> =
            left.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
        assert_eq!(left, [""; 0]);
    }
}
