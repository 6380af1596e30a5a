//! A choice of programs: what a source tree has not built, and `--only`.

use std::fs;
use std::path::{Path, PathBuf};

use ipam_testkit::world::names;

use super::programs::{MARK, manifest};
use super::{LIST, Site};

/// A source tree with three delegates, and the folder of its builds, which is empty.
fn tree() -> (Site, PathBuf) {
    let site = Site::new();
    fs::remove_dir_all(site.release.join("bin")).unwrap();
    fs::write(site.release.join("Cargo.toml"), "").unwrap();
    for name in ["ipam-da-consul", "ipam-da-local", "ipam-ds-static"] {
        manifest(&site, name, MARK);
    }
    let built = site.release.join("target/release");
    fs::create_dir_all(&built).unwrap();
    (site, built)
}

fn build(built: &Path, names: &[&str], version: &str) {
    for name in names {
        fs::write(built.join(name), format!("#!/bin/sh\n# {version}\n")).unwrap();
    }
}

const QUICK: [&str; 3] = ["ipam-da-local", "ipam-delegated", "ipam-ds-static"];

#[test]
fn programs_that_are_not_built_are_left_out_with_the_command_that_builds_them() {
    let (site, built) = tree();
    build(&built, &QUICK, "1");
    let text = site.install(&[]);
    assert!(text.contains("left out, because they are not built: ipam-da-consul\n"), "{text}");
    assert!(text.contains("cargo build --release --workspace --bins)\n"), "{text}");
    assert_eq!(names(&site.plugins), [&[LIST][..], &QUICK].concat());
    // The chain itself is never left out.
    fs::remove_file(built.join("ipam-delegated")).unwrap();
    assert!(site.refused(&[]).contains("ipam-delegated is not in"));
}

#[test]
fn a_preset_is_refused_when_its_delegate_is_not_built() {
    let (site, built) = tree();
    build(&built, &["ipam-delegated", "ipam-ds-static"], "1");
    let text = site.refused(&["--preset", "host-local"]);
    assert!(text.contains("ipam-da-local is not in"), "{text}");
    assert!(text.contains("cargo build --release --workspace --bins)"), "{text}");
    build(&built, &QUICK, "1");
    site.install(&["--preset", "host-local"]);
    assert!(site.is_linked("host-local"));
}

#[test]
fn an_old_delegate_stays_beside_a_new_chain_only_if_you_say_so() {
    let (site, built) = tree();
    build(&built, &[&QUICK[..], &["ipam-da-consul"]].concat(), "1");
    site.install(&[]);
    fs::remove_file(built.join("ipam-da-consul")).unwrap();
    build(&built, &QUICK, "2");
    let text = site.refused(&[]);
    assert!(text.contains("ipam-da-consul is not in") && text.contains("--only NAMES"), "{text}");
    let text = site.install(&["--only", &QUICK.join(",")]);
    assert!(text.contains("left as they are: ipam-da-consul\n"), "{text}");
    assert_eq!(site.read("ipam-da-consul"), b"#!/bin/sh\n# 1\n");
    for name in QUICK {
        assert_eq!(site.read(name), b"#!/bin/sh\n# 2\n", "{name}");
    }
    // All of them are still known to be ours.
    site.install(&["--uninstall"]);
    assert!(names(&site.plugins).is_empty(), "{:?}", site.contents());
}

#[test]
fn only_installs_what_it_names() {
    let site = Site::new();
    let text = site.refused(&["--only", "ipam-ds-static"]);
    assert!(text.contains("--only leaves out ipam-delegated"), "{text}");
    site.install(&["--only", "ipam-ds-static,ipam-delegated"]);
    assert_eq!(names(&site.plugins), [LIST, "ipam-delegated", "ipam-ds-static"]);
    // Later one alone, also in another spelling of the option.
    let before = site.read("ipam-delegated");
    site.version("2");
    site.install(&["--only=ipam-da-local"]);
    assert_eq!(names(&site.plugins), [&[LIST][..], &QUICK].concat());
    assert_eq!(site.read("ipam-delegated"), before);
    // Names, and no patterns that a shell would replace by files in its folder.
    let text = site.refused(&["--only", "ipam-*"]);
    assert!(text.contains("--only ipam-*: expected names"), "{text}");
    let text = site.refused(&["--preset", "etcd", "--only", "ipam-delegated"]);
    assert!(text.contains("the preset etcd needs ipam-da-etcd"), "{text}");
}

#[test]
fn a_name_of_only_that_was_not_built_is_refused_with_the_command_that_builds_it() {
    let (site, built) = tree();
    build(&built, &QUICK, "1");
    let text = site.refused(&["--only", "ipam-delegated,ipam-da-consul"]);
    assert!(text.contains("ipam-da-consul is not in"), "{text}");
    assert!(text.contains("cargo build --release --workspace --bins)"), "{text}");
    let text = site.refused(&["--only", "ipam-delegated,ipam-da-nothing"]);
    let known = "unknown program; choose among ipam-delegated ipam-da-consul ipam-da-local ipam-ds";
    assert!(text.contains(&format!("--only ipam-da-nothing: {known}")), "{text}");
    // An archive has all of its programs, and builds none.
    let archive = Site::new();
    let text = archive.refused(&["--only", "ipam-delegated,ipam-da-consul"]);
    assert!(text.contains("ipam-da-consul is not in") && !text.contains("cargo"), "{text}");
}
