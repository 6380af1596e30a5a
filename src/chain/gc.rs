//! GC: releases what no valid attachment holds.

use log::debug;

use super::configured::{Failures, walk};
use super::del::release_stale;
use super::record::{Opened, RecordFile, State, attachments, now};
use super::session::Session;
use crate::cni::{Attachment, IpamResult, Keep, Verb};
use crate::delegate::{Deadline, Request};
use crate::error::{Error, ErrorCode, Result};

/// Releases the stale records of this network, then calls every delegate with the list of what to
/// keep: the runtime's, and what is too young or too busy to be judged.
pub(super) fn gc(session: &Session<'_>, keep: &Keep) -> Result<()> {
    let mut keep = keep.clone();
    let mut errors = Vec::new();
    let deadline = Deadline::after(session.timeout());
    let mut unlisted = attachments(&session.state.network(session.request.network.name()))?;
    unlisted.retain(|found| !keep.contains(found.container.as_str(), found.ifname.as_str()));
    for (i, attachment) in unlisted.iter().enumerate() {
        match judge(session, attachment) {
            Ok(Verdict::Stale(opened)) => {
                debug!("{attachment} is in no list and stale");
                // One share is for the delegates' own GC.
                let time = Deadline::after(deadline.share(unlisted.len() - i + 1));
                errors.extend(release_stale(session, attachment, *opened, time).err());
                continue;
            }
            Ok(Verdict::Gone) => continue,
            Ok(Verdict::Keep(why)) => debug!("{attachment} is kept: {why}"),
            Err(error) => errors.push(error),
        }
        keep.insert(attachment.container.as_str(), attachment.ifname.as_str());
    }
    let request = with_keep(session.request, &keep);
    let widened = session.open_with(&request);
    let walked = walk(&widened, Verb::Gc, &IpamResult::default(), deadline);
    errors.extend(walked.and_then(Failures::all).err());
    Error::join(errors)
}

enum Verdict {
    Stale(Box<Opened>),
    Keep(&'static str),
    Gone,
}

/// Judges an attachment that the runtime did not list, under its lock.
fn judge(session: &Session<'_>, attachment: &Attachment) -> Result<Verdict> {
    let path = session.state.record(session.request.network.name(), attachment);
    let opened = match RecordFile::open_existing(&path) {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(Verdict::Gone),
        Err(error) if error.code() == ErrorCode::TRY_AGAIN => {
            return Ok(Verdict::Keep("a call works on it"));
        }
        Err(error) => return Err(error),
    };
    if opened.after_unreadable || opened.record.state() == State::Empty {
        opened.file.remove_if_empty();
        return Ok(Verdict::Gone);
    }
    if let Some(released) = opened.record.released() {
        return Ok(if released.is_due(now()) {
            Verdict::Stale(Box::new(opened))
        } else {
            Verdict::Keep("its DEL is to be repeated later")
        });
    }
    // An ADD that the runtime made after it wrote its list is not in the list.
    let age = now().saturating_sub(opened.record.last_attempt().unwrap_or(0));
    if u128::from(age) < session.request.settings.gc_grace.as_millis() {
        return Ok(Verdict::Keep("it is younger than gcGrace"));
    }
    Ok(Verdict::Stale(Box::new(opened)))
}

/// The request with a longer list, under both keys.
fn with_keep(request: &Request, keep: &Keep) -> Request {
    let list = keep.to_json();
    let network = Keep::KEYS
        .into_iter()
        .fold(request.network.clone(), |network, key| network.with(key, list.clone()));
    Request { network, keep: keep.clone(), ..request.clone() }
}
