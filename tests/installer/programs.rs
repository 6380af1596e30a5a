//! Which programs are installed, from an archive and from a source tree.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ipam_delegated::presets::BUILT_IN;
use ipam_testkit::world::names;
use serde_json::Value;

use super::{LIST, Site, source};

/// How a manifest says that its programs are for nodes.
pub const MARK: &str = "[package.metadata.ipam-delegated]\n# For nodes.\narchive = \"bin\"\n";

/// Gives the source tree a delegate with this manifest.
pub fn manifest(site: &Site, name: &str, text: &str) {
    let folder = site.release.join("delegates").join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("Cargo.toml"), format!("[package]\n{text}\n[lints]\n")).unwrap();
}

#[test]
fn a_folder_is_made_and_gets_every_program() {
    let site = Site::new();
    site.program("ipam-delegated.d", "of cargo");
    site.program("README", "");
    site.install(&[]);
    let programs = ["ipam-da-local", "ipam-delegated", "ipam-ds-static"];
    assert_eq!(names(&site.plugins), [&[LIST][..], &programs].concat());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&site.plugins), 0o755);
    assert!(site.is_linked("ipam-ds-static"));
    for name in ["ipam-da-local", "ipam-delegated"] {
        assert_eq!(mode(&site.plugins.join(name)), 0o755);
        assert_eq!(site.read(name), fs::read(site.release.join("bin").join(name)).unwrap());
    }
}

#[test]
fn a_chain_of_another_version_gets_no_link_for_a_selector_that_it_lacks() {
    let site = Site::new();
    site.install(&[]);
    site.program("ipam-delegated", "#!/bin/sh\n[ \"$1\" != help ] || echo presets: host-local\n");
    let text = site.refused(&["--only", "ipam-delegated"]);
    assert!(text.contains("this version is not ipam-ds-static"), "{text}");
    site.install(&[]);
    assert!(!site.is_linked("ipam-ds-static"));
    assert_eq!(site.read("ipam-ds-static"), b"#!/bin/sh\necho ipam-ds-static 1\n");
    // And back: the link is last.
    site.version("2");
    site.install(&[]);
    assert!(site.is_linked("ipam-ds-static"));
}

#[test]
fn the_selectors_that_are_links_are_those_of_the_program() {
    let script = fs::read_to_string(source("install.sh")).unwrap();
    let linked = script.lines().find_map(|line| line.trim().strip_prefix("built_in=")).unwrap();
    let built_in: Vec<&str> = BUILT_IN.iter().map(|built_in| built_in.name).collect();
    assert_eq!(linked.trim_matches('\''), built_in.join(" "));
}

#[test]
fn a_program_that_does_not_run_replaces_nothing() {
    let site = Site::new();
    site.install(&[]);
    site.version("2");
    site.program("ipam-da-local", "#!/bin/sh\necho no such library; exit 127\n");
    let text = site.refused(&["--preset", "host-local"]);
    assert!(text.contains("does not run on this machine: no such library"), "{text}");
    site.install(&["--no-run"]);
    assert!(site.read("ipam-da-local").ends_with(b"exit 127\n"));
}

#[test]
fn a_damaged_archive_is_refused() {
    let site = Site::new();
    let sums = "cd \"$0\" && sha256sum install.sh bin/* >SHA256SUMS";
    assert!(Command::new("sh").args(["-c", sums]).arg(&site.release).status().unwrap().success());
    site.install(&[]);
    site.program("ipam-da-local", "#!/bin/sh\n");
    let outcome = site.run(&[]);
    assert!(outcome.stderr.contains("are damaged: unpack the archive again"), "{outcome:?}");
    assert_eq!(site.read("ipam-da-local"), b"#!/bin/sh\necho ipam-da-local 1\n");
    // An archive has all of its programs: none is left out.
    fs::remove_file(site.release.join("bin/ipam-da-local")).unwrap();
    let text = site.refused(&[]);
    assert!(text.contains("are damaged: unpack the archive again"), "{text}");
}

#[test]
fn missing_programs_are_named_with_the_command_that_builds_them() {
    let site = Site::new();
    let bin = site.release.join("bin");
    let elsewhere = site.world.path("programs elsewhere");
    fs::rename(&bin, &elsewhere).unwrap();
    assert!(site.refused(&[]).contains("--from DIR"));
    site.install(&["--from", elsewhere.to_str().unwrap()]);
    fs::remove_file(elsewhere.join("ipam-delegated")).unwrap();
    let text = site.refused(&["--from", elsewhere.to_str().unwrap()]);
    assert!(text.contains("ipam-delegated is not in"), "{text}");

    // A source tree.
    fs::write(site.release.join("Cargo.toml"), "").unwrap();
    manifest(&site, "ipam-da-local", MARK);
    let text = site.refused(&[]);
    assert!(text.contains("cargo build --release --workspace --bins)"), "{text}");
    let build = |target: &str, name: &str| {
        let folder = site.release.join("target").join(target).join("release");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), format!("#!/bin/sh\n# {target}\n")).unwrap();
    };
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    build("", "ipam-delegated");
    build("", "ipam-da-local");
    site.install(&[]);
    assert_eq!(site.read("ipam-delegated"), b"#!/bin/sh\n# \n");
    build(&musl, "ipam-delegated");
    let text = site.refused(&[]);
    assert!(
        text.contains("ipam-da-local is not in") && text.contains(&format!("--target {musl})"))
    );
    build(&musl, "ipam-da-local");
    site.install(&[]);
    assert_eq!(site.read("ipam-da-local"), format!("#!/bin/sh\n# {musl}\n").as_bytes());
}

#[test]
fn a_delegate_whose_build_needs_more_than_rust_is_left_out_with_what_it_needs() {
    let site = Site::new();
    fs::remove_dir_all(site.release.join("bin")).unwrap();
    fs::write(site.release.join("Cargo.toml"), "").unwrap();
    let built = site.release.join("target/release");
    fs::create_dir_all(&built).unwrap();
    manifest(&site, "ipam-da-etcd", MARK);
    let text = site.refused(&[]);
    assert!(text.contains("ipam-delegated is not in") && !text.contains("protoc"), "{text}");
    fs::write(built.join("ipam-delegated"), "#!/bin/sh\n").unwrap();
    let text = site.install(&[]);
    assert!(text.contains("left out, because they are not built: ipam-da-etcd\n"), "{text}");
    assert!(text.contains("the build of ipam-da-etcd needs protoc"), "{text}");
    assert!(text.contains("libprotobuf-dev"), "{text}");
    assert_eq!(names(&site.plugins), [LIST, "ipam-delegated"]);

    fs::write(built.join("ipam-da-etcd"), "#!/bin/sh\n").unwrap();
    assert!(!site.install(&[]).contains("left out"));
    // An upgrade would leave an old one beside a new chain.
    fs::remove_file(built.join("ipam-da-etcd")).unwrap();
    let text = site.refused(&[]);
    assert!(text.contains("ipam-da-etcd is not in") && text.contains("libprotobuf-dev"), "{text}");
}

#[test]
fn what_no_manifest_marks_for_nodes_stays_out() {
    let site = Site::new();
    fs::remove_dir_all(site.release.join("bin")).unwrap();
    fs::write(site.release.join("Cargo.toml"), "").unwrap();
    manifest(&site, "ipam-da-local", MARK);
    manifest(&site, "ipam-ds-sample", "");
    manifest(&site, "ipam-ds-tool", &MARK.replace("bin", "tools"));
    let built = site.release.join("target/release");
    fs::create_dir_all(&built).unwrap();
    // The last is of a delegate that the tree had once.
    let others = ["ipam-conformance", "ipam-ds-sample", "ipam-ds-tool", "ipam-ds-gone"];
    for name in ["ipam-delegated", "ipam-da-local"].iter().chain(&others) {
        fs::write(built.join(name), "#!/bin/sh\n").unwrap();
    }
    site.install(&[]);
    assert_eq!(names(&site.plugins), [LIST, "ipam-da-local", "ipam-delegated"]);
    // A folder that is named may have delegates of others.
    site.install(&["--from", built.to_str().unwrap()]);
    assert_eq!(names(&site.plugins), [LIST, "ipam-da-local", "ipam-delegated", "ipam-ds-gone"]);
}

/// What each manifest says of its programs: folder of the archive and name.
fn marked() -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let output = cargo.current_dir(source("")).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut marked = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let folder = package["metadata"]["ipam-delegated"]["archive"].as_str();
        let is_program = |target: &&Value| target["kind"][0] == "bin";
        let programs = package["targets"].as_array().unwrap().iter().filter(is_program);
        marked.extend(programs.map(|program| {
            format!("{}/{}", folder.unwrap_or("unmarked"), program["name"].as_str().unwrap())
        }));
    }
    marked.sort();
    marked
}

#[test]
fn each_program_that_is_shipped_is_marked_for_nodes_or_as_a_tool() {
    let mut delegates = names(&source("delegates"));
    delegates.retain(|name| name.starts_with("ipam-"));
    let nodes = delegates.iter().map(String::as_str).chain(["ipam-delegated"]);
    let mut expected: Vec<String> = nodes.map(|name| format!("bin/{name}")).collect();
    expected.push("tools/ipam-conformance".to_owned());
    expected.sort();
    assert_eq!(marked(), expected);
}

#[test]
fn a_preset_is_not_installed_without_a_delegate_that_may_be_missing() {
    let site = Site::new();
    for (preset, delegate) in [
        ("etcd", "ipam-da-etcd"),
        ("host-etcd", "ipam-da-etcd"),
        ("kube-node", "ipam-ds-kube-node"),
        ("node-annotation", "ipam-ds-node-annotation"),
        ("whereabouts", "ipam-ds-whereabouts"),
    ] {
        site.package(preset, "old");
        let text = site.refused(&["--preset", preset]);
        assert!(text.contains(&format!("the preset {preset} needs {delegate}")), "{text}");
    }
    site.program("ipam-da-etcd", "#!/bin/sh\n");
    site.install(&["--preset", "etcd"]);
    // One that is there already will do.
    fs::remove_file(site.release.join("bin/ipam-da-etcd")).unwrap();
    site.install(&["--preset", "host-etcd"]);
    assert!(site.is_linked("etcd") && site.is_linked("host-etcd"));
}

#[test]
fn what_the_quick_start_builds_needs_rust_alone() {
    let script = fs::read_to_string(source("examples/quickstart.sh")).unwrap();
    let builds: Vec<&str> =
        script.lines().map(str::trim).filter(|line| line.starts_with("cargo build")).collect();
    let chosen = ["-p", "ipam-delegated", "-p", "ipam-ds-static", "-p", "ipam-da-local"];
    assert_eq!(builds, [format!("cargo build --release {} --bins", chosen.join(" "))]);
    // Neither does all but one, nor what the root builds without any option.
    for packages in [&chosen[..], &["--workspace", "--exclude", "ipam-da-etcd"], &[]] {
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--offline", "--locked", "--prefix=none", "--edges=normal,build"]);
        let output = tree.args(packages).current_dir(source("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let crates = String::from_utf8(output.stdout).unwrap();
        assert!(crates.contains("serde_json ") && !crates.contains("prost"), "{crates}");
    }
}
