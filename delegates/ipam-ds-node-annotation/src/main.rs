//! The delegate `ipam-ds-node-annotation`: host-local settings out of an annotation of the Kubernetes node
//! object.

mod annotation;
mod by_hand;
mod conf;
mod fragment;
mod log_file;
mod selector;

use std::process::ExitCode;

use ipam_delegated::Select;
use selector::Annotation;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-ds-node-annotation", Select(Annotation))
}
