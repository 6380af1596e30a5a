//! `reassert`: for a store that was restored from a backup, or whose place another took. Reassertion again
//! what this node's records say is held, in the stores that the networks name now, then makes the
//! allocators trust them as they stand.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::about::About;
use super::attachments::identified;
use super::call::Operator;
use super::network::{configured, find};
use super::options::{CLAIM_ONLY, CONF_DIR};
use super::our_plugin::OurPlugin;
use super::printed::Printed;
use super::stores::{AllocatorStore, Stores};
use crate::chain::Chain;
use crate::chain::exec::DelegateOutput;
use crate::chain::gc::BUSY;
use crate::chain::plan::Step;
use crate::chain::record::{
    AddOutcome, DelegateRun, Granted, Held, Opened, Record, RecordFile, Run, attachments, networks,
    now,
};
use crate::chain::refreshed_run::{recorded_step, refresh_run};
use crate::chain::release::{NetworkAttachment, claim_again};
use crate::chain::session::Session;
use ipam_cli::{Column, Row};
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::cni::{Attachment, IpamResult, NetworkName};
use ipam_kit::contract::DelegateAnswer;
use ipam_kit::delegate::Reach;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::StateDir;
use ipam_kit::presence::Presence;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let typed = operator.arguments.operand(0).map(NetworkName::parse).transpose()?;
    let mut claims = Reassertion {
        operator,
        state: operator.state()?,
        reaches: Vec::new(),
        stores: Stores::default(),
        unclear: Vec::new(),
        rows: Vec::new(),
        printed: Printed::default(),
    };
    // What is held is claimed with the settings that the next ADD will have.
    claims.configured(typed.as_ref());
    claims.recorded(typed.as_ref())?;
    if !operator.arguments.has(&CLAIM_ONLY) {
        claims.accept();
    }
    let Reassertion { rows, mut printed, .. } = claims;
    let any = |outcome: &str| rows.iter().any(|row| row.text_of("outcome") == outcome);
    printed.failed |= any(FAILED);
    if any(WOULD_CLAIM) || any(WOULD_ACCEPT) {
        printed.warnings.push("nothing was claimed or accepted; add --yes to do it".to_owned());
    } else if operator.arguments.has(&CLAIM_ONLY) && operator.does_it() {
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

/// What became of a record's addresses, or of a store, and why.
type ClaimOutcome = (&'static str, &'static str);

const KEPT: &str = "kept";
const WOULD_CLAIM: &str = "would claim";
const CLAIMED: &str = "claimed";
const WOULD_ACCEPT: &str = "would accept";
const ACCEPTED: &str = "accepted";
const FAILED: &str = "failed";

const NOT_YET: &str =
    "no store was accepted: when every node has claimed, run reassert --yes on each";

struct Reassertion<'a> {
    operator: &'a Operator,
    state: StateDir,
    /// What programs have said of themselves.
    reaches: Vec<(PathBuf, Option<Reach>)>,
    stores: Stores,
    /// Networks of which it cannot be told where something is to be claimed.
    unclear: Vec<NetworkName>,
    rows: Vec<Row>,
    printed: Printed,
}

impl Reassertion<'_> {
    /// Reassertion what the records of the network hold, or those of every network.
    ///
    /// # Errors
    /// Nothing at all is known of the network that was typed.
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
        match typed {
            // Its records are enough, else the error tells what there is.
            Some(network) if self.rows.is_empty() && self.stores.all().is_empty() => {
                find(network.as_str(), self.operator.arguments.value(&CONF_DIR)).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn record(&mut self, network: &NetworkName, attachment: &Attachment) {
        let (record, busy) = match RecordFile::look(&self.state.record(network, attachment)) {
            Presence::Absent => return,
            Presence::Held(looked) => looked,
            Presence::Unreadable(error) => {
                let row = row(network, attachment, &Record::default(), "unreadable");
                return self.end((row, Err(error.advise("what it holds is not claimed"))));
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
        } else if self.operator.does_it() {
            let path = self.state.record(network, attachment);
            match RecordFile::open_existing(&path, Duration::ZERO).and_then(Presence::known) {
                // It may say something else by now. Its lock is held until all is claimed.
                Ok(Some(Opened { mut file, record, .. })) => {
                    return self.claim_each(&session, attachment, &record, Some(&mut file));
                }
                Ok(None) => {}
                Err(error) if error.code() == ErrorCode::TRY_AGAIN => self.end(busy_row()),
                Err(error) => return Err(error),
            }
        } else {
            return self.claim_each(&session, attachment, record, None);
        }
        Ok(())
    }

    /// Reassertion what each allocator gave in the last ADD. What was claimed with other settings than the
    /// recorded ones goes to `file`, so that a DEL goes there, too.
    ///
    /// # Errors
    /// The record cannot be written.
    fn claim_each(
        &mut self,
        session: &Session<'_>,
        attachment: &Attachment,
        record: &Record,
        file: Option<&mut RecordFile>,
    ) -> Result<()> {
        let Some((attempt, held)) = record.held() else { return Ok(()) };
        let network = &session.request.network;
        let netns = attempt.header.netns.clone();
        let of =
            NetworkAttachment { network, attachment: &Attachment { netns, ..attachment.clone() } };
        let mut claimed = attempt.clone();
        // What the runtime got, and `release` took back since.
        let result = IpamResult::parse(&held.result, "recorded result")?;
        let is_struck = result.ips.len() > attempt.ips().len();
        for ran in &mut claimed.runs {
            let DelegateRun { run, granted: Some(granted) } = ran else { continue };
            if granted.ips.is_empty() {
                continue;
            }
            let mut row = row(network.name(), attachment, record, record.state().as_str());
            row.value("addresses", granted.ips.clone().into());
            row.text("allocator", &run.delegate);
            let outcome = self.claim(session, of, run, granted, is_struck);
            self.end((row, outcome));
        }
        let Some(file) = file.filter(|_| claimed.runs != attempt.runs) else { return Ok(()) };
        claimed.header.time = now();
        claimed.header.reasserted = true;
        claimed.outcome = AddOutcome::Held(Held { time: now(), ..held.clone() });
        claimed.events().iter().try_for_each(|event| file.append(event))
    }

    /// Reassertion what one allocator gave. With other settings than the recorded ones, `run` and
    /// `granted` become what was claimed with and what the allocator answered.
    fn claim(
        &mut self,
        session: &Session<'_>,
        of: NetworkAttachment<'_>,
        run: &mut Run,
        granted: &mut Granted,
        is_struck: bool,
    ) -> Result<ClaimOutcome> {
        if let Some(kept) = self.kept(session, &recorded_step(session, run))? {
            return Ok((KEPT, kept));
        }
        let present = self.stores.present(session, run).inspect_err(|_| {
            self.unclear.push(of.network.name().clone());
        })?;
        let recorded = refresh_run(session, run, of.network).run;
        // The same with another password is released by the recorded one, too.
        let other = present
            .filter(|present| !present.owes_the_same(run) && !present.owes_the_same(&recorded));
        let mut asked = other.clone().unwrap_or(recorded);
        match &run.pools {
            Some(pools) => asked.pools = Some(requests(pools, granted)?),
            // It has its pools from `ipam`, and takes requests as from a runtime.
            None if is_struck => {
                let message = format!(
                    "an address that it gave beside {} was released; which pool of ipam is left out is not recorded",
                    granted.ips.join(", ")
                );
                return Err(
                    Error::new(ErrorCode::RECORD, message).advise("re-create the attachment")
                );
            }
            None => asked.args = Some(json!({"cni": {"ips": granted.ips}})),
        }
        if !self.operator.does_it() {
            return Ok((WOULD_CLAIM, ""));
        }
        // What it said of its leases elsewhere says nothing here.
        let leases = if other.is_some() { &[][..] } else { &granted.leases };
        let answer = claim_again(session, of, &asked, leases)?;
        let given = confirm(granted, answer).map_err(|error| error.within(&run.delegate))?;
        if let Some(other) = other {
            *run = other;
            *granted = given;
        }
        Ok((CLAIMED, ""))
    }

    /// Why an allocator is not asked for anything.
    ///
    /// # Errors
    /// An allocator of ours does not say whose its store is.
    fn kept(&mut self, session: &Session<'_>, step: &Step) -> Result<Option<&'static str>> {
        let known = self.reaches.iter().find(|(program, _)| *program == step.program);
        let reach = known.map(|(_, reach)| *reach).unwrap_or_else(|| {
            let reach = About::of(session, step).reach;
            self.reaches.push((step.program.clone(), reach));
            reach
        });
        match reach {
            Some(Reach::Cluster) => Ok(None),
            Some(Reach::Node) => Ok(Some("its store is this node's")),
            None if !step.is_allocator() => Ok(Some("it is a standard plugin")),
            None => {
                let program = step.program.display().to_string();
                let message = [&program, " about --json does not say whose its store is"].concat();
                Err(Error::new(ErrorCode::DELEGATE, message)
                    .advise("install a build that answers it, then repeat this"))
            }
        }
    }

    /// Finds the stores of the network as it is configured, or of every network.
    fn configured(&mut self, typed: Option<&NetworkName>) {
        let folder = self.operator.arguments.value(&CONF_DIR);
        let mut names = configured(folder);
        if let Some(network) = typed {
            names.retain(|name| name == network.as_str());
        }
        for name in names {
            let found = find(&name, folder);
            let ours = found.and_then(|found| self.operator.ours_if_any(&found));
            for ours in self.printed.keep(ours).into_iter().flatten() {
                if let Some(elsewhere) = self.elsewhere(&ours) {
                    self.printed.keep::<()>(Err(elsewhere));
                    self.unclear.extend(NetworkName::parse(&name).ok());
                    continue;
                }
                let added = self.stores.add_configured(self.operator, &ours, &mut self.printed);
                self.printed.keep(added.map_err(|error| error.within(&name)));
            }
        }
    }

    /// Why the records of a network are not those that are read here, if they are not: what they hold would
    /// not be claimed, and its store accepted without it.
    fn elsewhere(&self, ours: &OurPlugin) -> Option<Error> {
        let told = ours.network.ipam().get("stateDir")?.as_str()?;
        if Path::new(told) == self.state.root() {
            return None;
        }
        let message = format!("{} keeps its records in {told}", ours.network.name());
        let error = Error::new(ErrorCode::INVALID_CONFIG, message);
        Some(error.advise(format!("run it again with --state-dir {told}")))
    }

    /// Makes every allocator whose store is shared trust it as it stands.
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
            row.text("network", store.request.network.name().as_str());
            for key in ["containerID", "ifname", "state"] {
                row.value(key, Value::Null);
            }
            row.value("addresses", Value::Array(Vec::new()));
            row.text("allocator", &store.step.name);
            self.end((row, outcome));
        }
    }

    fn accept_one(&mut self, store: &AllocatorStore) -> Result<Option<ClaimOutcome>> {
        let chain = self.chain();
        let session = Session::open(&chain, &store.request)?;
        if self.kept(&session, &store.step)?.is_some() {
            return Ok(None);
        }
        Ok(Some(if !self.operator.does_it() {
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

    fn end(&mut self, (mut row, outcome): (Row, Result<ClaimOutcome>)) {
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
fn requests(pools: &[Value], granted: &Granted) -> Result<Vec<Value>> {
    let mut pools = pools.to_vec();
    if pools.len() != granted.ips.len() {
        let message = format!(
            "pools it was shown: {}, addresses it gave: {}; which is of which is not recorded",
            pools.len(),
            granted.ips.len()
        );
        return Err(Error::new(ErrorCode::RECORD, message).advise("re-create the attachment"));
    }
    for (pool, ip) in pools.iter_mut().zip(&granted.ips) {
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

/// What an allocator says of its leases; fails where its answer lacks an address that was to be claimed.
fn confirm(granted: &Granted, answer: DelegateOutput) -> Result<Granted> {
    let answer = Value::Object(answer.unwrap_or_default());
    let mut answer = IpamResult::parse(&answer, "its answer")?;
    let said = DelegateAnswer::take_from(&mut answer)?;
    for ip in &granted.ips {
        if !answer.has(address(ip)?) {
            let given: Vec<String> = answer.ips.iter().map(|ip| ip.address.to_string()).collect();
            let given = given.join(", ");
            let message = format!("it gave {given} instead of {ip}");
            return Err(Error::new(ErrorCode::DELEGATE, message));
        }
    }
    let leases = said.leases.unwrap_or_default();
    Ok(Granted { leases, unsure: said.unsure, ..granted.clone() })
}

fn address(ip: &str) -> Result<IpAddr> {
    let parsed = parse_cidr(ip).map(|net| net.addr());
    parsed.map_err(|error| {
        Error::new(ErrorCode::RECORD, "what it gave is no address").caused_by(error)
    })
}
