//! Views for an ADD: the owner's leases, and the free addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Hint, PoolView, Scan, Used, View, ViewQuery};
use ipam_kit::allocate::{Lease, Owner, PoolRequest, Strategy};
use ipam_kit::pool::RangeSet;
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::held::{bare_subnet, noted_subnets, shown};
use crate::ledger::{RecordLedger, RecordToken};
use crate::mark::{NameMark, OwnerMark};
use crate::node_records::open_attempts;
use crate::owner_file::OwnerFile;
use crate::pools::{self, SubnetPool};
use crate::server::{AddressRecord, RecordServer, Subnet};
use crate::sight::{Marked, SubnetSight, Watch};

impl<S: RecordServer> RecordLedger<S> {
    /// A view for an ADD.
    pub(crate) fn view_pools(
        &mut self,
        query: &ViewQuery<'_>,
        mut turn: OwnerFile,
    ) -> Result<View<RecordToken>> {
        self.memory.remember_recovery();
        self.check_not_restored()?;
        let (owner, requests) = (query.owner, query.requests);
        let mut found = Vec::new();
        for request in requests {
            found.push(pools::find(&mut self.server, &mut self.memory, request)?);
        }
        if !self.rules.claims_prove_rights && !self.memory.has_rights() {
            self.prove_rights()?;
        }
        let is_sure =
            turn.note().is_some_and(|note| note.sure && !note.may_end_any()) && self.trusts_notes;
        if is_sure
            && notes_serve(&turn, requests, &found)
            && let Some(held) = self.read_noted(owner, &turn, requests)?
            && serve(held.clone(), requests, &found)
        {
            let pools = found
                .iter()
                .map(|pool| PoolView { set: Some(pool.set.clone()), ..PoolView::default() });
            let pools = pools.collect();
            let mut view = shown(turn, held, true, Vec::new());
            view.token.add_requests(owner, requests, found);
            return Ok(View { pools, ..view });
        }
        let mut subnets: BTreeMap<String, Subnet> = found
            .iter()
            .flat_map(|pool| &pool.subnets)
            .map(|it| (it.id.clone(), it.clone()))
            .collect();
        let used = self.memory.used(owner.scope.network.as_str());
        for id in noted_subnets(turn.note()) {
            let known = used.iter().find(|known| known.id == id).cloned();
            subnets.entry(id).or_insert_with_key(|id| known.unwrap_or_else(|| bare_subnet(id)));
        }
        let names: BTreeMap<String, NameMark> = names(owner, requests);
        let watch = Watch {
            names: names.values().map(|mark| mark.hash.clone()).collect(),
            addresses: requests.iter().filter_map(|request| request.requested).collect(),
            old_names: requests
                .iter()
                .filter_map(|request| self.old_name(request).map(str::to_owned))
                .collect(),
            ..Watch::of(owner)
        };
        // Before the lists: they may lack a record that is noted later.
        let noted = self.noted();
        let mut sights = Vec::new();
        for subnet in subnets.into_values() {
            let here = noted.iter().filter(|noted| noted.record.subnet == subnet.id);
            let watch = Watch { noted: here.cloned().collect(), ..watch.clone() };
            let is_by_store = turn.note().is_none() && self.is_by_store(query, &found, &subnet);
            let sight = match is_by_store {
                true => self.look_by_store(query, &found, &subnet, &watch)?,
                false => SubnetSight::look(&mut self.server, &subnet, &watch, None)?,
            };
            let Some(sight) = sight else {
                self.memory.forget_subnet(&subnet.id);
                if !found.iter().any(|pool| pool.has(&subnet.id)) {
                    // The owner's records are gone with it.
                    continue;
                }
                let message = format!("{} has no subnet {} any more", S::NAME, subnet.id);
                return Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"));
            };
            self.check_latest(&sight)?;
            sights.push(sight);
        }
        for sight in &mut sights {
            self.withdraw_unconfirmed(owner, sight, &mut turn)?;
        }
        let mut held = Vec::new();
        for sight in &sights {
            held.extend(
                sight.own.iter().map(|own| self.lease(own, &sight.subnet, turn.note(), requests)),
            );
        }
        let mut pools = Vec::new();
        for (request, pool) in requests.iter().zip(&found) {
            let here: Vec<_> =
                sights.iter_mut().filter(|sight| pool.has(&sight.subnet.id)).collect();
            pools.push(self.pool_view(owner, request, pool, here, &names)?);
        }
        let mut view = shown(turn, held, false, sights);
        view.token.add_requests(owner, requests, found);
        Ok(View { pools, ..view })
    }

    /// Whether the server chooses the address of every pool of a subnet, so that only the owner's
    /// records are needed.
    fn is_by_store(&self, query: &ViewQuery<'_>, found: &[SubnetPool], subnet: &Subnet) -> bool {
        let requests = query.requests.iter().zip(query.scans).zip(found);
        let mut here = requests.filter(|(_, pool)| pool.has(&subnet.id));
        self.rules.chooses
            && !self.call.adopts
            && self.server.chooses_in(subnet)
            && here.all(|((request, scan), _)| {
                request.is_by_store() && request.sticky.is_none() && *scan == Scan::None
            })
    }

    /// Looks for the owner's records in a subnet where nothing else is needed. The records of this
    /// node are enough if they show its latest one. Otherwise another node may have taken that address,
    /// or the server was restored.
    fn look_by_store(
        &mut self,
        query: &ViewQuery<'_>,
        found: &[SubnetPool],
        subnet: &Subnet,
        watch: &Watch,
    ) -> Result<Option<SubnetSight>> {
        let pools = found.iter().filter(|pool| pool.has(&subnet.id)).count();
        let was_seen = self.memory.was_seen(&subnet.id);
        if self.rules.owns_once && !self.looks_first && pools == 1 && was_seen {
            return Ok(Some(SubnetSight::unseen(subnet, watch)));
        }
        let start = OwnerMark::start_of(query.owner, self.rules.longest_text);
        if let (Some(start), Some(latest)) = (start, watch.noted.first()) {
            let sight = SubnetSight::look(&mut self.server, subnet, watch, Some(&start))?;
            match sight {
                None => return Ok(None),
                Some(sight) if sight.confirms(latest) => {
                    if self.rules.owns_once {
                        self.memory.remember_seen(&subnet.id);
                    }
                    return Ok(Some(sight));
                }
                Some(_) => {}
            }
        }
        SubnetSight::look(&mut self.server, subnet, watch, None)
    }

    fn pool_view(
        &mut self,
        owner: &Owner,
        request: &PoolRequest,
        pool: &SubnetPool,
        mut sights: Vec<&mut SubnetSight>,
        names: &BTreeMap<String, NameMark>,
    ) -> Result<PoolView> {
        let name = request.sticky.as_ref().and_then(|sticky| names.get(&sticky.name));
        let mut kept = None;
        if let Some(name) = name {
            for rival in sights.iter().flat_map(|sight| sight.rivals(&name.hash)) {
                if !request.may_take_over() {
                    return Err(held_by_rival(request, rival, self));
                }
                warn!(
                    "takes over {} of the sticky name {:?}: takeover is true",
                    rival.record.address,
                    request.sticky.as_ref().map_or("", |sticky| &*sticky.name)
                );
            }
            let ended = sights.iter().flat_map(|sight| &sight.ended);
            let ended = ended.filter(|ended| ended.has_name(&name.hash));
            let named = sights.iter().flat_map(|sight| sight.with_name(&name.hash)).chain(ended);
            let fits = |marked: &&Marked| pool.set.refusal(marked.record.address).is_none();
            // Of several, a holder's, or the one that was kept last.
            let first = named
                .filter(fits)
                .max_by_key(|marked| (marked.mark.holder.is_some(), marked.record.written));
            kept = first.map(|marked| marked.record.address);
            if kept.is_none() {
                kept = self.interrupted_address(name, pool, &sights);
            }
        }
        if kept.is_none() {
            kept = self.adopted_address(owner, request, pool, &sights)?;
        }
        let is_whole = sights.iter().all(|sight| sight.is_whole);
        // The first refusal may be by a claim that was withdrawn meanwhile.
        let hidden = self.hidden.iter().filter(|(_, refusals)| **refusals > 1);
        let hidden: BTreeSet<IpAddr> = hidden.map(|(address, _)| *address).collect();
        let leasable = request.leasable(&pool.set);
        if is_whole && is_full(&leasable, &sights, &hidden) {
            for sight in &mut sights {
                sight.look_for_expired(&mut self.server)?;
            }
            let is_wanted = request.requested.is_some() || kept.is_some();
            if !is_wanted && is_full(&leasable, &sights, &hidden) {
                let unseen = |address: &IpAddr| {
                    pool.set.refusal(*address).is_none()
                        && sights.iter().all(|sight| !sight.used.contains(address))
                };
                let unseen: Vec<IpAddr> = hidden.iter().copied().filter(unseen).collect();
                if !unseen.is_empty() {
                    return Err(self.hides(ErrorCode::TRY_AGAIN, request, &unseen));
                }
            }
        }
        // The server chooses no second address of a subnet for the owner.
        let has_own = sights.iter().any(|sight| !sight.own.is_empty());
        let has_key = self.rules.owns_once && (self.looks_first || has_own);
        let used = sights.iter().flat_map(|sight| &sight.used).chain(&hidden).copied().collect();
        let contended = self.memory.has_met() || !self.is_first();
        Ok(PoolView {
            set: Some(pool.set.clone()),
            cursor: match request.strategy {
                Strategy::RoundRobin => self.memory.cursor(&pool.key(self.call.network.as_str())),
                _ => None,
            },
            used: if is_whole { Used::All(used) } else { Used::Unknown },
            hint: contended.then(|| Hint { free: BTreeSet::new(), contended }),
            kept,
            is_searched: has_key || !pool.subnets.iter().all(|it| self.server.chooses_in(it)),
            ..PoolView::default()
        })
    }

    /// The address of a sticky name without a record: a call of this node has deleted the name's record,
    /// and was killed or failed before it had made its own.
    fn interrupted_address(
        &self,
        name: &NameMark,
        pool: &SubnetPool,
        sights: &[&mut SubnetSight],
    ) -> Option<IpAddr> {
        let attempts = open_attempts(&self.call.owners);
        let of_name = attempts.iter().filter(|attempt| attempt.name.as_ref() == Some(&name.hash));
        let is_free = |address: IpAddr| {
            pool.set.refusal(address).is_none()
                && !self.hidden.contains_key(&address)
                && sights.iter().all(|sight| !sight.used.contains(&address))
        };
        let free = of_name.filter(|attempt| attempt.address.is_some_and(is_free));
        free.max_by_key(|attempt| attempt.at)?.address
    }

    /// Deletes the owner's records that a killed call left at an address of another one, and those
    /// that a release may still end: the owner gets a new one. A server that revives may have made a
    /// noted record again by a write that is open.
    fn withdraw_unconfirmed(
        &mut self,
        owner: &Owner,
        sight: &mut SubnetSight,
        turn: &mut OwnerFile,
    ) -> Result<()> {
        let confirmed: BTreeSet<String> = turn
            .note()
            .into_iter()
            .flat_map(|note| note.records.iter().map(move |record| (note, &record.id)))
            .filter(|(note, id)| !self.rules.revives || !note.may_rewrite(id))
            .map(|(_, id)| id.clone())
            .collect();
        let own = sight.own.iter().map(|own| own.record.address);
        let shared: BTreeSet<IpAddr> = own.filter(|address| sight.is_shared(*address)).collect();
        let mut seen: BTreeSet<IpAddr> = BTreeSet::new();
        // Confirmed ones first, so that of two records of one address they stay.
        sight.own.sort_by_key(|own| !confirmed.contains(&own.record.id));
        let mut kept = Vec::new();
        for own in std::mem::take(&mut sight.own) {
            let AddressRecord { id, address, .. } = &own.record;
            let is_confirmed = confirmed.contains(id);
            let is_second = !seen.insert(*address);
            let is_met = !is_confirmed && !self.rules.creates_once && shared.contains(address);
            let is_alone = sight.count(*address) == 1;
            let may_end = turn.note().is_some_and(|note| note.may_end(id));
            if is_second || is_met || may_end {
                self.delete_own(owner, turn, &sight.subnet.id, &own.record)?;
                if is_alone {
                    sight.used.remove(address);
                    sight.ended.push(own);
                }
                continue;
            }
            kept.push(own);
        }
        sight.own = kept;
        Ok(())
    }
}

impl RecordToken {
    fn add_requests(&mut self, owner: &Owner, requests: &[PoolRequest], found: Vec<SubnetPool>) {
        self.names = names(owner, requests);
        self.pools = requests.iter().map(|request| request.path.clone()).zip(found).collect();
    }
}

/// Whether the noted records serve all requests.
fn notes_serve(turn: &OwnerFile, requests: &[PoolRequest], found: &[SubnetPool]) -> bool {
    let noted = turn.note().into_iter().flat_map(|note| &note.records);
    let leases = noted.map(|record| Lease {
        sticky: record.sticky.clone(),
        ..Lease::bare(record.address.into(), serde_json::Value::Null)
    });
    serve(leases.collect(), requests, found)
}

/// Whether each request has a lease that serves it.
fn serve(mut leases: Vec<Lease>, requests: &[PoolRequest], found: &[SubnetPool]) -> bool {
    requests.iter().zip(found).all(|(request, pool)| {
        let serving = leases.iter().position(|lease| request.is_served_by(lease, &pool.set));
        serving.map(|index| leases.swap_remove(index)).is_some()
    })
}

fn names(owner: &Owner, requests: &[PoolRequest]) -> BTreeMap<String, NameMark> {
    let sticky = requests.iter().filter_map(|request| request.sticky.as_ref());
    let mark = |name: &str, keep| NameMark::new(owner.scope.network.as_str(), name, keep);
    sticky.map(|sticky| (sticky.name.clone(), mark(&sticky.name, sticky.keep))).collect()
}

/// Whether no address of a pool is free.
fn is_full(set: &RangeSet, sights: &[&mut SubnetSight], hidden: &BTreeSet<IpAddr>) -> bool {
    let used: BTreeSet<_> = sights.iter().flat_map(|sight| &sight.used).chain(hidden).collect();
    let used = used.into_iter().filter(|address| set.refusal(**address).is_none());
    used.count() as u128 >= set.size()
}

fn held_by_rival<S>(request: &PoolRequest, rival: &Marked, ledger: &RecordLedger<S>) -> Error {
    let name = request.sticky.as_ref().map_or("", |sticky| &*sticky.name);
    let (network, node) = (ledger.call.network.as_str(), ledger.call.node.as_deref());
    let holder = rival.mark.to_holder(network, node).map(|holder| holder.to_string());
    let message = format!(
        "the sticky name {name:?} is held by {} with {}",
        holder.unwrap_or_default(),
        rival.record.address
    );
    Error::new(ErrorCode::TRY_AGAIN, message).at(format_args!("{}.sticky", request.path)).advise(
        "wait for the end of that container; if it has ended, release its address, or set ipam.takeover to true",
    )
}
