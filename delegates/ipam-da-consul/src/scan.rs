//! Every lease of a network.

use std::ops::ControlFlow;

use ipam_kit::Result;
use ipam_kit::allocate::ledger::Entry;
use log::warn;

use crate::call::CallScope;
use crate::errors::foreign;
use crate::keys::{OWNERS, ROOT, split};
use crate::session::ConsulSession;
use crate::store::KvStore;
use crate::txn::Pair;
use crate::values::{AddressPair, holding};

/// Shows an entry, and hears whether to go on.
type OnEntry<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;

/// Shows the entries of a node by the keys of its owners; where the store lets us have none, by those of the
/// addresses.
pub(crate) fn scan_node(
    call: &CallScope,
    session: &mut ConsulSession,
    node: &str,
    each: OnEntry<'_>,
) -> Result<()> {
    if !session.memory.is_indexed() {
        return scan_pools(call, &mut session.store, &mut |entry| {
            let its = entry.holder.as_ref().is_some_and(|holder| {
                holder.network.is_none() && holder.node.as_deref() == Some(node)
            });
            if its { each(entry) } else { ControlFlow::Continue(()) }
        });
    }
    let folder = call.keys.of_node(node);
    let mut empty = true;
    session.store.below(&folder, &mut |pair| {
        empty = false;
        let holding = match holding(&pair) {
            Ok(holding) => holding,
            Err(error) => {
                warn!("{}", error.in_full());
                return Ok(ControlFlow::Continue(()));
            }
        };
        let document = &holding.document;
        if document.node != node || document.network != call.keys.network().as_str() {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(holding.entries().into_iter().try_for_each(&mut *each))
    })?;
    if !empty || session.store.may_read(&folder)? {
        return Ok(());
    }
    session.go_without_index();
    scan_node(call, session, node, each)
}

/// Keys in the folders of pools that are about no address.
pub(crate) fn find_foreign_entries(call: &CallScope, store: &mut KvStore) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for pool in &call.asked {
        let folder = format!("{ROOT}{pool}/");
        store.keys(&folder, &mut |key| {
            if key != folder && split(key).is_none() {
                found.push(foreign(key).to_string());
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// Shows the entries of the pools that this call is about, of all pools where it names none.
pub(crate) fn scan_pools(call: &CallScope, store: &mut KvStore, each: OnEntry<'_>) -> Result<()> {
    let mut show = |pair: Pair| {
        if pair.key.starts_with(OWNERS) {
            return Ok(ControlFlow::Continue(()));
        }
        if let Some(found) = AddressPair::read(&pair) {
            return Ok(each(found.entry(&call.keys)));
        }
        let in_a_pool = pair.key.strip_prefix(ROOT).unwrap_or_default().contains('/');
        if in_a_pool && !pair.key.ends_with('/') {
            warn!("the key {} is no address of its pool", pair.key);
        }
        Ok(ControlFlow::Continue(()))
    };
    if call.asked.is_empty() {
        return store.whole(ROOT, &mut show);
    }
    for pool in &call.asked {
        store.whole(&format!("{ROOT}{pool}/"), &mut show)?;
    }
    Ok(())
}
