//! A change of an owner: claims, then leases that stay, then leases to release.
//!
//! Without a server that refuses a second record of an address, a claim is confirmed by a list that
//! was read after it: of two claims of one address, the one that reads last sees the other. Both are
//! withdrawn if both were seen.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Change, Claim, Commit, Entry, Taken};
use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::{Lease, Owner, Strategy};
use ipam_kit::{Error, ErrorCode, Result};
use log::debug;

use crate::ledger::{RecordLedger, RecordToken, Revision, contradicts};
use crate::mark::{NameMark, NotedOwner};
use crate::memory::RecordNote;
use crate::owner_file::{Attempt, NotedRecord, OwnerRecords};
use crate::pools::SubnetPool;
use crate::server::{AddressRecord, Created, RecordServer, Rewritten, Subnet};
use crate::sight::{SubnetSight, Watch};

/// A record that this change has made.
struct Made {
    claim: usize,
    subnet: Subnet,
    record: AddressRecord,
    taken: u64,
}

/// Why the claims of a change are not made.
enum Refused {
    /// These addresses are taken.
    Taken(Vec<Taken>),
    /// Other records were made at these addresses at the same time.
    Met(Vec<Taken>),
    /// An entry to replace has changed.
    Changed,
    /// A lease of the owner has changed.
    Outdated,
    Full(usize),
    Unknown,
}

/// How often a claim may meet another one at its address.
const CLASHES: u32 = 8;

/// How often a list is read until it shows a record that exists.
const LOOKS: u32 = 3;

/// After how long a request of a killed call is certainly over, in milliseconds.
const SETTLED: u64 = 600_000;

impl<S: RecordServer> RecordLedger<S> {
    /// Makes a change that claims or keeps.
    pub(crate) fn make_change(
        &mut self,
        owner: &Owner,
        mut token: RecordToken,
        change: &Change<'_>,
    ) -> Result<Commit<RecordToken>> {
        let before = token.turn.note().cloned();
        let (mut made, mut kept) = (Vec::new(), Vec::new());
        match self.change_all(owner, &mut token, change, &mut made, &mut kept) {
            Ok(None) => {}
            Err(error) => {
                let withdrawn = self.withdraw(&made);
                if withdrawn.is_ok() {
                    restore(&mut token, before, self.has_unknown);
                }
                return Err(error.and(withdrawn.err()));
            }
            // What was made is the owner's, and the next view shows it.
            Ok(Some(Refused::Unknown)) => return Ok(Commit::Unknown),
            Ok(Some(refused)) => {
                self.withdraw(&made)?;
                restore(&mut token, before, self.has_unknown);
                return self.lost(owner, refused);
            }
        }
        let mut claimed = Vec::new();
        for (index, claim) in change.claim.iter().enumerate() {
            let made = made.iter().find(|made| made.claim == index);
            let made = made.ok_or_else(|| contradicts::<S>("a claim has no record".to_owned()))?;
            let revision = Revision::of(&made.record, &made.subnet.id).to_json();
            claimed.push(claim.lease(made.record.address, revision));
        }
        self.note_all(owner, &mut token, before.as_ref(), change, &kept, &claimed, &made);
        Ok(Commit::Done { kept, claimed })
    }

    /// Claims, then confirms, then writes the leases that stay again, then releases.
    fn change_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        change: &Change<'_>,
        made: &mut Vec<Made>,
        kept: &mut Vec<Lease>,
    ) -> Result<Option<Refused>> {
        if let Some(refused) = self.claim_all(owner, token, change, made)? {
            return Ok(Some(refused));
        }
        if let Some(refused) = self.confirm_all(owner, token, change, made)? {
            return Ok(Some(refused));
        }
        if let Some(refused) = self.keep_all(owner, token, change, kept)? {
            return Ok(Some(refused));
        }
        for lease in &change.drop {
            if !self.release_lease(owner, lease)? {
                return Ok(Some(Refused::Outdated));
            }
        }
        Ok(None)
    }

    /// Makes a record for each claim, those of kept addresses last: an earlier claim may fail, and a
    /// name would lose its address.
    fn claim_all(
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
        let sight_of = |address| token.sight(&pool.subnet_of(Some(address))?.id);
        let is_free = |address: &&IpAddr| {
            let sight = sight_of(**address);
            let used = sight.is_some_and(|sight| sight.used.contains(address));
            !used || replaced.is_some() || bearer(sight, name.as_ref(), **address).is_some()
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
        let in_the_way = address.and_then(|address| {
            let bearer = bearer(sight, name.as_ref(), address);
            bearer.or_else(|| sight?.expired.get(&address).cloned())
        });
        if let Some(entry) = replaced
            && !self.remove_replaced(entry)?
        {
            return Ok(Some(Refused::Changed));
        }
        if let Some(record) = in_the_way
            && !self.delete_surely(&record)?
        {
            return Ok(Some(Refused::Changed));
        }
        let text = self.text(owner, name.as_ref().map(|(name, mark)| (*name, mark)))?;
        let at = now();
        self.memory.remember_use(owner.scope.network.as_str(), &subnet);
        let mut note = token.turn.note().cloned().unwrap_or_default();
        note.sure = false;
        note.attempts.push(Attempt { subnet: subnet.id.clone(), address, at });
        token.turn.write(note);
        let record = match self.server.create(&subnet, address, &text)? {
            Created::Done(record) => record,
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
                self.check_shown(claim, &subnet, &refused)?;
                return Ok(Some(refused));
            }
        };
        let chosen = record.address;
        made.push(Made { claim: index, subnet, record, taken: at });
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

    /// Fails if the server refuses addresses again and again of which it shows no record: a subnet
    /// around this one has them, or one inside of it. A record may also go before it is looked for.
    fn check_shown(&mut self, claim: &Claim<'_>, subnet: &Subnet, refused: &Refused) -> Result<()> {
        let Refused::Taken(taken) = refused else { return Ok(()) };
        let Some(hidden) = taken.iter().find(|it| it.holder.is_none()) else { return Ok(()) };
        self.hidden += 1;
        let most = if claim.request.requested.is_some() { 2 } else { CLASHES };
        if self.hidden < most {
            return Ok(());
        }
        let message = format!(
            "{} refuses {} as used, and shows no record of it in {}: a related subnet has one",
            S::NAME,
            hidden.address,
            subnet.cidr
        );
        Err(Error::new(ErrorCode::TAKEN, message).at(&claim.request.path).advise(
            "delete the record in the subnet around this one or inside of it, or exclude the address from the pool",
        ))
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

    /// Reads the subnets of the records that were made, and refuses what another record meets. Of
    /// the owner's records, those that a request of unknown outcome made beside them are deleted.
    fn confirm_all(
        &mut self,
        owner: &Owner,
        token: &RecordToken,
        change: &Change<'_>,
        made: &[Made],
    ) -> Result<Option<Refused>> {
        if self.rules.creates_once || made.is_empty() {
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
        let subnets: BTreeSet<&String> = made.iter().map(|made| &made.subnet.id).collect();
        let mut met = Vec::new();
        for id in subnets {
            let here: Vec<&Made> = made.iter().filter(|made| made.subnet.id == *id).collect();
            let sight = self.look_after(&here, &watch)?;
            for made in &here {
                let address = made.record.address;
                let name = change.claim[made.claim].request.sticky.as_ref();
                let name = name.and_then(|name| token.names.get(&name.name));
                let has_rival = name.is_some_and(|name| sight.rival(&name.hash).is_some());
                if sight.is_shared(address) || has_rival {
                    debug!("{} met another record at {address}", made.record.id);
                    met.push(Taken { claim: made.claim, address, holder: None });
                }
            }
            for surplus in sight.own.iter().filter(|own| !known.contains(&own.record.id)) {
                self.delete_surely(&surplus.record)?;
            }
        }
        if met.is_empty() {
            return Ok(None);
        }
        Ok(Some(Refused::Met(met)))
    }

    /// The outcome of claims that were withdrawn.
    fn lost(&mut self, owner: &Owner, refused: Refused) -> Result<Commit<RecordToken>> {
        let taken = match refused {
            Refused::Full(claim) => return Ok(Commit::Full { claim }),
            Refused::Unknown => return Ok(Commit::Unknown),
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

    /// A list of a subnet that shows the records that were made in it.
    fn look_after(&mut self, made: &[&Made], watch: &Watch) -> Result<SubnetSight> {
        let mut missing = String::new();
        for _ in 0..LOOKS {
            let subnet = &made[0].subnet;
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

    /// Writes the leases that stay again.
    fn keep_all(
        &mut self,
        owner: &Owner,
        token: &RecordToken,
        change: &Change<'_>,
        kept: &mut Vec<Lease>,
    ) -> Result<Option<Refused>> {
        for lease in &change.keep {
            let Some(revision) = Revision::read(lease) else {
                return Ok(Some(Refused::Outdated));
            };
            let name = lease.sticky.as_deref();
            let name = name.and_then(|name| Some((name, token.names.get(name)?)));
            let text = self.text(owner, name)?;
            let record = revision.clone().record(lease);
            let written = match self.server.write(&record, &text)? {
                Rewritten::Done(written) => Some(written),
                Rewritten::Changed => None,
                Rewritten::Unknown => {
                    self.has_unknown = true;
                    let read = self.server.read(&revision.id)?;
                    // The text may be as before, and the request may come later.
                    if read.as_ref().is_some_and(|read| read.stamp == record.stamp) {
                        return Ok(Some(Refused::Unknown));
                    }
                    read.filter(|read| read.text == text)
                }
            };
            let Some(written) = written.filter(|written| written.address == record.address) else {
                return Ok(Some(Refused::Outdated));
            };
            let revision = Revision::of(&written, &revision.subnet).to_json();
            kept.push(Lease { revision, ..lease.clone() });
        }
        Ok(None)
    }

    /// Deletes the records that this change has made.
    ///
    /// # Errors
    /// The server did not confirm it.
    fn withdraw(&mut self, made: &[Made]) -> Result<()> {
        let failed = made.iter().filter_map(|made| self.delete_surely(&made.record).err());
        Error::join(failed.collect::<Vec<_>>())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one change")]
    fn note_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        before: Option<&OwnerRecords>,
        change: &Change<'_>,
        kept: &[Lease],
        claimed: &[Lease],
        made: &[Made],
    ) {
        let noted = |lease: &Lease, taken: Option<u64>| {
            let revision = Revision::read(lease)?;
            let known = before.and_then(|note| note.records.iter().find(|it| it.id == revision.id));
            Some(NotedRecord {
                taken: taken.or(known.map(|known| known.taken)).unwrap_or_default(),
                sticky: lease.sticky.clone(),
                address: lease.address.addr(),
                id: revision.id,
                subnet: revision.subnet,
            })
        };
        let taken = |lease: &Lease| lease.taken.and_then(milliseconds);
        let stay = change.keep.iter().zip(kept).map(|(seen, kept)| noted(kept, taken(seen)));
        let leave = change.leave.iter().map(|lease| noted(lease, taken(lease)));
        let new = claimed.iter().zip(&change.claim).enumerate().map(|(index, (lease, _))| {
            let made = made.iter().find(|made| made.claim == index);
            noted(lease, made.map(|made| made.taken))
        });
        let records: Vec<NotedRecord> = stay.chain(leave).chain(new).flatten().collect();
        let is_settled = before.is_none_or(|note| {
            let mut attempts = note.attempts.iter();
            note.sure || (attempts.len() > 0 && attempts.all(|it| now().abs_diff(it.at) > SETTLED))
        });
        let sure = is_settled && !self.has_unknown;
        let attempts = match sure {
            true => Vec::new(),
            false => token.turn.note().map(|note| note.attempts.clone()).unwrap_or_default(),
        };
        let latest = made.iter().map(|made| {
            let AddressRecord { id, address, .. } = &made.record;
            let note =
                RecordNote { id: id.clone(), address: *address, owner: NotedOwner::of(owner) };
            (made.subnet.id.clone(), note)
        });
        let latest: Vec<_> = latest.collect();
        if !latest.is_empty() {
            self.memory.remember_records(&latest);
        }
        for (lease, claim) in claimed.iter().zip(&change.claim) {
            if claim.request.strategy == Strategy::RoundRobin
                && let Some(pool) = token.pools.get(&claim.request.path)
            {
                let key = pool.key(self.call.network.as_str());
                self.memory.remember_cursor(&key, lease.address.addr());
            }
        }
        let note = OwnerRecords { sure, records, attempts };
        if token.turn.note() != Some(&note) {
            token.turn.write(note);
        }
    }
}

/// The record that has a name at an address.
fn bearer(
    sight: Option<&SubnetSight>,
    name: Option<&(&str, NameMark)>,
    address: IpAddr,
) -> Option<AddressRecord> {
    let (_, mark) = name?;
    let sight = sight?;
    let bearer = sight.rival(&mark.hash).or_else(|| sight.kept(&mark.hash))?;
    (bearer.record.address == address).then(|| bearer.record.clone())
}

/// Notes what was noted before a change of which nothing is left.
fn restore(token: &mut RecordToken, before: Option<OwnerRecords>, has_unknown: bool) {
    if has_unknown || token.turn.note() == before.as_ref() {
        return;
    }
    match before {
        Some(before) => token.turn.write(before),
        None => token.turn.forget(),
    }
}

fn milliseconds(time: std::time::SystemTime) -> Option<u64> {
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}
