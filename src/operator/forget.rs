//! `forget`: drops a record that no DEL can end: its store is permanently lost, or it is
//! unreadable.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde_json::Map;

use super::call::Operator;
use super::printed::Printed;
use crate::chain::gc::BUSY;
use crate::chain::record::{
    Event, Opened, Record, RecordFile, RecordPlace, RepeatList, SetAside, attachments, set_aside,
};
use ipam_cli::push_line;
use ipam_kit::cni::{Attachment, ContainerId, IfName};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::presence::Presence;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let ifname = operator.arguments.operand(2).map(IfName::parse).transpose()?;
    let state = operator.state()?;
    let network = operator.name_of_network(operator.arguments.operand(0).unwrap_or_default())?;
    let container = ContainerId::parse(operator.arguments.operand(1).unwrap_or_default())?;
    let folder = state.network(&network);
    let is_meant = |found: &Attachment| {
        found.container == container && ifname.as_ref().is_none_or(|name| found.ifname == *name)
    };
    let yes = operator.does_it();
    let mut text = String::new();
    for attachment in attachments(&folder)?.iter().filter(|found| is_meant(found)) {
        let place = RecordPlace::of(&state, &network, attachment);
        let left = if yes { drop_record(&place)? } else { preview(&place) };
        let Some(left) = left else { continue };
        if yes {
            RepeatList::of(&state).remove(&network, attachment);
        }
        push_forgotten(&mut text, yes, &format!("{attachment} on {network}; {left}"));
    }
    for SetAside { attachment, path } in set_aside(&folder)? {
        if !is_meant(&attachment) {
            continue;
        }
        if yes {
            remove(&RecordPlace::of(&state, &network, &attachment), &path)?;
        }
        let path = path.display();
        let about = format!("{attachment} on {network}, unreadable in {path}; {UNKNOWN}");
        push_forgotten(&mut text, yes, &about);
    }
    if let Some(ifname) = ifname.clone().filter(|_| text.is_empty()) {
        let netns = String::new();
        let attachment = Attachment { container: container.clone(), ifname, netns };
        // A record of another interface says that this one was not added.
        let place = RecordPlace::of(&state, &network, &attachment);
        let is_its = |other: &Attachment| other.container == container;
        let aside = set_aside(&folder)?;
        if !aside.iter().any(|aside| is_its(&aside.attachment))
            && !attachments(&folder)?.iter().any(is_its)
        {
            if yes {
                record_forgotten(&place)?;
            }
            push_forgotten(&mut text, yes, &format!("{attachment} on {network}; {UNRECORDED}"));
        }
    }
    if text.is_empty() {
        let meant = match ifname {
            Some(ifname) => format!("{container}/{ifname}"),
            None => container.to_string(),
        };
        return Err(Error::new(
            ErrorCode::UNKNOWN_CONTAINER,
            format!("no record of {meant} on {network} in {}", folder.display()),
        )
        .advise("ipam-delegated attachments lists the records; write the whole container id"));
    }
    Ok(Printed::text(text))
}

/// The rest of an unreadable or empty record.
const UNKNOWN: &str = "its addresses are unknown, and an allocator may still hold them";

/// The remark on an attachment without a record, such as a container from before a move.
const UNRECORDED: &str = "it has no record, and its next DEL releases nothing";

/// Makes the next DEL of an attachment without a record release nothing.
fn record_forgotten(place: &RecordPlace) -> Result<()> {
    let Opened { mut file, record } = RecordFile::open(place)?;
    // An ADD may have come between.
    if record.is_empty() { file.append(&Event::Forgotten(Map::new())) } else { Ok(()) }
}

fn push_forgotten(text: &mut String, yes: bool, about: &str) {
    match yes {
        true => push_line(text, &format!("forgot {about}")),
        false => push_line(text, &format!("would forget {about}; add --yes to do it")),
    }
}

/// Describes the leases that dropping a record would leave; `None` without a record.
fn preview(place: &RecordPlace) -> Option<String> {
    match RecordFile::look(place) {
        Presence::Absent => None,
        Presence::Held((_, true)) => Some(BUSY.to_owned()),
        Presence::Held((record, false)) => Some(describe_left(&record)),
        Presence::Unreadable(_) => Some(UNKNOWN.to_owned()),
    }
}

/// Drops a record, and describes the leases that it leaves.
fn drop_record(place: &RecordPlace) -> Result<Option<String>> {
    let path = place.path();
    let opened = match RecordFile::open_existing(place, Duration::ZERO)? {
        Presence::Absent => return Ok(None),
        Presence::Held(opened) => opened,
        Presence::Unreadable(_) => return remove(place, path).map(|()| Some(UNKNOWN.to_owned())),
    };
    let left = describe_left(&opened.record);
    let removed = opened.file.remove();
    removed.map_err(|error| Error::io(format!("cannot remove {}", path.display()), error))?;
    Ok(Some(left))
}

/// Removes a file that cannot be read, and the container's folder with the last one.
fn remove(place: &RecordPlace, path: &Path) -> Result<()> {
    match place.remove(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

/// Describes the leases that stay in the stores without the record.
fn describe_left(record: &Record) -> String {
    // A loss of power may have taken what was written.
    if record.is_empty() {
        return UNKNOWN.to_owned();
    }
    let mut delegates: Vec<&str> = Vec::new();
    for run in record.runs() {
        // After `reassert` one may hold it in several stores.
        if !delegates.contains(&run.delegate.as_str()) {
            delegates.push(&run.delegate);
        }
    }
    if delegates.is_empty() {
        return "no delegate has run for it".to_owned();
    }
    let what = match record.held() {
        Some((held, _)) => held.ips().join(", "),
        None => "an address of it".to_owned(),
    };
    format!("{} may still hold {what}", delegates.join(", "))
}
