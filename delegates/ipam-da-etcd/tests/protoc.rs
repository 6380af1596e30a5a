//! What a build says where protoc or its own types are missing.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const PACKAGES: &str = "Install protobuf-compiler and libprotobuf-dev (Debian)";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs what the build of `etcd-client` runs for protoc, with these programs in `PATH` alone.
fn protoc(programs: &Path) -> Output {
    let mut command = Command::new(root().join(".cargo/protoc"));
    command.env_clear().env("PATH", programs).args(["-o", "out", "a file.proto"]).output().unwrap()
}

fn programs() -> TempDir {
    let programs = TempDir::new().unwrap();
    symlink("/bin/cat", programs.path().join("cat")).unwrap();
    programs
}

/// Writes a program by another process: what this one has open for writing, a call that another
/// thread starts may hold for a moment, and then nobody can run it.
fn install(programs: &Path, script: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let protoc = programs.join("protoc");
    let status = Command::new("sh").args(["-c", write]).arg(protoc).arg(script).status();
    assert!(status.unwrap().success());
}

#[test]
fn builds_call_protoc_by_the_script() {
    let config = fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    assert!(config.contains("\nPROTOC = { value = \".cargo/protoc\", relative = true }\n"));
}

#[test]
fn a_protoc_that_is_missing_is_said_with_the_packages() {
    let programs = programs();
    let output = protoc(programs.path());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.starts_with("ipam-da-etcd is built with protoc, which is not installed.\n"));
    assert!(said.contains(PACKAGES), "{said}");
}

#[test]
fn types_that_are_missing_are_said_with_the_packages() {
    let programs = programs();
    install(programs.path(), "echo 'descriptor.proto: File not found.' >&2; exit 3");
    let output = protoc(programs.path());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(said.contains(PACKAGES) && said.ends_with("\ndescriptor.proto: File not found.\n"));
}

#[test]
fn a_protoc_that_works_gets_its_arguments_as_they_are() {
    let programs = programs();
    install(programs.path(), "[ \"$*\" = '-o out a file.proto' ] && [ $# = 3 ]");
    assert!(protoc(programs.path()).status.success());
}
