//! Questions to every allocator of a network, and this node's records of the leases they answer.

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
            leases.push(AllocatorLease { row, address, node_records });
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
}

impl AllocatorLease {
    /// Looks up the record of the owner; `None` for a lease of another node, or without an owner.
    pub(super) fn record_state(&self) -> Option<RecordState> {
        let here = self.state_here()?;
        let elsewhere = match here.state {
            "none" | "other" => self.recorded_elsewhere(),
            _ => None,
        };
        Some(elsewhere.map_or(here, |(_, says)| says))
    }

    /// The same, of this network alone.
    fn state_here(&self) -> Option<RecordState> {
        let Ok(attachments) = self.attachments()? else {
            return Some(RecordState { state: "unreadable", record: None });
        };
        let mut best = RecordState { state: "none", record: None };
        for attachment in attachments {
            if best.state != "held" {
                best = self.node_records.look(self.address, &attachment).unwrap_or(best);
            }
        }
        Some(best)
    }

    /// Finds another network of this node whose record of the owner has the address: networks may
    /// share a pool.
    pub(super) fn recorded_elsewhere(&self) -> Option<(NetworkName, RecordState)> {
        let NodeRecords { state, network: own, .. } = &self.node_records;
        networks(state).ok()?.into_iter().filter(|network| network != own).find_map(|network| {
            let node_records =
                NodeRecords { network: network.clone(), ..self.node_records.clone() };
            let there = Self { row: self.row.clone(), address: self.address, node_records };
            let says = there.state_here()?;
            // A record that cannot be read, or of an ADD that runs, may have it.
            let may_have =
                !matches!(says.state, "none" | "other" | "empty" | "failed" | "forgotten");
            may_have.then_some((network, RecordState { state: "elsewhere", ..says }))
        })
    }

    /// Lists the places of the records that may name it; empty for a lease of another node or
    /// without an owner.
    ///
    /// # Errors
    /// The records could not be listed.
    pub(super) fn records(&self) -> Result<Vec<RecordPlace>> {
        let attachments = self.attachments().transpose()?.unwrap_or_default();
        let node_records = &self.node_records;
        Ok(attachments
            .iter()
            .map(|its| RecordPlace::of(&node_records.state, &node_records.network, its))
            .collect())
    }

    /// Lists the attachments of this node that may own it; `None` for a lease of another node, or
    /// without an owner.
    fn attachments(&self) -> Option<Result<Vec<Attachment>>> {
        let node_records = &self.node_records;
        let member = |key: &str| self.row.get(key).as_str();
        if member("node")
            .is_some_and(|node| !node_records.node.is_empty() && node != node_records.node)
        {
            return None;
        }
        let container = ContainerId::parse(member("containerID")?).ok()?;
        let ifnames = match member("ifname") {
            Some(name) => Ok(vec![IfName::parse(name).ok()?]),
            None => node_records.ifnames(&container),
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
}

impl NodeRecords {
    fn look(&self, address: IpAddr, attachment: &Attachment) -> Option<RecordState> {
        match RecordFile::look(&RecordPlace::of(&self.state, &self.network, attachment)) {
            Presence::Absent => None,
            Presence::Held((record, true)) => {
                Some(RecordState { state: "busy", record: Some(record) })
            }
            Presence::Held((record, false)) => {
                let address = address.to_string();
                let is_other = record.held().is_some_and(|(held, _)| {
                    !held.ips().iter().any(|ip| ip.split('/').next() == Some(&*address))
                });
                let state = if is_other { "other" } else { record.state().as_str() };
                Some(RecordState { state, record: Some(record) })
            }
            Presence::Unreadable(_) => Some(RecordState { state: "unreadable", record: None }),
        }
    }

    /// The interfaces of a container that have a record.
    fn ifnames(&self, container: &ContainerId) -> Result<Vec<IfName>> {
        let all = attachments(&self.state.network(&self.network))?.into_iter();
        Ok(all.filter(|a| a.container == *container).map(|a| a.ifname).collect())
    }
}
