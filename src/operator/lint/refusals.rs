//! Chains with which every ADD fails, as far as a dry run shows.

use serde_json::{Value, json};

use super::allocators::about_no_pool;
use super::findings::Findings;
use crate::chain::plan::Step;
use crate::chain::served::{refuse_sticky, refuse_unknown_ranges, serves};
use crate::chain::session::Session;
use crate::chain::unshown_pools::UnshownPools;
use crate::operator::call::Operator;
use crate::operator::dry_run::{DryRunStage, SelectorOutcome, dry_add};
use crate::operator::our_plugin::OurPlugin;
use ipam_kit::error::{Error, ErrorCode};

/// Standard plugins that read no ranges.
const OTHER_WAYS: &[(&str, &str)] =
    &[("dhcp", "gives what a DHCP server offers"), ("static", "gives what ipam.addresses lists")];

impl Findings {
    /// Adds the errors of selectors, and their remarks.
    pub(super) fn of_selectors(&mut self, stages: &[DryRunStage]) {
        for DryRunStage { step, outcome, .. } in stages {
            match outcome {
                SelectorOutcome::Failed(error) => self.error(error),
                SelectorOutcome::Answered(answer) => {
                    let remarks = answer.get("remarks").and_then(Value::as_array);
                    for remark in remarks.into_iter().flatten().filter_map(Value::as_str) {
                        self.push("warning", &format!("{}: {remark}", step.name));
                    }
                }
                SelectorOutcome::NotRun => {}
            }
        }
    }

    /// Finds standard plugins whose answers ADD would refuse, with the pools of STATUS.
    pub(super) fn of_answers(&mut self, stages: &[DryRunStage]) {
        let mut others: Vec<&Step> = Vec::new();
        for DryRunStage { step, run, .. } in stages {
            let is_compared = !(step.is_selector() || step.is_allocator() || step.answers_any);
            let pools = run.as_ref().and_then(|run| run.pools.as_deref()).filter(|_| is_compared);
            let mut shown: Vec<&Value> = pools.into_iter().flatten().collect();
            // A pool that a delegate before it serves is not passed to this one.
            shown.retain(|pool| !serve(&others, pool));
            if !step.is_selector() {
                others.push(step);
            }
            if shown.is_empty() {
                continue;
            }
            let refused = refuse_sticky(step, &shown)
                .and_then(|()| refuse_unknown_ranges(step, &shown, "an address"));
            if let Err(error) = refused {
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

    /// Finds pools that no delegate of the plan gets, with the pools of STATUS.
    pub(super) fn of_unserved(&mut self, stages: &[DryRunStage]) {
        let mut unshown = UnshownPools::default();
        for stage in stages {
            unshown.visit(&stage.step, stage.pools.as_deref());
            if let DryRunStage { step, run: None, .. } = stage
                && let Some(names) = &step.serves
            {
                let (name, names) = (&*step.name, names.join(", "));
                let message = format!(
                    "{name} is skipped with the pools that selectors answer on STATUS: its serves names {names}"
                );
                self.push("note", &message);
            }
        }
        let steps: Vec<Step> = stages.iter().map(|stage| stage.step.clone()).collect();
        if let Err(error) = unshown.refuse_left(&steps) {
            self.error(&error);
        }
    }

    /// Finds delegates to which the ones before leave no pool.
    pub(super) fn of_latecomers(&mut self, session: &Session<'_>, stages: &[DryRunStage]) {
        if stages.iter().filter(|stage| !stage.step.is_selector()).count() < 2 {
            return;
        }
        // The delegates that surely serve all pools they get.
        let mut served: Vec<&Step> = Vec::new();
        for stage in stages {
            if stage.step.is_selector() {
                // It may name pools for those behind it.
                served.clear();
                continue;
            }
            let DryRunStage { step, run: Some(run), .. } = stage else { continue };
            let is_late = match &run.pools {
                Some(pools) => !pools.is_empty() && pools.iter().all(|pool| serve(&served, pool)),
                None => served.iter().any(|other| other.serves.is_none()),
            };
            let insists = !step.is_allocator() || insists_on_pools(session, stage);
            let knows_pools = step.is_allocator() || run.pools.is_some();
            let first = served.first().map(|first| &*first.name).unwrap_or_default();
            if is_late && insists && knows_pools && !step.answers_any {
                let name = &*step.name;
                let message = format!("{name} gets no pool: {first} before it serves all of them");
                let error = Error::config("ipam.delegates", message).advise(format!(
                    "remove {name}, or set serves of each to the names of its pools"
                ));
                self.error(&error);
            }
            if insists {
                served.push(step);
            }
        }
    }

    /// Finds delegates without a pool, if selectors answer no pools on STATUS and on a dry ADD.
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
            let message = format!("{name} needs ranges");
            self.error(&Error::config("ipam", message).advise(
                r#"set ranges in ipam, as in "ranges": [[{"subnet": "10.1.2.0/24"}]], or put a selector before it that answers pools"#,
            ));
        }
        if stage.step.is_allocator() {
            for message in about_no_pool(session, &stage.step, input) {
                let message = format!("{name}: {message}");
                self.error(&Error::new(ErrorCode::INVALID_CONFIG, message));
            }
        }
    }
}

/// Whether an allocator fails without a pool. Such an allocator is made with the library, and
/// serves every pool it gets.
fn insists_on_pools(session: &Session<'_>, stage: &DryRunStage) -> bool {
    let mut input = stage.input.clone().unwrap_or_default();
    input["prevResult"]["pools"] = json!([]);
    !about_no_pool(session, &stage.step, &input).is_empty()
}

/// Whether one of some delegates serves a pool.
fn serve(delegates: &[&Step], pool: &Value) -> bool {
    delegates.iter().any(|delegate| serves(delegate, pool))
}
