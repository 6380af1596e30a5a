//! The leases of an owner, by its note or by lists.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{View, ViewQuery};
use ipam_kit::allocate::owner_index::time;
use ipam_kit::allocate::{Lease, Owner, PoolRequest};
use ipam_kit::{ErrorCode, Result};
use ipnet::IpNet;
use log::warn;

use crate::ledger::{HeldGuard, RecordLedger, RecordToken, Revision};
use crate::mark::OwnerMark;
use crate::owner_file::{OwnerFile, OwnerRecords};
use crate::pools;
use crate::server::{RecordServer, Subnet};
use crate::sight::{Marked, SubnetSight, Watch};
use crate::unowned::cached_addresses;

impl<S: RecordServer> RecordLedger<S> {
    /// A view for a release or a CHECK.
    pub(crate) fn view_held(
        &mut self,
        query: &ViewQuery<'_>,
        mut turn: OwnerFile,
    ) -> Result<View<RecordToken>> {
        let owner = query.owner;
        if query.may_guess && !query.known.is_empty() {
            let token = token(turn, HeldGuard::Guessed);
            return Ok(View { held: query.known.to_vec(), sure: false, pools: Vec::new(), token });
        }
        let is_sure = turn.note().is_some_and(|note| note.sure) && self.trusts_notes;
        if is_sure && let Some(held) = self.read_noted(owner, &turn, &[])? {
            return Ok(shown(turn, held, true, Vec::new()));
        }
        let ids: Vec<Revision> = query.known.iter().filter_map(Revision::read).collect();
        if turn.note().is_none()
            && self.trusts_notes
            && !ids.is_empty()
            && ids.len() == query.known.len()
        {
            let mut held = Vec::new();
            for revision in ids {
                held.extend(self.read_own(owner, &revision.id, &revision.subnet, None)?);
            }
            if held.len() == query.known.len() {
                return Ok(shown(turn, held, false, Vec::new()));
            }
        }
        let mut subnets = BTreeMap::new();
        for lease in query.known {
            if let Some(Revision { subnet, .. }) = Revision::read(lease) {
                let cidr = lease.address;
                subnets.insert(subnet.clone(), Subnet { cidr, ..bare_subnet(&subnet) });
            }
        }
        for subnet in noted_subnets(turn.note()) {
            subnets.entry(subnet).or_insert_with_key(|id| bare_subnet(id));
        }
        let before = turn.note().map(|note| note.looked.clone()).unwrap_or_default();
        let mut looked = before.clone();
        let is_unused = self.memory.used(self.call.network.as_str()).is_empty();
        let is_unnoted = turn.is_locked() && turn.note().is_none();
        if is_unused && is_unnoted && self.call.is_of_nothing {
            // A claim is noted before it is sent.
            return Ok(shown(turn, Vec::new(), true, Vec::new()));
        }
        let noted = noted_subnets(turn.note());
        // The memory may be lost, and the pools may have changed.
        let looks_everywhere = is_unused || !looked.is_empty();
        let of_network = match looks_everywhere {
            true => self.all_subnets()?,
            false => self.subnets_of_network()?,
        };
        for subnet in of_network {
            subnets.insert(subnet.id.clone(), subnet);
        }
        let count = subnets.len();
        subnets.retain(|id, _| !looked.contains(id));
        let mut watch = Watch::of(owner);
        let looks_for_unowned = self.call.releases && self.call.adopts;
        if looks_for_unowned {
            watch.addresses = cached_addresses(owner)?;
        }
        let (mut sights, mut held) = (Vec::new(), Vec::new());
        for subnet in subnets.into_values() {
            let sight = match SubnetSight::look(&mut self.server, &subnet, &watch, None) {
                Err(error) if self.call.releases && looks_everywhere => {
                    let done = looked.len();
                    if looked != before {
                        turn.remember_looked(looked);
                    }
                    return Err(error.within(format_args!(
                        "looked for records of {owner} in {done} of {count} subnets: a repeated DEL looks into the others"
                    )));
                }
                sight => sight?,
            };
            let Some(sight) = sight else {
                self.memory.forget_subnet(&subnet.id);
                continue;
            };
            // An open request may still make a record in a noted one.
            if sight.own.is_empty() && sight.watched.is_empty() && !noted.contains(&subnet.id) {
                looked.insert(subnet.id);
            }
            held.extend(
                sight.own.iter().map(|own| self.lease(own, &sight.subnet, turn.note(), &[])),
            );
            sights.push(sight);
        }
        if looks_for_unowned {
            self.release_unowned(owner, &mut turn, &sights)?;
        }
        if self.call.releases && !self.call.is_undo && self.server.adopts() && held.is_empty() {
            self.check_other_sites(owner)?;
        }
        if self.call.releases && held.is_empty() {
            turn.leave(Vec::new(), false);
        }
        Ok(shown(turn, held, true, sights))
    }

    /// Reads the noted records of an owner; `None` if the owner has lost one of them.
    pub(crate) fn read_noted(
        &mut self,
        owner: &Owner,
        turn: &OwnerFile,
        requests: &[PoolRequest],
    ) -> Result<Option<Vec<Lease>>> {
        let mut held = Vec::new();
        for noted in turn.note().into_iter().flat_map(|note| note.records.clone()) {
            let Some(mut lease) = self.read_own(owner, &noted.id, &noted.subnet, turn.note())?
            else {
                self.trusts_notes = false;
                return Ok(None);
            };
            let requested = requests.iter().filter_map(|request| request.sticky.as_ref());
            let name = requested
                .map(|sticky| &sticky.name)
                .find(|name| Some(*name) == noted.sticky.as_ref());
            lease.sticky = name.cloned().or(noted.sticky);
            held.push(lease);
        }
        Ok(Some(held))
    }

    /// Reads a record of an owner; `None` if the owner does not have it.
    fn read_own(
        &mut self,
        owner: &Owner,
        id: &str,
        subnet: &str,
        note: Option<&OwnerRecords>,
    ) -> Result<Option<Lease>> {
        let record = self.server.read(id)?;
        let marked = record.and_then(|record| {
            let mark = OwnerMark::parse(&record.text)?.ok()?;
            mark.is_of(owner).then_some(Marked { record, mark })
        });
        let known = self.memory.used(owner.scope.network.as_str());
        let known = known.into_iter().find(|known| known.id == subnet);
        let subnet = known.unwrap_or_else(|| bare_subnet(subnet));
        Ok(marked.map(|marked| self.lease(&marked, &subnet, note, &[])))
    }

    /// A record as a lease of its owner.
    pub(crate) fn lease(
        &self,
        marked: &Marked,
        subnet: &Subnet,
        note: Option<&OwnerRecords>,
        requests: &[PoolRequest],
    ) -> Lease {
        let Marked { record, mark } = marked;
        let network = self.call.network.as_str();
        let sticky = mark.sticky.as_ref().map(|sticky| {
            let names = requests.iter().filter_map(|request| request.sticky.as_ref());
            let name = names
                .map(|name| &name.name)
                .find(|name| crate::mark::sticky_hash(network, name) == sticky.hash);
            name.cloned().unwrap_or_else(|| format!("#{}", sticky.hash))
        });
        let noted = note.and_then(|note| note.records.iter().find(|noted| noted.id == record.id));
        let attempt = note.and_then(|note| {
            note.attempts
                .iter()
                .filter(|attempt| attempt.target.is_none())
                .find(|attempt| attempt.address.is_none_or(|it| it == record.address))
        });
        let taken = noted.map(|noted| noted.taken).or(attempt.map(|attempt| attempt.at));
        let prefix = if subnet.cidr.contains(&record.address) {
            subnet.cidr.prefix_len()
        } else {
            IpNet::from(record.address).prefix_len()
        };
        let address = IpNet::new(record.address, prefix).unwrap_or(IpNet::from(record.address));
        Lease {
            sticky,
            gateway: subnet.gateway,
            taken: taken.filter(|taken| *taken > 0).map(time),
            ..Lease::bare(address, Revision::of(record, &subnet.id).to_json())
        }
    }

    /// The subnets in which records of this network may be: those that it has used on this node, and
    /// those of its pools. If both are unknown, all subnets of the server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(crate) fn subnets_of_network(&mut self) -> Result<Vec<Subnet>> {
        let mut subnets: BTreeMap<String, Subnet> = BTreeMap::new();
        for subnet in self.memory.used(self.call.network.as_str()) {
            subnets.insert(subnet.id.clone(), subnet);
        }
        for request in self.call.pools.clone() {
            match pools::find_subnets(&mut self.server, &mut self.memory, &request) {
                Ok(found) => subnets.extend(found.into_iter().map(|it| (it.id.clone(), it))),
                // A release needs no pool that can be used.
                Err(error) if error.code() == ErrorCode::INVALID_CONFIG => {
                    warn!("ignores the pool: {}", error.in_full());
                }
                Err(error) => return Err(error),
            }
        }
        match subnets.is_empty() {
            true => self.all_subnets(),
            false => Ok(subnets.into_values().collect()),
        }
    }

    fn all_subnets(&mut self) -> Result<Vec<Subnet>> {
        let mut subnets = BTreeMap::new();
        self.server.subnets("", &mut |subnet| drop(subnets.insert(subnet.id.clone(), subnet)))?;
        Ok(subnets.into_values().collect())
    }
}

fn token(turn: OwnerFile, held: HeldGuard) -> RecordToken {
    RecordToken { turn, held, sights: Vec::new(), pools: BTreeMap::new(), names: BTreeMap::new() }
}

pub(crate) fn shown(
    turn: OwnerFile,
    held: Vec<Lease>,
    sure: bool,
    sights: Vec<SubnetSight>,
) -> View<RecordToken> {
    let keys = held.iter().filter_map(Revision::read).map(|revision| revision.key()).collect();
    let token = RecordToken { sights, ..token(turn, HeldGuard::Seen(keys)) };
    View { held, sure, pools: Vec::new(), token }
}

pub(crate) fn noted_subnets(note: Option<&OwnerRecords>) -> BTreeSet<String> {
    let Some(note) = note else { return BTreeSet::new() };
    let of_records = note.records.iter().map(|record| record.subnet.clone());
    of_records.chain(note.attempts.iter().map(|attempt| attempt.subnet.clone())).collect()
}

/// A subnet of which only the id is known.
pub(crate) fn bare_subnet(id: &str) -> Subnet {
    let (id, name, cidr) = (id.to_owned(), String::new(), IpAddr::from([0; 4]).into());
    Subnet { id, name, cidr, gateway: None, parent: None, refusal: None }
}
