//! The decision after Consul refused a change: it names every operation that failed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Change, Claim, Commit, PoolView, Taken, View};
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::owner_index::LeaseRevision;
use ipam_kit::{Error, ErrorCode, Result};
use log::debug;

use crate::change_txn::{ChangeTxn, OpRole};
use crate::owner_view::OwnerView;
use crate::pool_scan::{ShownPool, show_cached};
use crate::session::ConsulSession;
use crate::txn::{Op, TxnFailure, find};
use crate::values::AddressPair;
use crate::view_token::ViewToken;

/// After each such number of lost races, the call checks that the token may read the keys that it
/// met.
const SUSPICIOUS: u32 = 3;

/// From this number of lost races on, the call ignores the memory of a pool.
const BELIEVED: u32 = 2;

/// A transaction that was refused.
pub(crate) struct RefusedTxn<'a> {
    pub(crate) txn: &'a ChangeTxn<'a>,
    /// The purpose of each of its operations.
    pub(crate) roles: &'a [OpRole],
    pub(crate) ops: &'a [Op],
    pub(crate) failures: &'a [TxnFailure],
}

/// The next step after a transaction that was refused.
pub(crate) enum AfterRefusal<'a> {
    /// Make the same change again.
    Retry,
    /// Make it again with these indexes of the owner's addresses; `None` if another owner has one.
    RetryAt(BTreeMap<IpAddr, Option<u64>>),
    /// End the commit.
    End(Box<Commit<ViewToken>>),
    /// Fail: the token may not do this operation.
    Denied(&'a Op),
}

impl<'a> RefusedTxn<'a> {
    /// Decides the next step.
    ///
    /// # Errors
    /// No server answers in time; the token may not read a key that was met; Consul refuses the
    /// change for another reason.
    pub(crate) fn decide(&self, session: &mut ConsulSession) -> Result<AfterRefusal<'a>> {
        let failed: Vec<OpRole> = self
            .failures
            .iter()
            .filter_map(|failure| self.roles.get(failure.op_index).copied())
            .collect();
        if failed.iter().any(|role| !matches!(role, OpRole::Claim(_) | OpRole::Folder)) {
            // The store is not as a read showed it: the server may have been behind.
            session.store.require_proof();
        }
        let mut denied = self.failures.iter().filter(|failure| failure.is_denied());
        if let Some(op) = denied.next().and_then(|failure| self.ops.get(failure.op_index)) {
            return Ok(self.after_denial(session).unwrap_or(AfterRefusal::Denied(op)));
        }
        if failed.contains(&OpRole::Folder) {
            // Somebody else has made it.
            session.pools.skip_missing_folders();
            return Ok(AfterRefusal::Retry);
        }
        if failed.contains(&OpRole::Definition) {
            self.forget_definitions(session);
            return Ok(AfterRefusal::outdated());
        }
        if failed.contains(&OpRole::Owner) {
            self.check_owner_readable(session)?;
            return Ok(AfterRefusal::outdated());
        }
        if failed.contains(&OpRole::Loser) {
            return Ok(AfterRefusal::outdated());
        }
        if failed.contains(&OpRole::Lease) {
            return self.after_changed_leases(session);
        }
        self.after_lost_race(session)
    }

    /// Decides the next step without a right; `None` if it is the right to addresses.
    fn after_denial(&self, session: &mut ConsulSession) -> Option<AfterRefusal<'a>> {
        let denied: Vec<OpRole> = self
            .failures
            .iter()
            .filter(|failure| failure.is_denied())
            .filter_map(|failure| self.roles.get(failure.op_index).copied())
            .collect();
        if denied.iter().all(|role| *role == OpRole::Folder) {
            debug!("skips the folder keys that passcod needs: the token may not write them");
            session.pools.skip_missing_folders();
            return Some(AfterRefusal::Retry);
        }
        let is_index_alone = denied.iter().all(|role| {
            matches!(role, OpRole::Folder | OpRole::Owner | OpRole::Loser | OpRole::Mark)
        });
        if session.memory.is_indexed() && is_index_alone {
            session.pools.skip_missing_folders();
            session.go_without_index();
            return Some(AfterRefusal::outdated());
        }
        None
    }

    fn forget_definitions(&self, session: &mut ConsulSession) {
        for pool in self.txn.definitions.keys() {
            session.pools.forget_definition(pool);
        }
        for claim in &self.txn.change.claim {
            session.pools.cache_of(claim.request).forget();
        }
    }

    /// Fails if the owner's key exists and the token may not read it. It is checked when the key is
    /// met for the second time though no read has shown it.
    fn check_owner_readable(&self, session: &mut ConsulSession) -> Result<()> {
        if self.txn.guard.revision.is_some() {
            return Ok(());
        }
        if !session.refusals.owner_key_hidden {
            session.refusals.owner_key_hidden = true;
            return Ok(());
        }
        session.store.check_readable(&self.txn.keys.owner(self.txn.owner))
    }

    /// Decides the next step if the owner's key has not changed, but keys of its addresses have.
    /// Another program has written them again, or passcod has given them to others.
    fn after_changed_leases(&self, session: &mut ConsulSession) -> Result<AfterRefusal<'a>> {
        let ChangeTxn { keys, owner, guard, changed_indexes, .. } = *self.txn;
        let Change { keep, drop, .. } = self.txn.change;
        let leases: Vec<&Lease> = keep.iter().chain(drop).collect();
        if !leases.iter().all(|lease| is_guarded(guard, lease)) {
            return Ok(AfterRefusal::outdated());
        }
        let lease_keys: Vec<String> = leases.iter().map(|lease| keys.of_lease(lease)).collect();
        let pairs = session.store.read_keys(&lease_keys)?;
        let mut indexes = BTreeMap::new();
        for (lease, key) in leases.into_iter().zip(&lease_keys) {
            let pair = find(&pairs, key).and_then(AddressPair::read);
            let own_index = pair.filter(|pair| pair.is_of(owner)).map(|pair| pair.index);
            indexes.insert(lease.address.addr(), own_index);
        }
        let nothing_new =
            indexes.iter().all(|(address, index)| changed_indexes.get(address) == Some(index));
        // An owner that has lost an address may have got others from passcod since.
        if nothing_new || indexes.values().any(Option::is_none) {
            session.refusals.index_doubtful = true;
            return Ok(AfterRefusal::outdated());
        }
        Ok(AfterRefusal::RetryAt(indexes))
    }

    /// Decides the next step if others have some of the chosen addresses.
    fn after_lost_race(&self, session: &mut ConsulSession) -> Result<AfterRefusal<'a>> {
        let Self { txn, roles, ops, failures } = *self;
        let mut taken = Vec::new();
        for failure in failures {
            let Some(OpRole::Claim(i)) = roles.get(failure.op_index) else { continue };
            let key = ops[failure.op_index].key();
            let claim = &txn.change.claim[*i];
            let address = txn.chosen[*i];
            let mut holder = None;
            // The holder of a single candidate is reported.
            if claim.request.requested.is_some() || claim.candidates.len() == 1 {
                let pairs = session.store.read_keys(&[key.to_owned()])?;
                let Some(pair) = pairs.first().and_then(AddressPair::read) else {
                    // It was released meanwhile, or the token may not read it.
                    session.store.check_readable(key)?;
                    return Ok(AfterRefusal::outdated());
                };
                let index = Some(pair.index);
                if pair.is_of(txn.owner) && txn.changed_indexes.get(&address) != Some(&index) {
                    return Ok(AfterRefusal::RetryAt(BTreeMap::from([(address, index)])));
                }
                holder = Some(pair.entry(txn.keys));
            } else {
                session.pools.cache_of(claim.request).remember_contention();
                session.refusals.lost_races += 1;
                if session.refusals.lost_races.is_multiple_of(SUSPICIOUS) {
                    session.store.check_readable(key)?;
                }
            }
            taken.push(Taken { claim: *i, address, holder });
        }
        if taken.is_empty() {
            let what: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
            return Err(Error::new(
                ErrorCode::BACKEND,
                format!("Consul rejected a transaction: {}", what.join("; ")),
            ));
        }
        let view = self.view_of_cached(session, &taken);
        Ok(AfterRefusal::End(Box::new(Commit::Lost { taken, view })))
    }

    /// Returns a view by the memory of all claims' pools; `None` if the change was about held
    /// leases, too.
    fn view_of_cached(
        &self,
        session: &mut ConsulSession,
        taken: &[Taken],
    ) -> Option<View<ViewToken>> {
        let Change { keep, claim, leave, drop } = self.txn.change;
        if !(keep.is_empty() && leave.is_empty() && drop.is_empty()) {
            return None;
        }
        // The owner's key has not changed: else its operation would have failed.
        let guard = self.txn.guard.clone();
        let mut token = ViewToken::of_owner(OwnerView { held: Vec::new(), guard });
        let mut pools = Vec::new();
        for (i, claim) in claim.iter().enumerate() {
            // What was free a while ago may all be taken by now.
            let is_lost = taken.iter().any(|taken| taken.claim == i);
            let is_believed = !is_lost || session.refusals.lost_races < BELIEVED;
            let cached = session.pools.cached(claim.request).filter(|_| is_believed);
            let shown = cached
                .and_then(|cached| show_cached(&mut session.pools, claim.request, cached).ok())
                .unwrap_or_else(|| self.show_unknown(claim));
            token.guard_definition(claim.request, &shown);
            pools.push(shown.view);
        }
        Some(View { held: Vec::new(), sure: false, pools, token })
    }

    /// Returns a pool with the ranges of the claim alone, so that it is scanned next.
    fn show_unknown(&self, claim: &Claim<'_>) -> ShownPool {
        let Claim { request, set, .. } = claim;
        let definition_index =
            request.pool.as_ref().and_then(|pool| self.txn.definitions.get(pool)).copied();
        let set = request.set.is_none().then(|| set.clone());
        ShownPool { view: PoolView { set, ..PoolView::default() }, definition_index }
    }
}

impl AfterRefusal<'_> {
    fn outdated() -> Self {
        Self::End(Box::new(Commit::Outdated))
    }
}

/// Returns whether a lease has the revision that the owner's key gives it.
fn is_guarded(guard: &OwnerGuard, lease: &Lease) -> bool {
    let Some(revision) = LeaseRevision::read(&lease.revision) else { return false };
    let Some(owner_index) = &guard.owner_index else {
        return guard.revision == Some(revision.revision);
    };
    let mut items = owner_index.leases.iter();
    let item = items.find(|item| item.address.addr() == lease.address.addr());
    item.is_some_and(|item| {
        let since = item.since.map(|since| since.revision);
        since.or(guard.revision) == Some(revision.revision)
    })
}
