use std::fmt;

use ipam_kit::cni::Environment;
use ipam_kit::delegate::{Delegate, Reply, answer};
use ipam_kit::host::Settings;

use super::preset::Preset;

/// The names under which this program is more than `ipam-delegated`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names {
    /// The chains under the names of the systems that they replace.
    pub presets: &'static [Preset],
    /// The selectors that are part of this program.
    pub built_in: &'static [BuiltIn],
}

/// A selector that is part of this program.
///
/// If this program is installed under its name (a symlink `ipam-ds-static`), the chain calls it as a
/// function instead of starting a process. So it must neither wait for anything nor start a thread:
/// a function cannot be killed when its time is over.
#[derive(Clone, Copy)]
pub struct BuiltIn {
    /// The name of the delegate.
    pub name: &'static str,
    /// Makes the delegate.
    pub delegate: fn() -> Box<dyn Delegate>,
}

impl BuiltIn {
    /// The built-in selector of a name.
    pub(crate) fn find(built_in: &'static [Self], name: &str) -> Option<&'static Self> {
        built_in.iter().find(|built_in| built_in.name == name)
    }

    /// Answers a call as its process would.
    pub(super) fn answer(
        &self,
        environment: Environment,
        stdin: &str,
        settings: &Settings,
    ) -> Reply {
        answer(&*(self.delegate)(), environment, stdin.as_bytes(), settings.clone())
    }
}

impl fmt::Debug for BuiltIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
