//! The plan of a call: its delegates in order, each with the settings of its entry.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::built_in::BuiltIn;
use super::entry::{DelegateEntry, Placement};
use super::program::{ProgramSource, is_allocator, is_selector};

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
    pub source: ProgramSource,
    /// The part of this program that answers instead of a process.
    pub built_in: Option<&'static BuiltIn>,
    /// Less than what the chain would give it.
    pub timeout: Option<Duration>,
    /// The only pools it is shown.
    pub serves: Option<Vec<String>>,
    /// Its answer is not compared with the pools it is shown.
    pub answers_any: bool,
    /// Keys of `ipam` that this selector may set for delegates of ours, beside those of every selector.
    pub sets: Vec<String>,
    /// How the chain combines this selector's pools with those of the selectors before it; `None` where
    /// the selector does so itself.
    pub placing: Option<Placement>,
    /// The first allocator `ipam-da-*` behind it.
    pub next_allocator: Option<String>,
    /// Keys that override `ipam` for this delegate alone.
    pub overrides: Map<String, Value>,
}

impl Step {
    /// A delegate without an entry of its own.
    pub(crate) fn new(name: &str, program: PathBuf) -> Self {
        Self::of(DelegateEntry { name: name.to_owned(), ..DelegateEntry::default() }, program)
    }

    /// The delegate of an entry.
    pub(super) fn of(entry: DelegateEntry, program: PathBuf) -> Self {
        Self {
            program,
            source: ProgramSource::CniPath,
            built_in: None,
            timeout: entry.timeout,
            serves: entry.serves,
            answers_any: entry.answers_any,
            sets: entry.sets,
            placing: entry.placing.filter(|_| is_selector(&entry.name)),
            next_allocator: None,
            overrides: entry.overrides,
            name: entry.name,
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

    /// Whether the delegate is an allocator `ipam-da-*`, which knows pools, and no standard plugin.
    pub(crate) fn is_allocator(&self) -> bool {
        is_allocator(&self.name)
    }

    /// Whether its entry asks for a verbose log.
    pub(super) fn is_verbose(&self) -> bool {
        self.overrides.get("verbose") == Some(&Value::Bool(true))
    }

    /// Whether the delegate knows the chain's contract. It takes from selectors only what a selector
    /// may set.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_selector() || self.is_allocator()
    }
}
