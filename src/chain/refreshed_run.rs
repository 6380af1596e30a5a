//! A recorded delegate as it is run today: by the program that stands now, with today's secrets and files
//! where they are meant for its store.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::entry::object_form;
use super::exec::Failure;
use super::next::kept_aside;
use super::patch::refresh_secrets;
use super::plan::Step;
use super::planner::{Missing, Planner};
use super::preset::Preset;
use super::program::{ProgramSource, is_allocator};
use super::record::Run;
use super::session::Session;
use super::store_access::{
    NamedServer, changed_servers, refresh_files, remove_settings_for_other_servers,
    store_settings_differ,
};
use ipam_kit::cni::Network;
use ipam_kit::error::ErrorCode;

/// A recorded delegate with what is today's of it.
pub(crate) struct RefreshedRun {
    pub run: Run,
    /// The section `ipam` of today, where that names the store by another way.
    pub present_ipam: Option<Map<String, Value>>,
    /// The servers of the record, and those of today.
    servers: Option<[String; 2]>,
    /// A secret of today is not meant for the recorded servers.
    secret_withheld: bool,
}

impl RefreshedRun {
    /// A failure, with what the record and the configuration name.
    pub(crate) fn explain_failure(&self, mut failure: Failure) -> Failure {
        let Some([recorded, today]) = &self.servers else { return failure };
        let code = failure.error.code();
        let why = if self.secret_withheld && code == ErrorCode::BACKEND {
            "the recorded secret was used, for that of the configuration is meant for other servers"
        } else if self.present_ipam.is_some() && code != ErrorCode::NOT_HELD {
            "the configuration names other servers; they are used if they prove to lead to the recorded store"
        } else {
            return failure;
        };
        let advice = format!("{why} (recorded: {recorded}; configured now: {today})");
        failure.error = failure.error.advise(advice);
        failure
    }
}

impl Session<'_> {
    /// A recorded delegate with the secrets of the network's present configuration: they rotate.
    ///
    /// Those of a standalone program are of a selector's source, which is not the network's configuration.
    pub(crate) fn with_newer_secrets(&self, run: &Run, network: &Network) -> Run {
        self.refresh_run(run, network).run
    }

    /// A recorded delegate as it is run today: what identifies its store is the record's, and secrets that
    /// are meant for its servers and files that cannot be read any more are the present configuration's.
    pub(crate) fn refresh_run(&self, run: &Run, network: &Network) -> RefreshedRun {
        if run.is_standalone() {
            let run = match self.replacing_allocator(run) {
                Some(allocator) => run.handed_to(allocator, &self.node),
                None => run.clone(),
            };
            return RefreshedRun { run, present_ipam: None, servers: None, secret_withheld: false };
        }
        let newer = self.present_ipam(run, network);
        let servers = changed_servers(&run.ipam, &newer);
        let mut meant = newer.clone();
        if !run.configured {
            remove_settings_for_other_servers(&run.ipam, &mut meant);
        }
        let mut refreshed = run.clone();
        refresh_secrets(&mut refreshed.ipam, &meant);
        refresh_files(&mut refreshed.ipam, &meant);
        let secret_withheld = meant.len() < newer.len() && {
            let mut all = run.ipam.clone();
            refresh_secrets(&mut all, &newer);
            all != refreshed.ipam
        };
        let is_another_way = is_allocator(&run.delegate)
            && !NamedServer::all(&newer).is_empty()
            && store_settings_differ(&refreshed.ipam, &newer);
        let present_ipam = is_another_way.then_some(newer);
        RefreshedRun { run: refreshed, present_ipam, servers, secret_withheld }
    }

    /// The section `ipam` that a recorded delegate has by the network's present configuration.
    pub(crate) fn present_ipam(&self, run: &Run, network: &Network) -> Map<String, Value> {
        let mut newer = network.ipam().clone();
        if let Some(preset) = self.chain.preset {
            preset.apply_settings(&mut newer);
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
            .filter(|entry| self.entry_includes(entry, &run.delegate))
            .collect();
        // A delegate may stand in the chain twice: the entry is the one that fits in all the rest.
        let fitting = own.iter().filter(|entry| run.fits(entry)).max_by_key(|entry| entry.len());
        let only = if own.len() == 1 { own.first() } else { None };
        let entry = fitting.or(only).cloned().unwrap_or_default();
        let preset = entry.get("type").and_then(Value::as_str);
        let preset = preset.and_then(|name| Preset::find(self.chain.presets, name));
        newer.extend(entry);
        if let Some(preset) = preset.filter(|preset| preset.name != run.delegate) {
            preset.apply_settings(&mut newer);
        }
        newer
    }

    /// Whether an entry of `ipam.delegates` is this delegate, or a preset with it.
    fn entry_includes(&self, entry: &Map<String, Value>, delegate: &str) -> bool {
        let Some(name) = entry.get("type").and_then(Value::as_str) else { return false };
        let presets = self.chain.presets.iter().filter(|preset| preset.name == name);
        let mut parts = presets.flat_map(|preset| preset.chains).flat_map(|chain| chain.delegates);
        name == delegate || parts.any(|part| *part == delegate)
    }

    /// A recorded delegate as a step: found in `CNI_PATH`, else at its recorded path. Where a preset has
    /// taken its name or its path since, it is the program that was kept aside as `NAME.orig`.
    pub(crate) fn recorded_step(&self, run: &Run) -> Step {
        let recorded = PathBuf::from(&run.program);
        let kept_name = format!("{}.orig", run.delegate);
        let program = match run.source {
            ProgramSource::CniPath => {
                self.find_replaced(&run.delegate).or_else(|| self.find_replaced(&kept_name))
            }
            ProgramSource::HostFile => kept_aside(&recorded, self.chain.own(), &kept_name),
        };
        let step = Step::new(&run.delegate, program.unwrap_or(recorded));
        Step { source: run.source, ..step }
    }

    /// A program of `CNI_PATH` that is not this one.
    fn find_replaced(&self, name: &str) -> Option<PathBuf> {
        self.planner().find(name).ok().filter(|program| !self.chain.own().is(program))
    }

    /// The last delegate of the preset that has replaced a recorded program, where none was kept aside.
    /// Without a plan of the preset, the program is run as recorded, which fails and keeps the record.
    fn replacing_allocator(&self, run: &Run) -> Option<Step> {
        let preset = Preset::find(self.chain.presets, &run.delegate)?;
        if !self.chain.own().is(&self.recorded_step(run).program) {
            return None;
        }
        let planner =
            Planner { preset: Some(preset), missing: Missing::Selectors, ..self.planner() };
        planner.plan(&run.ipam).ok()?.steps.pop()
    }
}
