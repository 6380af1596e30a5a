use std::path::Path;

use ipam_testkit::world::{Outcome, World, start_raw, wait};

/// Runs the delegate with one verb for the attachment `abc`, `eth0`.
pub fn call(verb: &str, args: &str, stdin: &str) -> Outcome {
    let program = Path::new(env!("CARGO_BIN_EXE_ipam-ds-static"));
    let mut command = World::new().command_of(program, verb, "abc");
    command.env("CNI_ARGS", args);
    wait(start_raw(command, stdin.as_bytes()))
}
