//! The delegate `ipam-ds-kube-node`: the ranges that the Kubernetes node object names.

mod config;
mod left;
mod selector;
mod subnets;

use std::process::ExitCode;

use ipam_delegated::Select;
use selector::KubeNode;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-ds-kube-node", Select(KubeNode))
}
