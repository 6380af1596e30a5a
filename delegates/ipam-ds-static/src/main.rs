//! The delegate `ipam-ds-static`: pools and ranges as the network configuration gives them.

mod config;
mod host_local;
mod offer;
mod requested;
mod resolv_conf;
mod selector;
mod spelling;
#[cfg(test)]
mod testing;

use std::process::ExitCode;

use ipam_delegated::Select;
use selector::Static;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-ds-static", Select(Static))
}
