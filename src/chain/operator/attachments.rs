//! `attachments`: what this node knows of its attachments.

use serde_json::{Value, json};

use super::super::record::{Record, RecordFile, attachments, networks, now};
use super::{Operator, Printed};
use crate::cni::{Attachment, NetworkName};
use crate::error::Result;
use crate::host::StateDir;
use crate::operate::{Column, Words, age, table};

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
            rows.extend(Row::read(&state, network, attachment));
        }
    }
    if operator.words.has("json") {
        return Ok(Printed::json(rows.iter().map(Row::to_json).collect()));
    }
    let heads = ["NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "CHAIN", "AGE", "STATE"];
    let rows: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    Ok(Printed::text(table(&heads.map(Column::Text), &rows)))
}

/// One record, as shown.
struct Row {
    network: NetworkName,
    attachment: Attachment,
    /// `None` while a call works on it, or when it cannot be read.
    record: Option<Record>,
    state: &'static str,
}

impl Row {
    fn read(state: &StateDir, network: &NetworkName, attachment: Attachment) -> Option<Self> {
        let path = state.record(network, &attachment);
        let (record, state) = match RecordFile::look(&path) {
            Ok(None) => return None,
            Ok(Some((record, true))) => (Some(record), "busy"),
            Ok(Some((record, false))) => {
                let state = record.state().as_str();
                (Some(record), state)
            }
            Err(_) => (None, "unreadable"),
        };
        Some(Self { network: network.clone(), attachment, record, state })
    }

    fn addresses(&self) -> Vec<String> {
        let held = self.record.as_ref().and_then(Record::held);
        held.map(|(_, held)| held.ips()).unwrap_or_default()
    }

    fn chain(&self) -> Vec<String> {
        self.record
            .as_ref()
            .and_then(|r| r.attempts.last())
            .map(|a| a.attempt.chain.clone())
            .unwrap_or_default()
    }

    fn age(&self) -> Option<u64> {
        Some(now().saturating_sub(self.record.as_ref()?.last_attempt()?) / 1000)
    }

    fn to_json(&self) -> Value {
        json!({
            "network": self.network.as_str(),
            "containerID": self.attachment.container.as_str(),
            "ifname": self.attachment.ifname.as_str(),
            "addresses": self.addresses(),
            "chain": self.chain(),
            "ageSeconds": self.age(),
            "state": self.state,
        })
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.network.to_string(),
            self.attachment.container.to_string(),
            self.attachment.ifname.to_string(),
            self.addresses().join(","),
            self.chain().join(","),
            self.age().map(age).unwrap_or_default(),
            self.state.to_owned(),
        ]
    }
}
