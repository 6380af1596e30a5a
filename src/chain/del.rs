//! DEL, and every later release of what a record names: GC, and the repetition of an unsure DEL.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use log::{debug, warn};
use serde_json::{Map, Value};

use super::program::is_allocator;
use super::record::{
    Event, Opened, Record, RecordFile, Released, UNSURE_FOR, Unsure, now, set_aside_of,
};
use super::run_all::walk_plan;
use super::session::{Owed, Owner, Session};
use ipam_kit::cni::{Attachment, IpamResult, Network, NetworkName, Verb};
use ipam_kit::contract::Purpose;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::presence::Presence;

/// Releases what the attachment holds, from the record where there is one.
pub(crate) fn del(session: &Session<'_>) -> Result<()> {
    let path = session.record_path()?;
    let opened = RecordFile::open_to_release(&path)?;
    let mut unreadable = set_aside_of(&path)?;
    let deadline = Deadline::after(session.timeout());
    match opened {
        Presence::Held(Opened { file, record, .. })
            if record.forgotten && unreadable.is_empty() =>
        {
            warn!("forgotten by hand: what the attachment held stays held");
            remove(file);
            Ok(())
        }
        Presence::Held(Opened { file, record, .. }) if !record.runs().is_empty() => {
            let owner =
                Owner { network: &session.request.network, attachment: session.attachment()? };
            let prev_result = session.prev_result().unwrap_or_else(|error| {
                warn!("{}; going by the record", error.in_full());
                None
            });
            let prev_result = prev_result.map_or_else(|| recorded_result(&record), Ok)?;
            let left = release_recorded(
                session,
                &owner,
                &record,
                &prev_result,
                Purpose::Runtime,
                deadline,
            )?;
            // A record before this one may name more.
            let outcome = match &unreadable[..] {
                [] => Ok(()),
                unreadable => release_configured(session, unreadable, false, deadline),
            };
            settle(session, &owner, &record, file, left);
            outcome
        }
        Presence::Held(Opened { file, record, .. }) => {
            // No ADD of the record came so far that a delegate may hold something by it.
            let was_added = !record.attempts.is_empty() && unreadable.is_empty();
            let outcome = release_configured(session, &unreadable, was_added, deadline);
            if !record.attempts.is_empty() && outcome.is_ok() {
                remove(file);
            } else {
                file.remove_if_empty();
            }
            outcome
        }
        Presence::Absent => release_configured(session, &unreadable, false, deadline),
        Presence::Unreadable(error) => {
            warn!("{}", error.in_full());
            unreadable.push(path);
            release_configured(session, &unreadable, false, deadline)
        }
    }
}

impl Session<'_> {
    /// Repeats the DEL of one record that is due, whose claim may have committed late.
    pub(crate) fn repeat_one_due(&self, time: Duration) {
        let due = Unsure::of(&self.state).due(now()).unwrap_or_else(|error| {
            warn!("cannot read the list of unsure DELs: {error}");
            Vec::new()
        });
        for due in due {
            let path = self.state.record(&due.network, &due.attachment);
            match RecordFile::open_existing(&path, Duration::ZERO).and_then(Presence::known) {
                // A call works on it, or it cannot be read now; another ADD will find it.
                Err(error) => {
                    debug!("{}", error.in_full());
                    continue;
                }
                Ok(Some(opened)) if opened.record.released().is_some_and(|it| it.is_due(now())) => {
                    debug!("repeats the DEL of {}", due.attachment);
                    self.repeat(&due.network, &due.attachment, opened, Deadline::after(time));
                    // Only now: a kill before this repeats it.
                    return due.remove();
                }
                // Added anew, or due later, which another entry says.
                Ok(Some(_)) => {}
                // Released for good, but perhaps killed before its folder was removed.
                Ok(None) => {
                    if let Some(folder) = path.parent() {
                        let _ = fs::remove_dir(folder);
                    }
                }
            }
            due.remove();
        }
    }

    fn repeat(
        &self,
        network: &NetworkName,
        attachment: &Attachment,
        opened: Opened,
        deadline: Deadline,
    ) {
        let Opened { file, record, .. } = opened;
        // Secrets of another network are not this one's.
        let called_for = &self.request.network;
        let newer =
            if called_for.name() == network { called_for.ipam().clone() } else { Map::new() };
        let outcome = recorded_network(network, &record, newer).and_then(|network| {
            let owner = Owner { network: &network, attachment };
            release_stale_leases(self, &owner, &record, deadline)
        });
        match outcome {
            // GC and reap go on with it.
            Ok(Left(true)) => {}
            Ok(Left(false)) => remove(file),
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
        let due = time + UNSURE_FOR;
        let listed = Unsure::of(&self.state).add(due, network, attachment).map_err(|error| {
            Error::new(ErrorCode::RECORD, "cannot write the state folder").caused_by(error)
        });
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

/// Releases a record that was judged stale.
pub(crate) fn release_stale(
    session: &Session<'_>,
    owner: &Owner<'_>,
    opened: Opened,
    deadline: Deadline,
) -> Result<()> {
    let left = release_stale_leases(session, owner, &opened.record, deadline)
        .inspect_err(|_| opened.file.put_last())?;
    settle(session, owner, &opened.record, opened.file, left);
    Ok(())
}

/// Releases what the ADDs of a record took, and nothing that the same attachment has got since by
/// other ways: a chain without this record, or the plugin that a preset replaces.
fn release_stale_leases(
    session: &Session<'_>,
    owner: &Owner<'_>,
    record: &Record,
    deadline: Deadline,
) -> Result<Left> {
    let prev_result = recorded_result(record)?;
    let purpose = record.window().map_or(Purpose::Runtime, |(after, end)| Purpose::TakenBetween {
        after,
        before: Some(end),
    });
    release_recorded(session, owner, record, &prev_result, purpose, deadline)
}

/// The result of the ADD that stands; empty where there is none.
fn recorded_result(record: &Record) -> Result<IpamResult> {
    match record.held() {
        Some((_, held)) => IpamResult::parse(&held.result, "recorded result"),
        None => Ok(IpamResult::default()),
    }
}

/// Whether a store whose leases are claimed in another one by now has not confirmed its release.
#[derive(Clone, Copy)]
struct Left(bool);

/// How long such a store may take.
const SUPERSEDED: Duration = Duration::from_secs(3);

/// DEL to every delegate that may hold a lease by the record, each with its recorded
/// configuration; every one runs even after one failed.
fn release_recorded(
    session: &Session<'_>,
    owner: &Owner<'_>,
    record: &Record,
    prev_result: &IpamResult,
    purpose: Purpose,
    deadline: Deadline,
) -> Result<Left> {
    let owed = |run| Owed { run, leases: record.leases(run), only_failed: record.only_failed(run) };
    let (superseded, owed): (Vec<_>, Vec<_>) =
        record.runs().into_iter().map(owed).partition(|owed| record.is_superseded(owed.run));
    // A standard plugin that refused the settings of an ADD refuses them of a DEL, too.
    let (refusing, others): (Vec<_>, Vec<_>) =
        owed.into_iter().partition(|owed| owed.only_failed && !is_allocator(&owed.run.delegate));
    let mut errors = session.release_all(owner, &others, prev_result, purpose, deadline);
    let refusals = session.release_all(owner, &refusing, prev_result, purpose, deadline);
    // The configured chain runs for the attachment of the call, which GC and reap have none of.
    let is_runtimes_del = session.request.verb == Verb::Del;
    if !refusals.is_empty()
        && is_runtimes_del
        && !is_stripped(session)
        && release_configured(session, &[], false, deadline).is_ok()
    {
        refusals.iter().for_each(|error| warn!("released as configured now: {}", error.in_full()));
    } else {
        errors.extend(refusals);
    }
    // The address is in use in another store, so that the runtime need not wait for this one.
    let time = Deadline::after(deadline.left().min(SUPERSEDED));
    let left = session.release_all(owner, &superseded, prev_result, purpose, time);
    for error in &left {
        warn!(
            "GC and reap repeat the release in a store that reassert has left: {}",
            error.in_full()
        );
    }
    let left = Left(!left.is_empty());
    let (network, attachment) = (owner.network.name(), owner.attachment);
    Error::join(errors).map(|()| left).map_err(|error| error.advise(format!(
        "the runtime repeats DEL; if the store is gone for ever: ipam-delegated forget {network} {} {} --yes",
        attachment.container, attachment.ifname
    )))
}

/// What becomes of a record whose leases are released.
fn settle(
    session: &Session<'_>,
    owner: &Owner<'_>,
    record: &Record,
    mut file: RecordFile,
    left: Left,
) {
    let time = now();
    let repeated = record.released().is_some_and(|released| released.due > time);
    if repeated {
        return;
    }
    let (network, attachment) = (owner.network.name(), owner.attachment);
    // A claim of an ADD before the last DEL may also commit after this one.
    if record.is_unsure() || record.unsure_until().is_some_and(|until| until > time) {
        session.mark_unsure(network, attachment, file);
        return;
    }
    if left.0 {
        // DEL needs no disk space.
        if record.released().is_none()
            && let Err(error) = file.append(&Event::Released(Released { time, due: time }))
        {
            warn!("cannot note what reap is to release: {}", error.in_full());
        }
        return;
    }
    remove(file);
    if record.unsure_until().is_some() {
        Unsure::of(&session.state).remove(network, attachment);
    }
}

fn remove(file: RecordFile) {
    if let Err(error) = file.remove() {
        warn!("cannot remove the attachment record: {error}");
    }
}

/// DEL to the whole chain as configured: nothing is known of the attachment, or these records of it
/// cannot be read. Where every delegate released, they go.
///
/// Where only ADDs are recorded that ran no delegate, one that is not installed is left out: it holds
/// nothing of them, and the runtime knows no other.
fn release_configured(
    session: &Session<'_>,
    unreadable: &[PathBuf],
    none_ran: bool,
    deadline: Deadline,
) -> Result<()> {
    session.refuse_unproved_absence()?;
    let stripped = is_stripped(session);
    if stripped && !unreadable.is_empty() {
        let network = session.request.network.name();
        let Attachment { container, ifname, .. } = session.attachment()?;
        let paths: Vec<String> = unreadable.iter().map(|path| path.display().to_string()).collect();
        return Err(Error::new(
            ErrorCode::RECORD,
            format!(
                "{} cannot be read, so what the attachment holds is not known, and the configuration names no delegates",
                paths.join(", ")
            ),
        )
        .advise(format!(
            "release what it holds: ipam-delegated release {network} --owner {container}/{ifname} --yes; \
             then: ipam-delegated forget {network} {container} {ifname} --yes"
        )));
    }
    if stripped && session.chain.preset.is_none_or(|preset| !preset.has_default_location) {
        warn!(
            "no record of this attachment, and the configuration names no delegates: nothing to release"
        );
        return Ok(());
    }
    let prev_result = session.prev_result()?.unwrap_or_default();
    let plan = session.plan().or_else(|error| {
        // What it got by other ways would be in the result that the runtime keeps.
        if !none_ran || !prev_result.ips.is_empty() {
            return Err(error);
        }
        let plan = session.plan_installed()?;
        warn!("{}: no delegate has run for this attachment", error.in_full());
        Ok(plan)
    })?;
    let walked = walk_plan(session, &plan, Verb::Del, &prev_result, deadline)?;
    let warnings = walked.but_selectors(none_ran && prev_result.ips.is_empty())?;
    warnings.iter().for_each(|warning| warn!("{}", warning.in_full()));
    for path in unreadable {
        if let Err(error) = fs::remove_file(path) {
            warn!("cannot remove {}: {error}", path.display());
        }
    }
    Ok(())
}

/// Whether the runtime has left nothing of the section `ipam` but its type.
fn is_stripped(session: &Session<'_>) -> bool {
    session.request.network.ipam().keys().all(|key| key == "type")
}

/// The network configuration of a record whose network is not the one we were called for.
pub(crate) fn recorded_network(
    network: &NetworkName,
    record: &Record,
    ipam: Map<String, Value>,
) -> Result<Network> {
    let version = record.attempts.last().map(|attempt| attempt.header.cni_version.clone());
    let mut config = Map::new();
    config.insert("cniVersion".to_owned(), version.unwrap_or_default().into());
    config.insert("name".to_owned(), network.as_str().into());
    config.insert("ipam".to_owned(), Value::Object(ipam));
    Network::new(config)
}
