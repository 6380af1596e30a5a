//! The program `ipam-ds-node-annotation`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-node-annotation", ipam_ds_node_annotation::delegate())
}
