//! What a refused change means. Consul tells of each operation that failed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Change, Claim, Commit, PoolView, Taken, View};
use ipam_kit::allocate::owner_index::{IndexedLease, LeaseRevision, OwnerGuard};
use ipam_kit::{Error, ErrorCode, Result};
use log::debug;

use crate::change_txn::{ChangeTxn, OpRole};
use crate::owner_view::OwnerView;
use crate::pools::ShownPool;
use crate::session::ConsulSession;
use crate::txn::{Op, TxnFailure};
use crate::values::AddressPair;
use crate::view_token::ViewToken;

/// After how many lost races of one call it is asked whether the token sees what it meets.
const SUSPICIOUS: u32 = 3;

/// After how many lost races of one call what is remembered of a pool is not believed any more.
const BELIEVED: u32 = 2;

/// A transaction that was refused.
pub(crate) struct RefusedTxn<'a> {
    pub(crate) step: &'a ChangeTxn<'a>,
    /// What each of its operations is for.
    pub(crate) roles: &'a [OpRole],
    pub(crate) ops: &'a [Op],
    pub(crate) failures: &'a [TxnFailure],
}

/// What to do after a transaction that was refused.
pub(crate) enum AfterRefusal<'a> {
    /// The same again, with what was learned.
    Again,
    /// The same again: this is what these addresses of the owner are at.
    Meet(BTreeMap<IpAddr, Option<u64>>),
    End(Box<Commit<ViewToken>>),
    /// This key may not be written.
    Denied(&'a Op),
}

impl<'a> RefusedTxn<'a> {
    /// What to do after it.
    ///
    /// # Errors
    /// No server answers in time; the token may not read what is met; Consul refuses it for another
    /// reason.
    pub(crate) fn decide(&self, session: &mut ConsulSession) -> Result<AfterRefusal<'a>> {
        let Self { step, failures, .. } = *self;
        let failed = |wanted: &dyn Fn(OpRole) -> bool| {
            let mut roles = failures.iter().filter_map(|failure| self.roles.get(failure.place));
            roles.any(|role| wanted(*role))
        };
        if failed(&|role| !matches!(role, OpRole::Claim(_) | OpRole::Folder)) {
            // What was looked at is not so: the look may have been behind.
            session.store.require_proof();
        }
        let mut denied = failures.iter().filter(|failure| failure.is_denied());
        if let Some(op) = denied.next().and_then(|failure| self.ops.get(failure.place)) {
            return Ok(self.after_denial(session).unwrap_or(AfterRefusal::Denied(op)));
        }
        if failed(&|role| role == OpRole::Folder) {
            // Somebody else made it.
            session.pools.forget_missing();
            return Ok(AfterRefusal::Again);
        }
        if failed(&|role| role == OpRole::Definition) {
            for pool in step.definitions.keys() {
                session.pools.forget_definition(pool);
            }
            for claim in &step.change.claim {
                session.pools.cache_of(claim.request).forget();
            }
            return Ok(AfterRefusal::outdated());
        }
        if failed(&|role| role == OpRole::Owner) {
            self.check_hidden_owner(session)?;
            return Ok(AfterRefusal::outdated());
        }
        if failed(&|role| role == OpRole::Victim) {
            return Ok(AfterRefusal::outdated());
        }
        if failed(&|role| role == OpRole::Lease) {
            return self.after_other_indexes(session);
        }
        self.after_taken(session)
    }

    /// What to do without a right; nothing helps where it is one to addresses.
    fn after_denial(&self, session: &mut ConsulSession) -> Option<AfterRefusal<'a>> {
        let denied = self.failures.iter().filter(|failure| failure.is_denied());
        let roles: Vec<OpRole> =
            denied.filter_map(|failure| self.roles.get(failure.place).copied()).collect();
        if roles.iter().all(|role| *role == OpRole::Folder) {
            debug!("the folders that passcod needs cannot be made: no right");
            session.pools.forget_missing();
            return Some(AfterRefusal::Again);
        }
        let beside = |role: &OpRole| {
            matches!(role, OpRole::Folder | OpRole::Owner | OpRole::Victim | OpRole::ClaimMark)
        };
        if session.memory.is_indexed() && roles.iter().all(beside) {
            session.pools.forget_missing();
            session.go_without_index();
            return Some(AfterRefusal::outdated());
        }
        None
    }

    /// An owner's key that is there, and that no look shows, may not be read.
    fn check_hidden_owner(&self, session: &mut ConsulSession) -> Result<()> {
        let ChangeTxn { keys, owner, seen, .. } = *self.step;
        if seen.revision.is_some() || !std::mem::replace(&mut session.refusals.hidden, true) {
            return Ok(());
        }
        session.store.check_readable(&keys.owner(owner))
    }

    /// The owner's key is as it was seen, and keys of its addresses are not: somebody wrote them anew, or
    /// passcod gave them to another.
    fn after_other_indexes(&self, session: &mut ConsulSession) -> Result<AfterRefusal<'a>> {
        let ChangeTxn { keys, owner, seen, indexes, .. } = *self.step;
        let Change { keep, drop, .. } = self.step.change;
        let leases: Vec<&Lease> = keep.iter().chain(drop).collect();
        if !leases.iter().all(|lease| is_as_seen(seen, lease)) {
            return Ok(AfterRefusal::outdated());
        }
        let key = |lease: &&Lease| keys.lease(lease.pool.as_deref(), lease.address.addr());
        let asked: Vec<String> = leases.iter().map(key).collect();
        let read = session.store.read_keys(&asked)?;
        let mut met = BTreeMap::new();
        for (lease, key) in leases.into_iter().zip(&asked) {
            let found = read.iter().find(|pair| pair.key == *key).and_then(AddressPair::read);
            let own = found.filter(|found| found.is_of(owner)).map(|found| found.index);
            met.insert(lease.address.addr(), own);
        }
        let known = met.iter().all(|(address, index)| indexes.get(address) == Some(index));
        // Who has lost an address may have got others from passcod since.
        if met.values().any(Option::is_none) || known {
            session.refusals.doubtful = true;
            return Ok(AfterRefusal::outdated());
        }
        Ok(AfterRefusal::Meet(met))
    }

    /// Some addresses are another's.
    fn after_taken(&self, session: &mut ConsulSession) -> Result<AfterRefusal<'a>> {
        let Self { step, roles, ops, failures } = *self;
        let mut taken = Vec::new();
        for failure in failures {
            let Some(OpRole::Claim(place)) = roles.get(failure.place) else { continue };
            let key = ops[failure.place].key();
            let (claim, address) = (&step.change.claim[*place], step.chosen[*place]);
            let mut holder = None;
            // Of a single one it is told who has it.
            if claim.request.requested.is_some() || claim.candidates.len() == 1 {
                let read = session.store.read_keys(&[key.to_owned()])?;
                let Some(found) = read.first().and_then(AddressPair::read) else {
                    // It was given back meanwhile, or must not be seen.
                    session.store.check_readable(key)?;
                    return Ok(AfterRefusal::outdated());
                };
                let met = Some(found.index);
                if found.is_of(step.owner) && step.indexes.get(&address) != Some(&met) {
                    return Ok(AfterRefusal::Meet(BTreeMap::from([(address, met)])));
                }
                holder = Some(found.entry(step.keys));
            } else {
                session.pools.cache_of(claim.request).remember_contention();
                session.refusals.lost += 1;
                if session.refusals.lost.is_multiple_of(SUSPICIOUS) {
                    session.store.check_readable(key)?;
                }
            }
            taken.push(Taken { claim: *place, address, holder });
        }
        if taken.is_empty() {
            let what: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
            return Err(Error::new(
                ErrorCode::BACKEND,
                format!("Consul refuses a change: {}", what.join("; ")),
            ));
        }
        let view = self.view_after(session, &taken);
        Ok(AfterRefusal::End(Box::new(Commit::Lost { taken, view })))
    }

    /// The pools of all claims as far as they are remembered; only where nothing else is to be told.
    fn view_after(&self, session: &mut ConsulSession, taken: &[Taken]) -> Option<View<ViewToken>> {
        let Change { keep, claim, leave, drop } = self.step.change;
        if !(keep.is_empty() && leave.is_empty() && drop.is_empty()) {
            return None;
        }
        // Its key was as it was seen, or that would have been refused, too.
        let seen = self.step.seen.clone();
        let mut token = ViewToken::read(OwnerView { held: Vec::new(), seen });
        let mut pools = Vec::new();
        for (place, claim) in claim.iter().enumerate() {
            // What was free a while ago may all be taken by now.
            let is_lost = taken.iter().any(|taken| taken.claim == place);
            let is_believed = !is_lost || session.refusals.lost < BELIEVED;
            let known = session.pools.cached(claim.request).filter(|_| is_believed);
            let remembered =
                known.and_then(|known| session.pools.remembered(claim.request, known).ok());
            let shown = remembered.unwrap_or_else(|| self.nothing_known(claim));
            token.guard_definition(claim.request, &shown);
            pools.push(shown.view);
        }
        Some(View { held: Vec::new(), sure: false, pools, token })
    }

    /// A pool that is looked into next, with the ranges that the claim relied on.
    fn nothing_known(&self, claim: &Claim<'_>) -> ShownPool {
        let Claim { request, set, .. } = claim;
        let index = request.pool.as_ref().and_then(|pool| self.step.definitions.get(pool)).copied();
        let set = request.set.is_none().then(|| set.clone());
        ShownPool { view: PoolView { set, ..PoolView::default() }, index }
    }
}

impl AfterRefusal<'_> {
    fn outdated() -> Self {
        Self::End(Box::new(Commit::Outdated))
    }
}

/// Whether a lease is the one that its owner's key stands for.
fn is_as_seen(seen: &OwnerGuard, lease: &Lease) -> bool {
    let Some(its) = LeaseRevision::read(&lease.revision) else { return false };
    let Some(document) = &seen.document else { return seen.revision == Some(its.revision) };
    let same = |item: &&IndexedLease| item.address.addr() == lease.address.addr();
    let since =
        document.leases.iter().find(same).map(|item| item.since.map(|since| since.revision));
    since.is_some_and(|since| since.or(seen.revision) == Some(its.revision))
}
