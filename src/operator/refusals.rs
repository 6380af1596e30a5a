//! The chains by which every ADD fails, as `lint` finds them.

use serde_json::{Value, json};

use super::ask::rows;
use super::call::Operator;
use super::dry_run::{DryStep, SelectorOutcome};
use super::explain::dry_add;
use super::findings::Findings;
use super::our_plugin::OurPlugin;
use crate::chain::optional::refuse_version;
use crate::chain::plan::{Plan, Step};
use crate::chain::query;
use crate::chain::served::{refuse_repeated_allocator, refuse_without_allocator, serves};
use crate::chain::session::Session;
use crate::chain::unshown_pools::UnshownPools;
use ipam_kit::error::{Error, ErrorCode};

impl Findings {
    /// A chain that cannot be planned: all of its programs that are missing, else why.
    pub(super) fn of_unplanned(&mut self, session: &Session<'_>, error: &Error) {
        let planner = &session.planner;
        let mut names = planner.names(session.request.network.ipam());
        names.dedup();
        let missing: Vec<Error> =
            names.iter().filter_map(|name| planner.find(name).err()).collect();
        missing.iter().for_each(|error| self.error(error));
        if missing.iter().all(|missing| missing.in_full() != error.in_full()) {
            self.error(error);
        }
    }

    /// The plan as it is, whatever selectors answer.
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

    /// The pools that no delegate of the plan is shown, as far as the pools of STATUS tell.
    pub(super) fn of_unserved(&mut self, stages: &[DryStep]) {
        let mut unshown = UnshownPools::default();
        for stage in stages {
            unshown.visit(&stage.step, stage.pools.as_deref());
            if let DryStep { step, run: None, .. } = stage
                && let Some(names) = &step.serves
            {
                let (name, names) = (&*step.name, names.join(", "));
                let message = format!(
                    "{name} is not run where the pools are those of STATUS: its serves names {names}"
                );
                self.push("note", &message);
            }
        }
        let steps: Vec<Step> = stages.iter().map(|stage| stage.step.clone()).collect();
        if let Err(error) = unshown.refuse_left(&steps) {
            self.error(&error);
        }
    }

    /// The delegates to which those before them leave no pool.
    pub(super) fn of_latecomers(&mut self, session: &Session<'_>, stages: &[DryStep]) {
        if stages.iter().filter(|stage| !stage.step.is_selector()).count() < 2 {
            return;
        }
        // Those that surely serve all that they are shown.
        let mut served: Vec<&Step> = Vec::new();
        for stage in stages {
            if stage.step.is_selector() {
                // It may name pools for those behind it.
                served.clear();
                continue;
            }
            let DryStep { step, run: Some(run), .. } = stage else { continue };
            let is_taken = |pool: &Value| served.iter().any(|other| serves(other, pool));
            let is_late = match &run.pools {
                Some(pools) => !pools.is_empty() && pools.iter().all(is_taken),
                None => served.iter().any(|other| other.serves.is_none()),
            };
            let insists = !step.is_allocator() || insists_on_pools(session, stage);
            let knows_pools = step.is_allocator() || run.pools.is_some();
            let first = served.first().map(|first| &*first.name).unwrap_or_default();
            if is_late && insists && knows_pools && !step.answers_any {
                let name = &*step.name;
                let message = format!("{name} is shown no pool: {first} before it serves all");
                let error = Error::config("ipam.delegates", message).advise(format!(
                    "remove {name}, or name in serves of each which pools it serves"
                ));
                self.error(&error);
            }
            if insists {
                served.push(step);
            }
        }
    }

    /// Delegates that no pool is for, where the selectors name none on STATUS, nor on a dry run of ADD.
    pub(super) fn of_nothing_asked(
        &mut self,
        operator: &Operator,
        session: &Session<'_>,
        ours: &OurPlugin,
    ) {
        let stages = match dry_add(operator, ours) {
            Ok(stages) => stages,
            Err(error) => return log::debug!("{}", error.in_full()),
        };
        // One that fails may know real containers alone.
        if stages.iter().any(|stage| matches!(stage.outcome, SelectorOutcome::Failed(_))) {
            return;
        }
        let Some(stage) = stages.iter().find(|stage| !stage.step.is_selector()) else { return };
        let Some(input) = &stage.input else { return };
        let name = &*stage.step.name;
        let has_ranges = ["ranges", "subnet"].iter().any(|key| !input["ipam"][key].is_null())
            || !input["runtimeConfig"]["ipRanges"].is_null();
        if stage.step.own_name() == "host-local" && !has_ranges {
            let message = format!("{name} finds no ranges");
            self.error(&Error::config("ipam", message).advise(
                r#"give ranges in ipam, as in "ranges": [[{"subnet": "10.1.2.0/24"}]], or put a selector before it that answers pools"#,
            ));
        }
        if stage.step.is_allocator() {
            for message in errors_told(session, &stage.step, input) {
                self.error(&Error::new(ErrorCode::INVALID_CONFIG, [name, ": ", &message].concat()));
            }
        }
    }
}

/// Whether an allocator fails where it is shown no pool. Those that do are made with the library: they
/// serve every pool that they are shown.
fn insists_on_pools(session: &Session<'_>, stage: &DryStep) -> bool {
    let mut input = stage.input.clone().unwrap_or_default();
    input["prevResult"]["pools"] = json!([]);
    !errors_told(session, &stage.step, &input).is_empty()
}

/// Whether an allocator's finding is that it is shown no pool, by which every ADD would fail.
pub(super) fn is_about_no_pool(finding: &Value) -> bool {
    finding["level"] == "error" && finding["about"] == "pools"
}

/// What an allocator says of being shown no pool.
fn errors_told(session: &Session<'_>, step: &Step, input: &Value) -> Vec<String> {
    let told = query::ask(session, step, &["lint", "--json", "--config", "-"], &input.to_string());
    let told = told.and_then(|answer| rows(&step.name, answer)).unwrap_or_else(|error| {
        log::debug!("{}", error.in_full());
        Vec::new()
    });
    let errors = told.iter().filter(|finding| is_about_no_pool(finding));
    errors.filter_map(|finding| finding["message"].as_str().map(str::to_owned)).collect()
}
