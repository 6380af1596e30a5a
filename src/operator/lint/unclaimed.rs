//! Keys that no delegate, chain or plugin of a network reads, each with the nearest known key.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::findings::Findings;
use crate::chain::entry::{ENTRY_KEYS, parse_entries};
use crate::chain::session::Session;
use crate::operator::about::About;
use crate::operator::dry_run::DryRunStage;
use crate::operator::reference::{EVERY_PLUGIN, of_plugin};
use ipam_kit::delegate::selector_keys::CHAIN_KEYS;
use ipam_kit::keys::nearest;

impl Findings {
    /// Finds keys without a reader in `ipam` and in the delegates' objects; `abouts` has the answer
    /// of each stage's delegate.
    pub(super) fn of_keys(
        &mut self,
        session: &Session<'_>,
        stages: &[DryRunStage],
        abouts: &[About],
    ) {
        let ipam = session.request.network.ipam();
        let chain = ReadKeys::of(abouts);
        for key in ipam.keys().filter(|key| !is_idle(key)) {
            self.unclaimed("ipam", key, &chain, "no delegate of the chain reads it");
        }
        if !chain.open {
            self.of_lone_range_keys(ipam, stages, abouts);
        }
        if session.planner.preset.is_some() {
            return;
        }
        for entry in parse_entries(ipam).unwrap_or_default() {
            let mut its: Vec<&About> = Vec::new();
            for (stage, about) in stages.iter().zip(abouts) {
                its.extend((stage.step.name == entry.name).then_some(about));
            }
            // A preset is replaced by its delegates, and has no step.
            let mut read = if its.is_empty() { chain.clone() } else { ReadKeys::of(its) };
            // A delegate that does not list its keys may read any key of its object.
            if read.open {
                continue;
            }
            read.known.extend(ENTRY_KEYS);
            // Of a selector it may be a word.
            read.known.insert("pools");
            let why = format!("{} does not read it", entry.name);
            for key in entry.overrides.keys().filter(|key| !is_idle(key)) {
                self.unclaimed(&entry.path, key, &read, &why);
            }
        }
    }

    /// Finds misspelt keys of the chain in `ipam`, if its delegates are unknown.
    pub(super) fn of_chain_keys(&mut self, session: &Session<'_>) {
        let chain = ReadKeys { open: true, ..ReadKeys::of([]) };
        for key in session.request.network.ipam().keys() {
            self.unclaimed("ipam", key, &chain, "");
        }
    }

    /// Finds `exclude` and the like in `ipam` without `ipam.subnet`.
    fn of_lone_range_keys(
        &mut self,
        ipam: &Map<String, Value>,
        stages: &[DryRunStage],
        abouts: &[About],
    ) {
        for input in stages.iter().filter_map(|stage| stage.input.as_ref()) {
            if input["ipam"]["subnet"].as_str().is_some_and(|subnet| !subnet.is_empty()) {
                return;
            }
        }
        let mut keys = BTreeSet::new();
        keys.extend(abouts.iter().flat_map(|about| &about.of_ranges));
        for key in keys.into_iter().filter(|key| *key != "subnet") {
            // A replaced system may have its own key of this name, beside another one for ranges.
            let is_own = |about: &About| about.reads(key) && !about.reads("subnet");
            if !abouts.iter().any(is_own) && ipam.get(key).is_some_and(|value| !value.is_null()) {
                let message = format!(
                    "ipam.{key} has an effect only together with ipam.subnet: move it into the ranges that it is meant for"
                );
                self.push("warning", &message);
            }
        }
    }

    /// Finds keys without a reader in the plugins of a network.
    pub(super) fn of_plugins(&mut self, plugins: &[Map<String, Value>]) {
        for plugin in plugins {
            let name = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            let its = of_plugin(name);
            let mut read = ReadKeys { known: BTreeSet::new(), open: its.is_none() };
            read.known.extend(its.unwrap_or_default().iter().chain(EVERY_PLUGIN));
            let why = format!("{name} does not read it");
            for key in plugin.keys() {
                let is_read = read.known.iter().any(|it| it.eq_ignore_ascii_case(key));
                if !is_read && !key.starts_with("cni.dev/") {
                    self.unclaimed(name, key, &read, &why);
                }
            }
        }
    }

    fn unclaimed(&mut self, path: &str, key: &str, read: &ReadKeys<'_>, why: &str) {
        if read.known.contains(key) {
            return;
        }
        let place = format!("{path}.{}", key.escape_debug());
        let message = match nearest(key, read.known.iter().copied()) {
            Some(meant) if read.open => format!("{place}: did you mean {meant}?"),
            Some(meant) => format!("{place}: {why}: did you mean {meant}?"),
            None if read.open => return,
            None => format!("{place}: {why}: remove it, or correct its name"),
        };
        self.push("warning", &message);
    }
}

/// The keys that have a reader.
#[derive(Clone)]
struct ReadKeys<'a> {
    known: BTreeSet<&'a str>,
    /// A reader does not say which keys it reads: only misspelt ones are reported.
    open: bool,
}

impl<'a> ReadKeys<'a> {
    /// The keys that delegates say they read, with the chain's own.
    fn of(abouts: impl IntoIterator<Item = &'a About>) -> Self {
        let mut this = Self { known: BTreeSet::new(), open: false };
        this.known.extend(CHAIN_KEYS);
        for about in abouts {
            this.open |= about.keys.is_none();
            this.known.extend(about.keys.iter().flatten().map(String::as_str));
        }
        this.known.remove(SERVES);
        this
    }
}

/// In `ipam` the chain writes it: a delegate's `server` is not a misspelt one.
const SERVES: &str = "serves";

/// Whether the chain writes a key, or a replaced system has it and it has no effect here: a name,
/// and settings of logs.
fn is_idle(key: &str) -> bool {
    matches!(key, "name" | SERVES) || key.starts_with("log")
}
