//! The meta-plugin `ipam-delegated`: runs a chain of IPAM delegates as one IPAM plugin.

mod presets;

use std::process::ExitCode;

use ipam_delegated::chain;

fn main() -> ExitCode {
    chain::main(presets::PRESETS)
}
