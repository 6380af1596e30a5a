use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::entry::{DelegateEntry, Placing, parse_entries, parse_timeout};
use super::preset::{Preset, unknown_preset};
use super::program::{OwnExecutable, is_allocator, is_selector, search, search_not_executable};
use ipam_kit::cni::Environment;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// Which delegates run, in order, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    /// The time of the whole chain.
    pub timeout: Duration,
}

/// One delegate of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub name: String,
    pub program: PathBuf,
    /// Less than what the chain would give it.
    pub timeout: Option<Duration>,
    /// The only pools it is shown.
    pub serves: Option<Vec<String>>,
    /// Its answer is not compared with the pools it is shown.
    pub answers_any: bool,
    /// Keys of `ipam` that this selector may set for delegates of ours, beside those of every selector.
    pub sets: Vec<String>,
    /// What the chain makes of its pools; `None` where the selector does so itself.
    pub placing: Option<Placing>,
    /// The first allocator of ours after it.
    pub before: Option<String>,
    /// Keys that override `ipam` for this delegate alone.
    pub overrides: Map<String, Value>,
    /// The host named this very program.
    pub fixed: bool,
}

/// What the plan is made from, beside the `ipam` section.
#[derive(Clone, Debug)]
pub(crate) struct Planner<'a> {
    pub presets: &'static [Preset],
    /// The preset this program was started as.
    pub preset: Option<&'static Preset>,
    pub own: &'a OwnExecutable,
    /// The folders of `CNI_PATH`.
    pub path: &'a [PathBuf],
    /// The variables of the call.
    pub environment: &'a Environment,
    /// Which programs may be missing.
    pub missing: Missing,
}

/// Which programs a plan may name that are not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    None,
    /// A DEL goes on without them.
    Selectors,
    All,
}

impl Step {
    /// A delegate of which nothing special is wanted.
    pub(crate) fn new(name: &str, program: PathBuf) -> Self {
        Self::of(DelegateEntry { name: name.to_owned(), ..DelegateEntry::default() }, program)
    }

    fn of(entry: DelegateEntry, program: PathBuf) -> Self {
        let DelegateEntry { name, timeout, serves, answers_any, sets, placing, overrides, .. } =
            entry;
        let (placing, before) = (placing.filter(|_| is_selector(&name)), None);
        let fixed = false;
        Self {
            name,
            program,
            timeout,
            serves,
            answers_any,
            sets,
            placing,
            before,
            overrides,
            fixed,
        }
    }

    /// The program's own name, without the ending by which a preset keeps it aside.
    pub(crate) fn own_name(&self) -> &str {
        self.name.trim_end_matches(".orig")
    }

    /// Whether the delegate is a selector: the name is the role.
    pub(crate) fn is_selector(&self) -> bool {
        is_selector(&self.name)
    }

    /// Whether it is a program that the host named and that knows nothing of the chain.
    pub(crate) fn is_plain(&self) -> bool {
        self.fixed && !self.is_allocator()
    }

    /// Whether it takes from selectors what is a selector's to set, and nothing else.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_selector() || self.is_allocator()
    }

    /// Whether the delegate is an allocator that answers questions, and no standard plugin.
    pub(crate) fn is_allocator(&self) -> bool {
        is_allocator(&self.name)
    }
}

impl Planner<'_> {
    /// Plans the chain of an `ipam` section.
    pub(crate) fn plan(&self, ipam: &Map<String, Value>) -> Result<Plan> {
        let timeout = match ipam.get("timeout") {
            None | Some(Value::Null) => Deadline::DEFAULT,
            Some(value) => parse_timeout(value, "ipam.timeout")?,
        };
        let mut steps = Vec::new();
        if let Some(preset) = self.preset {
            self.expand(preset, ipam, &DelegateEntry::default(), &mut steps)?;
        } else {
            for entry in parse_entries(ipam)? {
                self.step(entry, ipam, &mut steps)?;
            }
        }
        let mut before = None;
        for step in steps.iter_mut().rev() {
            step.before.clone_from(&before);
            if step.is_allocator() {
                before = Some(step.name.clone());
            }
        }
        Ok(Plan { steps, timeout })
    }

    /// The delegates' names as they are configured, for a plan that cannot be made.
    pub(crate) fn names(&self, ipam: &Map<String, Value>) -> Vec<String> {
        match self.preset {
            Some(preset) => preset
                .chain(ipam)
                .map_or(&[][..], |chain| chain.delegates)
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            None => parse_entries(ipam)
                .unwrap_or_default()
                .into_iter()
                .map(|entry| entry.name)
                .collect(),
        }
    }

    /// Finds a delegate's program in `CNI_PATH`.
    pub(crate) fn find(&self, name: &str) -> Result<PathBuf> {
        let found = search(self.path, name.as_ref());
        // The record outlives this process' working folder.
        let found = found.map(|file| std::path::absolute(&file).unwrap_or(file));
        found.ok_or_else(|| {
            if let Some(file) = search_not_executable(self.path, name) {
                let file = file.display();
                return Error::config("ipam.delegates", format!("{name} may not be run"))
                    .advise(format!("chmod +x {file}"));
            }
            let folders: Vec<_> = self.path.iter().map(|p| p.display().to_string()).collect();
            let error = Error::new(
                ErrorCode::INVALID_CONFIG,
                format!("ipam.delegates: {name} is not in CNI_PATH ({})", folders.join(":")),
            );
            if folders.is_empty() {
                error
                    .with_code(ErrorCode::INVALID_ENVIRONMENT)
                    .advise("the runtime must set CNI_PATH")
            } else {
                error.advise(format!("install {name} there, or correct the name"))
            }
        })
    }

    /// [`Planner::find`], but one that may be missing fails when it is run, not here.
    fn locate(&self, name: &str) -> Result<PathBuf> {
        let may_be_missing = match self.missing {
            Missing::None => false,
            Missing::Selectors => is_selector(name),
            Missing::All => true,
        };
        match (self.find(name), self.path.first()) {
            (Err(_), Some(folder)) if may_be_missing => Ok(folder.join(name)),
            (found, _) => found,
        }
    }

    fn step(
        &self,
        entry: DelegateEntry,
        ipam: &Map<String, Value>,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        let program = self.locate(&entry.name)?;
        if !self.own.is(&program) {
            if !is_selector(&entry.name) {
                entry.refuse_selector_keys()?;
            }
            steps.push(Step::of(entry, program));
            return Ok(());
        }
        match Preset::find(self.presets, &entry.name) {
            Some(preset) => self.expand(preset, ipam, &entry, steps),
            None => Err(unknown_preset(&entry.path, &entry.name, &program)),
        }
    }

    fn expand(
        &self,
        preset: &Preset,
        ipam: &Map<String, Value>,
        entry: &DelegateEntry,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        let mut seen = ipam.clone();
        seen.extend(entry.overrides.clone());
        let chain = preset.chain(&seen).ok_or_else(|| {
            let keys: Vec<_> = preset
                .chains
                .iter()
                .filter_map(|c| c.when)
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            Error::config(
                "ipam",
                format!("the preset {} needs one of {}", preset.name, keys.join(", ")),
            )
        })?;
        if !chain.delegates.iter().any(|name| is_selector(name)) {
            entry.refuse_selector_keys()?;
        }
        let next = preset.host_program.as_ref();
        let mut named = next.map_or(Ok(None), |next| next.find(self.environment))?;
        for (left, name) in (0..chain.delegates.len()).rev().zip(chain.delegates) {
            let mut part = DelegateEntry { name: (*name).to_owned(), ..entry.clone() };
            part.sets.extend(chain.sets.iter().map(|section| (*section).to_owned()));
            for (key, mut setting) in chain.settings() {
                if let (Value::Object(ours), Some(Value::Object(theirs))) =
                    (&mut setting, seen.get(&key))
                {
                    join(preset, &key, ours, theirs)?;
                }
                part.overrides.insert(key, setting);
            }
            match (next, named.take_if(|_| left == 0)) {
                (Some(next), Some((name, program))) if self.own.is(&program) => {
                    let preset =
                        Preset::of_next(next, self.presets, &name, &program, self.environment)?;
                    return self.expand(preset, ipam, entry, steps);
                }
                (_, Some((name, program))) => {
                    part.name = name;
                    steps.push(Step { fixed: true, ..Step::of(part, program) });
                }
                _ => steps.push(Step::of(part, self.locate(name)?)),
            }
        }
        Ok(())
    }
}

/// Adds to a preset's settings what the configuration says beside them in the same section.
fn join(
    preset: &Preset,
    key: &str,
    ours: &mut Map<String, Value>,
    theirs: &Map<String, Value>,
) -> Result<()> {
    for (name, value) in theirs {
        let set = ours.entry(name).or_insert_with(|| value.clone());
        if set != value {
            let path = ["ipam.", key, ".", name].concat();
            let message = [preset.name, " sets it to ", &set.to_string()].concat();
            return Err(Error::config(path, message).advise("leave it out"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
