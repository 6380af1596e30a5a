//! The chain: an ordered list of delegates, run as one IPAM plugin.
//!
//! The chain knows processes, not addresses. It plans which delegates run, runs each with the
//! result of the one before, undoes a failed ADD, and keeps a record of each attachment. So a DEL
//! releases everything that was taken, even if the configuration has changed.

mod add;
mod built_in;
mod check;
mod del;
pub(crate) mod entry;
pub(crate) mod exec;
pub(crate) mod gc;
pub(crate) mod handoff;
pub(crate) mod next;
pub(crate) mod optional;
pub(crate) mod patch;
mod patched_ipam;
pub(crate) mod plan;
pub(crate) mod planner;
mod preset;
mod process;
pub(crate) mod program;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod refreshed_run;
pub(crate) mod release;
pub(crate) mod repeat;
mod run_all;
pub(crate) mod served;
pub(crate) mod session;
mod settle;
pub(crate) mod stale;
pub(crate) mod store_access;
pub(crate) mod unreachable;
pub(crate) mod unshown_pools;

use std::path::Path;

pub use built_in::{BuiltIn, Names};
pub use preset::{ChainCondition, HostProgram, Preset, PresetChain};

use ipam_kit::cni::{IpamResult, ValidAttachments};
use ipam_kit::delegate::{Delegate, Request};
use ipam_kit::error::Result;
use program::OwnExecutable;
use session::Session;

/// The chain as a plugin, with the names that this program may have.
#[derive(Debug)]
pub struct Chain {
    pub(crate) names: Names,
    pub(crate) preset: Option<&'static Preset>,
    /// The name this program was started under.
    pub(crate) called: String,
    own_executable: std::cell::OnceCell<OwnExecutable>,
}

impl Chain {
    /// A chain started under the name `program` (argv\[0\], a path): the name of a preset makes it
    /// that preset.
    pub fn new(names: Names, program: &Path) -> Self {
        let name = program.file_name().and_then(|name| name.to_str());
        let preset = name.and_then(|name| Preset::find(names.presets, name));
        let called = name.unwrap_or("ipam-delegated").to_owned();
        Self { names, preset, called, own_executable: std::cell::OnceCell::new() }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.preset.map_or("ipam-delegated", |preset| preset.name)
    }

    pub(crate) fn own_executable(&self) -> &OwnExecutable {
        self.own_executable.get_or_init(OwnExecutable::find)
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

    fn gc(&self, request: &Request, keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        gc::gc(&Session::open(self, request)?, keep).map(|()| None)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        check::status(&Session::open(self, request)?).map(|()| None)
    }

    fn undelivered(&self, request: &Request) -> Result<()> {
        add::undeliver(&Session::open(self, request)?)
    }
}
