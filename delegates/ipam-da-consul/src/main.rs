//! The program `ipam-da-consul`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-consul", ipam_da_consul::delegate())
}
