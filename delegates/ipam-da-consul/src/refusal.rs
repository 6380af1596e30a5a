//! What a refused change means. Consul tells of each operation that failed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Change, Claim, Commit, PoolView, Taken, View};
use ipam_kit::allocate::owner_index::{IndexedLease, LeaseRevision, OwnerGuard};
use ipam_kit::{Error, ErrorCode, Result};
use log::debug;

use crate::allocation::Found;
use crate::claim::{Role, Step};
use crate::held::State;
use crate::pools::Shown;
use crate::session::Session;
use crate::token::Token;
use crate::txn::{Failure, Op};

/// After how many lost races of one call it is asked whether the token sees what it meets.
const SUSPICIOUS: u32 = 3;

/// After how many lost races of one call what is remembered of a pool is not believed any more.
const BELIEVED: u32 = 2;

/// A transaction that was refused.
pub(crate) struct Refusal<'a> {
    pub(crate) step: &'a Step<'a>,
    /// What each of its operations is for.
    pub(crate) roles: &'a [Role],
    pub(crate) ops: &'a [Op],
    pub(crate) failures: &'a [Failure],
}

/// What to do after a transaction that was refused.
pub(crate) enum Next<'a> {
    /// The same again, with what was learned.
    Again,
    /// The same again: this is what these addresses of the owner are at.
    Meet(BTreeMap<IpAddr, Option<u64>>),
    End(Box<Commit<Token>>),
    /// This key may not be written.
    Denied(&'a Op),
}

impl<'a> Refusal<'a> {
    /// What to do after it.
    ///
    /// # Errors
    /// No server answers in time; the token may not read what is met; Consul refuses it for another
    /// reason.
    pub(crate) fn judge(&self, session: &mut Session) -> Result<Next<'a>> {
        let Self { step, failures, .. } = *self;
        let failed = |wanted: &dyn Fn(Role) -> bool| {
            let mut roles = failures.iter().filter_map(|failure| self.roles.get(failure.place));
            roles.any(|role| wanted(*role))
        };
        if failed(&|role| !matches!(role, Role::Claim(_) | Role::Folder)) {
            // What was looked at is not so: the look may have been behind.
            session.store.insist();
        }
        let mut denied = failures.iter().filter(|failure| failure.is_denied());
        if let Some(op) = denied.next().and_then(|failure| self.ops.get(failure.place)) {
            return Ok(self.after_denial(session).unwrap_or(Next::Denied(op)));
        }
        if failed(&|role| role == Role::Folder) {
            // Somebody else made it.
            session.pools.forget_missing();
            return Ok(Next::Again);
        }
        if failed(&|role| role == Role::Definition) {
            for pool in step.definitions.keys() {
                session.pools.forget_definition(pool);
            }
            for claim in &step.change.claim {
                session.pools.cache_of(claim.request).forget();
            }
            return Ok(Next::outdated());
        }
        if failed(&|role| role == Role::Owner) {
            self.note_hidden(session)?;
            return Ok(Next::outdated());
        }
        if failed(&|role| role == Role::Victim) {
            return Ok(Next::outdated());
        }
        if failed(&|role| role == Role::Lease) {
            return self.after_other_indexes(session);
        }
        self.after_taken(session)
    }

    /// What to do without a right; nothing helps where it is one to addresses.
    fn after_denial(&self, session: &mut Session) -> Option<Next<'a>> {
        let denied = self.failures.iter().filter(|failure| failure.is_denied());
        let roles: Vec<Role> =
            denied.filter_map(|failure| self.roles.get(failure.place).copied()).collect();
        if roles.iter().all(|role| *role == Role::Folder) {
            debug!("the folders that the ancestor wants cannot be made: no right");
            session.pools.forget_missing();
            return Some(Next::Again);
        }
        let beside =
            |role: &Role| matches!(role, Role::Folder | Role::Owner | Role::Victim | Role::Mark);
        if session.memory.is_indexed() && roles.iter().all(beside) {
            session.pools.forget_missing();
            session.go_without_index();
            return Some(Next::outdated());
        }
        None
    }

    /// An owner's key that is there, and that no look shows, may not be read.
    fn note_hidden(&self, session: &mut Session) -> Result<()> {
        let Step { keys, owner, seen, .. } = *self.step;
        if seen.revision.is_some() || !std::mem::replace(&mut session.lessons.hidden, true) {
            return Ok(());
        }
        session.store.judge_readable(&keys.owner(owner))
    }

    /// The owner's key is as it was seen, and keys of its addresses are not: somebody wrote them anew, or the
    /// ancestor gave them to another.
    fn after_other_indexes(&self, session: &mut Session) -> Result<Next<'a>> {
        let Step { keys, owner, seen, indexes, .. } = *self.step;
        let Change { keep, drop, .. } = self.step.change;
        let leases: Vec<&Lease> = keep.iter().chain(drop).collect();
        if !leases.iter().all(|lease| is_as_seen(seen, lease)) {
            return Ok(Next::outdated());
        }
        let key = |lease: &&Lease| keys.lease(lease.pool.as_deref(), lease.address.addr());
        let asked: Vec<String> = leases.iter().map(key).collect();
        let read = session.store.read_keys(&asked)?;
        let mut met = BTreeMap::new();
        for (lease, key) in leases.into_iter().zip(&asked) {
            let found = read.iter().find(|pair| pair.key == *key).and_then(Found::read);
            let own = found.filter(|found| found.is_of(owner)).map(|found| found.index);
            met.insert(lease.address.addr(), own);
        }
        let known = met.iter().all(|(address, index)| indexes.get(address) == Some(index));
        // Who has lost an address may have got others from the ancestor since.
        if met.values().any(Option::is_none) || known {
            session.lessons.doubtful = true;
            return Ok(Next::outdated());
        }
        Ok(Next::Meet(met))
    }

    /// Some addresses are another's.
    fn after_taken(&self, session: &mut Session) -> Result<Next<'a>> {
        let Self { step, roles, ops, failures } = *self;
        let mut taken = Vec::new();
        for failure in failures {
            let Some(Role::Claim(place)) = roles.get(failure.place) else { continue };
            let key = ops[failure.place].key();
            let (claim, address) = (&step.change.claim[*place], step.chosen[*place]);
            let mut holder = None;
            // Of a single one it is told who has it.
            if claim.request.requested.is_some() || claim.candidates.len() == 1 {
                let read = session.store.read_keys(&[key.to_owned()])?;
                let Some(found) = read.first().and_then(Found::read) else {
                    // It was given back meanwhile, or must not be seen.
                    session.store.judge_readable(key)?;
                    return Ok(Next::outdated());
                };
                let met = Some(found.index);
                if found.is_of(step.owner) && step.indexes.get(&address) != Some(&met) {
                    return Ok(Next::Meet(BTreeMap::from([(address, met)])));
                }
                holder = Some(found.entry(step.keys));
            } else {
                session.pools.cache_of(claim.request).note_crowd();
                session.lessons.lost += 1;
                if session.lessons.lost.is_multiple_of(SUSPICIOUS) {
                    session.store.judge_readable(key)?;
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
        Ok(Next::End(Box::new(Commit::Lost { taken, view })))
    }

    /// The pools of all claims as far as they are remembered; only where nothing else is to be told.
    fn view_after(&self, session: &mut Session, taken: &[Taken]) -> Option<View<Token>> {
        let Change { keep, claim, leave, drop } = self.step.change;
        if !(keep.is_empty() && leave.is_empty() && drop.is_empty()) {
            return None;
        }
        // Its key was as it was seen, or that would have been refused, too.
        let seen = self.step.seen.clone();
        let mut token = Token::read(State { held: Vec::new(), seen });
        let mut pools = Vec::new();
        for (place, claim) in claim.iter().enumerate() {
            // What was free a while ago may all be taken by now.
            let is_lost = taken.iter().any(|taken| taken.claim == place);
            let is_believed = !is_lost || session.lessons.lost < BELIEVED;
            let known = session.pools.known_of(claim.request).filter(|_| is_believed);
            let remembered =
                known.and_then(|known| session.pools.remembered(claim.request, known).ok());
            let shown = remembered.unwrap_or_else(|| self.nothing_known(claim));
            token.rely_on(claim.request, &shown);
            pools.push(shown.view);
        }
        Some(View { held: Vec::new(), sure: false, pools, token })
    }

    /// A pool that is looked into next, with the ranges that the claim relied on.
    fn nothing_known(&self, claim: &Claim<'_>) -> Shown {
        let Claim { request, set, .. } = claim;
        let index = request.pool.as_ref().and_then(|pool| self.step.definitions.get(pool)).copied();
        let set = request.set.is_none().then(|| set.clone());
        Shown { view: PoolView { set, ..PoolView::default() }, index }
    }
}

impl Next<'_> {
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
