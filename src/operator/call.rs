use std::path::PathBuf;

use super::options::{CACHE_DIR, STATE_DIR};
use crate::chain::Names;
use ipam_cli::{Arguments, OptionSpec};
use ipam_kit::cni::Environment;
use ipam_kit::error::Result;
use ipam_kit::host::{ResultCache, Settings, StateDir};
use ipam_kit::log::LogSettings;

/// A person's call of a verb.
#[derive(Debug)]
pub(super) struct Operator {
    pub names: Names,
    /// The name this program was called by, a path or not.
    pub program: PathBuf,
    pub environment: Environment,
    pub arguments: Arguments,
}

impl Operator {
    pub(super) fn prints_json(&self) -> bool {
        self.arguments.has(&OptionSpec::JSON)
    }

    /// Whether the verb is to do what it only shows otherwise.
    pub(super) fn does_it(&self) -> bool {
        self.arguments.has(&OptionSpec::YES)
    }

    /// The host-wide settings, with the state folder that was typed.
    pub(super) fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::load()?;
        if let Some(folder) = self.arguments.value(&STATE_DIR) {
            settings.state_dir = PathBuf::from(folder);
        }
        Ok(settings)
    }

    /// The host's state folder.
    pub(super) fn state(&self) -> Result<StateDir> {
        Ok(StateDir::of_host(&self.settings()?))
    }

    /// The runtimes' result cache.
    pub(super) fn cache(&self) -> ResultCache {
        ResultCache::new(self.arguments.value(&CACHE_DIR).unwrap_or(ResultCache::DEFAULT))
    }

    /// Sends warnings of the chain's rooms to stderr, and all to the log where that is wanted.
    pub(super) fn start_log(&self) {
        let settings = Settings::load().unwrap_or_default();
        let log = LogSettings {
            name: "ipam-delegated",
            context: self.arguments.verb().unwrap_or("help").to_owned(),
            verbose: settings.verbose,
            debug: self.environment.text(LogSettings::VARIABLE) == Some("debug"),
            folder: &settings.log_dir,
        };
        log.start();
    }
}
