//! Questions to every allocator of a network, and this node's records of the leases they answer.

use std::cell::OnceCell;
use std::net::IpAddr;

use serde_json::{Map, Value};

use super::call::Operator;
use super::dry_run::{SelectorOutcome, dry_run};
use super::printed::Printed;
use crate::chain::query;
use crate::chain::record::{Record, RecordFile, RecordPlace, attachments, networks};
use crate::chain::session::Session;
use ipam_cli::Row;
use ipam_kit::cni::address::parse_address;
use ipam_kit::cni::{Attachment, ContainerId, IfName, NetworkName, Verb};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::StateDir;
use ipam_kit::presence::Presence;

/// A row as an allocator gave it, with the member `allocator`.
#[derive(Debug)]
pub(crate) struct AllocatorRow {
    pub row: Row,
    /// The row's path in the answer, for errors.
    pub path: String,
    pub node_records: NodeRecords,
}

/// A row that is about an address.
#[derive(Debug)]
pub(crate) struct AllocatorLease {
    pub row: Row,
    pub address: IpAddr,
    node_records: NodeRecords,
    record_state: OnceCell<Option<RecordState>>,
}

/// This node's records of one network.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecords {
    state: StateDir,
    network: NetworkName,
    /// This node; empty if it is unknown.
    node: String,
}

/// Asks each allocator of the typed network; warnings and failures go to `printed`.
///
/// # Errors
/// Error 110: no allocator of the network can be asked.
pub(crate) fn ask(
    operator: &Operator,
    arguments: &[&str],
    printed: &mut Printed,
) -> Result<Vec<AllocatorRow>> {
    let found = operator.network()?;
    let mut all = Vec::new();
    let mut asked = 0;
    for plugin in operator.our_plugins(&found)? {
        let request = operator.request(plugin.for_status(), &operator.cni_path())?;
        let session = Session::open(&plugin.chain, &request)?;
        let node_records = NodeRecords {
            state: session.state.clone(),
            network: request.network.name().clone(),
            node: session.node.clone(),
        };
        for stage in dry_run(&session, &plugin.plan(&session)?, Verb::Status)? {
            if let SelectorOutcome::Failed(error) = &stage.outcome {
                printed.warnings.push(error.in_full());
            }
            let Some(input) = stage.input.filter(|_| !stage.step.is_selector()) else { continue };
            let name = &stage.step.name;
            if !stage.step.is_allocator() {
                printed.warnings.push(format!("{name} is a standard plugin and cannot be asked"));
                continue;
            }
            asked += 1;
            let answer = query::ask(&session, &stage.step, arguments, &input.to_string());
            let Some(rows) = printed.keep(answer.and_then(|answer| rows(name, answer))) else {
                continue;
            };
            for (i, row) in rows.into_iter().enumerate() {
                let path = format!("{name}: its answer[{i}]");
                let Value::Object(row) = row else {
                    let message = format!("{path}: expected an object");
                    printed.fail(&Error::new(ErrorCode::DELEGATE, message));
                    continue;
                };
                let mut row = Row::from(row);
                row.set_text("allocator", name);
                all.push(AllocatorRow { row, path, node_records: node_records.clone() });
            }
        }
    }
    if asked == 0 {
        let message = format!("{}: no allocator of its chain can be asked", found.name);
        let error = Error::new(ErrorCode::DELEGATE, message);
        let error = printed.warnings.drain(..).fold(error, Error::advise);
        return Err(error.advise("only allocators named ipam-da-… can"));
    }
    Ok(all)
}

/// Asks each allocator for leases; a lease that two plugins of a network name is listed once.
pub(crate) fn ask_leases(
    operator: &Operator,
    arguments: &[&str],
    printed: &mut Printed,
) -> Result<Vec<AllocatorLease>> {
    let (mut leases, mut known) = (Vec::new(), Map::new());
    for AllocatorRow { row, path, node_records } in ask(operator, arguments, printed)? {
        let Some(address) = parse_address(row.text("address")).ok() else {
            let message = format!("{path}.address: expected an address");
            printed.fail(&Error::new(ErrorCode::DELEGATE, message));
            continue;
        };
        let mut identity = String::new();
        for key in ["allocator", "address", "containerID", "ifname", "node"] {
            identity.push_str(&row.get(key).to_string());
        }
        if known.insert(identity, Value::Null).is_none() {
            let record_state = OnceCell::new();
            leases.push(AllocatorLease { row, address, node_records, record_state });
        }
    }
    Ok(leases)
}

/// Reads the rows of an allocator's answer.
pub(crate) fn rows(name: &str, answer: Value) -> Result<Vec<Value>> {
    match answer {
        Value::Array(rows) => Ok(rows),
        _ => Err(Error::new(ErrorCode::DELEGATE, format!("{name}: its answer: expected an array"))),
    }
}

/// The state of a lease owner's record on this node.
#[derive(Debug)]
pub(crate) struct RecordState {
    /// The record's state; `other` if it holds other addresses, `none` if it is missing, `elsewhere` if
    /// that of another network has the address.
    pub state: &'static str,
    pub record: Option<Record>,
    /// The other network, if the state is `elsewhere`: networks may share a pool.
    pub elsewhere: Option<NetworkName>,
}

impl RecordState {
    fn without_record(state: &'static str) -> Self {
        Self { state, record: None, elsewhere: None }
    }
}

impl AllocatorLease {
    /// Looks up the record of the owner, once; `None` for a lease of another node, or without an owner.
    pub(super) fn record_state(&self) -> Option<&RecordState> {
        self.record_state.get_or_init(|| self.look_up_record()).as_ref()
    }

    fn look_up_record(&self) -> Option<RecordState> {
        let own = &self.node_records;
        let here = own.state_of(self)?;
        if !matches!(here.state, "none" | "other") {
            return Some(here);
        }
        let Ok(networks) = networks(&own.state) else {
            return Some(RecordState::without_record("unreadable"));
        };
        let elsewhere =
            networks.into_iter().filter(|network| *network != own.network).find_map(|network| {
                let there = NodeRecords { network: network.clone(), ..own.clone() };
                let says = there.state_of(self)?;
                // A record that cannot be read, or of an ADD that runs, may have it.
                let may_have =
                    !matches!(says.state, "none" | "other" | "empty" | "failed" | "forgotten");
                let elsewhere = Some(network);
                may_have.then_some(RecordState { state: "elsewhere", elsewhere, ..says })
            });
        Some(elsewhere.unwrap_or(here))
    }

    /// Lists the places of the records that may name it; empty for a lease of another node or
    /// without an owner.
    ///
    /// # Errors
    /// The records could not be listed.
    pub(super) fn records(&self) -> Result<Vec<RecordPlace>> {
        let node_records = &self.node_records;
        let attachments = node_records.attachments_of(&self.row).transpose()?.unwrap_or_default();
        Ok(attachments
            .iter()
            .map(|its| RecordPlace::of(&node_records.state, &node_records.network, its))
            .collect())
    }
}

impl NodeRecords {
    /// Looks up the record of a lease's owner on this network alone.
    fn state_of(&self, lease: &AllocatorLease) -> Option<RecordState> {
        let Ok(attachments) = self.attachments_of(&lease.row)? else {
            return Some(RecordState::without_record("unreadable"));
        };
        let mut best = RecordState::without_record("none");
        for attachment in attachments {
            if best.state != "held" {
                best = self.look(lease.address, &attachment).unwrap_or(best);
            }
        }
        Some(best)
    }

    /// Lists the attachments of this node that may own a lease; `None` for a lease of another node, or
    /// without an owner.
    fn attachments_of(&self, row: &Row) -> Option<Result<Vec<Attachment>>> {
        let member = |key: &str| row.get(key).as_str();
        if member("node").is_some_and(|node| !self.node.is_empty() && node != self.node) {
            return None;
        }
        let container = ContainerId::parse(member("containerID")?).ok()?;
        let ifnames = match member("ifname") {
            Some(name) => Ok(vec![IfName::parse(name).ok()?]),
            None => self.ifnames(&container),
        };
        Some(ifnames.map(|ifnames| {
            let mut attachments = Vec::new();
            for ifname in ifnames {
                let container = container.clone();
                attachments.push(Attachment { container, ifname, netns: String::new() });
            }
            attachments
        }))
    }

    fn look(&self, address: IpAddr, attachment: &Attachment) -> Option<RecordState> {
        match RecordFile::look(&RecordPlace::of(&self.state, &self.network, attachment)) {
            Presence::Absent => None,
            Presence::Held((record, true)) => {
                Some(RecordState { record: Some(record), ..RecordState::without_record("busy") })
            }
            Presence::Held((record, false)) => {
                let address = address.to_string();
                let is_other = record.held().is_some_and(|(held, _)| {
                    !held.ips().iter().any(|ip| ip.split('/').next() == Some(&*address))
                });
                let state = if is_other { "other" } else { record.state().as_str() };
                Some(RecordState { record: Some(record), ..RecordState::without_record(state) })
            }
            Presence::Unreadable(_) => Some(RecordState::without_record("unreadable")),
        }
    }

    /// The interfaces of a container that have a record.
    fn ifnames(&self, container: &ContainerId) -> Result<Vec<IfName>> {
        let all = attachments(&self.state.network(&self.network))?.into_iter();
        Ok(all.filter(|a| a.container == *container).map(|a| a.ifname).collect())
    }
}
