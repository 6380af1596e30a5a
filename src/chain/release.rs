//! Recorded delegates run once more: DEL of their leases, and ADD of the same leases.

use std::time::Duration;

use log::warn;
use serde_json::Value;

use super::exec::{DelegateCall, DelegateFailure, DelegateOutput};
use super::record::{Run, Workload};
use super::refreshed_run::{RefreshedRun, recorded_step, refresh_run};
use super::run_all::ipam_behind_selectors;
use super::session::Session;
use super::store_access::store_settings_differ;
use ipam_kit::cni::{Attachment, IpConfig, IpamResult, Network, Verb};
use ipam_kit::contract::{DelegateInput, Purpose};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// An attachment, with the configuration of its network.
#[derive(Clone, Copy)]
pub(crate) struct NetworkAttachment<'a> {
    pub network: &'a Network,
    pub attachment: &'a Attachment,
}

/// A DEL that is due to a delegate.
pub(crate) struct Release<'a> {
    pub run: &'a Run,
    /// The leases that it named.
    pub leases: &'a [Value],
    /// The static addresses that it answered.
    pub static_addresses: Vec<IpConfig>,
    /// Which of its leases the DEL is about.
    pub purpose: Purpose,
    /// Every ADD with these settings failed, and reported so: it never gave anything by them.
    pub never_gave: bool,
}

impl<'a> Release<'a> {
    /// The DEL of a delegate that gave something, or may have.
    pub(crate) fn new(run: &'a Run, leases: &'a [Value], purpose: Purpose) -> Self {
        Self { run, leases, static_addresses: Vec::new(), purpose, never_gave: false }
    }
}

/// DEL to each of these delegates, in the time left. Each runs, also after a failure. Returns the
/// failures.
pub(crate) fn release_all(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    releases: &[Release<'_>],
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Vec<Error> {
    let mut errors = Vec::new();
    for (i, owed) in releases.iter().enumerate() {
        let time = deadline.share(releases.len() - i);
        let Err(failure) = release(session, target, owed, prev_result, time) else { continue };
        let error = failure.error;
        session.unreachable.remember(owed.run, &error);
        // Nothing can have been taken by settings that are refused.
        if owed.never_gave && error.code() == ErrorCode::INVALID_CONFIG {
            warn!("{}", error.in_full());
        } else {
            errors.push(error);
        }
    }
    errors
}

fn release(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    owed: &Release<'_>,
    prev_result: &IpamResult,
    time: Duration,
) -> Result<(), DelegateFailure> {
    let refreshed = refresh_run(session, owed.run, target.network);
    run_refreshed(session, refreshed, prev_result, time, |refreshed, time| {
        release_by(session, target, owed, refreshed, prev_result, time)
    })
}

/// Runs a recorded delegate. If it fails, and a selector had set its store, it runs once more beside the
/// section that the selectors make today: they may name another way to the store.
pub(crate) fn run_refreshed(
    session: &Session<'_>,
    refreshed: RefreshedRun,
    prev_result: &IpamResult,
    time: Duration,
    run: impl Fn(&RefreshedRun, Duration) -> Result<(), DelegateFailure>,
) -> Result<(), DelegateFailure> {
    let deadline = Deadline::after(time);
    let failure = match run(&refreshed, time) {
        Err(failure) if refreshed.may_be_set_by_selector() && !is_answer(&failure) => failure,
        outcome => return outcome,
    };
    let allocator = &refreshed.run.delegate;
    match ipam_behind_selectors(session, allocator, prev_result, deadline) {
        Some(ipam) if store_settings_differ(&refreshed.run.ipam, &ipam) => {
            run(&refreshed.with_present(ipam), deadline.left())
        }
        _ => Err(failure),
    }
}

fn is_answer(failure: &DelegateFailure) -> bool {
    failure.error.code() == ErrorCode::NOT_HELD
}

/// DEL to a delegate by its record, with present secrets and files.
fn release_by(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    owed: &Release<'_>,
    refreshed: &RefreshedRun,
    prev_result: &IpamResult,
    time: Duration,
) -> Result<(), DelegateFailure> {
    let input = DelegateInput {
        leases: owed.leases.to_vec(),
        static_addresses: owed.static_addresses.clone(),
        purpose: owed.purpose,
        present: refreshed.present_ipam.clone(),
        ..DelegateInput::default()
    };
    let stdin = match refreshed.run.stdin(target.network, prev_result, input.clone()) {
        // Old forms have no place for a second address, and no prevResult on DEL.
        Err(error) if error.code() == ErrorCode::INCOMPATIBLE_VERSION => {
            let without = IpamResult { ips: Vec::new(), ..prev_result.clone() };
            refreshed.run.stdin(target.network, &without, input)?
        }
        stdin => stdin?,
    };
    let step = &recorded_step(session, &refreshed.run);
    let environment = session.environment_for(target.attachment);
    let settings = &session.request.settings;
    let call = DelegateCall { step, verb: Verb::Del, environment, stdin, settings, time };
    call.run().map(drop).map_err(|failure| refreshed.explain_failure(failure))
}

/// ADD of a recorded delegate once more, with these settings, for the leases that it gave to a
/// workload.
pub(crate) fn claim_again(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    workload: &Workload,
    run: &Run,
    leases: &[Value],
) -> Result<DelegateOutput, DelegateFailure> {
    let leases = leases.to_vec();
    let input = DelegateInput { leases, purpose: Purpose::Reassert, ..DelegateInput::default() };
    let stdin = run.stdin(target.network, &IpamResult::default(), input)?;
    let step = &recorded_step(session, run);
    let mut environment = session.environment_for(target.attachment);
    environment.set("CNI_ARGS", workload.to_cni_args());
    let settings = &session.request.settings;
    let time = session.timeout();
    DelegateCall { step, verb: Verb::Add, environment, stdin, settings, time }.run()
}
