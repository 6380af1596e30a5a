//! One allocator over any ledger: ADD, GC and STATUS. `release` has DEL and CHECK.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::add_planner::{AddPlanner, AddRules, NextStep, exhausted, leases_of_requests};
use super::cooldown::{cooldown, refused_cooldown};
use super::ledger::{Claim, Commit, Entry, Fault, Ledger};
use super::unknown_commits::UnknownCommits;
use super::{Lease, Owner, PoolRequest, Reach, RequestedPools, Scope, Strategy};
use crate::cni::{ValidAttachments, parse_value};
use crate::delegate::{Deadline, Request};
use crate::error::{Error, ErrorCode, Result};
use crate::host::is_old;
use crate::keys::{MisspeltKey, warn_of};
use crate::pool::{Pool, RangeSet};

/// The allocator of one call over a [`Ledger`]: it allocates and releases by views and commits.
#[derive(Debug)]
pub(super) struct LedgerAllocator<L> {
    pub(super) ledger: L,
    /// An ADD releases what the owner holds beside the requested pools. Not if other calls request
    /// other pools of this allocator: its entry has `serves`, or the chain lists it twice.
    releases_rest: bool,
    grace: Duration,
    /// Whether addresses in use may be taken over, for pools that do not forbid it.
    takeover: bool,
    /// `ipam.strategy`, as written: how an address is chosen, for pools that do not say.
    strategy: Option<Value>,
    /// `ipam.cooldown`: how long a freed address rests while others are free.
    cooldown: Duration,
    /// ADD and STATUS warn of misspelt keys.
    warns_of_misspelt: bool,
    /// STATUS counts the free addresses.
    counts_free: bool,
    deadline: Deadline,
}

/// How often a call commits at most. A race is lost a few times; more means that something is
/// wrong.
pub(super) const ROUNDS: u64 = 64;

/// How many entries GC removes at once.
const BATCH: usize = 4096;

impl<L: Ledger> LedgerAllocator<L> {
    /// Opens the ledger by the network's settings.
    ///
    /// # Errors
    /// The settings are invalid, or the ledger refuses them.
    pub(super) fn open(request: &Request) -> Result<Self> {
        let config = request.network.settings()?;
        let ipam = request.network.ipam();
        Ok(Self {
            releases_rest: !ipam.contains_key("serves") && !is_listed_twice(ipam),
            counts_free: ipam.get("statusExhaustion").and_then(Value::as_bool) == Some(true),
            warns_of_misspelt: request.is_strict(),
            grace: request.settings.gc_grace,
            takeover: takeover(request)?,
            strategy: ipam.get("strategy").filter(|_| !request.is_reassert()).cloned(),
            cooldown: cooldown(request)?,
            deadline: request.deadline,
            ledger: L::open(config, request)?,
        })
    }

    /// See [`Profile::default_routes`](super::Profile::default_routes).
    pub(super) fn gives_default_routes(&self) -> bool {
        self.ledger.profile().default_routes
    }

    /// ADD: one lease for each pool, in order; all of them or, after an error, none.
    ///
    /// The same owner gets its leases again, with [`Lease::preexisting`]. Its other leases are
    /// released; with `ipam.serves`, leases of other pools stay. A requested address
    /// ([`Pool::requested_ip`]) is the one that is given, or the ADD fails:
    /// [`ErrorCode::NOT_IN_POOL`] outside of the pool's ranges, [`ErrorCode::TAKEN`] if another
    /// owner holds it.
    pub(super) fn allocate(&mut self, owner: &Owner, pools: &RequestedPools) -> Result<Vec<Lease>> {
        let mut requests = PoolRequest::read_at(pools.with_paths(), self.strategy()?)?;
        self.refuse_sticky(&requests)?;
        self.refuse_cooldown()?;
        let profile = self.ledger.profile();
        for (request, pool) in requests.iter_mut().zip(&pools.pools) {
            // A selector may have written the pool: it can forbid a takeover, and not allow one.
            request.takeover = self.takeover && pool.takeover.unwrap_or(true);
            request.apart = profile.names_apart;
            request.static_addresses = pools.static_addresses().collect();
            // A store that chooses does not know which addresses rest.
            let leaves_choice = self.strategy.is_none() && self.cooldown.is_zero();
            request.by_store = profile.chooses && leaves_choice && pool.is_open();
        }
        let rules = AddRules {
            releases_rest: self.releases_rest,
            limits: self.ledger.claim_limits(requests.len()),
            cursor_order_only: profile.cursor_order_only,
        };
        let planner = AddPlanner::new(owner, &requests, rules);
        let mut unknown = UnknownCommits::default();
        let leases = self.allocate_with_retries(owner, planner, &mut unknown);
        if self.warns_of_misspelt {
            warn_of(&self.misspelt_of(&requests));
        }
        leases.map_err(|error| unknown.explain(error))
    }

    /// GC: releases the leases of the scope whose attachments no list keeps, and returns them.
    /// Leases younger than the host-wide `gcGrace` stay.
    pub(super) fn gc(&mut self, scope: &Scope, keep: &ValidAttachments) -> Result<Vec<Lease>> {
        let (now, grace) = (SystemTime::now(), self.grace);
        let mut released = Vec::new();
        loop {
            let mut stale = Vec::new();
            let scanned = self.ledger.scan(Some(&scope.node), &mut |entry| {
                if Self::is_stale(&entry, scope, keep, |since| is_old(since, grace, now)) {
                    stale.push(entry);
                }
                if stale.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let removed = self.ledger.remove(&stale)?;
            // A scan that failed may have shown a part: that part is released, and the call fails.
            scanned?;
            // Stale entries that could not be removed would be found in every further scan.
            let is_last = stale.len() < BATCH || removed.is_empty();
            released.extend(removed.into_iter().map(|entry| entry.lease));
            if is_last {
                return Ok(released);
            }
        }
    }

    /// STATUS: fails if the store cannot be reached. If `ipam.statusExhaustion` is true, it returns
    /// the number of free addresses of the scarcest pool.
    pub(super) fn ready(&mut self, pools: &RequestedPools) -> Result<Option<u64>> {
        self.strategy()?;
        self.refuse_cooldown()?;
        self.ledger.ready().map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))?;
        if self.warns_of_misspelt {
            let requests = self.requests(pools.with_paths())?;
            self.refuse_sticky(&requests)?;
            warn_of(&self.misspelt_of(&requests));
        }
        if !self.counts_free || pools.pools.is_empty() {
            return Ok(None);
        }
        self.free(pools)
    }

    /// The ranges of pools, which the store may know by name.
    pub(super) fn ranges_of(&mut self, requests: &[PoolRequest]) -> Result<Vec<RangeSet>> {
        requests.iter().map(|request| self.ledger.ranges(request)).collect()
    }

    /// The requests of an ADD, without the strategy of the network.
    pub(super) fn requests<'a>(
        &self,
        pools: impl Iterator<Item = (&'a str, &'a Pool)>,
    ) -> Result<Vec<PoolRequest>> {
        PoolRequest::read_at(pools, self.ledger.profile().strategy)
    }

    pub(super) fn misspelt_of(&self, requests: &[PoolRequest]) -> Vec<MisspeltKey> {
        requests.iter().flat_map(|request| self.ledger.misspelt(request)).collect()
    }

    /// Fails for a pool whose address is to stay with a name, if the ledger keeps no names.
    fn refuse_sticky(&self, requests: &[PoolRequest]) -> Result<()> {
        if self.ledger.profile().keeps_sticky {
            return Ok(());
        }
        requests.iter().try_for_each(PoolRequest::refuse_sticky)
    }

    /// Fails for a cooldown that the ledger would not keep.
    fn refuse_cooldown(&self) -> Result<()> {
        match self.cooldown.is_zero() || self.ledger.profile().knows_freed {
            true => Ok(()),
            false => Err(refused_cooldown()),
        }
    }

    /// How an address is chosen where a pool does not say. An ADD and STATUS alone need it.
    fn strategy(&self) -> Result<Strategy> {
        let key = "ipam.strategy";
        let told = self.strategy.as_ref().map(|value| parse_value::<Option<String>>(value, key));
        match told.transpose()?.flatten() {
            Some(text) => Strategy::read(&text, key),
            None => Ok(self.ledger.profile().strategy),
        }
    }

    /// Views and commits until a commit is done.
    fn allocate_with_retries(
        &mut self,
        owner: &Owner,
        mut planner: AddPlanner<'_>,
        unknown: &mut UnknownCommits,
    ) -> Result<Vec<Lease>> {
        let mut view = self.ledger.view(&planner.first_query(), None)?;
        for _ in 0..ROUNDS {
            let (change, origins) = match planner.next_step(&view)? {
                NextStep::Commit(change, origins) => (change, origins),
                NextStep::ScanFurther => {
                    view = self.ledger.view(&planner.next_query(), Some(view.token))?;
                    continue;
                }
            };
            let next = match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { kept, claimed } => {
                    let mut leases = leases_of_requests(&origins, &kept, &claimed)?;
                    for (lease, origin) in leases.iter_mut().zip(&origins) {
                        let may_be_new = unknown.may_have_taken(lease.address.addr());
                        lease.preexisting = origin.is_held() && !may_be_new;
                        lease.unsure = unknown.any();
                    }
                    return Ok(leases);
                }
                Commit::Lost { taken, view } => {
                    planner.record_conflict(&change, &origins, taken)?;
                    view
                }
                Commit::Full { claim } => {
                    let Claim { request, set, .. } = &change.claim[claim];
                    return Err(exhausted(request, set));
                }
                Commit::Outdated => None,
                Commit::Unknown => {
                    unknown.add(&change)?;
                    None
                }
            };
            view = match next {
                Some(next) => next,
                None => self.ledger.view(&planner.next_query(), None)?,
            };
            self.check_deadline()?;
        }
        Err(contended(owner))
    }

    /// Counts the free addresses of the scarcest pool.
    fn free(&mut self, pools: &RequestedPools) -> Result<Option<u64>> {
        let requests = self.requests(pools.with_paths())?;
        let static_addresses: Vec<_> = pools.static_addresses().collect();
        let sets = self.ranges_of(&requests)?.into_iter();
        let sets: Vec<_> = sets.map(|set| set.without(&static_addresses)).collect();
        let mut used = vec![0_u128; sets.len()];
        self.ledger.scan(None, &mut |entry| {
            let address = entry.lease.address.addr();
            for (used, set) in used.iter_mut().zip(&sets) {
                *used += u128::from(set.refusal(address).is_none());
            }
            ControlFlow::Continue(())
        })?;
        let free = sets.iter().zip(used).map(|(set, used)| set.size().saturating_sub(used)).min();
        Ok(free.map(|free| u64::try_from(free).unwrap_or(u64::MAX)))
    }

    /// Whether GC releases an entry: this node's, not in the list, and old enough that the list can
    /// know of it.
    fn is_stale(
        entry: &Entry,
        scope: &Scope,
        keep: &ValidAttachments,
        is_old: impl Fn(SystemTime) -> bool,
    ) -> bool {
        let is_node_local = L::REACH == Reach::Node;
        if entry.fault == Some(Fault::Leftover) {
            return is_node_local;
        }
        let Some(holder) = &entry.holder else { return false };
        let listed = match &holder.ifname {
            Some(ifname) => keep.contains(&holder.container, ifname),
            None => keep.iter().any(|(container, _)| container == holder.container),
        };
        let of_node = holder.node.as_ref().map_or(is_node_local, |node| *node == scope.node);
        !listed && of_node && entry.since.is_some_and(is_old)
    }

    pub(super) fn check_deadline(&self) -> Result<()> {
        if !self.deadline.left().is_zero() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::TIMED_OUT, "deadline exceeded")
            .advise("check why the store is slow, or raise ipam.timeout"))
    }
}

/// Whether the chain lists this allocator more than once. Its second entry is not shown the pools
/// that the first one served.
fn is_listed_twice(ipam: &Map<String, Value>) -> bool {
    let Some(own @ Value::String(_)) = ipam.get("type") else { return false };
    let entries = ipam.get("delegates").and_then(Value::as_array).into_iter().flatten();
    entries.filter(|entry| *entry == own || entry.get("type") == Some(own)).nth(1).is_some()
}

/// Whether addresses in use may be taken over: `takeover` of `ipam`, else of the host-wide
/// settings. A call that claims again what is held takes nothing from others.
fn takeover(request: &Request) -> Result<bool> {
    if request.is_reassert() {
        return Ok(false);
    }
    let key = "ipam.takeover";
    let told = request.network.ipam().get("takeover");
    let told = told.map(|value| parse_value(value, key)).transpose()?.flatten();
    Ok(told.unwrap_or(request.settings.takeover))
}

pub(super) fn contended(owner: &Owner) -> Error {
    let message =
        format!("gave up after {ROUNDS} attempts: other calls kept changing what {owner} needs");
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise("call again; if the error persists, start fewer containers at once")
}
