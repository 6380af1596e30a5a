//! Claims: a record for each address that is taken, and the outcomes without a record.

use std::net::IpAddr;
use std::time::Duration;

use ipam_kit::allocate::ledger::{Change, Claim, Commit, Entry, Taken};
use ipam_kit::allocate::{Owner, PoolRequest};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::ledger::{RecordLedger, RecordToken, contradicts};
use crate::owner_file::{Attempt, Target};
use crate::pools::SubnetPool;
use crate::server::{AddressRecord, Created, RecordServer, Subnet};
use crate::sight::{Marked, SubnetSight, Watch};

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
        let sticky = claim.request.sticky.as_ref().map(|sticky| &*sticky.name);
        let name = sticky.and_then(|name| Some((name, token.names.get(name)?.clone())));
        let replaced = claim.replaces.as_ref();
        let sights = token.sights.iter().filter(|sight| pool.has(&sight.subnet.id));
        let hash = name.as_ref().map(|(_, mark)| &*mark.hash);
        let named = sights.clone().flat_map(|sight| hash.map(|hash| sight.with_name(hash)));
        let named: Vec<&Marked> = named.flatten().collect();
        let old_name = self.old_name(claim.request);
        let unowned = sights.clone().flat_map(|sight| &sight.unowned);
        let unowned = unowned.filter(|record| Some(&*record.text) == old_name);
        let is_free = |address: &&IpAddr| {
            let is_used = sights.clone().any(|sight| sight.used.contains(*address));
            let is_named = named.iter().any(|marked| marked.record.address == **address)
                || unowned.clone().any(|record| record.address == **address);
            !is_used || replaced.is_some() || is_named
        };
        let address = claim.candidates.iter().find(is_free).copied();
        if address.is_none() && !claim.candidates.is_empty() {
            return self.taken(owner, &pool, index, &claim.candidates).map(Some);
        }
        let Some(subnet) = pool.subnet_of(address).cloned() else {
            return Err(contradicts::<S>("the claim is in no subnet of the pool".to_owned()));
        };
        let sight = token.sight(&subnet.id);
        let was_viewed_free = sight.is_some_and(|sight| sight.is_whole);
        // Before anything is deleted: an owner whose mark does not fit is refused.
        let text = self.text(owner, name.as_ref().map(|(name, mark)| (*name, mark)))?;
        // All others lose the name; an address that is kept for it stays kept if another is claimed.
        let (held, kept): (Vec<&Marked>, Vec<&Marked>) =
            named.into_iter().partition(|named| named.mark.holder.is_some());
        let unowned = unowned.filter(|record| Some(record.address) == address);
        let unowned: Vec<AddressRecord> = unowned.cloned().collect();
        let kept = kept.into_iter().filter(|kept| Some(kept.record.address) == address);
        let expired = address.and_then(|address| sight?.expired.get(&address));
        let kept: Vec<AddressRecord> =
            kept.map(|kept| &kept.record).chain(expired).cloned().collect();
        let mut held: Vec<AddressRecord> = held.iter().map(|held| held.record.clone()).collect();
        if let Some(entry) = replaced {
            let Some(record) = self.read_entry(entry)? else {
                return self.taken(owner, &pool, index, &claim.candidates).map(Some);
            };
            held.push(record);
        }
        for record in &held {
            if self.rules.revives {
                let target = Target::Replaces(record.id.clone());
                token.turn.begin_attempt(Attempt::on(target, &subnet.id, Some(record.address)));
            }
            if !self.delete_others(record)? {
                return match replaced {
                    Some(_) => self.taken(owner, &pool, index, &claim.candidates).map(Some),
                    None => Ok(Some(Refused::Changed)),
                };
            }
        }
        for record in &kept {
            if !self.delete_surely(record)? {
                return Ok(Some(Refused::Changed));
            }
        }
        for record in &unowned {
            if !self.delete_unowned(owner, &mut token.turn, &subnet.id, record)? {
                return Ok(Some(Refused::Changed));
            }
        }
        self.memory.remember_use(owner.scope.network.as_str(), &subnet);
        let attempt = Attempt::new(&subnet.id, address);
        let taken = attempt.at;
        token.turn.begin_attempt(attempt);
        let mut created = self.server.create(&subnet, address, &text)?;
        if created == Created::Full && self.make_room(owner, &subnet, &claim.set)? {
            created = self.server.create(&subnet, address, &text)?;
        }
        let record = match created {
            Created::Done(record) => record,
            Created::Owned => {
                if self.looks_first {
                    let what =
                        format!("{owner} has a record in {}, and no list shows it", subnet.cidr);
                    return Err(contradicts::<S>(what));
                }
                self.looks_first = true;
                return Ok(Some(Refused::Guessed));
            }
            Created::Full => return Ok(Some(Refused::Full(index))),
            Created::Unknown => {
                self.has_unknown = true;
                return Ok(Some(Refused::Unknown));
            }
            Created::NoSubnet => {
                self.memory.forget_pools_of(&subnet.id);
                return Ok(Some(Refused::Changed));
            }
            Created::Taken => {
                if was_viewed_free {
                    self.memory.remember_meeting();
                }
                let addresses: Vec<IpAddr> = address.into_iter().collect();
                let refused = self.taken(owner, &pool, index, &addresses)?;
                self.check_shown(claim, &refused)?;
                return Ok(Some(refused));
            }
        };
        let chosen = record.address;
        made.push(Made { claim: index, subnet, record, taken });
        if address.is_some_and(|address| address != chosen) {
            return Err(contradicts::<S>(format!(
                "it made a record of {chosen}, not of the claim"
            )));
        }
        match claim.set.refusal(chosen).filter(|_| address.is_none()) {
            None => Ok(None),
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
