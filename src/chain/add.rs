//! ADD, and its undo.

use log::{debug, warn};

use super::exec::{DelegateCall, DelegateFailure, FailureKind};
use super::handoff::Handoff;
use super::plan::{Plan, Step};
use super::record::{
    AddOutcome, AttemptHeader, DelegateRun, Event, Failed, FailureReason, Held, LastRun, Opened,
    RecordFile, Workload, now, set_aside_of,
};
use super::release::{NetworkAttachment, Release, release_all};
use super::repeat::repeat_one_due;
use super::session::Session;
use ipam_kit::cni::{IpamResult, Verb};
use ipam_kit::contract::Purpose;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::boot_id;

/// Runs the chain; on failure releases everything it took.
pub(crate) fn add(session: &Session<'_>) -> Result<IpamResult> {
    let plan = session.plan().inspect_err(|error| record_not_installed(session, error))?;
    if session.state.is_from_network() {
        warn!(
            "ipam.stateDir is set in the network configuration: a DEL whose configuration the runtime strips will not \
             find {}; set stateDir in /etc/cni/ipam-delegated.json instead",
            session.state.root().display()
        );
    }
    let place = session.record_place()?;
    let Opened { mut file, record } = RecordFile::open(&place)?;
    // What a record that was set aside held may be in use. After an ADD that succeeded, or that has noted
    // this already, the record itself says that addresses may be in use.
    let after_unreadable = !record.may_be_in_use() && !set_aside_of(&place)?.is_empty();
    let in_use = after_unreadable || record.may_be_in_use();
    let began = now();
    let deadline = Deadline::after(plan.timeout);
    repeat_one_due(session, plan.timeout / 8);
    let header = attempt_header(session, &plan, after_unreadable)?;
    if let Err(error) = file.append(&Event::Attempt(header)) {
        if record.attempts.is_empty() {
            let _ = file.remove();
        }
        return Err(error);
    }
    let mut chain = ChainRun::new(session, &plan, began, deadline);
    let outcome = chain.run_delegates(&mut file).and_then(|result| {
        chain.record_success(&result, &mut file)?;
        Ok(result)
    });
    outcome.map_err(|failure| chain.record_failure(failure, in_use, &mut file))
}

/// One run through the delegates of a plan.
struct ChainRun<'a> {
    session: &'a Session<'a>,
    plan: &'a Plan,
    handoff: Handoff<'a>,
    /// The delegates that may hold something, in order.
    runs: Vec<DelegateRun>,
    /// How much the delegate announced last may hold, if the undo succeeds.
    last_run: LastRun,
    /// When the ADD began, in milliseconds since 1970.
    began: u64,
    /// When the ADD, with its undo, must have ended.
    deadline: Deadline,
}

impl<'a> ChainRun<'a> {
    fn new(session: &'a Session<'a>, plan: &'a Plan, began: u64, deadline: Deadline) -> Self {
        Self {
            session,
            plan,
            // When our caller is itself chained, the addresses of the plugin before it are not ours.
            handoff: Handoff::of(session, IpamResult::default()),
            runs: Vec::new(),
            last_run: LastRun::MayHold,
            began,
            deadline,
        }
    }

    /// Runs each delegate with the answers of those before it.
    fn run_delegates(&mut self, file: &mut RecordFile) -> Result<IpamResult, DelegateFailure> {
        for step in &self.plan.steps {
            let Some(run) = self.handoff.run_for(step) else {
                debug!("{} has no pool to serve", step.name);
                continue;
            };
            let network = &self.session.request.network;
            let stdin = run.stdin(network, &self.handoff.result, self.handoff.input())?;
            if !step.is_selector() {
                file.append_running(&run)?;
                self.runs.push(run.into());
            }
            let environment = self.session.environment.clone();
            let settings = &self.session.request.settings;
            // The last quarter is for the undo.
            let time = self.deadline.left().saturating_sub(self.plan.timeout / 4);
            let output = DelegateCall { step, verb: Verb::Add, environment, stdin, settings, time }
                .run()
                .inspect_err(|failure| self.set_last_run(step, failure.kind))?;
            let granted = self.handoff.take_answer(step, output.unwrap_or_default())?;
            if !step.is_selector()
                && let Some(last) = self.runs.last_mut()
            {
                last.granted = Some(granted);
            }
        }
        Ok(self.handoff.finish(&self.plan.steps)?)
    }

    /// Sets how much a failed delegate may hold. A selector holds nothing, and the record names none.
    fn set_last_run(&mut self, step: &Step, kind: FailureKind) {
        if step.is_selector() {
            return;
        }
        self.last_run = match kind {
            FailureKind::NotRun => LastRun::NotRun,
            FailureKind::Reported => LastRun::Refused,
            FailureKind::Unsure => LastRun::MayHold,
        };
        if self.last_run == LastRun::NotRun {
            self.runs.pop();
        }
    }

    /// Records the result and the grant of each delegate.
    fn record_success(&self, result: &IpamResult, file: &mut RecordFile) -> Result<()> {
        let rendered = result.to_json(self.session.request.network.version())?;
        let grants = self.runs.iter().filter_map(|ran| ran.granted.clone()).collect();
        let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        debug!("gives {}", addresses.join(", "));
        file.append(&Event::Held(Held { time: now(), result: rendered, ..Held::default() }, grants))
    }

    /// Undoes the ADD, unless addresses of an earlier one may be in use, and records that it failed.
    fn record_failure(
        &self,
        failure: DelegateFailure,
        in_use: bool,
        file: &mut RecordFile,
    ) -> Error {
        let mut grants = self.runs.iter().filter_map(|ran| ran.granted.as_ref());
        let unsure = failure.kind == FailureKind::Unsure || grants.any(|granted| granted.unsure);
        let mut error = failure.error;
        let configurations = self.runs.iter().map(|ran| &ran.run.ipam);
        let config = self.session.request.network.config();
        let reason = FailureReason::of(&error, configurations.chain([config]));
        let mut is_undone = false;
        if in_use {
            debug!("no undo: addresses of an earlier ADD may be in use");
        } else {
            let errors = self.undo();
            is_undone = errors.is_empty();
            let message = error.in_full();
            error = error.and(errors.into_iter().map(|undo| undo_error(undo, &message)));
        }
        let last_run = match self.last_run {
            LastRun::Refused if !is_undone => LastRun::MayHold,
            last_run => last_run,
        };
        let failed = Failed { unsure, ..Failed::of(reason) };
        if let Err(error) = file.append(&Event::Failed(failed, last_run)) {
            warn!("{}", error.in_full());
        }
        error
    }

    /// DEL to the delegates that ran, in order, the failed one last.
    fn undo(&self) -> Vec<Error> {
        // It did not report what it took, so its DEL is about the time of this ADD: what the owner held before
        // stays.
        let unreported = Purpose::TakenBetween { after: self.began, before: None };
        let refused = self.last_run == LastRun::Refused;
        let releases = self.runs.iter().map(|DelegateRun { run, granted }| match granted {
            Some(granted) => Release::new(run, &granted.leases, Purpose::Undo),
            None if refused => Release::new(run, &[], Purpose::Undo),
            None => Release::new(run, &[], unreported),
        });
        undo(self.session, releases.collect(), &self.handoff.result, self.deadline)
    }
}

/// Releases the leases of an ADD of this process whose result did not reach the runtime.
pub(crate) fn undeliver(session: &Session<'_>) -> Result<()> {
    let opened = RecordFile::open_existing(&session.record_place()?, RecordFile::PATIENCE)?;
    let Some(Opened { mut file, record }) = opened.known()? else { return Ok(()) };
    let Some((mine, before)) = record.split_last() else { return Ok(()) };
    // A DEL or another ADD may have come between.
    if mine.header.pid != std::process::id() || mine.released.is_some() {
        return Ok(());
    }
    let AddOutcome::Held(held) = &mine.outcome else { return Ok(()) };
    let mut errors = Vec::new();
    if before.may_be_in_use() || mine.header.after_unreadable {
        debug!("no undo: addresses of an earlier ADD may be in use");
    } else {
        let result = IpamResult::parse(&held.result, "recorded result")?;
        let deadline = Deadline::after(session.timeout() / 4);
        let releases = mine.runs.iter().filter_map(|DelegateRun { run, granted }| {
            Some(Release::new(run, &granted.as_ref()?.leases, Purpose::Undo))
        });
        let failures = undo(session, releases.collect(), &result, deadline);
        errors.extend(failures.into_iter().map(|failure| undo_error(failure, "")));
    }
    // Otherwise CHECK would expect what the runtime never got.
    let lost = Error::new(ErrorCode::IO, "the runtime did not receive the result");
    let failed = Failed::of(FailureReason::of(&lost, None));
    errors.extend(file.append(&Event::Failed(failed, LastRun::MayHold)).err());
    Error::join(errors)
}

/// DEL to each, for the attachment of this call.
fn undo(
    session: &Session<'_>,
    releases: Vec<Release<'_>>,
    result: &IpamResult,
    deadline: Deadline,
) -> Vec<Error> {
    let Ok(attachment) = session.attachment() else { return Vec::new() };
    let target = NetworkAttachment { network: &session.request.network, attachment };
    release_all(session, target, &releases, result, deadline)
}

/// An error of the undo, which does not repeat a message that was said already.
fn undo_error(error: Error, said: &str) -> Error {
    if error.in_full() == said {
        return Error::new(error.code(), "the undo failed with the same error");
    }
    let details = error.details();
    if !details.is_empty() && said.ends_with(&details) {
        return Error::new(error.code(), format!("the undo failed: {error}"));
    }
    error.within("the undo failed")
}

/// Records an ADD that fails because a delegate is not installed. By this record its DEL knows that no
/// delegate has run, and does not fail for the missing one.
fn record_not_installed(session: &Session<'_>, error: &Error) {
    let Ok(plan) = session.plan_installed() else { return };
    let recorded = session.record_place().and_then(|place| {
        let Opened { mut file, record } = RecordFile::open(&place)?;
        // What is recorded, or was set aside, says more.
        if !record.is_empty() {
            return Ok(());
        }
        if !set_aside_of(&place)?.is_empty() {
            file.remove_if_empty();
            return Ok(());
        }
        let header = attempt_header(session, &plan, false)?;
        let failed = Failed::of(FailureReason::of(error, [session.request.network.config()]));
        let events = [Event::Attempt(header), Event::Failed(failed, LastRun::MayHold)];
        let outcome = events.iter().try_for_each(|event| file.append(event));
        if outcome.is_err() {
            let _ = file.remove();
        }
        outcome
    });
    if let Err(error) = recorded {
        debug!("{}", error.in_full());
    }
}

/// The circumstances of this ADD.
fn attempt_header(
    session: &Session<'_>,
    plan: &Plan,
    after_unreadable: bool,
) -> Result<AttemptHeader> {
    Ok(AttemptHeader {
        time: now(),
        pid: std::process::id(),
        boot: boot_id(),
        node: session.node.clone(),
        netns: session.attachment()?.netns.clone(),
        cni_version: session.request.network.version().to_string(),
        chain: plan.steps.iter().map(|step| step.name.clone()).collect(),
        workload: Workload::of(&session.request.args),
        after_unreadable,
        ..AttemptHeader::default()
    })
}
