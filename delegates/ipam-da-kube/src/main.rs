//! The program `ipam-da-kube`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-kube", ipam_da_kube::delegate())
}
