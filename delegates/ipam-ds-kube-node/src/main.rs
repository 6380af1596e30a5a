//! The program `ipam-ds-kube-node`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-kube-node", ipam_ds_kube_node::delegate())
}
