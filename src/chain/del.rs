//! DEL, and every later release of what a record names: GC, and the repetition of an unsure DEL.

use std::time::Duration;

use log::{debug, warn};
use serde_json::{Map, Value};

use super::carry::Carry;
use super::now;
use super::plan::is_selector;
use super::record::{Event, Opened, Record, RecordFile, Released, Unsure};
use super::session::{Owner, Session, open_record};
use crate::cni::{Attachment, IpamResult, Network, NetworkName, Verb};
use crate::delegate::Deadline;
use crate::error::{Error, ErrorCode, Result};

/// How long after a DEL a claim of a killed ADD may still commit.
const UNSURE_FOR: Duration = Duration::from_secs(60);

/// Releases what the attachment holds, from the record where there is one.
pub(super) fn del(session: &Session<'_>) -> Result<()> {
    let opened = open_record(&session.record_path()?)?;
    let deadline = Deadline::after(session.timeout());
    match opened {
        Some(Opened { file, record, .. }) if !record.attempts.is_empty() => {
            let owner =
                Owner { network: &session.request.network, attachment: session.attachment()? };
            let prev_result = session.request.network.prev_result()?;
            release_recorded(session, &owner, &record, prev_result, deadline)?;
            settle(session, &owner, &record, file);
            Ok(())
        }
        opened => {
            let outcome = release_configured(session, deadline);
            if let Some(Opened { file, .. }) = opened {
                file.remove_if_empty();
            }
            outcome
        }
    }
}

impl Session<'_> {
    /// Repeats the DEL of one record that is due, whose claim may have committed late.
    pub fn repeat_one_due(&self, time: Duration) {
        let unsure = Unsure::of(&self.state);
        let Some(due) = unsure.due(now()) else { return };
        let path = self.state.record(&due.network, &due.attachment);
        match RecordFile::open_existing(&path) {
            // Somebody works on it now; another ADD will find it.
            Err(error) => return debug!("{}", error.in_full()),
            Ok(Some(opened)) if opened.record.released().is_some_and(|it| it.due <= now()) => {
                debug!("repeats the DEL of {}", due.attachment);
                self.repeat(&due.network, &due.attachment, opened, Deadline::after(time));
            }
            // Added anew, or due later, which another entry says.
            Ok(Some(_)) => {}
            // Released for good, but perhaps killed before its folder was removed.
            Ok(None) => {
                if let Some(folder) = path.parent() {
                    let _ = std::fs::remove_dir(folder);
                }
            }
        }
        // Only now: a kill before this repeats it.
        due.remove();
    }

    fn repeat(
        &self,
        network: &NetworkName,
        attachment: &Attachment,
        opened: Opened,
        deadline: Deadline,
    ) {
        let Opened { file, record, .. } = opened;
        let outcome = recorded_network(network, &record).and_then(|network| {
            let owner = Owner { network: &network, attachment };
            release_recorded(self, &owner, &record, None, deadline)
        });
        match outcome {
            Ok(()) => remove(file),
            Err(error) => {
                warn!(
                    "the DEL of {attachment} on {network} is still to be repeated: {}",
                    error.in_full()
                );
                self.mark_unsure(network, attachment, file);
            }
        }
    }

    fn mark_unsure(&self, network: &NetworkName, attachment: &Attachment, mut file: RecordFile) {
        let time = now();
        let due = time + u64::try_from(UNSURE_FOR.as_millis()).unwrap_or(u64::MAX);
        let listed = Unsure::of(&self.state).add(due, network, attachment).map_err(Error::from_io);
        let marked = listed.and_then(|()| file.append(&Event::Released(Released { time, due })));
        if let Err(error) = marked {
            // DEL needs no disk space: what may still commit is then GC's case.
            warn!(
                "cannot note that the DEL of {attachment} is to be repeated: {}",
                error.in_full()
            );
            remove(file);
        }
    }
}

/// Releases a record that GC judged stale.
pub(super) fn release_stale(
    session: &Session<'_>,
    attachment: &Attachment,
    opened: Opened,
    deadline: Deadline,
) -> Result<()> {
    let owner = Owner { network: &session.request.network, attachment };
    release_recorded(session, &owner, &opened.record, None, deadline)?;
    settle(session, &owner, &opened.record, opened.file);
    Ok(())
}

/// DEL to every delegate that may hold a lease by the record, each with its recorded
/// configuration; every one runs even after one failed.
fn release_recorded(
    session: &Session<'_>,
    owner: &Owner<'_>,
    record: &Record,
    prev_result: Option<IpamResult>,
    deadline: Deadline,
) -> Result<()> {
    let prev_result = match (prev_result, record.held()) {
        (Some(prev_result), _) => prev_result,
        (None, Some((_, held))) => IpamResult::parse(&held.result, "recorded result")?,
        (None, None) => IpamResult::default(),
    };
    let runs = record.runs();
    let mut errors = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        let time = deadline.left() / u32::try_from(runs.len() - i).unwrap_or(u32::MAX);
        if let Err(failure) = session.release(owner, run, &prev_result, record.leases(run), time) {
            errors.push(failure.error);
        }
    }
    let Some(error) = Error::join(errors) else { return Ok(()) };
    let (network, attachment) = (owner.network.name(), owner.attachment);
    Err(error.advise(format!(
        "the runtime repeats DEL; if the store is gone for ever: ipam-delegated forget {network} {} {} --yes",
        attachment.container, attachment.ifname
    )))
}

/// What becomes of a record whose leases are released.
fn settle(session: &Session<'_>, owner: &Owner<'_>, record: &Record, file: RecordFile) {
    let time = now();
    let repeated = record.released().is_some_and(|released| released.due > time);
    if repeated {
        return;
    }
    // A claim of an ADD before the last DEL may also commit after this one.
    if record.is_unsure() || record.unsure_until().is_some_and(|until| until > time) {
        session.mark_unsure(owner.network.name(), owner.attachment, file);
    } else {
        remove(file);
    }
}

fn remove(file: RecordFile) {
    if let Err(error) = file.remove() {
        warn!("cannot remove the attachment record: {error}");
    }
}

/// DEL to the whole chain as configured: nothing is known of the attachment.
fn release_configured(session: &Session<'_>, deadline: Deadline) -> Result<()> {
    let request = session.request;
    let stripped = request.network.ipam().keys().all(|key| key == "type");
    if stripped && session.chain.preset.is_none_or(|preset| !preset.has_default_place) {
        warn!(
            "no record of this attachment, and the configuration names no delegates: nothing to release"
        );
        return Ok(());
    }
    let plan = session.plan()?;
    let prev_result = request.prev_result()?;
    let mut carry =
        Carry::new(&request.network, &request.settings, &session.node, prev_result.clone());
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    for (i, step) in plan.steps.iter().enumerate() {
        let Some(run) = carry.run_of(step) else { continue };
        let time = deadline.left() / u32::try_from(plan.steps.len() - i).unwrap_or(u32::MAX);
        let outcome = run
            .stdin(&request.network, &prev_result, &[])
            .and_then(|stdin| {
                session.exec(Verb::Del, step, stdin, time).map_err(|failure| failure.error)
            })
            .and_then(|answer| answer.map_or(Ok(()), |answer| carry.take_pools(step, answer)));
        match outcome {
            Ok(()) => {}
            Err(error) if is_selector(&step.name) => warnings.push(error),
            Err(error) => errors.push(error),
        }
    }
    match Error::join(errors) {
        None => {
            warnings.iter().for_each(|warning| warn!("{}", warning.in_full()));
            Ok(())
        }
        // An allocator may have failed for want of its pools: the selector's error says why.
        Some(error) => {
            Err(Error::join(std::iter::once(error).chain(warnings)).expect("there is one"))
        }
    }
}

/// The network configuration of a record whose network is not the one we were called for.
fn recorded_network(network: &NetworkName, record: &Record) -> Result<Network> {
    let version = record.attempts.last().map(|attempt| attempt.attempt.cni_version.clone());
    Network::new(Map::from_iter([
        ("cniVersion".to_owned(), version.unwrap_or_default().into()),
        ("name".to_owned(), network.as_str().into()),
        ("ipam".to_owned(), Value::Object(Map::new())),
    ]))
}

impl Error {
    fn from_io(error: std::io::Error) -> Self {
        Self::new(ErrorCode::RECORD, "cannot write the state folder").caused_by(error)
    }
}
