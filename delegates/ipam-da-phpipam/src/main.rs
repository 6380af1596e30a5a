//! The program `ipam-da-phpipam`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-phpipam", ipam_da_phpipam::delegate())
}
