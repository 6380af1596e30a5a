//! Entries that a scan showed, and that go: GC and operators.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_kit::allocate::ledger::{Entry, Holder};
use ipam_kit::allocate::owner_index::{IndexedLease, OwnerState};
use ipam_kit::{Error, ErrorCode, Result};

use crate::errors::{refused, unwritable};
use crate::keys::ConsulKeys;
use crate::session::ConsulSession;
use crate::txn::{LARGEST, Op, Pair, TxnOutcome};
use crate::values::{AddressPair, holding, index, index_of};

/// How often an owner's key may change under us.
const TRIES: usize = 8;

/// Takes away what a scan showed.
pub(crate) struct Removal<'a> {
    pub(crate) keys: &'a ConsulKeys,
    pub(crate) session: &'a mut ConsulSession,
}

impl Removal<'_> {
    /// Removes entries, each only while it is still the very one, and tells which.
    pub(crate) fn remove_all(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let mut owners: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
        let mut bare = Vec::new();
        for entry in entries {
            let key = entry.holder.as_ref().and_then(|holder| self.keys.owner_of(holder));
            match key.filter(|_| self.session.memory.is_indexed()) {
                Some(key) => owners.entry(key).or_default().push(entry),
                None => bare.push(entry),
            }
        }
        let mut removed = Vec::new();
        let mut errors = Vec::new();
        for part in bare.chunks(LARGEST / 2) {
            self.remove_bare(part, &mut removed, &mut errors);
        }
        let keys: Vec<String> = owners.keys().cloned().collect();
        for part in keys.chunks(LARGEST) {
            let read = match self.session.store.read_keys(part) {
                Ok(read) => read,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            for key in part {
                let found = read.iter().find(|pair| pair.key == *key).cloned();
                for part in owners[key].chunks(LARGEST / 2 - 1) {
                    match self.remove_of(key, found.clone(), part) {
                        Ok(gone) => removed.extend(gone),
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        for entry in &removed {
            self.session.pools.remember_released(&entry.lease);
        }
        let mut errors = errors.into_iter();
        errors.next().map_or(Ok(removed), |first| Err(first.and(errors)))
    }

    /// Removes entries whose owners have no key, all at once or, where one of them has changed, one by one.
    fn remove_bare(
        &mut self,
        entries: &[&Entry],
        removed: &mut Vec<Entry>,
        errors: &mut Vec<Error>,
    ) {
        match self.delete(entries, &BTreeMap::new(), Vec::new()) {
            Ok(true) => removed.extend(entries.iter().copied().cloned()),
            Ok(false) if entries.len() > 1 => {
                for entry in entries {
                    self.remove_bare(&[entry], removed, errors);
                }
            }
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }

    /// Removes an owner's entries, and takes them off its key.
    fn remove_of(
        &mut self,
        key: &str,
        found: Option<Pair>,
        entries: &[&Entry],
    ) -> Result<Vec<Entry>> {
        let mut found = found;
        let mut standing: Vec<&Entry> = entries.to_vec();
        // What the owner's key alone says it holds.
        let mut lost: BTreeSet<IpAddr> = BTreeSet::new();
        let mut met = BTreeMap::new();
        for _ in 0..TRIES {
            let standing_at = standing.iter().map(|entry| entry.lease.address.addr());
            let gone: BTreeSet<IpAddr> = standing_at.chain(lost.iter().copied()).collect();
            let mut ops = Vec::new();
            let mut is_all = true;
            // Whatever stands there that is not ours stays.
            if let Some(holding) = found.as_ref().and_then(|pair| holding(pair).ok()) {
                let rest = holding.without(|address| gone.contains(&address));
                let seen = index(holding.revision);
                is_all = rest.leases.is_empty();
                if rest.leases.is_empty() {
                    ops.push(Op::DeleteCas(key.to_owned(), seen));
                } else if rest.leases.len() < holding.document.leases.len() {
                    ops.push(Op::Cas(key.to_owned(), seen, rest.to_value()));
                }
            }
            if self.delete(&standing, &met, ops)? {
                let holder = entries.first().and_then(|entry| entry.holder.as_ref());
                if let Some(Holder { container, ifname: Some(ifname), .. }) = holder
                    && is_all
                {
                    self.session.memory.forget_owner(container, ifname);
                }
                return Ok(standing.into_iter().cloned().collect());
            }
            let leases: Vec<String> = entries.iter().map(|entry| self.key_of(entry)).collect();
            let asked: Vec<String> = leases.iter().cloned().chain([key.to_owned()]).collect();
            let read = self.session.store.read_keys(&asked)?;
            let own = read.iter().find(|pair| pair.key == key);
            let says = own.and_then(|own| holding(own).ok());
            (met, lost) = (BTreeMap::new(), BTreeSet::new());
            standing.clear();
            for (entry, key) in entries.iter().zip(&leases) {
                let (address, judged) = (entry.lease.address.addr(), index_of(&entry.lease));
                let pair = read.iter().find(|pair| pair.key == *key);
                let holder =
                    pair.and_then(AddressPair::read).map(|its| its.entry(self.keys).holder);
                let same = holder.is_some_and(|holder| holder == entry.holder);
                // What was written anew is not what was judged; but by the owner's key it is, where that is as it was.
                let as_judged = |pair: &&Pair| {
                    pair.index == judged || (same && own.is_some_and(|own| own.index == judged))
                };
                if let Some(pair) = pair.filter(as_judged) {
                    met.insert(key.clone(), pair.index);
                    standing.push(entry);
                } else if !same && says.as_ref().is_some_and(|its| is_at(its, address, judged)) {
                    lost.insert(address);
                }
            }
            if standing.is_empty() && lost.is_empty() {
                return Ok(Vec::new());
            }
            found = own.cloned();
        }
        let message = format!("the key {key} changes all the time");
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
    }

    /// Deletes the keys of entries, some of which were met at other indexes, together with what else is to be
    /// done; false where something has changed.
    fn delete(
        &mut self,
        entries: &[&Entry],
        met: &BTreeMap<String, u64>,
        more: Vec<Op>,
    ) -> Result<bool> {
        let both = |entry: &&Entry| {
            let key = self.key_of(entry);
            let index = met.get(&key).copied().unwrap_or_else(|| index_of(&entry.lease));
            // What is gone would be deleted again.
            [Op::CheckIndex(key.clone(), index), Op::DeleteCas(key, index)]
        };
        let ops: Vec<Op> = entries.iter().flat_map(both).chain(more).collect();
        if ops.is_empty() {
            return Ok(true);
        }
        match self.session.store.write(&ops)? {
            Some(TxnOutcome::Done(_)) => Ok(true),
            Some(TxnOutcome::Failed(failures)) => match failures.iter().find(|f| f.is_denied()) {
                Some(failure) => {
                    Err(ops.get(failure.place).map_or_else(|| refused(&ops, &failures), unwritable))
                }
                None => Ok(false),
            },
            None => {
                let message = "it is not known whether addresses were released";
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
            }
        }
    }

    fn key_of(&self, entry: &Entry) -> String {
        self.keys.lease(entry.lease.pool.as_deref(), entry.lease.address.addr())
    }
}

/// Whether an owner's key says that it has an address whose key is at this index.
fn is_at(holding: &OwnerState, address: IpAddr, at: u64) -> bool {
    let same = |item: &&IndexedLease| item.address.addr() == address;
    let item = holding.document.leases.iter().find(same);
    item.is_some_and(|item| index(holding.revision_of(item).revision) == at)
}
