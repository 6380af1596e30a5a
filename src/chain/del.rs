//! DEL: by the record of the attachment, or without one by the configuration.

use std::path::PathBuf;

use log::warn;

use super::record::{Opened, Record, RecordFile, set_aside_of};
use super::release::NetworkAttachment;
use super::run_all::run_planned;
use super::session::Session;
use super::settle::{Coverage, RecordRelease, ReleaseFailures, recorded_result, remove, settle};
use ipam_kit::cni::{Attachment, Verb};
use ipam_kit::contract::Purpose;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::presence::Presence;

/// Releases all leases of the attachment, by its record if it has one.
pub(crate) fn del(session: &Session<'_>) -> Result<()> {
    let place = session.record_place()?;
    let opened = RecordFile::open_to_release(&place)?;
    let mut unreadable = set_aside_of(&place)?;
    let deadline = Deadline::after(session.timeout());
    match opened {
        Presence::Held(Opened { file, record })
            if record.is_forgotten() && unreadable.is_empty() =>
        {
            warn!("the attachment was forgotten by an operator: DEL releases nothing");
            remove(file);
            Ok(())
        }
        Presence::Held(Opened { file, record }) if !record.runs().is_empty() => {
            let network = &session.request.network;
            let target = NetworkAttachment { network, attachment: session.attachment()? };
            let coverage = release_recorded(session, target, &record, deadline)?;
            // A record before this one may name more.
            let outcome = match &unreadable[..] {
                [] => Ok(()),
                unreadable => release_configured(session, unreadable, false, deadline),
            };
            settle(session, target, &record, file, coverage);
            outcome
        }
        Presence::Held(Opened { file, record }) => {
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
            unreadable.push(place.path().to_owned());
            release_configured(session, &unreadable, false, deadline)
        }
    }
}

/// Releases by the record. Where a standard plugin refuses the recorded settings, by which it never gave
/// anything, the whole chain runs as configured.
fn release_recorded(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    record: &Record,
    deadline: Deadline,
) -> Result<Coverage> {
    let prev_result = session.prev_result().unwrap_or_else(|error| {
        warn!("{}; DEL uses the recorded result", error.in_full());
        None
    });
    let prev_result = &prev_result.map_or_else(|| recorded_result(record), Ok)?;
    let purpose = Purpose::Runtime;
    let release = RecordRelease { session, target, record, prev_result, purpose, deadline };
    let ReleaseFailures { mut errors, refusals } = release.release_current();
    if !refusals.is_empty()
        && !is_stripped(session)
        && release_configured(session, &[], false, deadline).is_ok()
    {
        for error in refusals {
            warn!(
                "released with the present configuration, since the recorded one failed: {}",
                error.in_full()
            );
        }
    } else {
        errors.extend(refusals);
    }
    release.finish(errors)
}

/// DEL to the whole chain as configured, for an attachment without a record, or with these unreadable
/// ones. Removes them if every delegate released.
///
/// If all recorded ADDs ran no delegate (`none_ran`), delegates that are not installed are skipped: they
/// hold nothing.
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
                "{} cannot be read: what the attachment holds is unknown, and the configuration names no delegates",
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
        warn!("{}; DEL continues, since no delegate has run for this attachment", error.in_full());
        Ok(plan)
    })?;
    let failures = run_planned(session, &plan, Verb::Del, &prev_result, deadline)?;
    for warning in failures.but_selectors(none_ran && prev_result.ips.is_empty())? {
        warn!("{}", warning.in_full());
    }
    let place = session.record_place()?;
    for path in unreadable {
        if let Err(error) = place.remove(path) {
            warn!("cannot remove {}: {error}", path.display());
        }
    }
    Ok(())
}

/// Whether the runtime has left nothing of the section `ipam` but its type.
fn is_stripped(session: &Session<'_>) -> bool {
    session.request.network.ipam().keys().all(|key| key == "type")
}
