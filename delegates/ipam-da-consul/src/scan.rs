//! Every lease of a network, for GC, operators and lint.

use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::Entry;
use log::warn;

use crate::call::CallScope;
use crate::errors::foreign;
use crate::keys::{OWNERS, ROOT, is_in_pool_folder, split};
use crate::session::ConsulSession;
use crate::store::KvStore;
use crate::txn::Pair;
use crate::values::{AddressPair, read_owner_state};

/// A function that takes an entry and says whether to continue.
type OnEntry<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;

/// Shows the entries of the pools of this call; of all pools if it names none.
pub(crate) fn scan_pools(call: &CallScope, store: &mut KvStore, each: OnEntry<'_>) -> Result<()> {
    let mut show = |pair: Pair| {
        if pair.key.starts_with(OWNERS) {
            return Ok(ControlFlow::Continue(()));
        }
        if let Some(address) = AddressPair::read(&pair) {
            return Ok(each(address.entry(&call.keys)));
        }
        if is_in_pool_folder(&pair.key) {
            warn!("{}", foreign(&pair.key));
        }
        Ok(ControlFlow::Continue(()))
    };
    if call.folders.is_empty() {
        return store.list_folder(ROOT, &mut show);
    }
    for folder in &call.folders {
        store.list_folder(&format!("{ROOT}{folder}/"), &mut show)?;
    }
    Ok(())
}

/// Shows the entries of a node: by the keys of its owners, or by those of addresses where the token
/// may not write keys of owners.
pub(crate) fn scan_node(
    call: &CallScope,
    session: &mut ConsulSession,
    node: &str,
    each: OnEntry<'_>,
) -> Result<()> {
    if !session.memory.is_indexed() {
        return scan_pools(call, &mut session.store, &mut |entry| {
            let is_of_node = entry.holder.as_ref().is_some_and(|holder| {
                holder.network.is_none() && holder.node.as_deref() == Some(node)
            });
            if is_of_node { each(entry) } else { ControlFlow::Continue(()) }
        });
    }
    let folder = call.keys.owners_of_node(node);
    let mut is_empty = true;
    session.store.list_pairs(&folder, &mut |pair| {
        is_empty = false;
        let owner = match read_owner_state(&pair) {
            Ok(owner) => owner,
            Err(error) => {
                warn!("{}", error.in_full());
                return Ok(ControlFlow::Continue(()));
            }
        };
        let owner_index = &owner.owner_index;
        if owner_index.node != node || owner_index.network != call.keys.network().as_str() {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(owner.entries().into_iter().try_for_each(&mut *each))
    })?;
    if !is_empty || session.store.may_read(&folder)? {
        return Ok(());
    }
    session.go_without_index();
    scan_node(call, session, node, each)
}

/// Returns the foreign keys in the folders of this call's pools, in words.
pub(crate) fn find_foreign_entries(call: &CallScope, store: &mut KvStore) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in &call.folders {
        let folder = format!("{ROOT}{folder}/");
        store.list_keys(&folder, &mut |key| {
            if key != folder && split(key).is_none() {
                found.push(foreign(key).to_string());
            }
            Ok(())
        })?;
    }
    Ok(found)
}
