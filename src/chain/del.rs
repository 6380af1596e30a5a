//! DEL, and every later release of what a record names: GC, and the repetition of an unsure DEL.

use std::time::Duration;

use log::{debug, warn};
use serde_json::{Map, Value};

use super::configured::walk;
use super::program::is_allocator;
use super::record::{Event, Opened, Record, RecordFile, Released, UNSURE_FOR, Unsure, now};
use super::session::{Owed, Owner, Session, fence, open_record};
use crate::cni::{Attachment, IpamResult, Network, NetworkName, Verb};
use crate::delegate::Deadline;
use crate::error::{Error, ErrorCode, Result};

/// Releases what the attachment holds, from the record where there is one.
pub(super) fn del(session: &Session<'_>) -> Result<()> {
    let opened = open_record(&session.record_path()?)?;
    let deadline = Deadline::after(session.timeout());
    match opened {
        Some(Opened { file, record, .. }) if !record.runs().is_empty() => {
            let owner =
                Owner { network: &session.request.network, attachment: session.attachment()? };
            let prev_result = session.prev_result().unwrap_or_else(|error| {
                warn!("{}; going by the record", error.in_full());
                None
            });
            let prev_result = prev_result.map_or_else(|| recorded_result(&record), Ok)?;
            release_recorded(session, &owner, &record, &prev_result, deadline)?;
            settle(session, &owner, &record, file);
            Ok(())
        }
        opened => {
            // Where the record stands but cannot be opened, nobody knows what is held.
            let hidden = opened.is_none() && session.record_path()?.symlink_metadata().is_ok();
            let outcome = release_configured(session, hidden, deadline);
            match opened {
                // No ADD of the record came so far that a delegate may hold something by it.
                Some(Opened { file, record, .. })
                    if !record.attempts.is_empty() && outcome.is_ok() =>
                {
                    remove(file);
                }
                Some(Opened { file, .. }) => file.remove_if_empty(),
                None => {}
            }
            outcome
        }
    }
}

impl Session<'_> {
    /// Repeats the DEL of one record that is due, whose claim may have committed late.
    pub fn repeat_one_due(&self, time: Duration) {
        for due in Unsure::of(&self.state).due(now()) {
            let path = self.state.record(&due.network, &due.attachment);
            match RecordFile::open_existing(&path) {
                // Somebody works on it now; another ADD will find it.
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
                        let _ = std::fs::remove_dir(folder);
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
pub(super) fn release_stale(
    session: &Session<'_>,
    owner: &Owner<'_>,
    opened: Opened,
    deadline: Deadline,
) -> Result<()> {
    release_stale_leases(session, owner, &opened.record, deadline)
        .inspect_err(|_| opened.file.put_last())?;
    settle(session, owner, &opened.record, opened.file);
    Ok(())
}

/// Releases what the ADDs of a record took, and nothing that the same attachment has got since by
/// other ways: a chain without this record, or the plugin that a preset replaces.
fn release_stale_leases(
    session: &Session<'_>,
    owner: &Owner<'_>,
    record: &Record,
    deadline: Deadline,
) -> Result<()> {
    let mut prev_result = recorded_result(record)?;
    if let Some((begin, end)) = record.window() {
        prev_result = fence(prev_result, begin, Some(end));
    }
    release_recorded(session, owner, record, &prev_result, deadline)
}

/// The result of the ADD that stands; empty where there is none.
fn recorded_result(record: &Record) -> Result<IpamResult> {
    match record.held() {
        Some((_, held)) => IpamResult::parse(&held.result, "recorded result"),
        None => Ok(IpamResult::default()),
    }
}

/// DEL to every delegate that may hold a lease by the record, each with its recorded
/// configuration; every one runs even after one failed.
fn release_recorded(
    session: &Session<'_>,
    owner: &Owner<'_>,
    record: &Record,
    prev_result: &IpamResult,
    deadline: Deadline,
) -> Result<()> {
    let owed = |run| Owed { run, leases: record.leases(run), only_failed: record.only_failed(run) };
    let owed: Vec<Owed<'_>> = record.runs().into_iter().map(owed).collect();
    // A standard plugin that refused the settings of an ADD refuses them of a DEL, too.
    let (refusing, others): (Vec<_>, Vec<_>) =
        owed.into_iter().partition(|owed| owed.only_failed && !is_allocator(&owed.run.delegate));
    let mut errors = session.release_all(owner, &others, prev_result, deadline);
    let refusals = session.release_all(owner, &refusing, prev_result, deadline);
    let is_called_for = std::ptr::eq(owner.network, &session.request.network);
    if !refusals.is_empty()
        && is_called_for
        && !is_stripped(session)
        && release_configured(session, false, deadline).is_ok()
    {
        refusals.iter().for_each(|error| warn!("released as configured now: {}", error.in_full()));
    } else {
        errors.extend(refusals);
    }
    let (network, attachment) = (owner.network.name(), owner.attachment);
    Error::join(errors).map_err(|error| error.advise(format!(
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
fn release_configured(session: &Session<'_>, hidden: bool, deadline: Deadline) -> Result<()> {
    let stripped = is_stripped(session);
    if stripped && hidden {
        let path = session.record_path()?;
        return Err(Error::new(
            ErrorCode::RECORD,
            format!(
                "the attachment record {} cannot be read, and the configuration names no delegates",
                path.display()
            ),
        )
        .advise("mend the state folder; the runtime repeats DEL"));
    }
    if stripped && session.chain.preset.is_none_or(|preset| !preset.has_default_place) {
        warn!(
            "no record of this attachment, and the configuration names no delegates: nothing to release"
        );
        return Ok(());
    }
    let prev_result = session.prev_result()?.unwrap_or_default();
    let warnings = walk(session, Verb::Del, &prev_result, deadline)?.but_selectors()?;
    warnings.iter().for_each(|warning| warn!("{}", warning.in_full()));
    Ok(())
}

/// Whether the runtime has left nothing of the section `ipam` but its type.
fn is_stripped(session: &Session<'_>) -> bool {
    session.request.network.ipam().keys().all(|key| key == "type")
}

/// The network configuration of a record whose network is not the one we were called for.
pub(super) fn recorded_network(
    network: &NetworkName,
    record: &Record,
    ipam: Map<String, Value>,
) -> Result<Network> {
    let version = record.attempts.last().map(|attempt| attempt.attempt.cni_version.clone());
    let mut config = Map::new();
    config.insert("cniVersion".to_owned(), version.unwrap_or_default().into());
    config.insert("name".to_owned(), network.as_str().into());
    config.insert("ipam".to_owned(), Value::Object(ipam));
    Network::new(config)
}
