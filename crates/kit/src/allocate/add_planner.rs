//! One ADD: the change to commit after each view of the store, and the lessons of a lost commit.
//!
//! `LedgerAllocator` asks the ledger for a view, takes the [`NextStep`], and records the conflict
//! if the commit is lost. It repeats that until a commit is done.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use log::warn;

use super::ledger::{
    Change, Claim, Entry, Need, PoolView, Scan, Taken, Used, View, ViewQuery, unknown_ranges,
};
use super::search::Search;
use super::span::scramble;
use super::{ClaimLimits, Lease, Owner, PoolRequest, Strategy};
use crate::error::{Error, ErrorCode, Result};
use crate::pool::RangeSet;

/// The plan of one ADD: its knowledge after each view and each lost commit.
pub(super) struct AddPlanner<'a> {
    owner: &'a Owner,
    requests: &'a [PoolRequest],
    rules: AddRules,
    /// How far the next view scans into each pool.
    scans: Vec<Scan>,
    /// Candidates that were found taken while nothing else was known of their pools.
    avoid: BTreeSet<IpAddr>,
    /// For each pool the entry of another owner that the claim replaces.
    takeovers: Vec<Option<Entry>>,
    /// Another owner was quicker, or a pool is contended.
    contended: bool,
    random: u64,
}

/// The rules for all rounds of an ADD.
#[derive(Clone, Copy)]
pub(super) struct AddRules {
    /// The owner holds leases of no other pools than the requested ones: the rest is released.
    pub(super) releases_rest: bool,
    /// The limits of one commit.
    pub(super) limits: ClaimLimits,
    /// See [`Profile::cursor_order_only`](super::Profile::cursor_order_only).
    pub(super) cursor_order_only: bool,
}

pub(super) enum NextStep<'a> {
    /// Commit this change; each request gets the lease of its origin.
    Commit(Change<'a>, Vec<LeaseOrigin>),
    /// All that is known of a pool is taken: ask for another view.
    ScanFurther,
}

/// Where the lease of a request comes from.
#[derive(Clone, Copy)]
pub(super) enum LeaseOrigin {
    /// The owner holds it: an index into [`Change::keep`].
    Held(usize),
    /// It is claimed: an index into [`Change::claim`], and whether the view showed the address
    /// free.
    Claimed { claim: usize, seen_free: bool },
}

impl<'a> AddPlanner<'a> {
    pub(super) fn new(owner: &'a Owner, requests: &'a [PoolRequest], rules: AddRules) -> Self {
        Self {
            owner,
            requests,
            rules,
            scans: vec![Scan::None; requests.len()],
            avoid: BTreeSet::new(),
            takeovers: vec![None; requests.len()],
            contended: false,
            random: RandomState::new().build_hasher().finish(),
        }
    }

    /// The query of the first view. It may guess, because a guarded commit follows.
    pub(super) fn first_query(&self) -> ViewQuery<'_> {
        ViewQuery { may_guess: true, ..self.next_query() }
    }

    /// The query of a later view, after a guess that was wrong or did not reach far enough.
    pub(super) fn next_query(&self) -> ViewQuery<'_> {
        let Self { owner, requests, scans, .. } = self;
        ViewQuery { owner, known: &[], requests, scans, may_guess: false, need: Need::Claim }
    }

    /// The next step after a view.
    pub(super) fn next_step<T>(&mut self, view: &View<T>) -> Result<NextStep<'a>> {
        let sets = self.range_sets(&view.pools)?;
        let (serving, rest) = match_leases(self.requests, &sets, &view.held);
        let (drop, leave) = self.split_rest(rest, &sets);
        let mut change = Change { drop, leave, ..Change::default() };
        let mut origins = Vec::new();
        let mut scan_further = false;
        for (i, set) in sets.into_iter().enumerate() {
            let pool = &view.pools[i];
            if let Some(lease) = &serving[i] {
                let (address, revision) = (lease.address.addr(), lease.revision.clone());
                origins.push(LeaseOrigin::Held(change.keep.len()));
                change.keep.push(self.requests[i].lease(&set, address, revision));
                continue;
            }
            self.contended |= pool.is_contended();
            match self.claim(i, set, pool)? {
                Some(claim) => {
                    let (claims, seen_free) = (change.claim.len(), pool.is_known());
                    origins.push(LeaseOrigin::Claimed { claim: claims, seen_free });
                    change.claim.push(claim);
                }
                None => scan_further = true,
            }
        }
        Ok(match scan_further {
            true => NextStep::ScanFurther,
            false => NextStep::Commit(change, origins),
        })
    }

    /// Learns why a commit was lost.
    ///
    /// # Errors
    /// Another owner holds a requested address, and it may not be taken over.
    pub(super) fn record_conflict(
        &mut self,
        change: &Change<'_>,
        origins: &[LeaseOrigin],
        taken: Vec<Taken>,
    ) -> Result<()> {
        if taken.is_empty() {
            // The store does not say what was taken, only that another owner was quicker.
            self.contended |= origins.iter().any(LeaseOrigin::was_seen_free);
            if self.rules.cursor_order_only {
                // The cursor may have moved, so the next search begins at the one that the next
                // view shows.
                self.scans.fill(Scan::None);
            }
        }
        for Taken { claim: index, address, holder } in taken {
            let Some(i) = origins.iter().position(|origin| origin.is_claim(index)) else {
                continue;
            };
            let Some(claim) = change.claim.get(index) else { continue };
            if claim.request.requested.is_some() {
                let of_other = holder.filter(|entry| !self.is_own(entry));
                let takeover = of_other.map(|entry| self.take_over(claim, address, entry));
                self.takeovers[i] = takeover.transpose()?;
                continue;
            }
            self.contended |= origins[i].was_seen_free() || self.rules.limits.random_candidates > 0;
            self.avoid.insert(address);
            if self.scans[i] == Scan::None {
                let search = self.search(claim.request, &claim.set);
                self.scans[i] = search.next_scan(Scan::None, Some(address)).unwrap_or(Scan::Full);
            }
        }
        self.random = scramble(self.random);
        Ok(())
    }

    /// The ranges of each pool, those that the store knows, else those of the request: without
    /// the static addresses.
    fn range_sets(&self, pools: &[PoolView]) -> Result<Vec<RangeSet>> {
        let mut sets = Vec::new();
        for (request, pool) in self.requests.iter().zip(pools) {
            let set = pool.set.as_ref().or(request.set.as_ref());
            let set = set.ok_or_else(|| unknown_ranges(request))?;
            request.check_requested_address(set)?;
            sets.push(request.leasable(set));
        }
        let paths = self.requests.iter().map(|request| request.path.as_str());
        RangeSet::refuse_overlaps(paths.zip(&sets))?;
        Ok(sets)
    }

    /// Leases that serve no request: those to release, and those of other pools, which stay.
    fn split_rest(&self, rest: Vec<Lease>, sets: &[RangeSet]) -> (Vec<Lease>, Vec<Lease>) {
        rest.into_iter().partition(|lease| {
            let mut pools = self.requests.iter().zip(sets);
            self.rules.releases_rest || pools.any(|(request, set)| request.is_home_of(lease, set))
        })
    }

    /// A claim of one address of a pool; `None` if the next view is to scan the pool further first.
    fn claim(&mut self, i: usize, set: RangeSet, pool: &PoolView) -> Result<Option<Claim<'a>>> {
        let requests = self.requests;
        let request = &requests[i];
        let is_by_store = request.by_store && !pool.is_searched;
        if is_by_store && pool.kept.is_none() && !request.has_static_address_in(&set) {
            return Ok(Some(Claim {
                request,
                set,
                candidates: Vec::new(),
                next: Scan::None,
                replaces: None,
            }));
        }
        let may_try_blindly = self.scans[i] == Scan::None && !self.rules.limits.look_first;
        if !(pool.is_known() || may_try_blindly || request.requested.is_some()) {
            // The scan may be widened already: a view that came with a lost commit need not show
            // that range.
            if self.scans[i] == Scan::None {
                self.scan_further(i, &set, pool)?;
            }
            return Ok(None);
        }
        let is_usable = |kept: &IpAddr| set.find(*kept).is_some_and(|range| range.usable(*kept));
        let kept = pool.kept.filter(is_usable);
        let mut candidates = match request.requested.or(kept) {
            Some(address) => vec![address],
            None => self.search(request, &set).claim_candidates(pool, self.rules.limits),
        };
        if candidates.is_empty() {
            candidates = self.resting(request, &set, pool);
        }
        if candidates.is_empty() {
            self.scan_further(i, &set, pool)?;
            return Ok(None);
        }
        let next = match request.requested {
            Some(_) => Scan::None,
            None => self.next_scan(request, &set, pool).unwrap_or(Scan::Full),
        };
        let replaces = self.takeovers[i].clone();
        Ok(Some(Claim { request, set, candidates, next, replaces }))
    }

    /// The resting addresses of a pool that has no other free ones, those freed first before the
    /// others. After a lost race they begin anywhere, so that rivals try different ones.
    fn resting(&self, request: &PoolRequest, set: &RangeSet, pool: &PoolView) -> Vec<IpAddr> {
        let search = self.search(request, set);
        let limit = if self.contended { usize::MAX } else { self.rules.limits.each };
        let mut candidates = search.resting_candidates(pool, limit);
        let count = u64::try_from(candidates.len()).unwrap_or(u64::MAX);
        if self.contended && count > 0 {
            candidates.rotate_left(usize::try_from(self.random % count).unwrap_or(0));
        }
        candidates.truncate(self.rules.limits.each);
        candidates
    }

    /// Widens the scan of a pool: all addresses that are known so far are taken or rest.
    fn scan_further(&mut self, i: usize, set: &RangeSet, pool: &PoolView) -> Result<()> {
        let request = &self.requests[i];
        let next = self.next_scan(request, set, pool);
        self.scans[i] = next.ok_or_else(|| exhausted(request, set))?;
        Ok(())
    }

    /// The next scan if all candidates of this view are taken; `None` if the whole pool was
    /// scanned.
    fn next_scan(&self, request: &PoolRequest, set: &RangeSet, pool: &PoolView) -> Option<Scan> {
        let scanned = match &pool.used {
            Used::Unknown => Scan::None,
            Used::Windows(windows, _) => match windows[..] {
                [(from, to), ..] => Scan::Range(from, to),
                [] => Scan::None,
            },
            Used::All(_) => Scan::Full,
        };
        let mut search = self.search(request, set);
        // Nodes that share a store would all scan the addresses right after its cursor.
        if self.rules.limits.random_candidates > 0 && request.strategy == Strategy::RoundRobin {
            search.strategy = Strategy::Random;
        }
        search.next_scan(scanned, pool.cursor)
    }

    fn search<'b>(&'b self, request: &PoolRequest, set: &'b RangeSet) -> Search<'b> {
        // After a lost race, other addresses of the pool are likely to have no rivals.
        let strategy = match self.contended && !self.rules.cursor_order_only {
            true => Strategy::Random,
            false => request.strategy,
        };
        Search { set, strategy, random: self.random, avoid: &self.avoid }
    }

    /// Whether an entry is this owner's, so that the next view shows it as held.
    fn is_own(&self, entry: &Entry) -> bool {
        let Some(holder) = &entry.holder else { return false };
        holder.node.as_ref().is_none_or(|node| *node == self.owner.scope.node)
            && holder.container == self.owner.container.as_str()
            && holder.ifname.as_deref() == Some(self.owner.ifname.as_str())
    }

    /// The entry of another owner, if the request may replace it.
    fn take_over(&self, claim: &Claim<'_>, address: IpAddr, entry: Entry) -> Result<Entry> {
        let by = entry.held_by();
        if claim.request.takeover && entry.holder.is_some() {
            warn!("{} takes over {address} from {by}: takeover is true", self.owner);
            return Ok(entry);
        }
        Err(Error::new(
            ErrorCode::TAKEN,
            format!(
                "failed to allocate for range {}: requested IP address {address} is not available in range set {}: \
                 it is held by {by}",
                claim.request.index,
                claim.request.describe(&claim.set)
            ),
        )
        .advise(
            "request another address; if its container has ended, release this one, or set \
             ipam.takeover to true",
        ))
    }
}

impl LeaseOrigin {
    /// Whether the owner held the lease before this ADD.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    fn is_claim(&self, index: usize) -> bool {
        matches!(self, Self::Claimed { claim, .. } if *claim == index)
    }

    fn was_seen_free(&self) -> bool {
        matches!(self, Self::Claimed { seen_free: true, .. })
    }
}

/// For each request the lease that serves it already, and the leases that serve none.
fn match_leases(
    requests: &[PoolRequest],
    sets: &[RangeSet],
    held: &[Lease],
) -> (Vec<Option<Lease>>, Vec<Lease>) {
    let mut rest = held.to_vec();
    let mut serving = vec![None; requests.len()];
    // A request for a certain address comes first: a request that takes any must not use its lease.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|i| requests[*i].requested.is_none());
    for i in order {
        let found = rest.iter().position(|lease| requests[i].is_served_by(lease, &sets[i]));
        serving[i] = found.map(|index| rest.swap_remove(index));
    }
    (serving, rest)
}

/// The lease of each request, out of what a commit answered.
pub(super) fn leases_of_requests(
    origins: &[LeaseOrigin],
    kept: &[Lease],
    claimed: &[Lease],
) -> Result<Vec<Lease>> {
    let mut leases = Vec::new();
    for origin in origins {
        let lease = match origin {
            LeaseOrigin::Held(index) => kept.get(*index),
            LeaseOrigin::Claimed { claim, .. } => claimed.get(*claim),
        };
        let missing = "the ledger returned fewer leases than requested";
        leases.push(lease.cloned().ok_or_else(|| Error::new(ErrorCode::INTERNAL, missing))?);
    }
    Ok(leases)
}

/// The error of an ADD to a pool without a free address.
pub(super) fn exhausted(request: &PoolRequest, set: &RangeSet) -> Error {
    let message = format!(
        "failed to allocate for range {}: no IP addresses available in range set: {}",
        request.index,
        request.describe(set)
    );
    Error::new(ErrorCode::EXHAUSTED, message)
        .advise("release leases of containers that have ended, or enlarge a range of the pool")
}

#[cfg(test)]
mod tests;
