//! A commit as one transaction, and what came back of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use ipam_kit::allocate::ledger::{Change, Claim, Scan};
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::{Lease, Owner};

use crate::keys::EtcdKeys;
use crate::page::{flatten, read_window};
use crate::values::{OwnerIndex, OwnerState, revision_of};

/// A commit as one transaction.
///
/// ```text
/// if the owner's key is as it was seen, and the latest claim not older than the one that is known
///   write the key of the latest claim
///   if candidate 1 is free: write all keys of the owner
///   else if candidate 2 is free: …
///   else: read the window of `Claim::next`
/// else: read the owner's key and that of the latest claim
/// ```
///
/// So a store that was restored from a backup refuses a claim and is not changed by it. A server whose
/// space is over counts the writes of the outermost level alone: there is one.
///
/// With several pools each branch holds the candidates of the next one. The answer says what
/// happened, so no request has to go before it.
#[derive(Debug)]
pub(crate) struct CommitTxn<'a> {
    pub(crate) keys: &'a EtcdKeys,
    pub(crate) owner: &'a Owner,
    pub(crate) guard: &'a OwnerGuard,
    pub(crate) change: &'a Change<'a>,
    /// The revision of the latest claim that is known, 0 if none is. `None` for a reassert, in a
    /// store that is not trusted yet: the next claim must not take it for a later one.
    pub(crate) latest: Option<i64>,
    /// The owners whose leases are taken over, by their keys; `None` if the key is missing.
    pub(crate) previous_holders: &'a BTreeMap<String, Option<OwnerState>>,
    /// Whether the store lets us have keys of owners.
    pub(crate) indexed: bool,
    /// Further guards, reads and writes.
    pub(crate) additions: &'a dyn TxnAdditions,
}

/// Additions to a transaction that takes or confirms addresses. `()` adds nothing.
pub(crate) trait TxnAdditions: Debug {
    /// Returns guards of the whole transaction.
    fn guards(&self) -> Vec<Compare> {
        Vec::new()
    }

    /// Returns the reads for when a guard of the whole fails.
    fn reads(&self) -> Vec<TxnOp> {
        Vec::new()
    }

    /// Returns the candidates of a claim in the order in which they are tried.
    fn candidates(&self, claim: &Claim<'_>) -> Vec<GuardedCandidate> {
        GuardedCandidate::unguarded(claim)
    }

    /// Returns the reads for when all candidates of a claim are taken.
    fn reads_when_taken(&self, _claim: &Claim<'_>) -> Vec<TxnOp> {
        Vec::new()
    }

    /// Returns the writes for when these addresses are free, one of each claim.
    fn writes(&self, _claims: &[Claim<'_>], _chosen: &[IpAddr]) -> Vec<TxnOp> {
        Vec::new()
    }
}

impl TxnAdditions for () {}

/// A candidate, with a guard of its claim beside that it is free.
pub(crate) struct GuardedCandidate {
    pub(crate) guard: Option<Compare>,
    pub(crate) candidate: IpAddr,
}

impl GuardedCandidate {
    /// Returns each candidate of a claim once, without a guard.
    pub(crate) fn unguarded(claim: &Claim<'_>) -> Vec<Self> {
        let candidates = claim.candidates.iter();
        candidates.map(|candidate| Self { guard: None, candidate: *candidate }).collect()
    }
}

/// The outcome of a [`CommitTxn`].
#[derive(Debug)]
pub(crate) enum CommitTxnOutcome {
    /// Everything was written at one revision: the address of each claim.
    Done(Vec<IpAddr>),
    /// The owner's keys are not as they were seen, or the store is not, or a guard that was added
    /// fails: the owner's key with those that [`EtcdKeys::read_owner`] reads beside it, that of the
    /// latest claim, those of the addresses that the owner was seen to hold, and what the additions
    /// read.
    Stale(Vec<KeyValue>),
    /// All candidates of this claim are taken; what was read of the pool, or of the only candidate.
    Taken(usize, Option<Vec<KeyValue>>),
}

impl CommitTxn<'_> {
    /// Returns the transaction.
    pub(crate) fn transaction(&self) -> Txn {
        let owner = self.keys.owner(self.owner);
        let mut guards = Vec::new();
        let mut reads = Vec::new();
        if self.indexed {
            guards.push(match self.guard.revision {
                None => Compare::create_revision(owner.as_str(), CompareOp::Equal, 0),
                Some(revision) => Compare::mod_revision(owner.as_str(), CompareOp::Equal, revision),
            });
            reads.push(self.keys.read_owner(self.owner));
            reads.push(TxnOp::get(self.keys.latest(), None));
        }
        if self.takes() {
            guards.extend(self.additions.guards());
            reads.extend(self.additions.reads());
        }
        for lease in self.seen_leases() {
            let key = self.keys.lease(lease.address.addr());
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, revision_of(lease)));
            reads.push(TxnOp::get(key, None));
        }
        for (key, holder_before) in self.previous_holders {
            let Some(OwnerState { revision, .. }) = holder_before else {
                guards.push(Compare::create_revision(key.as_str(), CompareOp::Equal, 0));
                continue;
            };
            guards.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision));
        }
        let mut then = Vec::new();
        if let Some(latest) = self.latest.filter(|_| !self.change.claim.is_empty()) {
            if latest > 0 {
                let older = latest - 1;
                guards.push(Compare::mod_revision(self.keys.latest(), CompareOp::Greater, older));
            }
            then.push(TxnOp::put(self.keys.latest(), self.owner.scope.node.as_str(), None));
        }
        let mut branch = self.branch(&owner, &mut Vec::new());
        // A server that is out of space still lets an owner release some of its addresses.
        if !self.takes() {
            branch = vec![TxnOp::txn(Txn::new().and_then(branch))];
        }
        then.append(&mut branch);
        Txn::new().when(guards).and_then(then).or_else(reads)
    }

    /// Reads the outcome from the answer.
    pub(crate) fn outcome(&self, response: &TxnResponse) -> CommitTxnOutcome {
        let mut answers = response.op_responses();
        if !response.succeeded() {
            return CommitTxnOutcome::Stale(flatten(answers));
        }
        let writes_latest = self.latest.is_some() && !self.change.claim.is_empty();
        if writes_latest && !answers.is_empty() {
            answers.remove(0);
        }
        let mut chosen = Vec::new();
        for (number, claim) in self.change.claim.iter().enumerate() {
            let mut won = None;
            for GuardedCandidate { candidate, .. } in self.additions.candidates(claim) {
                let Some(TxnOpResponse::Txn(tried)) = answers.into_iter().next() else {
                    return CommitTxnOutcome::Taken(number, None);
                };
                answers = tried.op_responses();
                if tried.succeeded() {
                    won = Some(candidate);
                    break;
                }
            }
            match won {
                Some(candidate) => chosen.push(candidate),
                None => {
                    let shown = (!answers.is_empty()).then(|| flatten(answers));
                    return CommitTxnOutcome::Taken(number, shown);
                }
            }
        }
        CommitTxnOutcome::Done(chosen)
    }

    /// Tells whether addresses are taken or confirmed.
    fn takes(&self) -> bool {
        !self.change.claim.is_empty() || !self.change.keep.is_empty()
    }

    /// Returns the operations for when these addresses are free.
    fn branch(&self, owner: &str, chosen: &mut Vec<IpAddr>) -> Vec<TxnOp> {
        let Some(claim) = self.change.claim.get(chosen.len()) else {
            return self.writes(owner, chosen);
        };
        let mut otherwise = self.after_all(claim);
        for GuardedCandidate { guard, candidate } in
            self.additions.candidates(claim).into_iter().rev()
        {
            let key = self.keys.lease(candidate);
            let mut guards = vec![match &claim.replaces {
                None => Compare::create_revision(key, CompareOp::Equal, 0),
                Some(entry) => {
                    Compare::mod_revision(key, CompareOp::Equal, revision_of(&entry.lease))
                }
            }];
            guards.extend(guard);
            chosen.push(candidate);
            let then = self.branch(owner, chosen);
            chosen.pop();
            otherwise = vec![TxnOp::txn(Txn::new().when(guards).and_then(then).or_else(otherwise))];
        }
        otherwise
    }

    /// Returns the reads for when all candidates are taken.
    fn after_all(&self, claim: &Claim<'_>) -> Vec<TxnOp> {
        let mut reads = match (&claim.candidates[..], claim.next) {
            (_, Scan::Range(from, to)) => read_window(self.keys, from, to),
            ([only], _) => vec![TxnOp::get(self.keys.lease(*only), None)],
            _ => Vec::new(),
        };
        reads.extend(self.additions.reads_when_taken(claim));
        reads
    }

    /// Returns the writes of the owner's keys, one of which is given, and those of owners that lose
    /// an address.
    fn writes(&self, owner: &str, chosen: &[IpAddr]) -> Vec<TxnOp> {
        let mut ops = Vec::new();
        let gone = self.change.drop.iter().map(|lease| self.keys.lease(lease.address.addr()));
        ops.extend(gone.map(|key| TxnOp::delete(key, None)));
        let owner_index = self.guard.next(self.owner, self.change, chosen);
        if self.indexed {
            write_owner(self.keys, owner.to_owned(), &owner_index, &mut ops);
        } else {
            write_leases(self.keys, &owner_index, &mut ops);
        }
        for (key, holder_before) in self.previous_holders {
            if let Some(rest) = self.left_to_previous_holder(holder_before) {
                write_owner(self.keys, key.clone(), &rest, &mut ops);
            }
        }
        ops.extend(self.additions.writes(&self.change.claim, chosen));
        ops
    }

    /// Returns the leases that a previous holder keeps.
    fn left_to_previous_holder(&self, holder_before: &Option<OwnerState>) -> Option<OwnerIndex> {
        let replaced = self.change.claim.iter().filter_map(|claim| claim.replaces.as_ref());
        let lost: BTreeSet<IpAddr> = replaced.map(|entry| entry.lease.address.addr()).collect();
        holder_before
            .as_ref()
            .map(|holder_before| holder_before.without(|address| lost.contains(&address)))
    }

    fn seen_leases(&self) -> impl Iterator<Item = &Lease> {
        self.change.keep.iter().chain(&self.change.leave).chain(&self.change.drop)
    }
}

/// Writes the keys of an owner by its index, except those that stay as they are. Deletes the
/// owner's key if the owner holds nothing.
pub(crate) fn write_owner(
    keys: &EtcdKeys,
    key: String,
    owner_index: &OwnerIndex,
    ops: &mut Vec<TxnOp>,
) {
    if owner_index.leases.is_empty() {
        ops.push(TxnOp::delete(key, None));
        return;
    }
    write_leases(keys, owner_index, ops);
    ops.push(TxnOp::put(key, owner_index.to_value(), None));
}

/// Writes the keys of an owner's addresses, except those that stay as they are.
fn write_leases(keys: &EtcdKeys, owner_index: &OwnerIndex, ops: &mut Vec<TxnOp>) {
    for item in owner_index.leases.iter().filter(|item| item.since.is_none()) {
        let value = keys.key_format().value(owner_index, item);
        ops.push(TxnOp::put(keys.lease(item.address.addr()), value, None));
    }
}
