//! One allocator over any ledger: search, retry, idempotency and GC, once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::attempt::{Attempt, Plan, collect};
use super::ledger::{Change, Commit, Entry, Fault, Ledger, Need, View, ViewQuery};
use super::unsure::Unsure;
use super::{Lease, Owner, Part, PoolRequest, Reach, Scope, Strategy};
use crate::cni::{Keep, parse_value};
use crate::delegate::{Deadline, Request};
use crate::error::{Error, ErrorCode, Result};
use crate::host::is_old;
use crate::keys::{Misspelt, warn_of};
use crate::pool::{Pool, RangeSet};

/// What gives addresses out of a [`Ledger`], for one call.
#[derive(Debug)]
pub(super) struct LedgerAllocator<L> {
    pub(super) ledger: L,
    /// Where not every pool is shown, what the owner holds of the others stays: an entry of `serves`, or
    /// one of two with the same name.
    shown_all: bool,
    grace: Duration,
    /// Whether addresses in use may be taken over, for pools that do not forbid it.
    takeover: bool,
    /// `ipam.strategy`, as written: how an address is chosen, for pools that do not say.
    strategy: Option<Value>,
    /// Misspelt keys are warned of.
    judges: bool,
    /// STATUS counts what is free.
    counts: bool,
    deadline: Deadline,
}

/// A race is lost a few times at most; more means that something is wrong.
const ROUNDS: u64 = 64;

/// How many entries GC has in hand at once.
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
            shown_all: !ipam.contains_key("serves") && !is_listed_twice(ipam),
            counts: ipam.get("statusExhaustion").and_then(Value::as_bool) == Some(true),
            judges: request.is_judged(),
            grace: request.settings.gc_grace,
            takeover: takeover(request)?,
            strategy: ipam.get("strategy").filter(|_| !request.is_reassert()).cloned(),
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
    /// The same owner gets its leases again, with [`Lease::kept`]. What it holds beside them is
    /// released; where `ipam.serves` is there, leases of other pools stay. An address asked for
    /// ([`Pool::requested_ip`]) is the one that is given, or the ADD fails:
    /// [`ErrorCode::NOT_IN_POOL`] outside of the pool's ranges, [`ErrorCode::TAKEN`] where another
    /// owner holds it.
    pub(super) fn allocate(&mut self, owner: &Owner, pools: &[Pool]) -> Result<Vec<Lease>> {
        let mut requests = PoolRequest::read(pools, self.strategy()?)?;
        let profile = self.ledger.profile();
        for (request, pool) in requests.iter_mut().zip(pools) {
            // What a pool says may be a selector's word, which is data.
            request.takeover = self.takeover && pool.takeover.unwrap_or(true);
            request.apart = profile.names_apart;
        }
        let mut unsure = Unsure::default();
        let tries = self.ledger.claim_limits(requests.len());
        let attempt =
            Attempt::new(owner, &requests, self.shown_all, tries, profile.cursor_order_only);
        let given = self.give(owner, attempt, &mut unsure);
        if self.judges {
            warn_of(&self.misspelt_of(&requests));
        }
        given.map_err(|error| unsure.leave_open(error))
    }

    /// DEL: releases everything the owner holds and tells what that was.
    ///
    /// `known` are hints from the attachment record: a stale one must not release what is another
    /// owner's by now, and a missing one must not leave anything behind.
    pub(super) fn release(&mut self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>> {
        let mut guess = !known.is_empty();
        let mut seen = None;
        self.let_go(owner, known, guess, |held| {
            if std::mem::take(&mut guess) {
                return held.to_vec();
            }
            // What is taken or confirmed after this DEL looked is not its affair.
            let now = revisions(held);
            let seen = seen.get_or_insert_with(|| now.clone());
            if now.is_subset(seen) { held.to_vec() } else { Vec::new() }
        })
    }

    /// Releases a part of what the owner holds and leaves the rest as it is: the undo of an ADD, or
    /// what a stale record names, where the owner may hold more by now.
    pub(super) fn release_part(&mut self, owner: &Owner, part: &Part) -> Result<Vec<Lease>> {
        let covered = |lease: &&Lease| part.covers(lease);
        self.let_go(owner, &[], false, |held| held.iter().filter(covered).cloned().collect())
    }

    /// CHECK: what the owner holds.
    pub(super) fn held(&mut self, owner: &Owner, known: &[Lease]) -> Result<Vec<Lease>> {
        Ok(self.proof(owner, known, None)?.held)
    }

    /// GC: releases what is held in the scope by attachments that are not to be kept, and tells
    /// what that was. Leases younger than the host-wide `gcGrace` stay.
    pub(super) fn retain(&mut self, scope: &Scope, keep: &Keep) -> Result<Vec<Lease>> {
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
            // What was shown is released. What was not shown must not end in success.
            scanned?;
            // What is stale and stays would be found for ever.
            let is_last = stale.len() < BATCH || removed.is_empty();
            released.extend(removed.into_iter().map(|entry| entry.lease));
            if is_last {
                return Ok(released);
            }
        }
    }

    /// STATUS: fails when the store cannot be reached; else tells what is free in the scarcest pool
    /// where `ipam.statusExhaustion` asks for it.
    pub(super) fn ready(&mut self, pools: &[Pool]) -> Result<Option<u64>> {
        self.strategy()?;
        self.ledger.ready()?;
        if self.judges {
            warn_of(&self.misspelt_of(&self.requests(pools)?));
        }
        if !self.counts || pools.is_empty() {
            return Ok(None);
        }
        self.free(pools)
    }

    /// The ranges of pools, which the store may know by name.
    pub(super) fn ranges_of(&mut self, pools: &[Pool]) -> Result<Vec<RangeSet>> {
        self.requests(pools)?.iter().map(|request| self.ledger.ranges(request)).collect()
    }

    /// What an ADD would ask for, but for the strategy of the network.
    pub(super) fn requests(&self, pools: &[Pool]) -> Result<Vec<PoolRequest>> {
        PoolRequest::read(pools, self.ledger.profile().strategy)
    }

    pub(super) fn misspelt_of(&self, requests: &[PoolRequest]) -> Vec<Misspelt> {
        requests.iter().flat_map(|request| self.ledger.misspelt(request)).collect()
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

    /// Walks an ADD through lost races.
    fn give(
        &mut self,
        owner: &Owner,
        mut attempt: Attempt<'_>,
        unsure: &mut Unsure,
    ) -> Result<Vec<Lease>> {
        let mut view = self.ledger.view(&attempt.query(true), None)?;
        for _ in 0..ROUNDS {
            let (change, sources) = match attempt.plan(&view)? {
                Plan::Commit(change, sources) => (change, sources),
                Plan::ScanFurther => {
                    view = self.ledger.view(&attempt.query(false), Some(view.token))?;
                    continue;
                }
            };
            match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { kept, claimed } => {
                    let mut leases = collect(&sources, &kept, &claimed)?;
                    for (lease, source) in leases.iter_mut().zip(&sources) {
                        lease.preexisting =
                            source.is_kept() && !unsure.offered(lease.address.addr());
                        lease.unsure = unsure.outcome;
                    }
                    return Ok(leases);
                }
                Commit::Lost { taken, view: next } => {
                    attempt.learn(&change, &sources, taken)?;
                    view = match next {
                        Some(next) => next,
                        None => self.ledger.view(&attempt.query(false), None)?,
                    };
                }
                Commit::Outdated => view = self.ledger.view(&attempt.query(false), None)?,
                Commit::Unknown => {
                    unsure.note(&change)?;
                    view = self.ledger.view(&attempt.query(false), None)?;
                }
            }
            self.in_time()?;
        }
        Err(contended(owner))
    }

    /// Drops the leases that `choose` names among those that are held; done when it names none.
    fn let_go(
        &mut self,
        owner: &Owner,
        known: &[Lease],
        may_guess: bool,
        choose: impl FnMut(&[Lease]) -> Vec<Lease>,
    ) -> Result<Vec<Lease>> {
        let mut unsure = Unsure::default();
        let dropped = self.drop_chosen(owner, known, may_guess, choose, &mut unsure);
        dropped.map_err(|error| unsure.leave_open(error))
    }

    fn drop_chosen(
        &mut self,
        owner: &Owner,
        known: &[Lease],
        may_guess: bool,
        mut choose: impl FnMut(&[Lease]) -> Vec<Lease>,
        unsure: &mut Unsure,
    ) -> Result<Vec<Lease>> {
        let mut view = if may_guess {
            let view = self.ledger.view(&releasing(owner, known, true), None)?;
            // A guess will do where a guarded commit follows, which says whether it was right.
            if view.sure || shows_all(&view.held, known) {
                view
            } else {
                self.proof(owner, known, Some(view.token))?
            }
        } else {
            self.proof(owner, known, None)?
        };
        for _ in 0..ROUNDS {
            let drop = choose(&view.held);
            if drop.is_empty() {
                return if view.sure { Ok(drop) } else { Err(not_sure(owner)) };
            }
            let chosen = revisions(&drop);
            let rest = view.held.into_iter().filter(|lease| !chosen.contains(&revision(lease)));
            let change = Change { leave: rest.collect(), drop, ..Change::default() };
            let next = match self.ledger.commit(owner, view.token, &change)? {
                Commit::Done { .. } => return Ok(change.drop),
                Commit::Lost { view, .. } => view.filter(|view| view.sure),
                Commit::Outdated => None,
                Commit::Unknown => {
                    unsure.note(&change)?;
                    None
                }
            };
            view = match next {
                Some(next) => next,
                None => self.proof(owner, known, None)?,
            };
            self.in_time()?;
        }
        Err(contended(owner))
    }

    /// What an owner holds: surely nothing else, or at least all that the record knows.
    fn proof(
        &mut self,
        owner: &Owner,
        known: &[Lease],
        earlier: Option<L::Token>,
    ) -> Result<View<L::Token>> {
        let view = self.ledger.view(&releasing(owner, known, false), earlier)?;
        if view.sure || shows_all(&view.held, known) { Ok(view) } else { Err(not_sure(owner)) }
    }

    /// What is free in the scarcest pool, counted.
    fn free(&mut self, pools: &[Pool]) -> Result<Option<u64>> {
        let sets = self.ranges_of(pools)?;
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

    /// Whether GC releases an entry: this node's, in no list, and old enough that the list can
    /// know of it.
    fn is_stale(
        entry: &Entry,
        scope: &Scope,
        keep: &Keep,
        is_old: impl Fn(SystemTime) -> bool,
    ) -> bool {
        let ours_alone = L::REACH == Reach::Node;
        if entry.fault == Some(Fault::Leftover) {
            return ours_alone;
        }
        let Some(holder) = &entry.holder else { return false };
        let listed = match &holder.ifname {
            Some(ifname) => keep.contains(&holder.container, ifname),
            None => keep.iter().any(|(container, _)| container == holder.container),
        };
        let ours = holder.node.as_ref().map_or(ours_alone, |node| *node == scope.node);
        !listed && ours && entry.since.is_some_and(is_old)
    }

    fn in_time(&self) -> Result<()> {
        if !self.deadline.left().is_zero() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::TIMED_OUT, "the time is over")
            .advise("raise `ipam.timeout`, or look at what the store waits for"))
    }
}

/// What a release or a CHECK asks.
fn releasing<'a>(owner: &'a Owner, known: &'a [Lease], may_guess: bool) -> ViewQuery<'a> {
    ViewQuery { owner, known, requests: &[], scans: &[], may_guess, need: Need::Proof }
}

/// Whether the chain lists this allocator more than once: what it gave for pools that are served by now
/// is not shown again.
fn is_listed_twice(ipam: &Map<String, Value>) -> bool {
    let Some(own @ Value::String(_)) = ipam.get("type") else { return false };
    let entries = ipam.get("delegates").and_then(Value::as_array).into_iter().flatten();
    entries.filter(|entry| *entry == own || entry.get("type") == Some(own)).nth(1).is_some()
}

/// Whether a view shows all that the record knows of, where it knows of anything.
fn shows_all(held: &[Lease], known: &[Lease]) -> bool {
    let shown = |lease: &Lease| held.iter().any(|h| h.address.addr() == lease.address.addr());
    !known.is_empty() && known.iter().all(shown)
}

fn not_sure(owner: &Owner) -> Error {
    let message = format!("the store does not say for sure what {owner} holds");
    Error::new(ErrorCode::TRY_AGAIN, message).advise("look at the store, and call again")
}

/// Whether addresses in use may be taken over: `takeover` of `ipam`, else of the host-wide settings. A call
/// that claims again what is held takes nothing from others.
fn takeover(request: &Request) -> Result<bool> {
    if request.is_reassert() {
        return Ok(false);
    }
    let key = "ipam.takeover";
    let told = request.network.ipam().get("takeover");
    let told = told.map(|value| parse_value(value, key)).transpose()?.flatten();
    Ok(told.unwrap_or(request.settings.takeover))
}

/// The very leases that are held.
fn revisions(held: &[Lease]) -> BTreeSet<(IpAddr, String)> {
    held.iter().map(revision).collect()
}

fn revision(lease: &Lease) -> (IpAddr, String) {
    (lease.address.addr(), lease.revision.to_string())
}

fn contended(owner: &Owner) -> Error {
    let message = format!("in {ROUNDS} rounds, others were quicker than {owner}");
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise("call again; others take and free addresses all the time")
}
