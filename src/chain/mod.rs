//! The chain: an ordered list of delegates, run as one IPAM plugin.
//!
//! The chain knows processes, not addresses. It plans which delegates run, runs each with the
//! result of the one before, undoes a failed ADD, and keeps a record of each attachment, so that a
//! DEL releases what was taken whatever has happened to the configuration since.

mod add;
mod away;
mod carry;
mod check;
mod configured;
mod del;
mod entry;
mod exec;
mod gc;
mod next;
mod operator;
mod patch;
mod plan;
mod preset;
mod process;
mod program;
mod question;
mod record;
mod renewed;
mod section;
mod served;
mod session;
mod stale;
mod typed;
mod way;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

pub use next::Next;
pub use preset::{Preset, PresetChain};

use crate::cni::{Environment, IpamResult, Keep};
use crate::delegate::{Delegate, Request, serve};
use crate::error::Result;
use preset::OwnFile;
use session::Session;
use typed::Typed;

/// The chain as a plugin, with a table of presets.
#[derive(Debug)]
pub struct Chain {
    presets: &'static [Preset],
    preset: Option<&'static Preset>,
    /// The name this program was started under.
    called: String,
    own: std::cell::OnceCell<OwnFile>,
}

impl Chain {
    /// A chain started under the name `program` (argv\[0\], a path): the name of a preset makes it
    /// that preset.
    pub fn new(presets: &'static [Preset], program: &Path) -> Self {
        let name = program.file_name().and_then(|name| name.to_str());
        let preset = name.and_then(|name| Preset::named(presets, name));
        let called = name.unwrap_or("ipam-delegated").to_owned();
        Self { presets, preset, called, own: std::cell::OnceCell::new() }
    }

    fn name(&self) -> &'static str {
        self.preset.map_or("ipam-delegated", |preset| preset.name)
    }

    fn own(&self) -> &OwnFile {
        self.own.get_or_init(OwnFile::find)
    }
}

impl Delegate for Chain {
    fn add(&self, request: &Request) -> Result<IpamResult> {
        add::add(&Session::open(self, request)?)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        del::del(&Session::open(self, request)?).map(|()| None)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        check::check(&Session::open(self, request)?).map(|()| None)
    }

    fn gc(&self, request: &Request, keep: &Keep) -> Result<Option<IpamResult>> {
        gc::gc(&Session::open(self, request)?, keep).map(|()| None)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        check::status(&Session::open(self, request)?).map(|()| None)
    }

    fn undelivered(&self, request: &Request) -> Result<()> {
        add::undeliver(&Session::open(self, request)?)
    }
}

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
        && let Some(delegate) = preset.by_hand
    {
        let (chain, environment, called) = (&chain, &environment, Path::new(&program));
        return Typed { chain, preset, delegate, environment, called }.answer(&typed);
    }
    operator::main(presets, program.into(), environment, &typed)
}
