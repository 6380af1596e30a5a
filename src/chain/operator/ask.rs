//! Asking every allocator of a network, and this node's records about what they answer.

use serde::de::DeserializeOwned;

use super::super::record::{Record, RecordFile, State, attachments};
use super::super::session::Session;
use super::dry_run::{Outcome, dry_run};
use super::{Operator, Printed};
use crate::cni::{Attachment, ContainerId, IfName, NetworkName, Verb, parse_value};
use crate::error::{Error, ErrorCode, Result};
use crate::host::StateDir;
use crate::operate::LeaseRow;

/// A row, and who gave it.
#[derive(Debug)]
pub(super) struct Told<T> {
    pub allocator: String,
    pub row: T,
    /// The records of the network's node.
    pub here: Here,
}

/// This node's records of one network.
#[derive(Clone, Debug)]
pub(super) struct Here {
    state: StateDir,
    network: NetworkName,
    /// Empty when it could not be told.
    node: String,
}

/// Asks each allocator of the network that was typed; warnings and failures go to `printed`.
///
/// # Errors
/// Nobody could be asked.
pub(super) fn ask<T: DeserializeOwned>(
    operator: &Operator,
    arguments: &[&str],
    printed: &mut Printed,
) -> Result<Vec<Told<T>>> {
    let found = operator.network()?;
    let (mut told, mut asked) = (Vec::new(), 0);
    for ours in operator.ours(&found)? {
        let request = operator.request(ours.for_status(), &operator.cni_path())?;
        let session = Session::open(&ours.chain, &request)?;
        let here = Here {
            state: session.state.clone(),
            network: request.network.name().clone(),
            node: session.node.clone(),
        };
        for stage in dry_run(&session, &ours.plan(&session)?, Verb::Status)? {
            if let Outcome::Failed(error) = &stage.outcome {
                printed.warnings.push(error.in_full());
            }
            let Some(input) = stage.input.filter(|_| !stage.step.is_selector()) else { continue };
            let name = &stage.step.name;
            if !stage.step.is_allocator() {
                printed
                    .warnings
                    .push(format!("{name} is a standard plugin, which cannot be asked"));
                continue;
            }
            asked += 1;
            let answer = session.ask(&stage.step, arguments, &input.to_string());
            let rows = answer.and_then(|answer| {
                parse_value::<Vec<T>>(&answer, "its answer")
                    .map_err(|error| error.with_code(ErrorCode::DELEGATE).within(name))
            });
            match rows {
                Ok(rows) => told.extend(rows.into_iter().map(|row| Told {
                    allocator: name.clone(),
                    row,
                    here: here.clone(),
                })),
                Err(error) => {
                    printed.warnings.push(error.in_full());
                    printed.failed = true;
                }
            }
        }
    }
    if asked == 0 {
        let message = format!("{}: nobody in its chain can be asked", found.name);
        let error = Error::new(ErrorCode::DELEGATE, message);
        let error = printed.warnings.drain(..).fold(error, Error::advise);
        return Err(error.advise("an allocator ipam-da-… can"));
    }
    Ok(told)
}

/// [`ask`] for leases: what two plugins of a network name both stands once.
pub(super) fn ask_leases(
    operator: &Operator,
    arguments: &[&str],
    printed: &mut Printed,
) -> Result<Vec<Told<LeaseRow>>> {
    let mut told: Vec<Told<LeaseRow>> = Vec::new();
    for new in ask::<LeaseRow>(operator, arguments, printed)? {
        let same = |known: &Told<LeaseRow>| {
            let owner =
                |row: &LeaseRow| (row.container.clone(), row.ifname.clone(), row.node.clone());
            known.allocator == new.allocator
                && known.row.address == new.row.address
                && owner(&known.row) == owner(&new.row)
        };
        if !told.iter().any(same) {
            told.push(new);
        }
    }
    told.sort_by_key(|told| told.row.address);
    Ok(told)
}

/// What this node's record of a lease's owner says.
#[derive(Debug)]
pub(super) struct Says {
    /// The record's state; `other` when it holds other addresses, `none` when there is none.
    pub state: &'static str,
    pub record: Option<Record>,
}

impl Here {
    /// What the record says of a lease's owner; nothing for another node's, or one without owner.
    pub fn says(&self, row: &LeaseRow) -> Option<Says> {
        let elsewhere = |node: &String| !self.node.is_empty() && *node != self.node;
        if row.node.as_ref().is_some_and(elsewhere) {
            return None;
        }
        let container = ContainerId::parse(row.container.as_deref()?).ok()?;
        let ifnames = match &row.ifname {
            Some(name) => vec![IfName::parse(name).ok()?],
            None => self.ifnames(&container),
        };
        let of = |ifname: IfName| {
            let container = container.clone();
            self.look(row, &Attachment { container, ifname, netns: String::new() })
        };
        let said: Vec<Says> = ifnames.into_iter().filter_map(of).collect();
        let (mut held, others): (Vec<_>, Vec<_>) =
            said.into_iter().partition(|says| says.state == State::Held.as_str());
        held.extend(others);
        Some(held.into_iter().next().unwrap_or(Says { state: "none", record: None }))
    }

    fn look(&self, row: &LeaseRow, attachment: &Attachment) -> Option<Says> {
        match RecordFile::look(&self.state.record(&self.network, attachment)) {
            Ok(None) => None,
            Ok(Some((record, true))) => Some(Says { state: "busy", record: Some(record) }),
            Ok(Some((record, false))) => {
                let gave = |ip: &String| ip.split('/').next() == Some(&row.address.to_string());
                let other = record.held().is_some_and(|(_, held)| !held.ips().iter().any(gave));
                let state = if other { "other" } else { record.state().as_str() };
                Some(Says { state, record: Some(record) })
            }
            Err(_) => Some(Says { state: "unreadable", record: None }),
        }
    }

    /// The interfaces of a container that have a record.
    fn ifnames(&self, container: &ContainerId) -> Vec<IfName> {
        let all = attachments(&self.state.network(&self.network)).unwrap_or_default();
        all.into_iter().filter(|a| a.container == *container).map(|a| a.ifname).collect()
    }
}
