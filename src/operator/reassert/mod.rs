//! `reassert`: for a store that was restored from a backup, or that another store replaced. Claims
//! again what this node's records hold, in the stores that the networks name now, then makes the
//! allocators trust them as they are.

mod claim;
mod reaches;
mod stores;

use std::path::Path;

use serde_json::Value;

use self::reaches::Reaches;
use self::stores::{AllocatorStore, Stores};
use super::call::Operator;
use super::network::{find_network, is_path, network_names};
use super::options::{CLAIM_ONLY, CONF_DIR};
use super::our_plugin::OurPlugin;
use super::printed::Printed;
use crate::chain::Chain;
use crate::chain::record::{attachments, networks};
use crate::chain::session::Session;
use ipam_cli::{Column, Row};
use ipam_kit::cni::NetworkName;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::StateDir;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let typed = operator.arguments.operand(0).map(|typed| operator.name_of_network(typed));
    let typed = typed.transpose()?;
    let mut reassertion = Reassertion {
        operator,
        state: operator.state()?,
        reaches: Reaches::default(),
        stores: Stores::default(),
        unclear: Vec::new(),
        rows: Vec::new(),
        is_left_undone: false,
        printed: Printed::default(),
    };
    // Claims use the settings that the next ADD will have.
    reassertion.add_configured();
    reassertion.claim_recorded(typed.as_ref())?;
    let is_claim_only = operator.arguments.has(&CLAIM_ONLY);
    if !is_claim_only {
        reassertion.accept();
    }
    let Reassertion { rows, is_left_undone, mut printed, .. } = reassertion;
    if is_left_undone {
        printed.warnings.push("nothing was claimed or accepted; add --yes to do it".to_owned());
        if !is_claim_only {
            printed.warnings.push(CLAIM_FIRST.to_owned());
        }
    } else if is_claim_only && operator.does_it() {
        printed.warnings.push(NOT_YET.to_owned());
    }
    printed.set_rows(&operator.arguments, COLUMNS, rows);
    Ok(printed)
}

const COLUMNS: &[Column] = &[
    Column::text("NETWORK", "network"),
    Column::text("CONTAINER", "containerID"),
    Column::text("IFNAME", "ifname"),
    Column::text("ADDRESSES", "addresses"),
    Column::text("ALLOCATOR", "allocator"),
    Column::text("STATE", "state"),
    Column::text("OUTCOME", "outcome"),
    Column::text("WHY", "why"),
];

const CLAIM_FIRST: &str = "before --yes, run reassert --claim-only --yes on every node: an ADD may give what a node has not claimed";

const NOT_YET: &str =
    "no store was accepted: when every node has claimed, run reassert --yes on each";

/// The outcome of a record's addresses, or of a store.
#[derive(Clone, Copy)]
enum ClaimOutcome {
    /// It is left as it is, with the reason.
    Kept(&'static str),
    WouldClaim,
    Claimed,
    WouldAccept,
    Accepted,
}

impl ClaimOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Kept(_) => "kept",
            Self::WouldClaim => "would claim",
            Self::Claimed => "claimed",
            Self::WouldAccept => "would accept",
            Self::Accepted => "accepted",
        }
    }
}

struct Reassertion<'a> {
    operator: &'a Operator,
    state: StateDir,
    reaches: Reaches,
    stores: Stores,
    /// Networks whose stores are not accepted: the store of a claim is unknown, or a claim that has
    /// failed may succeed later.
    unclear: Vec<NetworkName>,
    rows: Vec<Row>,
    /// A dry run has found something to do.
    is_left_undone: bool,
    printed: Printed,
}

impl Reassertion<'_> {
    /// Claims what the records of the network hold, or those of every network.
    ///
    /// # Errors
    /// Error 7: the typed network has neither records nor a configuration.
    fn claim_recorded(&mut self, typed: Option<&NetworkName>) -> Result<()> {
        let networks = match typed {
            Some(network) => vec![network.clone()],
            None => networks(&self.state)?,
        };
        for network in &networks {
            let found = self.printed.keep(attachments(&self.state.network(network)));
            for attachment in found.iter().flatten() {
                self.claim_record(network, attachment);
            }
        }
        match typed {
            // Its records are enough, else the error tells what there is.
            Some(network) if self.rows.is_empty() && self.stores.all().is_empty() => {
                find_network(network.as_str(), self.operator.arguments.value(&CONF_DIR)).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Finds the stores of the network as it is configured, or of every network.
    fn add_configured(&mut self) {
        let folder = self.operator.arguments.value(&CONF_DIR);
        let words = match self.operator.arguments.operand(0) {
            Some(path) if is_path(path) => vec![path.to_owned()],
            Some(name) => network_names(folder).into_iter().filter(|it| it == name).collect(),
            None => network_names(folder),
        };
        for word in words {
            let file = find_network(&word, folder);
            let plugins = file.and_then(|file| self.operator.our_plugins_if_any(&file));
            for plugin in self.printed.keep(plugins).into_iter().flatten() {
                if let Err(error) = self.refuse_other_state_dir(&plugin) {
                    self.printed.fail(&error);
                    self.unclear.push(plugin.network.name().clone());
                    continue;
                }
                let added = self.stores.add_configured(self.operator, &plugin, &mut self.printed);
                self.printed.keep(added.map_err(|error| error.within(&word)));
            }
        }
    }

    /// Refuses a network with records in another state folder: their addresses would not be
    /// claimed, but the store accepted.
    fn refuse_other_state_dir(&self, plugin: &OurPlugin) -> Result<()> {
        let configured = plugin.network.ipam().get("stateDir").and_then(Value::as_str);
        let Some(folder) = configured.filter(|folder| Path::new(folder) != self.state.root())
        else {
            return Ok(());
        };
        let message = format!("{} keeps its records in {folder}", plugin.network.name());
        Err(Error::new(ErrorCode::INVALID_CONFIG, message)
            .advise(format!("run it again with --state-dir {folder}")))
    }

    /// Makes every allocator of a shared store trust it as it is.
    fn accept(&mut self) {
        let stores = std::mem::take(&mut self.stores);
        // An allocator takes addresses from what it accepted last.
        let (present, recorded): (Vec<_>, Vec<_>) =
            stores.all().iter().partition(|store| store.present.is_some());
        for store in recorded.into_iter().chain(present) {
            if self.unclear.contains(store.request.network.name()) {
                continue;
            }
            let Some(outcome) = self.accept_one(store).transpose() else { continue };
            let mut row = Row::default();
            row.set_text("network", store.request.network.name().as_str());
            for key in ["containerID", "ifname", "state"] {
                row.set(key, Value::Null);
            }
            row.set("addresses", Value::Array(Vec::new()));
            row.set_text("allocator", &store.step.name);
            self.push_row(row, outcome);
        }
    }

    fn accept_one(&mut self, store: &AllocatorStore) -> Result<Option<ClaimOutcome>> {
        let chain = self.chain();
        let session = Session::open(&chain, &store.request)?;
        if self.reaches.reason_to_skip(&session, &store.step)?.is_some() {
            return Ok(None);
        }
        Ok(Some(if !self.operator.does_it() {
            ClaimOutcome::WouldAccept
        } else if store.accept(&session)? {
            ClaimOutcome::Accepted
        } else {
            ClaimOutcome::Kept("its store has no identity that could change")
        }))
    }

    fn chain(&self) -> Chain {
        Chain::new(self.operator.names, Path::new("ipam-delegated"))
    }

    fn push_row(&mut self, mut row: Row, outcome: Result<ClaimOutcome>) {
        match outcome {
            Ok(outcome) => {
                row.set_text("outcome", outcome.as_str());
                let why = if let ClaimOutcome::Kept(why) = outcome { why } else { "" };
                row.set_text("why", why);
                self.is_left_undone |=
                    matches!(outcome, ClaimOutcome::WouldClaim | ClaimOutcome::WouldAccept);
            }
            Err(error) => {
                row.set_text("outcome", "failed");
                row.set_text("why", &error.in_full());
                self.printed.failed = true;
            }
        }
        self.rows.push(row);
    }
}
