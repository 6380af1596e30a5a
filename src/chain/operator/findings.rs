//! What is unsafe about a network, as `lint` finds it.

use std::path::Path;

use super::super::plan::Step;
use super::super::session::Session;
use super::dry_run::{Outcome, Stage};
use super::ours::Ours;
use crate::cni::Version;
use crate::host::{emptied_by_reboot, transient_machine_id};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Error,
    Warning,
    Note,
}

/// One finding, in a sentence.
#[derive(Debug)]
pub(super) struct Finding {
    pub level: Level,
    pub message: String,
}

/// How far an allocator's ledger reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Node,
    Cluster,
    /// A standard plugin, or one that does not say.
    Unknown,
}

impl Level {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl Reach {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cluster => "cluster",
            Self::Unknown => "unknown",
        }
    }

    /// What an allocator says of itself; a standard plugin is not asked.
    pub fn of(session: &Session<'_>, step: &Step) -> Self {
        if !step.is_allocator() {
            return Self::Unknown;
        }
        let about = session.ask(step, &["about", "--json"], "").unwrap_or_default();
        match about["reach"].as_str() {
            Some("node") => Self::Node,
            Some("cluster") => Self::Cluster,
            _ => Self::Unknown,
        }
    }
}

/// The selectors that failed.
pub(super) fn of_selectors(stages: &[Stage], findings: &mut Vec<Finding>) {
    for stage in stages {
        if let Outcome::Failed(error) = &stage.outcome {
            findings.push(Finding { level: Level::Error, message: error.in_full() });
        }
    }
}

/// What a reboot or a clone does to this node's state: a warning where others share the ledger.
pub(super) fn of_state(session: &Session<'_>, reaches: &[Reach], findings: &mut Vec<Finding>) {
    let shared = reaches.contains(&Reach::Cluster);
    let level = if shared { Level::Warning } else { Level::Note };
    let root = session.state.root().display();
    if let Some(why) = emptied_by_reboot(session.state.root()) {
        let message = format!(
            "the state folder {root} lies on {why}: a reboot loses the records and the node's identity"
        );
        findings.push(Finding { level, message });
    }
    let machine_id = Path::new("/etc/machine-id");
    if session.request.settings.node.is_none()
        && let Some(why) = transient_machine_id(machine_id)
    {
        let message = format!(
            "{} {why}: a cloned machine is not told from its original; set node in the host-wide settings",
            machine_id.display()
        );
        findings.push(Finding { level, message });
    }
    if session.state.is_from_network() {
        let message = format!(
            "ipam.stateDir is set: a DEL whose configuration the runtime strips does not find {root}; set stateDir in the host-wide settings"
        );
        findings.push(Finding { level: Level::Warning, message });
    }
}

/// Names of presets, and which program really stands behind each.
pub(super) fn of_presets(session: &Session<'_>, ours: &Ours, findings: &mut Vec<Finding>) {
    let planner = session.planner();
    let named = planner.names(session.request.network.ipam());
    for preset in planner.presets {
        let is_type = ours.kind == preset.name;
        if !is_type && !named.iter().any(|name| name == preset.name) {
            continue;
        }
        let Ok(program) = planner.find(preset.name) else { continue };
        let (name, at) = (preset.name, program.display());
        if !planner.own.is(&program) {
            // In a list of delegates the replaced program is a delegate like others.
            let level = if is_type { Level::Warning } else { Level::Note };
            let message = format!("{at} is not this program: the real {name} runs, not its preset");
            findings.push(Finding { level, message });
            continue;
        }
        let kept = program.with_file_name([name, ".orig"].concat());
        if !kept.exists() {
            let message = format!(
                "{} is missing: what a chain with the real {name} recorded before the switch cannot be released by it",
                kept.display()
            );
            findings.push(Finding { level: Level::Note, message });
        }
    }
}

/// Versions of the specification that lack something.
pub(super) fn of_version(version: Version, findings: &mut Vec<Finding>) {
    let message = if version < Version::V0_4_0 {
        format!(
            "cniVersion {version} has no CHECK, and DEL gets no previous result: 0.4.0 is the first with both"
        )
    } else if version >= Version::V1_1_0 {
        format!(
            "cniVersion {version} is not read by containerd before 2.0: every ADD fails there after it has succeeded here"
        )
    } else {
        return;
    };
    findings.push(Finding { level: Level::Note, message });
}
