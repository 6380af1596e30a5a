//! GC: releases the leases without a valid attachment.

use std::time::{Duration, SystemTime};

use log::{debug, warn};

use super::record::{
    Opened, Record, RecordFile, RecordPlace, SetAside, State, attachments, now, set_aside,
};
use super::release::NetworkAttachment;
use super::run_all::{Failures, run_all};
use super::session::Session;
use super::stale::{ReleaseRound, Tried, sort_oldest_first};
use ipam_kit::cni::{Attachment, IpamResult, NetworkName, ValidAttachments, Verb};
use ipam_kit::delegate::{Deadline, Request};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{Settings, is_old};
use ipam_kit::presence::Presence;

/// Releases the stale records of this network, then calls every delegate with the list of what to
/// keep: the runtime's list, and the attachments that are too young or too busy to be judged.
///
/// A stale record that is left or failed is in no list: nothing protects it, so the delegates' own GC
/// may release its leases, and its later DEL finds nothing.
pub(crate) fn gc(session: &Session<'_>, keep: &ValidAttachments) -> Result<()> {
    let mut keep = keep.clone();
    let mut errors = Vec::new();
    let network = session.request.network.name();
    let folder = session.state.network(network);
    let began = now();
    let deadline = Deadline::after(session.timeout());
    // A quarter is for the delegates' own GC.
    let mut round = ReleaseRound::of(session.timeout() * 3 / 4);
    let mut unlisted = attachments(&folder)?;
    unlisted.retain(|found| !keep.contains(found.container.as_str(), found.ifname.as_str()));
    sort_oldest_first(&mut unlisted, |attachment| {
        RecordPlace::of(&session.state, network, attachment)
    });
    for attachment in &unlisted {
        match open_if_stale(session, network, attachment, began) {
            Ok(Staleness::Stale(opened)) => {
                let target = NetworkAttachment { network: &session.request.network, attachment };
                match round.release(session, target, *opened) {
                    Ok(Tried::Released) => {
                        debug!("released {attachment}: it is stale, and not in the runtime's list")
                    }
                    Ok(Tried::No(why)) => debug!("left {attachment}: {why}"),
                    Err(error) => errors.push(error),
                }
                continue;
            }
            Ok(Staleness::Gone) => continue,
            Ok(Staleness::Keep(why)) => debug!("kept {attachment}: {why}"),
            Err(error) => errors.push(error),
        }
        keep.insert(attachment.container.as_str(), attachment.ifname.as_str());
    }
    keep_later_ones(session, &mut keep, began)?;
    keep_set_aside(session, &mut keep)?;
    let request = with_keep(session.request, &keep);
    let session = Session { request: &request, ..session.clone() };
    let failures = run_all(&session, Verb::Gc, &IpamResult::default(), deadline);
    errors.extend(failures.and_then(Failures::join).err());
    report_left(&round, &mut errors);
    Error::join(errors)
}

/// Keeps attachments that were added since GC began, or are busy: no list can name them.
fn keep_later_ones(session: &Session<'_>, keep: &mut ValidAttachments, began: u64) -> Result<()> {
    let network = session.request.network.name();
    for attachment in attachments(&session.state.network(network))? {
        let (container, ifname) = (attachment.container.as_str(), attachment.ifname.as_str());
        if keep.contains(container, ifname) {
            continue;
        }
        match open_if_stale(session, network, &attachment, began) {
            Ok(Staleness::Stale(_) | Staleness::Gone) => {}
            Ok(Staleness::Keep(_)) | Err(_) => keep.insert(container, ifname),
        }
    }
    Ok(())
}

/// Keeps attachments with a record set aside: their leases are unknown. An operator clears it.
fn keep_set_aside(session: &Session<'_>, keep: &mut ValidAttachments) -> Result<()> {
    let network = session.request.network.name();
    let aside = set_aside(&session.state.network(network))?;
    if !aside.is_empty() {
        warn!(
            "GC keeps the leases of {} unreadable records of {network}; to clear them: \
             ipam-delegated attachments {network}",
            aside.len()
        );
    }
    for SetAside { attachment, .. } in &aside {
        keep.insert(attachment.container.as_str(), attachment.ifname.as_str());
    }
    Ok(())
}

/// Reports the records that are left: a warning after progress, else an error.
fn report_left(round: &ReleaseRound, errors: &mut Vec<Error>) {
    let Some(left) = round.left() else { return };
    let left =
        left.advise("if records remain after the next GC, check the stores, or raise ipam.timeout");
    if round.is_stuck() {
        errors.insert(0, left);
    } else if errors.is_empty() {
        warn!("{}", left.in_full());
    } else {
        errors.push(left);
    }
}

/// Whether GC releases the record of an attachment.
pub(crate) enum Staleness {
    /// Nothing protects it.
    Stale(Box<Opened>),
    /// It stays, for this reason.
    Keep(&'static str),
    /// The record was removed meanwhile.
    Gone,
}

/// Opens and locks the stale record of an attachment that the runtime did not list.
/// `began` is when the releasing call began, in milliseconds since 1970.
pub(crate) fn open_if_stale(
    session: &Session<'_>,
    network: &NetworkName,
    attachment: &Attachment,
    began: u64,
) -> Result<Staleness> {
    let place = RecordPlace::of(&session.state, network, attachment);
    let opened = match RecordFile::open_existing(&place, Duration::ZERO) {
        Ok(Presence::Held(opened)) => opened,
        Ok(Presence::Absent) => return Ok(Staleness::Gone),
        Ok(Presence::Unreadable(error)) => {
            warn!("{}", error.in_full());
            return Ok(Staleness::Keep(UNREADABLE));
        }
        Err(error) if error.code() == ErrorCode::TRY_AGAIN => return Ok(Staleness::Keep(BUSY)),
        Err(error) => return Err(error),
    };
    if opened.record.state() == State::Empty {
        opened.file.remove_if_empty();
        return Ok(Staleness::Gone);
    }
    Ok(match protection(&opened.record, &session.request.settings, began) {
        Some(why) => Staleness::Keep(why),
        None => Staleness::Stale(Box::new(opened)),
    })
}

/// Why a record that cannot be read is kept.
const UNREADABLE: &str = "its record cannot be read";

/// Why a record is kept that another call has locked.
pub(crate) const BUSY: &str = "a call works on it";

/// Why a record is kept although its container is gone; `None` if nothing protects it.
///
/// An attachment added since the call began is young, however long the call takes.
pub(crate) fn protection(record: &Record, settings: &Settings, began: u64) -> Option<&'static str> {
    if let Some(released) = record.released() {
        return (!released.is_due(now())).then_some("its DEL will be repeated later");
    }
    // An ADD that the runtime made after it wrote its list is not in the list.
    let added = record.last_attempt().unwrap_or(0);
    let is_old = match (time_of(added), time_of(began)) {
        (Some(added), Some(began)) => is_old(added, settings.gc_grace, began),
        _ => true,
    };
    let is_young = !is_old || (began..=now()).contains(&added);
    is_young.then_some("it is younger than gcGrace")
}

fn time_of(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

/// The request with a longer list, under both keys.
fn with_keep(request: &Request, keep: &ValidAttachments) -> Request {
    let list = keep.to_json();
    let network = ValidAttachments::KEYS
        .into_iter()
        .fold(request.network.clone(), |network, key| network.with(key, list.clone()));
    Request { network, keep: keep.clone(), ..request.clone() }
}
