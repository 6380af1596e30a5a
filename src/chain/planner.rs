//! The planner of a chain: by `ipam.delegates`, or by the preset whose name the program has.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::built_in::{BuiltIn, Names};
use super::entry::{DelegateEntry, parse_entries, parse_timeout};
use super::next::LastDelegate;
use super::plan::{Plan, Step};
use super::preset::{Preset, PresetChain, unknown_preset};
use super::program::{OwnExecutable, is_selector, search, search_not_executable};
use ipam_kit::cni::Environment;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The sources of a plan, beside the section `ipam`.
#[derive(Clone, Debug)]
pub(crate) struct Planner<'a> {
    pub names: Names,
    /// The preset this program was started as.
    pub preset: Option<&'static Preset>,
    pub own_executable: &'a OwnExecutable,
    /// The folders of `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// The variables of the call.
    pub environment: &'a Environment,
    pub may_be_missing: MissingPrograms,
}

/// Which programs a plan may name that are not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingPrograms {
    None,
    /// A DEL goes on without them.
    Selectors,
    All,
}

impl Planner<'_> {
    /// Plans the chain of an `ipam` section.
    pub(crate) fn plan(&self, ipam: &Map<String, Value>) -> Result<Plan> {
        let timeout = match ipam.get("timeout") {
            None | Some(Value::Null) => Deadline::DEFAULT,
            // The chain calculates with parts of it.
            Some(value) => parse_timeout(value, "ipam.timeout")?.min(Deadline::LONGEST),
        };
        let mut steps = match self.preset {
            Some(preset) => self.plan_preset(preset, &DelegateEntry::default(), ipam)?,
            None => self.plan_entries(parse_entries(ipam)?, ipam)?,
        };
        let mut next_allocator = None;
        for step in steps.iter_mut().rev() {
            step.next_allocator.clone_from(&next_allocator);
            if step.is_allocator() {
                next_allocator = Some(step.name.clone());
            }
        }
        Ok(Plan { steps, timeout })
    }

    /// The delegates' names as they are configured, for a plan that cannot be made.
    pub(crate) fn names(&self, ipam: &Map<String, Value>) -> Vec<String> {
        if let Some(preset) = self.preset {
            let chain = preset.chain(ipam).ok().flatten();
            let delegates = chain.map_or(&[][..], |chain| chain.delegates);
            return delegates.iter().map(|name| (*name).to_owned()).collect();
        }
        let entries = parse_entries(ipam).unwrap_or_default();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    /// Finds a delegate's program in `CNI_PATH`.
    pub(crate) fn find(&self, name: &str) -> Result<PathBuf> {
        if let Some(file) = search(&self.path, name.as_ref()) {
            // The record outlives this process' working folder.
            return Ok(std::path::absolute(&file).unwrap_or(file));
        }
        if let Some(file) = search_not_executable(&self.path, name) {
            return Err(Error::config("ipam.delegates", format!("{name} is not executable"))
                .advise(format!("chmod +x {}", file.display())));
        }
        let folders: Vec<_> = self.path.iter().map(|p| p.display().to_string()).collect();
        let message = format!("{name} is not in CNI_PATH ({})", folders.join(":"));
        let error = Error::new(ErrorCode::INVALID_CONFIG, message).at("ipam.delegates");
        Err(if folders.is_empty() {
            error.with_code(ErrorCode::INVALID_ENVIRONMENT).advise("the runtime must set CNI_PATH")
        } else {
            error.advise(format!("install {name} there, or correct the name"))
        })
    }

    fn plan_entries(
        &self,
        entries: Vec<DelegateEntry>,
        ipam: &Map<String, Value>,
    ) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for entry in entries {
            steps.extend(self.plan_entry(entry, ipam)?);
        }
        Ok(steps)
    }

    /// The delegates of an entry of `ipam.delegates`: one, or those of a preset.
    fn plan_entry(&self, entry: DelegateEntry, ipam: &Map<String, Value>) -> Result<Vec<Step>> {
        let program = self.program_path(&entry.name)?;
        let is_own = self.own_executable.is(&program);
        let built_in = BuiltIn::find(self.names.built_in, &entry.name).filter(|_| is_own);
        if is_own && built_in.is_none() {
            return match Preset::find(self.names.presets, &entry.name) {
                Some(preset) => self.plan_preset(preset, &entry, ipam),
                None => Err(unknown_preset(&entry.path, &entry.name, &program)),
            };
        }
        if !is_selector(&entry.name) {
            entry.refuse_selector_keys()?;
        }
        Ok(vec![Step { built_in, ..Step::of(entry, program) }])
    }

    /// The delegates of a preset that an entry names. A program that a file of the host names replaces the
    /// last one.
    fn plan_preset(
        &self,
        preset: &Preset,
        entry: &DelegateEntry,
        ipam: &Map<String, Value>,
    ) -> Result<Vec<Step>> {
        let mut entry_ipam = ipam.clone();
        entry_ipam.extend(entry.overrides.clone());
        let chain = preset.chain(&entry_ipam)?.ok_or_else(|| no_chain_chosen(preset))?;
        if !chain.delegates.iter().any(|name| is_selector(name)) {
            entry.refuse_selector_keys()?;
        }
        let named_by_host = match &preset.host_program {
            Some(host) => host.find(self.names.presets, self.own_executable, self.environment)?,
            None => None,
        };
        let preset_entry = with_settings(preset, chain, entry, &entry_ipam)?;
        let mut delegates = chain.delegates.to_vec();
        if named_by_host.is_some() {
            delegates.pop();
        }
        let mut steps = Vec::new();
        for name in delegates {
            let entry = DelegateEntry { name: name.to_owned(), ..preset_entry.clone() };
            let program = self.program_path(name)?;
            let built_in = self.built_in(name, &program);
            steps.push(Step { built_in, ..Step::of(entry, program) });
        }
        match named_by_host {
            None => {}
            Some(LastDelegate::Program { name, path }) => {
                steps.push(Step::of_host(name, path, preset_entry));
            }
            Some(LastDelegate::Preset(preset)) => {
                steps.extend(self.plan_preset(preset, entry, ipam)?);
            }
        }
        Ok(steps)
    }

    /// The built-in selector of a name, if its program is this one.
    pub(crate) fn built_in(&self, name: &str, program: &Path) -> Option<&'static BuiltIn> {
        let built_in = BuiltIn::find(self.names.built_in, name);
        built_in.filter(|_| self.own_executable.is(program))
    }

    /// The path of a delegate's program. If it is missing but may be, a path where running it fails.
    fn program_path(&self, name: &str) -> Result<PathBuf> {
        let is_optional = match self.may_be_missing {
            MissingPrograms::None => false,
            MissingPrograms::Selectors => is_selector(name),
            MissingPrograms::All => true,
        };
        match (self.find(name), self.path.first()) {
            (Err(_), Some(folder)) if is_optional => Ok(folder.join(name)),
            (found, _) => found,
        }
    }
}

/// The error of a preset of which no chain has its condition fulfilled.
fn no_chain_chosen(preset: &Preset) -> Error {
    let conditions: Vec<_> = preset.chains.iter().map(|chain| chain.when.to_string()).collect();
    let message = format!("the preset {} needs one of {}", preset.name, conditions.join(", "));
    Error::config("ipam", message)
}

/// An entry with what its preset adds for each of its delegates. In a section that both set, the
/// configuration may add to the preset's settings.
///
/// # Errors
/// The configuration contradicts a setting of the preset.
fn with_settings(
    preset: &Preset,
    chain: &PresetChain,
    entry: &DelegateEntry,
    ipam: &Map<String, Value>,
) -> Result<DelegateEntry> {
    let mut entry = entry.clone();
    entry.sets.extend(chain.sets.iter().map(|key| (*key).to_owned()));
    for (key, mut setting) in chain.settings() {
        if let (Value::Object(fixed), Some(Value::Object(configured))) =
            (&mut setting, ipam.get(&key))
        {
            add_configured(preset, &key, fixed, configured)?;
        }
        entry.overrides.insert(key, setting);
    }
    Ok(entry)
}

/// Adds the members of a configured section to those that a preset fixes.
fn add_configured(
    preset: &Preset,
    key: &str,
    fixed: &mut Map<String, Value>,
    configured: &Map<String, Value>,
) -> Result<()> {
    for (name, value) in configured {
        let setting = fixed.entry(name).or_insert_with(|| value.clone());
        if setting != value {
            let message = format!("the preset {} sets it to {setting}", preset.name);
            return Err(Error::config(format!("ipam.{key}.{name}"), message).advise("remove it"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
