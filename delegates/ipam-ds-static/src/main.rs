//! The delegate `ipam-ds-static`: pools and ranges as the network configuration gives them.

mod selector;
#[cfg(test)]
mod testing;

use std::process::ExitCode;

use ipam_delegated::Select;
use selector::Static;

fn main() -> ExitCode {
    ipam_delegated::run("ipam-ds-static", Select(Static))
}
