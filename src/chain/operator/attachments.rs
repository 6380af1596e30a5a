//! `attachments`: what this node knows of its attachments.

use super::super::record::{Record, RecordFile, attachments, networks, now};
use super::{Operator, Printed};
use crate::cni::{Attachment, NetworkName};
use crate::error::Result;
use crate::host::StateDir;
use crate::operate::{Column, Row, Words};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let state = operator.state()?;
    let networks = match operator.words.operands()[..] {
        [] => networks(&state)?,
        [network] => vec![NetworkName::parse(network)?],
        _ => return Err(Words::refusal("attachments takes one network, or none")),
    };
    let mut rows = Vec::new();
    for network in &networks {
        for attachment in attachments(&state.network(network))? {
            rows.extend(row(&state, network, &attachment));
        }
    }
    let mut printed = Printed::default();
    printed.set_rows(operator, COLUMNS, rows);
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
];

/// One record, as shown.
fn row(state: &StateDir, network: &NetworkName, attachment: &Attachment) -> Option<Row> {
    let (record, word) = match RecordFile::look(&state.record(network, attachment)) {
        Ok(None) => return None,
        Ok(Some((record, true))) => (record, "busy"),
        Ok(Some((record, false))) => {
            let word = record.state().as_str();
            (record, word)
        }
        Err(_) => (Record::default(), "unreadable"),
    };
    let mut row = identified(network, attachment, &record);
    let last = record.attempts.last().map(|last| &last.attempt);
    row.value("chain", last.map(|last| last.chain.clone()).unwrap_or_default().into());
    row.value("ageSeconds", last.map(|last| now().saturating_sub(last.time) / 1000).into());
    row.text("state", word);
    Some(row)
}

/// The members that every row about a record has.
pub(super) fn identified(network: &NetworkName, attachment: &Attachment, record: &Record) -> Row {
    let addresses = record.held().map(|(_, held)| held.ips()).unwrap_or_default();
    let mut row = Row::default();
    row.text("network", network.as_str());
    row.text("containerID", attachment.container.as_str());
    row.text("ifname", attachment.ifname.as_str());
    row.value("addresses", addresses.into());
    row
}
