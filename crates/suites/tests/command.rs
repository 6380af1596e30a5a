//! The program `ipam-conformance`: what it says of a program that cannot be tested.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::pipe;
use std::process::Command;

const CONFORMANCE: &str = env!("CARGO_BIN_EXE_ipam-conformance");

/// What the command says, and how it ends.
fn said(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(CONFORMANCE).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_file_that_is_not_executable_is_refused_before_any_check() {
    let folder = env!("CARGO_MANIFEST_DIR");
    for path in [folder, &format!("{folder}/Cargo.toml")] {
        let (exit, stdout, stderr) = said(&[path]);
        assert_eq!((exit, &*stdout), (Some(2), ""));
        assert!(stderr.contains("not an executable file"), "{stderr}");
    }
}

#[test]
fn a_program_whose_every_add_fails_is_told_of_its_keys() {
    let check = "an_add_gives_one_address_of_each_pool";
    let (exit, _, stderr) = said(&["/bin/false", "--only", check]);
    assert_eq!(exit, Some(1));
    assert!(stderr.contains("--config FILE"), "{stderr}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_command_in_silence() {
    let mut command = Command::new(CONFORMANCE);
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = command.arg("--list").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}
