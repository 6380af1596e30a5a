//! The delegate `ipam-ds-nomad`: the pool that the group of a Nomad allocation names.

mod allocation;
mod config;
mod question;
mod selector;

use std::process::ExitCode;

use ipam_delegated::Select;
use selector::Nomad;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-ds-nomad", Select(Nomad))
}
