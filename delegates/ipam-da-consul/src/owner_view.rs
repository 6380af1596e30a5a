//! What an owner holds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::allocate::owner_index::{
    IndexedLease, LeaseRevision, OwnerGuard, OwnerIndex, OwnerState,
};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::host::ResultCache;
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::errors::foreign;
use crate::keys::{ConsulKeys, OWNERS, ROOT};
use crate::store::KvStore;
use crate::txn::{Op, Pair};
use crate::values::{AddressPair, holding, index, index_of};

/// What an owner holds, and what a change of it is guarded with.
#[derive(Clone, Debug)]
pub(crate) struct OwnerView {
    pub(crate) held: Vec<Lease>,
    pub(crate) seen: OwnerGuard,
}

impl OwnerView {
    /// Nothing held, as it is before the owner's first claim.
    pub(crate) fn nothing(owner: &Owner) -> Self {
        let document = OwnerIndex::written(owner, 0, Vec::new());
        let seen = OwnerGuard { revision: None, document: Some(document) };
        Self { held: Vec::new(), seen }
    }

    /// What an owner holds by its own key, as far as the keys that were read are still its own; and what
    /// these say that its own key does not.
    pub(crate) fn read(
        keys: &ConsulKeys,
        owner: &Owner,
        own: Option<&Pair>,
        read: &[Pair],
    ) -> Result<Self> {
        let mut state = Self::nothing(owner);
        if let Some(pair) = own {
            let holding = holding(pair)?;
            let held = holding.leases();
            let OwnerState { revision, document } = holding;
            let seen = OwnerGuard { revision: Some(revision), document: Some(document) };
            state = Self { held, seen };
        }
        state.adopt(keys, owner, read);
        Ok(state)
    }

    /// Adds addresses that are the owner's by their keys alone.
    pub(crate) fn adopt(&mut self, keys: &ConsulKeys, owner: &Owner, read: &[Pair]) {
        for found in read.iter().filter_map(AddressPair::read).filter(|found| found.is_of(owner)) {
            if self.held.iter().all(|lease| lease.address.addr() != found.address) {
                let lease = found.lease(keys);
                self.seen.add(bare(&lease));
                self.held.push(lease);
            }
        }
    }

    /// Drops what the owner's key names though another has the address by now: passcod takes over
    /// without a look at our keys. Of some `asked` keys it is known already what was `found`.
    ///
    /// # Errors
    /// No server answers in time.
    pub(crate) fn verified(
        self,
        keys: &ConsulKeys,
        store: &mut KvStore,
        owner: &Owner,
        asked: &BTreeSet<String>,
        found: &[Pair],
    ) -> Result<Self> {
        let Self { held, mut seen } = self;
        let key = |lease: &Lease| keys.lease(lease.pool.as_deref(), lease.address.addr());
        let its: Vec<String> = held.iter().map(key).collect();
        let rest: Vec<String> = its.iter().filter(|key| !asked.contains(*key)).cloned().collect();
        let mut read = if rest.is_empty() { Vec::new() } else { store.read_keys(&rest)? };
        read.extend_from_slice(found);
        let mut stays = Vec::new();
        for (mut lease, key) in held.into_iter().zip(&its) {
            let pair = read.iter().find(|pair| pair.key == *key);
            if pair.is_some_and(|pair| pair.index == index_of(&lease)) {
                stays.push(lease);
                continue;
            }
            let found = pair.and_then(AddressPair::read);
            let address = lease.address.addr();
            match found {
                // Written anew by somebody who kept the owner.
                Some(found) if found.is_of(owner) => {
                    lease.revision = found.lease(keys).revision;
                    set_since(&mut seen, &lease);
                    stays.push(lease);
                }
                Some(found) => {
                    warn!("{owner} has lost {address}: {} has it", found.entry(keys).held_by());
                    forget(&mut seen, address);
                }
                None => forget(&mut seen, address),
            }
        }
        Ok(Self { held: stays, seen })
    }

    /// Removes the key of an owner all of whose addresses others have taken over.
    ///
    /// # Errors
    /// It is not known whether it was.
    pub(crate) fn tidy(&self, keys: &ConsulKeys, store: &mut KvStore, owner: &Owner) -> Result<()> {
        let Some(revision) = self.seen.revision.filter(|_| self.held.is_empty()) else {
            return Ok(());
        };
        // Somebody else's change is somebody else's affair.
        match store.write(&[Op::DeleteCas(keys.owner(owner), index(revision))])? {
            Some(_) => Ok(()),
            None => {
                Err(Error::new(ErrorCode::TRY_AGAIN, "it is not known whether a key was removed")
                    .advise("call again"))
            }
        }
    }
}

/// What the addresses of pools say that an owner holds: passcod's claims have no other key, nor
/// have ours where the store lets us have none. `pools` are looked at as a whole; all of them where
/// none are named. Addresses that the runtime's cache gives to another attachment of the container are
/// left to that one.
///
/// # Errors
/// No server answers in time.
pub(crate) fn search(
    store: &mut KvStore,
    results: &ResultCache,
    owner: &Owner,
    pools: &[String],
) -> Result<Vec<Pair>> {
    let others = others_of(results, owner)?;
    let mut found = Vec::new();
    let mut take = |pair: Pair| {
        warn_if_foreign(&pair);
        if let Some(its) = AddressPair::read(&pair).filter(|found| found.is_of(owner)) {
            let bare = its.allocation.as_ref().is_ok_and(|allocation| allocation.is_bare());
            if !(bare && others.contains(&its.address)) {
                found.push(pair);
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    if pools.is_empty() {
        store.whole(ROOT, &mut take)?;
    }
    for pool in pools {
        store.whole(&format!("{ROOT}{pool}/"), &mut take)?;
    }
    Ok(found)
}

/// Addresses that the runtime's cache gives to other attachments of the same container.
fn others_of(results: &ResultCache, owner: &Owner) -> Result<BTreeSet<IpAddr>> {
    let cached = results
        .of_container(&owner.container)?
        .into_iter()
        .filter(|cached| cached.network != owner.scope.network || cached.ifname != owner.ifname);
    Ok(cached.flat_map(|cached| cached.addresses).collect())
}

fn set_since(seen: &mut OwnerGuard, lease: &Lease) {
    let items = seen.document.iter_mut().flat_map(|document| &mut document.leases);
    for item in items.filter(|item| item.address.addr() == lease.address.addr()) {
        item.since = LeaseRevision::read(&lease.revision);
    }
}

/// An ADD or a look by hand that meets such a key is an error; what goes must not be held up by it.
fn warn_if_foreign(pair: &Pair) {
    let in_a_pool = pair.key.strip_prefix(ROOT).unwrap_or_default().contains('/');
    match AddressPair::read(pair) {
        Some(AddressPair { allocation: Err(why), .. }) => warn!("{why}"),
        None if in_a_pool && !pair.key.ends_with('/') && !pair.key.starts_with(OWNERS) => {
            warn!("{}", foreign(&pair.key));
        }
        _ => {}
    }
}

fn forget(seen: &mut OwnerGuard, address: IpAddr) {
    if let Some(document) = &mut seen.document {
        document.leases.retain(|item| item.address.addr() != address);
    }
}

/// A lease that the owner's key does not know of, as an item of it.
pub(crate) fn bare(lease: &Lease) -> IndexedLease {
    IndexedLease { since: LeaseRevision::read(&lease.revision), ..IndexedLease::of(lease, 0) }
}
