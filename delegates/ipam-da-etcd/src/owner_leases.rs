//! An owner's leases, from the keys that were read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use etcd_client::{KeyValue, Txn, TxnOp};
use ipam_kit::Result;
use ipam_kit::allocate::ledger::Change;
use ipam_kit::allocate::owner_commit::OwnerGuard;
use ipam_kit::allocate::{Lease, Owner};

use crate::keys::EtcdKeys;
use crate::page::found_by_key;
use crate::session::EtcdSession;
use crate::values::{IndexedLease, LeaseRevision, OwnerState, parse_holding};

/// The keys that were read of an owner.
#[derive(Debug)]
pub(crate) struct OwnerKeys {
    /// The owner's key.
    pub(crate) own: Option<KeyValue>,
    /// The keys of other owners of the container, in a layout whose values name a container only.
    pub(crate) siblings: Vec<KeyValue>,
    /// The keys of addresses, as far as they are there.
    pub(crate) leases: Vec<KeyValue>,
    /// The addresses whose keys were read.
    pub(crate) addresses_read: BTreeSet<IpAddr>,
}

/// The leases of an owner.
#[derive(Debug)]
pub(crate) struct OwnerLeases {
    pub(crate) leases: Vec<Lease>,
    /// The guard of a commit.
    pub(crate) guard: OwnerGuard,
    /// Leases that the owner's key still lists, but the keys of the addresses do not.
    pub(crate) lost: Vec<Lease>,
}

impl OwnerKeys {
    /// Reads the keys from the answer to a refused change.
    pub(crate) fn by_refusal(
        keys: &EtcdKeys,
        owner: &Owner,
        change: &Change<'_>,
        found: Vec<KeyValue>,
    ) -> Self {
        let addresses_read = [&change.keep, &change.leave, &change.drop];
        let addresses_read =
            addresses_read.into_iter().flatten().map(|lease| lease.address.addr()).collect();
        let (leases, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|found| keys.address(found.key()).is_some());
        Self::new(keys, owner, others, leases, addresses_read)
    }

    /// Sorts the keys that were found: of owners, and of the addresses that were read.
    pub(crate) fn new(
        keys: &EtcdKeys,
        owner: &Owner,
        owners: Vec<KeyValue>,
        leases: Vec<KeyValue>,
        addresses_read: BTreeSet<IpAddr>,
    ) -> Self {
        let key = keys.owner(owner);
        let (own, others): (Vec<_>, Vec<_>) =
            owners.into_iter().partition(|found| found.key() == key.as_bytes());
        let siblings = match keys.of_container(owner) {
            None => Vec::new(),
            Some(prefix) => {
                let others = others.into_iter();
                others.filter(|found| found.key().starts_with(prefix.as_bytes())).collect()
            }
        };
        Self { own: own.into_iter().next(), siblings, leases, addresses_read }
    }

    /// Returns the owner's leases from its own key, without those whose addresses were read and
    /// have changed.
    ///
    /// # Errors
    /// The value of its key is not ours.
    pub(crate) fn by_own_key(&self, keys: &EtcdKeys, owner: &Owner) -> Result<OwnerLeases> {
        let Some(own) = &self.own else {
            let guard = OwnerGuard::without_key(owner);
            return Ok(OwnerLeases { leases: Vec::new(), guard, lost: Vec::new() });
        };
        let holding = parse_holding(own)?;
        let (leases, lost): (Vec<_>, Vec<_>) =
            holding.leases().into_iter().partition(|lease| self.may_be_current(keys, lease));
        let OwnerState { revision, mut owner_index } = holding;
        owner_index.leases.retain(|item| leases.iter().any(|lease| lease.address == item.address));
        let guard = OwnerGuard { revision: Some(revision), owner_index: Some(owner_index) };
        Ok(OwnerLeases { leases, guard, lost })
    }

    /// Tells whether the key of a lease's address has the revision of the lease, or was not read.
    fn may_be_current(&self, keys: &EtcdKeys, lease: &Lease) -> bool {
        let address = lease.address.addr();
        if !self.addresses_read.contains(&address) {
            return true;
        }
        let found = self.found(keys, address).map(KeyValue::mod_revision);
        found == LeaseRevision::read(&lease.revision).map(|seen| seen.revision)
    }

    /// Returns the key of one of the addresses.
    pub(crate) fn found(&self, keys: &EtcdKeys, address: IpAddr) -> Option<&KeyValue> {
        let key = keys.lease(address);
        self.leases.iter().find(|found| found.key() == key.as_bytes())
    }

    /// Returns the leases that are the owner's by the keys of the addresses, with these keys.
    pub(crate) fn by_addresses(
        &self,
        keys: &EtcdKeys,
        owner: &Owner,
    ) -> impl Iterator<Item = (&KeyValue, Lease, IndexedLease)> {
        self.leases.iter().filter_map(|found| {
            let address = keys.address(found.key())?;
            let (lease, item) = keys.key_format().left_to(owner, address, found)?;
            Some((found, lease, item))
        })
    }
}

impl OwnerLeases {
    /// Adds a lease that the owner's key does not list.
    pub(crate) fn add(&mut self, lease: Lease, item: IndexedLease) {
        self.leases.push(lease);
        self.guard.add(item);
    }

    /// Tells whether the owner holds an address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.leases.iter().any(|lease| lease.address.addr() == address)
    }
}

/// Reads the leases of the owners that lose an address by a change, by the key of each owner.
///
/// # Errors
/// As [`EtcdSession::read`]; or the value of an owner's key is not ours.
pub(crate) fn read_previous_holders(
    session: &mut EtcdSession,
    change: &Change<'_>,
) -> Result<BTreeMap<String, Option<OwnerState>>> {
    let holders = change.claim.iter().filter_map(|claim| claim.replaces.as_ref()?.holder.as_ref());
    let keys: BTreeSet<String> =
        holders.filter_map(|holder| session.keys.owner_of_holder(holder)).collect();
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let reads: Vec<TxnOp> = keys.iter().map(|key| TxnOp::get(key.as_str(), None)).collect();
    let answer = session.read(&Txn::new().and_then(reads))?;
    let found = found_by_key(&answer.response);
    let mut previous_holders = BTreeMap::new();
    for key in keys {
        let state = found.get(key.as_bytes()).map(parse_holding).transpose()?;
        previous_holders.insert(key, state);
    }
    Ok(previous_holders)
}
