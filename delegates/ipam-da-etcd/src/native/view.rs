//! What is seen before a commit, in one round trip.

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{View, ViewQuery};

use crate::keys::EtcdKeys;
use crate::owner_leases::{OwnerKeys, OwnerLeases};
use crate::session::EtcdSession;
use crate::view_reads::{build_view, named_addresses, read_for_view, view_without_reading};
use crate::view_token::EtcdViewToken;

/// What the owner holds and what is known of the pools.
pub(super) fn view(
    session: &mut EtcdSession,
    query: &ViewQuery<'_>,
    earlier: &EtcdViewToken,
) -> Result<View<EtcdViewToken>> {
    if let Some(view) = view_without_reading(session, query, false, earlier) {
        return Ok(view);
    }
    let reads = read_for_view(session, query, named_addresses(query), Vec::new())?;
    let held = held(&session.keys, query.owner, &reads.shown)?;
    Ok(build_view(session, query, reads.used, held, earlier))
}

/// What the owner holds by its own key; by those of the addresses where that one was deleted by
/// hand.
pub(super) fn held(keys: &EtcdKeys, owner: &Owner, shown: &OwnerKeys) -> Result<OwnerLeases> {
    let mut held = shown.by_own_key(keys, owner)?;
    if shown.own.is_none() {
        for (_, lease, item) in shown.by_addresses(keys, owner) {
            held.add(lease, item);
        }
    }
    Ok(held)
}
