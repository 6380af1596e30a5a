//! The program `ipam-ds-static`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-static", ipam_ds_static::delegate())
}
