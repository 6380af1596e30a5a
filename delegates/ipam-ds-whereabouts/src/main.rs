//! The program `ipam-ds-whereabouts`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-whereabouts", ipam_ds_whereabouts::delegate())
}
