//! `attachments`: this node's records.

use super::call::Operator;
use super::lock_holder::describe_holder;
use super::other_identities::of_other_identities;
use super::printed::Printed;
use crate::chain::record::{
    Record, RecordFile, RecordPlace, SetAside, State, attachments, networks, now, set_aside,
};
use ipam_cli::{Column, Row};
use ipam_kit::cni::{Attachment, NetworkName};
use ipam_kit::error::{Error, Result};
use ipam_kit::host::StateDir;
use ipam_kit::presence::Presence;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let state = operator.state()?;
    let named = operator.arguments.operand(0).map(|typed| operator.name_of_network(typed));
    let named = named.transpose()?;
    let networks = match &named {
        None => networks(&state)?,
        Some(network) => vec![network.clone()],
    };
    let mut rows = Vec::new();
    for network in &networks {
        let folder = state.network(network);
        for attachment in attachments(&folder)? {
            rows.extend(row(&state, network, &attachment));
        }
        let aside = set_aside(&folder)?;
        rows.extend(
            aside.iter().map(|it| unreadable(network, &it.attachment, &why_aside(network, it))),
        );
    }
    let has_why = rows.iter().any(|row| !row.get("why").is_null());
    let columns = &COLUMNS[..COLUMNS.len() - usize::from(!has_why)];
    let mut printed = Printed::default();
    if rows.is_empty() {
        printed.warnings.extend(named.as_ref().map(no_record));
    }
    printed.warnings.extend(of_other_identities(&state));
    printed.set_rows(&operator.arguments, columns, rows);
    Ok(printed)
}

const COLUMNS: &[Column] = &[
    Column::text("NETWORK", "network"),
    Column::text("CONTAINER", "containerID"),
    Column::text("IFNAME", "ifname"),
    Column::text("ADDRESSES", "addresses"),
    Column::text("CHAIN", "chain"),
    Column::text("AGE", "ageSeconds"),
    Column::text("STATE", "state"),
    // Shown if a record has one.
    Column::text("WHY", "why"),
];

/// Tells that a network has no record: its name may be misspelt.
pub(super) fn no_record(network: &NetworkName) -> String {
    format!("no attachment of the network {network} is recorded on this node")
}

/// The row of one record; `None` if it is gone.
fn row(state: &StateDir, network: &NetworkName, attachment: &Attachment) -> Option<Row> {
    let place = RecordPlace::of(state, network, attachment);
    let (record, word, why) = match RecordFile::look(&place) {
        Presence::Absent => return None,
        Presence::Held((record, true)) => (record, "busy", Some(describe_holder(place.path()))),
        Presence::Held((record, false)) => {
            let word = record.state().as_str();
            let why = why_so(&record);
            (record, word, why)
        }
        Presence::Unreadable(error) => {
            return Some(unreadable(
                network,
                attachment,
                &why_unreadable(network, attachment, &error),
            ));
        }
    };
    let mut row = row_of_record(network, attachment, &record);
    let last = record.attempts.last().map(|last| &last.header);
    row.set("chain", last.map(|last| last.chain.clone()).unwrap_or_default().into());
    row.set("ageSeconds", last.map(|last| now().saturating_sub(last.time) / 1000).into());
    row.set_text("state", word);
    row.set_text_or_null("why", why.as_deref());
    Some(row)
}

/// Says why a record is in its state, and what ends it; `None` if it is held.
fn why_so(record: &Record) -> Option<String> {
    let why = match record.state() {
        State::Held => return None,
        State::Failed => match record.last_failure() {
            Some(reason) => return Some(format!("{}: {}", reason.code.number(), reason.message)),
            None => "every ADD failed: the runtime's DEL removes it",
        },
        State::Unfinished => "an ADD was killed: the next DEL or GC releases its addresses",
        State::Unsure => "released, but a claim may still commit: the DEL is repeated",
        State::Forgotten => "the next DEL releases nothing and removes it",
        State::Empty => "as after a loss of power: the runtime's DEL releases its addresses",
    };
    Some(why.to_owned())
}

/// The row of an unreadable record.
fn unreadable(network: &NetworkName, attachment: &Attachment, why: &str) -> Row {
    let mut row = row_of_record(network, attachment, &Record::default());
    row.set_text("state", "unreadable");
    row.set_text("why", why);
    row
}

/// Says why a record is unreadable, and what ends it.
pub(crate) fn why_unreadable(
    network: &NetworkName,
    attachment: &Attachment,
    error: &Error,
) -> String {
    // The record of a newer program needs an upgrade.
    if error.has_advice() {
        return error.in_full();
    }
    ended_by(network, attachment, &error.in_full())
}

/// Adds to the reason of an unreadable record what ends it.
fn ended_by(network: &NetworkName, attachment: &Attachment, why: &str) -> String {
    let Attachment { container, ifname, .. } = attachment;
    format!(
        "{why}; the runtime's DEL removes it; if its container is gone: ipam-delegated forget {network} {container} {ifname} --yes"
    )
}

/// Says why a record was set aside, and what ends it.
pub(crate) fn why_aside(network: &NetworkName, aside: &SetAside) -> String {
    let why = format!("{} cannot be read", aside.path.display());
    ended_by(network, &aside.attachment, &why)
}

/// The members that every row about a record has.
pub(crate) fn row_of_record(
    network: &NetworkName,
    attachment: &Attachment,
    record: &Record,
) -> Row {
    let addresses = record.held().map(|(attempt, _)| attempt.ips()).unwrap_or_default();
    let mut row = Row::default();
    row.set_text("network", network.as_str());
    row.set_text("containerID", attachment.container.as_str());
    row.set_text("ifname", attachment.ifname.as_str());
    row.set("addresses", addresses.into());
    row
}
