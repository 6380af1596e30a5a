//! ADD, and its undo.

use log::{debug, warn};
use serde_json::Value;

use super::exec::{Ending, Failure};
use super::handoff::Handoff;
use super::plan::Plan;
use super::record::{
    AddOutcome, DelegateRun, Event, Failed, Held, LastRun, Opened, RecordFile, Run, now,
    set_aside_of,
};
use super::session::{Owed, Owner, Session};
use ipam_kit::cni::{IpamResult, Verb};
use ipam_kit::contract::Purpose;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, Result};

/// Runs the chain; on failure releases what it took.
pub(crate) fn add(session: &Session<'_>) -> Result<IpamResult> {
    let plan = session.plan().inspect_err(|_| note_not_installed(session))?;
    if session.state.is_from_network() {
        warn!(
            "ipam.stateDir is set in the network configuration: a DEL whose configuration the runtime strips will not \
             find {}; set stateDir in /etc/cni/ipam-delegated.json instead",
            session.state.root().display()
        );
    }
    let path = session.record_path()?;
    let Opened { mut file, record, is_first } = RecordFile::open(&path)?;
    // While an ADD stands that came after it, the record itself says so.
    let after_unreadable = !is_first && !record.may_be_in_use() && !set_aside_of(&path)?.is_empty();
    let mut walk = Walk::new(session, &plan);
    session.repeat_one_due(plan.timeout / 8);
    let in_use = after_unreadable || record.may_be_in_use();
    if let Err(error) = file.append(&Event::Attempt(session.attempt(&plan, after_unreadable)?)) {
        if record.attempts.is_empty() {
            let _ = file.remove();
        }
        return Err(error);
    }
    let outcome = walk.through(&mut file).and_then(|result| {
        let rendered = result.to_json(session.request.network.version())?;
        let held = Held { time: now(), result: rendered };
        let grants = walk.runs.iter().filter_map(|ran| ran.granted.clone());
        debug!("gives {}", addresses(&result));
        file.append(&Event::Held(held, grants.collect())).map_err(Failure::from)?;
        Ok(result)
    });
    let failure = match outcome {
        Ok(result) => return Ok(result),
        Err(failure) => failure,
    };
    let is_unsure = |ran: &DelegateRun| ran.granted.as_ref().is_some_and(|granted| granted.unsure);
    let unsure = failure.ending == Ending::Unsure || walk.runs.iter().any(is_unsure);
    let mut error = failure.error;
    let mut undone = false;
    if in_use {
        debug!("no undo: addresses of an earlier ADD may be in use");
    } else {
        let errors = walk.undo();
        undone = errors.is_empty();
        let said = error.in_full();
        error = error.and(errors.into_iter().map(|undo| of_undo(undo, &said)));
    }
    let last_run = match walk.last_run {
        LastRun::Refused if !undone => LastRun::MayHold,
        last_run => last_run,
    };
    let failed = Failed { time: now(), unsure };
    if let Err(error) = file.append(&Event::Failed(failed, last_run)) {
        warn!("{}", error.in_full());
    }
    Err(error)
}

/// Records an ADD that fails because a delegate is not installed: its DEL, too, would fail for want of
/// the delegate, and here the record says that none has run.
fn note_not_installed(session: &Session<'_>) {
    let Ok(plan) = session.plan_installed() else { return };
    let noted = session.record_path().and_then(|path| {
        let Opened { mut file, record, is_first } = RecordFile::open(&path)?;
        // What is recorded, or was set aside, says more.
        if !record.is_empty() {
            return Ok(());
        }
        if !is_first && !set_aside_of(&path)?.is_empty() {
            file.remove_if_empty();
            return Ok(());
        }
        let failed = Failed { time: now(), unsure: false };
        let events = [
            Event::Attempt(session.attempt(&plan, false)?),
            Event::Failed(failed, LastRun::MayHold),
        ];
        let outcome = events.iter().try_for_each(|event| file.append(event));
        if outcome.is_err() {
            let _ = file.remove();
        }
        outcome
    });
    if let Err(error) = noted {
        debug!("{}", error.in_full());
    }
}

/// Releases what an ADD of this process gave, for its result did not reach the runtime.
pub(crate) fn undeliver(session: &Session<'_>) -> Result<()> {
    let opened = RecordFile::open_existing(&session.record_path()?, RecordFile::PATIENCE)?;
    let Some(Opened { mut file, record, .. }) = opened.known()? else { return Ok(()) };
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
        let undos = mine.runs.iter().filter_map(|DelegateRun { run, granted }| {
            Some(Undo { run, leases: &granted.as_ref()?.leases, told: true })
        });
        let failures = undo(session, undos, mine.header.time, &result, deadline);
        errors.extend(failures.into_iter().map(|failure| of_undo(failure, "")));
    }
    // Else CHECK would go by what the runtime never got.
    let failed = Failed { time: now(), unsure: false };
    errors.extend(file.append(&Event::Failed(failed, LastRun::MayHold)).err());
    Error::join(errors)
}

/// One walk through the delegates.
struct Walk<'a> {
    session: &'a Session<'a>,
    plan: &'a Plan,
    carry: Handoff<'a>,
    /// The delegates that may hold something, in order.
    runs: Vec<DelegateRun>,
    /// What the one announced last in the record may hold, if the undo succeeds.
    last_run: LastRun,
    /// When it began, in milliseconds since 1970.
    began: u64,
    deadline: Deadline,
    /// The moment from which time is kept for the undo.
    undo_from: Deadline,
}

impl<'a> Walk<'a> {
    fn new(session: &'a Session<'a>, plan: &'a Plan) -> Self {
        Self {
            session,
            plan,
            // When our caller is itself chained, the addresses of the plugin before it are not ours.
            carry: session.carry(IpamResult::default()),
            runs: Vec::new(),
            last_run: LastRun::MayHold,
            began: now(),
            deadline: Deadline::after(plan.timeout),
            undo_from: Deadline::after(plan.timeout * 3 / 4),
        }
    }

    fn through(&mut self, file: &mut RecordFile) -> Result<IpamResult, Failure> {
        for step in &self.plan.steps {
            let Some(run) = self.carry.run_of(step) else {
                debug!("{} has no pool to serve", step.name);
                continue;
            };
            let network = &self.session.request.network;
            let stdin = run.stdin(network, &self.carry.result, self.carry.input())?;
            if !step.is_selector() {
                file.append(&Event::Running(run.clone()))?;
                self.runs.push(run.into());
            }
            let answer = match self.session.exec(Verb::Add, step, stdin, self.undo_from.left()) {
                Ok(answer) => answer.unwrap_or_default(),
                Err(failure) => {
                    self.last_run = match failure.ending {
                        Ending::NotRun if !step.is_selector() => LastRun::NotRun,
                        Ending::Told => LastRun::Refused,
                        _ => LastRun::MayHold,
                    };
                    if self.last_run == LastRun::NotRun {
                        self.runs.pop();
                    }
                    return Err(failure);
                }
            };
            let granted = self.carry.take(step, answer)?;
            if let Some(last) = self.runs.last_mut().filter(|_| !step.is_selector()) {
                last.granted = Some(granted);
            }
        }
        Ok(self.carry.finish(&self.plan.steps)?)
    }

    /// DEL to the delegates that ran, in order, the failed one last.
    fn undo(&self) -> Vec<Error> {
        let refused = self.last_run == LastRun::Refused;
        let runs = self.runs.iter().map(|DelegateRun { run, granted }| match granted {
            Some(granted) => Undo { run, leases: &granted.leases, told: true },
            None => Undo { run, leases: &[], told: refused },
        });
        undo(self.session, runs, self.began, &self.carry.result, self.deadline)
    }
}

/// A delegate whose part in an ADD is undone.
struct Undo<'a> {
    run: &'a Run,
    /// What it said it gave.
    leases: &'a [Value],
    /// It said what it gave, or that it gave nothing: no more than that is to be released.
    told: bool,
}

/// DEL to each, for the attachment of this call.
fn undo<'a>(
    session: &Session<'_>,
    undos: impl Iterator<Item = Undo<'a>>,
    began: u64,
    result: &IpamResult,
    deadline: Deadline,
) -> Vec<Error> {
    let Ok(attachment) = session.attachment() else { return Vec::new() };
    let owner = Owner { network: &session.request.network, attachment };
    let (told, unsure): (Vec<_>, Vec<_>) = undos.partition(|undo| undo.told);
    let owed = |Undo { run, leases, .. }: &Undo<'a>| Owed { run, leases, only_failed: false };
    let owed = |undos: &[Undo<'a>]| undos.iter().map(owed).collect::<Vec<_>>();
    let mut errors = session.release_all(&owner, &owed(&told), result, Purpose::Undo, deadline);
    // The one that did not tell is the last. What the owner held before this ADD stays.
    let since = Purpose::TakenBetween { after: began, before: None };
    errors.extend(session.release_all(&owner, &owed(&unsure), result, since, deadline));
    errors
}

/// An error of the undo, which does not repeat what was said already.
fn of_undo(error: Error, said: &str) -> Error {
    if error.in_full() == said {
        return Error::new(error.code(), "the undo failed with the same error");
    }
    error.within("the undo failed")
}

fn addresses(result: &IpamResult) -> String {
    result.ips.iter().map(|ip| ip.address.to_string()).collect::<Vec<_>>().join(", ")
}
