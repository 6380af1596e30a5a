//! The view before a commit, with the plugin's cursors and this node's hints.

use std::collections::BTreeSet;

use etcd_client::TxnOp;
use ipam_kit::Result;
use ipam_kit::allocate::PoolRequest;
use ipam_kit::allocate::ledger::{View, ViewQuery};
use ipam_kit::pool::RangeConfig;

use super::CompatLedger;
use super::owner_leases::{forget_unless, leases_of, with_unlisted_leases};
use crate::view_reads::{addresses_in_query, build_view, read_for_view, view_without_reading};
use crate::view_token::{CompatWrites, EtcdViewToken};

/// Returns the owner's leases and the state of the pools.
pub(super) fn view(
    ledger: &mut CompatLedger,
    query: &ViewQuery<'_>,
    earlier: &EtcdViewToken,
) -> Result<View<EtcdViewToken>> {
    let hints = match query.known.is_empty() {
        true => ledger.hints.of(query.owner)?,
        false => BTreeSet::new(),
    };
    if !query.requests.is_empty() && ledger.keys.overwrites && ledger.node_turn.take() {
        // The process before us has moved the cursor.
        ledger.session.memory.refresh();
    }
    let mut token = earlier.clone();
    add_known_writes(ledger, query.requests, &mut token.compat_writes);
    let cursors = ledger.keys.cursors_to_read(query.requests, &token.compat_writes);
    let reads_more = !hints.is_empty()
        || cursors.keys().any(|index| !token.compat_writes.cursors.contains_key(index));
    if let Some(view) = view_without_reading(&ledger.session, query, reads_more, &token) {
        return Ok(view);
    }
    let addresses_read = addresses_in_query(query).into_iter().chain(hints).collect();
    let more = cursors.values().map(|key| TxnOp::get(key.as_str(), None)).collect();
    let reads = read_for_view(&mut ledger.session, query, addresses_read, more)?;
    token.compat_writes.cursors.retain(|index, _| !cursors.contains_key(index));
    token.compat_writes.cursors.extend(ledger.keys.cursors_in(&reads.more));
    let mut held = leases_of(ledger, query.owner, &reads.owner)?;
    // No record lists every lease of the owner: the plugin, or this delegate without an index, may
    // have given an address for each ADD. The runtime remembers one.
    let may_have_more =
        held.leases.is_empty() || (query.known.is_empty() && reads.owner.own.is_none());
    if ledger.is_del && may_have_more {
        held = with_unlisted_leases(ledger, query.owner, &reads.owner.siblings, held)?;
    }
    let holds = !held.leases.is_empty() || !query.requests.is_empty();
    forget_unless(ledger, query.owner, holds);
    Ok(build_view(&ledger.session, query, reads.used, held, &token))
}

/// Adds what a claim of these pools has to write for the plugin, as far as this node knows it
/// without a read.
fn add_known_writes(
    ledger: &CompatLedger,
    pools: &[PoolRequest],
    compat_writes: &mut CompatWrites,
) {
    for pool in pools {
        if let Some(cursor) = ledger.session.memory.cursor(pool.index) {
            compat_writes.cursors.insert(pool.index, cursor.to_string().into_bytes());
        }
    }
    if ledger.keys.ranges().is_some() && ledger.sees_all_pools && !pools.is_empty() {
        let sets: Option<Vec<Vec<RangeConfig>>> = pools.iter().map(range_configs).collect();
        compat_writes.ranges = sets.and_then(|sets| serde_json::to_string(&sets).ok());
    }
}

/// Returns the ranges of a pool as the plugin writes them.
fn range_configs(pool: &PoolRequest) -> Option<Vec<RangeConfig>> {
    let ranges = pool.set.as_ref()?.ranges();
    Some(ranges.iter().map(|range| range.to_config()).collect())
}
