//! The meta-plugin `ipam-delegated` as a library: a chain of small parts that gives containers
//! their addresses, with a table of presets of one's own.
//!
//! Every system that gives containers their addresses is a chain: something chooses the pools for
//! a container, and something takes an address out of each. The program `ipam-delegated` is a CNI
//! IPAM plugin that runs such a chain: an ordered list of small programs, the *delegates*. Each
//! gets the network configuration with the result of the one before as `prevResult`, and answers
//! with that result, enriched. *Selectors* (`ipam-ds-…`) choose pools, *allocators* (`ipam-da-…`,
//! or any standard IPAM plugin) give addresses. When an ADD fails, what it took is released; when
//! it succeeds, a record says what a later DEL has to release, whatever has become of the
//! configuration meanwhile.
//!
//! Delegates in Rust depend on the library `ipam-kit`. This one is for a meta-plugin with presets
//! of your own, whole chains under one name:
//!
//! ```no_run
#![doc = include_str!("../examples/own-preset.rs")]
//! ```
//!
//! # The rooms
//!
//! - [`chain`]: which delegates run, running each as a process, undo, and the record of each
//!   attachment. It knows processes, not addresses.
//! - `operator`, above it: what people ask: the verbs of a call without `CNI_COMMAND`.
//! - [`presets`]: the chains that the program has under the names of the systems it replaces.

#![warn(unreachable_pub)]

pub mod chain;
mod operator;
pub mod presets;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use chain::{Chain, Preset};
use ipam_kit::cni::Environment;
use ipam_kit::delegate::serve;
use operator::preset_cli::PresetCli;

/// `main` of the meta-plugin: a plugin where `CNI_COMMAND` is set, else the operator's verbs.
pub fn main(presets: &'static [Preset]) -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let chain = Chain::new(presets, Path::new(&program));
    let environment = Environment::new(std::env::vars_os());
    if !matches!(environment.verb(), Ok(None)) {
        return serve(chain.name(), &chain, environment);
    }
    let typed: Vec<OsString> = arguments.collect();
    if let Some(preset) = chain.preset
        && let Some(delegate) = preset.cli
    {
        let (chain, environment, called) = (&chain, &environment, Path::new(&program));
        return PresetCli { chain, preset, delegate, environment, called }.answer(&typed);
    }
    operator::main(presets, program.into(), environment, &typed)
}
