//! `forget`: drops the record of an attachment whose store is gone for ever.

use std::fmt::Write as _;

use super::super::record::{Record, RecordFile, attachments};
use super::{Operator, Printed};
use crate::cni::{Attachment, ContainerId, IfName, NetworkName};
use crate::error::{Error, ErrorCode, Result};
use crate::operate::Words;

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let (network, container, ifname) = match operator.words.operands()[..] {
        [network, container] => (network, container, None),
        [network, container, ifname] => (network, container, Some(IfName::parse(ifname)?)),
        _ => return Err(Words::refusal("forget takes a network, a container and an interface")),
    };
    let state = operator.state()?;
    let network = NetworkName::parse(network)?;
    let container = ContainerId::parse(container)?;
    let folder = state.network(&network);
    let found: Vec<Attachment> = attachments(&folder)?
        .into_iter()
        .filter(|a| {
            a.container == container && ifname.as_ref().is_none_or(|name| a.ifname == *name)
        })
        .collect();
    if found.is_empty() {
        return Err(Error::new(
            ErrorCode::UNKNOWN_CONTAINER,
            format!("no record of {container} on {network} in {}", folder.display()),
        )
        .advise("ipam-delegated attachments lists what there is"));
    }
    let mut text = String::new();
    for attachment in found {
        let path = state.record(&network, &attachment);
        let Some(opened) = RecordFile::open_existing(&path)? else {
            let _ = writeln!(text, "{attachment} on {network} could not be read: set aside");
            continue;
        };
        let left = leaves(&opened.record);
        if operator.words.has("yes") {
            opened
                .file
                .remove()
                .map_err(|error| Error::io(format!("cannot remove {}", path.display()), error))?;
            let _ = writeln!(text, "forgot {attachment} on {network}; {left}");
        } else {
            let _ = writeln!(
                text,
                "would forget {attachment} on {network}; {left}; add --yes to do it"
            );
        }
    }
    Ok(Printed::text(text))
}

/// What stays behind in the stores when a record is dropped.
fn leaves(record: &Record) -> String {
    let delegates: Vec<&str> = record.runs().iter().map(|run| run.delegate.as_str()).collect();
    if delegates.is_empty() {
        return "no delegate had run for it".to_owned();
    }
    let what = match record.held() {
        Some((_, held)) => held.ips().join(", "),
        None => "an address for it".to_owned(),
    };
    format!("{} may still hold {what}", delegates.join(", "))
}
