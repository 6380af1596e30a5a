//! A recorded delegate as it is run again: by the installed program, with the present secrets and
//! files if they are meant for its store.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::entry::object_form;
use super::exec::DelegateFailure;
use super::next::kept_aside;
use super::patch::refresh_secrets;
use super::plan::Step;
use super::planner::{MissingPrograms, Planner};
use super::preset::Preset;
use super::program::{ProgramSource, is_allocator};
use super::record::Run;
use super::session::Session;
use super::store_access::{
    ChangedServers, NamedServer, names_each_store, refresh_files,
    remove_settings_for_other_servers, store_settings_differ,
};
use ipam_kit::cni::Network;
use ipam_kit::error::ErrorCode;

/// A recorded delegate with present secrets and files.
pub(crate) struct RefreshedRun {
    pub run: Run,
    /// Today's section `ipam` of an allocator, if that leads to the store in another way.
    pub present_ipam: Option<Map<String, Value>>,
    /// The servers of both, if they differ.
    changed_servers: Option<ChangedServers>,
    /// The present secret is not meant for the recorded servers.
    is_secret_withheld: bool,
}

impl RefreshedRun {
    /// Whether a selector has set the recorded store, which the configuration does not name.
    pub(crate) fn may_be_set_by_selector(&self) -> bool {
        !self.run.store_is_configured && !self.run.is_standalone() && self.present_ipam.is_none()
    }

    /// The same beside this present section, which a selector has completed.
    pub(crate) fn with_present(self, ipam: Map<String, Value>) -> Self {
        let changed_servers = ChangedServers::between(&self.run.ipam, &ipam);
        Self { present_ipam: Some(ipam), changed_servers, ..self }
    }

    /// Adds which servers the record and the configuration name to a failure that this may explain.
    pub(crate) fn explain_failure(&self, mut failure: DelegateFailure) -> DelegateFailure {
        let Some(ChangedServers { recorded, present }) = &self.changed_servers else {
            return failure;
        };
        let code = failure.error.code();
        let why = if self.is_secret_withheld && code == ErrorCode::BACKEND {
            "the recorded secret was used, since the present one is for other servers"
        } else if self.present_ipam.is_some() && code != ErrorCode::NOT_HELD {
            "the configuration names other servers, which are used only if they prove to be the recorded store"
        } else {
            return failure;
        };
        let advice = format!("{why} (recorded: {recorded}; configured now: {present})");
        failure.error = failure.error.advise(advice);
        failure
    }
}

/// Takes secrets and files of the present configuration into a recorded run. The record identifies
/// the store. Present secrets replace the recorded ones if they are meant for the recorded servers,
/// and present files replace those that cannot be read.
///
/// The secrets of a standalone program come from a selector, not from the configuration.
pub(crate) fn refresh_run(session: &Session<'_>, run: &Run, network: &Network) -> RefreshedRun {
    if run.is_standalone() {
        let run = match replacing_allocator(session, run) {
            Some(allocator) => run.handed_to(allocator, &session.node),
            None => run.clone(),
        };
        return RefreshedRun {
            run,
            present_ipam: None,
            changed_servers: None,
            is_secret_withheld: false,
        };
    }
    let present = present_ipam(session, run, network);
    let mut meant = present.clone();
    if !run.store_is_configured {
        remove_settings_for_other_servers(&run.ipam, &mut meant);
    }
    let mut refreshed = run.clone();
    refresh_secrets(&mut refreshed.ipam, &meant);
    refresh_files(&mut refreshed.ipam, &meant);
    let is_secret_withheld = meant.len() < present.len() && {
        let mut with_all = run.ipam.clone();
        refresh_secrets(&mut with_all, &present);
        with_all != refreshed.ipam
    };
    let is_another_way = is_allocator(&run.delegate)
        && !NamedServer::all(&present).is_empty()
        && (run.store_is_configured || names_each_store(&run.ipam, &present))
        && store_settings_differ(&refreshed.ipam, &present);
    RefreshedRun {
        run: refreshed,
        changed_servers: ChangedServers::between(&run.ipam, &present),
        present_ipam: is_another_way.then_some(present),
        is_secret_withheld,
    }
}

/// The section `ipam` that a recorded delegate has by the network's present configuration.
pub(crate) fn present_ipam(
    session: &Session<'_>,
    run: &Run,
    network: &Network,
) -> Map<String, Value> {
    let mut ipam = network.ipam().clone();
    if let Some(preset) = session.chain.preset {
        preset.apply_settings(&mut ipam);
    }
    let delegates = ipam.remove("delegates");
    let entry = present_entry(session, run, delegates.as_ref());
    let preset = entry.get("type").and_then(Value::as_str);
    let preset = preset.and_then(|name| Preset::find(session.chain.names.presets, name));
    ipam.extend(entry);
    if let Some(preset) = preset.filter(|preset| preset.name != run.delegate) {
        preset.apply_settings(&mut ipam);
    }
    ipam
}

/// The entry of `ipam.delegates` that is the recorded delegate's; empty if it is not clear which.
///
/// If several entries have its name, it is the one whose other keys equal the recorded ones.
fn present_entry(
    session: &Session<'_>,
    run: &Run,
    delegates: Option<&Value>,
) -> Map<String, Value> {
    let delegates = delegates.and_then(Value::as_array).into_iter().flatten();
    let mut entries: Vec<Map<String, Value>> = delegates.filter_map(object_form).collect();
    entries.retain(|entry| entry_includes(session, entry, &run.delegate));
    for entry in &mut entries {
        // The word of a preset's selector, which no allocator gets.
        entry.retain(|key, value| key != "pools" || !value.is_string());
    }
    let fitting = entries.iter().filter(|entry| run.fits(entry)).max_by_key(|entry| entry.len());
    match (fitting, &entries[..]) {
        (Some(entry), _) | (None, [entry]) => entry.clone(),
        (None, _) => Map::new(),
    }
}

/// Whether an entry of `ipam.delegates` is this delegate, or a preset that has it.
fn entry_includes(session: &Session<'_>, entry: &Map<String, Value>, delegate: &str) -> bool {
    let Some(name) = entry.get("type").and_then(Value::as_str) else { return false };
    let preset = Preset::find(session.chain.names.presets, name);
    let mut chains = preset.map_or(&[][..], |preset| preset.chains).iter();
    name == delegate || chains.any(|chain| chain.delegates.contains(&delegate))
}

/// A recorded delegate as a step: found in `CNI_PATH`, else at its recorded path. If a preset has since
/// taken its name or its path, it is the program kept aside as `NAME.orig`.
pub(crate) fn recorded_step(session: &Session<'_>, run: &Run) -> Step {
    let recorded = PathBuf::from(&run.program);
    let kept_name = format!("{}.orig", run.delegate);
    let program = match run.source {
        ProgramSource::CniPath => {
            find_replaced(session, &run.delegate).or_else(|| find_replaced(session, &kept_name))
        }
        ProgramSource::HostFile => {
            kept_aside(&recorded, session.chain.own_executable(), &kept_name)
        }
    };
    let step = Step::new(&run.delegate, program.unwrap_or(recorded));
    Step { source: run.source, ..step }
}

/// A program of `CNI_PATH` that is not this one.
fn find_replaced(session: &Session<'_>, name: &str) -> Option<PathBuf> {
    session.planner.find(name).ok().filter(|program| !session.chain.own_executable().is(program))
}

/// The last delegate of the preset that has replaced a recorded program without a `NAME.orig`. If the
/// preset cannot be planned, the recorded program runs, which fails and keeps the record.
fn replacing_allocator(session: &Session<'_>, run: &Run) -> Option<Step> {
    let preset = Preset::find(session.chain.names.presets, &run.delegate)?;
    if !session.chain.own_executable().is(&recorded_step(session, run).program) {
        return None;
    }
    let planner = Planner {
        preset: Some(preset),
        may_be_missing: MissingPrograms::Selectors,
        ..session.planner.clone()
    };
    planner.plan(&run.ipam).ok()?.steps.pop()
}
