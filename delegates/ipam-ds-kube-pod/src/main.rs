//! The program `ipam-ds-kube-pod`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-kube-pod", ipam_ds_kube_pod::delegate())
}
