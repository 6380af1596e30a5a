//! A change as one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Change, Claim};
use ipam_kit::allocate::owner_index::{
    IndexedLease, LeaseRevision, OwnerGuard, OwnerIndex, OwnerState, now, to_text,
};
use ipam_kit::allocate::{Lease, Owner};
use serde_json::Value;

use crate::keys::ConsulKeys;
use crate::memory::ClaimMark;
use crate::txn::{Op, Pair};
use crate::values::{AddressValue, index, index_of};

/// A change that is carried out as a whole, or not at all.
#[derive(Debug)]
pub(crate) struct ChangeTxn<'a> {
    pub(crate) keys: &'a ConsulKeys,
    pub(crate) owner: &'a Owner,
    pub(crate) seen: &'a OwnerGuard,
    pub(crate) change: &'a Change<'a>,
    /// The address of each claim.
    pub(crate) chosen: &'a [IpAddr],
    /// The index of each pool's ranges that are relied on, by the pool's name.
    pub(crate) definitions: &'a BTreeMap<String, u64>,
    /// Folder keys that are missing.
    pub(crate) folders: &'a BTreeSet<String>,
    /// What the owner's addresses are at, where that is not what was seen; none where another has one.
    pub(crate) indexes: &'a BTreeMap<IpAddr, Option<u64>>,
    /// The owners whose leases are taken over, by their keys; none where the key is missing.
    pub(crate) victims: &'a BTreeMap<String, Option<OwnerState>>,
    /// Whether owners have keys.
    pub(crate) indexed: bool,
    /// Whether the node's latest claim is noted.
    pub(crate) marked: bool,
}

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpRole {
    /// The ranges are as they were read.
    Definition,
    /// Makes a folder.
    Folder,
    /// Takes the address of this claim.
    Claim(usize),
    /// Confirms or drops an address.
    Lease,
    /// The owner's key.
    Owner,
    /// The key of an owner who loses an address.
    Victim,
    /// The node's latest claim.
    ClaimMark,
}

impl ChangeTxn<'_> {
    /// The operations, each with what it is for.
    pub(crate) fn ops(&self) -> Vec<(OpRole, Op)> {
        let mut ops = Vec::new();
        for (pool, index) in self.definitions {
            ops.push((OpRole::Definition, Op::CheckIndex(ConsulKeys::definition(pool), *index)));
        }
        for folder in self.folders {
            ops.push((OpRole::Folder, Op::Cas(folder.clone(), 0, String::new())));
        }
        let document = self.document();
        let value = to_text(&AddressValue::of(&document));
        for lease in &self.change.keep {
            if let Some(index) = self.index_of(lease) {
                ops.push((OpRole::Lease, Op::Cas(self.key(lease), index, value.clone())));
            }
        }
        for (place, (claim, address)) in self.change.claim.iter().zip(self.chosen).enumerate() {
            let key = self.keys.lease(claim.request.pool.as_deref(), *address);
            let replaced = claim.replaces.as_ref().map(|entry| index_of(&entry.lease));
            let own = self.indexes.get(address).copied().flatten();
            let index = own.or(replaced).unwrap_or(0);
            ops.push((OpRole::Claim(place), Op::Cas(key, index, value.clone())));
        }
        for lease in &self.change.drop {
            if let Some(index) = self.index_of(lease) {
                ops.push((OpRole::Lease, Op::DeleteCas(self.key(lease), index)));
            }
        }
        if self.indexed {
            ops.extend(self.index(&document));
        }
        ops
    }

    /// What the owner's key is to say.
    pub(crate) fn document(&self) -> OwnerIndex {
        let kept = self.change.keep.iter().map(|lease| self.item(lease));
        let left = self.change.leave.iter();
        let left =
            left.map(|l| IndexedLease { since: LeaseRevision::read(&l.revision), ..self.item(l) });
        let claims = self.change.claim.iter().zip(self.chosen);
        let claimed = claims.map(|(claim, address): (&Claim<'_>, _)| {
            IndexedLease::of(&claim.lease(*address, Value::Null), now())
        });
        let items = kept.chain(left).chain(claimed).collect();
        let before = self.seen.document.as_ref().map_or(0, |seen| seen.generation);
        // What stands in the store may be any number.
        OwnerIndex::written(self.owner, before.wrapping_add(1), items)
    }

    /// The index of what was written.
    pub(crate) fn index_in(&self, written: &[Pair]) -> u64 {
        written.iter().filter(|pair| pair.value.is_none()).map(|pair| pair.index).max().unwrap_or(0)
    }

    /// The node's latest claim before, if there was one, and the one that was written.
    pub(crate) fn marks_in(&self, written: &[Pair]) -> (Option<ClaimMark>, Option<ClaimMark>) {
        let key = self.keys.mark(&self.owner.scope.node);
        let mark = |is_read: bool| {
            let its = |pair: &&Pair| pair.key == key && pair.value.is_some() == is_read;
            written.iter().find(its).map(ClaimMark::of)
        };
        (mark(true), mark(false))
    }

    /// What a lease's key is at; none where another has the address by now.
    fn index_of(&self, lease: &Lease) -> Option<u64> {
        let met = self.indexes.get(&lease.address.addr());
        met.copied().unwrap_or_else(|| Some(index_of(lease)))
    }

    /// The keys of owners and of the node.
    fn index(&self, document: &OwnerIndex) -> Vec<(OpRole, Op)> {
        let mut ops = Vec::new();
        let key = self.keys.owner(self.owner);
        let revision = self.seen.revision.map(index);
        match (document.leases.is_empty(), revision) {
            (true, Some(seen)) => ops.push((OpRole::Owner, Op::DeleteCas(key, seen))),
            (true, None) => {}
            (false, seen) => {
                ops.push((OpRole::Owner, Op::Cas(key, seen.unwrap_or(0), document.to_value())));
            }
        }
        for (key, victim) in self.victims {
            ops.extend(self.after_loss(key, victim).map(|op| (OpRole::Victim, op)));
        }
        if self.marked && !self.change.claim.is_empty() {
            let mark = self.keys.mark(&self.owner.scope.node);
            // An identical value would not move the index.
            let value =
                format!("{} {} {}", document.confirmed, key_tail(self.owner), document.generation);
            ops.push((OpRole::ClaimMark, Op::GetTree(mark.clone())));
            ops.push((OpRole::ClaimMark, Op::Set(mark, value)));
        }
        ops
    }

    /// What becomes of the key of an owner that addresses are taken from.
    fn after_loss(&self, key: &str, victim: &Option<OwnerState>) -> Option<Op> {
        let holding = victim.as_ref()?;
        let lost = |address: IpAddr| self.chosen.contains(&address);
        let rest = holding.without(lost);
        let seen = index(holding.revision);
        Some(match rest.leases.is_empty() {
            true => Op::DeleteCas(key.to_owned(), seen),
            false => Op::Cas(key.to_owned(), seen, rest.to_value()),
        })
    }

    /// A lease as it is written, with the time at which it was first.
    fn item(&self, lease: &Lease) -> IndexedLease {
        let document = self.seen.document.as_ref();
        let same = |item: &&IndexedLease| item.address.addr() == lease.address.addr();
        let taken = document.and_then(|seen| seen.leases.iter().find(same)).map(|item| item.taken);
        IndexedLease::of(lease, taken.unwrap_or_else(now))
    }

    fn key(&self, lease: &Lease) -> String {
        self.keys.lease(lease.pool.as_deref(), lease.address.addr())
    }
}

fn key_tail(owner: &Owner) -> String {
    format!("{}/{}", owner.container, owner.ifname)
}
