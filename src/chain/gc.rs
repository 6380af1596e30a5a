//! GC: releases what no valid attachment holds.

use std::time::{Duration, SystemTime};

use log::{debug, warn};

use super::record::{Opened, Record, RecordFile, SetAside, State, attachments, now, set_aside};
use super::run_all::{Failures, walk};
use super::session::{Owner, Session};
use super::stale::{Round, Turn, sort_oldest_first};
use ipam_kit::cni::{Attachment, IpamResult, Keep, NetworkName, Verb};
use ipam_kit::delegate::{Deadline, Request};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{Settings, is_old};
use ipam_kit::presence::Presence;

/// Releases the stale records of this network, then calls every delegate with the list of what to
/// keep: the runtime's, and what is too young or too busy to be judged.
///
/// What is left or failed is in no list: no fence protects it, so the delegates' own GC may release
/// it, and the DEL of the next time finds nothing.
pub(crate) fn gc(session: &Session<'_>, keep: &Keep) -> Result<()> {
    let mut keep = keep.clone();
    let mut errors = Vec::new();
    let network = session.request.network.name();
    let folder = session.state.network(network);
    let (began, deadline) = (now(), Deadline::after(session.timeout()));
    // A quarter is for the delegates' own GC.
    let mut round = Round::of(session.timeout() * 3 / 4);
    let mut unlisted = attachments(&folder)?;
    unlisted.retain(|found| !keep.contains(found.container.as_str(), found.ifname.as_str()));
    sort_oldest_first(&mut unlisted, |attachment| session.state.record(network, attachment));
    for attachment in &unlisted {
        match judge(session, network, attachment, began) {
            Ok(Verdict::Stale(opened)) => {
                let owner = Owner { network: &session.request.network, attachment };
                match round.release(session, &owner, *opened) {
                    Ok(Turn::Released) => debug!("{attachment} is in no list and stale"),
                    Ok(Turn::Left(why)) => debug!("{attachment} is left: {why}"),
                    Err(error) => errors.push(error),
                }
                continue;
            }
            Ok(Verdict::Gone) => continue,
            Ok(Verdict::Keep(why)) => debug!("{attachment} is kept: {why}"),
            Err(error) => errors.push(error),
        }
        keep.insert(attachment.container.as_str(), attachment.ifname.as_str());
    }
    keep_later_ones(session, &mut keep, began)?;
    keep_set_aside(session, &mut keep)?;
    let request = with_keep(session.request, &keep);
    let widened = session.open_with(&request);
    let walked = walk(&widened, Verb::Gc, &IpamResult::default(), deadline);
    errors.extend(walked.and_then(Failures::all).err());
    tell_left(&round, &mut errors);
    Error::join(errors)
}

/// Keeps what was added since GC began, or is busy by now: no list can name it.
fn keep_later_ones(session: &Session<'_>, keep: &mut Keep, began: u64) -> Result<()> {
    let network = session.request.network.name();
    for attachment in attachments(&session.state.network(network))? {
        let (container, ifname) = (attachment.container.as_str(), attachment.ifname.as_str());
        if keep.contains(container, ifname) {
            continue;
        }
        if !matches!(
            judge(session, network, &attachment, began),
            Ok(Verdict::Stale(_) | Verdict::Gone)
        ) {
            keep.insert(container, ifname);
        }
    }
    Ok(())
}

/// Keeps what was set aside as unreadable: nothing is known of what it holds. It is for an operator
/// to end.
fn keep_set_aside(session: &Session<'_>, keep: &mut Keep) -> Result<()> {
    let network = session.request.network.name();
    let aside = set_aside(&session.state.network(network))?;
    if !aside.is_empty() {
        warn!(
            "GC keeps what {} unreadable records of {network} hold; ipam-delegated attachments \
             {network} shows how to clear them",
            aside.len()
        );
    }
    for SetAside { attachment, .. } in &aside {
        keep.insert(attachment.container.as_str(), attachment.ifname.as_str());
    }
    Ok(())
}

/// Tells of the records that are left: a warning after progress, else an error.
fn tell_left(round: &Round, errors: &mut Vec<Error>) {
    let Some(left) = round.left() else { return };
    let left = left.advise(
        "the runtime calls GC again; if records stay, look at the stores, or raise ipam.timeout",
    );
    if round.is_stuck() {
        errors.insert(0, left);
    } else if errors.is_empty() {
        warn!("{}", left.in_full());
    } else {
        errors.push(left);
    }
}

/// What is to become of an attachment's record.
pub(crate) enum Verdict {
    /// No fence protects it.
    Stale(Box<Opened>),
    Keep(&'static str),
    Gone,
}

/// Judges an attachment that the runtime did not list, under its lock; `began` is when the call
/// that releases began, in milliseconds since 1970.
pub(crate) fn judge(
    session: &Session<'_>,
    network: &NetworkName,
    attachment: &Attachment,
    began: u64,
) -> Result<Verdict> {
    let path = session.state.record(network, attachment);
    let opened = match RecordFile::open_existing(&path, Duration::ZERO) {
        Ok(Presence::Held(opened)) => opened,
        Ok(Presence::Absent) => return Ok(Verdict::Gone),
        Ok(Presence::Unreadable(error)) => {
            warn!("{}", error.in_full());
            return Ok(Verdict::Keep(UNREADABLE));
        }
        Err(error) if error.code() == ErrorCode::TRY_AGAIN => return Ok(Verdict::Keep(BUSY)),
        Err(error) => return Err(error),
    };
    if opened.record.state() == State::Empty {
        opened.file.remove_if_empty();
        return Ok(Verdict::Gone);
    }
    Ok(match fence(&opened.record, &session.request.settings, began) {
        Some(why) => Verdict::Keep(why),
        None => Verdict::Stale(Box::new(opened)),
    })
}

/// Why a record that cannot be read is kept.
const UNREADABLE: &str = "its record cannot be read";

/// Why a record whose lock is held by somebody is kept.
pub(crate) const BUSY: &str = "a call works on it";

/// Why a record is left alone whatever speaks against its attachment.
///
/// What was added since the call began is young, however long the call takes.
pub(crate) fn fence(record: &Record, settings: &Settings, began: u64) -> Option<&'static str> {
    if let Some(released) = record.released() {
        return (!released.is_due(now())).then_some("its DEL is to be repeated later");
    }
    // An ADD that the runtime made after it wrote its list is not in the list.
    let added = record.last_attempt().unwrap_or(0);
    let at = |time| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(time));
    let is_old = at(added)
        .zip(at(began))
        .is_none_or(|(added, began)| is_old(added, settings.gc_grace, began))
        && !(began..=now()).contains(&added);
    (!is_old).then_some("it is younger than gcGrace")
}

/// The request with a longer list, under both keys.
fn with_keep(request: &Request, keep: &Keep) -> Request {
    let list = keep.to_json();
    let network = Keep::KEYS
        .into_iter()
        .fold(request.network.clone(), |network, key| network.with(key, list.clone()));
    Request { network, keep: keep.clone(), ..request.clone() }
}
