//! `attachments`: what this node knows of its attachments.

use super::call::Operator;
use super::other_identities::of_other_identities;
use super::printed::Printed;
use crate::chain::record::{Record, RecordFile, SetAside, attachments, networks, now, set_aside};
use ipam_cli::{Column, Row};
use ipam_kit::cni::{Attachment, NetworkName};
use ipam_kit::error::{Error, Result};
use ipam_kit::host::StateDir;
use ipam_kit::presence::Presence;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let state = operator.state()?;
    let networks = match operator.arguments.operand(0) {
        None => networks(&state)?,
        Some(network) => vec![NetworkName::parse(network)?],
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
    let noted = rows.iter().any(|row| !row.text("note").is_empty());
    let columns = &COLUMNS[..COLUMNS.len() - usize::from(!noted)];
    let mut printed = Printed::default();
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
    // Shown where a record has one.
    Column::text("NOTE", "note"),
];

/// One record, as shown.
fn row(state: &StateDir, network: &NetworkName, attachment: &Attachment) -> Option<Row> {
    let (record, word) = match RecordFile::look(&state.record(network, attachment)) {
        Presence::Absent => return None,
        Presence::Held((record, true)) => (record, "busy"),
        Presence::Held((record, false)) => {
            let word = record.state().as_str();
            (record, word)
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
    Some(row)
}

/// A record that cannot be read.
fn unreadable(network: &NetworkName, attachment: &Attachment, why: &str) -> Row {
    let mut row = row_of_record(network, attachment, &Record::default());
    row.set_text("state", "unreadable");
    row.set_text("note", why);
    row
}

/// Why a record cannot be read, and what to do about it.
pub(crate) fn why_unreadable(
    network: &NetworkName,
    attachment: &Attachment,
    error: &Error,
) -> String {
    // One of a newer program is for an upgrade to read.
    if error.has_advice() {
        return error.in_full();
    }
    ended_by(network, attachment, &error.in_full())
}

/// Why a record is not read, and what ends it.
fn ended_by(network: &NetworkName, attachment: &Attachment, why: &str) -> String {
    let Attachment { container, ifname, .. } = attachment;
    format!(
        "{why}; the runtime's DEL clears it, or, once its container is gone: ipam-delegated forget {network} {container} {ifname} --yes"
    )
}

/// Why a record that was set aside is not read, and what ends it.
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
