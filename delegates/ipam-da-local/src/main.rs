//! The program `ipam-da-local`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-local", ipam_da_local::delegate())
}
