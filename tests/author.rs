//! Who switches on the memory allocator of `ipam-kit`: a program of ours, and no library that an
//! author's crate stands on.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// An allocator of its own, and something of each package that has to be linked.
const AUTHOR: &str = r#"
#[global_allocator]
static OWN: std::alloc::System = std::alloc::System;

fn main() {
    let urls = ["https://rack.example".to_owned()];
    let servers = ipam_servers::Server::parse_all(&urls, "ipam.rackServers", 443).unwrap();
    let error = ipam_kit::Error::new(ipam_kit::ErrorCode::BACKEND, "refused");
    println!("{} server, unreachable: {}", servers.len(), ipam_kube::is_unreachable(&error));
}
"#;

/// The delegates in Rust that the page shows.
const DELEGATES: [&str; 2] = ["ipam-ds-rack", "ipam-da-files"];

/// The target on which `ipam-kit` has an allocator; its metadata needs no installed target.
const MUSL: &str = "x86_64-unknown-linux-musl";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The dependencies of the delegate that the page shows, with this checkout as the repository.
fn of_page(kit: &Path) -> String {
    let page = fs::read_to_string(root().join("docs/delegates.md")).unwrap();
    let (_, rest) = page.split_once("\n```toml\n[dependencies]\n").unwrap();
    let (lines, _) = rest.split_once("```\n").unwrap();
    let (_, line) = lines.split_once("ipam-kit = { git = \"").unwrap();
    let (line, _) = line.split_once(" }").unwrap();
    let there = format!("git = \"{line}");
    format!("[dependencies]\n{}", lines.replace(&there, &format!("path = {kit:?}")))
}

/// A crate outside the workspace that depends on four of its packages.
fn author() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("author");
    fs::create_dir_all(folder.join("src")).unwrap();
    let crates = root().join("crates");
    let dependency = |name: &str| {
        let path = crates.join(name.trim_start_matches("ipam-"));
        format!("{name} = {{ path = {path:?} }}\n")
    };
    let manifest = format!(
        "[package]\nname = \"author\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [profile.dev]\ndebug = false\nincremental = false\n\n{}{}{}{}",
        of_page(&crates.join("kit")),
        dependency("ipam-cli"),
        dependency("ipam-servers"),
        dependency("ipam-kube"),
    );
    // The delegates of the page, by the page's lines.
    fs::create_dir_all(folder.join("src/bin")).unwrap();
    for name in DELEGATES {
        let example = root().join(format!("examples/{name}.rs"));
        fs::copy(example, folder.join(format!("src/bin/{name}.rs"))).unwrap();
    }
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.join("src/main.rs"), AUTHOR).unwrap();
    // Or else other versions might be built than those that the workspace is tested with.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    folder
}

/// What cargo answers, without a network.
fn cargo(folder: &Path, words: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(words).arg("--offline").current_dir(folder);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_crate_with_an_allocator_of_its_own_builds_with_kit_servers_and_kube() {
    let folder = author();
    let target = folder.join("target");
    cargo(&folder, &["build", "--quiet", "--bins", "--target-dir", target.to_str().unwrap()]);
    let output = Command::new(target.join("debug/author")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 server, unreachable: false\n");
    for name in DELEGATES {
        assert!(target.join("debug").join(name).is_file(), "{name}");
    }

    let metadata = ["metadata", "--format-version", "1", "--filter-platform", MUSL];
    let metadata: Value = serde_json::from_str(&cargo(&folder, &metadata)).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let named = |name: &str| -> Vec<&Value> {
        let id = |node: &&Value| node["id"].as_str().unwrap().contains(name);
        nodes.iter().filter(id).collect()
    };
    let [kit] = named("crates/kit#")[..] else { panic!("{metadata}") };
    assert!(!kit["features"].as_array().unwrap().contains(&"allocator".into()), "{kit}");
    assert!(named("dlmalloc").is_empty() && !named("rustls").is_empty(), "{metadata}");
}

/// Whether a package on its own, with these options, has the allocator on musl.
fn allocates(package: &str, options: &[&str]) -> bool {
    let words = ["tree", "--locked", "--prefix=none", "--edges=normal", "--target", MUSL, "-p"];
    let tree = cargo(root(), &[&words, &[package][..], options].concat());
    assert!(tree.contains("serde_json "), "{tree}");
    tree.contains("\ndlmalloc ")
}

#[test]
fn programs_for_nodes_have_the_allocator_and_libraries_leave_it_out() {
    assert!(allocates("ipam-delegated", &[]));
    assert!(!allocates("ipam-delegated", &["--no-default-features"]));
    for entry in fs::read_dir(root().join("delegates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.starts_with("ipam-") || allocates(&name, &[]), "{name}");
    }
    for name in ["ipam-cli", "ipam-kit", "ipam-kube", "ipam-servers", "ipam-suites"] {
        assert!(!allocates(name, &[]), "{name}");
    }
}
