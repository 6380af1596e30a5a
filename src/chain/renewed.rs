//! A recorded delegate as it is run today: by the program that stands now, with today's secrets and files
//! where they are meant for its store.

use serde_json::{Map, Value};

use super::entry::object_form;
use super::exec::Failure;
use super::patch::refresh_secrets;
use super::plan::{Missing, Planner, Step};
use super::preset::Preset;
use super::program::is_allocator;
use super::record::Run;
use super::session::Session;
use super::way::{Server, both_lists, differ, keep_what_is_meant, refresh_files};
use ipam_kit::cni::Network;
use ipam_kit::error::ErrorCode;

/// A recorded delegate with what is today's of it.
pub(crate) struct Renewed {
    pub run: Run,
    /// The section `ipam` of today, where that names the store by another way.
    pub present: Option<Map<String, Value>>,
    /// The servers of the record, and those of today.
    lists: Option<[String; 2]>,
    /// A secret of today is not meant for the recorded servers.
    withheld: bool,
}

impl Renewed {
    /// A failure, with what the record and the configuration name.
    pub(crate) fn explain(&self, mut failure: Failure) -> Failure {
        let Some([recorded, today]) = &self.lists else { return failure };
        let code = failure.error.code();
        let why = if self.withheld && code == ErrorCode::BACKEND {
            "the recorded secret was used, for that of the configuration is meant for other servers"
        } else if self.present.is_some() && code != ErrorCode::NOT_HELD {
            "the configuration names other servers; they are used if they prove to lead to the recorded store"
        } else {
            return failure;
        };
        let lists = [why, " (recorded: ", recorded, "; configured now: ", today, ")"].concat();
        failure.error = failure.error.advise(lists);
        failure
    }
}

impl Session<'_> {
    /// A recorded delegate with the secrets of the network's present configuration: they rotate.
    ///
    /// Those of a plain program are of a selector's source, which is not the network's configuration.
    pub(crate) fn with_newer_secrets(&self, run: &Run, network: &Network) -> Run {
        self.renewed(run, network).run
    }

    /// A recorded delegate as it is run today: what identifies its store is the record's, and secrets that
    /// are meant for its servers and files that cannot be read any more are the present configuration's.
    pub(crate) fn renewed(&self, run: &Run, network: &Network) -> Renewed {
        if run.is_plain() {
            let run = self.taken_over(run).unwrap_or_else(|| run.clone());
            return Renewed { run, present: None, lists: None, withheld: false };
        }
        let newer = self.todays(run, network);
        let lists = both_lists(&run.ipam, &newer);
        let mut meant = newer.clone();
        if !run.configured {
            keep_what_is_meant(&run.ipam, &mut meant);
        }
        let mut renewed = run.clone();
        refresh_secrets(&mut renewed.ipam, &meant);
        refresh_files(&mut renewed.ipam, &meant);
        let withheld = meant.len() < newer.len() && {
            let mut all = run.ipam.clone();
            refresh_secrets(&mut all, &newer);
            all != renewed.ipam
        };
        let is_another_way = is_allocator(&run.delegate)
            && !Server::all(&newer).is_empty()
            && differ(&renewed.ipam, &newer);
        let present = is_another_way.then_some(newer);
        Renewed { run: renewed, present, lists, withheld }
    }

    /// The section `ipam` that a recorded delegate has by the network's present configuration.
    pub(crate) fn todays(&self, run: &Run, network: &Network) -> Map<String, Value> {
        let mut newer = network.ipam().clone();
        if let Some(preset) = self.chain.preset {
            preset.fill(&mut newer);
        }
        let listed = newer.remove("delegates");
        let own: Vec<Map<String, Value>> = listed
            .iter()
            .filter_map(Value::as_array)
            .flatten()
            .map(|entry| match entry {
                Value::Object(entry) => entry.clone(),
                name => object_form(name.clone()),
            })
            .map(|mut entry| {
                // The word of a preset's selector, which no allocator gets.
                entry.retain(|key, value| key != "pools" || !value.is_string());
                entry
            })
            .filter(|entry| self.stands_for(entry, &run.delegate))
            .collect();
        // A delegate may stand in the chain twice: the entry is the one that fits in all the rest.
        let fitting = own.iter().filter(|entry| run.fits(entry)).max_by_key(|entry| entry.len());
        let only = if own.len() == 1 { own.first() } else { None };
        let entry = fitting.or(only).cloned().unwrap_or_default();
        let preset = entry.get("type").and_then(Value::as_str);
        let preset = preset.and_then(|name| Preset::named(self.chain.presets, name));
        newer.extend(entry);
        if let Some(preset) = preset.filter(|preset| preset.name != run.delegate) {
            preset.fill(&mut newer);
        }
        newer
    }

    /// Whether an entry of `ipam.delegates` is this delegate, or a preset with it.
    fn stands_for(&self, entry: &Map<String, Value>, delegate: &str) -> bool {
        let Some(name) = entry.get("type").and_then(Value::as_str) else { return false };
        let presets = self.chain.presets.iter().filter(|preset| preset.name == name);
        let mut parts = presets.flat_map(|preset| preset.chains).flat_map(|chain| chain.delegates);
        name == delegate || parts.any(|part| *part == delegate)
    }

    /// A recorded program in whose place a preset stands since, while none was kept aside, as the preset's
    /// allocator: that works on the state of what it replaces, so it finds the lease. Where it cannot be
    /// planned, the program is run as recorded, which fails and keeps the record.
    fn taken_over(&self, run: &Run) -> Option<Run> {
        let preset = Preset::named(self.chain.presets, &run.delegate);
        let step = self.recorded_step(run);
        if preset.is_none() || !self.chain.own().is(&step.program) {
            return None;
        }
        let planner = Planner { preset, missing: Missing::Selectors, ..self.planner() };
        let Step { name, program, overrides, .. } = planner.plan(&run.ipam).ok()?.steps.pop()?;
        let mut run = Run { fixed: false, program: program.display().to_string(), ..run.clone() };
        run.ipam.extend(overrides);
        for (key, value) in [("type", &name), ("node", &self.node)] {
            run.ipam.insert(key.to_owned(), value.clone().into());
        }
        run.delegate = name;
        Some(run)
    }
}
