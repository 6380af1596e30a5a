//! The meta-plugin `ipam-delegated` as a library: a chain of small parts that gives containers
//! their addresses, with your own table of presets.
//!
//! Every system that gives containers their addresses is a chain: something chooses the pools for
//! a container, and something takes an address out of each. The program `ipam-delegated` is a CNI
//! IPAM plugin that runs such a chain: an ordered list of small programs, the *delegates*. Each
//! gets the network configuration with the result of the one before as `prevResult`, and answers
//! with that result and what it adds. *Selectors* (`ipam-ds-…`) choose pools, *allocators*
//! (`ipam-da-…`, or any standard IPAM plugin) give addresses. If an ADD fails, the chain releases
//! every address the ADD took. If it succeeds, a record names every lease that a later DEL has to
//! release, even if the configuration has changed.
//!
//! Delegates in Rust depend on the library `ipam-kit`. Use this one for a meta-plugin with presets
//! of your own, whole chains under one name:
//!
//! ```no_run
#![doc = include_str!("../examples/own-preset.rs")]
//! ```
//!
//! # The rooms
//!
//! - [`chain`]: plans which delegates run, runs each as a process, undoes a failed ADD, and keeps a
//!   record of each attachment. It knows processes, not addresses.
//! - `operator`, above `chain`: the verbs for people, of a call without `CNI_COMMAND`.
//! - [`presets`]: the chains that the program has under the names of the systems it replaces.

#![warn(unreachable_pub)]

pub mod chain;
mod operator;
pub mod presets;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use chain::{BuiltIn, Chain, Names, Preset};
use ipam_kit::cni::Environment;
use ipam_kit::delegate::{run_dyn, serve};
use operator::preset_cli::PresetCli;

/// `main` of the meta-plugin: a plugin if `CNI_COMMAND` is set, else the operator's verbs. Under the
/// name of a built-in selector it is that selector.
pub fn main(presets: &'static [Preset]) -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let names = Names { presets, built_in: presets::BUILT_IN };
    let chain = Chain::new(names, Path::new(&program));
    if let Some(built_in) = BuiltIn::find(names.built_in, &chain.called) {
        return run_dyn(built_in.name, &*(built_in.delegate)());
    }
    let environment = Environment::new(std::env::vars_os());
    if !matches!(environment.verb(), Ok(None)) {
        return serve(chain.name(), &chain, environment);
    }
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(preset) = chain.preset
        && let Some(delegate) = preset.cli
    {
        let called_as = Path::new(&program);
        let cli =
            PresetCli { chain: &chain, preset, delegate, environment: &environment, called_as };
        return cli.run(&arguments);
    }
    operator::main(names, program.into(), environment, &arguments)
}
