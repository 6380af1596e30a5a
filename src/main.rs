//! The meta-plugin `ipam-delegated`, with its table of presets.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_delegated::main(ipam_delegated::presets::PRESETS)
}
