//! The program `ipam-da-openwisp`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-openwisp", ipam_da_openwisp::delegate())
}
