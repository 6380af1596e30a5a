//! `reassert`: for a store that was restored from a backup, or whose place another took. Claims again
//! in it what this node's records say is held, then makes the allocators trust it as it stands.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::Chain;
use super::super::exec::Answer;
use super::super::gc::BUSY;
use super::super::plan::Step;
use super::super::record::{Gave, Record, RecordFile, Run, attachments, networks};
use super::super::session::{Owner, Session};
use super::attachments::identified;
use super::findings::Reach;
use super::network::{configured, find};
use super::stores::{Store, Stores};
use super::{Operator, Printed};
use crate::cni::address::parse_cidr;
use crate::cni::{Attachment, IpamResult, NetworkName};
use crate::error::{Error, ErrorCode, Result};
use crate::host::StateDir;
use crate::operate::{Column, Row, Words};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let typed = match operator.words.operands()[..] {
        [] => None,
        [network] => Some(NetworkName::parse(network)?),
        _ => return Err(Words::refusal("reassert takes one network, or none")),
    };
    let mut claims = Claims {
        operator,
        state: operator.state()?,
        reaches: Vec::new(),
        stores: Stores::default(),
        rows: Vec::new(),
        printed: Printed::default(),
    };
    claims.recorded(typed.as_ref())?;
    if !operator.words.has("claim-only") {
        claims.configured(typed.as_ref())?;
        claims.accept();
    }
    let Claims { rows, mut printed, .. } = claims;
    let any = |outcome: &str| rows.iter().any(|row| row.text_of("outcome") == outcome);
    printed.failed |= any(FAILED);
    if any(WOULD_CLAIM) || any(WOULD_ACCEPT) {
        printed.warnings.push("nothing was claimed or accepted; add --yes to do it".to_owned());
    } else if operator.words.has("claim-only") && operator.words.has("yes") {
        printed.warnings.push(NOT_YET.to_owned());
    }
    printed.set_rows(operator, COLUMNS, rows);
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

/// What became of a record's addresses, or of a store, and why.
type Outcome = (&'static str, &'static str);

const KEPT: &str = "kept";
const WOULD_CLAIM: &str = "would claim";
const CLAIMED: &str = "claimed";
const WOULD_ACCEPT: &str = "would accept";
const ACCEPTED: &str = "accepted";
const FAILED: &str = "failed";

const NOT_YET: &str =
    "no store was accepted: when every node has claimed, run reassert --yes on each";

struct Claims<'a> {
    operator: &'a Operator,
    state: StateDir,
    /// What programs have said of themselves.
    reaches: Vec<(PathBuf, Reach)>,
    stores: Stores,
    rows: Vec<Row>,
    printed: Printed,
}

impl Claims<'_> {
    /// Claims what the records of the network hold, or those of every network.
    fn recorded(&mut self, typed: Option<&NetworkName>) -> Result<()> {
        let networks = match typed {
            Some(network) => vec![network.clone()],
            None => networks(&self.state)?,
        };
        for network in &networks {
            let found = self.printed.keep(attachments(&self.state.network(network)));
            for attachment in found.iter().flatten() {
                self.record(network, attachment);
            }
        }
        Ok(())
    }

    fn record(&mut self, network: &NetworkName, attachment: &Attachment) {
        let (record, busy) = match RecordFile::look(&self.state.record(network, attachment)) {
            Ok(None) => return,
            Ok(Some(looked)) => looked,
            Err(why) => {
                let row = row(network, attachment, &Record::default(), "unreadable");
                let message = [&why, ": what it holds is not claimed"].concat();
                return self.end((row, Err(Error::new(ErrorCode::RECORD, message))));
            }
        };
        if let Err(error) = self.claim_all(network, attachment, &record, busy) {
            let row = row(network, attachment, &record, record.state().as_str());
            self.end((row, Err(error)));
        }
    }

    fn claim_all(
        &mut self,
        network: &NetworkName,
        attachment: &Attachment,
        record: &Record,
        busy: bool,
    ) -> Result<()> {
        let request = self.operator.recorded_request(network, record)?;
        let chain = self.chain();
        let session = Session::open(&chain, &request)?;
        for run in record.runs() {
            self.stores.add_recorded(&session, run)?;
        }
        if record.held().is_none() {
            return Ok(());
        }
        let busy_row = || (row(network, attachment, record, "busy"), Ok((KEPT, BUSY)));
        if busy {
            self.end(busy_row());
        } else if self.operator.words.has("yes") {
            match RecordFile::open_existing(&self.state.record(network, attachment)) {
                // It may say something else by now. Its lock is held until all is claimed.
                Ok(Some(opened)) => self.claim_each(&session, attachment, &opened.record),
                Ok(None) => {}
                Err(error) if error.code() == ErrorCode::TRY_AGAIN => self.end(busy_row()),
                Err(error) => return Err(error),
            }
        } else {
            self.claim_each(&session, attachment, record);
        }
        Ok(())
    }

    /// Claims what each allocator gave in the last ADD.
    fn claim_each(&mut self, session: &Session<'_>, attachment: &Attachment, record: &Record) {
        let Some((attempt, held)) = record.held() else { return };
        let network = &session.request.network;
        let netns = attempt.attempt.netns.clone();
        let owner = Owner { network, attachment: &Attachment { netns, ..attachment.clone() } };
        for (run, gave) in attempt.runs.iter().zip(&held.gave) {
            if gave.ips.is_empty() {
                continue;
            }
            let mut row = row(network.name(), attachment, record, record.state().as_str());
            row.value("addresses", gave.ips.clone().into());
            row.text("allocator", &run.delegate);
            let outcome = self.claim(session, &owner, run, gave);
            self.end((row, outcome));
        }
    }

    fn claim(
        &mut self,
        session: &Session<'_>,
        owner: &Owner<'_>,
        run: &Run,
        gave: &Gave,
    ) -> Result<Outcome> {
        if let Some(kept) = self.kept(session, &session.recorded_step(run))? {
            return Ok((KEPT, kept));
        }
        let run = Run { pools: Some(requests(run, gave)?), ..run.clone() };
        if !self.operator.words.has("yes") {
            return Ok((WOULD_CLAIM, ""));
        }
        let mut prev_result = IpamResult::default();
        prev_result.extra.insert("reassert".to_owned(), true.into());
        let answer = session.add_again(owner, &run, &prev_result, &gave.leases)?;
        confirm(gave, answer).map_err(|error| error.within(&run.delegate))?;
        Ok((CLAIMED, ""))
    }

    /// Why an allocator is not asked for anything.
    ///
    /// # Errors
    /// An allocator of ours does not say whose its store is.
    fn kept(&mut self, session: &Session<'_>, step: &Step) -> Result<Option<&'static str>> {
        let known = self.reaches.iter().find(|(program, _)| *program == step.program);
        let reach = known.map(|(_, reach)| *reach).unwrap_or_else(|| {
            let reach = Reach::of(session, step);
            self.reaches.push((step.program.clone(), reach));
            reach
        });
        match reach {
            Reach::Cluster => Ok(None),
            Reach::Node => Ok(Some("its store is this node's")),
            Reach::Unknown if !step.is_allocator() => Ok(Some("it is a standard plugin")),
            Reach::Unknown => {
                let program = step.program.display().to_string();
                let message = [&program, " about --json does not say whose its store is"].concat();
                Err(Error::new(ErrorCode::DELEGATE, message)
                    .advise("install a build that answers it, then repeat this"))
            }
        }
    }

    /// Finds the stores of the network as it is configured, or of every network.
    ///
    /// # Errors
    /// Nothing at all is known of the network that was typed.
    fn configured(&mut self, typed: Option<&NetworkName>) -> Result<()> {
        let folder = self.operator.words.value("conf-dir");
        let known = configured(folder);
        let names = match typed {
            None => known,
            Some(network) if known.iter().any(|name| name == network.as_str()) => {
                vec![network.to_string()]
            }
            // Its records are enough, else the error tells what there is.
            Some(network) if self.rows.is_empty() && self.stores.all().is_empty() => {
                return find(network.as_str(), folder).map(drop);
            }
            Some(_) => Vec::new(),
        };
        for name in names {
            let found = find(&name, folder);
            let ours = found.and_then(|found| self.operator.ours_if_any(&found));
            for ours in self.printed.keep(ours).into_iter().flatten() {
                let added = self.stores.add_configured(self.operator, &ours, &mut self.printed);
                self.printed.keep(added.map_err(|error| error.within(&name)));
            }
        }
        Ok(())
    }

    /// Makes every allocator whose store is shared trust it as it stands.
    fn accept(&mut self) {
        for store in std::mem::take(&mut self.stores).all() {
            let Some(outcome) = self.accept_one(store).transpose() else { continue };
            let mut row = Row::default();
            row.text("network", store.request.network.name().as_str());
            for key in ["containerID", "ifname", "state"] {
                row.value(key, Value::Null);
            }
            row.value("addresses", Value::Array(Vec::new()));
            row.text("allocator", &store.step.name);
            self.end((row, outcome));
        }
    }

    fn accept_one(&mut self, store: &Store) -> Result<Option<Outcome>> {
        let chain = self.chain();
        let session = Session::open(&chain, &store.request)?;
        if self.kept(&session, &store.step)?.is_some() {
            return Ok(None);
        }
        Ok(Some(if !self.operator.words.has("yes") {
            (WOULD_ACCEPT, "")
        } else if store.accept(&session)? {
            (ACCEPTED, "")
        } else {
            (KEPT, "its store has no identity")
        }))
    }

    fn chain(&self) -> Chain {
        Chain::new(self.operator.presets, Path::new("ipam-delegated"))
    }

    fn end(&mut self, (mut row, outcome): (Row, Result<Outcome>)) {
        let why;
        let (outcome, why) = match &outcome {
            Ok(outcome) => *outcome,
            Err(error) => {
                why = error.in_full();
                (FAILED, &*why)
            }
        };
        row.text("outcome", outcome);
        row.text("why", why);
        self.rows.push(row);
    }
}

/// A record's row, as far as it goes before anybody was asked.
fn row(network: &NetworkName, attachment: &Attachment, record: &Record, state: &str) -> Row {
    let mut row = identified(network, attachment, record);
    row.text_or_null("allocator", None);
    row.text("state", state);
    row
}

/// The pools that a delegate was shown, each with a request for the address that it gave for it.
fn requests(run: &Run, gave: &Gave) -> Result<Vec<Value>> {
    let mut pools = run.pools.clone().unwrap_or_default();
    if pools.len() != gave.ips.len() {
        let message = format!(
            "pools it was shown: {}, addresses it gave: {}; which is of which is not recorded",
            pools.len(),
            gave.ips.len()
        );
        return Err(Error::new(ErrorCode::RECORD, message).advise("re-create the attachment"));
    }
    for (pool, ip) in pools.iter_mut().zip(&gave.ips) {
        let address = address(ip)?;
        if let Value::Object(pool) = pool {
            for key in ["requested-ip", "requested_ip"] {
                pool.insert(key.to_owned(), address.to_string().into());
            }
            // Whoever holds it by now keeps it.
            pool.remove("takeover");
        }
    }
    Ok(pools)
}

/// Fails where an answer lacks an address that was to be claimed.
fn confirm(gave: &Gave, answer: Answer) -> Result<()> {
    let answer = IpamResult::parse(&Value::Object(answer.unwrap_or_default()), "its answer")?;
    for ip in &gave.ips {
        if !answer.has(address(ip)?) {
            let given: Vec<String> = answer.ips.iter().map(|ip| ip.address.to_string()).collect();
            let given = given.join(", ");
            let message = format!("it gave {given} instead of {ip}");
            return Err(Error::new(ErrorCode::DELEGATE, message));
        }
    }
    Ok(())
}

fn address(ip: &str) -> Result<IpAddr> {
    let parsed = parse_cidr(ip).map(|net| net.addr());
    parsed.map_err(|error| {
        Error::new(ErrorCode::RECORD, "what it gave is no address").caused_by(error)
    })
}
