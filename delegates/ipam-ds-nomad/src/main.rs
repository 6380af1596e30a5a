//! The program `ipam-ds-nomad`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-nomad", ipam_ds_nomad::delegate())
}
