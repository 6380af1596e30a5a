//! A change as one transaction: its guards, its writes, and the purpose of each operation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::Change;
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::owner_index::{OwnerIndex, OwnerState, to_text};
use ipam_kit::allocate::{Lease, Owner};

use crate::keys::ConsulKeys;
use crate::memory::ClaimMark;
use crate::txn::{Op, Pair};
use crate::values::{AddressValue, index, index_of};

/// A change that is carried out as a whole, or not at all.
#[derive(Debug)]
pub(crate) struct ChangeTxn<'a> {
    pub(crate) keys: &'a ConsulKeys,
    pub(crate) owner: &'a Owner,
    pub(crate) guard: &'a OwnerGuard,
    pub(crate) change: &'a Change<'a>,
    /// The address of each claim.
    pub(crate) chosen: &'a [IpAddr],
    /// The index of the definition of each pool that has one, by the pool's name.
    pub(crate) definitions: &'a BTreeMap<String, u64>,
    /// Folder keys to make.
    pub(crate) folders: &'a BTreeSet<String>,
    /// The indexes of the owner's addresses that differ from the guard's; `None` if another owner
    /// has the address.
    pub(crate) changed_indexes: &'a BTreeMap<IpAddr, Option<u64>>,
    /// The owners whose addresses are taken over, by their keys; `None` if the key does not exist.
    pub(crate) losers: &'a BTreeMap<String, Option<OwnerState>>,
    /// Whether owners have keys.
    pub(crate) indexed: bool,
    /// Whether a claim writes the node's mark.
    pub(crate) marked: bool,
}

/// The purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpRole {
    /// Fails if a definition has changed.
    Definition,
    /// Makes a folder.
    Folder,
    /// Takes the address of the claim with this index.
    Claim(usize),
    /// Confirms or drops an address.
    Lease,
    /// Writes the owner's key.
    Owner,
    /// Writes the key of an owner that loses an address.
    Loser,
    /// Writes the node's mark.
    Mark,
}

impl ChangeTxn<'_> {
    /// Returns the operations, each with its purpose.
    pub(crate) fn ops(&self) -> Vec<(OpRole, Op)> {
        let mut ops = Vec::new();
        for (pool, index) in self.definitions {
            ops.push((OpRole::Definition, Op::CheckIndex(ConsulKeys::definition(pool), *index)));
        }
        for folder in self.folders {
            ops.push((OpRole::Folder, Op::Cas(folder.clone(), 0, String::new())));
        }
        let owner_index = self.owner_index();
        let value = to_text(&AddressValue::of(&owner_index));
        for lease in &self.change.keep {
            if let Some(index) = self.index_of(lease) {
                let key = self.keys.of_lease(lease);
                ops.push((OpRole::Lease, Op::Cas(key, index, value.clone())));
            }
        }
        for (i, (claim, address)) in self.change.claim.iter().zip(self.chosen).enumerate() {
            let key = self.keys.lease(claim.request.pool.as_deref(), *address);
            let own = self.changed_indexes.get(address).copied().flatten();
            let replaced = claim.replaces.as_ref().map(|entry| index_of(&entry.lease));
            let index = own.or(replaced).unwrap_or(0);
            ops.push((OpRole::Claim(i), Op::Cas(key, index, value.clone())));
        }
        for lease in &self.change.drop {
            if let Some(index) = self.index_of(lease) {
                ops.push((OpRole::Lease, Op::DeleteCas(self.keys.of_lease(lease), index)));
            }
        }
        if self.indexed {
            ops.extend(self.index_ops(&owner_index));
        }
        ops
    }

    /// Returns the operations on keys of owners and on the node's mark.
    fn index_ops(&self, owner_index: &OwnerIndex) -> Vec<(OpRole, Op)> {
        let mut ops = Vec::new();
        let owner_key = self.keys.owner(self.owner);
        let seen = self.guard.revision.map(index);
        if !owner_index.leases.is_empty() {
            let op = Op::Cas(owner_key, seen.unwrap_or(0), owner_index.to_value());
            ops.push((OpRole::Owner, op));
        } else if let Some(seen) = seen {
            ops.push((OpRole::Owner, Op::DeleteCas(owner_key, seen)));
        }
        for (key, loser) in self.losers {
            if let Some(loser) = loser {
                ops.push((OpRole::Loser, self.take_from(key, loser)));
            }
        }
        if self.marked && !self.change.claim.is_empty() {
            let mark = self.keys.mark(&self.owner.scope.node);
            // The value has to differ from the one before: else the index would stay.
            let Owner { container, ifname, .. } = self.owner;
            let OwnerIndex { confirmed, generation, .. } = owner_index;
            let value = format!("{confirmed} {container}/{ifname} {generation}");
            ops.push((OpRole::Mark, Op::GetTree(mark.clone())));
            ops.push((OpRole::Mark, Op::Set(mark, value)));
        }
        ops
    }

    /// Takes the chosen addresses off the key of an owner that loses them.
    fn take_from(&self, key: &str, loser: &OwnerState) -> Op {
        let rest = loser.without(|address| self.chosen.contains(&address));
        let seen = index(loser.revision);
        if rest.leases.is_empty() {
            Op::DeleteCas(key.to_owned(), seen)
        } else {
            Op::Cas(key.to_owned(), seen, rest.to_value())
        }
    }

    /// Returns the value of the owner's key after the change.
    pub(crate) fn owner_index(&self) -> OwnerIndex {
        self.guard.next(self.owner, self.change, self.chosen)
    }

    /// Returns the index of a lease's key; `None` if another owner has the address.
    fn index_of(&self, lease: &Lease) -> Option<u64> {
        match self.changed_indexes.get(&lease.address.addr()) {
            Some(changed) => *changed,
            None => Some(index_of(lease)),
        }
    }

    /// Returns the index of all keys that the transaction wrote.
    pub(crate) fn index_in(&self, written: &[Pair]) -> u64 {
        written.iter().filter(|pair| pair.value.is_none()).map(|pair| pair.index).max().unwrap_or(0)
    }

    /// Returns the node's mark as it was before the transaction.
    pub(crate) fn mark_before(&self, written: &[Pair]) -> Option<ClaimMark> {
        self.marks_in(written).find(|pair| pair.value.is_some()).map(ClaimMark::of)
    }

    /// Returns the node's mark as the transaction wrote it.
    pub(crate) fn mark_after(&self, written: &[Pair]) -> Option<ClaimMark> {
        self.marks_in(written).find(|pair| pair.value.is_none()).map(ClaimMark::of)
    }

    fn marks_in<'p>(&self, written: &'p [Pair]) -> impl Iterator<Item = &'p Pair> {
        let key = self.keys.mark(&self.owner.scope.node);
        written.iter().filter(move |pair| pair.key == key)
    }
}
