//! The owners of some containers by their keys, for a change that takes addresses off them.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, TxnOp};
use ipam_kit::allocate::Lease;

use super::owner_lines::is_bare;
use super::pool_txn::write_owner;
use crate::keys::{EtcdKeys, end_of, plain};
use crate::values::{OwnerState, parse_holding};

/// The owners of some containers, and what each of them loses.
#[derive(Debug, Default)]
pub(super) struct FoundOwners {
    states: BTreeMap<String, OwnerState>,
    /// The addresses that each loses.
    losing: BTreeMap<String, BTreeSet<IpAddr>>,
    /// That no owner of the containers was added or changed since.
    no_newer: Vec<Compare>,
}

/// Reads the keys of a container's owners.
pub(super) fn read_owners_of(keys: &EtcdKeys, id: &str) -> TxnOp {
    let first = owners_of(keys, id);
    let all = GetOptions::new().with_range(end_of(&first));
    TxnOp::get(first, Some(all))
}

impl FoundOwners {
    /// Returns the owners of these containers by what [`read_owners_of`] each of them found.
    pub(super) fn new(keys: &EtcdKeys, ids: &BTreeSet<&str>, found: &[KeyValue]) -> Self {
        let mut states = BTreeMap::new();
        for found in found {
            // A value that is not ours lists nothing.
            if let Ok(state) = parse_holding(found) {
                states.insert(String::from_utf8_lossy(found.key()).into_owned(), state);
            }
        }
        let no_newer = ids.iter().map(|id| no_newer_owner(keys, id, found)).collect();
        Self { states, losing: BTreeMap::new(), no_newer }
    }

    /// Takes a lease off its owner. Answers whether it is still what it was seen to be: listed at
    /// the same revision, or a line that no owner of its container lists.
    pub(super) fn give_up(&mut self, id: &str, lease: &Lease) -> bool {
        let owners = self.states.iter().filter(|(_, state)| state.owner_index.container == id);
        let leases = owners.flat_map(|(key, state)| state.leases().into_iter().zip(repeat(key)));
        let address = lease.address.addr();
        let mut listed = leases.filter(|(item, _)| item.address.addr() == address);
        if is_bare(lease) {
            return listed.next().is_none();
        }
        let Some((_, key)) = listed.find(|(item, _)| item.revision == lease.revision) else {
            return false;
        };
        let key = key.clone();
        self.losing.entry(key).or_default().insert(address);
        true
    }

    /// Returns the guards that the owners are as they were found, and the writes of those that lose
    /// something.
    pub(super) fn guards_and_writes(&self) -> (Vec<Compare>, Vec<TxnOp>) {
        let mut guards = self.no_newer.clone();
        let mut writes = Vec::new();
        for (key, addresses) in &self.losing {
            let Some(state) = self.states.get(key) else { continue };
            let gone = |address| addresses.contains(&address);
            guards.push(Compare::mod_revision(&**key, CompareOp::Equal, state.revision));
            writes.push(write_owner(key, &state.without(gone)));
        }
        (guards, writes)
    }
}

/// Guards that no owner of a container was added or changed since its keys were found.
fn no_newer_owner(keys: &EtcdKeys, id: &str, found: &[KeyValue]) -> Compare {
    let first = owners_of(keys, id);
    let its = found.iter().filter(|found| found.key().starts_with(first.as_bytes()));
    let newest = its.map(KeyValue::mod_revision).max().unwrap_or_default();
    let end = end_of(&first);
    Compare::mod_revision(first, CompareOp::Less, newest + 1).with_range(end)
}

/// Returns what the keys of a container's owners begin with.
fn owners_of(keys: &EtcdKeys, id: &str) -> String {
    format!("{}{}/", keys.owners(), plain(id))
}
