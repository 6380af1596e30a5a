//! The list that confirms a claim.
//!
//! Without a server that refuses a second record of an address, a claim is confirmed by a list that
//! was read after it: of two claims of one address, the one that reads last sees the other. Both are
//! withdrawn if both were seen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use ipam_kit::allocate::ledger::{Change, Taken};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};
use log::debug;

use crate::claim::{Made, Refused, WITHDRAWAL};
use crate::held::bare_subnet;
use crate::ledger::{RecordLedger, RecordToken, Revision, contradicts};
use crate::mark::{NameMark, OwnerMark};
use crate::node_records::open_attempts;
use crate::owner_file::{Attempt, OwnerFile, OwnerRecords};
use crate::server::{AddressRecord, RecordServer, Subnet};
use crate::sight::{SubnetSight, Watch};

/// How often a list is read until it shows a record that exists.
const LOOKS: u32 = 3;

/// How long after its deletion a record is looked for again. A write that takes longer is followed
/// by a list.
pub(crate) const REVIVAL: Duration = Duration::from_millis(250);

impl<S: RecordServer> RecordLedger<S> {
    /// Reads the subnets of the records that were made, and refuses claims that meet other records.
    /// It deletes the owner's records that a request of unknown outcome made beside them.
    /// A server that makes one record of an address may still make two with one sticky name.
    pub(crate) fn confirm_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        change: &Change<'_>,
        made: &[Made],
    ) -> Result<Option<Refused>> {
        let has_name = |made: &Made| change.claim[made.claim].request.sticky.is_some();
        if self.rules.creates_once && !made.iter().any(has_name) || made.is_empty() {
            return Ok(None);
        }
        let held = change.keep.iter().chain(&change.leave).chain(&change.drop);
        let held = held.filter_map(|lease| Some(Revision::read(lease)?.record(lease)));
        let known = held.chain(made.iter().map(|made| made.record.clone()));
        let watch = Watch {
            names: token.names.values().map(|mark| mark.hash.clone()).collect(),
            known: known.map(|record| (record.address, record)).collect(),
            ..Watch::of(owner)
        };
        let known: BTreeSet<&String> = watch.known.values().map(|record| &record.id).collect();
        let mut subnets: BTreeMap<&String, &Subnet> = BTreeMap::new();
        for made in made {
            // Another claim of the name may be in another subnet of the pool.
            let pool = token.pools.get(&change.claim[made.claim].request.path);
            let others = pool.filter(|_| has_name(made)).into_iter().flat_map(|pool| &pool.subnets);
            subnets.extend(others.chain([&made.subnet]).map(|subnet| (&subnet.id, subnet)));
        }
        let mut sights = Vec::new();
        for (id, subnet) in subnets {
            let here: Vec<&Made> = made.iter().filter(|made| made.subnet.id == *id).collect();
            let noted = token.sight(id).map(|sight| sight.noted().to_vec()).unwrap_or_default();
            let sight = self.look_after(subnet, &here, &Watch { noted, ..watch.clone() })?;
            // The server may have been restored since the view.
            self.check_latest(&sight)?;
            sights.push(sight);
        }
        let mut met = Vec::new();
        for made in made {
            let address = made.record.address;
            let name = change.claim[made.claim].request.sticky.as_ref();
            let name = name.and_then(|name| token.names.get(&name.name));
            let mut here = sights.iter().filter(|sight| sight.subnet.id == made.subnet.id);
            let has_rival = |name: &NameMark| {
                sights.iter().any(|sight| sight.rivals(&name.hash).next().is_some())
            };
            if here.any(|sight| sight.is_shared(address)) || name.is_some_and(has_rival) {
                debug!("{} met another record at {address}", made.record.id);
                met.push(Taken { claim: made.claim, address, holder: None });
            }
        }
        for sight in &sights {
            for surplus in sight.own.iter().filter(|own| !known.contains(&own.record.id)) {
                self.delete_own(owner, &mut token.turn, &sight.subnet.id, &surplus.record)?;
            }
        }
        if met.is_empty() {
            return Ok(None);
        }
        Ok(Some(Refused::Met(met)))
    }

    /// Refuses a change if a record is there again that was replaced, and that has an address or a
    /// sticky name of the change: the server was writing it when it was deleted. The owner may have
    /// replaced it in an earlier call, and another owner of the node in one that was killed. If the
    /// write takes longer than [`REVIVAL`], its owner looks.
    ///
    /// # Errors
    /// Code 11: too little time is left.
    pub(crate) fn confirm_replaced(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        made: &[Made],
        kept: &[Lease],
    ) -> Result<Option<Refused>> {
        let mut replaced = token.turn.note().map(OwnerRecords::replaced).unwrap_or_default();
        if self.rules.revives && !made.is_empty() {
            replaced.extend(self.replaced_on_node(token, made));
        }
        if replaced.is_empty() {
            return Ok(None);
        }
        if REVIVAL > self.call.deadline.left() / 2 {
            let message = "too little time is left to see that a replaced record stays deleted";
            return Err(Error::new(ErrorCode::TRY_AGAIN, message)
                .advise("call again, or raise ipam.timeout"));
        }
        thread::sleep(REVIVAL);
        let mut back = Vec::new();
        for id in replaced {
            // A takeover that was killed before its deletion may have noted one of this owner.
            back.extend(self.server.read(&id)?.filter(|record| !is_of(owner, record)));
        }
        token.turn.forget_replaced();
        let is_back = |address: IpAddr| back.iter().any(|record| record.address == address);
        if kept.iter().any(|lease| is_back(lease.address.addr())) {
            return Ok(Some(Refused::Outdated));
        }
        let has_name = |record: &AddressRecord| {
            let mark = OwnerMark::parse(&record.text).and_then(Result::ok);
            let held = mark.filter(|mark| mark.holder.is_some()).and_then(|mark| mark.sticky);
            held.is_some_and(|held| token.names.values().any(|name| name.hash == held.hash))
        };
        let has_rival = back.iter().any(has_name);
        let met = made.iter().filter(|made| has_rival || is_back(made.record.address));
        let met =
            met.map(|made| Taken { claim: made.claim, address: made.record.address, holder: None });
        let met: Vec<Taken> = met.collect();
        Ok((!met.is_empty()).then_some(Refused::Met(met)))
    }

    /// The records that owners of this node may have replaced at the addresses, or for the sticky names,
    /// of these claims.
    fn replaced_on_node(&self, token: &RecordToken, made: &[Made]) -> Vec<String> {
        let is_of_claims = |attempt: &Attempt| {
            let is_at = |made: &Made| {
                attempt.subnet == made.subnet.id && attempt.address == Some(made.record.address)
            };
            let is_for = |name: &NameMark| attempt.name.as_ref() == Some(&name.hash);
            made.iter().any(is_at) || token.names.values().any(is_for)
        };
        let attempts = open_attempts(&self.call.owners);
        let of_claims = attempts.iter().filter(|attempt| is_of_claims(attempt));
        of_claims.filter_map(Attempt::replaced).map(str::to_owned).collect()
    }

    /// Deletes a record that a long write may have made again, if another record has its address. A
    /// claim of another owner is withdrawn soon, and does not count.
    ///
    /// # Errors
    /// Code 11: another one has its address; the record stays if too little time is left to see
    /// whether the other one is withdrawn.
    pub(crate) fn confirm_written(
        &mut self,
        owner: &Owner,
        turn: &mut OwnerFile,
        subnet: &str,
        record: &AddressRecord,
    ) -> Result<()> {
        let (subnet, watch, address) = (bare_subnet(subnet), Watch::of(owner), record.address);
        let message = format!(
            "confirming {address} took long at {}, and another record has this address",
            S::NAME
        );
        for pause in [Duration::ZERO, WITHDRAWAL] {
            if pause > self.call.deadline.left() / 4 {
                // The other claim may be withdrawn yet. The write stays open in the note.
                return Err(Error::new(ErrorCode::TRY_AGAIN, message)
                    .advise("call again, or raise ipam.timeout"));
            }
            self.wait(pause);
            let sight = SubnetSight::look(&mut self.server, &subnet, &watch, None)?;
            if sight.is_some_and(|sight| !sight.is_shared(address)) {
                return Ok(());
            }
        }
        self.delete_own(owner, turn, &subnet.id, record)?;
        Err(Error::new(ErrorCode::TRY_AGAIN, message)
            .advise("call again; if the error persists, re-create the container"))
    }

    /// A list of a subnet that shows the records that were made in it.
    fn look_after(
        &mut self,
        subnet: &Subnet,
        made: &[&Made],
        watch: &Watch,
    ) -> Result<SubnetSight> {
        let mut missing = String::new();
        for _ in 0..LOOKS {
            let sight = SubnetSight::look(&mut self.server, subnet, watch, None)?;
            let Some(sight) = sight else {
                return Err(contradicts::<S>(format!("the subnet {} is missing", subnet.cidr)));
            };
            let unseen = made.iter().find(|made| {
                !sight.own.iter().any(|own| own.record.address == made.record.address)
            });
            match unseen {
                None => return Ok(sight),
                Some(unseen) => missing = unseen.record.address.to_string(),
            }
        }
        Err(contradicts::<S>(format!("the record of {missing} was made, and no list shows it")))
    }
}

fn is_of(owner: &Owner, record: &AddressRecord) -> bool {
    let mark = OwnerMark::parse(&record.text).and_then(Result::ok);
    mark.is_some_and(|mark| mark.is_of(owner))
}
