//! A program that panics still answers: one error object on stdout and exit 1, no core dump.
//!
//! This test has no harness: started again with `CNI_COMMAND` set, it is the delegate that panics.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use ipam_kit::cni::IpamResult;
use ipam_kit::{Delegate, Request, Result};
use ipam_testkit::world::{World, start};
use serde_json::json;

struct Panics;

impl Delegate for Panics {
    fn add(&self, _: &Request) -> Result<IpamResult> {
        panic!("a defect");
    }

    fn check(&self, _: &Request) -> Result<Option<IpamResult>> {
        let another = std::thread::spawn(|| panic!("a defect of another thread"));
        another.join().unwrap();
        Ok(None)
    }

    fn del(&self, _: &Request) -> Result<Option<IpamResult>> {
        Ok(None)
    }
}

fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some() {
        return ipam_kit::run("panics", Panics);
    }
    a_panic_is_an_error_object_and_exit_1();
    a_delegate_that_panics_is_named_and_undone();
    ExitCode::SUCCESS
}

fn a_panic_is_an_error_object_and_exit_1() {
    let world = World::new();
    let network = world.network(json!(["x"]));
    for (verb, says) in [("ADD", "a defect"), ("CHECK", "a defect of another thread")] {
        let command = world.command_of(&std::env::current_exe().unwrap(), verb, "c1");
        let output = start(command, &network).wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.status.signal()), (Some(1), None), "{output:?}");
        assert!(!output.status.core_dumped());
        // The whole of stdout is one object.
        let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(error["code"], 199, "{output:?}");
        assert_eq!(error["msg"], "internal error in panics (bug)");
        assert!(error["details"].as_str().unwrap().contains(says), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{output:?}");
    }
}

fn a_delegate_that_panics_is_named_and_undone() {
    let world = World::new();
    world.allocator("before", "10.0.0.2/24");
    symlink(std::env::current_exe().unwrap(), world.path("bin/panics")).unwrap();
    let network = world.network(json!(["before", "panics"]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 199, "{text}");
    assert!(text.starts_with("panics: internal error in panics (bug): "), "{text}");
    assert!(world.held().is_empty());
    assert_eq!(world.take_calls(), ["before ADD", "before DEL"]);
}
