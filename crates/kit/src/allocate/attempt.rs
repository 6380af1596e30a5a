//! One ADD: what to commit by what a view shows, and what a lost commit teaches.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use log::warn;

use super::ledger::{
    Change, Claim, Entry, Need, PoolView, Scan, Taken, Used, View, ViewQuery, unknown_ranges,
};
use super::piece::scramble;
use super::search::Search;
use super::{ClaimLimits, Lease, Owner, PoolRequest, Strategy};
use crate::error::{Error, ErrorCode, Result};
use crate::pool::RangeSet;

/// One ADD on its way through lost races.
pub(super) struct Attempt<'a> {
    owner: &'a Owner,
    requests: &'a [PoolRequest],
    shown_all: bool,
    tries: ClaimLimits,
    /// Nothing may be taken ahead of other users: see [`Profile::cursor_order_only`](super::Profile::cursor_order_only).
    strict: bool,
    scans: Vec<Scan>,
    /// Candidates found taken while nothing else was known of their pools.
    avoid: BTreeSet<IpAddr>,
    /// Entries to take over, by pool.
    replaces: Vec<Option<Entry>>,
    /// An address that was seen free was taken by somebody quicker, or the pool is contended.
    raced: bool,
    random: u64,
}

pub(super) enum Plan<'a> {
    Commit(Change<'a>, Vec<Source>),
    /// All that is known of a pool is taken: look further.
    ScanFurther,
}

/// Where the lease of a pool comes from.
pub(super) enum Source {
    Kept(usize),
    Claimed { claim: usize, seen: bool },
}

impl Source {
    /// The owner held the lease when it was looked at.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    /// An address is claimed that was seen free.
    fn was_seen_free(&self) -> bool {
        matches!(self, Self::Claimed { seen: true, .. })
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        owner: &'a Owner,
        requests: &'a [PoolRequest],
        shown_all: bool,
        tries: ClaimLimits,
        strict: bool,
    ) -> Self {
        Self {
            owner,
            requests,
            shown_all,
            tries,
            strict,
            scans: vec![Scan::None; requests.len()],
            avoid: BTreeSet::new(),
            replaces: vec![None; requests.len()],
            raced: false,
            random: RandomState::new().build_hasher().finish(),
        }
    }

    pub(super) fn query(&self, may_guess: bool) -> ViewQuery<'_> {
        let Self { owner, requests, scans, .. } = self;
        ViewQuery { owner, known: &[], requests, scans, may_guess, need: Need::Claim }
    }

    /// What to commit by what the view shows.
    pub(super) fn plan<T>(&mut self, view: &View<T>) -> Result<Plan<'a>> {
        let sets = self.sets(&view.pools)?;
        let (serving, rest) = match_leases(self.requests, &sets, &view.held);
        let (unasked, others) = self.part(rest, &sets);
        let mut change = Change::default();
        let mut sources = Vec::new();
        let mut further = false;
        for (i, (request, set)) in self.requests.iter().zip(sets).enumerate() {
            if let Some(lease) = &serving[i] {
                sources.push(Source::Kept(change.keep.len()));
                change.keep.push(request.lease(&set, lease.address.addr(), lease.revision.clone()));
                continue;
            }
            let pool = &view.pools[i];
            self.raced |= pool.is_contended();
            let seen = pool.is_known();
            let blind = self.scans[i] == Scan::None;
            // A view that came with a lost commit may not show what is to be looked at by now.
            let looked = seen || (blind && !self.tries.look_first) || request.requested.is_some();
            if !looked {
                if blind {
                    self.look_further(i, &set, pool)?;
                }
                further = true;
                continue;
            }
            let candidates = self.candidates(request, &set, pool);
            if candidates.is_empty() {
                self.look_further(i, &set, pool)?;
                further = true;
            }
            sources.push(Source::Claimed { claim: change.claim.len(), seen });
            let next = match request.requested {
                Some(_) => Scan::None,
                None => self.next_look(request, &set, pool).unwrap_or(Scan::Full),
            };
            let replaces = self.replaces[i].clone();
            change.claim.push(Claim { request, set, candidates, next, replaces });
        }
        if further {
            return Ok(Plan::ScanFurther);
        }
        change.drop = unasked;
        change.leave = others;
        Ok(Plan::Commit(change, sources))
    }

    /// Of the leases that serve no pool, those that are not asked for any more, and those of pools
    /// that are not shown here.
    fn part(&self, rest: Vec<Lease>, sets: &[RangeSet]) -> (Vec<Lease>, Vec<Lease>) {
        let shown = |lease: &Lease| {
            self.requests.iter().zip(sets).any(|(request, set)| request.is_home_of(lease, set))
        };
        rest.into_iter().partition(|lease| self.shown_all || shown(lease))
    }

    fn sets(&self, pools: &[PoolView]) -> Result<Vec<RangeSet>> {
        let of = |(request, pool): (&PoolRequest, &PoolView)| {
            let set = request.set.as_ref().or(pool.set.as_ref());
            let set = set.cloned().ok_or_else(|| unknown_ranges(request))?;
            request.judge_request(&set)?;
            Ok(set)
        };
        let sets: Vec<RangeSet> = self.requests.iter().zip(pools).map(of).collect::<Result<_>>()?;
        RangeSet::refuse_overlaps(self.requests.iter().map(|w| w.path.as_str()).zip(&sets))?;
        Ok(sets)
    }

    fn candidates(&self, request: &PoolRequest, set: &RangeSet, pool: &PoolView) -> Vec<IpAddr> {
        match request.requested {
            Some(asked) => vec![asked],
            None => self.search(request, set).to_try(pool, self.tries),
        }
    }

    fn search<'b>(&'b self, request: &PoolRequest, set: &'b RangeSet) -> Search<'b> {
        // Whoever lost a race tries elsewhere.
        let elsewhere = self.raced && !self.strict;
        let strategy = if elsewhere { Strategy::Random } else { request.strategy };
        Search { set, strategy, random: self.random, avoid: &self.avoid }
    }

    fn look_further(&mut self, i: usize, set: &RangeSet, pool: &PoolView) -> Result<()> {
        let request = &self.requests[i];
        let next = self.next_look(request, set, pool);
        self.scans[i] = next.ok_or_else(|| exhausted(request, set))?;
        Ok(())
    }

    /// Where to look once all that is to be tried by this view is taken.
    fn next_look(&self, request: &PoolRequest, set: &RangeSet, pool: &PoolView) -> Option<Scan> {
        let seen = match pool.used {
            Used::Unknown => Scan::None,
            Used::Windows(ref windows, _) => match windows[..] {
                [(from, to), ..] => Scan::Range(from, to),
                [] => Scan::None,
            },
            Used::All(_) => Scan::Full,
        };
        let mut search = self.search(request, set);
        // Whoever finds random_candidates addresses taken is in a crowd, which would look where it scans.
        if self.tries.random_candidates > 0 && request.strategy == Strategy::RoundRobin {
            search.strategy = Strategy::Random;
        }
        search.look_after(seen, pool.cursor)
    }

    /// Takes in why a commit was lost.
    pub(super) fn learn(
        &mut self,
        change: &Change<'_>,
        sources: &[Source],
        taken: Vec<Taken>,
    ) -> Result<()> {
        // A store that does not say what was taken means that somebody was quicker.
        self.raced |= taken.is_empty() && sources.iter().any(Source::was_seen_free);
        if self.strict && taken.is_empty() {
            // What follows is searched from where the cursor is by now.
            self.scans.fill(Scan::None);
        }
        for Taken { claim, address, holder } in taken {
            let of_claim =
                |source: &Source| matches!(source, Source::Claimed { claim: c, .. } if *c == claim);
            let Some(i) = sources.iter().position(of_claim) else { continue };
            let Some(claim) = change.claim.get(claim) else { continue };
            if self.requests[i].requested.is_some() {
                let others = holder.filter(|entry| !self.is_own(entry));
                self.replaces[i] =
                    others.map(|entry| self.take_over(claim, address, entry)).transpose()?;
                continue;
            }
            self.raced |= sources[i].was_seen_free() || self.tries.random_candidates > 0;
            self.avoid.insert(address);
            if self.scans[i] == Scan::None {
                let next =
                    self.search(claim.request, &claim.set).look_after(Scan::None, Some(address));
                self.scans[i] = next.unwrap_or(Scan::Full);
            }
        }
        self.random = scramble(self.random);
        Ok(())
    }

    /// Whether an entry is this owner's: what the next view shows as held.
    fn is_own(&self, entry: &Entry) -> bool {
        entry.holder.as_ref().is_some_and(|holder| {
            let node = holder.node.as_ref().is_none_or(|node| *node == self.owner.scope.node);
            node && holder.container == self.owner.container.as_str()
                && holder.ifname.as_deref() == Some(self.owner.ifname.as_str())
        })
    }

    /// The entry of another owner, when the request may take its place.
    fn take_over(&self, claim: &Claim<'_>, address: IpAddr, entry: Entry) -> Result<Entry> {
        let by = entry.held_by();
        if claim.request.takeover && entry.holder.is_some() {
            warn!("{} takes over {address}, which is held by {by}: takeover is set", self.owner);
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
        .advise("request another address, release the one that is held, or set ipam.takeover to take it"))
    }
}

/// For each pool the lease that serves it already, and the leases that serve none.
fn match_leases(
    requests: &[PoolRequest],
    sets: &[RangeSet],
    held: &[Lease],
) -> (Vec<Option<Lease>>, Vec<Lease>) {
    let mut rest = held.to_vec();
    let mut serving = vec![None; requests.len()];
    // A pool that may take any address leaves the one asked for to the pool that asks.
    let order = |asked: bool| {
        (0..requests.len()).filter(move |i| requests[*i].requested.is_some() == asked)
    };
    for i in order(true).chain(order(false)) {
        let place = rest.iter().position(|lease| requests[i].is_served_by(lease, &sets[i]));
        serving[i] = place.map(|place| rest.swap_remove(place));
    }
    (serving, rest)
}

/// One lease for each pool, in order.
pub(super) fn collect(sources: &[Source], kept: &[Lease], claimed: &[Lease]) -> Result<Vec<Lease>> {
    let of = |source: &Source| match source {
        Source::Kept(place) => kept.get(*place),
        Source::Claimed { claim, .. } => claimed.get(*claim),
    };
    sources.iter().map(|source| of(source).cloned()).collect::<Option<_>>().ok_or_else(|| {
        Error::new(ErrorCode::INTERNAL, "the ledger answered fewer leases than it was asked for")
    })
}

fn exhausted(request: &PoolRequest, set: &RangeSet) -> Error {
    let message = format!(
        "failed to allocate for range {}: no IP addresses available in range set: {}",
        request.index,
        request.describe(set)
    );
    Error::new(ErrorCode::EXHAUSTED, message).advise("free leases, or add a range to the pool")
}

#[cfg(test)]
mod tests;
