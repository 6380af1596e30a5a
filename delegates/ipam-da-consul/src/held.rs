//! What an owner holds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::allocate::document::{Holding, Item, OwnerDocument, Revision, Seen};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::allocation::Found;
use crate::claim::{index, index_of, revision};
use crate::keys::{OWNERS, ROOT};
use crate::ledger::Consul;
use crate::pool::denied;
use crate::txn::{Ended, LARGEST, Op, Pair};
use crate::view::foreign;

/// What an owner holds, and what a change of it is guarded with.
pub(crate) type State = (Vec<Lease>, Seen);

impl Consul {
    /// Nothing held, as it is before the owner's first claim.
    pub(crate) fn nothing(owner: &Owner) -> State {
        let document = OwnerDocument::written(owner, 0, Vec::new());
        (Vec::new(), Seen { revision: None, document: Some(document) })
    }

    /// What an owner holds by its own key, as far as the keys that were read are still its own; and what
    /// these say that its own key does not.
    pub(crate) fn state(&self, owner: &Owner, own: Option<&Pair>, read: &[Pair]) -> Result<State> {
        let mut state = Self::nothing(owner);
        if let Some(pair) = own {
            let holding = holding(pair)?;
            let held = holding.leases();
            let Holding { revision, document } = holding;
            state = (held, Seen { revision: Some(revision), document: Some(document) });
        }
        self.adopt(owner, read, &mut state);
        Ok(state)
    }

    /// Adds addresses that are the owner's by their keys alone.
    pub(crate) fn adopt(&self, owner: &Owner, read: &[Pair], (held, seen): &mut State) {
        for found in read.iter().filter_map(Found::read).filter(|found| found.is_of(owner)) {
            if held.iter().all(|lease| lease.address.addr() != found.address) {
                let lease = found.lease(&self.keys);
                seen.add(bare(&lease));
                held.push(lease);
            }
        }
    }

    /// Drops what the owner's key names though another has the address by now: the ancestor takes over
    /// without a look at our keys. Of some `asked` keys it is known already what was `found`.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn verified(
        &self,
        owner: &Owner,
        (held, mut seen): State,
        asked: &BTreeSet<String>,
        found: &[Pair],
    ) -> Result<State> {
        let key = |lease: &Lease| self.keys.lease(lease.pool.as_deref(), lease.address.addr());
        let keys: Vec<String> = held.iter().map(key).collect();
        let rest: Vec<String> = keys.iter().filter(|key| !asked.contains(*key)).cloned().collect();
        let mut read = if rest.is_empty() { Vec::new() } else { self.read_keys(&rest)? };
        read.extend_from_slice(found);
        let mut stays = Vec::new();
        for (mut lease, key) in held.into_iter().zip(&keys) {
            let pair = read.iter().find(|pair| pair.key == *key);
            if pair.is_some_and(|pair| pair.index == index_of(&lease)) {
                stays.push(lease);
                continue;
            }
            let found = pair.and_then(Found::read);
            let address = lease.address.addr();
            match found {
                // Written anew by somebody who kept the owner.
                Some(found) if found.is_of(owner) => {
                    lease.revision = found.lease(&self.keys).revision;
                    self.set_since(&mut seen, &lease);
                    stays.push(lease);
                }
                Some(found) => {
                    warn!(
                        "{owner} has lost {address}: {} has it",
                        found.entry(&self.keys).held_by()
                    );
                    forget(&mut seen, address);
                }
                None => forget(&mut seen, address),
            }
        }
        Ok((stays, seen))
    }

    /// Removes the key of an owner all of whose addresses others have taken over.
    ///
    /// # Errors
    /// It is not known whether it was.
    pub(crate) fn tidy(&self, owner: &Owner, (held, seen): &State) -> Result<()> {
        let Some(revision) = seen.revision.filter(|_| held.is_empty()) else { return Ok(()) };
        // Somebody else's change is somebody else's affair.
        match self.store.write(&[Op::DeleteCas(self.keys.owner(owner), index(revision))])? {
            Some(_) => Ok(()),
            None => {
                Err(Error::new(ErrorCode::TRY_AGAIN, "it is not known whether a key was removed")
                    .advise("call again"))
            }
        }
    }

    /// What the addresses of pools say that an owner holds: the ancestor's claims have no other key, nor
    /// have ours where the store lets us have none. `pools` are looked at as a whole; all of them where
    /// none are named. Addresses that the runtime's cache gives to another attachment of the container are
    /// left to that one.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn search(&self, owner: &Owner, pools: &[String]) -> Result<Vec<Pair>> {
        let others = self.others_of(owner)?;
        let mut found = Vec::new();
        let mut take = |pair: Pair| {
            warn_of_strange(&pair);
            if let Some(its) = Found::read(&pair).filter(|found| found.is_of(owner)) {
                let bare = its.allocation.as_ref().is_ok_and(|allocation| allocation.is_bare());
                if !(bare && others.contains(&its.address)) {
                    found.push(pair);
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        if pools.is_empty() {
            self.everything(&mut take)?;
        }
        for pool in pools {
            self.listing(pool, &mut take)?;
        }
        Ok(found)
    }

    /// Shows every key of all pools, and makes sure that an empty answer is one.
    ///
    /// # Errors
    /// No server answers in time, or the token may not read them.
    pub(crate) fn everything(
        &self,
        each: &mut dyn FnMut(Pair) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut empty = true;
        self.store.below(ROOT, &mut |pair| {
            empty = false;
            each(pair)
        })?;
        if empty { self.judge_readable(ROOT) } else { Ok(()) }
    }

    /// Shows every key of a pool's folder, and makes sure that an empty answer is one.
    ///
    /// # Errors
    /// No server answers in time, or the token may not read the folder.
    pub(crate) fn listing(
        &self,
        pool: &str,
        each: &mut dyn FnMut(Pair) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let folder = format!("{ROOT}{pool}/");
        let mut empty = true;
        self.store.below(&folder, &mut |pair| {
            empty = false;
            each(pair)
        })?;
        if empty { self.judge_readable(&folder) } else { Ok(()) }
    }

    /// Fails when a key may not be read: Consul leaves it out of a listing and says nothing.
    ///
    /// # Errors
    /// Code 103.
    pub(crate) fn judge_readable(&self, key: &str) -> Result<()> {
        if self.store.may_read(key)? { Ok(()) } else { Err(denied(key)) }
    }

    /// Reads keys, as far as they are there.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn read_keys(&self, keys: &[String]) -> Result<Vec<Pair>> {
        let mut found = Vec::new();
        for part in keys.chunks(LARGEST) {
            let ops: Vec<Op> = part.iter().map(|key| Op::GetTree(key.clone())).collect();
            match self.store.read(&ops)? {
                // Keys that begin as one that was asked for are shown, too.
                Ended::Done(pairs) => {
                    found.extend(pairs.into_iter().filter(|p| part.contains(&p.key)))
                }
                Ended::Failed(failures) => return Err(refused(&ops, &failures)),
            }
        }
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found.dedup_by(|one, other| one.key == other.key);
        Ok(found)
    }

    /// Addresses that the runtime's cache gives to other attachments of the same container.
    fn others_of(&self, owner: &Owner) -> Result<BTreeSet<IpAddr>> {
        let cached = self.cache.of_container(&owner.container)?.into_iter().filter(|cached| {
            cached.network != owner.scope.network || cached.ifname != owner.ifname
        });
        Ok(cached.flat_map(|cached| cached.addresses).collect())
    }

    fn set_since(&self, seen: &mut Seen, lease: &Lease) {
        let items = seen.document.iter_mut().flat_map(|document| &mut document.leases);
        for item in items.filter(|item| item.address.addr() == lease.address.addr()) {
            item.since = Revision::read(&lease.revision);
        }
    }
}

/// Reads the value of an owner's key.
///
/// # Errors
/// It is not ours: nothing may be written over it.
pub(crate) fn holding(pair: &Pair) -> Result<Holding> {
    let key = &pair.key;
    let ours = pair.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
    let document = ours.ok_or_else(|| {
        Error::new(ErrorCode::BACKEND, format!("the value of the key {key} is not ours")).advise(
            format!("look at it (consul kv get '{key}') and delete the key if nobody needs it"),
        )
    })?;
    Ok(Holding { revision: revision(pair.index), document })
}

/// An ADD or a look by hand that meets such a key is an error; what goes must not be held up by it.
fn warn_of_strange(pair: &Pair) {
    let in_a_pool = pair.key.strip_prefix(ROOT).unwrap_or_default().contains('/');
    match Found::read(pair) {
        Some(Found { allocation: Err(why), .. }) => warn!("{why}"),
        None if in_a_pool && !pair.key.ends_with('/') && !pair.key.starts_with(OWNERS) => {
            warn!("{}", foreign(&pair.key));
        }
        _ => {}
    }
}

/// The error of a transaction that only reads.
pub(crate) fn refused(ops: &[Op], failures: &[crate::txn::Failure]) -> Error {
    let first = failures.first();
    let key = first.and_then(|failure| ops.get(failure.place)).map_or("", Op::key);
    let what = first.map_or("", |failure| failure.what.as_str());
    Error::new(ErrorCode::BACKEND, format!("Consul refuses to read {key}: {what}"))
}

/// A lease that the owner's key does not know of, as an item of it.
pub(crate) fn bare(lease: &Lease) -> Item {
    Item { since: Revision::read(&lease.revision), ..Item::of(lease, 0) }
}

fn forget(seen: &mut Seen, address: IpAddr) {
    if let Some(document) = &mut seen.document {
        document.leases.retain(|item| item.address.addr() != address);
    }
}
