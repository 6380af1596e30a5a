//! Unsafe settings of a chain that show before a selector runs.

use super::findings::Findings;
use crate::chain::optional::refuse_version;
use crate::chain::plan::Plan;
use crate::chain::served::{refuse_repeated_allocator, refuse_without_allocator};
use crate::chain::session::Session;
use crate::operator::our_plugin::OurPlugin;
use ipam_kit::cni::Version;
use ipam_kit::error::Error;

impl Findings {
    /// Adds why a chain cannot be planned: each missing program, or the error.
    pub(super) fn of_unplanned(&mut self, session: &Session<'_>, error: &Error) {
        let planner = &session.planner;
        let mut names = planner.names(session.request.network.ipam());
        names.dedup();
        let mut is_told = false;
        for missing in names.iter().filter_map(|name| planner.find(name).err()) {
            is_told |= missing.in_full() == error.in_full();
            self.error(&missing);
        }
        if !is_told {
            self.error(error);
        }
    }

    /// Finds faults of the plan that no selector can change.
    pub(super) fn of_plan(&mut self, session: &Session<'_>, plan: &Plan, ours: &OurPlugin) {
        for outcome in
            [refuse_without_allocator(&plan.steps), refuse_repeated_allocator(&plan.steps)]
        {
            if let Err(error) = outcome {
                self.error(&error);
            }
        }
        for step in plan.steps.iter().filter(|step| !step.is_ours()) {
            if let Err(error) = refuse_version(session, step, ours.network.version(), plan.timeout)
            {
                self.error(&error);
            }
        }
    }

    /// Finds a version of the specification with a known lack.
    pub(super) fn of_version(&mut self, version: Version) {
        let lack = if version < Version::V0_4_0 {
            " has no CHECK, and its DEL has no prevResult: 0.4.0 has both"
        } else if version >= Version::V1_1_0 {
            " is unknown to containerd before 2.0: there every ADD fails after it has succeeded here"
        } else {
            return;
        };
        self.push("note", &format!("cniVersion {}{lack}", version.as_str()));
    }
}
