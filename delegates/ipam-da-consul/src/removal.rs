//! GC and release: removes entries that a scan showed, owner by owner.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Entry, Holder};
use ipam_kit::allocate::owner_index::OwnerState;
use ipam_kit::allocate::removal::{may_be_held, removed_unless_failed};
use ipam_kit::{Error, ErrorCode, Result};

use crate::errors::{refused, unwritable};
use crate::keys::ConsulKeys;
use crate::session::ConsulSession;
use crate::txn::{LARGEST, Op, Pair, TxnOutcome, find};
use crate::values::{AddressPair, index, index_of, read_owner_state};

/// How often an owner's key may change during its removal.
const TRIES: usize = 8;

/// The removal of entries that a scan showed.
pub(crate) struct Removal<'a> {
    pub(crate) keys: &'a ConsulKeys,
    pub(crate) session: &'a mut ConsulSession,
}

/// An entry to remove, with the index at which its key is deleted.
#[derive(Clone, Copy)]
struct Deletion<'e> {
    entry: &'e Entry,
    index: u64,
}

impl<'e> Deletion<'e> {
    fn as_scanned(entry: &'e Entry) -> Self {
        Self { entry, index: index_of(&entry.lease) }
    }

    fn address(&self) -> IpAddr {
        self.entry.lease.address.addr()
    }
}

/// The entries of an owner that remain after a refused removal.
struct Reread<'e> {
    owner_pair: Option<Pair>,
    deletions: Vec<Deletion<'e>>,
    /// Addresses that the owner's key names and that others have.
    taken_over: BTreeSet<IpAddr>,
}

impl Removal<'_> {
    /// Removes entries, each only if it has not changed since the scan, and answers which.
    ///
    /// # Errors
    /// Some could not be removed; the others are.
    pub(crate) fn remove_all(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let mut owners: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
        let mut unindexed = Vec::new();
        for entry in entries {
            let key = entry.holder.as_ref().and_then(|holder| self.keys.owner_of(holder));
            match key.filter(|_| self.session.memory.is_indexed()) {
                Some(key) => owners.entry(key).or_default().push(entry),
                None => unindexed.push(entry),
            }
        }
        let mut removed = Vec::new();
        let mut errors = Vec::new();
        for part in unindexed.chunks(LARGEST / 2) {
            self.remove_unindexed(part, &mut removed, &mut errors);
        }
        let owner_keys: Vec<String> = owners.keys().cloned().collect();
        for part in owner_keys.chunks(LARGEST) {
            let pairs = match self.session.store.read_keys(part) {
                Ok(pairs) => pairs,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            for owner_key in part {
                for entries in owners[owner_key].chunks(LARGEST / 2 - 1) {
                    let owner_pair = find(&pairs, owner_key).cloned();
                    match self.remove_of_owner(owner_key, owner_pair, entries) {
                        Ok(gone) => removed.extend(gone),
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        for entry in &removed {
            self.session.pools.remember_released(&entry.lease);
        }
        removed_unless_failed(removed, errors)
    }

    /// Removes entries of owners without a key: all at once or, if one of them has changed, one by
    /// one.
    fn remove_unindexed(
        &mut self,
        entries: &[&Entry],
        removed: &mut Vec<Entry>,
        errors: &mut Vec<Error>,
    ) {
        let deletions: Vec<Deletion<'_>> =
            entries.iter().map(|&entry| Deletion::as_scanned(entry)).collect();
        match self.delete(&deletions, Vec::new()) {
            Ok(true) => removed.extend(entries.iter().copied().cloned()),
            Ok(false) if entries.len() > 1 => {
                for entry in entries {
                    self.remove_unindexed(&[entry], removed, errors);
                }
            }
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }

    /// Removes an owner's entries, and takes them off the owner's key.
    fn remove_of_owner(
        &mut self,
        owner_key: &str,
        owner_pair: Option<Pair>,
        entries: &[&Entry],
    ) -> Result<Vec<Entry>> {
        let mut left = Reread {
            owner_pair,
            deletions: entries.iter().map(|&entry| Deletion::as_scanned(entry)).collect(),
            taken_over: BTreeSet::new(),
        };
        for _ in 0..TRIES {
            let mut gone = left.taken_over.clone();
            gone.extend(left.deletions.iter().map(Deletion::address));
            // An owner's key that is not ours stays.
            let owner = left.owner_pair.as_ref().and_then(|pair| read_owner_state(pair).ok());
            let owner_op =
                owner.as_ref().and_then(|owner| remove_addresses(owner_key, owner, &gone));
            let holds_nothing = matches!(owner_op, Some(Op::DeleteCas(..))) || owner.is_none();
            if self.delete(&left.deletions, owner_op.into_iter().collect())? {
                let holder = entries.first().and_then(|entry| entry.holder.as_ref());
                if let Some(Holder { container, ifname: Some(ifname), .. }) = holder
                    && holds_nothing
                {
                    self.session.memory.forget_owner(container, ifname);
                }
                return Ok(left.deletions.iter().map(|deletion| deletion.entry.clone()).collect());
            }
            left = self.reread(owner_key, entries)?;
            if left.deletions.is_empty() && left.taken_over.is_empty() {
                return Ok(Vec::new());
            }
        }
        let message =
            format!("the key {owner_key} changed {TRIES} times while its leases were released");
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
    }

    /// Reads an owner's key and those of its entries again, and keeps the entries that are still
    /// those of the scan.
    fn reread<'e>(&mut self, owner_key: &str, entries: &[&'e Entry]) -> Result<Reread<'e>> {
        let mut keys: Vec<String> =
            entries.iter().map(|entry| self.keys.of_lease(&entry.lease)).collect();
        keys.push(owner_key.to_owned());
        let pairs = self.session.store.read_keys(&keys)?;
        let owner_pair = find(&pairs, owner_key);
        let owner = owner_pair.and_then(|pair| read_owner_state(pair).ok());
        let mut left = Reread {
            owner_pair: owner_pair.cloned(),
            deletions: Vec::new(),
            taken_over: BTreeSet::new(),
        };
        for (&entry, key) in entries.iter().zip(&keys) {
            let scanned = Deletion::as_scanned(entry);
            let pair = find(&pairs, key);
            let holder = pair.and_then(AddressPair::read).map(|pair| pair.entry(self.keys).holder);
            let same_holder = holder.is_some_and(|holder| holder == entry.holder);
            // A key that was written again is another lease, unless the owner's key is as it was.
            let owner_unchanged = owner_pair.is_some_and(|pair| pair.index == scanned.index);
            match pair {
                Some(pair) if pair.index == scanned.index || (same_holder && owner_unchanged) => {
                    left.deletions.push(Deletion { entry, index: pair.index });
                }
                _ if !same_holder && owner.as_ref().is_some_and(|o| names(o, &scanned)) => {
                    left.taken_over.insert(scanned.address());
                }
                _ => {}
            }
        }
        Ok(left)
    }

    /// Deletes the keys of entries, together with another operation; false if something has
    /// changed.
    fn delete(&mut self, deletions: &[Deletion<'_>], more: Vec<Op>) -> Result<bool> {
        let mut ops = Vec::new();
        for Deletion { entry, index } in deletions {
            let key = self.keys.of_lease(&entry.lease);
            // A missing key would be deleted successfully.
            ops.push(Op::CheckIndex(key.clone(), *index));
            ops.push(Op::DeleteCas(key, *index));
        }
        ops.extend(more);
        if ops.is_empty() {
            return Ok(true);
        }
        match self.session.store.write(&ops)? {
            Some(TxnOutcome::Done(_)) => Ok(true),
            Some(TxnOutcome::Failed(failures)) => match failures.iter().find(|f| f.is_denied()) {
                Some(failure) => Err(ops
                    .get(failure.op_index)
                    .map_or_else(|| refused(&ops, &failures), unwritable)),
                None => Ok(false),
            },
            None => Err(may_be_held(deletions.iter().map(Deletion::address))),
        }
    }
}

/// Makes the operation that takes addresses off an owner's key, or deletes the key if nothing is
/// left; `None` if the key names none of them.
fn remove_addresses(key: &str, owner: &OwnerState, gone: &BTreeSet<IpAddr>) -> Option<Op> {
    let rest = owner.without(|address| gone.contains(&address));
    let at = index(owner.revision);
    if rest.leases.is_empty() {
        Some(Op::DeleteCas(key.to_owned(), at))
    } else if rest.leases.len() < owner.owner_index.leases.len() {
        Some(Op::Cas(key.to_owned(), at, rest.to_value()))
    } else {
        None
    }
}

/// Returns whether an owner's key names the address of an entry, at the index of the scan.
fn names(owner: &OwnerState, scanned: &Deletion<'_>) -> bool {
    let mut items = owner.owner_index.leases.iter();
    items
        .find(|item| item.address.addr() == scanned.address())
        .is_some_and(|item| index(owner.revision_of(item).revision) == scanned.index)
}
