//! The whole chain as configured, for the verbs that take nothing.

use std::time::Duration;

use log::debug;
use serde_json::{Map, Value};

use super::handoff::Handoff;
use super::optional::run_if_known;
use super::plan::{Plan, Step};
use super::record::Run;
use super::session::Session;
use super::unshown_pools::UnshownPools;
use ipam_kit::cni::{IpamResult, Verb};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The delegates that failed, in order.
#[derive(Default)]
pub(crate) struct Failures(Vec<FailedStep>);

struct FailedStep {
    role: FailedRole,
    error: Error,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FailedRole {
    Selector,
    /// It may set the store of the allocators behind it.
    StoreSelector,
    Other,
}

/// Runs a verb through every delegate that is configured, as [`run_planned`] has it.
pub(crate) fn run_all(
    session: &Session<'_>,
    verb: Verb,
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Result<Failures> {
    run_planned(session, &session.plan()?, verb, prev_result, deadline)
}

/// Runs a verb through every delegate of a plan in order, also after failures.
///
/// Each gets this `prev_result` with the pools that the selectors before it answered. STATUS also fails
/// if one of these pools is for no delegate. An allocator does not run behind a failed selector that may
/// set its store: it would ask another store, and find nothing there.
pub(crate) fn run_planned(
    session: &Session<'_>,
    plan: &Plan,
    verb: Verb,
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Result<Failures> {
    let mut handoff = Handoff::of(session, prev_result.clone());
    let mut failures = Failures::default();
    let mut unshown = UnshownPools::default();
    for (i, step) in plan.steps.iter().enumerate() {
        if step.is_allocator() && failures.lack_store() {
            continue;
        }
        let Some(run) = handoff.run_for(step) else { continue };
        let time = deadline.share(plan.steps.len() - i);
        if let Err(error) = run_step(session, verb, step, &run, prev_result, &mut handoff, time) {
            failures.0.push(FailedStep { role: FailedRole::of(step), error });
        }
        unshown.visit(step, handoff.pools());
    }
    if verb == Verb::Status
        && failures.0.is_empty()
        && let Err(error) = unshown.refuse_left(&plan.steps)
    {
        failures.0.push(FailedStep { role: FailedRole::Other, error });
    }
    Ok(failures)
}

/// The section `ipam` that an allocator of the configured chain gets behind the selectors. `None` if no
/// selector sets its store, or if one of them fails.
pub(crate) fn ipam_behind_selectors(
    session: &Session<'_>,
    allocator: &str,
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Option<Map<String, Value>> {
    let plan = session.plan().ok()?;
    let place = plan.steps.iter().position(|step| step.name == allocator)?;
    let (selectors, _) = plan.steps.split_at(place);
    if selectors.iter().all(|step| step.sets.is_empty()) {
        return None;
    }
    let mut handoff = Handoff::of(session, prev_result.clone());
    for (i, step) in selectors.iter().enumerate().filter(|(_, step)| step.is_selector()) {
        let run = handoff.run_for(step)?;
        let time = deadline.share(plan.steps.len() - i);
        let outcome =
            run_step(session, session.request.verb, step, &run, prev_result, &mut handoff, time);
        outcome.inspect_err(|error| debug!("{}", error.in_full())).ok()?;
    }
    handoff.run_for(&plan.steps[place]).map(|run| run.ipam)
}

fn run_step(
    session: &Session<'_>,
    verb: Verb,
    step: &Step,
    run: &Run,
    prev_result: &IpamResult,
    handoff: &mut Handoff<'_>,
    time: Duration,
) -> Result<()> {
    if verb == Verb::Gc {
        session.unreachable.refuse_gc(run)?;
    }
    let stdin = run.stdin(&session.request.network, prev_result, handoff.input())?;
    match run_if_known(session, verb, step, stdin, time)? {
        Some(answer) => handoff.take_pools_and_settings(step, answer),
        None => Ok(()),
    }
}

impl FailedRole {
    fn of(step: &Step) -> Self {
        match (step.is_selector(), step.sets.is_empty()) {
            (true, true) => Self::Selector,
            (true, false) => Self::StoreSelector,
            (false, _) => Self::Other,
        }
    }
}

impl Failures {
    /// Whether a selector failed that may set a store.
    fn lack_store(&self) -> bool {
        self.0.iter().any(|failed| failed.role == FailedRole::StoreSelector)
    }

    /// Every failure counts.
    pub(super) fn join(self) -> Result<()> {
        Error::join(self.0.into_iter().map(|failed| failed.error))
    }

    /// Fails if a delegate other than a selector failed; returns the failures of selectors as
    /// warnings.
    ///
    /// The failure of a selector with code 113, or of one that may set a store, counts, too: leases may
    /// lie where no delegate looks. It does not if nothing was given (`is_bare`).
    pub(super) fn but_selectors(self, is_bare: bool) -> Result<Vec<Error>> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        for FailedStep { role, error } in self.0 {
            let counts = match role {
                FailedRole::Selector => error.code() == ErrorCode::RECORD && !is_bare,
                FailedRole::StoreSelector => !is_bare,
                FailedRole::Other => true,
            };
            if counts { errors.push(error) } else { warnings.push(error) }
        }
        if errors.is_empty() {
            return Ok(warnings);
        }
        errors.append(&mut warnings);
        Error::join(errors).map(|()| Vec::new())
    }
}
