//! What is unsafe about a network, as `lint` finds it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::ask::rows;
use super::dry_run::{DryStep, SelectorOutcome};
use super::other_identities::of_other_identities;
use super::our_plugin::OurPlugin;
use super::refusals::is_about_no_pool;
use crate::chain::optional::run_if_known;
use crate::chain::plan::Step;
use crate::chain::program::is_allocator;
use crate::chain::query;
use crate::chain::record::{RecordFile, attachments};
use crate::chain::refreshed_run::present_ipam;
use crate::chain::served::{refuse_unknown_ranges, serves};
use crate::chain::session::Session;
use crate::chain::store_access::changed_paths;
use ipam_cli::{Row, finding};
use ipam_kit::cni::{Verb, Version};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode};
use ipam_kit::host::{transient_machine_id, volatile_filesystem};
use ipam_kit::presence::Presence;

/// Standard plugins that read no ranges.
const OTHER_WAYS: &[(&str, &str)] =
    &[("dhcp", "gives what a DHCP server offers"), ("static", "gives what ipam.addresses lists")];

/// What was found, each with a `level` (error, warning or note) and a `message`.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub list: Vec<Row>,
    /// There is an error.
    pub failed: bool,
    /// An allocator's ledger is shared with other nodes.
    pub shared: bool,
}

impl Findings {
    pub(super) fn push(&mut self, level: &str, message: &str) {
        self.list.push(finding(level, message));
    }

    pub(super) fn error(&mut self, error: &Error) {
        self.push("error", &error.in_full());
        self.failed = true;
    }

    /// The selectors that failed.
    pub(super) fn of_selectors(&mut self, stages: &[DryStep]) {
        for stage in stages {
            if let SelectorOutcome::Failed(error) = &stage.outcome {
                self.error(error);
            }
        }
    }

    /// The standard plugins whose answers an ADD refuses, as far as the pools of STATUS tell.
    pub(super) fn of_answers(&mut self, stages: &[DryStep]) {
        let mut others: Vec<&Step> = Vec::new();
        for DryStep { step, run, .. } in stages {
            let asked = !(step.is_selector() || step.is_allocator() || step.answers_any);
            let pools = run.as_ref().and_then(|run| run.pools.as_deref()).filter(|_| asked);
            // What one before it serves, this one is not shown.
            let is_left = |pool: &&Value| !others.iter().any(|other| serves(other, pool));
            let shown: Vec<&Value> = pools.into_iter().flatten().filter(is_left).collect();
            if !step.is_selector() {
                others.push(step);
            }
            if shown.is_empty() {
                continue;
            }
            if let Err(error) = refuse_unknown_ranges(step, &shown, "an address") {
                self.error(&error);
                continue;
            }
            let name = &*step.name;
            let (level, why) = match OTHER_WAYS.iter().find(|(other, _)| *other == name) {
                Some((_, why)) => ("warning", *why),
                None if step.own_name() == "host-local" => continue,
                None => ("note", "may not read the pools"),
            };
            let message = format!(
                "{name} {why}: an ADD fails with error 112 unless each pool gets one address inside its ranges; to \
                 accept any answer of {name}, write {{\"type\": \"{name}\", \"answers\": \"any\"}} in ipam.delegates"
            );
            self.push(level, &message);
        }
    }

    /// STATUS of the allocators of ours, with the pools that the selectors chose: an error where every
    /// ADD would fail on this node's configuration, folders or files. Tells whether all their stores
    /// are there, be they full or not.
    pub(super) fn of_allocators(
        &mut self,
        session: &Session<'_>,
        stages: &[DryStep],
        time: Duration,
    ) -> bool {
        let mut all = true;
        let deadline = Deadline::after(time);
        for (i, DryStep { step, input, .. }) in stages.iter().enumerate() {
            let Some(input) = input.as_ref().filter(|_| step.is_allocator()) else { continue };
            let time = deadline.share(stages.len() - i);
            let Err(failure) = run_if_known(session, Verb::Status, step, input.to_string(), time)
            else {
                continue;
            };
            let error = Error::from(failure);
            all &= error.code() == ErrorCode::EXHAUSTED;
            match error.code() {
                ErrorCode::INVALID_CONFIG | ErrorCode::IO | ErrorCode::UNAVAILABLE => {
                    self.error(&error);
                }
                _ => self.push("warning", &error.in_full()),
            }
        }
        all
    }

    /// What the allocators of ours say of their pools.
    pub(super) fn of_pools(&mut self, session: &Session<'_>, stages: &[DryStep]) {
        for DryStep { step, input, .. } in stages {
            let Some(input) = input.as_ref().filter(|_| step.is_allocator()) else { continue };
            let name = &*step.name;
            let told =
                query::ask(session, step, &["lint", "--json", "--config", "-"], &input.to_string());
            let told = match told.and_then(|answer| rows(name, answer)) {
                Ok(told) => told,
                // Its server alone can tell, or it is older than this question.
                Err(error) => {
                    log::debug!("{}", error.in_full());
                    continue;
                }
            };
            // Whether a pool is for it, is judged where the selectors are tried.
            for finding in told.iter().filter(|finding| !is_about_no_pool(finding)) {
                let [level, message] = ["level", "message"].map(|key| finding[key].as_str());
                let (Some(level @ ("error" | "warning" | "note")), Some(message)) =
                    (level, message)
                else {
                    continue;
                };
                self.failed |= level == "error";
                self.push(level, &[name, ": ", message].concat());
            }
        }
    }

    /// What a reboot or a clone does to this node's state: a warning where others share the ledger.
    pub(super) fn of_state(&mut self, session: &Session<'_>) {
        let level = if self.shared { "warning" } else { "note" };
        let root = session.state.root().display().to_string();
        if let Some(why) = volatile_filesystem(session.state.root()) {
            let parts = [
                "the state folder ",
                &root,
                " lies on ",
                why,
                ": a reboot loses the records and the node's identity",
            ];
            self.push(level, &parts.concat());
        }
        if session.request.settings.node.is_none()
            && let Some(why) = transient_machine_id(Path::new("/etc/machine-id"))
        {
            let parts = [
                "/etc/machine-id ",
                why,
                ": a cloned machine is not told from its original; set node in the host-wide settings",
            ];
            self.push(level, &parts.concat());
        }
        for told in of_other_identities(&session.state) {
            self.push("note", &told);
        }
        if session.state.is_from_network() {
            let parts = [
                "ipam.stateDir is set: a DEL whose configuration the runtime strips does not find ",
                &root,
                "; set stateDir in the host-wide settings",
            ];
            self.push("warning", &parts.concat());
        }
    }

    /// Records whose way to their store is not the one that the network is configured with.
    pub(super) fn of_records(&mut self, session: &Session<'_>) {
        let network = &session.request.network;
        let (mut count, mut example, mut keys) = (0_usize, None, BTreeSet::new());
        let found = attachments(&session.state.network(network.name()));
        if let Err(error) = &found {
            self.error(error);
        }
        for attachment in found.into_iter().flatten() {
            let path = session.state.record(network.name(), &attachment);
            let Presence::Held((record, _)) = RecordFile::look(&path) else { continue };
            let runs = record.runs().into_iter().filter(|run| is_allocator(&run.delegate));
            let others: Vec<String> = runs
                .flat_map(|run| changed_paths(&run.ipam, &present_ipam(session, run, network)))
                .collect();
            if !others.is_empty() {
                count += 1;
                example.get_or_insert_with(|| attachment.to_string());
                keys.extend(others);
            }
        }
        if let Some(example) = example {
            let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
            let message = format!(
                "{count} records name their store by another way than the configuration, such as {example} ({keys}); \
                 a DEL uses the configured way if it proves to lead to the recorded store, else the recorded way: \
                 keep the recorded servers and files until these records are released"
            );
            self.push("warning", &message);
        }
    }

    /// Names of presets, and which program really stands behind each.
    pub(super) fn of_presets(&mut self, session: &Session<'_>, ours: &OurPlugin) {
        let planner = &session.planner;
        let named = planner.names(session.request.network.ipam());
        for preset in planner.presets {
            let name = preset.name;
            let is_type = ours.kind == name;
            if !is_type && !named.iter().any(|named| named == name) {
                continue;
            }
            let Ok(program) = planner.find(name) else { continue };
            if !planner.own_executable.is(&program) {
                // In a list of delegates the replaced program is a delegate like others.
                let level = if is_type { "warning" } else { "note" };
                let at = program.display().to_string();
                let parts = [&at, " is not this program: the real ", name, " runs, not its preset"];
                self.push(level, &parts.concat());
                continue;
            }
            let kept = program.with_file_name([name, ".orig"].concat());
            if !kept.exists() {
                let at = kept.display().to_string();
                let parts = [
                    &at,
                    " is missing: what a chain with the real ",
                    name,
                    " recorded before the switch is not released by it",
                ];
                self.push("note", &parts.concat());
            }
        }
    }

    /// Versions of the specification that lack something.
    pub(super) fn of_version(&mut self, version: Version) {
        let lack = if version < Version::V0_4_0 {
            " has no CHECK, and DEL gets no previous result: 0.4.0 is the first with both"
        } else if version >= Version::V1_1_0 {
            " is not read by containerd before 2.0: every ADD fails there after it has succeeded here"
        } else {
            return;
        };
        self.push("note", &["cniVersion ", version.as_str(), lack].concat());
    }
}
