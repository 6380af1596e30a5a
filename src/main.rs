//! The meta-plugin `ipam-delegated`: runs a chain of IPAM delegates as one IPAM plugin.

use std::process::ExitCode;

use ipam_delegated::chain::{self, Preset};

/// The systems whose place a chain takes under their own name.
const PRESETS: &[Preset] = &[];

fn main() -> ExitCode {
    chain::main(PRESETS)
}
