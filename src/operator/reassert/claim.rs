//! Claiming again what a record holds.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ClaimOutcome, Reassertion};
use crate::chain::exec::DelegateOutput;
use crate::chain::gc::BUSY;
use crate::chain::record::{
    AddOutcome, DelegateRun, Granted, Held, Opened, Record, RecordFile, RecordPlace, Run, Workload,
    now,
};
use crate::chain::refreshed_run::{recorded_step, refresh_run};
use crate::chain::release::{NetworkAttachment, claim_again};
use crate::chain::session::Session;
use crate::operator::attachments::row_of_record;
use ipam_cli::Row;
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::cni::{Attachment, IpamResult, NetworkName};
use ipam_kit::contract::DelegateAnswer;
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::presence::Presence;

impl Reassertion<'_> {
    /// Claims what the record of an attachment holds.
    pub(super) fn claim_record(&mut self, network: &NetworkName, attachment: &Attachment) {
        let place = RecordPlace::of(&self.state, network, attachment);
        let (record, is_busy) = match RecordFile::look(&place) {
            Presence::Absent => return,
            Presence::Held(read) => read,
            Presence::Unreadable(error) => {
                let row = row(network, attachment, &Record::default(), "unreadable");
                let error = error.advise("its addresses are not claimed");
                return self.push_row(row, Err(error));
            }
        };
        if let Err(error) = self.claim_held(network, attachment, &record, is_busy) {
            let row = row(network, attachment, &record, record.state().as_str());
            self.push_row(row, Err(error));
        }
    }

    fn claim_held(
        &mut self,
        network: &NetworkName,
        attachment: &Attachment,
        record: &Record,
        is_busy: bool,
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
        if is_busy {
            self.push_busy(network, attachment, record);
            return Ok(());
        }
        if !self.operator.does_it() {
            return self.claim_each(&session, attachment, record, None);
        }
        let place = RecordPlace::of(&self.state, network, attachment);
        match RecordFile::open_existing(&place, Duration::ZERO).and_then(Presence::known) {
            // It may have changed. Its lock is held until all is claimed.
            Ok(Some(Opened { mut file, record })) => {
                self.claim_each(&session, attachment, &record, Some(&mut file))
            }
            Ok(None) => Ok(()),
            Err(error) if error.code() == ErrorCode::TRY_AGAIN => {
                self.push_busy(network, attachment, record);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn push_busy(&mut self, network: &NetworkName, attachment: &Attachment, record: &Record) {
        let row = row(network, attachment, record, "busy");
        self.push_row(row, Ok(ClaimOutcome::Kept(BUSY)));
    }

    /// Claims what each allocator gave in the last ADD. A claim with other settings than the
    /// recorded ones goes to `file`, so that a DEL goes there, too. So do other leases than the
    /// recorded ones: GC and `reap` release only what the record names.
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
        let target =
            NetworkAttachment { network, attachment: &Attachment { netns, ..attachment.clone() } };
        let mut claimed = attempt.clone();
        // The runtime got more addresses: `release` took some back.
        let result = IpamResult::parse(&held.result, "recorded result")?;
        let recorded: usize = attempt.grants().map(|it| it.ips.len() + it.static_ips.len()).sum();
        let is_struck = result.ips.len() > recorded;
        for ran in &mut claimed.runs {
            let DelegateRun { run, granted: Some(granted) } = ran else { continue };
            if granted.ips.is_empty() {
                continue;
            }
            let mut row = row(network.name(), attachment, record, record.state().as_str());
            row.set("addresses", granted.ips.clone().into());
            row.set_text("allocator", &run.delegate);
            let outcome =
                self.claim(session, target, &attempt.header.workload, run, granted, is_struck);
            let outcome = outcome.map_err(|error| self.keep_from_accepting(network.name(), error));
            self.push_row(row, outcome);
        }
        let Some(file) = file.filter(|_| claimed.runs != attempt.runs) else { return Ok(()) };
        // In the same store the ADD keeps its age; only its leases are others.
        if claimed.runs.iter().zip(&attempt.runs).any(|(now, then)| now.run != then.run) {
            claimed.header.time = now();
            claimed.header.reasserted = true;
        }
        claimed.outcome = AddOutcome::Held(Held { time: now(), ..held.clone() });
        claimed.events().iter().try_for_each(|event| file.append(event))
    }

    /// Keeps the stores of a network from being accepted if a failed claim may succeed later: an ADD
    /// would give the address to another container. An address that another container holds cannot
    /// be claimed any more.
    fn keep_from_accepting(&mut self, network: &NetworkName, error: Error) -> Error {
        let is_final = [
            ErrorCode::TAKEN,
            ErrorCode::NOT_IN_POOL,
            ErrorCode::EXHAUSTED,
            ErrorCode::DELEGATE,
            ErrorCode::RECORD,
            ErrorCode::UNSERVED,
        ];
        if is_final.contains(&error.code()) || self.unclear.contains(network) {
            return error;
        }
        self.unclear.push(network.clone());
        error.advise(format!(
            "correct the cause and run reassert again; until then no store of {network} is accepted"
        ))
    }

    /// Claims what one allocator gave. `granted` gets the leases of the answer; with other settings
    /// than the recorded ones, `run` becomes what was claimed with.
    fn claim(
        &mut self,
        session: &Session<'_>,
        target: NetworkAttachment<'_>,
        workload: &Workload,
        run: &mut Run,
        granted: &mut Granted,
        is_struck: bool,
    ) -> Result<ClaimOutcome> {
        let step = recorded_step(session, run);
        if let Some(why) = self.reaches.reason_to_skip(session, &step)? {
            return Ok(ClaimOutcome::Kept(why));
        }
        let present = self.stores.present(session, run).inspect_err(|_| {
            self.unclear.push(target.network.name().clone());
        })?;
        let recorded = refresh_run(session, run, target.network).run;
        // The same with another password is released by the recorded one, too.
        let other = present
            .filter(|present| !present.owes_the_same(run) && !present.owes_the_same(&recorded));
        let mut renewed = other.clone().unwrap_or(recorded);
        match &run.pools {
            Some(pools) => renewed.pools = Some(requests(pools, granted)?),
            // It has its pools from `ipam`, and takes requests as from a runtime.
            None if is_struck => {
                let message = format!(
                    "release took back an address that it gave with {}: the record does not say from which pool",
                    granted.ips.join(", ")
                );
                return Err(
                    Error::new(ErrorCode::RECORD, message).advise("re-create the container")
                );
            }
            None => renewed.args = Some(json!({"cni": {"ips": granted.ips}})),
        }
        if !self.operator.does_it() {
            return Ok(ClaimOutcome::WouldClaim);
        }
        // The recorded answer belongs to other settings.
        let leases = if other.is_some() { &[][..] } else { &granted.leases };
        let answer = claim_again(session, target, workload, &renewed, leases)?;
        let answered = confirm(granted, answer).map_err(|error| error.within(&run.delegate))?;
        if let Some(other) = other {
            *run = other;
            *granted = answered;
        } else if !answered.leases.is_empty() {
            granted.leases = answered.leases;
            granted.unsure |= answered.unsure;
        }
        Ok(ClaimOutcome::Claimed)
    }
}

/// A record's row, before an allocator is asked.
fn row(network: &NetworkName, attachment: &Attachment, record: &Record, state: &str) -> Row {
    let mut row = row_of_record(network, attachment, record);
    row.set_text_or_null("allocator", None);
    row.set_text("state", state);
    row
}

/// Adds to each recorded pool of a delegate a request for the address that it gave.
fn requests(pools: &[Value], granted: &Granted) -> Result<Vec<Value>> {
    let mut pools = pools.to_vec();
    if pools.len() != granted.ips.len() {
        let message = format!(
            "the record has {} pools and {} addresses: which address is from which pool is unknown",
            pools.len(),
            granted.ips.len()
        );
        return Err(Error::new(ErrorCode::RECORD, message).advise("re-create the container"));
    }
    for (pool, ip) in pools.iter_mut().zip(&granted.ips) {
        let address = address(ip)?;
        if let Value::Object(pool) = pool {
            for key in ["requested-ip", "requested_ip"] {
                pool.insert(key.to_owned(), address.to_string().into());
            }
            // If another owner holds it, that owner keeps it.
            pool.remove("takeover");
        }
    }
    Ok(pools)
}

/// Reads an allocator's answer; an error if a claimed address is missing in it.
fn confirm(granted: &Granted, answer: DelegateOutput) -> Result<Granted> {
    let answer = Value::Object(answer.unwrap_or_default());
    let mut answer = IpamResult::parse(&answer, "its answer")?;
    let said = DelegateAnswer::take_from(&mut answer)?;
    for ip in &granted.ips {
        if !answer.has(address(ip)?) {
            let given: Vec<String> = answer.ips.iter().map(|ip| ip.address.to_string()).collect();
            let message = format!("it gave {} instead of {ip}", given.join(", "));
            return Err(Error::new(ErrorCode::DELEGATE, message));
        }
    }
    let leases = said.leases.unwrap_or_default();
    Ok(Granted { leases, unsure: said.unsure, ..granted.clone() })
}

fn address(ip: &str) -> Result<IpAddr> {
    match parse_cidr(ip) {
        Ok(net) => Ok(net.addr()),
        Err(error) => {
            Err(Error::new(ErrorCode::RECORD, "invalid address in the record").caused_by(error))
        }
    }
}
