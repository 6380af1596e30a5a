//! Claims: a record for each address that is taken, and the outcomes without a record.

use std::net::IpAddr;
use std::time::Duration;

use ipam_kit::allocate::ledger::{Change, Claim, Commit, Entry, Taken};
use ipam_kit::allocate::{Owner, PoolRequest};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::claim_plan::ClaimPlan;
use crate::ledger::{RecordLedger, RecordToken, contradicts};
use crate::owner_file::{Attempt, OwnerFile, Target};
use crate::pools::SubnetPool;
use crate::server::{AddressRecord, Created, RecordServer, Subnet};
use crate::sight::{SubnetSight, Watch};

/// A record that this change has made.
pub(crate) struct Made {
    pub(crate) claim: usize,
    pub(crate) subnet: Subnet,
    pub(crate) record: AddressRecord,
    pub(crate) taken: u64,
}

/// Why the claims of a change are not made.
pub(crate) enum Refused {
    /// These addresses are taken.
    Taken(Vec<Taken>),
    /// Other records were made at these addresses at the same time.
    Met(Vec<Taken>),
    /// A record that has the sticky name has changed, or the subnet is missing.
    Changed,
    /// A lease of the owner has changed.
    Outdated,
    /// The owner has a record that was not looked for.
    Guessed,
    Full(usize),
    Unknown,
}

/// How often a claim may meet another one at its address.
const CLASHES: u32 = 8;

/// How long another claim takes at most until it is withdrawn.
pub(crate) const WITHDRAWAL: Duration = Duration::from_secs(1);

impl<S: RecordServer> RecordLedger<S> {
    /// Makes a record for each claim, those of kept addresses last: an earlier claim may fail, and a
    /// name would lose its address.
    pub(crate) fn claim_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        change: &Change<'_>,
        made: &mut Vec<Made>,
    ) -> Result<Option<Refused>> {
        let mut order: Vec<usize> = (0..change.claim.len()).collect();
        order.sort_by_key(|index| change.claim[*index].request.sticky.is_some());
        for index in order {
            if let Some(refused) = self.claim(owner, token, index, &change.claim[index], made)? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    fn claim(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        index: usize,
        claim: &Claim<'_>,
        made: &mut Vec<Made>,
    ) -> Result<Option<Refused>> {
        let Some(pool) = token.pools.get(&claim.request.path).cloned() else {
            return Err(contradicts::<S>(format!("{} was not viewed", claim.request.path)));
        };
        let Some(plan) = self.plan_claim(owner, token, claim, &pool)? else {
            return self.taken(owner, &pool, index, &claim.candidates).map(Some);
        };
        if !self.delete_former(owner, &mut token.turn, claim, &plan)? {
            return match claim.replaces {
                Some(_) => self.taken(owner, &pool, index, &claim.candidates).map(Some),
                None => Ok(Some(Refused::Changed)),
            };
        }
        self.memory.remember_use(owner.scope.network.as_str(), &plan.subnet);
        let attempt = Attempt::new(&plan.subnet.id, plan.address);
        let taken = attempt.at;
        token.turn.begin_attempt(attempt);
        let record = match self.make_record(owner, index, claim, &pool, &plan)? {
            Ok(record) => record,
            Err(refused) => return Ok(Some(refused)),
        };
        let chosen = record.address;
        made.push(Made { claim: index, subnet: plan.subnet, record, taken });
        self.check_chosen(claim, plan.address, chosen).map(|()| None)
    }

    /// Deletes the records that the one of a claim replaces; false if one has changed since the view.
    ///
    /// # Errors
    /// Code 11: a call of another owner is under way. The server did not confirm it, or refuses.
    fn delete_former(
        &mut self,
        owner: &Owner,
        turn: &mut OwnerFile,
        claim: &Claim<'_>,
        plan: &ClaimPlan,
    ) -> Result<bool> {
        let mut held = plan.held.clone();
        if let Some(entry) = &claim.replaces {
            let Some(record) = self.read_entry(entry)? else { return Ok(false) };
            held.push((plan.subnet.id.clone(), record));
        }
        let mut note = |target: Target, subnet: &str, record: &AddressRecord| {
            let attempt = Attempt::on(target, subnet, Some(record.address));
            turn.begin_attempt(attempt.of_name(plan.name.as_deref()));
        };
        for (subnet, record) in &held {
            if self.rules.revives {
                note(Target::Replaces(record.id.clone()), subnet, record);
            } else if plan.name.is_some() {
                note(Target::Returns(record.id.clone()), subnet, record);
            }
            if !self.delete_others(record)? {
                return Ok(false);
            }
        }
        for record in &plan.kept {
            if Some(record.address) == plan.address {
                note(Target::Returns(record.id.clone()), &plan.subnet.id, record);
            }
            if !self.delete_surely(record)? {
                return Ok(false);
            }
        }
        for record in &plan.unowned {
            if !self.delete_unowned(owner, turn, &plan.subnet.id, record)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the record of a claim.
    fn make_record(
        &mut self,
        owner: &Owner,
        index: usize,
        claim: &Claim<'_>,
        pool: &SubnetPool,
        plan: &ClaimPlan,
    ) -> Result<Result<AddressRecord, Refused>> {
        let ClaimPlan { subnet, address, text, .. } = plan;
        let mut created = self.server.create(subnet, *address, text)?;
        if created == Created::Full && self.make_room(owner, subnet, &claim.set)? {
            created = self.server.create(subnet, *address, text)?;
        }
        Ok(Err(match created {
            Created::Done(record) => return Ok(Ok(record)),
            Created::Owned => {
                if self.looks_first {
                    let what =
                        format!("{owner} has a record in {}, and no list shows it", subnet.cidr);
                    return Err(contradicts::<S>(what));
                }
                self.looks_first = true;
                Refused::Guessed
            }
            Created::Full => Refused::Full(index),
            Created::Unknown => {
                self.has_unknown = true;
                Refused::Unknown
            }
            Created::NoSubnet => {
                self.memory.forget_pools_of(&subnet.id);
                Refused::Changed
            }
            Created::Taken => {
                if plan.was_viewed_free {
                    self.memory.remember_meeting();
                }
                let addresses: Vec<IpAddr> = address.iter().copied().collect();
                let refused = self.taken(owner, pool, index, &addresses)?;
                self.check_shown(claim, &refused)?;
                refused
            }
        }))
    }

    /// Fails if a record that was made has another address than its claim, or one that the server may
    /// not choose.
    fn check_chosen(
        &self,
        claim: &Claim<'_>,
        claimed: Option<IpAddr>,
        chosen: IpAddr,
    ) -> Result<()> {
        if claimed.is_some_and(|claimed| claimed != chosen) {
            let what = format!("it made a record of {chosen}, not of the claim");
            return Err(contradicts::<S>(what));
        }
        match claim.set.refusal(chosen).filter(|_| claimed.is_none()) {
            None => Ok(()),
            Some(refusal) => {
                let message = format!("{} chose {chosen}, which is {refusal}", S::NAME);
                Err(Error::new(ErrorCode::BACKEND, message)
                    .advise("reserve this address in the server, so that it is not given out"))
            }
        }
    }

    /// Deletes the records of addresses that were kept for names whose time is over, and says whether
    /// there was one.
    fn make_room(&mut self, owner: &Owner, subnet: &Subnet, set: &RangeSet) -> Result<bool> {
        let watch = Watch::of(owner);
        let Some(mut sight) = SubnetSight::look(&mut self.server, subnet, &watch, None)? else {
            return Ok(false);
        };
        sight.look_for_expired(&mut self.server)?;
        let mut has_room = false;
        for (address, record) in sight.expired {
            if set.refusal(address).is_none() {
                has_room |= self.delete_surely(&record)?;
            }
        }
        Ok(has_room)
    }

    /// Addresses that are taken; a single one with its holder.
    fn taken(
        &mut self,
        owner: &Owner,
        pool: &SubnetPool,
        claim: usize,
        addresses: &[IpAddr],
    ) -> Result<Refused> {
        let holder = match addresses {
            [address] => match pool.subnet_of(Some(*address)) {
                Some(subnet) => self.entry_at(owner, subnet, *address)?,
                None => None,
            },
            _ => None,
        };
        let taken = addresses.iter();
        let taken = taken.map(|address| Taken { claim, address: *address, holder: holder.clone() });
        Ok(Refused::Taken(taken.collect()))
    }

    /// Judges an address that the server refuses as used, and of which it shows no record: a subnet
    /// around this one has it, or one inside of it, or a claim that was withdrawn meanwhile.
    ///
    /// # Errors
    /// Code 102: a requested address is refused again after a pause. Code 11: others are refused so
    /// often that few can be free.
    fn check_shown(&mut self, claim: &Claim<'_>, refused: &Refused) -> Result<()> {
        let Refused::Taken(taken) = refused else { return Ok(()) };
        let Some(hidden) = taken.iter().find(|it| it.holder.is_none()) else { return Ok(()) };
        let refusals = self.hidden.entry(hidden.address).or_default();
        *refusals += 1;
        let is_first = *refusals == 1;
        if claim.request.requested.is_some() {
            if is_first {
                self.wait(WITHDRAWAL);
                return Ok(());
            }
            return Err(self.hides(ErrorCode::TAKEN, claim.request, &[hidden.address]));
        }
        if self.hidden.values().sum::<u32>() >= CLASHES {
            let hidden: Vec<IpAddr> = self.hidden.keys().copied().collect();
            return Err(self.hides(ErrorCode::TRY_AGAIN, claim.request, &hidden));
        }
        warn!("{} refuses {} as used, and shows no record of it", S::NAME, hidden.address);
        if is_first {
            self.pause();
        }
        Ok(())
    }

    /// The error that the server refuses addresses as used, and shows no records of them.
    pub(crate) fn hides(
        &self,
        code: ErrorCode,
        request: &PoolRequest,
        addresses: &[IpAddr],
    ) -> Error {
        let addresses = Error::listed(addresses.iter().map(IpAddr::to_string), ", ");
        let message = format!(
            "{} refuses {addresses} as used, and shows no record in the pool: a related subnet has one",
            S::NAME
        );
        Error::new(code, message).at(&request.path).advise(
            "delete the record in the subnet around this one or inside of it, or exclude the address from the pool",
        )
    }

    /// The entry of an address.
    fn entry_at(
        &mut self,
        owner: &Owner,
        subnet: &Subnet,
        address: IpAddr,
    ) -> Result<Option<Entry>> {
        let watch = Watch { addresses: [address].into(), ..Watch::of(owner) };
        let sight = SubnetSight::look(&mut self.server, subnet, &watch, None)?;
        let record = sight.and_then(|mut sight| sight.watched.remove(&address));
        Ok(record.map(|record| self.entry(&record, subnet)))
    }

    /// The outcome of claims that were withdrawn.
    pub(crate) fn lost(&mut self, owner: &Owner, refused: Refused) -> Result<Commit<RecordToken>> {
        let taken = match refused {
            Refused::Full(claim) => return Ok(Commit::Full { claim }),
            Refused::Unknown => return Ok(Commit::Unknown),
            Refused::Guessed => return Ok(Commit::Outdated),
            Refused::Changed => Vec::new(),
            Refused::Outdated => {
                self.trusts_notes = false;
                Vec::new()
            }
            Refused::Taken(taken) => taken,
            Refused::Met(met) => {
                self.memory.remember_meeting();
                self.clashes += 1;
                if self.clashes >= CLASHES {
                    let message = format!(
                        "{CLASHES} claims of {owner} met those of others at their addresses"
                    );
                    return Err(Error::new(ErrorCode::TRY_AGAIN, message).advise(
                        "call again; if the error persists, start fewer containers at once",
                    ));
                }
                self.pause();
                met
            }
        };
        Ok(Commit::Lost { taken, view: None })
    }
}
