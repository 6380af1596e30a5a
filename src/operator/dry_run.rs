//! A walk through a plan that runs the selectors alone: they keep no state.

use serde_json::{Map, Value};

use super::call::Operator;
use super::options::{ARGS, CONTAINER, IFNAME};
use super::our_plugin::OurPlugin;
use crate::chain::handoff::Handoff;
use crate::chain::optional::run_if_known;
use crate::chain::plan::{Plan, Step};
use crate::chain::record::Run;
use crate::chain::session::Session;
use ipam_kit::cni::{Args, ContainerId, IfName, IpamResult, Verb};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, Result};

/// A delegate of a dry run.
#[derive(Debug)]
pub(crate) struct DryRunStage {
    pub step: Step,
    /// The run that ADD would record; `None` if it serves none of the pools.
    pub run: Option<Run>,
    /// The configuration it gets on stdin; `None` if it serves none of the pools.
    pub input: Option<Value>,
    pub outcome: SelectorOutcome,
    /// The pools after it; `None` while no delegate has named any.
    pub pools: Option<Vec<Value>>,
}

/// The outcome of a delegate in a dry run.
#[derive(Debug)]
pub(crate) enum SelectorOutcome {
    /// A selector answered.
    Answered(Map<String, Value>),
    /// A selector failed.
    Failed(Error),
    /// It is not a selector, or serves none of the pools.
    NotRun,
}

/// Runs a verb through the selectors of a plan. After one has failed, ADD ends; on other verbs the
/// later delegates get what is known without it.
pub(crate) fn dry_run(session: &Session<'_>, plan: &Plan, verb: Verb) -> Result<Vec<DryRunStage>> {
    let deadline = Deadline::after(plan.timeout);
    let mut handoff = Handoff::of(session, IpamResult::default());
    let mut stages = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let (step, outcome) = (step.clone(), SelectorOutcome::NotRun);
        let mut stage = DryRunStage { step, run: None, input: None, outcome, pools: None };
        let step = &stage.step;
        if let Some(run) = handoff.run_for(step) {
            let stdin = run.stdin(&session.request.network, &handoff.result, handoff.input())?;
            stage.input = serde_json::from_slice(stdin.as_bytes()).ok();
            if step.is_selector() {
                let time = deadline.share(plan.steps.len() - i);
                let answer = run_if_known(session, verb, step, stdin, time).map_err(Error::from);
                let taken = answer.and_then(|answer| {
                    let answer = answer.unwrap_or_default();
                    match verb {
                        Verb::Add => handoff.take_answer(step, answer.clone()).map(drop),
                        _ => handoff.take_pools_and_settings(step, answer.clone()),
                    }?;
                    Ok(answer)
                });
                stage.outcome = match taken {
                    Ok(answer) => SelectorOutcome::Answered(answer),
                    Err(error) => SelectorOutcome::Failed(error),
                };
            }
            stage.run = Some(run);
        }
        stage.pools = handoff.pools().map(<[Value]>::to_vec);
        let ends = verb == Verb::Add && matches!(stage.outcome, SelectorOutcome::Failed(_));
        stages.push(stage);
        if ends {
            break;
        }
    }
    Ok(stages)
}

/// Runs ADD dry, for the typed container or for one that does not exist.
pub(super) fn dry_add(operator: &Operator, ours: &OurPlugin) -> Result<Vec<DryRunStage>> {
    let arguments = &operator.arguments;
    let container = ContainerId::parse(arguments.value(&CONTAINER).unwrap_or("explain"))?;
    let ifname = IfName::parse(arguments.value(&IFNAME).unwrap_or("eth0"))?;
    let args = arguments.value(&ARGS).unwrap_or_default();
    let mut request = operator.request(ours.network.clone(), &operator.cni_path())?;
    request.args = Args::parse(args);
    for (name, value) in [
        ("CNI_CONTAINERID", container.as_str()),
        ("CNI_IFNAME", ifname.as_str()),
        // ADD needs one; selectors do not enter it.
        ("CNI_NETNS", "/proc/self/ns/net"),
        ("CNI_ARGS", args),
    ] {
        request.environment.set(name, value);
    }
    let session = Session::open(&ours.chain, &request)?;
    dry_run(&session, &ours.plan(&session)?, Verb::Add)
}
