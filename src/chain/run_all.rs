//! The whole chain as configured, for the verbs that take nothing.

use super::plan::Plan;
use super::session::Session;
use super::unshown_pools::UnshownPools;
use ipam_kit::cni::{IpamResult, Verb};
use ipam_kit::contract::DelegateInput;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// What failed on a walk.
pub(crate) struct Failures {
    errors: Vec<(Role, Error)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Selector,
    Other,
}

/// Runs a verb through every delegate that is configured, as [`walk_plan`] has it.
pub(crate) fn walk(
    session: &Session<'_>,
    verb: Verb,
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Result<Failures> {
    walk_plan(session, &session.plan()?, verb, prev_result, deadline)
}

/// Runs a verb through every delegate of a plan in order, whatever fails on the way.
///
/// Each gets this `prev_result` with the pools that the selectors before it answered. STATUS fails also
/// where no delegate is shown one of them.
pub(crate) fn walk_plan(
    session: &Session<'_>,
    plan: &Plan,
    verb: Verb,
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Result<Failures> {
    let mut carry = session.carry(prev_result.clone());
    let network = &session.request.network;
    let (mut errors, mut unshown) = (Vec::new(), UnshownPools::default());
    for (i, step) in plan.steps.iter().enumerate() {
        let Some(run) = carry.run_of(step) else { continue };
        let time = deadline.share(plan.steps.len() - i);
        let may_run = if verb == Verb::Gc { session.away.refuse(&run) } else { Ok(()) };
        let outcome = may_run
            .and_then(|()| run.stdin(network, prev_result, DelegateInput::default()))
            .and_then(|stdin| Ok(session.exec(verb, step, stdin, time)?))
            .and_then(|answer| answer.map_or(Ok(()), |answer| carry.take_pools(step, answer)));
        if let Err(error) = outcome {
            let role = if step.is_selector() { Role::Selector } else { Role::Other };
            errors.push((role, error));
        }
        unshown.visit(step, carry.pools());
    }
    if verb == Verb::Status
        && errors.is_empty()
        && let Err(error) = unshown.refuse_left(&plan.steps)
    {
        errors.push((Role::Other, error));
    }
    Ok(Failures { errors })
}

impl Failures {
    /// Every failure counts.
    pub(super) fn all(self) -> Result<()> {
        Error::join(self.errors.into_iter().map(|(_, error)| error))
    }

    /// A selector's failure counts only beside another delegate's, which may have failed for want
    /// of its pools; alone it comes back as a warning. With code 113 it counts alone as well, for the
    /// selector knows that leases may lie where no delegate looks, unless nothing was given
    /// (`is_bare`).
    pub(super) fn but_selectors(self, is_bare: bool) -> Result<Vec<Error>> {
        let counts = |error: &Error| error.code() == ErrorCode::RECORD && !is_bare;
        let (others, selectors): (Vec<_>, Vec<_>) =
            self.errors.into_iter().partition(|(role, error)| match role {
                Role::Other => true,
                Role::Selector => counts(error),
            });
        let warnings: Vec<Error> = selectors.into_iter().map(|(_, error)| error).collect();
        let mut errors = others.into_iter().map(|(_, error)| error);
        match errors.next() {
            None => Ok(warnings),
            Some(first) => Err(first.and(errors.chain(warnings))),
        }
    }
}
