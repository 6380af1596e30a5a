//! The leases of an owner: by its own key (the index), by the keys of its addresses, or by a
//! listing of whole pools for leases that the index does not have.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipam_kit::allocate::ledger::ViewQuery;
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::owner_index::{IndexedLease, LeaseRevision};
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::cni::Verb;
use ipam_kit::host::ResultCache;
use ipam_kit::{Error, ErrorCode, Result};
use log::warn;

use crate::call::CallScope;
use crate::errors::foreign;
use crate::keys::{ConsulKeys, ROOT, is_in_pool_folder};
use crate::memory::ClaimMark;
use crate::session::ConsulSession;
use crate::store::KvStore;
use crate::txn::{Op, Pair};
use crate::values::{AddressPair, index, index_of, read_owner_state};

/// The number of addresses of unknown pools, and of pools for each, whose keys are looked up.
const GUESSED_ADDRESSES: usize = 8;
const GUESSED_POOLS: usize = 4;

/// The leases of an owner, and the guard of a change of them.
#[derive(Clone, Debug)]
pub(crate) struct OwnerView {
    pub(crate) held: Vec<Lease>,
    pub(crate) guard: OwnerGuard,
}

/// Reads what an owner holds and the definitions of `unread` pools, in one request if the owner has
/// a key.
///
/// # Errors
/// No server answers in time; a pool is missing or wrong; CHECK finds a store that was restored.
pub(crate) fn read_owner(
    call: &CallScope,
    session: &mut ConsulSession,
    query: &ViewQuery<'_>,
    unread: &BTreeSet<String>,
) -> Result<OwnerView> {
    let ConsulSession { store, memory, pools, refusals } = session;
    let keys = &call.keys;
    let owner = query.owner;
    let is_check = call.verb == Verb::Check;
    let is_release = call.verb == Verb::Del;
    let owner_key = keys.owner(owner);
    let mark_key = keys.mark(&owner.scope.node);
    let hinted = hinted_keys(call, query)?;
    let mut read_keys: Vec<String> = hinted.iter().cloned().collect();
    if memory.is_indexed() {
        read_keys.push(owner_key.clone());
        if is_check {
            read_keys.push(mark_key.clone());
        }
    }
    let pairs = pools.read(store, &read_keys, unread)?;
    let owner_pair = pairs.iter().find(|pair| pair.key == owner_key);
    let hinted_pairs: Vec<Pair> =
        pairs.iter().filter(|pair| hinted.contains(&pair.key)).cloned().collect();
    let mut view = OwnerView::parse(keys, owner, owner_pair, &hinted_pairs)?;
    if (is_check || refusals.index_doubtful) && !view.held.is_empty() {
        view = view.verified(keys, store, owner, &hinted, &hinted_pairs)?;
    }
    // An owner without a key may hold what passcod gave it, or what we gave where we may write no
    // index.
    let is_index_unsure =
        !memory.is_indexed() || (owner_pair.is_none() && memory.knows_owner(owner));
    let may_hold_more = is_release || (!query.requests.is_empty() && is_index_unsure);
    if view.held.is_empty() && (may_hold_more || (is_check && hinted_pairs.is_empty())) {
        let listed = list_leases(store, &call.results, owner, &pool_folders(call, query))?;
        view.add_by_addresses(keys, owner, &listed);
    }
    if is_release {
        view.delete_empty_owner(keys, store, owner)?;
    }
    if is_check && (view.held.is_empty() || !query.known.iter().all(|lease| view.holds(lease))) {
        let mark = pairs.iter().find(|pair| pair.key == mark_key).map(ClaimMark::of);
        memory.check_latest_claim(&owner.scope.node, mark)?;
    }
    Ok(view)
}

/// Returns the keys of addresses that an owner may hold: by the record, or by the runtime's result
/// cache, which has what passcod gave.
fn hinted_keys(call: &CallScope, query: &ViewQuery<'_>) -> Result<BTreeSet<String>> {
    let ViewQuery { owner, known, requests, .. } = *query;
    let mut keys = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    for lease in known {
        let address = lease.address.addr();
        if lease.pool.is_some() || !lease.revision.is_null() {
            keys.insert(call.keys.lease(lease.pool.as_deref(), address));
        }
        if lease.revision.is_null() {
            addresses.insert(address);
        }
    }
    if !requests.is_empty() {
        let cached = call.results.of(&owner.scope.network, &owner.container, &owner.ifname)?;
        addresses.extend(cached.into_iter().flat_map(|cached| cached.addresses));
    }
    let folders = pool_folders(call, query);
    for address in addresses.into_iter().take(GUESSED_ADDRESSES) {
        for folder in folders.iter().take(GUESSED_POOLS) {
            keys.insert(call.keys.lease(Some(folder), address));
        }
    }
    Ok(keys)
}

/// Returns the folders of the pools that a query is about; empty if neither the query nor the call
/// says.
fn pool_folders(call: &CallScope, query: &ViewQuery<'_>) -> Vec<String> {
    let mut folders: BTreeSet<String> = call.folders.iter().cloned().collect();
    folders.extend(query.requests.iter().map(|request| call.keys.folder_name(&request.pool)));
    let known = query.known.iter().filter(|lease| !lease.revision.is_null());
    folders.extend(known.map(|lease| call.keys.folder_name(&lease.pool)));
    folders.into_iter().collect()
}

impl OwnerView {
    /// Returns a view without leases, as before the owner's first claim.
    fn empty(owner: &Owner) -> Self {
        Self { held: Vec::new(), guard: OwnerGuard::without_key(owner) }
    }

    /// Parses the owner's key, and adds the leases that only the keys of addresses show.
    fn parse(
        keys: &ConsulKeys,
        owner: &Owner,
        owner_pair: Option<&Pair>,
        address_pairs: &[Pair],
    ) -> Result<Self> {
        let mut view = match owner_pair {
            Some(pair) => {
                let state = read_owner_state(pair)?;
                let held = state.leases();
                let guard = OwnerGuard {
                    revision: Some(state.revision),
                    owner_index: Some(state.owner_index),
                };
                Self { held, guard }
            }
            None => Self::empty(owner),
        };
        view.add_by_addresses(keys, owner, address_pairs);
        Ok(view)
    }

    /// Adds the addresses whose own keys name this owner.
    fn add_by_addresses(&mut self, keys: &ConsulKeys, owner: &Owner, pairs: &[Pair]) {
        for pair in pairs.iter().filter_map(AddressPair::read).filter(|pair| pair.is_of(owner)) {
            if self.held.iter().all(|lease| lease.address.addr() != pair.address) {
                let lease = pair.lease(keys);
                self.guard.add(item_of_unindexed(&lease));
                self.held.push(lease);
            }
        }
    }

    /// Drops addresses that the owner's key names and that others have taken over: passcod does so
    /// without a look at owners' keys. The `read` keys are not read again; `pairs` are those that
    /// exist.
    ///
    /// # Errors
    /// No server answers in time.
    fn verified(
        self,
        keys: &ConsulKeys,
        store: &mut KvStore,
        owner: &Owner,
        read: &BTreeSet<String>,
        pairs: &[Pair],
    ) -> Result<Self> {
        let Self { held, mut guard } = self;
        let lease_keys: Vec<String> = held.iter().map(|lease| keys.of_lease(lease)).collect();
        let unread: Vec<String> =
            lease_keys.iter().filter(|key| !read.contains(*key)).cloned().collect();
        let mut current = if unread.is_empty() { Vec::new() } else { store.read_keys(&unread)? };
        current.extend_from_slice(pairs);
        let mut still_held = Vec::new();
        for (mut lease, key) in held.into_iter().zip(&lease_keys) {
            let pair = current.iter().find(|pair| pair.key == *key);
            if pair.is_some_and(|pair| pair.index == index_of(&lease)) {
                still_held.push(lease);
                continue;
            }
            let address = lease.address.addr();
            match pair.and_then(AddressPair::read) {
                // Somebody has written it again and kept the owner.
                Some(pair) if pair.is_of(owner) => {
                    lease.revision = pair.lease(keys).revision;
                    set_since(&mut guard, &lease);
                    still_held.push(lease);
                }
                Some(pair) => {
                    warn!("{owner} lost {address}: {} holds it", pair.entry(keys).held_by());
                    remove_item(&mut guard, address);
                }
                None => remove_item(&mut guard, address),
            }
        }
        Ok(Self { held: still_held, guard })
    }

    /// Deletes the key of an owner that holds nothing: others have taken over all of its addresses.
    ///
    /// # Errors
    /// The outcome is unknown.
    fn delete_empty_owner(
        &self,
        keys: &ConsulKeys,
        store: &mut KvStore,
        owner: &Owner,
    ) -> Result<()> {
        let Some(revision) = self.guard.revision.filter(|_| self.held.is_empty()) else {
            return Ok(());
        };
        // A key that has changed since stays.
        match store.write(&[Op::DeleteCas(keys.owner(owner), index(revision))])? {
            Some(_) => Ok(()),
            None => {
                let key = keys.owner(owner);
                let message = format!("outcome unknown: the key {key} may still exist");
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
            }
        }
    }

    fn holds(&self, lease: &Lease) -> bool {
        self.held.iter().any(|held| held.address.addr() == lease.address.addr())
    }
}

/// Makes an item of the owner's key from a lease that it does not name.
pub(crate) fn item_of_unindexed(lease: &Lease) -> IndexedLease {
    IndexedLease { since: LeaseRevision::read(&lease.revision), ..IndexedLease::of(lease, 0) }
}

/// Lists `folders` (all pools if it is empty) for addresses of an owner: leases of passcod, and
/// ours where we may write no index, have no owner's key. An address that the runtime's cache gives
/// to another attachment of the same container belongs to that one.
///
/// # Errors
/// No server answers in time.
fn list_leases(
    store: &mut KvStore,
    results: &ResultCache,
    owner: &Owner,
    folders: &[String],
) -> Result<Vec<Pair>> {
    let of_others = addresses_of_other_attachments(results, owner)?;
    let mut leases = Vec::new();
    let mut add_lease = |pair: Pair| {
        warn_if_foreign(&pair);
        if let Some(address) = AddressPair::read(&pair).filter(|address| address.is_of(owner))
            && !(address.names_container_alone() && of_others.contains(&address.address))
        {
            leases.push(pair);
        }
        Ok(ControlFlow::Continue(()))
    };
    if folders.is_empty() {
        store.list_folder(ROOT, &mut add_lease)?;
    }
    for folder in folders {
        store.list_folder(&format!("{ROOT}{folder}/"), &mut add_lease)?;
    }
    Ok(leases)
}

fn addresses_of_other_attachments(
    results: &ResultCache,
    owner: &Owner,
) -> Result<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    for cached in results.of_container(&owner.container)? {
        if cached.network != owner.scope.network || cached.ifname != owner.ifname {
            addresses.extend(cached.addresses);
        }
    }
    Ok(addresses)
}

/// Warns of a key in a pool's folder that is not a lease. On ADD and for a person it is an error; a
/// release goes on.
fn warn_if_foreign(pair: &Pair) {
    match AddressPair::read(pair) {
        Some(AddressPair { value: Err(why), .. }) => warn!("{why}"),
        Some(_) => {}
        None if is_in_pool_folder(&pair.key) => warn!("{}", foreign(&pair.key)),
        None => {}
    }
}

fn set_since(guard: &mut OwnerGuard, lease: &Lease) {
    let items = guard.owner_index.iter_mut().flat_map(|owner_index| &mut owner_index.leases);
    for item in items.filter(|item| item.address.addr() == lease.address.addr()) {
        item.since = LeaseRevision::read(&lease.revision);
    }
}

fn remove_item(guard: &mut OwnerGuard, address: IpAddr) {
    if let Some(owner_index) = &mut guard.owner_index {
        owner_index.leases.retain(|item| item.address.addr() != address);
    }
}
